#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# unshown.sh MUTANT VERIFY SCENARIO WORDS: a program whose planted mistake no world of the scenario's size shows is proved for
# that size, and for no other: with these words. The program without the mistake claims any number of ranks.
set -u
mutant=$1 verify=$2 scenario=$3 words=$4
fail() { printf 'FAILED: %s\n%s\n' "$1" "$out" >&2; exit 1; }
out=$("$mutant" prove "$scenario" 2>&1)
[ $? -eq 0 ] || fail "the mutant is not proved"
grep -q '^  any ranks   not shown: ' <<< "$out" || fail "it claims any number of ranks"
tr -s ' \n' ' ' <<< "$out" | grep -qF -- "$words" || fail "it does not say: $words"
! grep -q 'for any number of ranks' <<< "$out" || fail "it claims any number of ranks"
out=$("$verify" prove "$scenario" 2>&1)
[ $? -eq 0 ] || fail "the program without the mistake is not proved"
grep -q 'for any number of ranks from' <<< "$out" || fail "the program without the mistake claims nothing"
printf '%s\n' "$out"
