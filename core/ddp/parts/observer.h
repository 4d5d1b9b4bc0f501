/* SPDX-License-Identifier: Apache-2.0 */
/* What a reducer shows of a bucket whose result a comm hook makes: its numbers before the hook sees
** them, and the hook's result before anybody copies it.
**
** The hook shows nothing itself. Who judges a hook needs what went in and what came out, as the
** reducer has them.
**
** Ownership  everything is borrowed until the call returns; the observer while it is registered.
** Errors     an error of the observer is the backward's.
*/
#pragma once
#include "cddp/status.h"
#include "cddp/tensor.h"

#include <stdint.h>

typedef struct cd_shown_bucket {
    uint32_t index, generation;
    bool is_last;   /* as the hook sees it (STA-04) */
    bool is_shadow; /* zeros of a joined rank */
    const cddp_tensor *flat;
    uint32_t count;
    const uint32_t *variables;        /* (count) */
    const int64_t *offsets, *lengths; /* (count) elements of flat */
} cd_shown_bucket;

typedef struct cd_bucket_observer {
    void *self;
    /* called when: a bucket is about to be given to its hook. */
    cddp_status (*leaves)(void *self, const cd_shown_bucket *bucket, cddp_error *err);
    /* called when: the hook's future has completed; flat is its result, of any dtype. */
    cddp_status (*returns)(void *self, const cd_shown_bucket *bucket, cddp_error *err);
} cd_bucket_observer;

/* Which bucket's continuation runs next. Without one they run in rounds, after the last launch. */
typedef struct cd_continuation_chooser {
    void *self;
    /* called when: buckets have stages left. count >= 2. UINT32_MAX among options: none of them,
    ** the backward goes on. Returns an index; 0 everywhere is the order of rounds. */
    uint32_t (*choose)(void *self, const uint64_t *options, uint32_t count);
} cd_continuation_chooser;
