/* SPDX-License-Identifier: Apache-2.0 */
/* The worlds of explore_bench, as a model for Spin: W ranks, B buckets of one gradient each.
**
**     spin -a -DW=4 -DB=5 explore.pml && cc -O3 -DSAFETY -DNOFAIR -DVECTORSZ=2048 -o pan pan.c && ./pan -m1000000 -w26
**
** Kept: gradients of a rank become ready in any order; buckets are launched in order (the next one whose gradients
** are all ready); the i-th collective of every rank is one operation, complete when all have posted it; a rank
** ends its backward when all of its collectives are complete; what meets must be the same bucket.
**
** Left out, and in explore_bench under test: everything inside the reducer (contributions, views, unused parameters, rebuild,
** no_sync, hooks, errors), the group's numbering and checks, the content of buffers, construction, the optimizer, every
** judgement but that buckets agree, and what the code does instead of what it is meant to do.
**
** -DNAIVE launches a bucket when its gradient is ready: Spin then finds the mismatch at once. */
#ifndef W
#define W 3
#endif
#ifndef B
#define B 4
#endif

typedef rank_state {
    bit ready[B];
    byte next;     /* bucket to launch next */
    byte posted;   /* calls of this rank so far */
}
rank_state r[W];
byte call[B];    /* the i-th collective's bucket + 1; 0: not posted */
byte arrived[B];   /* by how many */

inline launch(me, bucket)
{
    assert(call[r[me].posted] == 0 || call[r[me].posted] == bucket + 1);
    call[r[me].posted] = bucket + 1;
    arrived[r[me].posted]++;
    r[me].posted++
}

proctype rank(byte me)
{
    byte v, left = B;
    do
    :: left > 0 ->
        atomic {
            if /* any gradient that is not ready yet */
            :: B > 0 && !r[me].ready[0] -> v = 0
            :: B > 1 && !r[me].ready[1 % B] -> v = 1 % B
            :: B > 2 && !r[me].ready[2 % B] -> v = 2 % B
            :: B > 3 && !r[me].ready[3 % B] -> v = 3 % B
            :: B > 4 && !r[me].ready[4 % B] -> v = 4 % B
            :: B > 5 && !r[me].ready[5 % B] -> v = 5 % B
            fi;
            r[me].ready[v] = 1;
            left--;
#ifdef NAIVE
            launch(me, v)
#else
            do
            :: r[me].next < B && r[me].ready[r[me].next] -> launch(me, r[me].next); r[me].next++
            :: else -> break
            od
#endif
            ; v = 0
        }
    :: left == 0 -> break
    od;
    left = 0;
    do /* finalize: wait for each in turn */
    :: left < B -> atomic { arrived[left] == W; left++ }
    :: else -> break
    od
}

init
{
    byte i = 0;
    atomic {
        do
        :: i < W -> run rank(i); i++
        :: else -> break
        od
    }
}
