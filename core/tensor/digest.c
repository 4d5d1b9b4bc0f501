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
    if (cd_view_is_row(t)) {
        *numel = t->sizes[0];
        return t->device->digest == cddp_device_cpu()->digest;
    }
    return cd_view_is_sound(t) && t->device->digest == cddp_device_cpu()->digest &&
           cd_view_is_contiguous(t, numel);
}

static const unsigned char *address_of(const cddp_tensor *t)
{
    return (const unsigned char *)t->storage + t->offset * (int64_t)cd_dtype_bytes(t->dtype);
}

/* The block that begins here. */
static size_t block_bytes(const unsigned char *at, const unsigned char *end)
{
    const size_t left = (size_t)(end - at);
    return left < CD_DIGEST_BLOCK_BYTES ? left : CD_DIGEST_BLOCK_BYTES;
}

/* Fewer are in the cache anyway: the whole is then hashed by itself, which takes less time. */
enum { PASS_BYTES_MIN = 256 };

void cd_digest_pass_begin(cd_digest_pass *pass, const cddp_tensor *whole)
{
    *pass = (cd_digest_pass){.whole = whole};
    if (!is_plain(whole, &pass->numel) ||
        (size_t)pass->numel * cd_dtype_bytes(whole->dtype) < PASS_BYTES_MIN)
        return;
    pass->first = pass->next = address_of(whole);
    pass->end = pass->next + (size_t)pass->numel * cd_dtype_bytes(whole->dtype);
    pass->digest = (uint64_t)pass->numel;
}

/* wanted: where as many bytes are read soon; NULL: nowhere */
static uint64_t hash_block(const unsigned char *at, size_t bytes, const void *wanted,
                           uint64_t digest)
{
    return cd_hash64_block(&(cd_hash_input){at, bytes, {wanted, NULL}}, digest);
}

/* All before `next` has this digest. */
static void reach(cd_digest_pass *pass, const unsigned char *next, uint64_t digest)
{
    pass->next = next;
    pass->digest = digest;
}

/* Hashes the whole blocks before `until`. Whoever went before has asked for what comes. */
static void advance(cd_digest_pass *pass, const unsigned char *until)
{
    for (size_t n; pass->next < until;) {
        n = block_bytes(pass->next, pass->end);
        if (n > (size_t)(until - pass->next)) return;
        reach(pass, pass->next + n, hash_block(pass->next, n, NULL, pass->digest));
    }
}

static bool finds_as_cpu(const cddp_device *device)
{
    return device->find_nonfinite == cddp_device_cpu()->find_nonfinite;
}

static int64_t find_nonfinite(const cddp_tensor *t)
{
    int64_t index = -1;
    const bool has_numbers = t->device != NULL && (t->device->flags & CDDP_DEVICE_VALUES) != 0;
    return has_numbers && t->device->find_nonfinite(t, &index, NULL) == CDDP_OK ? index : -1;
}

/* Values of `found` that are no index: nothing was found yet, nobody asks. */
enum { NOT_YET = -1, NOT_WANTED = -2 };

/* For the first element of a tensor that is NaN or infinite. */
typedef struct search {
    cddp_dtype dtype;
    const unsigned char *begin; /* of the tensor */
    int64_t found;
} search;

static void search_block(search *s, const unsigned char *at, size_t bytes)
{
    if (s->found != NOT_YET) return;
    const size_t element = cd_dtype_bytes(s->dtype), count = bytes / element,
                 found = cd_kernel_find_nonfinite(s->dtype, at, count);
    if (found < count) s->found = (int64_t)((size_t)(at - s->begin) / element + found);
}

