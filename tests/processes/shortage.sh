#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shortage.sh PROGRAM [MPI…]: a run for which memory, processes or files do not suffice is exit 3 and says
# what ran out; it is never a finding. With enough of them it is verified.
set -u
program=$1
shift
mpis=$*
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# try WHAT BACKEND LIMIT…: exit 3 or 0
try() {
    what=$1 backend=$2
    shift 2
    judge "$what on $backend" "run --backend $backend -n 4 scenarios/models/mlp_two_ranks.toml" "$@"
}

# card WHAT BACKEND LIMIT…: the same of a report card
card() {
    what=$1 backend=$2
    shift 2
    judge "the card: $what on $backend" "backend-conformance $backend -n 2" "$@"
}

judge() {
    what=$1 command=$2
    shift 2
    # shellcheck disable=SC2086
    (ulimit "$@" && timeout 60 "$program" $command) >"$out" 2>&1 </dev/null
    code=$?
    if [ $code -ne 3 ] && [ $code -ne 0 ]; then
        echo "FAIL: $what ends with $code:"
        head -8 "$out"
        failed=1
    fi
}
for files in 12 16 20 24 28; do try "$files files" gloo -n $files; done
for memory in 90000 110000 130000; do try "$memory KiB" gloo -v $memory; done
try "600000 KiB" sim -v 600000
card "16 files" gloo -n 16
# mpirun, and MPI in the ranks, end by themselves where they get nothing
for backend in $mpis; do
    for files in 16 20; do try "$files files" $backend -n $files; done
    card "16 files" $backend -n 16
    for memory in 60000 100000 120000; do try "$memory KiB" $backend -v $memory; done
done
[ $failed -eq 0 ] && echo "shortage: exit 3 or verified"
exit $failed
