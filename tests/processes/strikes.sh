#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# strikes.sh PROGRAM BACKEND start|training COUNT SEED WINDOW_MS [TIMEOUT_MS]: kills or stops a random rank at a random moment, COUNT times. Within
# WINDOW_MS of its process coming into being (start: before it has reported, while the transport starts, while groups are made), or
# of all ranks having joined the group (training). Each run has to end within 3 s, its time-out (1 s) and two more, with exit 1, with a
# store that can be read, and with that rank named: at the start, as the only one that died and with what it was doing; in
# training, with the collective in which it was missed. What is drawn from SEED: the rank, the signal, the moment.
#
# Where others use the processors, whoever sleeps wakes up late. A metronome, which only sleeps for 50 ms, again and again, measures how late; a
# run may take as much longer as eight wake-ups, the number that follow one another between a strike and the end (the rank's timer, its words, the
# judge, its grace, the kill, the launcher, the reaping, the report), at the worst one of that time. Sleepers wake up in time where ranks that
# compute get no processor (some MPIs spin while they wait). A strike that is reported correctly but late is repeated; three times late is a
# failure. How many were late at first is said at the end.
set -u
program=$(readlink -f "$1") backend=$2 when=$3 count=$4 RANDOM=$5 window_ms=$6
timeout_ms=${7:-1000} bound_ms=3000 beat_us=50000 wake_ups=8 ranks=4 metronome=
work=$(mktemp -d)
trap '[ -z "$metronome" ] || kill -KILL $metronome; rm -rf "$work"' EXIT

now_ms() { date +%s%3N; }
beats() { wc -l <"$work/beats"; }
number_of() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | sed -n 's/^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=//p' | head -1; }
parent_of() { awk '{ print $4 }' "/proc/$1/stat" 2>/dev/null; }

# The process of one rank: a child of the judge in the order of forking, or the one with the number from its launcher. For a sheltered rank it is
# the child of the process that the launcher started.
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
# Whether it is time to look for the rank. Every rank has said that it joined the group: from then on the time-out of an operation
# is what bounds a run.
is_time() { [ "$when" = start ] || [ "$(grep -sc 'text="world"' "$work/out")" -ge $ranks ]; }

# judge_words RANK: adds to words what the report does not say.
judge_words() {
    local rank=$1 phase=$when
    # Once all have joined the group the start is over, as it may be on a fast machine.
    [ "$(grep -sc 'text="world"' "$work/out")" -lt $ranks ] || phase=training
    if [ "$phase" = start ]; then
        [ "$(sed -n 's/^  I-FAIL  rank \([0-9]*\) \(was killed\|died\|stood still (SIGSTOP)\|never reported\|crashed\|exited\)$/\1/p' "$work/out")" = "$rank" ] ||
            words="$words; rank $rank alone is not named"
        tr -s ' \n' ' ' <"$work/out" | grep -qE "rank $rank (never reported|(died|was)[^;]*; its last note: )" ||
            words="$words; what it did is not said"
    else
        grep -qE "^  I-(FAIL|LIVE)  rank $rank " "$work/out" || words="$words; rank $rank is not named"
        grep -qE "#[0-9]+ of group '" "$work/out" || words="$words; no collective is named"
    fi
}

