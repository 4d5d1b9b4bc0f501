#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# laboratory.sh CDDP_VERIFY SCENARIOS: replay, explore, shrink and diff as a user calls them.
# Every claim prints its name; the first false one ends the script and prints the output.
verify=$1 scenarios=$2
# shellcheck source=tests/support/interrupts.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/interrupts.sh"
# shellcheck source=tests/support/claims.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"

# Changes a store as whoever forges it: without its seals, which would tell.
edit() { sqlite3 "$1" "DROP TABLE IF EXISTS seal; PRAGMA user_version = 1; $2"; }

claim="a recorded run replays event by event"
expect 0 "$verify" run "$scenarios/gan_unused_params.toml" --trace runs.db --quiet
expect 0 "$verify" replay runs.db
says "reproduced  run 1"
says "all equal"

claim="a run with a random schedule replays from its record"
expect 0 "$verify" run "$scenarios/bucket_rebuild.toml" --set schedule.chooser=random --set schedule.ready=chosen --seed 5 --trace runs.db -q
expect 0 "$verify" replay runs.db
says "reproduced  run 2"
expect 0 "$verify" replay runs.db --run 1
says "reproduced  run 1"

claim="a failing run replays too: the failure is reproduced"
# The canary without what it expects: its finding is then a failure.
sed '/^\[\[*expect/,$d' "$scenarios/canary/one_rank_drifts.toml" > failing.toml
expect 1 "$verify" run failing.toml --trace failing.db -q
expect 0 "$verify" replay failing.db
says "recorded verdict: findings"

claim="replay stops where it is asked to"
expect 0 "$verify" replay runs.db --run 1 --until bucket_launch
says "bucket_launch"
expect 2 "$verify" replay runs.db --until no_such_event
complains "neither an event number"

claim="the stepper goes forwards and backwards from a script"
printf 'n 3\nb 2\ngoto optimizer_step\np 1\nn\nw\nbucket 0\nnonsense\nq\n' > script
expect 0 "$verify" replay runs.db --run 1 --step < script
says "run_begin"
says "optimizer_step optimizer=0"
says "nobody waits"
says "'nonsense' is no command"

claim="the stepper goes on behind the event that it went to, and says what it cannot do"
printf 'goto 50\nn\np rank 1\np\np rank 9\ngoto 999999\ngoto -1\nbucket 99\nbucket\nn x\nn 0\nb 100000\n' > script
expect 0 "$verify" replay runs.db --run 1 --step < script
[ "$(grep -c '^    50  ' out)" -eq 1 ] && [ "$(grep -c '^    51  ' out)" -eq 1 ] || fail "not 50, then 51"
for words in "only rank 1 is shown" "all ranks are shown" "there is no rank 9" "there is no event 999999: they are 1 to " \
    "'-1' is no number" "nothing happened to bucket 99 so far" "'' is no number" "'x' is no number" "the beginning of the run"; do
    says "$words"
done
expect 2 "$verify" replay runs.db --run 1 --step --from 77 < script
complains "the recorded run has no such step, its last one is "

claim="the stepper prints an operation once, with all ranks that wait for it; its numbers are those of --until"
expect 0 "$verify" run "$scenarios/order/collective_of_another_size_in_between.toml" --trace hang.db -q
printf 'n 100000\nw\ngoto 20\n' > script
expect 0 "$verify" replay hang.db --step < script
says "ranks 0 2 wait for operation #2 of group 'world'; posted so far by rank 0-2"
line=$(sed -n 's/^    20  //p' out | tail -n 1)
expect 0 "$verify" replay hang.db --until 20
[ "$(tr -s ' \n' ' ' < out | grep -cF "$(printf '%s' "$line" | cut -c1-60)")" -eq 1 ] || fail "event 20 is another one"
expect 2 "$verify" replay hang.db --until 100000
complains "--until 100000: the recorded run has "

claim="a record that was changed by hand does not replay, and both sides are shown"
cp runs.db edited.db
edit edited.db "UPDATE event SET f0 = f0 + 1 WHERE id = (SELECT id FROM event ORDER BY id LIMIT 1 OFFSET 700)" || fail "cannot edit the store"
expect 1 "$verify" replay edited.db --run 1
says "not reproduced"
says "recorded"
says "now"

claim="a run of another world replays on the simulator, rank by rank, and an event that was changed is found"
expect 0 "$verify" run "$scenarios/models/one_rank.toml" --backend self --trace foreign.db -q
expect 0 "$verify" replay foreign.db
says "all equal rank by rank on the simulator (recorded on self)"
expect 0 "$verify" replay foreign.db --until bucket_launch
says "bucket_launch"

