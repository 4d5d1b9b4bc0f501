#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh SOURCE BUILD PROGRAM SECONDS [FUZZER…]: builds the fuzzers with Clang, address and undefined-behaviour
# sanitizers, runs each over its corpus and then SECONDS long with inputs it invents. An input that breaks one stays in
# BUILD. PROGRAM is a cddp-verify: it records the stores that the store fuzzer starts from, besides the corpus.
set -eu
source=$1 build=$2 program=$3 seconds=$4
shift 4
longest=524288 # bytes of an input; a seed beyond it would be cut, and a cut store never opens
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
# seeds FUZZER: makes them, in BUILD/seeds/FUZZER: for scenarios the whole catalogue, for stores a few runs of it.
seeds() {
    local folder=$build/seeds/$1 scenario name
    rm -rf "$folder"
    mkdir -p "$folder"
    case $1 in
    scenario)
        while read -r scenario; do
            name=${scenario#"$source"/scenarios/}
            cp "$scenario" "$folder/${name//\//-}"
        done < <(find "$source/scenarios" -name '*.toml')
        ;;
    store)
        for scenario in groups/overlapping join/shadowed_rebuild faults/rank_dies order/bucket_caps_differ \
            streams/launched_too_early optim/overflow_skips_everywhere hooks/powersgd_with_accumulation \
            buffers/rank_one_changes_its_own data/epochs_with_shuffle rendezvous/groups_meet_one_by_one; do
            (cd "$source" && "$program" "scenarios/$scenario.toml" --trace "$folder/${scenario##*/}.db" > /dev/null)
        done
        ;;
    esac
}
# dictionary: the words of the scenario language, each a line of libFuzzer's: tables, keys, what `one of` and the
# registries name, and what TOML is written with.
dictionary() {
    local registry
    {
        "$program" list keys | awk '/^[a-z]/ {
            path = $1; gsub(/\[\]/, "", path); print path
            table = path
            if (sub(/\.[^.]*$/, "", table)) {
                print substr(path, length(table) + 2); print "[" table "]"; print "[[" table "]]"; print "[rank." table "]"
            }
        }'
        "$program" list keys | tr -s ' \n' '  ' | grep -oE 'one of [^ ,;]+' | cut -c8- | tr '|' '\n'
        for registry in hooks backends checks models optimizers faults algorithms links choosers; do
            "$program" list "$registry" | awk '/^[A-Za-z]/ || /^ +[a-z_0-9]+=/ { print $1 }'
        done
        printf '%s\n' '[[rank]]' 'ranks' '#--set ' '@0-1=' '0-3' '1%2' true false nan -inf 1e308 0x7f 0b1 9223372036854775807 \
            -9223372036854775808 18446744073709551615 1979-05-27T07:32:00Z "'''" '"""' ' = ' '[ ]' '{ }' '\uD800' '\u0000'
    } | sed '/^$/d' | sed 's/\\/\\\\/g; s/"/\\"/g; s/.*/"&"/' | LC_ALL=C sort -u
    printf '%s\n' '"\x0a"' '"\x0d\x0a"' '"\xef\xbb\xbf"' '"\xc2\x85"' '"\xe2\x80\xa8"'
}
# An input may take 300 s by the clock, which is what libFuzzer looks at: the slowest take about a second, but on a
# machine that others keep busy the same ones have taken 40. Memory: the sanitizer keeps 256 MiB of what was freed, and
# no fuzzer was ever above 700 MiB in all.
for name in $fuzzers; do
    seeds "$name"
    options=(-seed=1 -timeout=300 -rss_limit_mb=2048 -max_len=$longest -print_final_stats=1 -max_total_time="$seconds")
    if [ "$name" = scenario ]; then
        dictionary > "$build/scenario.dictionary"
        options+=(-dict=scenario.dictionary)
    fi
    grown="$build/grown/$name"
    mkdir -p "$grown"
    [ -z "$(find "$source/tests/fuzz/corpus/$name" "$build/seeds/$name" -type f -size +${longest}c)" ] || { echo "a seed of $name is longer than $longest bytes"; exit 1; }
    echo "== $name: corpus, then $seconds s"
    (cd "$build" && "fuzz/${name}_fuzz" "${options[@]}" "$grown" "$source/tests/fuzz/corpus/$name" "$build/seeds/$name" \
        > "$build/$name.log" 2>&1) || { tail -30 "$build/$name.log"; exit 1; }
    grep -E 'number_of_executed_units|average_exec|slowest_unit|peak_rss' "$build/$name.log"
done
echo "fuzz: nothing broke"