# try NUMBER RANK SIGNAL DELAY_MS: 0 passed, 1 failed, 2 there was no rank to strike, which proves nothing, 3 reported correctly but late
try() {
    local number=$1 rank=$2 signal=$3 delay_ms=$4 judge victim='' began first code words='' i
    local store=$work/run$number.db
    "$program" run --backend "$backend" -n $ranks --color never --trace "$store" scenarios/models/mlp_two_ranks.toml \
        --set train.steps=20000 --set world.timeout_ms=$timeout_ms --log comm:info >"$work/out" 2>&1 </dev/null &
    judge=$!
    for ((i = 0; i < 1000; i++)); do
        is_time && victim=$(find_rank "$store" $judge "$rank")
        [ -n "$victim" ] && break
        kill -0 $judge 2>/dev/null || break
        sleep 0.01
    done
    sleep "$(printf '%d.%03d' $((delay_ms / 1000)) $((delay_ms % 1000)))"
    first=$(beats) began=$(now_ms)
    if ! kill -0 $judge 2>/dev/null || [ -z "$victim" ] || ! kill "-$signal" "$victim" 2>/dev/null; then
        kill -KILL $judge 2>/dev/null
        wait $judge 2>/dev/null
        rm -f "$store"
        return 2
    fi
    while kill -0 $judge 2>/dev/null && [ $(($(now_ms) - began)) -lt 60000 ]; do sleep 0.02; done
    took=$(($(now_ms) - began))
    late=$(tail -n +$((first + 1)) "$work/beats" | sort -n | tail -1)
    allowed=$((bound_ms + wake_ups * ${late:-0}))
    kill -KILL $judge 2>/dev/null
    wait $judge 2>/dev/null
    code=$?
    # Struck when it had ended: others had left it no processor for as long as its time-out.
    if grep -qE "^  (ranks)? +$rank returned: " "$work/out"; then
        rm -f "$store"
        return 2
    fi
    [ $code -eq 1 ] || words="exit $code instead of 1"
    judge_words "$rank"
    timeout 120 "$program" report "$store" >"$work/report" 2>&1
    [ $? -eq 1 ] && grep -q "run 1" "$work/report" || words="$words; the store does not open: $(head -c 200 "$work/report")"
    rm -f "$store"
    [ -n "$words" ] || [ $took -gt $allowed ] || return 0
    [ -n "$words" ] || code=late
    [ $took -le $allowed ] || words="$words; it took $took ms of $allowed"
    if [ $code = late ]; then
        late_words=${words#; }
        return 3
    fi
    printf 'FAIL %d, %s of rank %d after %d ms: %s\n' "$number" "$signal" "$rank" "$delay_ms" "${words#; }"
    head -30 "$work/out"
    return 1
}

: >"$work/beats"
mkfifo "$work/nothing"
(
    exec 9<>"$work/nothing" # nothing ever comes: read sleeps, without another process
    last=${EPOCHREALTIME/[.,]/}
    while :; do
        read -r -t 0.05 -u 9
        now=${EPOCHREALTIME/[.,]/}
        echo $(((now - last - beat_us) / 1000)) >>"$work/beats"
        last=$now
    done
) &
metronome=$!
disown $metronome
passed=0 failed=0 late_first=0 slowest=0 slowest_allowed=0
for ((n = 1; n <= count; n++)); do
    rank=$((RANDOM % ranks)) delay_ms=$((RANDOM % window_ms))
    signal=KILL
    [ $((RANDOM % 2)) -eq 0 ] || signal=STOP
    took=0 allowed=0
    for attempt in 1 2 3; do
        try "$n" $rank $signal $delay_ms
        result=$?
        [ $result -ge 2 ] || break
        [ $result -eq 2 ] || [ $attempt -gt 1 ] || late_first=$((late_first + 1))
    done
    [ $took -le $slowest ] || slowest=$took slowest_allowed=$allowed
    if [ $result -eq 0 ]; then
        passed=$((passed + 1))
    else
        case $result in
            2) printf 'FAIL %d: three runs ended before rank %d could be struck\n' "$n" $rank ;;
            3)
                printf 'FAIL %d, %s of rank %d after %d ms: %s, repeated\n' "$n" $signal $rank $delay_ms "$late_words"
                head -30 "$work/out"
                ;;
        esac
        failed=$((failed + 1))
    fi
done
printf '%s, %s: %d strikes reported correctly, %d not; the slowest took %d ms of %d; late at first: %d\n' "$backend" "$when" \
    $passed $failed $slowest $slowest_allowed $late_first
[ $failed -eq 0 ] && [ $passed -gt 0 ]
