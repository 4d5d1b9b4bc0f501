#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library and the program, built twice in two folders with names of different length, are the same bytes.
#
# usage: reproducible_test.sh SOURCE WORK
set -euo pipefail
source=$1 work=$2
fail() { echo "FAILED: $*" >&2; exit 1; }

rm -rf "$work"
mkdir -p "$work"
folders=("$work/a" "$work/another/folder/with/a/longer/name")
# What git has and what is new, without what it ignores; the folder of a package is no repository. Both are copied at once.
mkdir -p "${folders[@]}"
if git -C "$source" rev-parse >/dev/null 2>&1; then
    git -C "$source" ls-files -z --cached --others --exclude-standard | (cd "$source" && xargs -0 cp --parents -t "${folders[0]}")
else
    cp -r "$source/." "${folders[0]}"
fi
cp -r "${folders[0]}/." "${folders[1]}"
for folder in "${folders[@]}"; do
    cmake -S "$folder" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF -DCDDP_BACKEND_NCCL=OFF \
        -DCMAKE_C_COMPILER_LAUNCHER= -DCMAKE_CXX_COMPILER_LAUNCHER= >"$work/configure.log" || { tail -20 "$work/configure.log"; fail "configure"; }
    ninja -C "$folder/build" cddp cddp-verify >"$work/build.log" || { tail -20 "$work/build.log"; fail "build"; }
done
# The program, every library and every module that it opens.
count=0
while IFS= read -r file; do
    cmp "${folders[0]}/build/$file" "${folders[1]}/build/$file" || fail "$file differs between two folders"
    count=$((count + 1))
done < <(cd "${folders[0]}/build" && find . -type f \( -name '*.a' -o -name '*.so*' -o -path ./bin/cddp-verify \) | sort)
for file in bin/cddp-verify libcddp.a; do
    [ -f "${folders[0]}/build/$file" ] || fail "$file was not built"
done
[ "$count" -ge 10 ] || fail "only $count files were compared"
echo "$count files are the same bytes in both folders"
