#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shrink.sh CDDP_VERIFY FOLDER_OF_MUTANTS SCENARIOS [PATTERN]: every defect of defects.txt (that PATTERN selects) shrinks to
# at most 3 ranks, 4 parameters and 12 decisions beyond fifo; what is left replays to the same failure; and nothing that
# smaller.awk takes away from its text leaves a run that fails in the same way, under its own schedule or under fifo.
set -u
verify=$1 mutants=$2 scenarios=$3 pattern=${4:-.}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
count=0

fail() { printf 'FAILED: %s: %s\n' "$claim" "$*" >&2; cat out err small.toml >&2 2> /dev/null; exit 1; }
# The invariant and the sentence of the first finding, or of the rank that failed, without numbers, names and who.
sentence() {
    sed -n -e 's/^  \(I-[A-Z]*\)  /\1 /p' -e 's/^ *\(rank [0-9]*\|the ranks\) did not finish: /E /p' "$1" | head -n 1 |
        sed -e 's/([^)]*)//g' -e "s/'[^']*'//g" | tr -s ' ,:;' '\n' |
        grep -v -e '[0-9]' -e '\.' -e '^ranks\?$' -e '^and$' -e '^against$' -e '^all$' -e '^no$' -e '^majority$' -e '^.\?$' | tr '\n' ' '
}
# Who waits, in what (of a bucket or not) and for what kind of end, and why, without numbers: a hang is the same only
# as a hang.
hang() {
    awk '/^  [a-zA-Z-]+/ { shown = $1 ~ /^(hang|stopped|why)/ } shown' "$1" |
        sed -e 's/(bucket[^)]*)/with a bucket/g' -e 's/([^)]*)//g' -e "s/'[^']*'//g" -e 's/ranks/rank/g' -e 's/each of which/which/g' -e 's/wait /waits /g' | tr -s ' ,:;' '\n' |
        grep -v -e '[0-9]' -e '^and$' -e '^.\?$' | tr '\n' ' '
}
ends() { grep -c '^  ranks ' "$1"; }

one() {
    class=$1 mutant=$2 scenario=$3 how=$4
    claim="$class $mutant $scenario"
    program=$verify
    [ "$mutant" = - ] || program=$mutants/verify_$mutant
    arguments=("$scenarios/$scenario.toml")
    if [ "$how" = explore ]; then
        # A scenario that expects its failure is none for an exploration.
        awk '/^\[/ { expects = $0 ~ /^\[+expect[].]/ } !expects' "$scenarios/$scenario.toml" > explored.toml
        "$program" explore explored.toml --budget 50 > out 2> err
        line=$(sed -n 's/^  shrink *cddp-verify shrink //p' out)
        [ -n "$line" ] || fail "exploration finds nothing to shrink"
        eval "arguments=($line)"
    fi
    "$program" shrink "${arguments[@]}" --output small.toml > out 2> err || fail "shrink ends with $?"
    grep -q '1-minimal' out || fail "not minimal"
    ranks=$(sed -n 's/^  story *\([0-9]*\) ranks\? trains\? \([0-9]*\) parameters\?.*/\1/p' out)
    parameters=$(sed -n 's/^  story *\([0-9]*\) ranks\? trains\? \([0-9]*\) parameters\?.*/\2/p' out)
    decisions=$(sed -n 's/^  size .*reductions; \([0-9]*\) decisions\? beyond fifo.*/\1/p' out)
    [ "$ranks" -le 3 ] && [ "$parameters" -le 4 ] && [ "$decisions" -le 12 ] || fail "$ranks ranks, $parameters parameters, $decisions decisions"
    headline=$(sed -n '1s/^shrunk: [^:]*: //p' out)
    replay=$(sed -n 's/^  replay *cddp-verify replay //p' out)
    code=0
    eval "\"$program\" replay $replay" > whole 2> err || code=$?
    [ $code -eq 1 ] || fail "the replay line ends with $code: $(head -n 5 whole err)"
    grep -qF "  ${headline%%(*}" whole || grep -qF "${headline%%(*}" whole || fail "the replay fails in another way"
    "$program" run small.toml > out 2> err
    [ $? -eq 1 ] || fail "the scenario by itself does not fail"
    [ "$(sentence out)$(hang out)" = "$(sentence whole)$(hang whole)" ] || fail "the scenario by itself fails in another way"
    rm -rf less && mkdir less
    awk -v out=less -f "$here/smaller.awk" small.toml || fail "smaller.awk"
    tried=0
    for file in less/*.toml; do
        for with in own fifo; do
            if [ $with = own ]; then "$program" run "$file" > out 2> err; else "$program" replay "$file" --schedule s1: > out 2> err; fi
            code=$?
            tried=$((tried + 1))
            if [ $code -eq 1 ] && [ "$(sentence out)$(hang out)" = "$(sentence whole)$(hang whole)" ] && [ "$(ends out)" = "$(ends whole)" ]; then
                diff small.toml "$file"
                fail "it is not minimal"
            fi
            [ $code -le 4 ] || fail "$file ends with $code"
        done
    done
    [ "$tried" -ge 2 ] || fail "nothing was tried"
    count=$((count + 1))
    printf 'ok %s: %s ranks, %s parameters, %s decisions; %s smaller ones tried\n' "$claim" "$ranks" "$parameters" "$decisions" "$tried"
}

while read -r class mutant scenario how; do
    case $class in '#'* | '') continue ;; esac
    printf '%s' "$mutant $scenario" | grep -q -e "$pattern" || continue
    one "$class" "$mutant" "$scenario" "$how"
done < "$here/defects.txt"
[ "$count" -gt 0 ] || { echo "no defect is called so: $pattern" >&2; exit 1; }
echo "shrink: all $count defects hold"
