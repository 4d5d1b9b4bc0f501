#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Records programs, right and hung, lifts them, and runs what came out.
#   lift.sh JOB GPT2 VERIFY MODULES
job=$1 gpt2=$2 verify=$3 CDDP_BACKEND_DIR=$4
export CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
cd "$place" || exit 1
failed=0
fail() {
    echo "$1"
    shift
    [ $# -eq 0 ] || cat "$@"
    failed=1
}

lift() {
    "$verify" lift run.db -o job.toml > out 2> notes || fail "$1: lift" out notes
    "$verify" run job.toml --trace lifted.db > report 2>&1
    code=$?
    [ $code -eq "$2" ] || fail "$1: the lifted scenario ended with $code, wanted $2" report job.toml
}

# Right ones: every rank posts the same operations in the same order, with the same sizes.
right() {
    name=$1
    rm -f run.db* lifted.db
    shift
    "$@" > out 2>&1 || fail "$name" out
    lift "$name" 0
    grep -q "#   nothing" job.toml || fail "$name: not all was expressed" job.toml
    "$verify" diff run.db lifted.db > report
    if grep -q -e "^order" -e "^shape" -e "^dtype" report; then fail "$name: other operations" report job.toml; fi
    echo "$name: the same operations"
}
export CDDP_RECORD=run.db
right none "$job" 4 none
right unnumbered "$job" 3 unnumbered
right join "$job" 4 join_right
# What the program reduces itself is no reduction of the scenario's, and a note says so.
rm -f run.db* lifted.db
"$job" 4 inside > out 2>&1 || fail inside out
lift inside 1
grep -q "what the program itself reduces behind backwards inside no_sync" notes || fail "inside: the note" notes
right "join by active ranks" "$job" 4 join_by_active
right "two join contexts" "$job" 4 join_twice
grep -q "^join.epochs = 2" job.toml || fail "two join contexts are not in the scenario" job.toml
unset CDDP_RECORD
right gpt2 "$gpt2" --ranks 4 --steps 4 --record run.db

# The sizes of what this hook sends depend on values: that is said, and the order is the same.
rm -f run.db* lifted.db
"$gpt2" --ranks 2 --steps 3 --reproducible 1 --record run.db > out 2>&1 || fail "gpt2, exact" out
lift "gpt2, exact" 0
grep -q "not expressed: comm hook reproducible" notes || fail "gpt2, exact: no note" notes
"$verify" diff run.db lifted.db > report
if grep -q "^order" report; then fail "gpt2, exact: another order" report; fi

# Hung ones: the same ranks wait in the same operations for the same ranks.
waits() { sed -n '/"waits"/,/^ *\], *$/p' "$1" | tr -d ' \n' | sed -e 's/"findings.*//' -e 's/"step":[0-9]*,//g' -e 's/"status":"[^"]*",//g'; }
hung() {
    rm -f run.db* lifted.db
    CDDP_RECORD=run.db "$job" 4 "$1" > out 2>&1
    "$verify" check run.db --format json > recorded.json
    lift "$1" 1
    "$verify" run job.toml --format json > lifted.json
    waits recorded.json > a
    waits lifted.json > b
    [ -s a ] && cmp -s a b || fail "$1: hangs otherwise" a b job.toml
    echo "$1: the same hang"
}
hung leaves
hung dies
# Who computed on when the job was ended, or failed by itself, while others waited for it.
hung stalls
grep -q "not expressed: what rank 2 did while others waited for it; here it hangs" notes || fail "stalls: no note" notes
hung fails
grep -q "not expressed: rank 1 ended with its own error; here it is killed" notes || fail "fails: no note" notes
hung exits

# What runs scenarios goes on from there.
"$verify" explore job.toml --budget 5 > report 2>&1
[ $? -eq 1 ] || fail "explore" report
"$verify" shrink job.toml --budget 40 -o small.toml > report 2>&1
"$verify" run small.toml > report 2>&1
[ $? -eq 1 ] || fail "what shrink left does not fail" report
for command in run replay explore shrink; do
    "$verify" $command run.db 2> report
    [ $? -eq 2 ] && grep -q "lift run.db -o job.toml" report || fail "$command of a recording" report
done
"$verify" report run.db > report
[ $? -eq 1 ] && grep -q "I-FAIL" report || fail "report of a recording" report
"$verify" diff run.db run.db > report || fail "diff of a recording with itself" report
exit $failed
