/* SPDX-License-Identifier: Apache-2.0 */
/* The judge of comm hooks, on one rank: from what a bucket was before the plan's hook and what came
** back, it finds what the rank should have given, and states sums in the trace.
**
**   launch    what left is read; the share that the plan's hook makes of it is found by own
**             arithmetic: a cast, the largest elements with what is owed, decoded codes, a gradient
**             with its error (local.c, low_rank.c)
**   deliver   the result is read; sums with weights from the plan's seed are taken of the share and
**             of the result → bucket_sum; what each gradient must be → bucket_slice
**
** No rank knows the mean. So I-HOOK adds up the shares of all ranks, and compares them with the
** result of each. Debts are kept here, from the beginning of the training: they follow from what
** left and from what came back, and no hook is asked.
**
** Lifetime   create → (launch → deliver) … → destroy.
** Ownership  copies names; borrows the tracer and the tensors whose forms the parameters have.
** Threads    the rank's.
** Errors     memory and the device's. A broken law is no error: it is in the trace.
*/
#pragma once
#include "cddp/trace.h"
#include "core/oracle/hook_law/planned.h"

typedef struct cd_hook_law cd_hook_law;

typedef struct cd_hook_law_options {
    cd_planned_words words;
    bool is_mixed_precision; /* the wrapper's, in the place of a hook (MIX-04) */
    cddp_dtype mixed_wire;
    uint32_t rank;
    uint32_t world_size;      /* ranks that reduce together, until a bucket says otherwise */
    uint64_t seed;            /* the plan's */
    const cddp_tensor *forms; /* (variable_count) shapes, strides and dtypes of the parameters */
    size_t variable_count;
    bool on_streams; /* of the run's device: a hook does not wait there to state laws */
    bool is_static;  /* its first pass calls every bucket the first one, also in posts (STA-04) */
    cddp_tracer *tracer;
    const cddp_allocator *allocator;
} cd_hook_law_options;

typedef struct cd_law_bucket {
    uint32_t index, generation;
    bool is_last, is_shadow; /* is_shadow: zeros of a joined rank */
    bool is_first_again;     /* or may be: of a static graph, behind a backward that was left */
    uint32_t ranks;          /* that reduce it, when it leaves; 0: as before */
    const cddp_tensor *flat;
    uint32_t count;
    const uint32_t *variables;        /* (count) */
    const int64_t *offsets, *lengths; /* (count) elements of flat */
    /* what the table of a plugin's hook promises */
    bool is_mean_promised, is_nothing_promised;
    const char *followed; /* the hook of this build whose law it follows; NULL: none */
    cddp_dtype wire;      /* it casts to this one first; CDDP_DTYPE_COUNT: it does not */
} cd_law_bucket;

/* Writes what a hook's flags (CDDP_HOOK_…) promise into the fields of the bucket. */
void cd_law_bucket_promise(cd_law_bucket *bucket, uint32_t flags);

cddp_status cd_hook_law_create(const cd_hook_law_options *options, cd_hook_law **law,
                               cddp_error *err) CDDP_MUST_CHECK;
void cd_hook_law_destroy(cd_hook_law *law); /* accepts NULL */
cddp_status cd_hook_law_launch(cd_hook_law *law, const cd_law_bucket *bucket,
                               cddp_error *err) CDDP_MUST_CHECK;
/* What an all-reduce of the plan's hook comes next with: the bucket, and whether something ends. */
typedef struct cd_law_turn {
    int64_t bucket;
    bool is_result;
} cd_law_turn;
/* Between launch and delivery: the rank posts numbers of the bucket, or received them. What is not
** as *turn says is not judged. */
cddp_status cd_hook_law_travel(cd_hook_law *law, uint32_t bucket, bool is_result,
                               const cddp_tensor *numbers, cd_law_turn *turn,
                               cddp_error *err) CDDP_MUST_CHECK;
/* States the digest that the state of the hook must have at a moment, as an `expected` event;
** false: it is not known. */
cddp_status cd_hook_law_expect_state(cd_hook_law *law, int64_t moment, bool *is_expected,
                                     cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_hook_law_deliver(cd_hook_law *law, const cd_law_bucket *bucket,
                                cddp_error *err) CDDP_MUST_CHECK;
