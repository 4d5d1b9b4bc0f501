/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/digest.h"

#include "core/base/error.h"
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

static size_t bytes_of(const cddp_tensor *t, int64_t numel)
{
    return (size_t)numel * cd_dtype_bytes(t->dtype);
}

/* As many bytes are copied, hashed and looked at in turns. */
enum { PIECE_BYTES = CD_HASH_ROUND_BYTES };

static size_t piece_bytes(const unsigned char *at, const unsigned char *end)
{
    const size_t left = (size_t)(end - at);
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

/* One line of the next page: behind its first one a processor fetches by itself, but not before it
** knows where the page is. To ask for more than that line takes longer. */
static void ask_for_page(const unsigned char *at, const unsigned char *end)
{
#if defined(__GNUC__)
    const ptrdiff_t page = 4096;
    if (end - at > page) __builtin_prefetch(at + page);
#else
    (void)at, (void)end;
#endif
}

/* Fewer are in the cache anyway: the whole is then hashed by itself, which takes less time. */
enum { PASS_BYTES_MIN = 256 };

void cd_digest_pass_begin(cd_digest_pass *pass, const cddp_tensor *whole)
{
    pass->whole = whole;
    pass->first = NULL;
    if (!is_plain(whole, &pass->numel) || bytes_of(whole, pass->numel) < PASS_BYTES_MIN) return;
    pass->first = address_of(whole);
    cd_hash_chain_begin(&pass->chain, pass->first, bytes_of(whole, pass->numel),
                        (uint64_t)pass->numel);
}

/* A part that was hashed is the whole. */
static void reach_end(cd_digest_pass *pass, uint64_t digest)
{
    pass->chain.next = pass->chain.end;
    pass->chain.digest = digest;
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

static void search_piece(search *s, const unsigned char *at, size_t bytes)
{
    if (s->found != NOT_YET) return;
    const size_t element = cd_dtype_bytes(s->dtype), count = bytes / element,
                 found = cd_kernel_find_nonfinite(s->dtype, at, count);
    if (found < count) s->found = (int64_t)((size_t)(at - s->begin) / element + found);
}

/* Where a part lies in a whole that is hashed in one pass. */
typedef enum place { APART, INSIDE, EVERYTHING } place;

static place place_of(const cd_digest_pass *pass, const unsigned char *at, size_t byte_count,
                      int64_t numel)
{
    const unsigned char *const end = at + byte_count;
    if (pass->first == NULL || at < pass->first || end > pass->chain.end) return APART;
    const bool is_whole = at == pass->first && end == pass->chain.end && numel == pass->numel;
    return is_whole ? EVERYTHING : INSIDE;
}

uint64_t cd_digest_pass_part(cd_digest_pass *pass, const cddp_tensor *part, int64_t *nonfinite)
{
    int64_t numel = 0;
    if (pass->first == NULL || !is_plain(part, &numel)) {
        if (nonfinite != NULL) *nonfinite = find_nonfinite(part);
        return digest_of(part);
    }
    const unsigned char *at = address_of(part);
    const place where = place_of(pass, at, bytes_of(part, numel), numel);
    const bool searches = nonfinite != NULL && finds_as_cpu(part->device);
    search s = {part->dtype, at, searches ? NOT_YET : NOT_WANTED};
    cd_hash_chain_state chain;
    cd_hash_chain_begin(&chain, at, bytes_of(part, numel), (uint64_t)numel);
    for (size_t n; at < chain.end; at += n) {
        n = piece_bytes(at, chain.end);
        ask_for_page(at, chain.end);
        cd_hash_chain_advance(&chain, at + n);
        if (where == INSIDE) cd_hash_chain_advance(&pass->chain, at + n);
        search_piece(&s, at, n);
    }
    if (where == EVERYTHING) reach_end(pass, chain.digest);
    if (nonfinite != NULL) *nonfinite = searches ? s.found : find_nonfinite(part);
    return chain.digest;
}

uint64_t cd_digest_pass_end(cd_digest_pass *pass)
{
    if (pass->first == NULL) return digest_of(pass->whole);
    cd_hash_chain_advance(&pass->chain, pass->chain.end);
    return pass->chain.digest;
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
    cd_hash_chain_state chain;
    search search;
} follower;

static void follower_begin(follower *f, const cddp_tensor *t, int64_t found)
{
    const int64_t numel = cddp_tensor_numel(t);
    f->next = address_of(t);
    f->end = f->next + bytes_of(t, numel);
    f->search = (search){t->dtype, f->next, found};
    cd_hash_chain_begin(&f->chain, f->next, bytes_of(t, numel), (uint64_t)numel);
}

/* bytes: of a piece */
static void follow(follower *f, size_t bytes)
{
    cd_hash_chain_advance(&f->chain, f->next + bytes);
    search_piece(&f->search, f->next, bytes);
    f->next += bytes;
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
    follower f;
    follower_begin(&f, tensor, NOT_YET);
    while (f.next < f.end) follow(&f, piece_bytes(f.next, f.end));
    *index = f.search.found;
    return f.chain.digest;
}

/* ---- what is written ---- */

/* A device that is called writes so many at once. */
enum { WRITTEN_BYTES = 8 * PIECE_BYTES };

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

/* Writes a pair, piece by piece. */
typedef struct writer {
    unsigned char *to;
    const unsigned char *from;
    int64_t n; /* dst = src × fl(1/n); 0: dst = src */
    cd_kernel_fn kernel;
    cd_kernel_scalar scalar;
    size_t element_bytes;
    bool is_called;      /* the device writes; otherwise what `cpu` does is done here */
    cddp_copy_pair next; /* that is written by a call */
    size_t ahead;        /* bytes behind `to` that a call has written */
} writer;

static bool is_float(cddp_dtype dtype)
{
    return dtype == CDDP_F32 || dtype == CDDP_F64 || dtype == CDDP_F16 || dtype == CDDP_BF16;
}

/* A call for each piece would take as long as the piece. */
static bool is_called(const cddp_copy_pair *pair, int64_t n)
{
    const cddp_device *device = pair->dst.device, *cpu = cddp_device_cpu();
    if (n == 0) return device->copy != cpu->copy;
    return device->multiply_reciprocal != cpu->multiply_reciprocal || n < 1 ||
           !is_float(pair->dst.dtype);
}

static cddp_tensor first_of(const cddp_tensor *t)
{
    const int64_t none = 0;
    return cddp_tensor_of(t->device, t->storage, t->offset, t->dtype, &none, 1);
}

static writer writer_of(const cddp_copy_pair *pair, int64_t n)
{
    const cddp_dtype dtype = pair->dst.dtype;
    return (writer){.to = (unsigned char *)(uintptr_t)address_of(&pair->dst),
                    .from = address_of(&pair->src),
                    .n = n,
                    .kernel = cd_kernel_scale(dtype),
                    .scalar = {.value = n > 0 ? 1.0 / (double)n : 0},
                    .element_bytes = cd_dtype_bytes(dtype),
                    .is_called = is_called(pair, n),
                    .next = {first_of(&pair->dst), first_of(&pair->src)}};
}

static cddp_status call_device(writer *w, size_t bytes, cddp_error *err)
{
    cddp_tensor *dst = &w->next.dst, *src = &w->next.src;
    dst->offset += dst->sizes[0];
    src->offset += src->sizes[0];
    dst->sizes[0] = src->sizes[0] = (int64_t)(bytes / w->element_bytes);
    w->ahead = bytes;
    if (w->n == 0) return CD_PASS(dst->device->copy(dst, src, NULL, err));
    return CD_PASS(dst->device->multiply_reciprocal(dst, src, w->n, NULL, err));
}

/* left: bytes that are not written yet */
static cddp_status write_piece(writer *w, size_t bytes, size_t left, cddp_error *err)
{
    if (w->is_called && w->ahead == 0)
        CD_TRY(call_device(w, left < WRITTEN_BYTES ? left : WRITTEN_BYTES, err));
    if (w->is_called)
        w->ahead -= bytes;
    else if (w->n == 0)
        memmove(w->to, w->from, bytes);
    else
        w->kernel(w->to, w->from, bytes / w->element_bytes, &w->scalar);
    w->to += bytes;
    w->from += bytes;
    return CDDP_OK;
}

/* n: 0 for a copy */
static cddp_status write_and_follow(const cddp_copy_pair *pair, int64_t n,
                                    cd_digest_written *written, cddp_error *err)
{
    writer w = writer_of(pair, n);
    follower f;
    follower_begin(&f, &pair->dst, n == 0 ? NOT_YET : NOT_WANTED);
    while (f.next < f.end) {
        const size_t bytes = piece_bytes(f.next, f.end);
        if (n > 0) ask_for_page(f.next, f.end);
        CD_TRY(write_piece(&w, bytes, (size_t)(f.end - f.next), err));
        follow(&f, bytes);
    }
    *written = (cd_digest_written){f.chain.digest, f.search.found};
    return CDDP_OK;
}

/* What a copy was made from has its digest while it has its bytes. */
typedef struct original {
    bool is_other;
    cd_hash_chain_state chain; /* where it is other: from its first block that is */
} original;

/* The next bytes of both. Before them both have the digest of the copy. */
static void compare(original *o, const follower *copy, const unsigned char *from, size_t bytes)
{
    if (!o->is_other && memcmp(copy->next, from, bytes) != 0) {
        const unsigned char *block = from - (copy->next - copy->chain.block);
        o->is_other = true;
        cd_hash_chain_begin(&o->chain, block, (size_t)(copy->end - copy->chain.block),
                            copy->chain.digest);
    }
    if (o->is_other) cd_hash_chain_advance(&o->chain, from + bytes);
}

cddp_status cd_digest_pass_copy(cd_digest_pass *pass, const cddp_copy_pair *pair, uint64_t *part,
                                cd_digest_written *written, cddp_error *err)
{
    const int64_t numel = cddp_tensor_numel(&pair->src);
    const place where = place_of(pass, address_of(&pair->src), bytes_of(&pair->src, numel), numel);
    writer w = writer_of(pair, 0);
    original o = {.is_other = false};
    follower f;
    follower_begin(&f, &pair->dst, NOT_YET);
    while (f.next < f.end) {
        const unsigned char *const from = w.from;
        const size_t bytes = piece_bytes(f.next, f.end);
        CD_TRY(write_piece(&w, bytes, (size_t)(f.end - f.next), err));
        compare(&o, &f, from, bytes);
        follow(&f, bytes);
        if (where == INSIDE) cd_hash_chain_advance(&pass->chain, from + bytes);
    }
    *part = o.is_other ? o.chain.digest : f.chain.digest;
    if (where == EVERYTHING) reach_end(pass, *part);
    *written = (cd_digest_written){f.chain.digest, f.search.found};
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