uint64_t cd_digest_pass_part(cd_digest_pass *pass, const cddp_tensor *part, int64_t *nonfinite)
{
    int64_t numel = 0;
    if (pass->next == NULL || !is_plain(part, &numel)) {
        if (nonfinite != NULL) *nonfinite = find_nonfinite(part);
        return digest_of(part);
    }
    const unsigned char *at = address_of(part);
    const unsigned char *const end = at + (size_t)numel * cd_dtype_bytes(part->dtype);
    const bool is_inside = at >= pass->first && end <= pass->end,
               is_whole = at == pass->first && end == pass->end && numel == pass->numel;
    const bool searches = nonfinite != NULL && finds_as_cpu(part->device);
    search s = {part->dtype, at, searches ? NOT_YET : NOT_WANTED};
    uint64_t digest = (uint64_t)numel;
    for (size_t n; at < end; at += n) {
        n = block_bytes(at, end);
        digest = hash_block(at, n, cd_hash_wanted(at, n, is_inside ? pass->end : end), digest);
        if (is_whole)
            reach(pass, at + n, digest);
        else if (is_inside)
            advance(pass, at + n);
        search_block(&s, at, n);
    }
    if (nonfinite != NULL) *nonfinite = searches ? s.found : find_nonfinite(part);
    return digest;
}

uint64_t cd_digest_pass_end(cd_digest_pass *pass)
{
    if (pass->next == NULL) return digest_of(pass->whole);
    advance(pass, pass->end);
    return pass->digest;
}

