#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# stalled.sh PROGRAM BACKEND LAUNCHER…: of two ranks that a launcher started, one is stopped before MPI has come up, where MPI has no
# time-out. The run ends all the same, says that nobody reported, blames nobody, and does so long before its deadline. LAUNCHER… starts two.
set -u
program=$1 backend=$2
shift 2
work=$(mktemp -d)
export work
trap 'kill -KILL $(cat "$work/pid" 2>/dev/null) 2>/dev/null; rm -rf "$work"' EXIT

cat >"$work/rank" <<'SH'
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ] && echo $$ >"$work/pid" && kill -STOP $$
exec "$@"
SH
timeout -k 2 100 "$@" sh "$work/rank" "$program" run --backend "$backend" --color never scenarios/models/mlp_two_ranks.toml \
    --set world.timeout_ms=1000 >"$work/out" 2>&1 </dev/null
code=$?
if [ $code -ne 3 ] || ! tr -s ' \n' ' ' <"$work/out" | grep -q "nothing was judged: rank 0 never reported, 20.000 s after the start; nobody did"; then
    printf 'FAIL: exit %d instead of 3, or it is not said that nobody reported:\n' $code
    head -30 "$work/out"
    exit 1
fi
echo "stalled: reported"
