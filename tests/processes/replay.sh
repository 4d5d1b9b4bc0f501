#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# replay.sh CDDP_VERIFY SCENARIOS LAUNCHER…: what real processes recorded is replayed and shrunk on the simulator, by a
# process that nobody launched. LAUNCHER starts two.
verify=$1 scenarios=$2
shift 2
launch=("$@")
suppressions=$(cd "$(dirname "${BASH_SOURCE[0]}")/../support" && pwd)/lsan.supp
# shellcheck source=tests/support/claims.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
export LSAN_OPTIONS="suppressions=$suppressions:print_suppressions=0" ASAN_OPTIONS="fast_unwind_on_malloc=0:${ASAN_OPTIONS:-}"

claim="a run with a finding is recorded, replayed event by event, and made smaller for the same reason"
expect 0 "${launch[@]}" "$verify" run "$scenarios/bugs/sync_flag_around_backward_only.toml" --backend mpi --trace mpi.db -q
expect 0 "$verify" replay mpi.db
says "all equal rank by rank on the simulator (recorded on mpi-"
expect 0 "$verify" shrink mpi.db --output mpi.toml
says "shrunk: mpi.toml: I-META"
says "1-minimal"
line=$(sed -n 's/^  replay *cddp-verify //p' out)
eval "expect 1 \"$verify\" $line"
says "I-META"

claim="ranks with another order of registration corrupt each other's gradients there, and so does the shrunk form"
"${launch[@]}" "$verify" run "$scenarios/order/registration_order_with_equal_shapes.toml" -n 2 --backend mpi --trace order.db -q > out 2> err
expect 0 "$verify" shrink order.db --output order.toml
says "shrunk: order.toml: I-INIT"
says "1-minimal"

claim="a hang of processes is the same hang on the simulator: the same finding, and the same ranks wait for the same peers"
"${launch[@]}" "$verify" run "$scenarios/bugs/one_rank_stops_early.toml" -n 2 --backend mpi --set world.timeout_ms=2000 --trace hang.db -q > out 2> err
expect 0 "$verify" replay hang.db
says "up to the failure, and the failure is the same"
says "recorded verdict: as expected: deadlock"
expect 0 "$verify" report hang.db
says "hang: rank 0 waits in allreduce #6 (bucket 0, step 2) for rank 1, which ended normally in step 2"
if command -v sqlite3 > out 2>&1; then
    [ "$(sqlite3 hang.db "SELECT rank || ' for ' || peer FROM waiting_for WHERE peer IS NOT NULL")" = "0 for 1" ] || fail "waiting_for"
    [ "$(sqlite3 hang.db "SELECT kind || rank_a || rank_b FROM first_divergence WHERE kind = 'wait'")" = "wait01" ] || fail "first_divergence"
fi
printf 'goto rank_end\ngoto rank_end\nw\nq\n' | "$verify" replay hang.db --step --from 2 > out 2> err
says "rank 0 waits for operation #6 of group 'world'; posted so far by rank 0; missing is rank 1"

claim="so is one of more ranks, whose sums have other bits there"
"$verify" run "$scenarios/bugs/one_rank_stops_early.toml" -n 5 --backend mpi --set world.timeout_ms=2000 --set model.exact=false --trace hang5.db -q > out 2> err
expect 0 "$verify" replay hang5.db
says "up to the failure, and the failure is the same"

claim="a record that was changed by hand is refused in one sentence"
if command -v sqlite3 > out 2>&1; then
    cp mpi.db edited.db
    sqlite3 edited.db "DROP TABLE seal; PRAGMA user_version = 1; UPDATE run SET backend = 'gloo'"
    expect 2 "$verify" replay edited.db
    [ "$(wc -l < err)" -eq 1 ] || fail "not one line"
    grep -qF "no longer means the same" err || fail "another sentence"
fi
echo "replay: all claims hold"
