#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# catalogue.sh PROGRAM TREE RANKS: the scenarios on NCCL end as on the simulator. With one rank every scenario that a
# world of one can run takes part, with two those that are written for two ranks. Left out is what only a simulator can
# do: planted faults, choosers, devices without numbers, bounded slots, planted hooks, ranks that wait for ever.
# 77 where there is no GPU.
set -u
program=$1 tree=$2 ranks=$3
tell=$("$program" doctor --color never 2>&1 | tr '\n' ' ' | tr -s ' ')
case $tell in
    *"works nccl"*) ;;
    *) printf 'skipped: %s\n' "$(printf '%s' "$tell" | sed -E 's/.*(no nccl .*)/\1/; s/ works .*//')"; exit 77 ;;
esac
cd "$tree" || exit 2
passed=0 failed=0 skipped=0
while IFS= read -r scenario; do
    size=$(sed -nE 's/^size *= *([0-9]+).*/\1/p' "$scenario" | head -1)
    if [ "${size:-2}" != "$ranks" ] ||
        grep -qE '^\[\[fault\]\]|device = "(symbol|shape)"|^chooser|in_flight_max|name = "plant_|I-LIVE|^backend' "$scenario"; then
        skipped=$((skipped + 1))
        continue
    fi
    if out=$(timeout 60 "$program" run --backend nccl --color never "$scenario" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s\n%s\n' "$scenario" "$(printf '%s\n' "$out" | head -8)"
    fi
done < <(find scenarios -name '*.toml' | sort)
# A world of one has few scenarios of its own: those of two ranks, asked to run with one, must at least not be found wrong.
if [ "$ranks" = 1 ]; then
    for scenario in scenarios/no_sync_accumulation.toml scenarios/powersgd.toml scenarios/fp16_compress.toml scenarios/static_graph.toml; do
        timeout 60 "$program" run --backend nccl -n 1 --color never "$scenario" >/tmp/cddp-gpu-one.$$ 2>&1
        case $? in
            0 | 4) passed=$((passed + 1)) ;;
            *) failed=$((failed + 1)); printf 'FAIL -n 1 %s\n%s\n' "$scenario" "$(head -8 /tmp/cddp-gpu-one.$$)" ;;
        esac
    done
    rm -f /tmp/cddp-gpu-one.$$
fi
printf '%d as on the simulator, %d not, %d left out\n' $passed $failed $skipped
[ $failed -eq 0 ] && [ $passed -gt 0 ]
