#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Records a program whose ranks communicate without cddp, right and with each of its mistakes, and looks at what check says.
#   own_means.sh PROGRAM VERIFY
program=$1 verify=$2
. "${0%/*}/expect.sh"
record() { "$program" "$place/run.db" "$1"; }

# The order of collectives is not seen, and not claimed.
expect mean 0 "equal gradients and parameters on all ranks$"
expect mean 0 "nor the order of collectives, which no group of cddp"
# A gradient that was not reduced is I-ONCE's, although zero_grad was seen, and nothing of a backward but what it left.
expect forgets 1 "I-ONCE  ranks 0-2: the optimizer steps on a local gradient of w (6 tensors)"
grep -q "where     step 3" "$place/report" && grep -q "nobody showed a reduction of it" "$place/report" || { echo "forgets: where, why"; cat "$place/report"; failed=1; }
expect never 1 "I-ONCE"
# Local SGD, by means that nobody sees: ranks that part and then hold equal values average them.
for right in local local_twice; do expect $right 4 "local SGD is not judged"; done
expect local_half 1 "I-ONCE  ranks 0-2: the optimizer steps on a local gradient of b (3 tensors)"
# One that spreads rank 0's values has lost what the others learnt.
expect never_broadcasts 1 "I-ONCE"
# One rank steps for the others: inconclusive, but where it steps on its own gradients. Which rank computes the step does not matter.
served="how a rank gets a parameter that the optimizer of another rank steps"
expect serves 4 "$served"
expect serves_itself 1 "I-ONCE  ranks 0-2: the optimizer steps on a local gradient of w"
expect shares 4 "$served"
expect shares_said 0 "equal gradients and parameters on all ranks$"
# Backwards that add up before one reduction; and reduced gradients that no step takes.
expect adds_up 0 "equal gradients and parameters on all ranks$"
expect adds_up_cleared 4 "what changed a gradient between two backwards that add up .*, first on rank 1, step 3"
expect adds_up_less 4 "why ranks add up other numbers of backwards before one reduction.*, first on rank 2, step 3"
# Of which nothing says where the second one begins; and a weight that one backward shows twice.
unsaid="what became of gradients between two backwards that add up: nothing says where .*, first on rank 0, step 0; 18 in all"
expect adds_up_silently 4 "$unsaid"
expect adds_up_silently_cleared 4 "$unsaid"
expect adds_up_weighted 0 "equal gradients and parameters on all ranks$"
expect shared_weight 0 "equal gradients and parameters on all ranks$"
expect bad_batch 0 "equal gradients and parameters on all ranks$"
# Who left before the others is to blame, and not those that their launcher ended for it.
expect leaves 1 "I-FAIL  rank 1 left with exit code 0 before the end"
grep -q "because   1 finding" "$place/report" && grep -q "ranks     0 and 2 interrupted" "$place/report" || { echo "leaves: the others"; cat "$place/report"; failed=1; }
expect leaves_last 1 "I-FAIL  rank 1 left with exit code 0 before the end"
expect leaves_3 1 "I-FAIL  rank 1 exited"
grep -q "because   1 finding" "$place/report" || { echo "leaves_3: the others"; cat "$place/report"; failed=1; }
expect leaves_early 1 "I-FAIL  rank 1 closed its recording before the end"
grep -q "because   1 finding" "$place/report" || { echo "leaves_early: the others"; cat "$place/report"; failed=1; }
# One that is gone when the others are done died by itself.
expect dies_behind 1 "I-FAIL  rank 1 died"
grep -q "because   1 finding" "$place/report" || { echo "dies_behind: the others"; cat "$place/report"; failed=1; }
exit $failed
