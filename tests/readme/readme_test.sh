#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the command blocks of README.md as they stand there: readme_test.sh ROOT
#
# A block is fenced with "```sh"; "```sh exit=1" expects that exit code of its last command. A block that calls
# ./check is left out: it would run this test. A "```text" block right behind a command block is what one sees: each
# of its lines must appear in the output, except where "…" stands for what differs from run to run.
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One file per block, in order: N.sh or N.text, the words behind the language in N.info.
awk -v work="$work" '
    /^```/ && !inside { split(substr($0, 4), words, " "); language = words[1]; inside = 1; count++
                        file = sprintf("%s/%03d.%s", work, count, language == "" ? "none" : language)
                        print substr($0, 4) > sprintf("%s/%03d.info", work, count); printf "" > file; next }
    /^```/ { inside = 0; close(file); next }
    inside { print > file }' "$root/README.md"

failures=0 executed=0
fail() { printf 'README.md, block %s: %s\n' "$1" "$2"; failures=$((failures + 1)); }

# Does every line of the text block appear in the output? Parts between … must come in order on one line.
check_output() {
    local number=$1 shown=$2 output=$3 line pattern
    while IFS= read -r line; do
        [ -n "${line//[[:space:]]/}" ] || continue
        pattern=$(printf '%s' "$line" | sed -e 's/[][\.*^$/]/\\&/g' -e 's/…/.*/g')
        grep -q -e "$pattern" "$output" || fail "$number" "the output does not contain: $line"
    done <"$shown"
}

cd "$root"
for block in "$work"/*.sh; do
    number=$(basename "$block" .sh)
    if grep -q '^\./check' "$block"; then continue; fi
    wanted=$(sed -n 's/.*exit=\([0-9]*\).*/\1/p' "$work/$number.info")
    code=0
    bash -euo pipefail "$block" >"$work/output" 2>&1 || code=$?
    executed=$((executed + 1))
    if [ "$code" -ne "${wanted:-0}" ]; then
        fail "$number" "ended with $code instead of ${wanted:-0}"
        sed 's/^/    /' "$block" "$work/output"
    fi
    next=$(printf '%03d' $((10#$number + 1)))
    [ ! -f "$work/$next.text" ] || check_output "$number" "$work/$next.text" "$work/output"
done
printf '%d command blocks executed, %d failures\n' "$executed" "$failures"
[ "$executed" -gt 0 ] && [ "$failures" -eq 0 ]
