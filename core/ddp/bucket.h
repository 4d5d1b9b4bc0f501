/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets in memory: one slab per dtype, buckets in it at 64-byte boundaries with a red zone behind each, and for
** every variable a strided and a contiguous view of its slice.
**
** Ownership  a set owns its slabs and views from init to fini; gradients that are views of it must be re-pointed
**            before fini (cd_bucket_set_release_grads).
** Threads    the rank's.
** Errors     mixed dtypes or devices in a bucket are refused with the names of both parameters (ERR-13).
*/
#pragma once
#include "core/ddp/bucket_plan.h"
#include "core/ddp/module.h"

typedef struct cd_bucket {
    uint32_t index;
    uint32_t first_slot, variable_count; /* its run of the set's per-slot arrays */
    uint32_t pending;                    /* variables not yet ready in this iteration */
    bool is_sparse;
    bool is_launched; /* its future is under way */
    bool is_skipped;  /* not launched by choice (UNU-14) */
    bool is_complete; /* its result was written back */
    cddp_tensor flat; /* 1-D; real and of twice the length for c64 (SPA-05) */
    cddp_tensor red_zone;
    uint64_t limit_bytes;
    uint64_t content_digest; /* of the ordered (variable, offset, numel) list */
    cddp_grad_bucket hook_bucket; /* what a comm hook sees */
    cddp_future future;
    uint64_t wire_bytes; /* the future's works have posted so far */
    void *future_self; /* what the future's stages are given when no hook is registered */
} cd_bucket;

typedef struct cd_slab cd_slab;

typedef struct cd_bucket_set {
    const cddp_allocator *allocator;
    uint32_t generation;
    cd_bucket_layout layout;
    cd_bucket *buckets; /* (bucket_count) */
    size_t bucket_count, variable_count;
    /* By slot; the slots of a bucket are adjacent. */
    cddp_tensor *views;      /* the variable's own strides when it is dense (BKT-19) */
    cddp_tensor *slices;     /* contiguous, as a hook sees them (HOOK-06) */
    cddp_tensor *parameters; /* the parameters themselves, for hooks */
    int64_t *offsets, *lengths; /* elements of the flat tensor */
    /* By variable. */
    uint32_t *slot_of, *bucket_of;
    cddp_copy_pair *pairs; /* (variable_count) room for one grouped copy */
    cd_slab *slabs;
    size_t slab_count;
} cd_bucket_set;

typedef struct cd_bucket_set_spec {
    const cd_wrapped *module;
    const cd_bucket_layout *layout; /* taken: the set owns it on success */
    uint32_t generation;
    cddp_dtype dtype; /* storage dtype of floating buckets, or CDDP_DTYPE_COUNT: the variables' (MIX-06) */
} cd_bucket_set_spec;

cddp_status cd_bucket_set_init(cd_bucket_set *set, const cd_bucket_set_spec *spec, const cddp_allocator *allocator,
                               cddp_error *err);
void cd_bucket_set_fini(cd_bucket_set *set); /* accepts a zeroed set */

static inline const cddp_tensor *cd_bucket_set_view(const cd_bucket_set *set, size_t variable)
{
    return &set->views[set->slot_of[variable]];
}
/* The same slice of another flat tensor: the result of a hook, maybe of another dtype. */
cddp_tensor cd_bucket_view_of(const cd_bucket_set *set, uint32_t slot, const cddp_tensor *flat);
/* True when value is that very slice: same storage, same first element. */
bool cd_bucket_is_alias(const cddp_tensor *value, const cddp_tensor *view);

/* gradient_as_bucket_view: lends every dense variable its slice as home; gradients that exist move in (REB-08). */
cddp_status cd_bucket_set_lend_homes(cd_bucket_set *set, const cd_wrapped *module, cddp_error *err);
/* Takes the homes back: gradients that live in the set are dropped. */
void cd_bucket_set_release_grads(cd_bucket_set *set, const cd_wrapped *module);

/* Bytes of the slabs. */
uint64_t cd_bucket_set_bytes(const cd_bucket_set *set);
/* CD_ASSERTs that nobody wrote behind a bucket (red zones), where the host can look. */
void cd_bucket_audit_red_zone(const cd_bucket *bucket);
/* CD_ASSERTs offsets, lengths, places and layout of the whole set. */
void cd_bucket_set_audit(const cd_bucket_set *set);
