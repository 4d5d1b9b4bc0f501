#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# processes.sh PROGRAM BACKEND "RANKS…" SCENARIO…: the scenarios on real processes give the verdict of the simulator, with as many
# ranks as each says ("-") or with the numbers given. Some scenarios change with another number of ranks: their simulated run no
# longer ends as expected. The script counts these and leaves them out, like those that only a simulator can run. Where the
# backend's order of reduction is known to the simulator, the first divergence of the two traces must not exist, and the record
# replays on the simulator, unless the scenario ends in an error: who of several processes then hears of the others' end is chance.
set -u
program=$1 backend=$2 ranks=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 equal=0
declare -A left=()

leave_out() { left[$1]=$((${left[$1]-0} + 1)); }

# Why this scenario is the simulator's alone; "" when it is not.
reason() {
    grep -qE '^\[\[fault\]\]' "$1" && { echo "planted faults"; return; }
    grep -qE '^\[rendezvous\]' "$1" && { echo "the simulated rendezvous"; return; }
    grep -qE 'device = "(symbol|shape)"' "$1" && { echo "a device without numbers"; return; }
    grep -qE '^(streams\.)?producers' "$1" && { echo "streams"; return; }
    grep -qE '^chooser' "$1" && { echo "a chooser"; return; }
    grep -qE '^continuations = "on_completion"' "$1" && { echo "continuations on completion"; return; }
    grep -qE 'in_flight_max' "$1" && { echo "bounded slots"; return; }
    grep -qE 'name = "plant_' "$1" && { echo "a planted hook"; return; }
    grep -qE 'I-LIVE' "$1" && { echo "ranks that wait for ever"; return; }
    grep -qE 'of this iteration is' "$1" && { echo "ranks whose peer was refused"; return; }
    grep -qE 'same_with' "$1" && { echo "repetitions with dozens of ranks"; return; }
    grep -qE '^backend = ' "$1" && { echo "a separate backend"; return; }
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
for scenario in "$@"; do
    why=$(reason "$scenario")
    for n in $ranks; do
        if [ -n "$why" ]; then leave_out "$why"; else one "$scenario" "$n"; fi
    done
done
printf '%s, ranks %s: %d with the verdict of the simulator, %d of them with its trace and replayed on it, %d not\n' "$backend" "$ranks" $passed $equal $failed
for why in "${!left[@]}"; do printf '  left out: %d, %s\n' "${left[$why]}" "$why"; done | sort
[ $failed -eq 0 ] && [ $passed -gt 0 ]
