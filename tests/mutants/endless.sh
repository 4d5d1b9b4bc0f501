#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# endless.sh VERIFY SCENARIOS MODULE: in VERIFY a joined rank counts itself among the active ones, so that ranks which have all
# joined shadow one another for ever. No run of it may go on for ever: not on the simulator, not of processes (MODULE: Gloo).
verify=$1 scenarios=$2 module=$3
# shellcheck source=tests/support/claims.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
scenario=$scenarios/join/even_inputs.toml
livelock="livelock: ranks 0-2 go round in circles: rank 0 posts allreduce(sum) of 1 f32"

claim="a run ends, and says what repeats, by whom and in which step"
expect 1 "$verify" run "$scenario" --trace sim.db
says "$livelock"
says "where     step 2, rank 0"
says "as a joined rank it shadowed"
claim="so do all transports, and a device without numbers"
expect 1 "$verify" run "$scenario" --set network.transport=messages
says "$livelock"
expect 1 "$verify" run "$scenario" --set model.device=shape
says "$livelock"
claim="so do an exploration and a proof"
expect 1 "$verify" explore "$scenario" --budget 20
says "$livelock"
expect 1 "$verify" prove "$scenarios/proofs/join.toml"
says "I-LIVE rank 0 goes round in circles"
claim="its record is replayed"
expect 0 "$verify" replay sim.db
says "all equal"

claim="processes are ended as well, and their record is the same livelock on the simulator"
expect 1 "$verify" run "$scenario" --plugin "$module" --backend gloo --trace gloo.db
says "$livelock"
expect 0 "$verify" replay gloo.db
says "up to the failure, and the failure is the same"
echo "endless: all claims hold"
