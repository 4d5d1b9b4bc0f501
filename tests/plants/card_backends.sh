#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# card_backends.sh PROGRAM PLUGIN: every broken backend is named for the right reason, the clean one passes.
set -u
program=$1 plugin=$2
failed=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT
expect() { # NAME EXIT WORDS BLAMED OPTION…
    "$program" backend-conformance "$1" -n 3 --color never --plugin "$plugin" "${@:5}" > "$output" 2>&1
    code=$?
    # Reports are folded; words are looked for across line ends.
    if [ "$code" -ne "$2" ] || ! tr -s ' \n' ' ' < "$output" | grep -qE -- "$3"; then
        echo "FAILED $1: exit $code instead of $2, or not the words '$3':"
        tail -12 "$output"
        failed=1
    fi
    # A defect is in one operation: no other one may be blamed.
    blamed=$(grep -o '^  FAILED *[a-z_]*' "$output" | awk '{print $2}' | sort -u | tr '\n' ' ')
    if [ "$blamed" != "$4" ]; then
        echo "FAILED $1: blames '$blamed', not '$4'"
        failed=1
    fi
}
expect card_clean 0 "conforms backend card_clean" ""
expect card_unfused 1 "1025 elements, root [0-2]: output" "allreduce "
expect card_clobbers 1 "expected 00009a42 .77." "reduce "
expect card_root_zeros 1 "[0-2] elements, uneven, root [0-2]: output" "reduce_scatter "
expect card_in_place 1 "rank [0-2] of 3, [12] elements, in place, root" "allreduce "
expect card_overwrites 1 "1638[45] elements, root [0-2]: input element" "reduce "
expect card_segments 1 "(257|1021) elements, in place, root [0-2]: output element 25[67]" "allreduce "
expect card_torn 1 "(257|1021) elements, root [0-2]: output element" "gather "
expect card_tail 1 "17 elements, root [0-2]: output element 16" "broadcast "
expect card_empty 1 "allgather of 0 f64 on rank 0: card: division by zero" ""
expect card_early 1 "input was overwritten after completion: output element" "alltoall "
expect card_nothing 1 "allreduce i64" "allreduce "
expect card_silent 1 "guard=1 let rank 1 reduce 5 elements where the others reduce 8" "allreduce "
expect card_averages 1 "avg: rank 0 of 3, 4095 elements, root [0-2]: output element 0" "allreduce reduce reduce_scatter "
# What sharding needs: shares that differ by rank, where they lie, and several operations at once.
expect card_short 1 "[0-9]+ elements, uneven, root [0-2]: output element" "allgather "
expect card_own_lost 1 "[0-9]+ elements, in place, uneven, root [0-2]: output element" "allgather "
expect card_own_twice 1 "[0-9]+ elements, in place, uneven, root [0-2]: output element" "reduce_scatter "
expect card_flight 1 "[0-9]+ elements, uneven, 4 in flight, root [0-2]: output element" "allgather "
expect card_beside 1 "[0-9]+ elements, uneven, 4 in flight, root [0-2]: output element" "reduce_scatter "
expect card_counts 0 "conforms .* not run counters beyond 32 bits: --counters 4294967290 runs them" ""
expect card_counts 1 "card: operation 0 was posted before" "" --counters 4294967290
expect card_clean 0 "conforms backend card_clean" "" --counters 4294967290
# The operation in which a rank's process ended, or still is at the limit.
expect card_crashes 1 "rank 1 .*signal 6.*; it was in broadcast of 17" ""
expect card_leaves 1 "rank 1 .*; it was in broadcast of 17" ""
expect card_spins 1 "rank 1 was not done after 3 s; it was in broadcast of 17" "" --limit 3s
exit "$failed"
