#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# prove.sh CDDP_VERIFY SCENARIOS: prove as a user calls it.
# Every claim prints its name; the first false one ends the script and prints the output.
verify=$1 scenarios=$2
# shellcheck source=tests/support/interrupts.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/interrupts.sh"
# shellcheck source=tests/support/claims.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"

cat > small.toml <<'TOML'
schema = 1
title = "two parameters on two ranks"
[world]
size = 2
[model]
name = "chain"
options = "depth=1"
[train]
steps = 1
TOML

claim="every schedule of a small scenario is counted, and exploring them one by one agrees"
expect 0 "$verify" prove small.toml
says "proved  small.toml"
says "every one of the 4 schedules"
says "exactly (1/2)·Σ"
expect 0 "$verify" explore small.toml --strategy exhaustive --set model.device=symbol
says "exhaustive: every combination of choices was tried"

claim="the estimate before the search is the count, where the tree is regular"
expect 0 "$verify" prove "$scenarios/proofs/find_unused.toml"
says "12,899,450,880,000 schedules"
says "about 1.29e+13 schedules"

claim="the exhaustive search over whole worlds agrees, with one outcome"
expect 0 "$verify" explore "$scenarios/proofs/find_unused.toml" --strategy exhaustive
says "1 outcome"
says "exhaustive: every combination of choices was tried"

claim="the assumptions of a proof are printed with it"
expect 0 "$verify" prove "$scenarios/proofs/find_unused.toml"
says "assumes"
says "no faults"
says "all ranks issue one sequence; it is the same in worlds of 2, 3, 4 and 5 ranks,"
says "7, 1000 and 4096: for any number of ranks from 2 on all issue the same"
says "further ranks do as ranks 1 and 2 here"
says "collectives 3 bring the runtime's own numbers, 2 of which count ranks or name one"
says "none, some or all are counted (tried with small, large and drawn numbers)"
says "one was searched"

claim="a rank that counts joined ranks is given other such numbers"
expect 0 "$verify" prove "$scenarios/proofs/join.toml"
says "for any number of ranks from 3 on"
says "further ranks do as rank 1 here"

claim="from two ranks on, whichever number the proof is made for"
for size in 2 3 4 5; do
    expect 0 "$verify" prove small.toml -n $size
    says "for any number of ranks from 2 on"
done

claim="where nothing is known of further ranks, that is said"
expect 0 "$verify" prove small.toml --set ddp.gradient_as_bucket_view@1=true --set ddp.gradient_as_bucket_view@0=true
says "not shown: no rank of the scenario does what rank 2 of a larger world would do"
silent "any number of ranks from"

claim="the root of a smaller group is no rank of the world's"
cat > rooted.toml <<'TOML'
schema = 1
title = "a broadcast among the last two of three ranks"
[world]
size = 3
[model]
name = "chain"
options = "depth=1"
[train]
steps = 1
[[group]]
name = "pair"
members = [1, 2]
[[collective]]
group = "pair"
op = "broadcast"
TOML
expect 0 "$verify" prove rooted.toml
says "not shown: ranks issue different collectives, by the groups that they are in"
sed '/^group = /d' rooted.toml > whole.toml
expect 0 "$verify" prove whole.toml
says "not shown: no rank of the scenario does what rank 3 of a larger world would do"
expect 0 "$verify" prove whole.toml --set collective.0.root=1
says "for any number of ranks from 3 on"

claim="two ranks and three ranks, as the catalogue has them"
for name in find_unused views accumulation gan; do
    for size in 2 3; do
        expect 0 "$verify" prove "$scenarios/proofs/$name.toml" -n $size --budget 100s
        says "proved"
        says "exactly (1/$size)·Σ"
    done
done

claim="several processes find what one finds"
expect 0 "$verify" prove "$scenarios/proofs/accumulation.toml"
cp out one
expect 0 "$verify" prove "$scenarios/proofs/accumulation.toml" --jobs 2
cmp -s out one || fail "two processes say something else"

claim="a proof that did not try everything is bounded, and never called a proof"
expect 4 "$verify" prove "$scenarios/proofs/accumulation.toml" --budget 3
says "bounded"
says "not all"
! grep -q "^proved" out || fail "it says proved"
silent "every one of"
expect 4 "$verify" prove small.toml --set model.options=depth=7
says "bounded"
silent "every one of"

claim="a budget of time ends in inconclusive"
expect 4 "$verify" prove "$scenarios/proofs/plain.toml" --budget 1s
says "inconclusive"
says "is used up"
silent "every one of"

claim="Ctrl-C ends a proof cleanly"
"$verify" prove "$scenarios/proofs/plain.toml" > out 2> err &
pid=$!
await_catch $pid "$verify" || fail "it never catches it"
kill -INT $pid
wait $pid
[ $? -eq 4 ] || fail "not 4 after an interrupt"
says "interrupted"

claim="all patterns of sync flags, and all sets of used units"
expect 0 "$verify" prove small.toml --set train.micro_steps=3 --no-sync 2
says "4 of 4 variants"
expect 0 "$verify" prove small.toml --set model.options=depth=2 --set ddp.find_unused_parameters=true --used-sets 1
says "9 of 9 variants"

claim="a set of used units that breaks the scenario is found, with the line that replays it"
expect 1 "$verify" prove small.toml --set model.options=depth=2 --used-sets 1
says "refuted"
line=$(sed -n 's/^  replay *cddp-verify //p' out)
[ -n "$line" ] || fail "no replay line"
shrink=$(sed -n 's/^  shrink *cddp-verify //p' out)
[ -n "$shrink" ] || fail "no line that shrinks it"
eval "expect 1 \"$verify\" $line"
eval "expect 0 \"$verify\" $shrink --output less.toml"
says "1-minimal"

claim="sizes instead of contents: sixteen gradients at once"
expect 0 "$verify" prove small.toml --calls --set model.options=depth=4 --set ddp.find_unused_parameters=true
says "contents were not judged"
says "for any number of ranks from 2 on"
says "which stand for 1 more rank"
silent "every gradient value"
expect 0 "$verify" prove small.toml --calls --set model.options=depth=4 --set ddp.find_unused_parameters=true \
    --set ddp.gradient_as_bucket_view@1=true
silent "more rank"

claim="groups in opposite order are refuted"
expect 1 "$verify" prove "$scenarios/bugs/groups_in_opposite_order.toml"
says "I-LIVE"

claim="a scenario that cannot be proved gets one sentence"
expect 2 "$verify" prove
complains "name one scenario"
expect 2 "$verify" prove "$scenarios/faults/slow_rank.toml"
complains "plants faults"
expect 2 "$verify" prove "$scenarios/order/shuffled_with_unused.toml"
complains "fixes the order"
expect 2 "$verify" prove small.toml --budget soon
complains "neither a number"
expect 2 "$verify" prove small.toml --no-sync 1
complains "micro-steps that are not the last"
expect 2 "$verify" prove small.toml --used-sets 2
complains "the scenario has 1 step"
expect 2 "$verify" prove "$scenarios/powersgd.toml"
complains "symbol"
# a world has as many ranks as it likes, and the number of schedules may leave a double behind
"$verify" prove small.toml --world-size 70 >out || fail "seventy ranks"
grep -q "on every one of 70 ranks" out || fail "seventy ranks: $(cat out)"
for file in err; do [ "$(wc -l < $file)" -eq 1 ] || fail "not one line"; done
echo "prove: all claims hold"
