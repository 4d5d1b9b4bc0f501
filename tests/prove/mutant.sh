#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mutant.sh MUTANT VERIFY SCENARIO WORDS…: a program with a planted mistake is refuted, with these
# words. The printed line shows the mistake when the mutant replays it; the program without the
# mistake survives the same line.
set -u
mutant=$1 verify=$2 scenario=$3
shift 3
out=$("$mutant" prove "$scenario" 2>&1)
got=$?
fail() { printf 'FAILED: %s\n%s\n' "$1" "$out" >&2; exit 1; }
[ $got -eq 1 ] || fail "exit $got, wanted 1"
grep -q '^refuted ' <<< "$out" || fail "it does not say refuted"
for words in "$@"; do grep -qF -- "$words" <<< "$out" || fail "it does not say: $words"; done
line=$(sed -n 's/^  replay *cddp-verify //p' <<< "$out")
[ -n "$line" ] || fail "no line that replays it"
eval "\"$mutant\" $line" > /dev/null 2>&1
got=$?
[ $got -eq 1 ] || fail "the line ends with $got on the mutant: $line"
eval "\"$verify\" $line" > /dev/null 2>&1
got=$?
[ $got -eq 0 ] || fail "the line ends with $got without the mistake: $line"
printf '%s\n' "$out"
