#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The figures of docs/paper.md, from sweeps: figures.sh PROGRAM FIGURES SOURCE-FOLDER [FIGURE...]
#
# Compares what this tree draws with what is committed. With CDDP_DRAW=1 in the environment it writes it there instead.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=$1 figures=$2 source=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/rows" "$work/drawn"
"$here/sweeps.sh" "$program" "$figures" "$source/scenarios/paper" "$work/rows" "$@"
"$figures" "$work/rows" "$work/drawn" "$@"
if [ "${CDDP_DRAW:-}" = 1 ]; then
    cp "$work"/drawn/*.svg "$source/docs/paper/"
    exit 0
fi
drawn=0 differing=0
for figure in "$work"/drawn/*.svg; do
    diff "$figure" "$source/docs/paper/$(basename "$figure")" || differing=$((differing + 1))
    drawn=$((drawn + 1))
done
# all of them: nothing is committed that no sweep makes
[ $# -gt 0 ] || diff -rq -x README.md "$work/drawn" "$source/docs/paper" || differing=$((differing + 1))
[ $differing -eq 0 ] || {
    echo "cmake --build ... --target figures draws them anew" >&2
    exit 1
}
echo "$drawn figures are as committed"
