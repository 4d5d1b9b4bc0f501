#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The example of docs/howto/record.md is verified: it says zero_grad first, and drops its gradients between the forward
# and the backward.
#   example.sh TRAIN_DDP VERIFY MODULES
program=$1 verify=$2 CDDP_BACKEND_DIR=$3
export CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
CDDP_RECORD=$place/run.db "$program" 2 > "$place/out" 2>&1 || { cat "$place/out"; exit 1; }
"$verify" check "$place"/run.db.* > "$place/report" 2>&1 || { cat "$place/report"; exit 1; }
head -n 1 "$place/report"
# A process alone may name another backend than self, and meets nobody; half of a launcher's variables is an error.
CDDP_BACKEND=gloo "$program" > "$place/out" 2>&1 || { echo "alone over gloo"; cat "$place/out"; exit 1; }
RANK=1 "$program" > "$place/out" 2>&1 && { echo "a rank of a world that nobody names"; exit 1; }
grep -q "RANK=1 is set, and WORLD_SIZE is not" "$place/out" || { cat "$place/out"; exit 1; }
