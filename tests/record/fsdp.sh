#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Recorded programs with sharded units: judged for order, steps, samples and liveness, never called verified. A right one is
# never accused, and mistakes are found, by the library at once or by check.
#   fsdp.sh TRAIN_FSDP VERIFY MODULES SHARDED
program=$1 verify=$2 CDDP_BACKEND_DIR=$3 sharded=$4
export CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
failed=0

# Exit code of check, words of the program or of the report; the program and its arguments.
expect() {
    wanted=$1 words=$2
    shift 2
    rm -f "$place"/run.db*
    CDDP_RECORD=$place/run.db "$@" > "$place/out" 2>&1
    "$verify" check "$place"/run.db.* > "$place/report" 2>&1
    code=$?
    if [ $code -ne "$wanted" ] || ! grep -q -- "$words" "$place/out" "$place/report"; then
        echo "$*: check ended with $code, wanted $wanted and \"$words\":"
        cat "$place/out" "$place/report"
        failed=1
    else
        echo "$*: $(head -n 1 "$place/report")"
    fi
}

units="not shown: what the units of a sharded model must be"
expect 4 "$units" "$program" 2
expect 4 "$units" "$sharded" 2 none
# The library refuses at once, in words.
never="the backward of 'b' begins, and no forward since the last backward had an output that requires a gradient"
expect 1 "$never" "$sharded" 2 forgets_forward
expect 1 "$never" "$sharded" 2 forgets_forward_end
expect 1 "the forward of 'a' begins, and the one before has not ended" "$sharded" 2 forward_twice
expect 1 "parameter 0 is not there in its backward" "$sharded" 2 forgets_backward
expect 1 "backward 2 of this iteration is '(root)', and that of the first one was 'a'" "$sharded" 2 forgets_backward_end
expect 1 "the backward of 'b' ends, and has not begun" "$sharded" 2 backward_end_twice
# What the library cannot know is found.
expect 1 "I-ONCE .*the optimizer passes over the gradient of" "$sharded" 2 window_stays_open
grep -q "found     its unit was not reduced" "$place/report" || { echo "the reason:"; cat "$place/report"; failed=1; }
expect 1 "I-STEP .*disagree on the learning rate" "$sharded" 2 rates_differ
expect 1 "I-STEP .*disagree on whether to skip the step" "$sharded" 2 skips
exit $failed