claim="a failure of another world is shrunk where the simulator fails alike; else it is said why not"
expect 2 "$verify" shrink foreign.db
complains "it does not fail on the simulator, with the same orders: what fails on backend self lies in the processes"
expect 1 "$verify" run "$scenarios/models/one_rank.toml" --set when.0.sync=false --backend self --trace failed.db
says "shrink    cddp-verify shrink"
says "--set world.backend=self"
line=$(sed -n 's/^  shrink *cddp-verify shrink //p' out)
expect 0 "$verify" shrink failed.db --output from_store.toml
says "shrunk: from_store.toml: I-ONCE"
says "1-minimal"
eval "expect 0 \"$verify\" shrink $line --output from_line.toml"
says "shrunk: from_line.toml: I-ONCE"
expect 1 "$verify" run from_store.toml
says "I-ONCE"
cp failed.db edited.db
edit edited.db "UPDATE finding SET invariant = 'I-COLL'" || fail "cannot edit the store"
expect 2 "$verify" shrink edited.db --output none.toml
complains "failed on backend self with I-COLL. On the simulator, with the same orders, it fails with I-ONCE"
[ ! -e none.toml ] || fail "something was written"
cp failed.db edited.db
sqlite3 edited.db "DELETE FROM finding" || fail "cannot edit the store"
expect 2 "$verify" report edited.db
complains "in table 'finding' does not hold what was written"

claim="a record of another world that was changed is found too"
cp foreign.db edited.db
edit edited.db "UPDATE event SET f3 = f3 + 1 WHERE id = (SELECT min(id) FROM event WHERE kind = (SELECT id FROM kind WHERE name = 'collective_done'))" || fail "cannot edit the store"
expect 1 "$verify" replay edited.db
says "not reproduced"
says "collective_done"
cp foreign.db edited.db
edit edited.db "DELETE FROM event WHERE id = (SELECT max(id) FROM event WHERE kind = (SELECT id FROM kind WHERE name = 'optimizer_step'))" || fail "cannot edit the store"
expect 1 "$verify" replay edited.db
says "optimizer_step"
# Time, and events that only one kind of world reports, are not compared.
cp foreign.db edited.db
edit edited.db "UPDATE event SET t = t + 7" || fail "cannot edit the store"
expect 0 "$verify" replay edited.db

claim="a run whose digest, outcome, size, seed or steps were edited is not called reproduced"
for change in "digest = digest + 1" "verdict = 'inconclusive'" "exit_code = 1 - exit_code" \
    "world_size = world_size + 1" "seed = seed + 1" "steps = steps + 1"; do
    cp runs.db edited.db
    edit edited.db "UPDATE run SET $change WHERE id = 1" || fail "cannot edit the store"
    expect 2 "$verify" replay edited.db --run 1
    complains "run 1 was changed"
    [ "$(wc -l < err)" -eq 1 ] || fail "not one line"
done

claim="a scenario that no longer means the same is refused"
cp runs.db other.db
edit other.db "UPDATE run SET options = 'train.steps=3' WHERE id = 1" || fail "cannot edit the store"
expect 2 "$verify" replay other.db --run 1
complains "no longer means the same"

claim="a corrupted choice string is refused with the place"
expect 2 "$verify" replay "$scenarios/bucket_rebuild.toml" --schedule 's1:!!'
expect 2 "$verify" replay "$scenarios/bucket_rebuild.toml" --schedule 'nonsense'

claim="a store that is not there, or is none, gets one sentence"
expect 2 "$verify" replay missing.db
[ "$(wc -l < err)" -eq 1 ] || fail "not one line"
echo "not a store" > none.db
expect 2 "$verify" replay none.db
[ "$(wc -l < err)" -eq 1 ] || fail "not one line"
expect 2 "$verify" replay runs.db --run 77
complains "no run 77"

claim="exploration is deterministic: same seed, same words"
for strategy in random pct; do
    expect 0 "$verify" explore "$scenarios/bucket_rebuild.toml" --strategy $strategy --budget 20 --explore-seed 9
    cp out first
    expect 0 "$verify" explore "$scenarios/bucket_rebuild.toml" --strategy $strategy --budget 20 --explore-seed 9
    cmp -s out first || fail "two runs differ"
    says "20 schedules"
done
says "is met with a chance of at least 1 in"

claim="exhaustive search ends by itself, and a bounded one says that it is bounded"
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
expect 0 "$verify" explore small.toml --strategy exhaustive --no-reduce --no-merge
says "8 schedules"
says "exhaustive: every combination of choices was tried"
expect 0 "$verify" explore small.toml --strategy exhaustive --no-reduce --no-merge --choices 2
says "4 schedules"
says "bounded: every combination of the first 2 choices was tried, of up to 3"
expect 4 "$verify" explore "$scenarios/divergent_gradient_order.toml" --strategy exhaustive --no-reduce --no-merge --budget 5
says "not exhaustive: at least"

