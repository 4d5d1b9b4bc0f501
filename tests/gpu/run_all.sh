#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_all.sh [BUILD]: builds and runs everything that needs a GPU, on a machine with a C compiler, CUDA, NCCL and CMake,
# in less than ten minutes; nothing is downloaded. BUILD is the folder to build in (default: build/gpu of this tree).
#
# Where SQLite, toml++, xxHash or cmocka are missing the store, the scenario reader and the program are left out
# (CDDP_VERIFIER=OFF), and with them the catalogue; kernels, device, backend and the copy bench still run.
# Exit code 0: everything that ran passed, and at least the kernels ran on a GPU. 77: there is no GPU here. 1: something failed.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${1:-$here/build/gpu}
began=$SECONDS
left() { local l=$((570 - (SECONDS - began))); [ $l -gt 5 ] && echo $l || echo 5; }
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - began)); }
jobs=$(nproc 2>/dev/null || echo 4)
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)

configure() { cmake -S "$here" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCDDP_BACKEND_NCCL=ON -DBUILD_TESTING=ON "$@"; }

say "configuring in $build"
verifier=ON
if ! configure -DCDDP_VERIFIER=ON >"$build.log" 2>&1; then
    verifier=OFF
    printf 'the whole verifier cannot be built here, so it is left out: %s\n' "$(grep -m1 -iE 'could not find|not found|was not|CMake Error' "$build.log")"
    rm -rf "$build"
    if ! configure -DCDDP_VERIFIER=OFF >"$build.log" 2>&1; then
        tail -20 "$build.log"
        exit 1
    fi
fi
grep -E 'backend nccl' "$build.log"

say "building with $jobs jobs"
targets=(cuda_twin_gpu_test cuda_layers_gpu_test nccl_gpu_test gpu_copy_bench gpu_step_bench)
[ $verifier = ON ] && targets+=(cddp-verify nccl_module_test)
timeout "$(left)" cmake --build "$build" -j "$jobs" --target "${targets[@]}" >"$build.log" 2>&1 || { tail -30 "$build.log"; exit 1; }

failed=() skipped=() passed=()
# step NAME COMMAND…: runs it, keeps what it said, notes how it ended.
step() {
    local name=$1 code
    shift
    say "$name"
    timeout "$(left)" "$@"
    code=$?
    case $code in
        0) passed+=("$name") ;;
        77) skipped+=("$name") ;;
        124) failed+=("$name (time-out)") ;;
        *) failed+=("$name ($code)") ;;
    esac
}

tests=$build/tests/gpu
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
step "kernels and device beside the cpu" "$tests/cuda_twin_gpu_test"
step "layers, optimizers and trainings beside the cpu" "$tests/cuda_layers_gpu_test"
step "backend: battery, streams, failures, the reducer" "$tests/nccl_gpu_test"
if [ $verifier = ON ]; then
    "$build/bin/cddp-verify" doctor
    step "the module" "$tests/nccl_module_test"
    step "catalogue on one rank" "$here/tests/gpu/catalogue.sh" "$build/bin/cddp-verify" "$here" 1
    step "catalogue on two ranks" "$here/tests/gpu/catalogue.sh" "$build/bin/cddp-verify" "$here" 2
fi
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        for only in a_bucket orthonormalisation codes_of_8_bits the_largest; do
            step "compute-sanitizer $tool, $only" compute-sanitizer --tool $tool --error-exitcode 9 "$tests/cuda_twin_gpu_test" --only "*$only*"
        done
        step "compute-sanitizer $tool, layers" compute-sanitizer --tool $tool --error-exitcode 9 "$tests/cuda_layers_gpu_test" --only '*wait_for_nothing*'
    done
else
    skipped+=("compute-sanitizer (not installed)")
fi
step "copy bench" "$tests/gpu_copy_bench" 100
if command -v python3 >/dev/null; then
    step "beside PyTorch: host time, iteration, PowerSGD" "$here/tests/gpu/pytorch_gpu.py" "$tests/gpu_step_bench" 30
else
    skipped+=("beside PyTorch (no python3)")
fi

say "summary"
printf 'passed   %s\n' "${passed[@]}"
[ ${#skipped[@]} -eq 0 ] || printf 'skipped  %s\n' "${skipped[@]}"
[ ${#failed[@]} -eq 0 ] || printf 'FAILED   %s\n' "${failed[@]}"
[ ${#failed[@]} -eq 0 ] || exit 1
case " ${passed[*]-} " in *"kernels and device"*) exit 0 ;; *) exit 77 ;; esac
