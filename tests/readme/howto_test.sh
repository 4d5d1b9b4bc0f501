#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the ```sh blocks of docs/howto/your-program.md, in order and in one shell: howto_test.sh PAGE PREFIX WORK
#
# A block ends with 0, or as "exit=N" says. A ```text block behind it is what one sees: each of its lines must appear
# in the output, where "…" stands for what differs.
set -euo pipefail
page=$1 PREFIX=$2 work=$3
export PREFIX
mkdir -p "$work" && cd "$work"
awk '
    /^```/ && !inside { split(substr($0, 4), words, " "); inside = 1; kind = words[1]; code = 0
                        if (match($0, /exit=[0-9]+/)) code = substr($0, RSTART + 5, RLENGTH - 5)
                        if (kind == "sh") print "set +e; {" > "script"; next }
    /^```/ { if (kind == "sh") printf "true; } > \"$top/output\" 2>&1 < /dev/null; finish %d\n", code > "script"; inside = 0; next }
    inside && kind == "sh" { print $0 " && last=0 || last=$?" > "script" }
    inside && kind == "text" { gsub(/\047/, "\047\\\047\047"); print "see \047" $0 "\047" > "script" }' "$page"

count=0 failures=0 last=0
top=$PWD
finish() {
    mv "$top/output" "$top/seen"
    count=$((count + 1))
    [ "$last" -eq "$1" ] || { echo "block $count ended with $last instead of $1:"; cat "$top/seen"; failures=$((failures + 1)); }
}
see() {
    local pattern
    pattern=$(printf '%s' "$1" | sed -e 's/[][\.*^$/]/\\&/g' -e 's/…/.*/g')
    grep -q -e "$pattern" "$top/seen" || { echo "block $count does not print: $1"; cat "$top/seen"; failures=$((failures + 1)); }
}
# shellcheck disable=SC1091
. ./script
printf '%d blocks of %s executed, %d failures\n' "$count" "$page" "$failures"
[ "$count" -gt 5 ] && [ "$failures" -eq 0 ]
