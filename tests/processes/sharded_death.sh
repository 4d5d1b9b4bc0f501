#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sharded_death.sh PROGRAM BACKEND: rank 1 of four real processes is killed between the gather of a unit and its free, in the
# backward of the first step (29, 31) and of the second (128). Its peers end long before their time-out, and the report names the
# rank and the step.
set -u
program=$1 backend=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# The operation that it does not post, by its number, and the step.
while read -r at step; do
    timeout -k 2 30 "$program" run --color never --backend "fault:die=1@$at:$backend" -n 4 scenarios/fsdp/full_shard.toml \
        --set world.timeout_ms=60000 >"$work/out" 2>&1 </dev/null
    code=$?
    tr -s ' \n' ' ' <"$work/out" >"$work/line"
    if [ $code -ne 1 ] || ! grep -qE "I-FAIL rank 1 (was killed|died) where step $step, rank 1" "$work/line" ||
        ! grep -qE "ranks 0, 2 and 3 (lost rank 1,|wait in (allgather|reduce_scatter) #[0-9]+ .step $step. for rank 1,) which (was killed|died)" "$work/line"; then
        printf 'FAIL: operation %d: exit %d instead of 1, or not ranks 0, 2 and 3 in step %d for rank 1:\n' "$at" $code "$step"
        head -12 "$work/out"
        failed=1
    fi
done <<'ROWS'
29 0
31 0
128 1
ROWS
[ $failed -eq 0 ] && echo "sharded_death: rank 1 is named three times"
exit $failed
