#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs scenarios as a job of CI does: reports as SARIF, JUnit and a page, and a line per finding that GitHub shows
# beside the scenario. Exits as cddp-verify does.
#
# usage: ci.sh FOLDER [OUTPUT-FOLDER]
#
# CDDP_VERIFY names the program; without it the one on PATH is used, else that of this checkout (./run).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -ge 1 ] || { echo "usage: ${0##*/} FOLDER [OUTPUT-FOLDER]" >&2; exit 2; }
scenarios=$1 output=${2:-cddp-report}
verify=${CDDP_VERIFY:-$(command -v cddp-verify || echo "$here/run")}
mkdir -p "$output"
rm -f "$output/runs.db"

code=0
"$verify" run "$scenarios" --keep-going --jobs 0 --format json --output "$output/report.json" --trace "$output/runs.db" || code=$?
[ -f "$output/report.json" ] || exit $code
for format in sarif junit html; do
    suffix=$format
    [ $format = junit ] && suffix=xml
    "$verify" report "$output/runs.db" --format $format --output "$output/report.$suffix" >/dev/null 2>&1 || true
done

# What GitHub takes from the log; elsewhere these are lines that people read.
python3 - "$output/report.json" <<'PYTHON'
import json
import re
import sys

def escape(text, also=""):
    for raw, code in [("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")]:
        if raw not in ":," or also:
            text = text.replace(raw, code)
    return text

report = json.load(open(sys.argv[1], encoding="utf-8"))
for result in report["results"]:
    if result["exit_code"] == 0 or result["verdict"] == "skipped":
        continue
    finding = next(iter(result["findings"]), None)
    title = finding["invariant"] if finding else result["verdict"]
    words = finding["title"] if finding else result["summary"]
    if result.get("hang"):
        words = result["hang"]["headline"]
    if result.get("reproduce"):
        words += "\n" + result["reproduce"]
    place = result.get("place") or {"file": result["source"], "line": 1}
    # A mistake in a scenario: "FILE:4:1: unknown key …"
    mistake = re.match(re.escape(result["source"]) + r":(\d+):", result.get("details", ""))
    if mistake:
        place, words = {"file": result["source"], "line": int(mistake.group(1))}, result["details"]
    print(f"::error file={escape(place['file'], 'also')},line={place['line']},title={escape(title, 'also')}::{escape(words)}")
bad = sum(r["exit_code"] != 0 for r in report["results"])
print(f"{len(report['results'])} scenarios, {bad} not verified")
PYTHON
exit $code
