#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# same.sh OLD NEW [SCENARIO…]: two programs report the same on every scenario: verdicts, findings, digests of traces and plans,
# and the events that they store. Prints what differs; 0 when nothing does. Run it in the tree whose scenarios are meant.
set -u
old=$1 new=$2
shift 2
[ $# -gt 0 ] || set -- scenarios
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for which in old new; do
    program=$old; [ $which = old ] || program=$new
    "$program" run "$@" --format json --color never >"$work/$which.json" 2>"$work/$which.err"
    echo $? >>"$work/$which.json"
    "$program" run "$@" --verbose --color never >"$work/$which.txt" 2>&1
    for file in "$work/$which".*; do
        sed -i -E 's/"(seconds|wall_[a-z_]*|rate)": [0-9.e+-]+/"\1": 0/; s/in [0-9.]+ (s|ms)\b/in T/' "$file"
    done
done
for kind in json txt err; do
    if ! diff "$work/old.$kind" "$work/new.$kind" >"$work/diff"; then
        failed=1
        echo "reports differ ($kind):"
        head -40 "$work/diff"
    fi
done
count=0
while IFS= read -r scenario; do
    count=$((count + 1))
    for which in old new; do
        program=$old; [ $which = old ] || program=$new
        rm -f "$work/$which.db"
        "$program" run --trace "$work/$which.db" "$scenario" >/dev/null 2>&1
    done
    python3 - "$scenario" "$work/old.db" "$work/new.db" <<'PYTHON' || failed=1
import sqlite3, sys
old, new = (sqlite3.connect(path) for path in sys.argv[2:])
for table in ("event", "text", "parameter", "finding", "finding_rank", "finding_event", "exercised", "metric"):
    # what only one of the two programs has is not compared
    columns = [[row[1] for row in store.execute(f"PRAGMA table_info({table})")] for store in (old, new)]
    common = ", ".join(name for name in columns[0] if name in columns[1])
    if not common:
        continue
    a, b = (list(store.execute(f"SELECT {common} FROM {table}")) for store in (old, new))
    if a != b and sorted(map(repr, a)) != sorted(map(repr, b)):
        first = next((pair for pair in zip(a, b) if pair[0] != pair[1]), (len(a), len(b)))
        print("stored rows differ:", sys.argv[1], table, *first)
        sys.exit(1)
PYTHON
done < <(find "$@" -name '*.toml' | sort)
[ $failed -ne 0 ] || echo "the same: reports and stored events of $count scenarios"
exit $failed
