#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a recording costs: runs of train_gpt2_ddp with and without one, in turn, and the median of the pairs.
#   cost.sh BUILD [PAIRS [RANKS]]
program=$1/train_gpt2_ddp pairs=${2:-9} ranks=${3:-1}
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
# A model of 840,000 parameters: 3.4 MB of gradients.
size="--layers 4 --heads 4 --channels 128 --vocabulary 256 --context 64 --steps 10 --quiet 1 --ranks $ranks"

# "clock processor", in milliseconds of a step
step() {
    # shellcheck disable=SC2086
    "$program" $size "$@" | awk '/a step takes/ { print $4, $7 }'
}
for batch in 1 4 8; do
    : > "$place/pairs"
    i=0
    while [ $i -lt "$pairs" ]; do
        plain=$(step --batch $((batch * ranks)))
        recorded=$(step --batch $((batch * ranks)) --record "$place/run.db")
        echo "$plain $recorded" >> "$place/pairs"
        i=$((i + 1))
    done
    for column in 1 2; do
        awk -v c=$column '{ print $c, ($(c + 2) / $c - 1) * 100 }' "$place/pairs" | sort -n -k 2 > "$place/sorted"
        name=clock
        [ $column -eq 1 ] || name=processor
        awk -v n="$pairs" -v name=$name -v tokens=$((batch * 64)) '
            { time[NR] = $1; more[NR] = $2 }
            END { m = int((n + 1) / 2)
                  printf "%4d tokens of a rank, %-9s  %8.2f ms of a step, recorded %+6.2f %% (median of %d pairs; %+.2f to %+.2f)\n", tokens, name, time[m], more[m], n, more[1], more[n] }' "$place/sorted"
    done
done
