#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# idle.sh PROGRAM BACKEND: while ranks do nothing the judge waits, and uses no processor.
set -u
program=$1 backend=$2
work=$(mktemp -d)
mark=$((RANDOM * 32768 + RANDOM + 1000000)) # a seed by which the run's processes are known
trap 'kill -KILL $(pgrep -f "seed=$mark") 2>/dev/null; rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$program" run --backend "$backend" -n 2 scenarios/models/mlp_two_ranks.toml --set train.steps=1000000 --set world.seed=$mark --set world.timeout_ms=60000 \
    --log debug >"$work/out" 2>"$work/log" </dev/null &
judge=$!
for _ in $(seq 200); do [ "$(wc -l <"$work/log")" -gt 50 ] && break; sleep 0.05; done
# What writes the log is the judge; what else has the number is mpirun or a rank.
stopped=$(pgrep -f "seed=$mark" | grep -vx "$judge")
[ -n "$stopped" ] || { echo "FAIL: no rank runs"; head -3 "$work/out"; exit 1; }
kill -STOP $stopped
sleep 1 # it reads what they had sent
ticks() { awk '{ print $14 + $15 }' "/proc/$judge/stat"; }
before=$(ticks)
sleep 3
used=$(($(ticks) - before))
limit=$((3 * $(getconf CLK_TCK) / 10)) # a tenth of a processor
[ "$used" -lt "$limit" ] || { echo "FAIL: the judge used $used ticks in 3 s, in which no rank ran"; exit 1; }
kill -CONT $stopped
kill -INT $judge
wait $judge
echo "idle: the judge used $used ticks of processor time in 3 s of waiting"
