#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# explore.sh CDDP_VERIFY SCENARIOS: searches by several processes, and searches that were interrupted.
verify=$1 scenarios=$2
# shellcheck source=tests/support/interrupts.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/interrupts.sh"
# shellcheck source=tests/support/claims.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
# alike FILE: the output has not changed
alike() { cmp -s out "$1" || { diff "$1" out >&2; fail "another answer"; }; }

cat > small.toml <<'TOML'
schema = 1
title = "two parameters on three ranks"
[world]
size = 3
[model]
name = "chain"
options = "depth=1"
[train]
steps = 1
TOML
# A rank leaves its backward after one gradient, whichever that is: the others wait for its bucket, or do not.
cat > left_early.toml <<'TOML'
schema = 1
title = "a rank leaves its backward early"
[world]
size = 2
timeout_ms = 5
[model]
name = "params"
options = "count=4"
[ddp]
bucket_cap_mb = 0.00001
first_bucket_bytes = 1
[train]
steps = 1
[[when]]
ranks = "1"
abort_after = 2
TOML

claim="a search by several processes gives the answer of one"
for strategy in random pct cover; do
    expect 0 "$verify" explore "$scenarios/order/chosen_at_random.toml" --strategy $strategy --budget 30 --explore-seed 3
    cp out one
    expect 0 "$verify" explore "$scenarios/order/chosen_at_random.toml" --strategy $strategy --budget 30 --explore-seed 3 --jobs 3
    alike one
done
"$verify" explore left_early.toml --budget 60 --keep-going > one 2> err
grep -q "not verified" one || fail "the broken scenario was verified"
for jobs in 2 3; do
    expect 1 "$verify" explore left_early.toml --budget 60 --keep-going --jobs $jobs
    alike one
done
"$verify" explore left_early.toml --budget 60 > one 2> err
expect 1 "$verify" explore left_early.toml --budget 60 --jobs 2
alike one
expect 2 "$verify" explore small.toml --strategy exhaustive --jobs 2
complains "depends on all that it has seen"

claim="a search that goes on from its frontier gives the answer of one that was never stopped"
for options in "--strategy random" "--strategy pct" "--strategy cover"; do
    expect 0 "$verify" explore "$scenarios/order/chosen_at_random.toml" $options --budget 20
    cp out whole
    rm -f frontier
    "$verify" explore "$scenarios/order/chosen_at_random.toml" $options --budget 7 --frontier frontier > out 2> err
    expect 0 "$verify" explore "$scenarios/order/chosen_at_random.toml" $options --budget 20 --frontier frontier
    alike whole
    expect 0 "$verify" explore "$scenarios/order/chosen_at_random.toml" $options --budget 20 --frontier frontier # again: nothing left to do
    alike whole
done
for options in "" "--no-merge" "--no-reduce --no-merge"; do
    expect 0 "$verify" explore small.toml --strategy exhaustive $options
    cp out whole
    rm -f frontier
    for budget in 2 3 5; do "$verify" explore small.toml --strategy exhaustive $options --budget $budget --frontier frontier > out 2> err; done
    expect 0 "$verify" explore small.toml --strategy exhaustive $options --frontier frontier
    alike whole
done
rm -f frontier
"$verify" explore left_early.toml --budget 40 --keep-going > whole 2> err
expect 1 "$verify" explore left_early.toml --budget 20 --keep-going --frontier frontier
expect 1 "$verify" explore left_early.toml --budget 40 --keep-going --frontier frontier
alike whole

claim="all findings are in one store, one run per outcome, whichever worker found it: report, replay and shrink read it"
sed '/^\[\[*expect/,$d' "$scenarios/order/collective_of_equal_size_in_between.toml" > between.toml
expect 1 "$verify" explore between.toml --budget 60 --keep-going --trace found.db
says "60 schedules, 3 outcomes"
says "recorded    3 runs in found.db"
expect 1 "$verify" report found.db
[ "$(grep -c '^findings: found.db run [123]: ' out)" -eq 3 ] || fail "not three runs with findings"
line=$(sed -n 's/^  reproduce cddp-verify //p' out | tail -1)
grep -q -- --schedule <<< "$line" || fail "no schedule in the line that reproduces: $line"
eval "expect 1 \"$verify\" $line"
for run in 1 2 3; do
    expect 0 "$verify" replay found.db --run $run
    says "all equal; recorded verdict: findings"
done
expect 1 "$verify" explore between.toml --budget 60 --keep-going --trace found.db
says "recorded    0 runs in found.db"
says "3 were there already"
expect 1 "$verify" explore between.toml --budget 60 --keep-going --jobs 3 --trace jobs.db
says "recorded    3 runs"
expect 1 "$verify" explore between.toml --budget 60 --trace first.db
says "recorded    1 run in"
expect 0 "$verify" shrink found.db --run 3 --output less.toml
says "1-minimal"
expect 0 "$verify" explore small.toml --budget 9 --trace none.db
says "recorded    0 runs in none.db"
expect 2 "$verify" explore small.toml --budget 9 --trace missing/folder/found.db
complains "cannot create"

