#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Records a program of four ranks, right and with each of its mistakes, and looks at what check says.
#   job.sh JOB VERIFY MODULES
job=$1 verify=$2 CDDP_BACKEND_DIR=$3
export CDDP_BACKEND_DIR
. "${0%/*}/expect.sh"
record() { CDDP_RECORD=$place/run.db "$job" 4 "$1"; }

mean="proven    reductions made the mean of the recorded gradients, equal"
expect none 0 "$mean"
# What the optimizer takes is the reduced gradient times what the program says.
for right in clips scales clips_and_scales; do
    expect $right 0 "clip and loss scale that were said"
    grep -q "nor what clipping" "$place/report" && { echo "$right is called unjudged"; failed=1; }
done
expect clips_more 1 "I-CHAIN .*w that is not the reduced one times 0.5 / 1"
expect clips_not 1 "I-CHAIN .*w that is not the reduced one times 0.5 / 1"
expect clips_all_but_one 1 "I-CHAIN .*b that is not the reduced one times 0.5 / 1"
expect clips_in_f32 1 "I-CHAIN .*w that is not the reduced one times 0.3 / 1"
expect scales_twice 1 "I-CHAIN .*w that is not the reduced one times 1 / 2"
expect replaces_after_clip 1 "I-CHAIN .*w that is not the reduced one times 0.999 / 1"
expect exchanges_after_clip 1 "I-CHAIN .*w that is not the reduced one times 0.5 / 1"
expect drops_silently 0 "so every step adds to the"
expect own_mean 0 "proven    reductions made the mean of the recorded gradients"
expect own_unnumbered 0 "4 ranks, 6 steps"
expect unnumbered 0 "4 ranks, 6 steps"
expect own_sum 0 "proven    reductions made the sum of the recorded gradients"
expect own_broadcast 4 "that a reduction made the mean"
expect own_factor 4 "that a reduction made the mean"
expect own_skips 1 "I-ONCE"
expect own_leaves_out 1 "I-ONCE  rank 2: its gradient of b is missing in what the ranks reduced"
expect own_counts_twice 1 "I-ONCE  rank 2: its gradient of b is twice in what the ranks reduced"
expect exits 1 "rank 2"
# Half of the ranks each: by mistake, where both start from the same values.
expect halves 4 "why wrapped module 1 and this one train the same parameters apart, from the same values"
expect halves_apart 0 "each group, order, liveness"
expect two_models 4 "wrapped module 2 of 2"
expect silent 4 "not shown: an optimizer's step (cddp_record_optimizer_step)"
expect silent_alone 4 "not shown: an optimizer's step"
expect alone 1 "I-ONCE"
expect skips 1 "I-STEP"
expect steps_anyway 1 "I-STEP .*changes w in a step that it skips"
expect forgets 4 "what a step did to a parameter (cddp_record_optimizer_touch), first on rank 0, step 3, parameter 1; 4 in all"
expect forgets_on_one_rank 1 "I-PARAMEQ"
expect rates_differ 1 "I-STEP"
expect changes_gradient 1 "I-CHAIN"
# What a program writes into reduced gradients alike on all ranks may be its optimizer's: inconclusive, but for plain mistakes.
expect decays 4 "what the program itself made of gradients .* behind cddp_record_optimizer_touch"
expect decays_behind 0 "$mean"
expect decays_on_one_rank 1 "I-CHAIN  rank 1: gradient of w changed between reduction of step 0"
expect divides_again 1 "I-CHAIN  the optimizer takes another gradient of b than was reduced, 0.25 times as large"
expect clears_before_step 1 "I-CHAIN  the optimizer takes another gradient of b than was reduced, 0 times as large"
expect takes_the_last 1 "I-CHAIN  all ranks: gradient of w changed between reduction of step 3"
# Backwards that run on other values than the last step left, on each rank on its own, are no other start; said, they are right.
expect adapts 4 "what changed a parameter outside of the steps"
expect adapts_said 0 "nor forwards on parameters that each rank has for itself"
expect adapts_said_lost 1 "I-PARAMEQ"
# What lies in a gradient's place is looked at: between backwards that add up, and when a step takes it.
expect takes_copy 0 "$mean"
expect takes_along 0 "$mean"
expect takes_elsewhere 4 "which gradient a step took: .* (cddp_record_optimizer_touch with the tensor that the optimizer reads), first on rank 0, step 0, parameter 0"
expect changes_accumulated 4 "what changed a gradient between two backwards that add up .*, first on rank 0, step 2, parameter 0; 4 in all"
expect drops_accumulated 4 "what changed a gradient between two backwards that add up .*, first on rank 1, step 2, parameter 0; 1 in all"
# A parameter that no gradient changes: ranks must agree on it at the end, and may change it alike.
expect still 0 "$mean"
expect still_follows 0 "$mean"
expect still_drifts 1 "I-PARAMEQ  rank 0 and .* hold different values of still after the step"
expect still_ignored_drifts 0 "nor the 1 parameter on the ignore list, where ranks may differ"
expect ignores_b 4 "how the ranks keep parameters equal that an optimizer has and no wrapper reduces"
expect join_still 0 "$mean"
expect join_still_drifts 1 "I-PARAMEQ  .* different values of still after"
# Where the program shows what the last backward left alone, the recorder looks at what the others left.
expect shows_last 0 "$mean"
expect shows_last_changed 4 "what changed a gradient between two backwards that add up .*, first on rank 0, step 2, parameter 0; 4 in all"
expect shows_last_dropped 4 "what changed a gradient between two backwards that add up .*, first on rank 1, step 2, parameter 0; 1 in all"
# Ranks that add up other numbers of backwards, and backwards whose gradients go nowhere.
expect adds_less 4 "why ranks add up other numbers of backwards before one reduction.*, first on rank 1, step 0; 6 in all"
expect clears_in_window 4 "why gradients that a backward inside no_sync had left were dropped.*, first on rank 0, step 0; 24 in all"
expect leaves_out 0 "the reduced gradients of 1 backward were dropped without"
expect touches_as_another 4 "not shown: an optimizer's step (cddp_record_optimizer_step), first on rank 0, step 0, parameter 0; 48 in all"
# What a backward makes is the program's: the report says that it was not judged.
expect changes_unrecorded 0 "how gradients came to be before cddp_record_gradient (compare sees it)"
expect same_samples 1 "I-DATA"
expect uneven_batches 0 "ranks used other numbers of samples in 6 steps"
expect none 0 "was not computed anew$"
expect shows_no_samples 0 "samples were not shown (cddp_record_samples)"
# What the program shows at the begin of a step is held against the end of the one before.
expect begins 0 "was not computed anew$"
expect begins_changed 1 "I-CHAIN  all ranks: parameter w changed between after step of step 2 and the begin of step 3"
# Where it shows nothing, the recorder looks itself. A change on all ranks may be meant.
expect nudges 4 "what changed a parameter outside of the steps .*, first on rank 0, step 3, parameter 0; 4 in all"
expect nudges_before_step 4 "what changed a parameter outside of the steps .*, first on rank 0, step 3, parameter 0; 4 in all"
expect nudges_one_and_back 1 "I-CHAIN  rank 2: parameter w changed outside of the steps"
expect nudges_last 4 "what changed a parameter behind the last step .*, first on rank 0, step 5, parameter 0; 4 in all"
expect averages_at_end 0 "proven    reductions made the mean"
# What changes at the begin of a step, and is shown there.
expect moves 0 "$mean"
expect moves_one 1 "I-PARAMEQ  rank 1 .* hold different values of b after the step"
expect keeps 4 "that zero_grad did what was said of it .*, first on rank 0, step 1, parameter 1; 40 in all"
expect own_nudges 4 "what changed a parameter outside of the steps"
expect own_nudges_last 4 "what changed a parameter behind the last step"
expect own_keeps 1 "I-CHAIN  all ranks: gradient of w changed between zero_grad of step 1"
expect own_unlent 4 "that a parameter stays as a step left it, to the next step or the end"
expect own_unended 4 "that a parameter stays as a step left it, .* step 5"
expect begins_kept 1 "I-CHAIN  rank 1: gradient of w changed between zero_grad of step 3 and the begin of step 3"
# The rank that failed, not one that lost it; and one that stood still was not killed, but waited for.
expect fails 1 "why       rank 1: cannot read batch 3"
grep -q "^rank 1: cannot read batch 3" "$place/out" || { echo "the program names another failure:"; cat "$place/out"; failed=1; }
expect fails_silently 1 "rank 1"
grep -q "^rank 1: input/output error" "$place/out" || { echo "no words for a failure without words:"; cat "$place/out"; failed=1; }
expect stalls 1 "for rank 2, which was still running in"
grep -q "had shown no event for" "$place/report" || { echo "stalls: no time is said"; cat "$place/report"; failed=1; }
expect exits_0 1 "I-FAIL  rank 2 left with exit code 0 before the end"
grep -q "lost rank 2, which left with exit code 0 in" "$place/report" || { echo "exits_0: the headline"; cat "$place/report"; failed=1; }
expect stops 1 "I-FAIL  rank 2 stood still (SIGSTOP)"
grep -q "for rank 2, which stood still (SIGSTOP)" "$place/report" || { echo "stops: the headline"; cat "$place/report"; failed=1; }
expect no_end 4 "not shown: the end of the program (cddp_record_close)"
# All ranks leave in the middle of a step, and none says that it was done.
expect all_exit 4 "not shown: the end of the program (cddp_record_close)"
# A recording that is closed before its groups ends with the last of them, as the program said or as it failed behind.
expect closes 0 "$mean"
expect closes_early 0 "4 ranks, 6 steps"
expect closes_with_error 1 "I give up"
grep -q "killed by signal" "$place/out" && { echo "closes_with_error: the program died"; cat "$place/out"; failed=1; }
expect closes_then_fails 1 "it failed behind"
expect parent_speaks 0 "$mean"
expect brings_nan 1 "I-RANGE  rank 1"
expect drops_nan 4 "what the program itself made of gradients between their reduction and the optimizer"
expect misuses 0 "$mean"
expect leaves 1 "rank 1"
expect dies 1 "rank 2"
# Without standard streams: what it prints goes nowhere, and nothing else of it.
(CDDP_RECORD=$place/closed.db "$job" 4 none <&- >&- 2>&-) || { echo "without standard streams the program fails"; failed=1; }
"$verify" check "$place"/closed.db.* >"$place/report" 2>&1 || { echo "without standard streams"; cat "$place/report"; failed=1; }
# All ranks run into the same mistake: each of them crashed, and none was ended with the job.
expect all_crash 1 "ranks     0-3 killed"
grep -q "found     signal 11" "$place/report" || { echo "all_crash: the signal is not named"; cat "$place/report"; failed=1; }
expect crosses 1 "I-ORDER"
# A collective that one rank alone posts: that rank is to blame, not those that it keeps or that it waits for.
expect extra 1 "I-ORDER  rank 1 against ranks 0, 2 and 3"
expect extra_barrier 1 "I-ORDER  rank 1 against ranks 0, 2 and 3"
expect extra_alike 1 "I-CONTENT  rank 1 against ranks 0, 2 and 3"
expect extra_last 1 "I-ORDER  rank 1 posted collective #10 of group 'world', which ranks 0, 2 and 3 returned without"
grep -q "ranks 0, 2 and 3 never joined; rank 1 differs" "$place/report" || { echo "the headline of extra_last"; failed=1; }

