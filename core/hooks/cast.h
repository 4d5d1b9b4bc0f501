/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the four compressing cast hooks: low-precision copies of buckets, kept for
** reuse.
**
** Ownership  a cast owns its copies and the state of an inner hook until destroy.
*/
#pragma once
#include "cddp/hook.h"

typedef struct cd_cast cd_cast;

typedef struct cd_cast_spec {
    const char *name; /* of the hook, for messages */
    cddp_dtype dtype;
    bool wraps; /* an inner hook runs on the copy instead of divide and sum */
} cd_cast_spec;

/* Refuses a backend that cannot sum the dtype, and an inner hook where none is wanted or one is
** missing. */
cddp_status cd_cast_create(const cddp_hook_context *context, const cd_cast_spec *spec, void **self,
                           cddp_error *err);
void cd_cast_destroy(void *self); /* accepts NULL */
cddp_status cd_cast_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                        cddp_future *future, cddp_error *err);
cddp_status cd_cast_run_wrapped(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err);
/* Half the bytes of f32, whatever the bucket's dtype. */
uint64_t cd_cast_promise(const void *self, const cddp_grad_bucket *bucket);
/* that of the hook inside, for a bucket of the low dtype */
uint64_t cd_cast_promise_wrapped(const void *self, const cddp_grad_bucket *bucket);
uint32_t cd_cast_agreement(const void *self); /* that of the hook inside */
cddp_status cd_cast_rebuilt(void *self, uint32_t bucket_count, cddp_error *err);
cddp_status cd_cast_save(void *self, const cddp_state_writer *writer, cddp_error *err);
cddp_status cd_cast_load(void *self, const cddp_state_reader *reader, cddp_error *err);
