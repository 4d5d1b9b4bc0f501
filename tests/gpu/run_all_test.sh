#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_all_test.sh RUN_ALL: what the script does with steps that pass, fail, are skipped or were not built, shown in a tree
# of stand-ins for CMake, Python and everything that would be built. No GPU, nothing is built.
set -u
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
fail() { printf 'run_all_test.sh: %s\n%s\n' "$1" "$(cat "$scratch/said")" >&2; exit 1; }

# stand_in FILE CODE: a program that says its name and ends with a code.
stand_in() {
    mkdir -p "$(dirname "$1")"
    printf '#!/bin/sh\nexit %s\n' "$2" >"$1"
    chmod +x "$1"
}

mkdir "$scratch/path"
cat >"$scratch/path/cmake" <<'STUB'
#!/bin/sh
echo "-- backend nccl: on"
case " $* " in *" -DCDDP_VERIFIER=ON "*) exit "$VERIFIER_CODE" ;; *" --build "*) exit "$BUILD_CODE" ;; esac
exit 0
STUB
run_all=$scratch/tree/tests/gpu/run_all.sh
mkdir -p "$(dirname "$run_all")"
cp "$1" "$run_all"
chmod +x "$run_all"
stand_in "$scratch/tree/tests/gpu/catalogue.sh" 0
stand_in "$scratch/tree/tests/gpu/pytorch_gpu.py" 77
stand_in "$scratch/path/python3" 0
stand_in "$scratch/path/nvidia-smi" 0
chmod +x "$scratch/path/cmake"
unset CDPATH
export PATH="$scratch/path:/usr/bin:/bin"
export VERIFIER_CODE=0 BUILD_CODE=0

# run WANTED: makes programs out of the codes in twin, layers, backend, and runs the script over them.
twin=0 layers=0 backend=0 program=0
run() {
    local build=$scratch/build code
    rm -rf "$build"
    [ "$twin" = none ] || stand_in "$build/tests/gpu/cuda_twin_gpu_test" "$twin"
    stand_in "$build/tests/gpu/cuda_layers_gpu_test" "$layers"
    stand_in "$build/tests/gpu/nccl_gpu_test" "$backend"
    stand_in "$build/tests/gpu/fsdp_gpu_test" "$backend"
    stand_in "$build/tests/gpu/nccl_module_test" 0
    stand_in "$build/tests/gpu/gpu_copy_bench" 0
    stand_in "$build/tests/gpu/gpu_step_bench" 0
    stand_in "$build/bin/cddp-verify" "$program"
    : >"$scratch/said" # appended to: steps side by side do not write over each other
    "$run_all" "$build" >>"$scratch/said" 2>&1
    code=$?
    [ $code = "$1" ] || fail "exit code $code, wanted $1"
}
says() { grep -qF -- "$1" "$scratch/said" || fail "it does not say '$1'"; }
silent() { ! grep -qF -- "$1" "$scratch/said" || fail "it says '$1'"; }

run 0
says '-- passed: kernels and device beside the cpu'
says '-- passed: catalogue on 2 ranks'
says '-- skipped: beside PyTorch'
silent FAILED

layers=9
run 1
says '-- FAILED: layers, optimizers and trainings beside the cpu, exit code 9'
says '-- passed: backend: battery, streams, failures, the reducer'
says 'FAILED   layers, optimizers and trainings beside the cpu (9)'
layers=0

program=3
run 1
says '-- FAILED: doctor, exit code 3'
says '-- passed: copy bench'
program=0

twin=77 layers=77 backend=77
run 77
silent FAILED
twin=none layers=0 backend=0
BUILD_CODE=2 run 1
says '-- FAILED: building, exit code 2'
says '-- FAILED: kernels and device beside the cpu, exit code 127'
says '-- passed: layers, optimizers and trainings beside the cpu'
twin=0

VERIFIER_CODE=1 run 0
says 'the whole verifier cannot be built here'
silent catalogue
echo "passes, fails, skips and what is not built are distinguished"