# Local SGD: ranks train apart between averages, which is not judged. What an averager has averaged is equal on all ranks.
apart="what ranks get that reduce in blocks and go on by themselves (local SGD is not judged)"
for right in local local_own hook_local:post_local_sgd local_forgotten local_own_forgotten; do expect $right 4 "$apart"; done
for wrong in local_spoilt local_own_spoilt hook_local_spoilt:post_local_sgd; do
    expect $wrong 1 "I-PARAMEQ  rank 1 .*hold different values of b after the step"
done
# By hand: the program's own all-reduces, behind a step, of as many elements as it has stepped on.
for right in by_hand by_hand_flat by_hand_own by_hand_own_flat; do expect $right 4 "$apart"; done
expect by_hand_never 1 "I-ONCE"
# Every backward runs inside no_sync, and the program reduces gradients itself: shown, and not shown.
expect inside 0 "$mean"
expect inside_unshown 4 "not shown: a gradient after its reduction"
expect own_unshown 4 "not shown: a gradient after its reduction"
expect inside_skips 1 "I-ONCE"
# It says a step, of a gradient that is not zero and at a rate that is not zero, and does none.
expect stays 0 "first parameter 0 in step 3; 8 in all"

# Comm hooks and uneven inputs: right ones, of the library and of the program.
expect hook_mean 0 "$mean"
expect hook_mean_declared 0 "$mean"
expect hook_given_another 4 "what changed a gradient between cddp_record_gradient and the comm hook .*, first on rank 0, step 2, parameter 0; 4 in all"
expect hook_cast 0 "as a low precision rounds it"
expect hook_of_library:allreduce 0 "$mean"
expect hook_of_library:reproducible 0 "$mean"
expect hook_of_library:fp16_compress 0 "as a low precision rounds it"
expect hook_of_library:topk 0 "reductions kept the laws of the comm hook topk"
expect hook_of_library:quantize_per_tensor 0 "reductions kept the laws of the comm hook"
# Gradients that are views of their buckets, and a program that writes to one which it has marked ready: whoever reads
# the bucket then, in place (allreduce, the warm-up of powersgd) or in stages, is not to blame.
expect views 0 "$mean"
expect hook_views 0 "$mean"
expect hook_views:reproducible 0 "$mean"
expect views_early 1 "I-HB  rank 1: the program writes to the gradient of b after it was marked ready, before its bucket"
expect hook_views_early:allreduce 1 "I-HB  rank 1: the program writes to the gradient of b after it was marked ready, before its bucket"
for hook in fp16_compress reproducible topk; do
    expect hook_views_late:$hook 1 "I-HB  rank 1: the program writes to the gradient of w while the hook of its bucket is at work"
