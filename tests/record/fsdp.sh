#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A recorded program with sharded units: judged for order and liveness, never called verified.
#   fsdp.sh TRAIN_FSDP VERIFY MODULES
program=$1 verify=$2 CDDP_BACKEND_DIR=$3
export CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
CDDP_RECORD=$place/run.db "$program" 2 > "$place/out" 2>&1 || { cat "$place/out"; exit 1; }
"$verify" check "$place"/run.db.* > "$place/report" 2>&1
code=$?
if [ $code -ne 4 ] || ! grep -q "not shown: what the units of a sharded model must be" "$place/report"; then
    echo "check ended with $code, wanted 4 and what was not shown:"
    cat "$place/report"
    exit 1
fi
head -n 1 "$place/report"
