#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh SOURCE BUILD PROGRAM SECONDS [FUZZER…]: builds the fuzzers with Clang, address and undefined-behaviour
# sanitizers, runs each over its corpus and then SECONDS long with inputs it invents. An input that breaks one stays in
# BUILD. PROGRAM is a cddp-verify: it records the stores that the store fuzzer starts from, besides the corpus.
set -eu
source=$1 build=$2 program=$3 seconds=$4
shift 4
longest=262144 # bytes of an input; a seed beyond it would be cut, and a cut store never opens
fuzzers=${*:-scenario schedule store rendezvous spec}
command -v clang > /dev/null && command -v clang++ > /dev/null || { echo "skipped: no clang"; exit 77; }
printf 'int LLVMFuzzerTestOneInput(const char *p, unsigned long n) { (void)p; (void)n; return 0; }\n' > "${TMPDIR:-/tmp}/cddp-probe-$$.c"
if ! clang -fsanitize=fuzzer "${TMPDIR:-/tmp}/cddp-probe-$$.c" -o "${TMPDIR:-/tmp}/cddp-probe-$$" 2> /dev/null; then
    rm -f "${TMPDIR:-/tmp}/cddp-probe-$$"*
    echo "skipped: this clang has no libFuzzer (Debian package libclang-rt-14-dev)"
    exit 77
fi
rm -f "${TMPDIR:-/tmp}/cddp-probe-$$"*
generator=()
command -v ninja > /dev/null && generator=(-G Ninja)
cmake "${generator[@]}" -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
    -DCDDP_FUZZ=ON -DCDDP_SANITIZE=address,undefined,fuzzer-no-link > "$build.configure" 2>&1 || { cat "$build.configure"; exit 1; }
for name in $fuzzers; do
    cmake --build "$build" --target "${name}_fuzz" > "$build.make" 2>&1 || { tail -40 "$build.make"; exit 1; }
done
# seeds FUZZER: makes them, in BUILD/seeds/FUZZER.
seeds() {
    local folder=$build/seeds/$1 scenario
    mkdir -p "$folder"
    [ "$1" = store ] || return 0
    for scenario in groups/overlapping join/shadowed_rebuild faults/rank_dies order/bucket_caps_differ \
        streams/launched_too_early optim/overflow_skips_everywhere; do
        rm -f "$folder/${scenario##*/}.db"
        (cd "$source" && "$program" "scenarios/$scenario.toml" --trace "$folder/${scenario##*/}.db" > /dev/null)
    done
}
for name in $fuzzers; do
    seeds "$name"
    grown="$build/grown/$name"
    mkdir -p "$grown"
    [ -z "$(find "$source/tests/fuzz/corpus/$name" "$build/seeds/$name" -type f -size +${longest}c)" ] || { echo "a seed of $name is longer than $longest bytes"; exit 1; }
    echo "== $name: corpus, then $seconds s"
    (cd "$build" && "fuzz/${name}_fuzz" -seed=1 -timeout=20 -rss_limit_mb=2048 -max_len=$longest -print_final_stats=1 \
        -max_total_time="$seconds" "$grown" "$source/tests/fuzz/corpus/$name" "$build/seeds/$name" > "$build/$name.log" 2>&1) ||
        { tail -30 "$build/$name.log"; exit 1; }
    grep -E 'number_of_executed_units|average_exec' "$build/$name.log"
done
echo "fuzz: nothing broke"
