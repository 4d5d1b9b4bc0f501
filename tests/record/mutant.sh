#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program with a mistake in the recorder that it is linked with: check must notice, in these words.
#   mutant.sh PROGRAM VERIFY MODULES MISTAKE CODE WORDS
# job.sh and passes.sh say what check prints of the same MISTAKE with the right recorder.
job=$1 verify=$2 CDDP_BACKEND_DIR=$3
export CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
CDDP_RECORD=$place/run.db "$job" 4 "$4" > "$place/out" 2>&1
"$verify" check "$place"/run.db.* > "$place/report" 2>&1
code=$?
cat "$place/report"
[ $code -eq "$5" ] && grep -q -- "$6" "$place/report" && exit 0
echo "check ended with $code, wanted $5 and \"$6\""
exit 1
