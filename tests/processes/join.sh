#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# join.sh PROGRAM: processes that a script started, one per rank, become one run over Gloo: found
# by torchrun's variables, srun's, an address, a directory. Rank 0 reports, all leave with its exit code. A rank that is missing,
# comes twice, has other settings, does not know the secret or dies is named; every wait is bounded.
set -u
program=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
good=scenarios/models/mlp_two_ranks.toml bad=scenarios/gan_unused_params.toml
failed=0 port=$((20000 + $$ % 10000))
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT CDDP_STORE_SECRET "${!SLURM_@}" "${!TORCHELASTIC_@}"

complain() {
    printf 'FAIL %s: %s\n' "$name" "$1"
    for f in "$work"/out.*; do echo "-- ${f##*/}"; head -20 "$f"; done
    failed=1
}
# begin NAME: a job with its own port
begin() {
    name=$1 pids=()
    port=$((port + 2))
    rm -f "$work"/out.*
}
# rank INDEX VARIABLE=VALUE… -- ARGUMENT…: starts one process; its output is out.INDEX
rank() {
    local index=$1 settings=()
    shift
    while [ "$1" != -- ]; do settings+=("$1"); shift; done
    shift
    env "${settings[@]}" timeout -k 2 60 "$program" run --color never "$@" >"$work/out.$index" 2>&1 </dev/null &
    pids[index]=$!
}
# torch INDEX SIZE ARGUMENT…: started as by torchrun
torch() {
    local index=$1 size=$2
    shift 2
    rank "$index" RANK="$index" WORLD_SIZE="$size" MASTER_ADDR=127.0.0.1 MASTER_PORT=$port -- --backend gloo "$@"
}
# ended CODE…: waits for the processes in their order
ended() {
    local i got codes=''
    for i in "${!pids[@]}"; do
        wait "${pids[i]}" 2>/dev/null
        got=$?
        codes="$codes $got"
    done
    [ "$codes" = " $*" ] || complain "exit codes$codes instead of $*"
}
says() { grep -qF -- "$2" "$work/out.$1" || complain "process $1 does not say \"$2\""; }
silent() { for i in "$@"; do [ ! -s "$work/out.$i" ] || complain "process $i is not silent"; done; }

begin "torchrun's variables"
for i in 2 0 3 1; do torch $i 4 -n 4 --trace "$work/four.db" "$good"; done
ended 0 0 0 0
says 0 "4 ranks, 3 steps on gloo"
silent 1 2 3
"$program" run --backend gloo -n 4 --trace "$work/forked.db" --color never "$good" >"$work/out.forked" 2>&1
"$program" diff "$work/four.db" "$work/forked.db" >"$work/out.diff" 2>&1 || complain "not the run of forked ranks"

begin "findings"
for i in 0 1; do torch $i 2 "$bad" --set ddp.find_unused_parameters=false; done
ended 1 1
says 0 "I-ONCE"
silent 1

begin "several scenarios on a composition, one of them not for two ranks"
for i in 0 1; do torch $i 2 -k "$good" scenarios/faults/bit_flips.toml "$bad" --backend check:gloo; done
ended 2 2
says 0 "2 of 3 verified"
silent 1

begin "torchrun's own store has the port"
for i in 0 1; do rank $i RANK=$i WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port TORCHELASTIC_USE_AGENT_STORE=True -- --backend gloo "$good"; done
ended 0 0

begin "srun's variables"
for i in 0 1; do
    rank $i SLURM_JOB_ID=$port SLURM_STEP_ID=0 SLURM_PROCID=$i SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST='127.0.0.[1-1]' -- \
        --backend gloo "$good"
done
ended 0 0
says 0 "2 ranks, 3 steps on gloo"

begin "an address"
for i in 0 1; do rank $i RANK=$i WORLD_SIZE=2 -- --backend gloo --rendezvous tcp://127.0.0.1:$port "$good"; done
ended 0 0

begin "a directory, twice, and once after a job that was killed"
echo 'tcp://127.0.0.1:9 0123' >"$work/entry"
for turn in 1 2 3; do
    [ $turn -lt 3 ] || cp "$work/entry" "$work/meet/g0-job"
    for i in 1 0; do rank $i RANK=$i WORLD_SIZE=2 CDDP_HUB_HOST=127.0.0.1 -- --backend gloo --rendezvous "file://$work/meet" "$good"; done
    ended 0 0
done

begin "a secret"
for i in 0 1; do CDDP_STORE_SECRET=two torch $i 2 "$good"; done
ended 0 0

begin "a wrong secret"
CDDP_STORE_SECRET=right torch 0 2 --join-timeout 6s "$good"
CDDP_STORE_SECRET=wrong torch 1 2 --join-timeout 6s "$good"
ended 3 3
says 0 "turned 127.0.0.1:"
says 0 "rank 1 of 2 did not come within 6 s"
says 1 "refused this process: it does not know the secret (CDDP_STORE_SECRET)"

