/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes in memory behind the state writer and reader that hooks, optimizers and scalers use. */
#pragma once
#include "cddp/hook.h"

typedef struct cd_blob {
    const cddp_allocator *allocator;
    uint8_t *bytes; /* (used) */
    size_t used, capacity, cursor;
    size_t missing; /* bytes of the write that there was no memory for; 0: none */
} cd_blob;

void cd_blob_fini(cd_blob *blob);  /* accepts a zeroed blob */
void cd_blob_clear(cd_blob *blob); /* forgets the content, keeps the memory */
cddp_state_writer cd_blob_writer(cd_blob *blob);
/* Turns what a user of the writer returned into the status. The user cannot know that a failure
** means no memory. */
cddp_status cd_blob_end(const cd_blob *blob, cddp_status written, cddp_error *err) CDDP_MUST_CHECK;
/* From the start. */
cddp_state_reader cd_blob_reader(cd_blob *blob);
uint64_t cd_blob_digest(const cd_blob *blob);
/* Content of a tensor, in logical order. */
cddp_status cd_blob_push_tensor(cd_blob *blob, const cddp_tensor *tensor,
                                cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_blob_pop_tensor(cd_blob *blob, const cddp_tensor *tensor,
                               cddp_error *err) CDDP_MUST_CHECK;
