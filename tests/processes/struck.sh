#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# struck.sh CDDP_VERIFY SCENARIOS: a rank of a recorded run is killed from outside, and the run is replayed on the simulator.
verify=$1 scenarios=$2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() {
    printf 'FAIL %s\n' "$*"
    head -20 out replayed
    exit 1
}

# strike RANK SIGNAL: once every rank has joined the group. Adds to reproduced. Where the rank dies inside an operation, the
# simulator may not be able to follow, and says so.
reproduced=0
strike() {
    local judge victim i
    rm -f run.db
    "$verify" run --backend gloo -n 3 --color never --trace run.db "$scenarios/models/mlp_two_ranks.toml" \
        --set train.steps=20000 --set model.options=widths=8:300:300:4 --set world.timeout_ms=1000 --log comm:info >out 2>&1 </dev/null &
    judge=$!
    for ((i = 0; i < 1000; i++)); do
        [ "$(grep -c 'text="world"' out)" -ge 3 ] && break
        sleep 0.01
    done
    victim=$(pgrep -P $judge | sort -n | sed -n $(($1 + 1))p)
    [ -n "$victim" ] && kill "-$2" "$victim" || fail "no rank $1 to strike"
    wait $judge
    grep -qE "^  (hang|stopped): " out || fail "the ranks that wait are not in the headline"
    tr -s ' \n' ' ' <out | grep -qE "(for|lost) rank $1, which " || fail "rank $1 is not the culprit"
    if timeout 60 "$verify" replay run.db >replayed 2>&1; then
        grep -qF "with rank $1 killed at the same place, the same ranks wait" replayed || fail "another sentence"
        reproduced=$((reproduced + 1))
    else
        grep -qF "a signal ended a rank, and here a planted fault does" replayed || fail "$2 of rank $1 is not replayed"
    fi
}
strike 2 STOP
for ((n = 0; n < 8 && reproduced < 2; n++)); do strike $((n % 3)) KILL; done
[ $reproduced -ge 2 ] || fail "only $reproduced of 9 were replayed"
echo "struck: all claims hold"
