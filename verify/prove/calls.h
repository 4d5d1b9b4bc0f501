/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank issues, its sequence of collectives, and what each of them returned.
**
** A tap is a backend around another one. It records the collectives of every rank and their
** results. A rank can then run again by itself: its results come from the record.
**
** Lifetime   the tap's table is borrowed by the run; sequences and results stay until fini.
** Threads    one.
*/
#pragma once
#include "cddp/backend.h"
#include "core/base/text.h"

typedef struct cd_call {
    uint64_t group; /* digest of its name: the same in worlds of every size */
    uint64_t label; /* bucket index + 1, or 0 */
    /* of the bucket's ordered (variable, offset, numel) list; 0: none, or not known here */
    uint64_t content;
    uint64_t digest; /* of what is sent; 0 where the device has no content */
    int64_t numel;   /* of this rank's operand; -1: its own shares */
    uint32_t op, reduce_op, root, dtype;
} cd_call;

typedef struct cd_calls {
    cd_call *items; /* (count) */
    size_t count, capacity;
} cd_calls;

void cd_call_make(cd_call *call, const char *group, const cddp_collective *collective,
                  uint32_t group_rank);
/* Same group, operation, dtype, count and bucket list: what collectives need to fit together. A
** content of 0 is not known, and equals every other. */
bool cd_call_fits(const cd_call *a, const cd_call *b);
void cd_call_print(cd_text *text, const cd_call *call);
cddp_status cd_calls_push(cd_calls *calls, size_t at, const cd_call *call,
                          cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_calls_copy(cd_calls *to, const cd_calls *from, cddp_error *err) CDDP_MUST_CHECK;
void cd_calls_fini(cd_calls *calls); /* accepts a zeroed sequence */
/* Of a whole sequence, digests included. */
uint64_t cd_calls_digest(const cd_calls *calls);

/* Do the collectives of these ranks fit together? In each group all ranks must issue the same ones.
** And ranks that wait for each collective before the next must not wait for each other: the
** wait-for graph over all groups has no cycle. */
typedef enum cd_calls_end { CD_CALLS_FIT, CD_CALLS_PART, CD_CALLS_WAIT } cd_calls_end;
typedef struct cd_calls_conflict {
    cd_calls_end end;
    /* part: the two; wait: one that waits, and one of those it waits for, which waits elsewhere */
    uint32_t ranks[2];
    size_t items[2];  /* where in their sequences */
    bool has_call[2]; /* false: that rank has no more of this group */
} cd_calls_conflict;
cddp_status cd_calls_compare(const cd_calls *sequences, uint32_t count, cd_calls_conflict *conflict,
                             cddp_error *err) CDDP_MUST_CHECK;

typedef struct cd_received {
    uint64_t group, sequence;
    uint32_t rank, group_size;
    uint32_t op, reduce_op;
    cddp_tensor tensor; /* own storage */
} cd_received;

typedef struct cd_results {
    cd_received *items; /* (count) */
    size_t count, capacity;
} cd_results;

const cd_received *cd_results_find(const cd_results *results, uint32_t rank, uint64_t group,
                                   uint64_t sequence);
void cd_results_fini(cd_results *results); /* accepts zeroed results */

typedef struct cd_call_tap {
    cddp_backend table;
    cddp_backend inner;        /* every slot filled */
    const cddp_backend *given; /* what open of the inner one receives */
    cd_calls *sequences;       /* (rank_count) */
    uint32_t rank_count;
    cd_results results;
} cd_call_tap;

cddp_status cd_call_tap_init(cd_call_tap *tap, const cddp_backend *inner, uint32_t rank_count,
                             cddp_error *err) CDDP_MUST_CHECK;
void cd_call_tap_fini(cd_call_tap *tap); /* accepts a zeroed tap */
