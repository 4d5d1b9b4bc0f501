#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One ring all-reduce in this simulator and in SimGrid's SMPI, in one run: CPU seconds of each, and their ratio.
#
#     bench/smpi_compare.sh SIM_BENCH [RANKS…]      SIM_BENCH: build/release/bench/sim_bench; 16 64 256 ranks
#
# Without SMPI it says so and ends with 3. SMPI simulates the network in flow mode and really runs the program; ours walks
# the same messages as a static graph (model) and one by one over shared ports (messages).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 1 ] && [ -x "$1" ] || { echo "usage: smpi_compare.sh SIM_BENCH [RANKS…]" >&2; exit 2; }
bench=$1
shift
[ $# -gt 0 ] || set -- 16 64 256
for tool in smpicc smpirun; do
    command -v "$tool" >/dev/null || { echo "smpi_compare: $tool is missing; on Debian and Ubuntu: apt-get install libsimgrid-dev" >&2; exit 3; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
smpicc -O2 "$here/smpi_ring.c" -o "$work/ring" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
bytes=$((100 * 1024 * 1024))

printf '%6s  %22s  %22s  %22s\n' ranks "SMPI, CPU s" "model, CPU s (times)" "messages, CPU s (times)"
for ranks; do
    cat >"$work/platform.xml" <<XML
<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><cluster id="c" prefix="h" suffix="" radical="0-$((ranks - 1))" speed="1Gf" bw="12.5GBps" lat="5us"/></platform>
XML
    seq -f 'h%g' 0 $((ranks - 1)) >"$work/hosts"
    TIMEFORMAT='%U %S'
    spent=$({ time smpirun -np "$ranks" -platform "$work/platform.xml" -hostfile "$work/hosts" \
        --cfg=smpi/simulate-computation:no "$work/ring" "$bytes" >"$work/said" 2>"$work/log"; } 2>&1) || { cat "$work/log" >&2; exit 1; }
    "$bench" ring "$ranks" | grep -E "^[0-9.]+$" >"$work/ours"
    awk -v spent="$spent" -v ranks="$ranks" -v virtual="$(sed -n 's/.*simulated //p' "$work/said" | head -1)" '
        BEGIN { split(spent, s, " "); smpi = s[1] + s[2] }
        { ms[NR] = $(NF); }
        END { printf "%6d  %22.3f  %12.5f (%7.1f)  %12.5f (%7.1f)   SMPI simulates %s\n", ranks, smpi, ms[1] / 1e3, smpi * 1e3 / ms[1],
              ms[2] / 1e3, smpi * 1e3 / ms[2], virtual }' "$work/ours"
done
