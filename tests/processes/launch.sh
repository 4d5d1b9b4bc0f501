#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# launch.sh PROGRAM BACKEND LAUNCHER…: a backend whose launcher starts the ranks, as a user meets it: started by us and by the launcher,
# several scenarios at once, findings, refusals, Ctrl-C. LAUNCHER… is the command that starts two ranks. Every wait is bounded.
set -u
program=$1 backend=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/interrupts.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/interrupts.sh"
good=scenarios/models/mlp_two_ranks.toml bad=scenarios/gan_unused_params.toml
failed=0

# expect NAME CODE "words in the output" COMMAND…
expect() {
    local name=$1 code=$2 words=$3 got
    shift 3
    timeout -k 2 60 "$@" >"$work/out" 2>&1 </dev/null
    got=$?
    if [ $got -ne "$code" ] || ! grep -q -- "$words" "$work/out"; then
        printf 'FAIL %s: exit %d instead of %d, or no "%s":\n' "$name" $got "$code" "$words"
        head -30 "$work/out"
        failed=1
    fi
}

expect "we start it" 0 "2 ranks, 3 steps on $backend" "$program" run --backend "$backend" --color never "$good"
expect "it starts us" 0 "2 ranks, 3 steps on $backend" "$@" "$program" run --backend "$backend" --color never "$good"
expect "findings, started by us" 1 "I-ONCE" "$program" run --backend "$backend" "$bad" --set ddp.find_unused_parameters=false
expect "findings, started by it" 1 "I-ONCE" "$@" "$program" run --backend "$backend" "$bad" --set ddp.find_unused_parameters=false
expect "two at once" 0 "2 of 2 verified" "$program" run --backend "$backend" -j 2 --trace "$work/both.db" "$good" "$bad"
expect "both are in the store" 0 "2 of 2 verified" "$program" report "$work/both.db"
expect "a store under the launcher" 0 "verified" "$@" "$program" run --backend "$backend" --trace "$work/one.db" "$good"
expect "one run is in it" 0 "run 1" "$program" report "$work/one.db"
expect "another number of ranks" 2 "the scenario has 3 ranks, but 2 were started" "$@" "$program" run --backend "$backend" -n 3 "$good"
expect "faults are the simulator's" 3 "only the simulator" "$program" run --backend "$backend" scenarios/faults

# Started by something that no MPI knows of, each would start all ranks.
one_of_two() { RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=9 expect "$@"; }
one_of_two "no MPI started it" 3 "make this one of 2 processes that no MPI knows of" "$program" run --backend "$backend" "$good"
one_of_two "no MPI started the search" 3 "each would search the whole" "$program" explore --budget 9 "$good"
RANK=0 WORLD_SIZE=1 expect "a process alone starts its ranks" 0 "2 ranks, 3 steps" "$program" run --backend "$backend" "$good"

# As srun would: its variables instead of those by which the launcher says who is who.
cat >"$work/as_srun" <<'SH'
export SLURM_STEP_ID=0 SLURM_PROCID=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} SLURM_NTASKS=9 SLURM_STEP_NUM_TASKS=2 SLURM_NNODES=$nodes
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE MPI_LOCALNRANKS
exec "$@"
SH
nodes=1 expect "srun starts us" 0 "2 ranks, 3 steps on $backend" "$@" sh "$work/as_srun" "$program" run --backend "$backend" --color never "$good"
# Ranks above 0 of MPICH wait for rank 0 in MPI_Init then, and Hydra with them, until they have lost patience.
[ "$backend" = mpi-mpich ] || nodes=2 expect "srun, on two hosts" 2 "say in CDDP_HUB_HOST" "$@" sh "$work/as_srun" "$program" run --backend "$backend" "$good"

# Ctrl-C: inconclusive, soon, and nobody stays behind.
"$program" run --backend "$backend" "$good" --set train.steps=1000000 >"$work/out" 2>&1 </dev/null &
pid=$!
await_catch $pid "$program" || echo "FAIL Ctrl-C: it is never caught"
sleep 1 # at any moment from then on it is the same
kill -INT $pid
for _ in $(seq 100); do kill -0 $pid 2>/dev/null || break; sleep 0.1; done
if kill -0 $pid 2>/dev/null; then
    printf 'FAIL Ctrl-C: it still runs after 10 s\n'
    kill -KILL $pid
    failed=1
fi
wait $pid
code=$?
if [ $code -ne 4 ] || ! grep -q "interrupted" "$work/out"; then
    printf 'FAIL Ctrl-C: exit %d instead of 4\n' $code
    head -20 "$work/out"
    failed=1
fi
exit $failed