done
# Without views the result is written over what comes late: it is lost.
expect copies_early 1 "I-HB  rank 1: the program writes to the gradient of b after it was marked ready, before its bucket"
# The other ranks post behind the write.
for mistake in views_late hook_views_late:allreduce hook_views_late:powersgd hook_views_late:post_local_sgd; do
    expect $mistake 1 "I-HB  rank 1: the input of collective #6 of group 'world', bucket 0, changed between its post and its start"
done
for mistake in views_last hook_views_last:allreduce; do
    expect $mistake 1 "I-HB  rank 1: the program writes to a gradient while its bucket is being reduced"
done
expect hook_views_last 1 "I-HB  rank 1: the program writes to the result of collective #6 of group 'world' before it waits"
expect join_right 0 "$mean"
expect join_by_active 0 "$mean"
expect join_twice 0 "$mean"
expect join_hook_mean 0 "$mean"

# And wrong ones: none is verified.
expect hook_sums 1 "I-HOOK .*the sum of what the ranks gave: nobody divides by 4"
expect hook_sums_declared 1 "I-HOOK .*nobody divides by 4"
expect hook_sums_lossy 1 "I-HOOK .*nobody divides by 4"
expect hook_one_too_many 1 "I-HOOK .*divided by 5, not by 4"
expect hook_divides_twice 1 "I-HOOK .*divided by 16, not by 4"
expect hook_drops_a_rank 1 "I-HOOK .*the mean without what rank 1 gave"
expect hook_counts_twice 1 "I-HOOK .*a sum in which rank 2 is twice"
expect hook_stale 1 "I-HOOK .*the mean of the backward before"
expect hook_first_bucket_only 1 "I-HOOK .*nobody divides by 4"
expect hook_halves 4 "declare what it promises"
expect hook_halves_declared 1 "I-HOOK .*something else than the mean"
expect hook_exchanges 4 "declare what it promises"
expect hook_cast_one_too_many 1 "I-HOOK .*the hook breaks its law over all ranks"
expect join_hook_by_active 1 "I-HOOK .*divided by 2, not by 4"
expect hook_of_library:noop 1 "I-HOOK"

