#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Records a program of four ranks, right and with each of its mistakes, and looks at what check says.
#   job.sh JOB VERIFY MODULES
job=$1 verify=$2 CDDP_BACKEND_DIR=$3
export CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
failed=0

# mistake, exit code of check, words of the report
expect() {
    rm -f "$place"/run.db*
    CDDP_RECORD=$place/run.db "$job" 4 "$1" > "$place/out" 2>&1
    "$verify" check "$place"/run.db.* > "$place/report" 2>&1
    code=$?
    if [ $code -ne "$2" ] || ! grep -q -- "$3" "$place/report"; then
        echo "$1: check ended with $code, wanted $2 and \"$3\":"
        cat "$place/out" "$place/report"
        failed=1
    else
        echo "$1: $(head -n 1 "$place/report")"
    fi
}

expect none 0 "verified"
expect clips 0 "verified"
expect scales 0 "verified"
expect silent 4 "not shown: an optimizer's step (cddp_record_optimizer_step)"
expect silent_alone 4 "not shown: an optimizer's step"
expect alone 1 "I-ONCE"
expect skips 1 "I-STEP"
expect rates_differ 1 "I-STEP"
expect changes_gradient 1 "I-CHAIN"
expect same_samples 1 "I-DATA"
expect no_end 4 "not shown: the end of the program (cddp_record_close)"
expect leaves 1 "rank 1"
expect dies 1 "rank 2"
expect crosses 1 "I-ORDER"
exit $failed
