#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A host that loads the library by dlmopen is recorded, and finds the backends beside it.
#   namespace.sh PROGRAM LIBRARY VERIFY
program=$1 library=$2 verify=$3
unset CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
CDDP_RECORD=$place/run.db "$program" "$library" || { echo "the program ended with $?"; exit 1; }
"$verify" check "$place/run.db" > "$place/report" 2>&1 && grep -q "reductions made the sum of the recorded gradients" "$place/report" && exit 0
cat "$place/report"
exit 1
