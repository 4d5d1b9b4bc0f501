#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The figures of docs/paper.md are those that this tree draws: figures.sh PROGRAM FOLDER
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" "$work"
diff -r -x README.md "$work" "$2" && echo "all figures are as committed"
