#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ended.sh PROGRAM [BACKEND]: somebody ends a process of a report card, or the card itself. A hook or backend is never blamed for that.
set -u
program=$1 backend=${2-}
failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# strike WHOM SIGNAL CODE WORDS COMMAND…: WHOM is child or self
strike() {
    whom=$1 number=$2 code=$3 words=$4
    shift 4
    "$program" "$@" >"$out" 2>&1 </dev/null &
    pid=$!
    child=
    while [ -z "$child" ] && kill -0 $pid 2>/dev/null; do child=$(pgrep -P $pid | head -1); done
    if [ "$whom" = child ]; then kill -"$number" "$child"; else kill -"$number" $pid; fi
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
    [ -z "$backend" ] || strike child $number 3 "was not judged: somebody ended rank" backend-conformance "$backend"
done
for number in INT TERM; do strike self $number 4 "then it was interrupted" hook-conformance powersgd; done
[ $failed -eq 0 ] && echo "ended: nobody is blamed for what somebody else did"
exit $failed
