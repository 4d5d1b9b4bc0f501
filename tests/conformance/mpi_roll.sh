#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mpi_roll.sh MPIEXEC MPI_RANK: who is missing is named by the others. A monitored barrier over MPI names the lowest rank that is missing first, and then exactly those that
# are: one, two, all but rank 0. Ranks that stay away wait until the launcher ends them.
here=$(cd "$(dirname "$0")" && pwd)
call() { # WHO_STAYS_AWAY LOWEST ALL
    said=$(timeout -k 5 60 "$here/mpirun.sh" "$1" 4 "$2" roll "$3" 2>&1)
    code=$?
    echo "$said"
    echo "away: $3, exit code $code"
    [ "$code" -gt 0 ] && [ "$code" -lt 124 ] || { echo "FAILED exit code $code"; exit 1; }
    printf '%s\n' "$said" | grep -qx "rank 0: lost rank $4: it did not come to the monitored barrier of group 'world' within 1 s; no message came from $5" ||
        { echo "FAILED rank 0 does not name $5"; exit 1; }
}
call "$1" "$2" d 3 "rank 3"
call "$1" "$2" bd 1 "ranks 1 and 3"
call "$1" "$2" bcd 1 "ranks 1-3"

# A rank that stops when it has posted an operation: its fingerprint comes, and it takes no part.
said=$(timeout -k 5 60 "$here/mpirun.sh" "$1" 3 "$2" still 2>&1)
code=$?
echo "$said"
[ "$code" -gt 0 ] && [ "$code" -lt 124 ] || { echo "FAILED exit code $code"; exit 1; }
case $said in *"rank 0 says: allreduce #0 of group 'world' on rank 0: lost rank 2: "*) ;; *) echo "FAILED rank 0 does not name rank 2"; exit 1 ;; esac
