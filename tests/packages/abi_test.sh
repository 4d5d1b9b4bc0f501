#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The interface of libcddp.so against the one that packaging/abi keeps. What was removed or changed fails; what was
# added is shown. CDDP_UPDATE_ABI=1 writes the file anew: for a release that may change the interface.
#
# usage: abi_test.sh SOURCE WORK CC
set -euo pipefail
source=$1 work=$2 cc=$3
source=$(cd "$source" && pwd)
kept=$source/packaging/abi/libcddp.so.abi
if ! command -v abidw >/dev/null || ! command -v abidiff >/dev/null; then
    echo "skipped: abigail-tools is not installed"
    exit 77
fi
mkdir -p "$work"
# Types are in the debugging information alone.
cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_C_COMPILER="$cc" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O0 -g" \
    -DBUILD_TESTING=OFF -DCDDP_VERIFIER=OFF -DCDDP_BACKEND_NCCL=OFF -DCDDP_BACKEND_MPI_OPENMPI=OFF -DCDDP_BACKEND_MPI_MPICH=OFF -DCDDP_BACKEND_GLOO=OFF >"$work/configure.log"
cmake --build "$work/build" --target cddp_shared >"$work/build.log" 2>&1 || { tail -20 "$work/build.log"; exit 1; }
# Paths are those of the tree, whatever folder it is built in.
library=$(echo "$work"/build/lib*/libcddp.so "$work"/build/lib*/*/libcddp.so | tr ' ' '\n' | grep -v '\*' | head -1)
dump() { abidw --headers-dir "$source/include" --drop-private-types --exported-interfaces-only --no-corpus-path --no-comp-dir-path --no-show-locs "$library" | sed "s|$source/||g"; }
if [ -n "${CDDP_UPDATE_ABI-}" ]; then
    dump >"$kept"
    echo "written: $kept"
    exit 0
fi
dump >"$work/now.abi"
# What a struct holds that the headers only name is nobody's business.
grep -hoE '^typedef struct [a-z_0-9]+ [a-z_0-9]+;' "$source"/include/cddp/*.h | awk '{ print $3 }' | tr -d ';' | sort -u | while read -r name; do
    grep -qE "^(typedef )?struct $name \{" "$source"/include/cddp/*.h || printf '[suppress_type]\n  type_kind = struct\n  name = %s\n\n' "$name"
done >"$work/opaque"
code=0
abidiff --suppressions "$work/opaque" "$kept" "$work/now.abi" >"$work/difference" || code=$?
cat "$work/difference"
# Bit 3 (8): incompatible. Bit 2 (4) alone: something was added, or changed in a way that needs a look.
if [ $((code & 11)) -ne 0 ] || grep -qE '^ *[1-9][0-9]* Removed|[1-9][0-9]* Changed' "$work/difference"; then
    echo "the interface of libcddp.so changed; if that is meant: CDDP_UPDATE_ABI=1 $0 …, and a line in CHANGELOG.md"
    exit 1
fi