begin "a missing rank"
for i in 0 1 3; do torch $i 4 --join-timeout 6s -n 4 "$good"; done
ended 3 3 3
says 0 "rank 2 of 4 did not come within 6 s"
silent 1 3

begin "no rank 0"
torch 1 2 --join-timeout 1s "$good"
ended 3
says 1 "rank 1 waited 1 s for rank 0"

begin "a rank that was started for another number"
torch 0 3 -n 3 "$good"
torch 1 3 -n 3 "$good"
torch 2 4 -n 4 "$good"
ended 2 2 2
says 0 "rank 2 was started for 4 ranks, rank 0 for 3"
says 2 "rank 2 was started for 4 ranks, rank 0 for 3"
silent 1

begin "two processes of one rank"
torch 0 3 -n 3 "$good"
rank 1 RANK=1 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port -- --backend gloo -n 3 "$good"
rank 2 RANK=1 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port -- --backend gloo -n 3 "$good"
ended 2 2 2
says 0 "two processes were started as rank 1"

begin "another number of ranks than the scenario's"
for i in 0 1; do torch $i 2 -n 3 "$good"; done
ended 2 2
says 0 "the scenario has 3 ranks, but 2 were started (RANK and WORLD_SIZE)"
silent 1

begin "what is said wrong"
rank 0 RANK=0 WORLD_SIZE=two MASTER_ADDR=127.0.0.1 MASTER_PORT=$port -- --backend gloo "$good"
rank 1 RANK=1 WORLD_SIZE=2 -- --backend gloo "$good"
rank 2 RANK=5 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port -- --backend gloo "$good"
rank 3 RANK=1 WORLD_SIZE=2 -- --backend gloo --rendezvous udp://here "$good"
rank 4 X=1 -- --backend gloo --rendezvous env:// "$good"
rank 5 RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=99999 -- --backend gloo "$good"
ended 2 2 2 2 2 2
says 0 "WORLD_SIZE=two is no number"
says 1 "RANK and WORLD_SIZE are set, but MASTER_ADDR is not"
says 2 "rank 5 does not exist in a world of 2"
says 3 "is none of env://, tcp://host:port and file:///directory"
says 4 "RANK and WORLD_SIZE, or srun's variables"
says 5 "MASTER_PORT=99999 is no port"

# under_way: waits until the run has begun
under_way() {
    for _ in $(seq 300); do
        [ "$(grep -sc 'text="world"' "$work/out.0")" -ge 2 ] && return
        sleep 0.1
    done
    complain "it does not begin"
    return 1
}
# below PROCESS: its child
below() { pgrep -P "$1"; }
for who in 0 1; do
    begin "process $who is killed"
    for i in 0 1; do torch $i 2 "$good" --set train.steps=1000000 --set world.timeout_ms=4000 --log comm:info; done
    under_way && kill -KILL "$(below "${pids[who]}")"
    # Nobody judges the loss of rank 0's process, which is the judge.
    if [ $who -eq 0 ]; then ended 137 3 && says 1 "rank 0 is gone"; else ended 1 137 && says 0 "rank 1 died"; fi
done

begin "a rank is killed, its process is not"
for i in 0 1; do torch $i 2 "$good" --set train.steps=1000000 --set world.timeout_ms=4000 --log comm:info; done
under_way && kill -KILL "$(below "$(below "${pids[1]}")")"
ended 1 1
says 0 "rank 1 died"
silent 1

begin "a rank is stopped"
for i in 0 1; do torch $i 2 "$good" --set train.steps=1000000 --set world.timeout_ms=4000 --log comm:info; done
under_way && kill -STOP "$(below "$(below "${pids[1]}")")"
ended 1 1
says 0 "rank 1"
silent 1

begin "no room for the store"
for i in 0 1; do (ulimit -f 300 && torch $i 2 "$good" --set train.steps=1000000 --trace "$work/full.db" && wait "${pids[i]}") & pids[i]=$!; done
ended 3 3
says 0 "cannot write"
silent 1

begin "forked ranks meet in TMPDIR, and leave nothing there"
mkdir "$work/temporary"
rank 0 TMPDIR="$work/temporary" -- --backend gloo "$good"
ended 0
[ -z "$(ls -A "$work/temporary")" ] || complain "left in TMPDIR: $(ls -A "$work/temporary")"
rank 0 TMPDIR="$work/none" -- --backend gloo "$good"
ended 3
says 0 "ranks cannot meet in TMPDIR: cannot make a folder in $work/none"

begin "Ctrl-C reaches all"
for i in 0 1; do torch $i 2 "$good" --set train.steps=1000000 --log comm:info --trace "$work/last.db"; done
under_way && kill -INT "$(below "${pids[0]}")" "$(below "${pids[1]}")"
ended 4 4
says 0 "interrupted"
pgrep -f -- "$work" >/dev/null && complain "somebody stayed behind"
[ $failed -ne 0 ] || echo "join: all as it should be"
exit $failed
