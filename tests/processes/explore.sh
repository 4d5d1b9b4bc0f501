#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# explore.sh CDDP_VERIFY LAUNCHER…: processes that a launcher started explore one
# scenario together. LAUNCHER starts two. Every claim prints its name; the first false one ends the script and prints the
# output.
set -u
verify=$1
shift
launch=("$@")
suppressions=$(cd "$(dirname "${BASH_SOURCE[0]}")/../support" && pwd)/lsan.supp
export LSAN_OPTIONS="suppressions=$suppressions:print_suppressions=0" ASAN_OPTIONS="fast_unwind_on_malloc=0:${ASAN_OPTIONS:-}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2

fail() { printf 'FAILED: %s\n' "$claim" "$@" >&2; cat out err >&2; exit 1; }
# expect EXIT COMMAND…: runs it, its output in out and err
expect() {
    local wanted=$1
    shift
    "$@" > out.raw 2> err
    local got=$?
    tr -d '\r' < out.raw > out
    [ "$got" -eq "$wanted" ] || fail "exit $got, wanted $wanted: $*"
}
says() { grep -qF -- "$1" out || fail "standard output lacks: $1"; }
complains() { [ "$(grep -cF -- "$1" err)" -eq 1 ] || fail "standard error does not have once: $1"; }

cat > small.toml <<'TOML'
schema = 1
title = "four gradients on two ranks"
[world]
size = 2
[model]
name = "params"
options = "count=4,numel=1"
device = "shape"
[ddp]
bucket_cap_mb = 0.000001
first_bucket_bytes = 1
[train]
steps = 1
TOML

claim="the result is that of one process"
for strategy in "random --budget 3000" "pct --budget 500" "cover --depth 2"; do
    # shellcheck disable=SC2086
    expect 0 "$verify" explore small.toml --color never --strategy $strategy
    mv out alone
    # shellcheck disable=SC2086
    expect 0 "${launch[@]}" "$verify" explore small.toml --color never --strategy $strategy
    cmp -s out alone || fail "$strategy: several processes say something else than one: $(diff out alone)"
done

claim="so is what they find: the same schedule is the first that fails"
broken=(--set ddp.init_sync=false --set "model.options@1=list=p2:1;p3:1;p0:1;p1:1" --set network.completion=choice)
expect 1 "$verify" explore small.toml --color never --budget 600 --keep-going "${broken[@]}"
says "not verified, the first was schedule"
mv out alone
expect 1 "${launch[@]}" "$verify" explore small.toml --color never --budget 600 --keep-going "${broken[@]}"
cmp -s out alone || fail "several processes say something else than one: $(diff out alone)"

claim="and what all of them found is in one store"
expect 1 "$verify" explore small.toml --color never --budget 600 --keep-going "${broken[@]}" --trace alone.db
expect 1 "${launch[@]}" "$verify" explore small.toml --color never --budget 600 --keep-going "${broken[@]}" --trace all.db
says "in all.db, one of every outcome"
kinds=$(sed -n 's/^  recorded *\([0-9]*\) run.*/\1/p' out)
[ "${kinds:-0}" -ge 1 ] || fail "nothing was recorded"
expect 1 "$verify" report alone.db
sed 's/alone.db/all.db/' out > alone
expect 1 "$verify" report all.db
cmp -s out alone || fail "several processes record something else than one: $(diff out alone)"
expect 0 "$verify" replay all.db --run "$kinds"
says "all equal; recorded verdict: findings"
expect 0 "$verify" shrink all.db --run 1 --output less.toml
says "1-minimal"

claim="a killed process ends the job, which claims nothing; what was saved goes on without loss and without doubling"
cat > member.sh <<'SH'
echo $$ > "pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
exec "$@"
SH
"${launch[@]}" sh member.sh "$verify" explore small.toml --color never --budget 100000000 --frontier saved > out 2> err &
job=$!
for _ in $(seq 600); do
    [ -s saved ] && break
    sleep 0.1
done
[ -s saved ] || fail "no frontier within a minute"
kill -KILL "$(cat pid.1)"
wait $job
[ $? -ne 0 ] || fail "the job ended well"
! grep -q "verified" out || fail "it claims something"
runs=$((16#$(sed -n '3s/^number //p' saved)))
[ "$runs" -gt 8 ] || fail "only $runs schedules were saved"
budget=$((runs + 1000))
expect 0 "${launch[@]}" "$verify" explore small.toml --color never --budget $budget --frontier saved
says "$budget schedules, 1 outcome"
mv out resumed
expect 0 "$verify" explore small.toml --color never --budget $budget
cmp -s out resumed || fail "what went on says something else: $(diff out resumed)"

claim="a mistake is reported once, whatever the number of processes"
expect 2 "${launch[@]}" "$verify" explore small.toml --strategy exhaustive
complains "not in 2 processes"
expect 2 "${launch[@]}" "$verify" explore small.toml --jobs 2
complains "these are 2"
expect 2 "${launch[@]}" "$verify" explore nowhere.toml
complains "cannot read 'nowhere.toml'"

claim="without the module it is one sentence"
mkdir -p elsewhere/bin
cp "$verify" elsewhere/bin/cddp-verify
expect 3 "${launch[@]}" elsewhere/bin/cddp-verify explore small.toml
complains "explore together over MPI"
echo "explore: all claims hold"
