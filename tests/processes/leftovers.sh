#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# leftovers.sh PROGRAM BACKEND: kill -9 of a run leaves its folders; the next run removes them, and
# none of a run that is still there. TMPDIR may be relative.
set -u
program=$(realpath "$1") backend=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scenario=$PWD/scenarios/models/mlp_two_ranks.toml
mkdir "$work/tmp"
cd "$work" || exit 1
export TMPDIR=tmp
set -m

folders() { find "$work/tmp" /dev/shm -maxdepth 1 \( -name 'cddp-rendezvous-*' -o -name 'cddp-job-*' \) 2>/dev/null | sort; }
fail() { echo "FAIL: $1"; folders; exit 1; }
# Other runs of this machine have folders too: only new ones count.
folders >before
fresh() { folders | comm -13 before -; }

start() {
    "$program" run --backend "$backend" -n 2 "$scenario" --set train.steps=1000000 >out 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 200); do [ "$(fresh | wc -l)" -ge "$1" ] && break; sleep 0.05; done
    sleep 0.5
}

start 1
first=$(fresh)
[ -n "$first" ] || fail "the run has no folder"
kill -KILL "$pid"
wait "$pid" 2>/dev/null
for _ in $(seq 100); do pgrep -g "$pid" >/dev/null || break; sleep 0.1; done
fresh | grep -qxF "$first" || fail "the folder of the killed run is gone already: nothing to test"
start 1
second=$(fresh | grep -vxF "$first")
[ -n "$second" ] || fail "the second run has no folder"
fresh | grep -qxF "$first" && fail "the next run left what the killed one had"
timeout 60 "$program" run --backend "$backend" -n 2 "$scenario" >out 2>&1 || fail "a run beside it: $(tail -1 out)"
fresh | grep -qxF "$second" || fail "a live run lost its folder"
kill -INT "$pid"
wait "$pid" 2>/dev/null
[ -z "$(fresh)" ] || fail "an interrupted run leaves a folder"
echo "leftovers: $backend removes those of a killed run only"
