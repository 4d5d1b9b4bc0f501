/* SPDX-License-Identifier: Apache-2.0 */
/* What the judge takes from a run, as observed.def declares it, and the copies that it is made of.
**
** Lifetime   a copy is taken from a zeroed struct on, kept until the next one is taken into it, and
**            given back by fini.
** Threads    the rank's.
** Errors     taking a copy fails when there is no memory.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/device.h"
#include "core/oracle/oracle.h"
#include "core/tensor/blob.h"

/* ---- kinds of fields: numbers and copies ---- */

typedef struct cd_observed_tensor {
    cddp_tensor copy;
} cd_observed_tensor;

typedef struct cd_observed_tensors {
    const cddp_tensor *items; /* (count) copies; undefined where the run's is */
    size_t count;
} cd_observed_tensors;

typedef struct cd_observed_gradient {
    cddp_grad copy;
} cd_observed_gradient;

typedef struct cd_observed_gradients {
    const cddp_grad *items; /* (count) copies */
    size_t count;
} cd_observed_gradients;

typedef struct cd_observed_variables {
    const int32_t *items; /* (count) */
    size_t count;
} cd_observed_variables;

typedef struct cd_observed_ranks {
    const uint32_t *items; /* (count) */
    size_t count;
} cd_observed_ranks;

typedef struct cd_observed_flags {
    const bool *items; /* (count) */
    size_t count;
} cd_observed_flags;

typedef struct cd_observed_reals {
    const double *items; /* (count) */
    size_t count;
} cd_observed_reals;

typedef struct cd_observed_bytes {
    const cd_blob *blob;
} cd_observed_bytes;

typedef struct cd_observed_optimized {
    const cd_oracle_optimized *items; /* (count) every parameter of every optimizer */
    size_t count;
} cd_observed_optimized;

typedef struct cd_observed_bucket {
    const uint32_t *parameters; /* (count) */
    size_t count;
} cd_observed_bucket;

typedef struct cd_observed_buckets {
    const cd_observed_bucket *items; /* (count) */
    size_t count;
} cd_observed_buckets;

/* Where variables lie in a flat bucket. */
typedef struct cd_observed_places {
    const uint32_t *variables;        /* (count) */
    const int64_t *offsets, *lengths; /* (count) elements */
    size_t count;
} cd_observed_places;

typedef struct cd_observed_hook {
    bool is_present;
    uint32_t flags; /* CDDP_HOOK_… */
} cd_observed_hook;

/* ---- from observed.def: a struct per row ---- */

/* Whom a field of the table is judged by. A row that names nobody of these does not compile. */
typedef enum cd_judged_by {
    CD_JUDGED_BY_PLAN,
    CD_JUDGED_BY_CHAIN,
    CD_JUDGED_BY_CROSS,
    CD_JUDGED_BY_NOBODY
} cd_judged_by;

#define CD_OBSERVED_FIELD(type, name, judge, how) type name;
#define CD_OBSERVED(name, doc, fields)  \
    typedef struct cd_observed_##name { \
        fields                          \
    } cd_observed_##name;
#include "core/reference/observed.def"
#undef CD_OBSERVED_FIELD

/* ---- the table ---- */

typedef struct cd_observed_row {
    const char *moment, *field, *type, *how;
    cd_judged_by judge;
} cd_observed_row;

size_t cd_observed_count(void);
const cd_observed_row *cd_observed_get(size_t index);

/* ---- copies ---- */

/* Tensors of one kind, as they were when the copy was taken. Zero-initialise it and set
** `allocator`. */
typedef struct cd_tensor_copies {
    const cddp_allocator *allocator;
    cddp_tensor *items; /* (count) owned */
    size_t count;
} cd_tensor_copies;

cddp_status cd_tensor_copies_take(cd_tensor_copies *copies, const cddp_tensor *theirs, size_t count,
                                  cddp_error *err) CDDP_MUST_CHECK;
void cd_tensor_copies_fini(cd_tensor_copies *copies); /* accepts a zeroed struct */

/* Gradients of a model. Zero-initialise it and set `allocator` and `count`: room is made when the
** first copy is taken. */
typedef struct cd_gradient_copies {
    const cddp_allocator *allocator;
    cddp_grad *items;  /* (count) owned; NULL: nothing was copied yet */
    cddp_tensor *rows; /* (count) owned, of sparse gradients */
    size_t count;
} cd_gradient_copies;

cddp_status cd_gradient_copies_take(cd_gradient_copies *copies, size_t index,
                                    const cddp_grad *theirs, cddp_error *err) CDDP_MUST_CHECK;
void cd_gradient_copies_fini(cd_gradient_copies *copies); /* accepts a zeroed struct */
