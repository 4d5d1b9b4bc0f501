#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A recorded job of which rank 2 stays, and which is then killed as a whole: check names rank 2, or says that it may
# have been about to come.
#   killed.sh JOB VERIFY MODULES
job=$1 verify=$2 CDDP_BACKEND_DIR=$3
export CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null; rm -rf "$place"' EXIT
mkfifo "$place/go" || exit 1

fail() { echo "FAILED: $1"; cat "$place/page" "$place/out"; exit 1; }
says() { grep -qE -- "$1" "$place/page" || fail "check does not say \"$1\""; }

# end SIGNAL: the job, once rank 2 is waited for and no rank has shown an event for 3 s
end() {
    rm -f "$place"/run.db*
    exec 3<>"$place/go"
    CDDP_RECORD=$place/run.db "$job" 4 hangs <&3 >"$place/out" 2>&1 &
    pid=$!
    for _ in $(seq 600); do
        "$verify" watch "$place/run.db" --once --stall 3s >"$place/page" 2>&1
        grep -q "hang:" "$place/page" && break
        kill -0 "$pid" 2>/dev/null || fail "the job has ended before rank 2 was waited for"
        sleep 0.1
    done
    ranks=$("$verify" watch "$place/run.db" --once --format json | sed -n 's/.*"process": \([0-9]*\).*/\1/p')
    kill -s "$1" $ranks "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    pid=
    for rank in $ranks; do
        for _ in $(seq 600); do
            kill -0 "$rank" 2>/dev/null || break
            sleep 0.05
        done
    done
}

for signal in KILL TERM; do
    end $signal
    "$verify" check "$place"/run.db.* --stall 1s >"$place/page" 2>&1
    [ $? -eq 1 ] || fail "the exit code of a hang that SIG$signal ended"
    says "^ *hang: +ranks 0, 1 and 3 wait in allreduce #7 \\(bucket 0, step 3\\) for rank 2, which"
    says "^ *why +rank 2: it showed no event for [0-9.]+ s, until the job was ended"
    says "^ *I-LIVE +rank 2 "
    # For less time than that nobody hangs.
    "$verify" check "$place"/run.db.* >"$place/page" 2>&1
    [ $? -eq 4 ] || fail "the exit code where ranks had not waited for 30 s"
    says "the job was ended while it waited in allreduce #7 \\(bucket 0, step 3\\), for [0-9.]+ s; missing: rank 2"
    grep -q "hang:" "$place/page" && fail "a hang that is none"
done

# Where rank 2 was is known from its recording alone.
"$verify" check "$place"/run.db.[013] --stall 1s >"$place/page" 2>&1
[ $? -eq 4 ] || fail "the exit code without the recording of rank 2"
says "in allreduce #7 \\(bucket 0, step 3\\), for [0-9.]+ s; no recording says whether 1 other member came"
grep -q "hang:" "$place/page" && fail "a culprit that nobody knows"

# A store keeps what was decided.
"$verify" check "$place"/run.db.* --stall 1s --trace "$place/all.db" >"$place/page" 2>&1
"$verify" check "$place/all.db" >"$place/page" 2>&1
[ $? -eq 1 ] || fail "the exit code of the store"
says "^ *hang: +ranks 0, 1 and 3 wait in allreduce #7"
"$verify" check "$place/all.db" --stall 1s >"$place/page" 2>&1
[ $? -eq 2 ] || fail "--stall with a store"
echo "killed: all as it should be"
