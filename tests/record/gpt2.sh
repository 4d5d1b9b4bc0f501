#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Walks through examples/gpt2 as its README says.
#   gpt2.sh SOURCES PROGRAMS LIBRARY VERIFY MODULES CC
sources=$1 programs=$2 library=$3 verify=$4 CDDP_BACKEND_DIR=$5 cc=$6
export CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
cd "$place" || exit 1
failed=0
fail() {
    echo "$1"
    shift
    [ $# -eq 0 ] || cat "$@"
    failed=1
}
# expect WORDS CODE COMMAND…
expect() {
    words=$1 wanted=$2
    shift 2
    "$@" > report 2>&1
    code=$?
    [ $code -eq "$wanted" ] && grep -q -- "$words" report || fail "$*: ended with $code, wanted $wanted and \"$words\"" report
}

# The diffs are what lies between the files.
for pair in train_gpt2:record:train_gpt2_record train_gpt2_record:ddp:train_gpt2_ddp; do
    from=${pair%%:*} to=${pair##*:} diff=${pair#*:}
    cp "$sources/$from.c" x.c
    patch -s x.c "$sources/${diff%:*}.diff" && cmp -s x.c "$sources/$to.c" || fail "${diff%:*}.diff does not lead from $from.c to $to.c"
done

# One process, recorded or not, and W ranks: the same losses.
"$programs/train_gpt2" > plain
"$programs/train_gpt2_record" --record one.db > out || fail "train_gpt2_record" out
cmp -s plain out || fail "recording changes what is printed" plain out
"$programs/train_gpt2_ddp" --ranks 4 --record many.db > out 2>&1 || fail "train_gpt2_ddp" out
awk 'NR == FNR { loss[$2] = $4; next } { d = $4 - loss[$2]; if (!($2 in loss) || d * d > 1e-8) exit 1; n++ } END { if (n != 10) exit 1 }' plain out || fail "four ranks print something else than one process" plain out
expect "proven    reductions made the mean of the recorded gradients" 0 "$verify" check one.db.0
# A program without groups is recorded as one process by the environment alone.
CDDP_RECORD=asked.db "$programs/train_gpt2_record" > out || fail "train_gpt2_record" out
expect "run       1 rank, 10 steps" 0 "$verify" check asked.db
expect "proven    reductions made the mean of the recorded gradients" 0 "$verify" check many.db.0 many.db.1 many.db.2 many.db.3
# What is read by the name of its run, or of its folder, is not written over.
mkdir folder && cp many.db.? folder && echo "cddp exit note 1" > folder/many.db.1.exit && ln -s many.db.0 link
"$verify" check many.db --trace store.db > /dev/null || fail "check --trace"
for attempt in "many.db.0 check many.db --format json" "many.db.1 lift many.db" "one.db.0 compare one.db many.db --rtol 1e-5" \
    "many.db.2 compare one.db many.db --rtol 1e-5" "many.db.2 report many.db --format html" "folder/many.db.3 check folder" \
    "folder/many.db.1.exit check folder" "link report many.db" "store.db diff store.db:1 store.db:1"; do
    written=${attempt%% *}
    cp "$written" kept
    expect "is read: what is written there would replace it" 2 "$verify" ${attempt#* } -o "$written"
    cmp -s kept "$written" || fail "$attempt: replaced"
done

# Summed exactly: equal bits on 1, 2, 4 and 8 ranks, and when a run is resumed on another number.
for ranks in 1 2 4 8; do
    "$programs/train_gpt2_ddp" --reproducible 1 --steps 6 --ranks $ranks --save $ranks.bin --record exact$ranks.db > out 2>&1 || fail "$ranks ranks" out
    cmp 1.bin $ranks.bin || fail "$ranks ranks end with other weights than one"
done
"$programs/train_gpt2_ddp" --reproducible 1 --steps 3 --ranks 4 --save half.bin > out 2>&1 || fail "the first half" out
"$programs/train_gpt2_ddp" --reproducible 1 --steps 3 --ranks 2 --load half.bin --save two.bin --record resumed.db > out 2>&1 || fail "the second half" out
cmp 1.bin two.bin || fail "a resumed run ends with other weights"
expect "verified" 0 "$verify" check resumed.db.0 resumed.db.1
expect "equal bit for bit: exact4.db" 0 "$verify" compare exact1.db exact4.db
expect "step 0 with equal parameters: local gradients at most .*--rtol 1e-05 allows" 0 "$verify" compare one.db many.db --rtol 1e-5

# Every format of a report: what differs is a finding of I-REF.
expect '<failure type="I-REF" message="not as one process has it: the local gradients">' 1 "$verify" compare one.db many.db --rtol 1e-12 --format junit
expect '"ruleId": "I-REF"' 1 "$verify" compare one.db many.db --rtol 1e-12 --format sarif
expect 'not as one process has it: the local gradients' 1 "$verify" compare one.db many.db --rtol 1e-12 --format html
expect 'failures="0" errors="0"' 0 "$verify" compare exact1.db exact4.db --format junit

# The exercise: number, exit code and words of check, more arguments.
mistake() {
    number=$1 code=$2 words=$3
    shift 3
    cp "$sources/train_gpt2_ddp.c" train_gpt2_ddp.c
    patch -s -p1 < "$sources/mistakes/$number.patch" || fail "mistakes/$number.patch does not apply"
    "$cc" -std=c11 -O1 -I"$sources" -I"$sources/../../include" train_gpt2_ddp.c "$sources/gpt2.c" "$sources/settings.c" -o wrong -L"$library" -lcddp -lm -Wl,-rpath,"$library" ||
        fail "mistakes/$number.patch does not compile"
    rm -f wrong.db.*
    ./wrong --ranks 4 --steps 4 --record wrong.db "$@" > out 2>&1
    expect "$words" "$code" "$verify" check wrong.db.*
}
mistake 1 1 "I-DATA  rank 1 consumes sample 0 again"
mistake 2 1 "I-ONCE  .*local gradient"
mistake 3 1 "I-STEP  .*disagree on whether to skip the step"
mistake 4 1 "I-STEP  .*disagree on the learning rate"
mistake 5 1 "I-CHAIN  .*changed between reduction of step 0 and optimizer of step 0"
mistake 6 1 "I-PARAMEQ  rank 0 .*hold different values" --load half.bin
mistake 7 1 "I-ORDER  rank 0 .*disagree on collective #3" --timeout 3
mistake 8 0 "verified"
"$programs/train_gpt2_record" --steps 4 --record one4.db > out || fail "train_gpt2_record" out
expect "jump      the first one is at step 1: " 4 "$verify" compare one4.db wrong.db --rtol 1e-5
mistake 8 0 "verified" --reproducible 1
expect "first .*step 1, the reduced gradient of wte.weight" 1 "$verify" compare exact1.db wrong.db
exit $failed
