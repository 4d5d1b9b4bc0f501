#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Our reducer and PyTorch's on the same lists, one after the other in one run: two ranks over Gloo, one thread each.
#     bench/reducer_versus_pytorch.sh BUILD/bench/reducer_bench [ROUNDS]
# Compare the lines "beyond local and collectives"; on a busy machine those of the processor clock.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bench=$1 rounds=${2-21}
for list in resnet50 tiny mlp; do
    "$bench" --list "$list" --rounds "$rounds"
    "$bench" --print "$list" | /usr/bin/python3 "$here/pytorch_reducer.py" "$list" "$rounds"
done
