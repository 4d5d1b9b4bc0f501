#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Recordings of a right program that stop at many points, also inside a long loop of small collectives: a rank whose
# recording stops may be said to have died, no other rank is accused, and nobody is said to loop or to wait in a circle.
#   cut.sh JOB CUT VERIFY MODULES
job=$1 cut=$2 verify=$3 CDDP_BACKEND_DIR=$4
export CDDP_BACKEND_DIR
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT

fail() { echo "FAILED: $1"; cat "$place/page"; exit 1; }

# judge CODE WHAT: check ends with this code
judge() {
    "$verify" check "$place"/cut.db.* >"$place/page" 2>&1
    code=$?
    [ $code -eq "$1" ] || fail "$2: check ends with $code, not $1"
    grep -qE "in circles|in a cycle|for (one another|each other)|^ *hang:" "$place/page" && fail "$2: a hang that is none"
}

CDDP_RECORD=$place/run.db "$job" 2 none >"$place/page" 2>&1 || fail "the program"
"$verify" check "$place"/run.db.* >"$place/page" 2>&1 || fail "it is not verified as a whole"
for at in 0 1 3 5 7; do
    # One rank was killed; the other came to its end.
    rank=$((at / 2 % 2))
    "$cut" "$place/run.db.$rank" "$place/cut.db.$rank" $at && cp "$place/run.db.$((1 - rank))" "$place/cut.db.$((1 - rank))" || exit 1
    judge 1 "rank $rank stops at $at / 8"
    grep -q "^ *I-FAIL  rank $rank died" "$place/page" || fail "rank $rank stops at $at / 8 and is not named"
    # The whole job was, the second rank at another point.
    for other in $at $(((at + 1) % 8)); do
        "$cut" "$place/run.db.0" "$place/cut.db.0" $at && "$cut" "$place/run.db.1" "$place/cut.db.1" $other || exit 1
        judge 4 "the job stops at $at and $other / 8"
        grep -q "livelock" "$place/page" && fail "no loop is there, at $at and $other / 8"
    done
done
rm -f "$place"/*.db.*

# Inside the loop, when more was posted than a livelock needs. It is as long on one rank, and takes less time.
CDDP_RECORD=$place/run.db "$job" 1 evaluates >"$place/page" 2>&1 || fail "the program with a loop"
"$verify" check "$place"/run.db.0 >"$place/page" 2>&1
grep -q "in circles" "$place/page" && fail "a loop that ends is no livelock"
"$cut" "$place/run.db.0" "$place/cut.db.0" 7 || exit 1
judge 4 "it stops in its loop"
grep -q "had posted allreduce(sum) of 1 f64 [0-9]* times in step 3" "$place/page" || fail "the loop is not said"
echo "cut: all as it should be"
