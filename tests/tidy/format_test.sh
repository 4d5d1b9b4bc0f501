#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# format.sh reports a file that is not formatted, accepts it afterwards, and skips without clang-format 14.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/../../.clang-format" "$work"

# wants CODE WORDS COMMAND…
wants() {
    local code=$1 words=$2 said got=0
    shift 2
    said=$("$@" 2>&1) || got=$?
    [ "$got" = "$code" ] && [[ $said == *"$words"* ]] && return
    echo "exit $got instead of $code, or not \"$words\": $said"
    exit 1
}

mkdir "$work/bin" "$work/empty" "$work/build"
for version in 13.0.1 15.0.7; do
    printf '#!/bin/sh\necho "clang-format version %s"\n' $version >"$work/bin/clang-format"
    chmod +x "$work/bin/clang-format"
    wants 77 "clang-format 14 is not installed" env PATH="$work/bin" /bin/bash "$here/format.sh" "$work"
done
"$here/format.sh" "$here" >/dev/null
[ $? != 77 ] || { echo "skipped: clang-format 14 is not installed"; exit 77; }
wants 1 "no source file" "$here/format.sh" "$work/empty"
printf 'int  a;\n' >"$work/build/out.c" # what a build made is nobody's source
printf 'int  a;\n' >"$work/a.c"
wants 1 "a.c:1" "$here/format.sh" "$work"
printf 'int a;\n' >"$work/a.c"
wants 0 "1 files are formatted" "$here/format.sh" "$work"
