#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# slurm.sh PROGRAM TRAIN GLOO MPI…: srun of a real Slurm, whose controller and node daemon this test starts for itself. What docs/howto/cluster.md
# says about it: processes that srun started become one run over Gloo, over each MPI of MPI… with the interface it was built for, and
# without one are refused, not multiplied; train_ddp's own lines; a batch script. Skipped (77) without Slurm or without root.
set -u
program=$(readlink -f "$1") train=$2 gloo=$3
shift 3
PATH=$PATH:/usr/sbin
for tool in slurmctld slurmd srun sbatch; do
    command -v $tool >/dev/null || { echo "skipped: no $tool (Debian packages slurmctld, slurmd, slurm-client)"; exit 77; }
done
[ "$(id -u)" -eq 0 ] || { echo "skipped: Slurm's node daemon wants root"; exit 77; }
work=$(mktemp -d)
good=scenarios/models/mlp_two_ranks.toml bad=scenarios/gan_unused_params.toml
failed=0 port=$((21000 + $$ % 8000)) host=$(hostname -s)
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT CDDP_STORE_SECRET "${!SLURM_@}" "${!PMI@}"
export SLURM_CONF=$work/slurm.conf
mkdir "$work/state" "$work/spool"
# Nobody has to prove who he is on this machine; MessageTimeout, because the machine may be busy.
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort=$port
SlurmdPort=$((port + 1))
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/controller.pid
SlurmdPidFile=$work/node.pid
SlurmctldLogFile=$work/controller.log
SlurmdLogFile=$work/node.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MessageTimeout=60
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
end_slurm() {
    for daemon in node controller; do
        [ -s "$work/$daemon.pid" ] && kill "$(cat "$work/$daemon.pid")" 2>/dev/null
    done
    for _ in $(seq 50); do [ -e "$work/node.pid" ] || [ -e "$work/controller.pid" ] || break; sleep 0.1; done
    rm -rf "$work"
}
trap end_slurm EXIT
slurmctld -c >"$work/start" 2>&1 && slurmd >>"$work/start" 2>&1
for _ in $(seq 100); do sinfo -h -o %t 2>/dev/null | grep -q idle && break; sleep 0.2; done
sinfo -h -o %t 2>/dev/null | grep -q idle ||
    { echo "skipped: a private Slurm cannot be started here"; tail -n 5 "$work/start" "$work/controller.log" "$work/node.log" 2>/dev/null; exit 77; }

# expect NAME CODE "words in the output, once" COMMAND…
expect() {
    local name=$1 code=$2 words=$3 got
    shift 3
    timeout -k 2 120 "$@" >"$work/out" 2>&1 </dev/null
    got=$?
    if [ $got -ne "$code" ] || [ "$(grep -c -- "$words" "$work/out")" -ne 1 ]; then
        printf 'FAIL %s: exit %d instead of %d, or not "%s" once:\n' "$name" $got "$code" "$words"
        head -30 "$work/out"
        failed=1
    fi
}
verify=("$program" run --color never)

expect "Gloo" 0 "4 ranks, 3 steps on gloo" srun -n 4 "${verify[@]}" --backend gloo -n 4 "$good"
expect "Gloo, findings" 1 "I-ONCE  ranks" srun -n 2 "${verify[@]}" --backend gloo "$bad" --set ddp.find_unused_parameters=false
expect "Gloo, another number of ranks" 2 "the scenario has 3 ranks" srun -n 2 "${verify[@]}" --backend gloo -n 3 "$good"
for mpi in "$@"; do
    interface=pmix # Debian's Open MPI has no library for pmi2, its MPICH none for pmix
    [ "$mpi" != mpi-mpich ] || interface=pmi2
    if srun --mpi=list 2>&1 | grep -qw $interface; then
        expect "$mpi" 0 "4 ranks, 3 steps on $mpi" srun --mpi=$interface -n 4 "${verify[@]}" --backend "$mpi" -n 4 "$good"
        expect "$mpi, findings" 1 "I-ONCE  ranks" srun --mpi=$interface -n 2 "${verify[@]}" --backend "$mpi" "$bad" --set ddp.find_unused_parameters=false
        expect "$mpi, a search" 0 "100 schedules" srun --mpi=$interface -n 2 "$program" explore "$good" --budget 100
    fi
    timeout 60 srun -n 2 "${verify[@]}" --backend "$mpi" "$good" >"$work/out" 2>&1
    [ "$(grep -c "make this one of 2 processes that no MPI knows of" "$work/out")" -eq 2 ] ||
        { echo "FAIL $mpi, started as nothing: it is not refused by both"; head -20 "$work/out"; failed=1; }
done
cat >"$work/batch" <<BATCH
#!/bin/sh
cd "$PWD" && exec "$program" run --color never --backend gloo -n 3 "$good"
BATCH
expect "a batch script is no step: it starts its ranks" 0 "Submitted batch job" sbatch -W -n 3 -o "$work/batch.out" "$work/batch"
grep -q "3 ranks, 3 steps on gloo" "$work/batch.out" || { echo "FAIL a batch script"; cat "$work/batch.out"; failed=1; }
expect "a program of one's own" 0 "step 800" srun -n 2 bash -c '
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_PORT='$((port + 2))'
    export MASTER_ADDR=127.0.0.1
    exec "$0" env "$1" | { [ "$RANK" -eq 0 ] && cat || cat >/dev/null; }' "$train" "$gloo"
[ $failed -ne 0 ] || echo "slurm: all as it should be"
exit $failed
