#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cover.sh CDDP_VERIFY CHECK_COVER [fours]: covering explorations, and their certificates held against the independent checker.
verify=$1 check=$2
# shellcheck source=tests/support/claims.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"

scenario() { # ranks, gradients: one bucket per gradient
    cat > scenario.toml <<TOML
schema = 1
title = "$2 buckets on $1 ranks"
[world]
size = $1
[model]
name = "params"
options = "count=$2,numel=1"
device = "shape"
[ddp]
bucket_cap_mb = 0.000001
first_bucket_bytes = 1
[train]
steps = 1
TOML
}

if [ "${3:-}" = fours ]; then
    claim="every ordered 4-tuple of 32 buckets"
    scenario 2 32
    expect 0 "$verify" explore scenario.toml --strategy cover --depth 4 --certificate fours.txt
    expect 0 "$check" fours.txt
    says "covered: every 4 of 32 events"
    orders=$(sed -n 's/^orders //p' fours.txt)
    [ "$orders" -le 192 ] || fail "$orders orders"
    echo "cover: 4-tuples of 32 in $orders orders"
    exit 0
fi

claim="every ordered triple of 64 buckets, on each of three ranks"
scenario 3 64
expect 0 "$verify" explore scenario.toml --strategy cover --depth 3 --certificate triples.txt
says "cover: every 3 of 64 gradients became ready in every order, on every rank, in"
cp out first
expect 0 "$check" triples.txt
says "covered: every 3 of 64 events"
orders=$(sed -n 's/^orders //p' triples.txt)
[ "$orders" -le 42 ] || fail "$orders orders"
grep -q ": $((orders + 1)) schedules" first || fail "not every order was run"

claim="a certificate that was changed is refused"
awk '/^order / && ++n == 3 { next } { print }' triples.txt > dropped.txt
sed -i "s/^orders .*/orders $(($(sed -n 's/^orders //p' triples.txt) - 1))/" dropped.txt
expect 1 "$check" dropped.txt
says "in no order"
sed '0,/^order [0-9]* [0-9]*/s/^order \([0-9]*\) [0-9]*/order \1 \1/' triples.txt > twice.txt
expect 1 "$check" twice.txt
says "no permutation"
sed 's/^strength 3/strength 4/' triples.txt > stronger.txt
expect 1 "$check" stronger.txt
head -n -1 triples.txt > cut.txt
expect 1 "$check" cut.txt
sed 's/^cddp-cover 1/cddp-cover 2/' triples.txt > newer.txt
expect 1 "$check" newer.txt

claim="what was not covered is not certified"
scenario 2 8
expect 4 "$verify" explore scenario.toml --strategy cover --budget 3 --certificate none.txt
says "not covered"
[ ! -e none.txt ] || fail "a certificate of what was not run"
expect 2 "$verify" explore scenario.toml --strategy cover --depth 5
expect 2 "$verify" explore scenario.toml --certificate none.txt
scenario 2 129
expect 2 "$verify" explore scenario.toml --strategy cover
echo "cover: all claims hold"
