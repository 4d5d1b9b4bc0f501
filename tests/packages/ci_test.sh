#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a job of CI would do: a folder with a failing scenario gives all reports, a line per finding and the exit code;
# and the files of GitHub, GitLab and Docker are well-formed.
#
# usage: ci_test.sh CDDP-VERIFY SOURCE-FOLDER
set -euo pipefail
source=$2
export CDDP_VERIFY=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
mkdir "$work/scenarios"
cp "$source/scenarios/gan_unused_params.toml" "$work/scenarios/good.toml"
sed 's/find_unused_parameters = true/find_unused_parameters = false/' "$source/scenarios/gan_unused_params.toml" >"$work/scenarios/bad.toml"
code=0
(cd "$work" && "$source/packaging/ci.sh" scenarios out >log) || code=$?
[ $code -eq 1 ] || { cat "$work/log"; fail "exit code $code instead of 1"; }
line=$(grep -n '^find_unused_parameters' "$work/scenarios/bad.toml" | cut -d: -f1)
grep -q "^::error file=scenarios/bad.toml,line=$line,title=I-ONCE::ranks 0 and 1: the optimizer" "$work/log" || { cat "$work/log"; fail "the line for GitHub"; }
grep -q '^2 scenarios, 1 not verified$' "$work/log" || { cat "$work/log"; fail "the last line"; }
for file in report.json report.sarif report.xml report.html runs.db; do
    [ -s "$work/out/$file" ] || fail "no $file"
done
python3 -c 'import json, sys; [json.load(open(p)) for p in sys.argv[1:]]' "$work/out/report.json" "$work/out/report.sarif"
if python3 -c 'import yaml' 2>/dev/null; then
    python3 - "$source" <<'PYTHON'
import sys, yaml
action = yaml.safe_load(open(sys.argv[1] + "/action.yml"))
assert action["runs"]["using"] == "composite" and all(s["shell"] == "bash" for s in action["runs"]["steps"])
job = yaml.safe_load(open(sys.argv[1] + "/packaging/gitlab.yml"))["cddp-verify"]
assert job["script"] and job["artifacts"]["reports"]["junit"].endswith(".xml")
PYTHON
else
    echo "no python3-yaml: action.yml and gitlab.yml were not parsed"
fi
grep -qE '^FROM ' "$source/packaging/Dockerfile" || fail "the Dockerfile"
echo "reports, annotations, exit code"
