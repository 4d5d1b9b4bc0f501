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

for mistake in none evaluates; do
    CDDP_RECORD=$place/run.db "$job" 2 $mistake >"$place/page" 2>&1 || fail "$mistake"
    "$verify" check "$place"/run.db.* >"$place/page" 2>&1 || fail "$mistake is not verified as a whole"
    points="0 1 3 5 6 7"
    [ $mistake = none ] || points="4 7" # at 7 / 8 it has posted more than a livelock is told by
    for at in $points; do
        # One rank was killed; the other came to its end.
        for rank in 0 1; do
            "$cut" "$place/run.db.$rank" "$place/cut.db.$rank" $at && cp "$place/run.db.$((1 - rank))" "$place/cut.db.$((1 - rank))" || exit 1
            judge 1 "$mistake, rank $rank stops at $at / 8"
            grep -q "^ *I-FAIL  rank $rank died" "$place/page" || fail "$mistake: rank $rank stops at $at / 8 and is not named"
        done
        # The whole job was, the second rank at another point.
        for later in 0 1; do
            other=$(((at + later) % 8))
            "$cut" "$place/run.db.0" "$place/cut.db.0" $at && "$cut" "$place/run.db.1" "$place/cut.db.1" $other || exit 1
            judge 4 "$mistake, the job stops at $at and $other / 8"
        done
    done
    rm -f "$place"/*.db.*
done
echo "cut: all as it should be"
