#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gloo.sh PROGRAM SCENARIO…: the scenarios on real processes over Gloo end as they do on the simulator. Left out is what
# only a simulator can do: planted faults, choosers, device symbol or shape, bounded slots, scenarios of planted hooks,
# worlds of dozens of ranks (same_with), and ranks that wait for ever (real ones wait for the transport's time-out).
set -u
program=$1
shift
passed=0 failed=0 skipped=0
for scenario in "$@"; do
    if grep -qE '^\[\[fault\]\]|device = "(symbol|shape)"|^chooser|in_flight_max|same_with|name = "plant_|I-LIVE' "$scenario"; then
        skipped=$((skipped + 1))
        continue
    fi
    if out=$(timeout 60 "$program" run --backend gloo --color never "$scenario" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s\n%s\n' "$scenario" "$(printf '%s\n' "$out" | head -8)"
    fi
done
printf '%d as on the simulator, %d not, %d left out\n' $passed $failed $skipped
[ $failed -eq 0 ] && [ $passed -gt 0 ]