claim="each reduction says what it left out and why, and can be switched off"
expect 0 "$verify" explore small.toml --strategy exhaustive
says "11 schedules"
says "turns: one order of ranks, because"
says "states: 2, 1 schedules led to one that was there before"
says "ranks: kept apart, because they hold different values"
says "coverage: 4 of 4 options"
expect 0 "$verify" explore small.toml --strategy exhaustive --no-merge
says "12 schedules"
expect 0 "$verify" explore small.toml --strategy exhaustive --set model.device=shape
says "ranks: interchangeable but for rank 0"
expect 0 "$verify" explore small.toml --strategy exhaustive --set model.device=shape --no-symmetry
grep -q "^  ranks:" out && fail "symmetry was switched off"

claim="a schedule that fails is found, named, and replays"
expect 1 "$verify" explore failing.toml --budget 5
says "findings"
says "I-PARAMEQ"
line=$(sed -n 's/^  replay *cddp-verify //p' out)
[ -n "$line" ] || fail "no replay line"
eval "expect 1 \"$verify\" $line"
says "I-PARAMEQ"

claim="a stored failure shrinks, and what is left fails in the same way when it is run, and when it is replayed"
expect 1 "$verify" run "$scenarios/mixed_control_flow.toml" --set ddp.find_unused_parameters=false -n 4 --trace big.db
says "shrink    cddp-verify shrink $scenarios/mixed_control_flow.toml"
expect 1 "$verify" report big.db
says "shrink    cddp-verify shrink big.db --run 1"
expect 0 "$verify" shrink big.db
says "shrunk: big-1-shrunk.toml: I-"
says "1-minimal: each of"
check=$(sed -n '1s/^shrunk: [^:]*: \(I-[A-Z]*\).*/\1/p' out)
line=$(sed -n 's/^  replay *cddp-verify //p' out)
cp big-1-shrunk.toml first.toml
expect 1 "$verify" run big-1-shrunk.toml
says "  $check  "
eval "expect 1 \"$verify\" $line"
says "  $check  "

claim="shrinking is deterministic, and several jobs change nothing but the time"
expect 0 "$verify" shrink big.db
cp out one
cmp -s big-1-shrunk.toml first.toml || fail "two results differ"
expect 0 "$verify" shrink big.db --jobs 3
cmp -s big-1-shrunk.toml first.toml || fail "three jobs come to something else"
cmp -s out one || fail "three jobs report something else"

claim="a budget ends the search with the best so far, and it says that it is not minimal"
expect 4 "$verify" shrink big.db --budget 9 --output early.toml
says "not minimal yet: the budget is used up"
grep -q "^# Not minimal yet" early.toml || fail "the file does not say it"
expect 1 "$verify" run early.toml
says "  $check  "
cp out one
expect 4 "$verify" shrink big.db --budget 9 --output early.toml --jobs 3
expect 1 "$verify" run early.toml
cmp -s out one || fail "three jobs come to something else within a budget"

claim="Ctrl-C ends the search with the best so far"
cat > wide.toml <<'TOML'
schema = 1
title = "much to try"
[world]
size = 32
[model]
name = "params"
options = "count=32"
[ddp]
init_sync = false
[train]
steps = 12
[[rank]]
ranks = 31
model.options = "count=32,order=1:0"
TOML
sed -i 's/order=1:0/order=1:0'"$(seq -s '' -f ':%g' 2 31)"'/' wide.toml
sed -i 's/^\[\[rank\]\]$/[[when]]\nranks = 30\nsteps = 11\nsync = false\n\n[[rank]]/' wide.toml
# Each candidate is tried in a child: with the first one there is a best, and much is left to try. Should all of it be done before
# the signal comes, it is another try.
for _ in $(seq 10); do
    "$verify" shrink wide.toml --jobs 2 --output wide-small.toml > out 2> err &
    pid=$!
    await_catch $pid "$verify" || fail "it never catches it"
    while kill -0 $pid 2> /dev/null && ! pgrep -P $pid > children; do sleep 0.01; done
    kill -INT $pid 2> /dev/null
    wait $pid
    code=$?
    [ $code -eq 0 ] || break
done
[ $code -eq 4 ] || fail "exit $code instead of 4"
says "interrupted; this is the best so far"
expect 1 "$verify" run wide-small.toml

