#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Recorded programs with sharded units: judged for order, steps, samples and liveness, never called verified. A right one is
# never accused, and mistakes are found, by the library at once or by check.
#   fsdp.sh TRAIN_FSDP VERIFY MODULES SHARDED
program=$1 verify=$2 CDDP_BACKEND_DIR=$3 sharded=$4
export CDDP_BACKEND_DIR
. "${0%/*}/expect.sh"
# "example": the one that the tree ships, right as it is
record() {
    if [ "$1" = example ]; then
        CDDP_RECORD=$place/run.db "$program" 2
    else
        CDDP_RECORD=$place/run.db "$sharded" 2 "$1"
    fi
}

units="not shown: what the units of a sharded model must be"
expect example 4 "$units"
expect none 4 "$units"
# The library refuses at once, in words.
never="the backward of 'b' begins, and no forward since the last backward had an output that requires a gradient"
expect forgets_forward 1 "$never"
expect forgets_forward_end 1 "$never"
expect forward_twice 1 "the forward of 'a' begins, and the one before has not ended"
expect forgets_backward 1 "parameter 0 is not there in its backward"
expect forgets_backward_end 1 "backward 2 of this iteration is '(root)', and that of the first one was 'a'"
expect backward_end_twice 1 "the backward of 'b' ends, and has not begun"
# What the library cannot know is found.
expect window_stays_open 1 "I-ONCE .*the optimizer passes over the gradient of"
grep -q "found     its unit was not reduced" "$place/report" || { echo "the reason:"; cat "$place/report"; failed=1; }
expect rates_differ 1 "I-STEP .*disagree on the learning rate"
expect skips 1 "I-STEP .*disagree on whether to skip the step"
exit $failed
