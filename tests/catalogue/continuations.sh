#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# continuations.sh VERIFY: continuations of hooks that run on completion. Run from the root of the tree.
set -euo pipefail
verify=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scenario=scenarios/hooks/powersgd_in_callbacks.toml
fail() { echo "FAIL $*"; cat "$work/said"; exit 1; }
# expect CODE WORDS COMMAND…
expect() {
    local code=$1 words=$2 got=0
    shift 2
    "$@" >"$work/said" 2>&1 || got=$?
    [ "$got" = "$code" ] || fail "code $got instead of $code: $*"
    grep -qF -- "$words" "$work/said" || fail "'$words' is not said by: $*"
}

expect 0 verified "$verify" run $scenario
for seed in 1 2 3 4 5; do
    expect 1 "I-ORDER" "$verify" explore $scenario --budget 2000 --explore-seed $seed
done
expect 1 "I-ORDER" timeout 60 "$verify" explore $scenario --strategy exhaustive
choices=$(sed -n 's/.*--schedule \([^ ]*\).*/\1/p' "$work/said" | head -1)

# In rounds, and for a hook whose continuations post nothing, every order is right.
expect 0 verified "$verify" explore $scenario --budget 300 --set hook.continuations=rounds
for hook in allreduce fp16_compress; do
    grep -v matrix_approximation $scenario | sed "s/\"powersgd\"/\"$hook\"/" >"$work/$hook.toml"
    expect 0 verified "$verify" explore "$work/$hook.toml" --budget 300
done

# What is left are two ranks, two buckets, and the order in which their hooks go on.
expect 0 "continued the hook of bucket" "$verify" shrink $scenario --set schedule.ready=chosen --set train.forward_us=0 \
    --set train.backward_us=0 --schedule "$choices" -o "$work/small.toml"
! grep -q '\[\[collective\]\]\|\[\[when\]\]\|\[\[fault\]\]' "$work/small.toml" || fail "more than the hook is left"
expect 1 "disagree on collective" "$verify" replay "$work/small.toml" \
    --schedule "$(sed -n 's/^string = "\(.*\)"/\1/p' "$work/small.toml")"

expect 2 "explore varies this" "$verify" prove $scenario
expect 2 "no effect without a hook" "$verify" run scenarios/gan_unused_params.toml --set hook.continuations=on_completion
expect 3 "only the simulator has" "$verify" run $scenario --backend self --set world.size=1
