#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# explored.sh MUTANT VERIFY CHECK SCENARIO SETTING…: a mistake that the schedule of a plain run does
# not show is found by explore, and first by CHECK. The printed line shows it when the mutant replays
# it. Without the mistake all of as many schedules are verified.
set -u
mutant=$1 verify=$2 check=$3 scenario=$4
shift 4
sets=()
for setting in "$@"; do sets+=(--set "$setting"); done
budget=60
fail() { printf 'FAILED: %s\n%s\n' "$1" "$out" >&2; exit 1; }
out=$("$mutant" run "$scenario" "${sets[@]}" 2>&1) || fail "the plain run shows it"
out=$("$mutant" explore "$scenario" "${sets[@]}" --budget $budget 2>&1)
got=$?
[ $got -eq 1 ] || fail "exit $got, wanted 1"
grep -q "^  $check " <<< "$out" || fail "it is not found by $check"
line=$(sed -n 's/^  replay *cddp-verify //p' <<< "$out")
[ -n "$line" ] || fail "no line that replays it"
eval "\"$mutant\" $line" > /dev/null 2>&1
got=$?
[ $got -eq 1 ] || fail "the line ends with $got on the mutant: $line"
printf '%s\n' "$out"
out=$("$verify" explore "$scenario" "${sets[@]}" --budget $budget 2>&1) || fail "without the mistake"
