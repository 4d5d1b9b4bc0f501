#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shortage.sh PROGRAM: a run for which memory, processes or files do not suffice is exit 3 and says
# what ran out; it is never a finding. With enough of them it is verified.
set -u
program=$1
failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# try WHAT BACKEND LIMIT…: exit 3 or 0
try() {
    what=$1 backend=$2
    shift 2
    (ulimit "$@" && timeout 60 "$program" run --backend "$backend" -n 4 scenarios/models/mlp_two_ranks.toml) >"$out" 2>&1 </dev/null
    code=$?
    if [ $code -ne 3 ] && [ $code -ne 0 ]; then
        echo "FAIL: $what on $backend ends with $code:"
        head -8 "$out"
        failed=1
    fi
}
for files in 12 16 20 24 28; do try "$files files" gloo -n $files; done
for memory in 90000 110000 130000; do try "$memory KiB" gloo -v $memory; done
try "600000 KiB" sim -v 600000
[ $failed -eq 0 ] && echo "shortage: exit 3 or verified"
exit $failed
