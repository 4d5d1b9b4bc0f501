#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# killed.sh PROGRAM BACKEND: kill -9 of the judge of a run of four processes. Its ranks end with it.
# The store opens as incomplete and has every event of every iteration that all ranks had ended, as
# the log reported them: fewer than one batch of the writer.
set -u
program=$1 backend=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
steps=12 # 4 ranks report about 3,000 events in them; the writer's batch has 16,384
set -m

complain() {
    printf 'FAIL: %s\n' "$1"
    failed=1
}

# How many iterations all ranks had ended: a rank that began the next one had flushed them.
ended() {
    awk '$2 ~ /^[0-9]+$/ && $3 ~ /^[0-9]+$/ && $3 > last[$2] { last[$2] = $3 }
         END { least = -1; for (r = 0; r < 4; r++) if (least < 0 || last[r] + 0 < least) least = last[r] + 0; print least }' "$work/log"
}

: >"$work/log"
"$program" run --backend "$backend" -n 4 scenarios/models/mlp_two_ranks.toml --set train.steps=1000000 --log debug --trace "$work/run.db" \
    >"$work/out" 2>"$work/log" </dev/null &
pid=$!
for _ in $(seq 200); do [ "$(ended)" -ge $steps ] && break; sleep 0.05; done
kill -KILL "$pid"
wait "$pid" 2>/dev/null
for _ in $(seq 100); do pgrep -g "$pid" >/dev/null || break; sleep 0.1; done
pgrep -g "$pid" >/dev/null && { complain "ranks stayed behind"; kill -KILL -- "-$pid"; }

# watch sees that nothing will come any more.
timeout 60 "$program" watch "$work/run.db" --once --color never >"$work/page" 2>&1
[ $? -eq 1 ] && grep -q "^nothing writes it any more: the last event was " "$work/page" && grep -q ", 0 running, " "$work/page" ||
    complain "watch takes the run for one that goes on: $(cat "$work/page")"

ended=$(ended)
reported=$(awk -v ended="$ended" '$2 ~ /^[0-9]+$/ && $3 ~ /^[0-9]+$/ && $3 < ended { n++ } END { print n + 0 }' "$work/log")
[ "$ended" -ge $steps ] || complain "only $ended iterations had ended"
timeout 60 "$program" check "$work/run.db" >"$work/check" 2>&1
code=$?
[ $code -eq 4 ] || complain "check exits $code instead of 4"
stored=$(grep -oE '[0-9]+ events' "$work/check" | cut -d' ' -f1)
[ "${stored:-0}" -ge "$reported" ] || complain "${stored:-no} events are in the store; $reported were reported in the $ended iterations that had ended"
[ $failed -eq 0 ] || { head -20 "$work/check"; tail -3 "$work/log"; exit 1; }
echo "killed: $stored events are in the store, $reported were reported in the $ended iterations that had ended"
