#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# unmet.sh PROGRAM JAM.so BACKEND…: a transport that never connects the ranks says nothing about the training. The run is exit 3 with
# advice, and so is what was recorded of it. That a rank that dies meanwhile is a finding is shown by strikes.sh.
set -u
program=$1 jam=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# expect CODE WORDS COMMAND…
expect() {
    local code=$1 words=$2 seen
    shift 2
    timeout 100 "$@" >"$work/out" 2>&1 </dev/null
    seen=$?
    [ $seen -eq "$code" ] && tr -s ' \n' ' ' <"$work/out" | grep -qF "$words" && return
    printf 'FAIL %s: %s: exit %d instead of %d, or not: %s\n' "$backend" "$*" $seen "$code" "$words"
    head -20 "$work/out"
    failed=1
}

for backend in "$@"; do
    run=("$program" run --backend "$backend" scenarios/models/mlp_two_ranks.toml --set world.timeout_ms=1000)
    what=mpi why="MPI_Init_thread did not return within 1 s"
    [ "$backend" != gloo ] || what=connect why="group 'world'"
    rm -f "$work/run.db"
    expect 3 "the ranks did not meet, and nothing was judged: $why" env LD_PRELOAD="$jam" CDDP_TEST_JAM=$what "${run[@]}" --trace "$work/run.db"
    expect 3 "the ranks did not meet, and nothing was judged: $why" "$program" check "$work/run.db"
    expect 3 "there is nothing to reproduce" "$program" replay "$work/run.db"
done
[ $failed -ne 0 ] || echo "unmet: all as it should be"
exit $failed
