#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dry.sh STEP_BENCH_OVER_THE_FAKES: what can be said about the comparison with PyTorch without a
# GPU. The script compiles and makes the lists of shapes. step_bench trains them over the fake
# runtime, with and without a hook, and refuses a line that is not a shape. Without PyTorch, or
# without a GPU, the script only says so. The numbers mean nothing.
set -eu
bench=$1
script=$(dirname "$0")/pytorch_gpu.py
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
fail() { echo "dry.sh: $*" >&2; exit 1; }
python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$script"
[ "$(python3 "$script" --shapes resnet50 | wc -l)" = 161 ] || fail "ResNet-50 has 161 tensors"
[ "$(python3 "$script" --shapes gpt2 | wc -l)" = 148 ] || fail "GPT-2 has 148 tensors"
for hook in "- " "powersgd matrix_approximation_rank=2,start_powerSGD_iter=2" "topk ratio=0.1" "quantize_per_tensor "; do
    said=$(python3 "$script" --shapes mlp | "$bench" "${hook%% *}" "${hook#* }" 3)
    echo "$hook: $said"
    echo "$said" | grep -Eqx '[0-9.]+ [0-9.]+ [0-9.]+ [0-9.]+' || fail "four numbers were wanted of $hook"
done
code=0; echo "12 -3" | "$bench" - "" 3 2>/dev/null || code=$?
[ $code = 2 ] || fail "a size below 1 is refused with 2, not $code"
code=0; python3 "$script" --shapes mlp | "$bench" nonsense "" 3 2>/dev/null || code=$?
[ $code = 1 ] || fail "a hook that is not there ends with 1, not $code"
if [ ! -e /dev/nvidiactl ]; then
    code=0; said=$(python3 "$script" "$bench" 1) || code=$?
    [ $code = 77 ] || fail "without a GPU the script skips with 77, not $code: $said"
    case $said in "skipped: "*) echo "$said" ;; *) fail "the script says '$said'" ;; esac
fi
