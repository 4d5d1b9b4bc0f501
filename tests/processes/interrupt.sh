#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# interrupt.sh PROGRAM BACKEND MOMENT_MS…: Ctrl-C of a run of four processes, at several moments, as a terminal sends it: to all of them.
# The run ends at once as inconclusive; nobody stays behind, in no session; nobody is to blame, neither then nor when what was recorded is
# judged again. Its twin, a rank that stops by itself, is.
set -u
program=$1 backend=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/interrupts.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/interrupts.sh"
scenario=scenarios/models/mlp_two_ranks.toml
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
set -m # one process group per run

# complain WHAT: with what was printed
complain() {
    printf 'FAIL %s: %s\n' "$moment ms" "$1"
    head -30 "$work/out"
    failed=1
}

# left: processes of this run, wherever they went: launchers put ranks into their own sessions
left() {
    [ -r /proc/self/environ ] || { pgrep -g "$pid"; return; }
    grep -lsazx "CDDP_TEST_RUN=$work" /proc/[0-9]*/environ | cut -d/ -f3
}

# gone: within 5 s, without any help
gone() {
    for _ in $(seq 50); do [ -z "$(left)" ] && return; sleep 0.1; done
    complain "somebody stayed behind"
    for process in $(left); do
        tr '\0' ' ' <"/proc/$process/cmdline" | cut -c1-160
        kill -KILL "$process"
    done
}

# begin OPTION…: a run that takes for ever
begin() {
    rm -f "$work"/run.db*
    CDDP_TEST_RUN=$work "$program" run --backend "$backend" -n 4 "$scenario" --set train.steps=1000000 --trace "$work/run.db" "$@" >"$work/out" 2>&1 </dev/null &
    pid=$!
    await_catch "$pid" "$program" || complain "it never catches Ctrl-C"
}

# ends CODE: within 20 s, and nobody stays behind
ends() {
    local code
    for _ in $(seq 200); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -0 "$pid" 2>/dev/null && { complain "it still runs"; kill -KILL -- "-$pid"; }
    wait "$pid" 2>/dev/null
    code=$?
    [ $code -eq "$1" ] || complain "exit $code instead of $1"
    gone
}

# silent WHO: no finding
silent() { grep -qE '^ *(I|GRD)-[A-Z]+ ' "$work/out" && complain "$1 blames somebody"; }

# A process that stays behind is found, also in another session.
if [ -r /proc/self/environ ]; then
    moment=before
    CDDP_TEST_RUN=$work setsid sleep 60 >/dev/null &
    pid=$!
    for _ in $(seq 100); do [ -n "$(left)" ] && break; sleep 0.02; done
    [ -n "$(left)" ] || complain "nobody is seen to stay behind"
    for process in $(left); do kill -KILL "$process"; done
    wait "$pid" 2>/dev/null
fi

for moment in "$@"; do
    begin
    sleep "$(printf '%d.%03d' $((moment / 1000)) $((moment % 1000)))"
    kill -INT -- "-$pid"
    ends 4
    grep -q "interrupted: what is above is what was known" "$work/out" || complain "it is not reported"
    grep -q "hung" "$work/out" && complain "ranks are called hung"
    silent "the run"
    # At moment 0 there may be no run in it yet.
    timeout 60 "$program" check "$work/run.db" >"$work/out" 2>&1
    code=$?
    [ $code -eq 4 ] || [ "$moment" -eq 0 ] || complain "check exits $code instead of 4"
    silent "check"
done

moment="rank 2 stops by itself:"
begin --set world.timeout_ms=1000
case $backend in
gloo) members=5 ;;       # the judge and four ranks
mpi-mpich) members=10 ;; # the launcher too, and for each rank one that shelters it
*) members=6 ;;
esac
for _ in $(seq 600); do [ "$(pgrep -c -f "$work/run.db")" -ge $members ] && break; sleep 0.05; done
sleep 0.3
kill -STOP "$(pgrep -f "$work/run.db" | tail -1)"
ends 1
grep -qE '^ *I-(LIVE|FAIL) ' "$work/out" || complain "nobody is blamed"
[ $failed -ne 0 ] || echo "interrupt: all as it should be"
exit $failed
