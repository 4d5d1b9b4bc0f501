#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# live.sh SCRIPT TEST: makes the numbers again and lets the test judge them. Skips (77) without PyTorch 1.13.
set -eu
python=/usr/bin/python3
version=$($python -c 'import torch; print(torch.__version__)' 2>/dev/null) || { echo "skipped: no PyTorch"; exit 77; }
case $version in
1.13*) ;;
*) echo "skipped: PyTorch $version, the numbers are of 1.13"; exit 77 ;;
esac
made=$(mktemp)
trap 'rm -f "$made"' EXIT
PYTHONDONTWRITEBYTECODE=1 $python -W ignore "$1" > "$made"
"$2" "$made"
