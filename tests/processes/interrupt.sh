#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# interrupt.sh PROGRAM BACKEND MOMENT_MS…: Ctrl-C of a run of four processes, at several moments, as a terminal sends it: to all of them.
# The run ends at once as inconclusive; nobody is to blame, neither then nor when what was recorded is judged again. Its twin, a rank that
# stops by itself, is.
set -u
program=$1 backend=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scenario=scenarios/models/mlp_two_ranks.toml
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
set -m # a process group of its own for each run

# complain WHAT: with what was printed
complain() {
    printf 'FAIL %s: %s\n' "$moment ms" "$1"
    head -30 "$work/out"
    failed=1
}

# catches: whether the run would notice Ctrl-C; where the system does not tell, it is given time
catches() {
    local mask
    [ -r "/proc/$pid/status" ] || { sleep 0.5; return 0; }
    mask=$(awk '/^SigCgt/ { print $2 }' "/proc/$pid/status")
    [ -n "$mask" ] && [ $((0x$mask & 2)) -ne 0 ]
}

# begin OPTION…: a run that takes for ever
begin() {
    rm -f "$work"/run.db*
    "$program" run --backend "$backend" -n 4 "$scenario" --set train.steps=1000000 --trace "$work/run.db" "$@" >"$work/out" 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 200); do catches && break; sleep 0.02; done
}

# ends CODE: within 20 s, with nobody left behind
ends() {
    local code
    for _ in $(seq 200); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -0 "$pid" 2>/dev/null && { complain "it still runs"; kill -KILL -- "-$pid"; }
    wait "$pid" 2>/dev/null
    code=$?
    [ $code -eq "$1" ] || complain "exit $code instead of $1"
    pgrep -g "$pid" >/dev/null && complain "somebody stayed behind"
}

# silent WHO: no finding
silent() { grep -qE '^ *(I|GRD)-[A-Z]+ ' "$work/out" && complain "$1 blames somebody"; }

for moment in "$@"; do
    begin
    sleep "$(printf '%d.%03d' $((moment / 1000)) $((moment % 1000)))"
    kill -INT -- "-$pid"
    ends 4
    grep -q "interrupted: what is above is what was known" "$work/out" || complain "it is not told"
    grep -q "hung" "$work/out" && complain "ranks are called hung"
    silent "the run"
    # At moment 0 there may be no run in it yet.
    timeout 60 "$program" check "$work/run.db" >"$work/out" 2>&1
    code=$?
    [ $code -eq 4 ] || [ "$moment" -eq 0 ] || complain "check exits $code instead of 4"
    silent "check"
done

moment="rank 2 stops by itself: 500"
begin --set world.timeout_ms=1000
sleep 0.5
victim=$(pgrep -g "$pid" -f "$program" | tail -1)
[ "$backend" = gloo ] || victim=$(pgrep -f "$work/run.db" | tail -1)
kill -STOP "$victim"
ends 1
grep -qE '^ *I-(LIVE|FAIL) ' "$work/out" || complain "nobody is blamed"
[ $failed -ne 0 ] || echo "interrupt: all as it should be"
exit $failed