# What a launcher restarted is a run by itself.
rm -f "$place"/run.db*
CDDP_RECORD=$place/run.db "$job" 2 none > "$place/out" 2>&1
CDDP_RECORD=$place/run.db RANK=0 WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=1 "$job" 2 none > "$place/out" 2>&1
"$verify" check "$place"/run.db.* > "$place/report"
[ $? -eq 0 ] && grep -q "restart 1" "$place/report" && grep -q "2 of 2 verified" "$place/report" || { echo "a restart"; cat "$place/report"; failed=1; }

# A merged run lies in a store, where it is judged again, reported and compared; nothing can run it again.
CDDP_RECORD=$place/run.db "$job" 4 none > "$place/out" 2>&1
"$verify" check "$place"/run.db.? --trace "$place/all.db" > "$place/report" || failed=1
"$verify" check "$place/all.db" | grep -q "verified: $place/all.db run 1" || { echo "the store is not verified"; failed=1; }
"$verify" report "$place/all.db" > /dev/null || { echo "no report of the store"; failed=1; }
"$verify" diff "$place/all.db" "$place/all.db" > /dev/null || { echo "the run differs from itself"; failed=1; }
"$verify" replay "$place/all.db" 2> "$place/report"
[ $? -eq 2 ] && grep -q "no scenario describes it" "$place/report" || { echo "replay of a program"; failed=1; }

