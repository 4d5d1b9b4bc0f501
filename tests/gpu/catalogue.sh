#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# catalogue.sh PROGRAM TREE RANKS [PLUGIN [SCENARIO…]]: the scenarios on NCCL end as on the simulator, with the model on
# the GPU and with the model in host memory, and both runs exchange the same bits. With one rank every scenario that a
# world of one can run takes part, else those that are written for so many ranks (or the ones that are named). Bitwise
# reductions are left out, because NCCL lacks them, and runs under other world sizes. So are features of the simulator
# alone: planted faults, the simulated rendezvous, choosers, devices without numbers, bounded slots, planted hooks,
# channels-last layers, continuations on completion, ranks that wait for ever or for a peer that was refused. So is
# a race, whose numbers are chance. PLUGIN
# brings nccl in place of the program's own module; "" is none. 77 where there is no GPU.
# With CDDP_ONE_IN=K one scenario of K is run, drawn by CDDP_SEED, which is the day of the year if it is not set.
set -u
program=$1 tree=$2 ranks=$3 plugin=${4:-}
one_in=${CDDP_ONE_IN:-1} seed=${CDDP_SEED:-$(date +%j)}
shift $(($# < 4 ? $# : 4))
with=(--color never)
[ -z "$plugin" ] || with+=(--plugin "$plugin")
tell=$("$program" doctor "${with[@]}" 2>&1 | tr '\n' ' ' | tr -s ' ')
case $tell in
    *"works nccl"*) ;;
    *) printf 'skipped: %s\n' "$(printf '%s' "$tell" | sed -E 's/.*(no nccl .*)/\1/; s/ works .*//')"; exit 77 ;;
esac
limit=90
if [ -n "$plugin" ]; then # a stand-in for a GPU is slow, and slower under sanitizers and load
    limit=900
    with+=(-s world.timeout_ms=600000)
fi
cd "$tree" || exit 2
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
cores=$(nproc 2>/dev/null || echo 2)
jobs=$((cores / (ranks + 1))) # so many scenarios at once: a rank mostly waits
[ $jobs -ge 1 ] || jobs=1
[ $jobs -le 8 ] || jobs=8

# multiplies SCENARIO: whether it has PowerSGD, whose products go through cuBLAS on the GPU alone: another order, other bits.
multiplies() { grep -qiE 'power_?sgd' "$1"; }

# one SCENARIO: a line "ok", "FAIL …" or "BITS …", with what was said behind it.
one() {
    local scenario=$1 store out
    store=$(mktemp -u "$scratch/run-XXXXXX").db
    if ! out=$(timeout "$limit" "$program" run --backend nccl -t "$store" "${with[@]}" "$scenario" 2>&1); then
        printf 'FAIL %s\n%s\n' "$scenario" "$(printf '%s\n' "$out" | head -8)"
    elif ! out=$(timeout "$limit" "$program" run --backend nccl -t "$store" -s model.memory=host "${with[@]}" "$scenario" 2>&1); then
        printf 'FAIL %s, model in host memory\n%s\n' "$scenario" "$(printf '%s\n' "$out" | head -8)"
    elif multiplies "$scenario"; then
        echo ok
    elif ! out=$("$program" diff --color never "$store:1" "$store:2" 2>&1); then
        printf 'BITS %s: model on the GPU and in host memory\n%s\n' "$scenario" "$(printf '%s\n' "$out" | head -8)"
    else
        echo ok
    fi
    rm -f "$store"*
}
export -f one multiplies
export program scratch limit
export with_text="${with[*]}"

# is_drawn SCENARIO
is_drawn() {
    local sum
    [ "$one_in" -gt 1 ] || return 0
    sum=$(printf '%s %s' "$seed" "$1" | cksum)
    [ $((${sum%% *} % one_in)) -eq 0 ]
}

skipped=0
list() {
    if [ $# -gt 0 ]; then
        printf '%s\n' "$@"
        return
    fi
    find scenarios -name '*.toml' | sort | while IFS= read -r scenario; do
        size=$(sed -nE 's/^size *= *([0-9]+).*/\1/p' "$scenario" | head -1)
        if [ "${size:-2}" = "$ranks" ] &&
            ! grep -qE '^\[\[fault\]\]|^\[rendezvous\]|device = "(symbol|shape)"|reduction = "b(and|or|xor)"|^chooser|in_flight_max|name = "plant_|I-LIVE|^backend|producers|continuations = "on_completion"|layout = "channels_last"|of this iteration is|"world\.size=|while the delayed all-reduce is under way' "$scenario"; then
            if is_drawn "$scenario"; then echo "$scenario"; else echo "$scenario" >>"$scratch/left"; fi
        else
            echo "$scenario" >>"$scratch/left"
        fi
    done
}
# Ends with the numbers so far when its time is over.
finish() {
    grep -v '^ok$' "$scratch/said"
    passed=$(grep -c '^ok$' "$scratch/said")
    failed=$(grep -cE '^(FAIL|BITS) ' "$scratch/said")
    [ ! -e "$scratch/left" ] || skipped=$(wc -l <"$scratch/left")
    [ "$one_in" -eq 1 ] || printf 'one scenario of %d, drawn by CDDP_SEED=%s\n' "$one_in" "$seed"
    printf '%d as on the simulator and with the same bits in both memories, %d not, %d left out%s\n' "$passed" "$failed" "$skipped" "$1"
}
: >"$scratch/said"
list "$@" >"$scratch/chosen"
xargs -P "$jobs" -I{} bash -c 'read -ra with <<<"$with_text"; one "$1"' one {} <"$scratch/chosen" >"$scratch/said" &
all=$!
trap 'kill $all 2>/dev/null; finish ", and the time was over before all $(wc -l <"$scratch/chosen") were run"; exit 124' TERM
wait $all
# Few scenarios are for a world of one. The others, run with one rank, must end as on the simulator.
alone() {
    local there here out
    "$program" run --color never -n 1 "$1" >/dev/null 2>&1
    there=$?
    out=$(timeout "$limit" "$program" run --backend nccl -n 1 "${with[@]}" "$1" 2>&1)
    here=$?
    if [ $here = $there ]; then
        echo ok
    else
        printf 'FAIL -n 1 %s: exit code %d, on the simulator %d\n%s\n' "$1" $here $there "$(printf '%s\n' "$out" | head -8)"
    fi
}
if [ "$ranks" = 1 ] && [ $# = 0 ]; then
    export -f alone
    few=("scenarios/no_sync_accumulation.toml" "scenarios/powersgd.toml" "scenarios/fp16_compress.toml" "scenarios/static_graph.toml")
    [ -n "$plugin" ] || mapfile -t few < <(scratch=$(mktemp -d -p "$scratch"); for ranks in 2 3 4; do list; done)
    printf '%s\n' "${few[@]}" |
        xargs -P "$jobs" -I{} bash -c 'read -ra with <<<"$with_text"; alone "$1"' alone {} >>"$scratch/said" &
    all=$!
    wait $all
fi
finish ""
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