claim="Ctrl-C keeps what there is, and the rest comes later"
for budget in 400 8000 160000; do # the first that lasts until the interrupt comes
    rm -f frontier
    "$verify" explore small.toml --budget $budget --frontier frontier > out 2> err &
    await_catch $! "$verify" && kill -INT $! 2>/dev/null
    wait $!
    status=$?
    [ $status -eq 0 ] || break
done
[ $status -eq 4 ] || fail "not 4 after an interrupt"
[ -s frontier ] || fail "no frontier was kept"
"$verify" explore small.toml --budget $budget > whole 2> err
expect 0 "$verify" explore small.toml --budget $budget --frontier frontier
alike whole

claim="a frontier that is none, was cut, was edited or belongs to another search is refused and left alone"
refused() { # WORDS: with the frontier as it is now
    cp frontier before
    expect 2 "$verify" explore small.toml --budget 9 --frontier frontier ${2:-}
    complains "$1"
    [ "$(wc -l < err)" -eq 1 ] || fail "not one line"
    cmp -s frontier before || fail "it was overwritten"
}
expect 0 "$verify" explore small.toml --budget 5 --frontier good
cp good frontier && refused "belongs to another search" --explore-seed=7
cp good frontier && refused "belongs to another search" --set=train.steps=2
sed 's/^number 5$/number 9/' good > frontier && refused "cut off or was changed"
head -n -1 good > frontier && refused "cut off or was changed"
sed 's/^cddp-frontier 4/cddp-frontier 1/' good > frontier && refused "not a frontier of this version"
echo "nonsense" > frontier && refused "not a frontier"
head -c 4096 /dev/zero > frontier && refused "not a frontier"
: > frontier && refused "not a frontier"
expect 2 "$verify" explore small.toml --budget 5 --frontier missing/folder/file
complains "cannot write 'missing/folder/file': No such file or directory"

claim="a fault that never strikes is said, and no training is verified without it"
slow=$scenarios/faults/slow_rank.toml
late="fault 1, slow_rank of rank 2 after 1 min 40 s"
expect 0 "$verify" run "$slow" --trace struck.db
expect 0 "$verify" check struck.db
expect 4 "$verify" run "$slow" --set fault.0.at=100000000000 --trace late.db
says "a fault of the scenario did not strike"
says "$late: the run ended after "
expect 4 "$verify" check late.db
says "$late: the run ended after "
expect 4 "$verify" run "$scenarios/faults/nan_contributed.toml" --set fault.0.at=1000
says "fault 1, nan of rank 1 before its collective 1000: rank 1 posted 7 collectives"
expect 4 "$verify" run "$scenarios/faults/rank_dies.toml" --set fault.0.at=1000
says "fault 1, kill of rank 1 before its collective 1000: rank 1 posted 7 collectives"
# Whether an optional fault strikes is a choice: nothing is missing when it does not.
expect 0 "$verify" run "$slow" --set fault.0.at=100000000000 --set fault.0.optional=true
# What is found without it is still found.
expect 1 "$verify" run "$slow" --set fault.0.at=100000000000 --set ddp.init_sync=false --set model.init@1=distinct
for jobs in 1 2; do
    expect 0 "$verify" explore "$slow" --budget 12 --jobs $jobs
    expect 4 "$verify" explore "$slow" --budget 12 --jobs $jobs --set fault.0.at=100000000000
    says "not struck: $late, in no schedule"
done

claim="a fault that strikes what it cannot change is said: a rank that only receives, a link on which nothing comes"
expect 0 "$verify" run "$scenarios/faults/bit_flips.toml"
expect 4 "$verify" run "$scenarios/faults/bit_flips.toml" --set fault.0.at=1
says "fault 1, bit_flip of rank 1 before its collective 1: there was nothing that it could change"
cut=$scenarios/faults/link_cut_heals.toml
expect 0 "$verify" run "$cut" --trace met.db
expect 0 "$verify" check met.db
expect 4 "$verify" run "$cut" --set fault.0.at=0 --set fault.0.duration_ns=1 --trace unmet.db
says "fault 1, link_cut from rank 1 to rank 0 after 0 ns: there was nothing that it could change"
expect 4 "$verify" check unmet.db
says "there was nothing that it could change"

claim="a fault that strikes in some schedules is not missing in the others"
cat small.toml - > two_faults.toml <<'TOML'
[[fault]]
kind = "hang"
rank = 1
at = 1000
duration_ns = 5000000
optional = true
[[fault]]
kind = "slow_rank"
rank = 2
amount = 2000
at = 3000000
TOML
expect 4 "$verify" run two_faults.toml
says "fault 2, slow_rank of rank 2 after 3 ms: the run ended after "
for jobs in 1 2; do
    expect 0 "$verify" explore two_faults.toml --budget 12 --jobs $jobs
    silent "not struck"
done
expect 0 "$verify" explore two_faults.toml --budget 8 --frontier faults
expect 0 "$verify" explore two_faults.toml --budget 12 --frontier faults
echo "explore: all claims hold"