# The disk is full: the program goes on, and the report has the reason.
rm -f "$place"/run.db*
(ulimit -f 16 && CDDP_RECORD=$place/run.db "$job" 4 none > "$place/out" 2>&1)
grep -q "the recording ended early" "$place/out" || { echo "the program does not say that the recording ended"; cat "$place/out"; failed=1; }
"$verify" check "$place"/run.db.? > "$place/report"
[ $? -eq 4 ] && grep -q "events are missing at the end: cannot extend the file" "$place/report" || { echo "a full disk"; cat "$place/report"; failed=1; }
CDDP_RECORD=$place/run.db "$job" 4 none > "$place/out" 2>&1

# A shard is missing; a file is no shard; one is of another job.
"$verify" check "$place"/run.db.[012] > "$place/report"
[ $? -eq 4 ] && grep -q "first on rank 3" "$place/report" || { echo "a missing shard"; failed=1; }
grep -q "both sides of a reduction" "$place/report" && { echo "what follows from a missing shard is no news"; failed=1; }
# One was cut.
cp "$place/run.db.1" "$place/whole" && truncate -s 10000 "$place/run.db.1"
"$verify" check "$place"/run.db.[0123] > "$place/report" 2>&1
[ $? -eq 4 ] && grep -q "run.db.1 is damaged: its events end at byte 9984, and ended at byte [0-9]* when it was closed" "$place/report" || { echo "a cut shard"; cat "$place/report"; failed=1; }
mv "$place/whole" "$place/run.db.1"
# One is there and cannot be read, the first one or another: the reason is said, by whatever name the run is given.
for rank in 0 2; do
    mv "$place/run.db.$rank" "$place/whole"
    for how in "mkdir|Is a directory" "touch|is empty" "mkfifo|it is a FIFO" "ln -s run.db.$rank|symbolic links"; do
        ${how%%|*} "$place/run.db.$rank"
        "$verify" check "$place/run.db" > "$place/report" 2>&1
        [ $? -eq 4 ] && grep -q "^rank $rank: .*run.db.$rank'.*${how#*|}" "$place/report" || { echo "$how: the reason"; cat "$place/report"; failed=1; }
        rm -rf "$place/run.db.$rank"
    done
    mv "$place/whole" "$place/run.db.$rank"
done
echo "no shard" > "$place/run.db.txt"
"$verify" check "$place"/run.db.* 2> "$place/report"
[ $? -eq 2 ] && grep -q "is no shard" "$place/report" || { echo "a file that is no shard"; failed=1; }
# A rank of another run is refused, though both were right.
mkdir "$place/other"
for run in "$place/run.db" "$place/other/run.db"; do
    rm -f "$run"*
    CDDP_RECORD=$run "$job" 4 none > "$place/out" 2>&1
done
cp "$place/other/run.db.1" "$place/run.db.1"
"$verify" check "$place"/run.db.* > "$place/report" 2>&1
code=$?
if [ $code -ne 4 ] || ! grep -q "are of different jobs" "$place/report"; then
    echo "two runs: check ended with $code:"
    cat "$place/report"
    failed=1
fi
# watch refuses them too; under the name of a run it shows the newer job.
"$verify" watch --once "$place"/run.db.? > "$place/report" 2>&1
[ $? -eq 2 ] && grep -q "are of different jobs" "$place/report" || { echo "watch of two jobs"; cat "$place/report"; failed=1; }
"$verify" watch --once "$place/run.db" > "$place/report" 2>&1
grep -q "rank 1 .*ended" "$place/report" && ! grep -q "rank 0 .*ended" "$place/report" || { echo "watch of a name with two jobs"; cat "$place/report"; failed=1; }
exit $failed
