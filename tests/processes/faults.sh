#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# faults.sh PROGRAM BACKEND COUNT SEED: kills or stops a random rank at a random moment of training, COUNT times. Each run has to end within
# its time-out and two seconds, with exit 1, with the rank and the collective in which it was missed in the report, and with a
# store that can be read. What is drawn from SEED: the rank, the signal, the moment.
set -u
program=$1 backend=$2 count=$3 RANDOM=$4
timeout_ms=1000 bound_ms=3000 ranks=4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

now_ms() { date +%s%3N; }

# The process of one rank: a child of ours in the order of forking, or what the launcher told its number.
find_rank() {
    local mark=$1 judge=$2 rank=$3 pid found=()
    for pid in $(pgrep -f -- "$mark"); do
        if grep -qzE "^(OMPI_COMM_WORLD_RANK|PMI_RANK)=$rank\$" "/proc/$pid/environ" 2>/dev/null &&
            grep -qz "^CDDP_HUB=" "/proc/$pid/environ"; then
            case $(readlink "/proc/$pid/exe") in */cddp-verify) echo "$pid"; return ;; esac
        fi
    done
    read -r -a found <<<"$(pgrep -P "$judge" -f cddp-verify | sort -n | tr '\n' ' ')"
    [ ${#found[@]} -eq $ranks ] && echo "${found[$rank]}"
}

# try NUMBER RANK SIGNAL DELAY_MS: 0 passed, 1 failed, 2 the run ended before the signal, which proves nothing
try() {
    local number=$1 rank=$2 signal=$3 delay_ms=$4 judge victim='' began code words='' i
    local store=$work/run$number.db
    "$program" run --backend "$backend" -n $ranks --color never --trace "$store" scenarios/models/mlp_two_ranks.toml \
        --set train.steps=20000 --set world.timeout_ms=$timeout_ms --log comm:info >"$work/out" 2>&1 </dev/null &
    judge=$!
    for ((i = 0; i < 200; i++)); do
        # Every rank has said that it joined the group: from here on an operation's time-out is what bounds a run.
        [ "$(grep -sc 'text="world"' "$work/out")" -ge $ranks ] && victim=$(find_rank "$store" $judge "$rank")
        [ -n "$victim" ] && break
        sleep 0.05
    done
    sleep "$(printf '%d.%03d' $((delay_ms / 1000)) $((delay_ms % 1000)))"
    if ! kill -0 $judge 2>/dev/null || [ -z "$victim" ] || ! kill "-$signal" "$victim" 2>/dev/null; then
        kill -KILL $judge 2>/dev/null
        wait $judge 2>/dev/null
        rm -f "$store"
        return 2
    fi
    began=$(now_ms)
    while kill -0 $judge 2>/dev/null && [ $(($(now_ms) - began)) -lt 20000 ]; do sleep 0.02; done
    took=$(($(now_ms) - began))
    kill -KILL $judge 2>/dev/null
    wait $judge 2>/dev/null
    code=$?
    [ $code -eq 1 ] || words="exit $code instead of 1"
    [ $took -le $bound_ms ] || words="$words; it took $took ms"
    grep -qE "^  I-(FAIL|LIVE)  rank $rank " "$work/out" || words="$words; rank $rank is not named"
    grep -qE "#[0-9]+ of group '" "$work/out" || words="$words; no collective is named"
    timeout 20 "$program" report "$store" >"$work/report" 2>&1
    [ $? -eq 1 ] && grep -q "run 1" "$work/report" || words="$words; the store does not open"
    rm -f "$store"
    [ -z "$words" ] && return 0
    printf 'FAIL %d, %s of rank %d after %d ms: %s\n' "$number" "$signal" "$rank" "$delay_ms" "${words#; }"
    head -24 "$work/out"
    return 1
}

passed=0 failed=0 slowest=0
for ((n = 1; n <= count; n++)); do
    rank=$((RANDOM % ranks)) delay_ms=$((RANDOM % 1500))
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
printf '%s: %d faults told as they were, %d not; the slowest took %d ms of %d\n' "$backend" $passed $failed $slowest $bound_ms
[ $failed -eq 0 ] && [ $passed -gt 0 ]