claim="Ctrl-C before there is a best leaves no file"
rm wide-small.toml
"$verify" shrink wide.toml --output wide-small.toml > out 2> err &
pid=$!
await_catch $pid "$verify" || fail "it never catches it"
kill -INT $pid
wait $pid
[ $? -eq 4 ] || fail "not 4 after an interrupt"
complains "interrupted before anything was known"
[ ! -e wide-small.toml ] || fail "there is a file"

claim="Ctrl-C in the middle of a replay is no difference between two runs"
expect 0 "$verify" run "$scenarios/gan_unused_params.toml" --set train.steps=3000 --set data.samples=1 --set expect.exercised= --trace long.db
"$verify" replay long.db > out 2> err &
pid=$!
await_catch $pid "$verify" || fail "it never catches it"
kill -INT $pid
wait $pid
[ $? -eq 4 ] || fail "not 4 after an interrupt"
if ! grep -q "the step at hand did not end" err; then # as on a busy machine, where a sanitized program reads the record for that long
    says "interrupted after"
    says "equal so far"
fi
expect 0 "$verify" replay long.db
rm long.db

claim="a run that cannot be shrunk gets one sentence, and nothing is written"
expect 2 "$verify" shrink "$scenarios/gan_unused_params.toml"
complains "the run does not fail: there is nothing to shrink"
expect 2 "$verify" shrink "$scenarios/errors/contradiction.toml"
complains "cannot be run"
expect 2 "$verify" shrink failing.toml --schedule 's1:!!'
[ "$(wc -l < err)" -eq 1 ] || fail "not one line"
expect 2 "$verify" shrink failing.toml --schedule s1:ZZZ9
complains "does not fit"
expect 2 "$verify" shrink big.db --set train.steps=2
complains "has its own settings"
expect 2 "$verify" shrink big.db --run 9
complains "no run 9"
expect 2 "$verify" shrink failing.toml --run 1
complains "'failing.toml' is none"
expect 2 "$verify" shrink big.db --budget soon
complains "neither a number of runs nor a time"
expect 2 "$verify" shrink
expect 2 "$verify" shrink missing.toml
[ ! -e gan_unused_params-shrunk.toml ] && [ ! -e failing-shrunk.toml ] || fail "a file was written"
echo "mine" > failing-shrunk.toml
expect 2 "$verify" shrink failing.toml
complains "was not written by shrink"
grep -q "^mine$" failing-shrunk.toml || fail "it was overwritten"

claim="a record that does not repeat itself is not shrunk"
cp big.db edited.db
edit edited.db "UPDATE run SET options = options || 'train.steps=2' WHERE id = 1" || fail "cannot edit the store"
expect 2 "$verify" shrink edited.db
complains "no longer means the same"

claim="equal runs do not differ; runs with another seed differ in content, not in order"
expect 0 "$verify" run "$scenarios/gan_unused_params.toml" --trace pair.db -q
expect 0 "$verify" run "$scenarios/gan_unused_params.toml" --trace pair.db -q
expect 0 "$verify" diff pair.db:1 pair.db:2
says "no difference"
expect 0 "$verify" run "$scenarios/gan_unused_params.toml" --seed 99 --trace pair.db -q
expect 1 "$verify" diff pair.db:1 pair.db:3
says "content"
grep -q "^order" out && fail "an order that does not differ is reported"

claim="other bucket sizes are a difference in order"
expect 0 "$verify" run "$scenarios/bucket_rebuild.toml" --trace caps.db -q
expect 0 "$verify" run "$scenarios/bucket_rebuild.toml" --set ddp.bucket_cap_mb=1 --trace caps.db -q
expect 1 "$verify" diff caps.db:1 caps.db:2
says "differ here"

if "$verify" list backends | grep gloo | grep -qv absent; then
    claim="a run on Gloo has the bits of the simulator, and replays there"
    for name in gan_unused_params divergent_gradient_order uneven_inputs_join fp16_compress static_graph; do
        rm -f both.db
        expect 0 "$verify" run "$scenarios/$name.toml" --trace both.db -q
        expect 0 "$verify" run "$scenarios/$name.toml" --backend gloo --trace both.db -q
        expect 0 "$verify" diff both.db:1 both.db:2
        says "no difference"
        expect 0 "$verify" replay both.db --run 2
        says "all equal rank by rank on the simulator (recorded on gloo)"
    done
    claim="a failure on Gloo is shrunk on the simulator"
    expect 0 "$verify" run "$scenarios/bugs/sync_flag_around_backward_only.toml" --backend gloo --trace gloo.db -q
    expect 0 "$verify" shrink gloo.db --output gloo.toml
    says "shrunk: gloo.toml: I-META"
    says "1-minimal"
fi
echo "laboratory: all claims hold"
