#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each page of docs/ opens with an example, and prints what the program prints: pages_test.sh PROGRAM ROOT
#
# A page must have a command, a program or a file before its first "##". An indented block whose first line is
# "$ cddp-verify …" is run: each line below the command must appear in the output, where "…" stands for what differs
# from run to run. Examples that need a transport, a GPU or a file of the reader are not run.
set -euo pipefail
program=$1 root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"

failures=0 executed=0
fail() { printf '%s: %s\n' "$1" "$2"; failures=$((failures + 1)); }

# Does the line appear in the output? Parts between … must come in order on one line.
check_line() {
    local page=$1 line=$2 pattern
    pattern=$(printf '%s' "$line" | sed -e 's/^ *//' -e 's/[][\.*^$/]/\\&/g' -e 's/…/.*/g')
    [ -n "$pattern" ] || return 0
    grep -q -e "$pattern" "$work/output" || fail "$page" "the output does not contain: $line"
}

for page in docs/*.md docs/formats/*.md docs/howto/*.md; do
    case $page in */README.md) continue ;; esac
    awk '/^## / { exit } { print }' "$page" >"$work/opening"
    if ! grep -q -e '^    [^ ]' -e '^```' "$work/opening"; then
        fail "$page" "does not open with an example: a command and what it prints, before the first '##'"
        continue
    fi
    runs=no
    while IFS= read -r line; do
        case $line in
        '    $ cddp-verify '*)
            arguments=${line#    \$ cddp-verify }
            case $arguments in
            *gloo* | doctor* | *.frontier* | *run.db* | *cddp-trace* | *' scenario.toml'*) runs=no ;;
            *)
                # shellcheck disable=SC2086
                "$program" $arguments >"$work/output" 2>&1 || true
                runs=yes executed=$((executed + 1))
                ;;
            esac
            ;;
        '    '*) [ $runs = no ] || check_line "$page" "$line" ;;
        '') ;; # a blank line may stand between what is printed
        *) runs=no ;;
        esac
    done <"$work/opening"
done
printf '%d examples executed, %d failures\n' "$executed" "$failures"
[ "$executed" -gt 10 ] && [ "$failures" -eq 0 ]
