/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets in memory: one slab per dtype, buckets in it at 64-byte boundaries with a red zone behind
** each. A variable's view of its slice is made when it is asked for, from the variable's form and
** its offset; what only comm hooks look at, contiguous slices and parameters in lists, exists once
** there is a hook.
**
** Ownership  a set owns its slabs from init to fini and borrows the module; gradients that are
**            views of it must be re-pointed before fini (cd_bucket_set_release_grads).
** Threads    the rank's.
** Errors     mixed dtypes or devices in a bucket are refused with the names of both parameters
**            (ERR-13).
*/
#pragma once
#include "core/base/arena.h"
#include "core/ddp/parts/bucket_plan.h"
#include "core/ddp/parts/module.h"
#include "core/tensor/digest.h"

/* What was read of a bucket's memory (core/ddp/reducer/reading.h). */
typedef struct cd_reading {
    int64_t digest, slices; /* slices: folded, as the events have them */
    bool is_known;          /* nobody wrote since */
    bool has_slices;        /* the set's slice_digests are those of the result */
    bool has_written;       /* the set's `written` are the gradients: copies, or slices */
    bool is_copied;         /* they were copied while the result was read */
} cd_reading;

typedef struct cd_bucket {
    uint32_t index;
    uint32_t first_slot, variable_count; /* its run of the set's per-slot arrays */
    uint32_t pending;                    /* variables not yet ready in this iteration */
    /* elements of the flat tensor per element of a variable: 2 for c64 (SPA-05) */
    uint32_t flat_per_element;
    uint32_t view_unit; /* by which a view's offset is smaller than that in the flat tensor */
    bool is_sparse;
    bool is_launched; /* its future is under way */
    bool is_skipped;  /* not launched by choice (UNU-14) */
    bool is_complete; /* its result was written back */
    bool is_reported; /* the trace knows that its result is there */
    bool is_answered; /* who of it is globally unused is known */
    cddp_tensor flat; /* 1-D; real and of twice the length for c64 (SPA-05) */
    uint64_t limit_bytes;
    uint64_t content_digest; /* of the ordered (variable, offset, numel) list */
    cddp_future future;
    uint64_t wire_bytes; /* the future's works have posted so far */
    void *future_self;   /* what the future's stages are given when no hook is registered */
    cd_reading reading;
} cd_bucket;

typedef struct cd_slab cd_slab;

typedef struct cd_bucket_set {
    const cddp_allocator *allocator;
    cd_arena arena; /* owns every table below but the layout's */
    const cd_wrapped *module;
    uint32_t generation;
    cd_bucket_layout layout;
    cd_bucket *buckets; /* (bucket_count) */
    size_t bucket_count, variable_count;
    /* By slot; the slots of a bucket are adjacent. */
    int64_t *offsets, *lengths; /* elements of the flat tensor */
    int64_t *slice_digests;     /* of the result, as its reading found them */
    /* For hooks; NULL without one (cd_bucket_set_show_to_hook). */
    cddp_grad_bucket *hook_buckets; /* (bucket_count) what a comm hook sees */
    cddp_tensor *slices;            /* by slot: contiguous (HOOK-06) */
    cddp_tensor *parameters;        /* by slot: the parameters themselves */
    /* By variable. */
    uint32_t *slot_of, *bucket_of;
    /* (largest_count) room for the grouped copy of one bucket, where there are any */
    cddp_copy_pair *pairs;
    /* by the place in the bucket: gradients, as they were copied out of it or are its slices */
    cd_digest_written *written;
    size_t largest_count; /* variables of the bucket that has most */
    cd_slab *slabs;
    size_t slab_count;
} cd_bucket_set;

typedef struct cd_bucket_set_spec {
    const cd_wrapped *module;
    const cd_bucket_layout *layout; /* taken: the set owns it on success */
    uint32_t generation;
    bool for_hook;   /* a comm hook will see it */
    bool for_copies; /* gradients live elsewhere, or are copied a bucket at a time */
    /* storage dtype of floating buckets, or CDDP_DTYPE_COUNT: the variables' (MIX-06) */
    cddp_dtype dtype;
} cd_bucket_set_spec;

cddp_status cd_bucket_set_init(cd_bucket_set *set, const cd_bucket_set_spec *spec,
                               const cddp_allocator *allocator, cddp_error *err);
void cd_bucket_set_fini(cd_bucket_set *set); /* accepts a zeroed set */

/* Makes what hooks look at, once. */
cddp_status cd_bucket_set_show_to_hook(cd_bucket_set *set, cddp_error *err);
/* Sets the index under which a hook sees the bucket this time (STA-04); returns whether the hook
** sees it as the last. */
bool cd_bucket_set_report(cd_bucket_set *set, const cd_bucket *bucket, uint32_t index);
/* The bucket as the stages of its future see it: the hook's own, or one in *plain. */
cddp_grad_bucket *cd_bucket_set_reported(const cd_bucket_set *set, const cd_bucket *bucket,
                                         cddp_grad_bucket *plain);

/* A dense variable's slice of another flat tensor (the result of a hook, maybe of another dtype),
** with the variable's own strides when it is dense itself (BKT-19). */
cddp_tensor cd_bucket_set_view_of(const cd_bucket_set *set, size_t variable,
                                  const cddp_tensor *flat);
/* The same of its bucket. */
static inline cddp_tensor cd_bucket_set_view(const cd_bucket_set *set, size_t variable)
{
    return cd_bucket_set_view_of(set, variable, &set->buckets[set->bucket_of[variable]].flat);
}
/* True for the storage and the first element of that very view. */
static inline bool cd_bucket_set_holds(const cd_bucket_set *set, size_t variable,
                                       const void *storage, int64_t offset)
{
    const cd_bucket *bucket = &set->buckets[set->bucket_of[variable]];
    return storage == bucket->flat.storage &&
           offset * bucket->view_unit == bucket->flat.offset + set->offsets[set->slot_of[variable]];
}
/* True when value is that very slice: same storage, same first element. */
bool cd_bucket_is_alias(const cddp_tensor *value, const cddp_tensor *view);

/* gradient_as_bucket_view: lends every dense variable its slice as home; gradients that exist and
** fit move in (REB-08). */
cddp_status cd_bucket_set_lend_backing(cd_bucket_set *set, cddp_error *err);
/* Takes the homes back: gradients that live in the set are dropped. */
void cd_bucket_set_release_grads(cd_bucket_set *set);

static inline uint64_t cd_bucket_bytes(const cd_bucket *bucket)
{
    return (uint64_t)cddp_tensor_numel(&bucket->flat) * cddp_dtype_bytes(bucket->flat.dtype);
}
/* Fails when a hook or a backend wrote behind the bucket (red zones), where the host can look; the
** red zone is whole again afterwards. */
cddp_status cd_bucket_check_red_zone(const cd_bucket *bucket, cddp_error *err);
/* Would that fail? It changes nothing. */
bool cd_bucket_is_overwritten(const cd_bucket *bucket);
/* CD_ASSERTs offsets, lengths, places and layout of the whole set. */
void cd_bucket_set_audit(const cd_bucket_set *set);
