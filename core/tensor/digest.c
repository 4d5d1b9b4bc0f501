/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/digest.h"

#include "core/base/hash.h"
#include "core/tensor/kernels.h"
#include "core/tensor/view.h"

static uint64_t digest_of(const cddp_tensor *t)
{
    uint64_t digest = 0;
    return t->device != NULL && t->device->digest(t, &digest, NULL) == CDDP_OK ? digest : 0;
}

/* Its elements lie in host memory one behind the other, and `cpu` hashes them. */
static bool is_plain(const cddp_tensor *t, int64_t *numel)
{
    return cd_view_is_sound(t) && t->device->digest == cddp_device_cpu()->digest &&
           cd_view_is_contiguous(t, numel);
}

static const unsigned char *address_of(const cddp_tensor *t)
{
    return (const unsigned char *)t->storage + t->offset * (int64_t)cddp_dtype_bytes(t->dtype);
}

/* The block that begins here. */
static size_t block_bytes(const unsigned char *at, const unsigned char *end)
{
    const size_t left = (size_t)(end - at);
    return left < CD_DIGEST_BLOCK_BYTES ? left : CD_DIGEST_BLOCK_BYTES;
}

void cd_digest_pass_begin(cd_digest_pass *pass, const cddp_tensor *whole)
{
    int64_t numel = 0;
    *pass = (cd_digest_pass){.whole = whole};
    if (!is_plain(whole, &numel)) return;
    pass->first = pass->next = address_of(whole);
    pass->end = pass->next + (size_t)numel * cddp_dtype_bytes(whole->dtype);
    pass->digest = (uint64_t)numel;
}

/* Hashes the whole blocks before `until`. */
static void advance(cd_digest_pass *pass, const unsigned char *until)
{
    for (size_t n; pass->next < pass->end; pass->next += n) {
        n = block_bytes(pass->next, pass->end);
        if (n > (size_t)(until - pass->next)) return;
        pass->digest = cd_hash64(pass->next, n, pass->digest);
    }
}

uint64_t cd_digest_pass_part(cd_digest_pass *pass, const cddp_tensor *part)
{
    int64_t numel = 0;
    if (pass->next == NULL || !is_plain(part, &numel)) return digest_of(part);
    const unsigned char *at = address_of(part);
    const unsigned char *const end = at + (size_t)numel * cddp_dtype_bytes(part->dtype);
    const bool is_inside = at >= pass->first && end <= pass->end;
    uint64_t digest = (uint64_t)numel;
    for (size_t n; at < end; at += n) {
        n = block_bytes(at, end);
        digest = cd_hash64(at, n, digest);
        if (is_inside && at + n > pass->next) advance(pass, at + n);
    }
    return digest;
}

uint64_t cd_digest_pass_end(cd_digest_pass *pass)
{
    if (pass->next == NULL) return digest_of(pass->whole);
    advance(pass, pass->end);
    return pass->digest;
}

static int64_t find_nonfinite(const cddp_tensor *t)
{
    int64_t index = -1;
    const bool has_numbers = t->device != NULL && (t->device->flags & CDDP_DEVICE_VALUES) != 0;
    return has_numbers && t->device->find_nonfinite(t, &index, NULL) == CDDP_OK ? index : -1;
}

uint64_t cd_digest_and_find_nonfinite(const cddp_tensor *tensor, int64_t *index)
{
    int64_t numel = 0;
    if (!is_plain(tensor, &numel) ||
        tensor->device->find_nonfinite != cddp_device_cpu()->find_nonfinite) {
        *index = find_nonfinite(tensor);
        return digest_of(tensor);
    }
    const size_t bytes = cddp_dtype_bytes(tensor->dtype);
    const unsigned char *const first = address_of(tensor), *const end =
                                                               first + (size_t)numel * bytes;
    uint64_t digest = (uint64_t)numel;
    *index = -1;
    for (const unsigned char *at = first; at < end;) {
        const size_t n = block_bytes(at, end), count = n / bytes;
        digest = cd_hash64(at, n, digest);
        const size_t found =
            *index < 0 ? cd_kernel_find_nonfinite(tensor->dtype, at, count) : count;
        if (found < count) *index = (int64_t)((size_t)(at - first) / bytes + found);
        at += n;
    }
    return digest;
}