/* Squares of f32 do not vanish in f64, where they are added up: the norm is 0 where all are. */
bool cd_glance(const cddp_tensor *tensor, bool *is_zero, int64_t *nonfinite)
{
    const int64_t most = 64;
    int64_t numel = 0;
    if (tensor->dtype != CDDP_F32 || !is_plain(tensor, &numel) || numel > most ||
        !finds_as_cpu(tensor->device))
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

/* A tensor of which all before `next` was hashed. */
typedef struct follower {
    const unsigned char *next, *end;
    const unsigned char *source; /* where what is written to `next` is read */
    uint64_t digest;
    search search;
} follower;

static follower follower_of(const cddp_tensor *t, const cddp_tensor *source, int64_t found)
{
    const unsigned char *begin = address_of(t);
    const uint64_t numel = (uint64_t)cddp_tensor_numel(t);
    return (follower){.next = begin,
                      .end = begin + numel * cd_dtype_bytes(t->dtype),
                      .source = address_of(source),
                      .digest = numel,
                      .search = {t->dtype, begin, found}};
}

static const void *wanted_of_source(const follower *f, size_t bytes)
{
    return cd_hash_wanted(f->source, bytes, f->source + (f->end - f->next));
}

/* Where the next copy goes to: a processor that writes to memory reads it first. */
static const void *wanted_of_copy(const follower *f, size_t bytes)
{
    return f->source != f->next ? cd_hash_wanted(f->next, bytes, f->end) : NULL;
}

/* bytes: a multiple of the block unless they are the last ones. */
static void follow(follower *f, size_t bytes)
{
    for (size_t n; bytes > 0; f->next += n, f->source += n, bytes -= n) {
        n = block_bytes(f->next, f->next + bytes);
        const cd_hash_input block = {f->next, n, {wanted_of_source(f, n), wanted_of_copy(f, n)}};
        f->digest = cd_hash64_block(&block, f->digest);
        search_block(&f->search, f->next, n);
    }
}

uint64_t cd_digest_and_find_nonfinite(const cddp_tensor *tensor, int64_t *index)
{
    int64_t numel = 0;
    bool is_zero;
    if (cd_glance(tensor, &is_zero, index)) return digest_of(tensor);
    if (!is_plain(tensor, &numel) || !finds_as_cpu(tensor->device)) {
        *index = find_nonfinite(tensor);
        return digest_of(tensor);
    }
    follower f = follower_of(tensor, tensor, NOT_YET);
    follow(&f, (size_t)(f.end - f.next));
    *index = f.search.found;
    return f.digest;
}

/* ---- what is written ---- */

/* The first cache of any processor has a few times as many. */
enum { WRITTEN_BYTES = 2 * CD_DIGEST_BLOCK_BYTES };

bool cd_digest_may_copy(const cddp_tensor *dst, const cddp_tensor *src)
{
    int64_t to = 0, from = 0;
    return is_plain(dst, &to) && is_plain(src, &from) && to == from && dst->dtype == src->dtype &&
           dst->device == src->device && finds_as_cpu(dst->device);
}

bool cd_digest_may_follow(const cddp_tensor *dst, const cddp_tensor *src)
{
    /* less is in the cache afterwards anyway */
    return cddp_tensor_numel(dst) * (int64_t)cddp_dtype_bytes(dst->dtype) > 2 * WRITTEN_BYTES &&
           cd_digest_may_copy(dst, src);
}

/* A piece of both, one behind the other. */
typedef struct pieces {
    cddp_copy_pair pair;
    int64_t numel, next; /* of both; elements before `next` were in a piece */
} pieces;

static pieces pieces_of(const cddp_copy_pair *pair)
{
    const cddp_tensor *dst = &pair->dst, *src = &pair->src;
    const int64_t none = 0;
    return (pieces){{cddp_tensor_of(dst->device, dst->storage, dst->offset, dst->dtype, &none, 1),
                     cddp_tensor_of(src->device, src->storage, src->offset, src->dtype, &none, 1)},
                    cddp_tensor_numel(dst),
                    0};
}

/* Returns its bytes; 0: that was the last one. */
static size_t take_piece(pieces *p)
{
    cddp_tensor *dst = &p->pair.dst, *src = &p->pair.src;
    const size_t element = cd_dtype_bytes(dst->dtype);
    const int64_t most = (int64_t)(WRITTEN_BYTES / element), left = p->numel - p->next;
    dst->offset += dst->sizes[0];
    src->offset += src->sizes[0];
    dst->sizes[0] = src->sizes[0] = left < most ? left : most;
    p->next += dst->sizes[0];
    return (size_t)dst->sizes[0] * element;
}

/* n: 0 for a copy */
static cddp_status write_and_follow(const cddp_copy_pair *pair, int64_t n,
                                    cd_digest_written *written, cddp_error *err)
{
    const cddp_device *device = pair->dst.device;
    pieces p = pieces_of(pair);
    follower f = follower_of(&pair->dst, &pair->src, n == 0 ? NOT_YET : NOT_WANTED);
    for (size_t bytes; (bytes = take_piece(&p)) > 0;) {
        if (n == 0)
            CD_TRY(device->copy(&p.pair.dst, &p.pair.src, NULL, err));
        else
            CD_TRY(device->multiply_reciprocal(&p.pair.dst, &p.pair.src, n, NULL, err));
        follow(&f, bytes);
    }
    *written = (cd_digest_written){f.digest, f.search.found};
    return CDDP_OK;
}

/* So many bytes were copied; *part is the digest of what they were copied from, up to here. Equal
** digests up to here, and equal bytes, give equal digests. */
static void compare_and_follow(cd_digest_pass *pass, follower *f, size_t bytes, uint64_t *part)
{
    const bool is_whole = f->end - f->search.begin == pass->end - pass->first &&
                          f->search.dtype == pass->whole->dtype;
    for (size_t n; bytes > 0; bytes -= n) {
        const unsigned char *from = f->source, *to = f->next;
        const bool was_same = *part == f->digest;
        n = block_bytes(to, to + bytes);
        follow(f, n);
        *part = was_same && memcmp(to, from, n) == 0 ? f->digest : hash_block(from, n, NULL, *part);
        if (pass->next == NULL) continue;
        if (is_whole)
            reach(pass, from + n, *part);
        else
            advance(pass, from + n);
    }
}

cddp_status cd_digest_pass_copy(cd_digest_pass *pass, const cddp_copy_pair *pair, uint64_t *part,
                                cd_digest_written *written, cddp_error *err)
{
    const cddp_device *device = pair->dst.device;
    pieces p = pieces_of(pair);
    follower f = follower_of(&pair->dst, &pair->src, NOT_YET);
    *part = f.digest;
    for (size_t bytes; (bytes = take_piece(&p)) > 0;) {
        CD_TRY(device->copy(&p.pair.dst, &p.pair.src, NULL, err));
        compare_and_follow(pass, &f, bytes, part);
    }
    *written = (cd_digest_written){f.digest, f.search.found};
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
