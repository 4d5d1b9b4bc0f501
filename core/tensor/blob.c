/* SPDX-License-Identifier: Apache-2.0 */
/* A growing run of bytes that is written front to back and read front to back. */
#include "core/tensor/blob.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <string.h>

void cd_blob_fini(cd_blob *blob)
{
    cd_release(blob->allocator, blob->bytes, blob->capacity);
    blob->bytes = NULL;
    blob->used = blob->capacity = blob->cursor = 0;
}

void cd_blob_clear(cd_blob *blob) { blob->used = blob->cursor = blob->missing = 0; }

static bool blob_write(void *context, const void *bytes, size_t byte_count)
{
    cd_blob *blob = context;
    if (!cd_vec_grow(blob->allocator, (void **)&blob->bytes, &blob->capacity,
                     blob->used + byte_count + 1, 1)) {
        blob->missing = byte_count;
        return false;
    }
    if (byte_count > 0) memcpy(blob->bytes + blob->used, bytes, byte_count);
    blob->used += byte_count;
    return true;
}

static bool blob_read(void *context, void *bytes, size_t byte_count)
{
    cd_blob *blob = context;
    if (byte_count > blob->used - blob->cursor) return false;
    if (byte_count > 0) memcpy(bytes, blob->bytes + blob->cursor, byte_count);
    blob->cursor += byte_count;
    return true;
}

cddp_state_writer cd_blob_writer(cd_blob *blob) { return (cddp_state_writer){blob, blob_write}; }

cddp_status cd_blob_end(const cd_blob *blob, cddp_status written, cddp_error *err)
{
    if (blob->missing == 0) return written;
    cd_error_reset(err);
    return cd_fail_memory(err, "%zu bytes to save", blob->missing);
}

cddp_state_reader cd_blob_reader(cd_blob *blob)
{
    blob->cursor = 0;
    return (cddp_state_reader){blob, blob_read};
}

uint64_t cd_blob_digest(const cd_blob *blob) { return cd_hash64(blob->bytes, blob->used, 0); }

static size_t tensor_bytes(const cddp_tensor *tensor)
{
    return (size_t)cddp_tensor_numel(tensor) * cddp_dtype_bytes(tensor->dtype);
}

cddp_status cd_blob_push_tensor(cd_blob *blob, const cddp_tensor *tensor, cddp_error *err)
{
    const size_t bytes = tensor_bytes(tensor);
    if (!cd_vec_grow(blob->allocator, (void **)&blob->bytes, &blob->capacity,
                     blob->used + bytes + 1, 1))
        return cd_fail_memory(err, "%zu bytes to save", bytes);
    if (bytes > 0) CD_TRY(tensor->device->read(tensor, blob->bytes + blob->used, bytes, err));
    blob->used += bytes;
    return CDDP_OK;
}

cddp_status cd_blob_pop_tensor(cd_blob *blob, const cddp_tensor *tensor, cddp_error *err)
{
    const size_t bytes = tensor_bytes(tensor);
    if (bytes > blob->used - blob->cursor) {
        return cd_fail(err, CDDP_E_CORRUPT, "the saved state ends %zu bytes early",
                       bytes - (blob->used - blob->cursor));
    }
    if (bytes > 0) CD_TRY(tensor->device->write(tensor, blob->bytes + blob->cursor, bytes, err));
    blob->cursor += bytes;
    return CDDP_OK;
}
