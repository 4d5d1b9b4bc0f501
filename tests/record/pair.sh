#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Records a program with two wrappers, right and with each of its mistakes, and looks at what check says.
#   pair.sh PAIR VERIFY MODULES
pair=$1 verify=$2 CDDP_BACKEND_DIR=$3
export CDDP_BACKEND_DIR
. "${0%/*}/expect.sh"
record() { CDDP_RECORD=$place/run.db "$pair" 3 "$1"; }

proven="proven    reductions made the mean of the recorded gradients"
expect none 0 "wrapped modules 1 to 2"
expect none 0 "$proven"
expect interleaved 0 "$proven"
expect own_groups 0 "$proven"
expect second_accumulates 0 "$proven"
expect unsaid 4 "cddp_record_wrapper"
expect says_first 4 "cddp_record_wrapper"
expect changes_second 1 "I-CHAIN"
# What the recorder sees of the parameters of one wrapper says nothing of the other one.
expect second_drifts 4 "what changed a parameter outside of the steps"
grep -q "wrapped module 2 of 2" "$place/report" || { echo "second_drifts: the module"; cat "$place/report"; failed=1; }
expect second_drifts_on_one 1 "wrapped module 2 of 2"
# Steps may begin anywhere: the scenario has those that were recorded.
expect resumed 0 "$proven"
"$verify" lift "$place/run.db" -o "$place/job.toml" > "$place/report" 2>&1
grep -q "^steps = 4$" "$place/job.toml" && grep -q "numbered from 0 on: .* 2000000000" "$place/report" || { echo "resumed: lift"; cat "$place/report"; failed=1; }
expect second_stays_local 1 "I-ONCE"
# Local SGD by hand of both, behind one step: an all-reduce of each parameter, and one of all of them.
for right in by_hand by_hand_flat; do expect $right 4 "local SGD is not judged"; done
expect by_hand_never 1 "I-ONCE"
# Rank 1 leaves one reduction of one module out, and those of the other look alike: the module that it left out leads.
expect alike 0 "$proven"
for of in 1 2; do
    mistake=alike_first_stays_local
    [ $of -eq 2 ] && mistake=alike_second_stays_local
    expect $mistake 1 "wrapped module $of of 2"
    grep -m 1 "^  I-" "$place/report" | grep -q "I-ONCE  rank 1: the optimizer steps on a local gradient of w" || { echo "$mistake: what leads"; cat "$place/report"; failed=1; }
done
# A module that is not verified hides no findings of another one, and steps are those of all.
expect first_drifts_second_stays_local 1 "I-ONCE"
expect second_rests 0 "wrapped modules 1 to 2, of 2 to 4 steps"
expect crosses 1 "I-ORDER"

# Both join one context, and ranks run out of inputs; the mistakes are errors at once, in words.
expect join 0 "$proven"
expect join_by_active 0 "$proven"
grep -q "wrapped modules 1 to 2" "$place/report" || { echo "join: one of two"; cat "$place/report"; failed=1; }
expect join_exchanged 1 "forward_begin before that of the first wrapper of the join context"
expect join_rests 1 "forward_begin again before that of another wrapper of the join context"
expect join_apart 1 "I-ORDER"
rm -f "$place"/run.db*
CDDP_RECORD=$place/run.db "$pair" 3 crosses > "$place/out" 2>&1

# In a store it is judged again, with the same name; a comparison needs one wrapper.
"$verify" check "$place"/run.db.? --trace "$place/all.db" > "$place/report"
"$verify" check "$place/all.db" > "$place/report"
[ $? -eq 1 ] && [ "$(grep -c "wrapped module" "$place/report")" -eq 1 ] && grep -q "I-ORDER" "$place/report" || { echo "the store"; cat "$place/report"; failed=1; }
"$verify" compare "$place/run.db" "$place/run.db" > "$place/report"
[ $? -eq 4 ] && grep -q "has several wrappers" "$place/report" || { echo "compare"; cat "$place/report"; failed=1; }

# Lifted, both train: in turns, with their own options, and what rank 1 exchanged is exchanged again.
# mistake, exit code of the scenario, words of the scenario, words of its report
lifted() {
    rm -f "$place"/run.db*
    CDDP_RECORD=$place/run.db "$pair" 3 "$1" > "$place/out" 2>&1
    "$verify" lift "$place/run.db" -o "$place/job.toml" > "$place/out" 2> "$place/notes" || { echo "lift $1"; cat "$place/notes"; failed=1; }
    "$verify" run "$place/job.toml" > "$place/report"
    if [ $? -ne "$2" ] || ! grep -q -- "$3" "$place/job.toml" || ! grep -q -- "$4" "$place/report"; then
        echo "$1, lifted: wanted $2, \"$3\" and \"$4\":"
        cat "$place/job.toml" "$place/notes" "$place/report"
        failed=1
    fi
}
lifted none 0 'name = "wrapper_1"' "proven    values"
lifted none 0 'ddp.gradient_as_bucket_view = true' "proven    values"
lifted own_groups 0 'own_group = true' "proven    values"
lifted interleaved 0 'wrappers = \|name = "wrapper_1"' "proven    values"
grep -q "forward before another one's backward" "$place/notes" || { echo "lift says nothing"; failed=1; }
lifted join_by_active 0 'data.inputs = 2' "proven    values"
lifted crosses 1 'wrappers = \["wrapper_0", "wrapper_1"\]' "rank 1 against ranks 0 and 2"
lifted second_accumulates 0 'skip = "step"' "proven    values"
exit $failed
