/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/digest.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/tensor/kernels.h"
#include "core/tensor/view.h"

#include <string.h>

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
    *pass = (cd_digest_pass){.whole = whole};
    if (!is_plain(whole, &pass->numel)) return;
    pass->first = pass->next = address_of(whole);
    pass->end = pass->next + (size_t)pass->numel * cddp_dtype_bytes(whole->dtype);
    pass->digest = (uint64_t)pass->numel;
}

/* end: of what is hashed next, one block behind the other */
static uint64_t hash_block(const unsigned char *at, size_t bytes, const unsigned char *end,
                           uint64_t digest)
{
    return cd_hash64_block(&(cd_hash_input){at, bytes, end}, digest);
}

/* Hashes the whole blocks before `until`. */
static void advance(cd_digest_pass *pass, const unsigned char *until)
{
    for (size_t n; pass->next < pass->end; pass->next += n) {
        n = block_bytes(pass->next, pass->end);
        if (n > (size_t)(until - pass->next)) return;
        /* a part has asked for what comes */
        pass->digest = hash_block(pass->next, n, until, pass->digest);
    }
}

uint64_t cd_digest_pass_part(cd_digest_pass *pass, const cddp_tensor *part)
{
    int64_t numel = 0;
    if (pass->next == NULL || !is_plain(part, &numel)) return digest_of(part);
    const unsigned char *at = address_of(part);
    const unsigned char *const end = at + (size_t)numel * cddp_dtype_bytes(part->dtype);
    const bool is_inside = at >= pass->first && end <= pass->end;
    if (at == pass->first && end == pass->end && numel == pass->numel) { /* it is the whole */
        advance(pass, end);
        return pass->digest;
    }
    uint64_t digest = (uint64_t)numel;
    for (size_t n; at < end; at += n) {
        n = block_bytes(at, end);
        digest = hash_block(at, n, is_inside ? pass->end : end, digest);
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

/* Squares of f32 do not vanish in f64, where they are added up: the norm is 0 where all are. */
bool cd_glance(const cddp_tensor *tensor, bool *is_zero, int64_t *nonfinite)
{
    const int64_t most = 64;
    int64_t numel = 0;
    if (tensor->dtype != CDDP_F32 || !is_plain(tensor, &numel) || numel > most ||
        tensor->device->find_nonfinite != cddp_device_cpu()->find_nonfinite)
        return false;
    const unsigned char *at = address_of(tensor);
    uint32_t any = 0;
    int64_t found = -1;
    for (int64_t i = numel; i-- > 0;) {
        uint32_t bits;
        memcpy(&bits, at + (size_t)i * sizeof bits, sizeof bits);
        bits &= UINT32_C(0x7fffffff); /* without the sign */
        any |= bits;
        if (bits >= UINT32_C(0x7f800000)) found = i;
    }
    *is_zero = any == 0;
    *nonfinite = found;
    return true;
}

/* Values of `nonfinite` that are no index: none was found yet, nobody asks. */
enum { NOT_YET = -1, NOT_WANTED = -2 };

/* A tensor of which all before `next` was hashed. */
typedef struct follower {
    cddp_dtype dtype;
    const unsigned char *begin, *next, *end;
    cd_digest_written so_far;
} follower;

static follower follower_of(const cddp_tensor *t, int64_t numel, int64_t nonfinite)
{
    const unsigned char *begin = address_of(t);
    return (follower){t->dtype,
                      begin,
                      begin,
                      begin + (size_t)numel * cddp_dtype_bytes(t->dtype),
                      {(uint64_t)numel, nonfinite}};
}

/* bytes: a multiple of the block unless they are the last ones. */
static void follow(follower *f, size_t bytes)
{
    const size_t element = cddp_dtype_bytes(f->dtype);
    cd_digest_written *w = &f->so_far;
    for (size_t n; bytes > 0; f->next += n, bytes -= n) {
        n = block_bytes(f->next, f->next + bytes);
        w->digest = hash_block(f->next, n, f->end, w->digest);
        if (w->nonfinite != NOT_YET) continue;
        const size_t count = n / element;
        const size_t found = cd_kernel_find_nonfinite(f->dtype, f->next, count);
        if (found < count) w->nonfinite = (int64_t)((size_t)(f->next - f->begin) / element + found);
    }
}

uint64_t cd_digest_and_find_nonfinite(const cddp_tensor *tensor, int64_t *index)
{
    int64_t numel = 0;
    if (!is_plain(tensor, &numel) ||
        tensor->device->find_nonfinite != cddp_device_cpu()->find_nonfinite) {
        *index = find_nonfinite(tensor);
        return digest_of(tensor);
    }
    follower f = follower_of(tensor, numel, NOT_YET);
    follow(&f, (size_t)(f.end - f.begin));
    *index = f.so_far.nonfinite;
    return f.so_far.digest;
}

/* ---- what is written ---- */

/* The first cache of any processor has as many, and the second one many times as many. */
enum { WRITTEN_BYTES = 4 * CD_DIGEST_BLOCK_BYTES };

bool cd_digest_may_follow(const cddp_tensor *dst, const cddp_tensor *src)
{
    int64_t to = 0, from = 0;
    /* less is in the cache afterwards anyway */
    if (cddp_tensor_numel(dst) * (int64_t)cddp_dtype_bytes(dst->dtype) <= WRITTEN_BYTES)
        return false;
    return is_plain(dst, &to) && is_plain(src, &from) && to == from && dst->dtype == src->dtype &&
           dst->device == src->device &&
           dst->device->find_nonfinite == cddp_device_cpu()->find_nonfinite;
}

static cddp_tensor piece_of(const cddp_tensor *t, int64_t at, int64_t count)
{
    return cddp_tensor_of(t->device, t->storage, t->offset + at, t->dtype, &count, 1);
}

/* n: 0 for a copy */
static cddp_status write_and_follow(const cddp_copy_pair *pair, int64_t n,
                                    cd_digest_written *written, cddp_error *err)
{
    const cddp_device *device = pair->dst.device;
    const size_t element = cddp_dtype_bytes(pair->dst.dtype);
    const int64_t numel = cddp_tensor_numel(&pair->dst), most = (int64_t)(WRITTEN_BYTES / element);
    follower f = follower_of(&pair->dst, numel, n == 0 ? NOT_YET : NOT_WANTED);
    for (int64_t at = 0, count; at < numel; at += count) {
        count = numel - at < most ? numel - at : most;
        const cddp_tensor dst = piece_of(&pair->dst, at, count),
                          src = piece_of(&pair->src, at, count);
        if (n == 0)
            CD_TRY(device->copy(&dst, &src, NULL, err));
        else
            CD_TRY(device->multiply_reciprocal(&dst, &src, n, NULL, err));
        follow(&f, (size_t)count * element);
    }
    *written = f.so_far;
    return CDDP_OK;
}

cddp_status cd_digest_copy(const cddp_copy_pair *pair, cd_digest_written *written, cddp_error *err)
{
    return CD_PASS(write_and_follow(pair, 0, written, err));
}

cddp_status cd_digest_multiply_reciprocal(const cddp_copy_pair *pair, int64_t n, uint64_t *digest,
                                          cddp_error *err)
{
    cd_digest_written written;
    CD_TRY(write_and_follow(pair, n, &written, err));
    *digest = written.digest;
    return CDDP_OK;
}
