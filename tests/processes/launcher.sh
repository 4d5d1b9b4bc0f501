#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# launcher.sh PROGRAM BACKEND: kill -9 of the launcher of two ranks, and of nobody else. The run ends with it, the
# report names it, and no line promises that a run of the scenario would end so again.
set -u
program=$1 backend=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

fail() {
    echo "FAILED: $1"
    cat "$work/out"
    exit 1
}
says() { tr -s ' \n' ' ' <"$work/out" | grep -qE -- "$1" || fail "the report does not say \"$1\""; }

"$program" run --backend "$backend" -n 2 scenarios/models/mlp_two_ranks.toml --set train.steps=1000000 --color never \
    --log debug >"$work/out" 2>"$work/log" </dev/null &
judge=$!
for _ in $(seq 400); do
    [ "$(grep -c optimizer_step "$work/log")" -ge 4 ] && break
    sleep 0.05
done
launcher=$(pgrep -P $judge -f 'mpirun|mpiexec|hydra' | head -n 1)
[ -n "$launcher" ] || fail "no launcher runs"
ranks=$(pgrep -P "$launcher")
kill -KILL "$launcher"
wait $judge
[ $? -eq 1 ] || fail "the exit code"
says "I-FAIL (rank [01]|ranks 0 and 1|all ranks):? (each )?ended when (its|their) launcher was killed"
says "ended since its launcher was killed by signal 9 \(SIGKILL\): [^ ]*mpi"
says "reproduce not by a run of the scenario: rank [01] ended when its launcher was killed"
grep -q "^  shrink" "$work/out" && fail "a line that shrinks"
for rank in $ranks; do
    for _ in $(seq 100); do
        kill -0 "$rank" 2>/dev/null || break
        sleep 0.1
    done
    kill -0 "$rank" 2>/dev/null && fail "process $rank stayed behind"
done
echo "launcher: its ranks ended, and it is named"
