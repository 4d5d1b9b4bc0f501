#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# starts.sh PROGRAM BACKEND COUNT SEED WINDOW_MS: kills or stops a random rank at a random moment, up to WINDOW_MS after its process
# came into being: before it has reported, while the transport starts, while groups are made, in training. Each run has to end
# within the time-out and two seconds, with exit 1, with that rank and no other as the one that died, with what it was
# doing, and with a store that can be read. What is drawn from SEED: the rank, the signal, the moment.
set -u
program=$(readlink -f "$1") backend=$2 count=$3 RANDOM=$4 window_ms=$5
timeout_ms=1000 bound_ms=3000 ranks=4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# With more than twice as many runnable processes as cores the clock tells of the others: only the words are judged then.
is_busy() { awk -v cores="$(nproc)" '{ exit !($1 > 2 * cores) }' /proc/loadavg; }
now_ms() { date +%s%3N; }
number_of() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | sed -n 's/^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=//p' | head -1; }
parent_of() { awk '{ print $4 }' "/proc/$1/stat" 2>/dev/null; }

# The process of one rank: a child of the judge in the order of forking, or what its launcher told its number; where a rank
# is sheltered, the process below the one that the launcher started.
find_rank() {
    local mark=$1 judge=$2 rank=$3 pid found=()
    if [ "$backend" = gloo ]; then
        read -r -a found <<<"$(pgrep -P "$judge" | sort -n | tr '\n' ' ')"
        [ ${#found[@]} -eq $ranks ] && echo "${found[$rank]}"
        return
    fi
    for pid in $(pgrep -f -- "$mark"); do
        [ "$(readlink "/proc/$pid/exe")" = "$program" ] && [ "$(number_of "$pid")" = "$rank" ] || continue
        [ "$backend" != mpi-mpich ] || [ "$(number_of "$(parent_of "$pid")")" = "$rank" ] || continue
        echo "$pid"
        return
    done
}

# try NUMBER RANK SIGNAL DELAY_MS: 0 passed, 1 failed, 2 there was nobody to strike, which proves nothing
try() {
    local number=$1 rank=$2 signal=$3 delay_ms=$4 judge victim='' began code words='' i
    local store=$work/run$number.db
    "$program" run --backend "$backend" -n $ranks --color never --trace "$store" scenarios/models/mlp_two_ranks.toml \
        --set train.steps=20000 --set world.timeout_ms=$timeout_ms >"$work/out" 2>&1 </dev/null &
    judge=$!
    for ((i = 0; i < 500; i++)); do
        victim=$(find_rank "$store" $judge "$rank")
        [ -n "$victim" ] && break
        sleep 0.01
    done
    sleep "$(printf '%d.%03d' $((delay_ms / 1000)) $((delay_ms % 1000)))"
    if [ -z "$victim" ] || ! kill "-$signal" "$victim" 2>/dev/null; then
        kill -KILL $judge 2>/dev/null
        wait $judge 2>/dev/null
        return 2
    fi
    began=$(now_ms)
    while kill -0 $judge 2>/dev/null && [ $(($(now_ms) - began)) -lt 20000 ]; do sleep 0.02; done
    took=$(($(now_ms) - began))
    kill -KILL $judge 2>/dev/null
    wait $judge 2>/dev/null
    code=$?
    [ $code -eq 1 ] || words="exit $code instead of 1"
    if [ $took -gt $bound_ms ]; then
        if is_busy; then untimed=$((untimed + 1)); else words="$words; it took $took ms"; fi
    fi
    [ "$(sed -n 's/^  I-FAIL  rank \([0-9]*\) \(was killed\|crashed\)$/\1/p' "$work/out")" = "$rank" ] || words="$words; rank $rank alone is not named"
    tr -s ' \n' ' ' <"$work/out" | grep -qE "rank $rank (never reported|(died|was)[^;]*; its last note: )" || words="$words; what it did is not said"
    timeout 20 "$program" report "$store" >"$work/report" 2>&1
    [ $? -eq 1 ] && grep -q "run 1" "$work/report" || words="$words; the store does not open"
    rm -f "$store"
    [ -z "$words" ] && return 0
    printf 'FAIL %d, %s of rank %d after %d ms: %s\n' "$number" "$signal" "$rank" "$delay_ms" "${words#; }"
    head -30 "$work/out"
    return 1
}

passed=0 failed=0 slowest=0 untimed=0
for ((n = 1; n <= count; n++)); do
    rank=$((RANDOM % ranks)) delay_ms=$((RANDOM % window_ms))
    signal=KILL
    [ $((RANDOM % 2)) -eq 0 ] || signal=STOP
    took=0
    for attempt in 1 2 3; do
        try "$n" $rank $signal $delay_ms
        result=$?
        [ $result -eq 2 ] || break
    done
    [ $took -le $slowest ] || slowest=$took
    if [ $result -eq 0 ]; then
        passed=$((passed + 1))
    else
        [ $result -eq 1 ] || printf 'FAIL %d: three runs ended before rank %d could be struck\n' "$n" $rank
        failed=$((failed + 1))
    fi
done
printf '%s: %d strikes told as they were, %d not; the slowest took %d ms of %d\n' "$backend" $passed $failed $slowest $bound_ms
[ $untimed -eq 0 ] || printf '  %d took longer, on a machine too busy to tell\n' $untimed
[ $failed -eq 0 ] && [ $passed -gt 0 ]
