#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A job of four ranks over Gloo that hangs, seen while it runs.
#   watch.sh JOB VERIFY MODULES
job=$1 verify=$2 CDDP_BACKEND_DIR=$3
export CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null; rm -rf "$place"' EXIT
mkfifo "$place/go" || exit 1

fail() { echo "FAILED: $1"; cat "$place/page" "$place/out"; exit 1; }
says() { grep -qE -- "$1" "$place/page" || fail "the page does not say \"$1\""; }

# begin: rank 2 stays in step 3 until a line comes through the FIFO, which descriptor 3 keeps open
begin() {
    rm -f "$place"/run.db*
    exec 3<>"$place/go"
    CDDP_RECORD=$place/run.db "$job" 4 hangs <&3 >"$place/out" 2>&1 &
    pid=$!
}
# await CODE WORDS: pages until one ends with this code and says this; each page is another look at the job
await() {
    for _ in $(seq 600); do
        "$verify" watch "$place/run.db" --once --stall 1s --color never >"$place/page" 2>&1
        [ $? -eq "$1" ] && grep -qE -- "$2" "$place/page" && return
        kill -0 "$pid" 2>/dev/null || fail "the job has ended before \"$2\""
        sleep 0.1
    done
    fail "no page says \"$2\""
}

"$verify" watch "$place/run.db" --once >"$place/page" 2>"$place/out"
[ $? -eq 2 ] && grep -q "nobody has begun to write" "$place/out" || fail "nothing to watch"

begin
await 1 "hang:"
says "^no progress for [0-9.]+ (s|min): no rank has emitted an event, and [0-9]+ operations? (is|are) open"
says "^ *hang: +ranks 0, 1 and 3 wait in allreduce #[0-9]+ \\(bucket 0, step 3\\) for rank 2, which was still running in"
says "^ *why +rank 2: its last event is [a-z_]+ in step 3, .* ago"
says "^  ranks 0, 1 and 3 .* waits for rank 2"
"$verify" watch "$place"/run.db.* --once --stall 1s --format json >"$place/page"
[ $? -eq 1 ] || fail "exit code of the page as JSON"
says '"stalled": true'
says '"headline": "hang: ranks 0, 1 and 3 wait'
says '"waits_for": \['

# Whoever reads the pages goes: watch ends with the next one, says nothing, and its exit code is that of the last page.
for reader in "head -n 1" true; do
    { timeout 60 "$verify" watch "$place/run.db" --interval 1 --stall 1s --color never 2>"$place/out"; echo $? >"$place/code"; } | $reader >"$place/page"
    [ "$(cat "$place/code")" -eq 1 ] || fail "exit code $(cat "$place/code") into a closed pipe ($reader)"
    [ ! -s "$place/out" ] || fail "words about a closed pipe ($reader)"
done

# It goes on when rank 2 does; watch sees that, and ends with the job.
"$verify" watch "$place/run.db" --interval 1s --color never >"$place/pages" 2>"$place/out" &
watcher=$!
echo go >&3
wait "$pid" || fail "the job"
pid=
wait "$watcher" || fail "watch does not end with the job"
tail -n 4 "$place/pages" >"$place/page"
says "ended normally"

# Rank 2 is killed while it is waited for.
begin
await 1 "hang:"
kill -KILL "$("$verify" watch "$place/run.db" --once --format json | sed -n '/"rank": 2,/,/"process"/s/.*"process": \([0-9]*\).*/\1/p')" || fail "whom to kill"
for _ in $(seq 100); do
    "$verify" watch "$place/run.db" --once --color never >"$place/page"
    grep -q "rank 2 .* its process [0-9]* is gone" "$place/page" && break
    sleep 0.1
done
says "rank 2 .* its process [0-9]* is gone"
kill -KILL "$pid"
wait "$pid" 2>/dev/null
pid=
echo "watch: all as it should be"
