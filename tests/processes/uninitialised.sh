#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# uninitialised.sh PROGRAM: under valgrind two ranks of Gloo write no byte that nobody has set, neither
# to the rendezvous nor to each other. Skipped (77) without valgrind.
set -u
program=$1
command -v valgrind >/dev/null || { echo "valgrind is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
timeout 200 valgrind -q --trace-children=yes --leak-check=no "$program" run --backend gloo -n 2 scenarios/models/mlp_two_ranks.toml \
    >"$work/out" 2>&1 </dev/null || { tail -5 "$work/out"; echo "FAIL: the run is not verified"; exit 1; }
if grep -q 'ninitialised' "$work/out"; then
    grep -A8 'ninitialised' "$work/out" | head -20
    echo "FAIL: bytes that nobody has set"
    exit 1
fi
echo "uninitialised: none"
