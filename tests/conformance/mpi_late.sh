#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mpi_late.sh MPIEXEC MPI_RANK: a rank whose all-reduce timed out frees its memory and leaves. That
# ends the job at once, although the other rank comes only a minute later. MPI itself would wait for
# it when it is finalised, and then write to memory that has gone.
here=$(cd "$(dirname "$0")" && pwd)
for options in guard=0 guard=1; do
    names="did not end in time"
    [ $options = guard=1 ] && names="allreduce #0 of group 'world' on rank 0: lost rank 1: it did not come within 0.5 s"
    began=$(date +%s)
    said=$(timeout -k 5 40 "$here/mpirun.sh" "$1" 2 "$2" late $options 2>&1)
    code=$?
    took=$(($(date +%s) - began))
    echo "$said"
    echo "options '$options': exit code $code after $took s"
    case $said in *"$names"*) ;; *) echo "FAILED nobody says what ran out of time"; exit 1 ;; esac
    case $said in *"then: "*"never ended in this process"*) ;; *) echo "FAILED the operation behind it does not say why"; exit 1 ;; esac
    case $said in *"another group: "*"never ended in this process"*) ;; *) echo "FAILED another group does not say why"; exit 1 ;; esac
    [ "$code" -gt 0 ] && [ "$code" -lt 124 ] || { echo "FAILED exit code $code"; exit 1; }
    [ "$took" -lt 30 ] || { echo "FAILED the job lasted $took s"; exit 1; }
done

# A process that never reaches MPI_Init: the others give up within the time-out.
began=$(date +%s)
said=$(timeout -k 5 40 "$here/mpirun.sh" "$1" 2 "$2" jammed 2>&1)
code=$?
took=$(($(date +%s) - began))
echo "$said"
echo "jammed: exit code $code after $took s"
case $said in *"MPI_Init_thread did not return within 0.5 s"*) ;; *) echo "FAILED nobody gives MPI_Init up"; exit 1 ;; esac
[ "$took" -lt 30 ] || { echo "FAILED the job lasted $took s"; exit 1; }
