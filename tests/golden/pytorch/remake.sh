#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# remake.sh SCRIPT STORED: runs a generator again and compares with what is stored. Skips (77) without PyTorch 1.13.
set -eu
python=/usr/bin/python3
version=$($python -c 'import torch; print(torch.__version__)' 2>/dev/null) || { echo "skipped: no PyTorch"; exit 77; }
case $version in
1.13*) ;;
*) echo "skipped: PyTorch $version, the numbers are of 1.13"; exit 77 ;;
esac
made=$(mktemp)
trap 'rm -f "$made"' EXIT
$python "$1" > "$made"
diff "$2" "$made" && echo "as stored"
