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

# strike RANK SIGNAL SETTING: once every rank has joined the group. Adds to reproduced. Where the rank dies inside an operation, the
# simulator may not be able to follow, and says so.
reproduced=0
strike() {
    local judge victim i
    rm -f run.db
    : >out # the last one's must not be taken for this one's
    "$verify" run --backend gloo -n 3 --color never --trace run.db "$scenarios/models/mlp_two_ranks.toml" \
        --set train.steps=20000 --set model.options=widths=8:300:300:4 --set world.timeout_ms=1000 --set "$3" --log comm:info >out 2>&1 </dev/null &
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

# early RANK: as soon as all processes are there. They may be connecting, or have no operation yet.
early() {
    local judge victims
    "$verify" run --backend gloo -n 3 --color never "$scenarios/models/mlp_two_ranks.toml" --set train.steps=20000 >out 2>&1 </dev/null &
    judge=$!
    victims=()
    while [ ${#victims[@]} -lt 3 ] && kill -0 $judge 2>/dev/null; do victims=($(pgrep -P $judge | sort -n)); done
    kill -KILL "${victims[$1]}" || fail "no rank $1 to kill"
    wait $judge
    sed -n '/^  \(hang\|stopped\): /,/^  because/p' out | tr -s ' \n' ' ' | grep -qF "rank $1 was killed by signal 9" || fail "the death of rank $1 is not the headline"
}
strike 2 STOP ddp.bucket_cap_mb=25
for ((n = 0; n < 8 && reproduced < 2; n++)); do strike $((n % 3)) KILL ddp.bucket_cap_mb=25; done
[ $reproduced -ge 2 ] || fail "only $reproduced of 9 were replayed"
# With several operations under way.
for ((n = 0; n < 8 && reproduced < 4; n++)); do strike $((n % 3)) KILL ddp.bucket_cap_mb=0.1; done
[ $reproduced -ge 4 ] || fail "only $((reproduced - 2)) of 8 with several buckets were replayed"
for rank in 0 1 2; do early $rank; done
echo "struck: all claims hold"
