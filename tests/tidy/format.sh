#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# format.sh FOLDER: every C, C++ and CUDA file below FOLDER has the layout of .clang-format. Only version 14
# decides, since versions differ; without it the test is skipped (77).
set -euo pipefail
cd "$1"
for program in clang-format-14 clang-format ""; do
    case $("$program" --version 2>/dev/null || true) in
        *"version 14."*) break ;;
    esac
done
if [ -z "$program" ]; then
    echo "skipped: clang-format 14 is not installed (package clang-format-14)"
    exit 77
fi
list=$(mktemp)
trap 'rm -f "$list"' EXIT
find . \( -name .git -o -path './build*' \) -prune -o -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print0 >"$list"
[ -s "$list" ] || { echo "no source file below $1"; exit 1; }
if ! xargs -0 -n 50 -P 2 "$program" --dry-run -Werror <"$list"; then
    echo "to mend it: $program -i FILE"
    exit 1
fi
echo "$(tr -cd '\0' <"$list" | wc -c) files are formatted"
