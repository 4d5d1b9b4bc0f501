#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# processes.sh PROGRAM BACKEND "RANKS…" SCENARIO…: the scenarios on real processes give the verdict of the simulator, with as many
# ranks as each says ("-") or with the numbers given; "=3" is 3 where the scenario does not say 3 itself. Two run at a time: most of
# a run is waiting for processes to start and to end. Some scenarios change with another number of ranks: their simulated run no
# longer ends as expected. The script counts these and leaves them out, like those that only a simulator can run. Where the
# backend's order of reduction is known to the simulator, the first divergence of the two traces must not exist, and the record
# replays on the simulator, unless the scenario ends in an error: who of several processes then hears of the others' end is chance.
# With CDDP_ONE_IN=K one scenario of K is run, drawn by CDDP_SEED, which is the day of the year if it is not set.
set -u
one_in=${CDDP_ONE_IN:-1} seed=${CDDP_SEED:-$(date +%j)}
program=$1 backend=$2 ranks=$3
shift 3
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
passed=0 failed=0 equal=0
declare -A left=()

leave_out() { left[$1]=$((${left[$1]-0} + 1)); }

# Why this scenario is the simulator's alone; "" when it is not. One process reads all of them.
# shellcheck disable=SC2016
reasons() {
    awk '
        function because(pattern, why) { if (reason == "" && $0 ~ pattern) reason = why }
        function close_file() { if (file != "") print reason "|" size "|" file }
        FNR == 1 { close_file(); file = FILENAME; reason = size = ""; }
        { because("^\\[\\[fault\\]\\]", "planted faults")
          because("^\\[rendezvous\\]", "the simulated rendezvous")
          because("device = \"(symbol|shape)\"", "a device without numbers")
          because("^(streams\\.)?producers", "streams")
          because("^chooser", "a chooser")
          because("^continuations = \"on_completion\"", "continuations on completion")
          because("in_flight_max", "bounded slots")
          because("name = \"plant_", "a planted hook")
          because("I-LIVE", "ranks that wait for ever")
          because("of this iteration is", "ranks whose peer was refused")
          because("while the delayed all-reduce is under way", "a race, whose numbers are chance")
          because("same_with", "repetitions with dozens of ranks")
          because("^backend = ", "a separate backend") }
        /^\[/ { section = $0 }
        section ~ /^\[world\]/ && /^size = [0-9]+/ { size = $3 }
        END { close_file() }' "$@"
}

# one SCENARIO RANKS: sim first; its verdict is what the processes have to give.
one() {
    local scenario=$1 n=$2 size=() sim=0 real=0 diff=0
    [ "$n" = - ] || size=(-n "$n")
    rm -f "$work"/*.db
    timeout 60 "$program" run --backend sim "${size[@]}" "${order[@]}" --color never --trace "$work/sim.db" "$scenario" >"$work/sim" 2>&1
    sim=$?
    if [ "$n" != - ] && [ $sim -ne 0 ]; then
        leave_out "another thing with $n ranks"
        return
    fi
    timeout 60 "$program" run --backend "$backend" "${size[@]}" --color never --trace "$work/real.db" "$scenario" >"$work/real" 2>&1 </dev/null
    real=$?
    if [ $real -ne $sim ]; then
        failed=$((failed + 1))
        printf 'FAIL %s, %s ranks: %d on %s, %d on the simulator\n' "$scenario" "$n" $real "$backend" $sim
        head -8 "$work/real"
        return
    fi
    passed=$((passed + 1))
    [ "$known" = yes ] || return
    # Broadcasts of different sizes cross, or shares of a scatter differ: processes refuse them by their fingerprint, the
    # simulator carries them out.
    ! grep -qE '^shard\.order' "$scenario" || return
    [[ $scenario != */scatter_shares_differ.toml ]] || return
    timeout 60 "$program" diff "$work/sim.db" "$work/real.db" >"$work/diff" 2>&1
    diff=$?
    if [ $diff -ne 0 ]; then
        failed=$((failed + 1))
        printf 'FAIL %s, %s ranks: the traces differ\n' "$scenario" "$n"
        head -8 "$work/diff"
        return
    fi
    if ! grep -q 'verdict = "error"' "$scenario" && ! timeout 60 "$program" replay "$work/real.db" >"$work/replay" 2>&1; then
        failed=$((failed + 1))
        printf 'FAIL %s, %s ranks: it does not replay on the simulator\n' "$scenario" "$n"
        head -8 "$work/replay"
        return
    fi
    equal=$((equal + 1))
}

order=() known=no
[ "$backend" != gloo ] || { order=(--set network.algorithm=gloo_ring) known=yes; }

# worker NUMBER: every second scenario of the list. Leaves its counts behind.
worker() {
    local at=0 why size scenario n
    work=$root/$1
    mkdir "$work"
    while IFS='|' read -r why size scenario; do
        at=$((at + 1))
        [ $((at % 2)) -eq "$1" ] || continue
        for n in $ranks; do
            if [ -n "$why" ]; then leave_out "$why"
            elif [ "$n" = "=$size" ]; then leave_out "its own number of ranks: the test of that has it"
            else one "$scenario" "${n#=}"
            fi
        done
    done <"$root/list"
    printf '%d %d %d\n' $passed $equal $failed >"$root/counts.$1"
    for why in "${!left[@]}"; do printf '%d|%s\n' "${left[$why]}" "$why"; done >"$root/left.$1"
}

is_drawn() {
    local sum
    sum=$(printf '%s %s' "$seed" "$1" | cksum)
    [ $((${sum%% *} % one_in)) -eq 0 ]
}

if [ "$one_in" -gt 1 ]; then
    printf 'one scenario of %d, drawn by CDDP_SEED=%s\n' "$one_in" "$seed"
    drawn=()
    for scenario; do ! is_drawn "$scenario" || drawn+=("$scenario"); done
    set -- "${drawn[@]}"
fi
reasons "$@" >"$root/list"
worker 0 &
worker 1 &
wait
read -r workers passed equal failed < <(cat "$root"/counts.* | awk '{ p += $1; e += $2; f += $3 } END { print NR, p, e, f }')
printf '%s, ranks %s: %d with the verdict of the simulator, %d of them with its trace and replayed on it, %d not\n' "$backend" "$ranks" "$passed" "$equal" "$failed"
cat "$root"/left.* | awk -F '|' '{ count[$2] += $1 } END { for (why in count) print "  left out: " count[why] ", " why }' | sort
[ "$workers" -eq 2 ] && [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
