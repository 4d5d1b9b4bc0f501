#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_all.sh [--built] [--seconds N] [BUILD]: builds and runs everything that needs a GPU, on a machine with a C compiler,
# CUDA, NCCL and CMake, in less than ten minutes; nothing is downloaded. BUILD is the folder to build in (default: build/gpu
# of this tree).
# With --built nothing is built: BUILD was brought along from a machine without a GPU (bin, lib and tests/gpu will do).
# With --seconds it takes at most N seconds, and steps that did not fit fail by name.
#
# Where SQLite, toml++, xxHash or cmocka are missing the store, the scenario reader and the program are left out
# (CDDP_VERIFIER=OFF), and with them the catalogue; kernels, device, backend and the copy bench still run.
# What is timed, or measures memory, runs first and alone; then kernels and backend, the sanitizer and the catalogue run side by side.
# Every step says how it ended; what fails or does not build stops nothing else. Exit code 0: everything that ran passed,
# and at least the kernels ran on a GPU. 77: there is no GPU here. 1: something failed.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
built=no seconds=570
while [ $# -gt 0 ]; do
    case $1 in
        --built) built=yes ;;
        --seconds) seconds=${2-}; shift ;;
        -*) sed -n '3,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
        *) break ;;
    esac
    shift
done
case $seconds in *[!0-9]* | "") echo "run_all.sh: --seconds wants a number, not '$seconds'" >&2; exit 2 ;; esac
build=${1:-$here/build/gpu}
began=$SECONDS
left() { local l=$((seconds - (SECONDS - began))); [ $l -gt 5 ] && echo $l || echo 5; }
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - began)); }
jobs=$(nproc 2>/dev/null || echo 4)
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

# ended NAME CODE: notes how a step ended, and says it.
ended() {
    case $2 in
        0) echo "$1" >>"$scratch/passed"; printf -- '-- passed: %s\n' "$1" ;;
        77) echo "$1" >>"$scratch/skipped"; printf -- '-- skipped: %s\n' "$1" ;;
        124) echo "$1 (time-out)" >>"$scratch/failed"; printf -- '-- FAILED: %s ran out of time\n' "$1" ;;
        *) echo "$1 ($2)" >>"$scratch/failed"; printf -- '-- FAILED: %s, exit code %d\n' "$1" "$2" ;;
    esac
}

# step LIMIT NAME COMMAND…: runs it for at most LIMIT seconds, and never past the ten minutes of all. What it prints
# comes in one piece, when it ends.
step() {
    local limit=$1 name=$2 rest code said
    shift 2
    rest=$(left)
    said=$(mktemp -p "$scratch")
    timeout -k 5 $((limit < rest ? limit : rest)) "$@" >"$said" 2>&1 </dev/null
    code=$?
    { say "$name"; cat "$said"; ended "$name" $code; } >"$said.all" 2>&1
    cat "$said.all"
}

has() { [ -s "$scratch/$1" ]; }

summary() {
    say "summary"
    ! has passed || sed 's/^/passed   /' "$scratch/passed"
    ! has skipped || sed 's/^/skipped  /' "$scratch/skipped"
    if has failed; then
        sed 's/^/FAILED   /' "$scratch/failed"
        exit 1
    fi
    ! grep -q "kernels and device" "$scratch/passed" 2>/dev/null || exit 0
    exit 77
}

configure() { cmake -S "$here" -B "$build" ${generator[@]+"${generator[@]}"} -DCMAKE_BUILD_TYPE=Release -DCDDP_BACKEND_NCCL=ON -DBUILD_TESTING=ON "$@"; }

verifier=ON
if [ $built = yes ]; then
    [ -x "$build/bin/cddp-verify" ] || verifier=OFF
else
    say "configuring in $build"
    mkdir -p "$(dirname "$build")" || exit 1
    if ! configure -DCDDP_VERIFIER=ON >"$build.log" 2>&1; then
        verifier=OFF
        printf 'the whole verifier cannot be built here, so it is left out: %s\n' "$(grep -m1 -iE 'could not find|not found|was not|CMake Error' "$build.log")"
        rm -rf "$build/CMakeCache.txt" "$build/CMakeFiles"
        if ! configure -DCDDP_VERIFIER=OFF >"$build.log" 2>&1; then
            tail -20 "$build.log"
            ended configuring 1
            summary
        fi
    fi
    grep -E 'backend nccl' "$build.log"

    say "building with $jobs jobs"
    targets=(cuda_twin_gpu_test cuda_layers_gpu_test nccl_gpu_test fsdp_gpu_test gpu_copy_bench gpu_step_bench)
    [ $verifier = ON ] && targets+=(cddp-verify nccl_module_test)
    keep_going=-k
    [ ${#generator[@]} -eq 0 ] || keep_going="-k 0"
    # shellcheck disable=SC2086 # two words for one of the generators
    timeout "$(left)" cmake --build "$build" -j "$jobs" --target "${targets[@]}" -- $keep_going >"$build.log" 2>&1
    code=$?
    [ $code -eq 0 ] || tail -30 "$build.log"
    ended building $code
fi

tests=$build/tests/gpu
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
step 30 "copy bench" "$tests/gpu_copy_bench" 100
if command -v python3 >/dev/null; then
    step 90 "beside PyTorch: host time, iteration, PowerSGD" "$here/tests/gpu/pytorch_gpu.py" "$tests/gpu_step_bench" 30
else
    echo "beside PyTorch (no python3)" >>"$scratch/skipped"
fi
step 120 "sharded training: values, memory, overlap, waits" "$tests/fsdp_gpu_test"

kernels_and_backend() {
    step 120 "kernels and device beside the cpu" "$tests/cuda_twin_gpu_test"
    step 120 "layers, optimizers and trainings beside the cpu" "$tests/cuda_layers_gpu_test"
    step 200 "backend: battery, streams, failures, the reducer" "$tests/nccl_gpu_test"
}

sanitizer() {
    local tool only
    if ! command -v compute-sanitizer >/dev/null; then
        echo "compute-sanitizer (not installed)" >>"$scratch/skipped"
        return
    fi
    for tool in memcheck racecheck; do
        for only in a_bucket orthonormalisation codes_of_8_bits the_largest; do
            step 120 "compute-sanitizer $tool, $only" compute-sanitizer --tool $tool --error-exitcode 9 "$tests/cuda_twin_gpu_test" --only "*$only*"
        done
        step 120 "compute-sanitizer $tool, layers" compute-sanitizer --tool $tool --error-exitcode 9 "$tests/cuda_layers_gpu_test" --only '*wait_for_nothing*'
    done
}

catalogue() {
    local ranks
    step 60 "doctor" "$build/bin/cddp-verify" doctor --color never
    step 60 "the module" "$tests/nccl_module_test"
    for ranks in 2 4 1; do
        step 400 "catalogue on $ranks ranks" "$here/tests/gpu/catalogue.sh" "$build/bin/cddp-verify" "$here" $ranks
    done
}

kernels_and_backend &
sanitizer &
[ $verifier = OFF ] || catalogue &
wait
summary
