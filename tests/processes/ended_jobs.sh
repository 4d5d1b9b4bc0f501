#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ended_jobs.sh PROGRAM BACKEND…: a run with --jobs is ended by a signal to its first process alone. SIGTERM: its workers are asked, and
# what they knew is reported; a worker that had to be stopped knows nothing. SIGKILL: nobody can ask them. Either way none stays behind.
set -u
program=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scenario=scenarios/models/mlp_two_ranks.toml
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

complain() {
    printf 'FAIL %s of a run on %s: %s\n' "$number" "$backend" "$1"
    head -20 "$work/out"
    failed=1
}

# left: processes of this run, wherever they went
left() { grep -lsazx "CDDP_TEST_RUN=$work" /proc/[0-9]*/environ | cut -d/ -f3; }

# strike SIGNAL: once both workers run
strike() {
    number=$1
    env CDDP_TEST_RUN="$work" "$program" run -k -j 2 --backend "$backend" --set train.steps=1000000 "$scenario" "$scenario" >"$work/out" 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 3000); do [ "$(pgrep -c -P $pid)" -ge 2 ] && break; kill -0 $pid || break; sleep 0.02; done
    kill "-$number" $pid
    wait $pid 2>/dev/null
    code=$?
    for _ in $(seq 100); do [ -z "$(left)" ] && return; sleep 0.1; done
    complain "somebody stayed behind"
    for process in $(left); do kill -KILL "$process"; done
}

[ -r /proc/self/environ ] || exit 0
for backend in "$@"; do
    strike TERM
    [ $code -eq 4 ] || complain "exit $code instead of 4"
    grep -q "interrupted: what is above is what was known" "$work/out" || complain "it is not reported"
    tr -s ' \n' ' ' <"$work/out" | grep -q "its process was stopped" "$work/out" && complain "a worker had to be stopped"
    strike KILL
done
[ $failed -ne 0 ] || echo "ended_jobs: all as it should be"
exit $failed
