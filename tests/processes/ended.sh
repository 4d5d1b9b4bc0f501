#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ended.sh PROGRAM [BACKEND…]: somebody ends a process of a report card, or the card itself. A hook or backend is never blamed for that, but
# for its crash.
set -u
program=$(readlink -f "$1")
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# find_rank: a process that a launcher started as rank 1 of this card
find_rank() {
    local process
    for process in $(pgrep -f -- "--limit $mark"); do
        [ "$(readlink "/proc/$process/exe")" = "$program" ] && grep -qzx 'OMPI_COMM_WORLD_RANK=1' "/proc/$process/environ" && echo "$process"
    done 2>/dev/null
}

# hold PROCESS: stops it. False: it has ended, or is about to, as each law runs in a short process.
hold() {
    kill -STOP "$1" 2>/dev/null || return 1
    for _ in $(seq 500); do
        case $(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null) in T) return 0 ;; Z | X | "") return 1 ;; esac
        sleep 0.01
    done
    return 1
}

# strike WHOM SIGNAL CODE WORDS COMMAND…: WHOM is child, rank or self
strike() {
    whom=$1 number=$2 code=$3 words=$4
    shift 4
    "$program" "$@" >"$out" 2>&1 </dev/null &
    pid=$!
    child=
    while [ -z "$child" ] && kill -0 $pid 2>/dev/null; do
        if [ "$whom" = rank ]; then child=$(find_rank); else child=$(pgrep -P $pid | head -1); fi
        [ "$whom" != child ] || [ -z "$child" ] || hold "$child" || child=
    done
    # MPI reports crashes once it catches SIGSEGV
    [ "$whom" != rank ] || for _ in $(seq 500); do
        [ $((0x$(awk '/^SigCgt/ { print $2 }' "/proc/$child/status") & 0x400)) -ne 0 ] && break
        sleep 0.02
    done
    if [ "$whom" = self ]; then kill -"$number" $pid; else kill -"$number" "$child"; fi
    [ "$whom" != child ] || kill -CONT "$child" 2>/dev/null
    wait $pid
    seen=$?
    if [ $seen -ne "$code" ] || ! tr '\n' ' ' <"$out" | tr -s ' ' | grep -q "$words"; then
        echo "FAIL: $number of $whom, $*: exit $seen instead of $code, or not: $words"
        tail -5 "$out"
        failed=1
    fi
}

for number in KILL TERM; do
    strike child $number 3 "ended from outside by signal" hook-conformance powersgd
    for backend in "$@"; do
        case $backend in mpi*) continue ;; esac
        strike child $number 3 "was not judged: somebody ended rank" backend-conformance "$backend"
    done
done
for backend in "$@"; do
    case $backend in mpi*) ;; *) continue ;; esac
    mark=$((100000 + $$)) # --limit is long enough, and tells our processes from those of others
    strike rank KILL 3 "was not judged: without a crash report somebody ended rank 1" backend-conformance "$backend" -n 2 --thorough --limit $mark
    strike rank SEGV 1 "rank 1 was killed by signal 11 (SIGSEGV)" backend-conformance "$backend" -n 2 --thorough --limit $mark
done
for number in INT TERM; do strike self $number 4 "then it was interrupted" hook-conformance powersgd; done
[ $failed -eq 0 ] && echo "ended: nobody is blamed for what somebody else did"
exit $failed
