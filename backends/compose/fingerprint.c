/* SPDX-License-Identifier: Apache-2.0 */
/* Takes fingerprints and compares them. The most frequent call is right; of equally frequent ones,
** the lowest rank's. */
#include "backends/compose/fingerprint.h"

#include "backends/compose/step.h"
#include "core/base/hash.h"
#include "core/base/rank_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SPLITS_RANKS_MAX 32u
#define MORE ", and other ranks differ too"

static uint32_t splits_of(uint32_t size) { return size <= SPLITS_RANKS_MAX ? 2 * size : 0; }

size_t cd_fingerprint_bytes(uint32_t size)
{
    return sizeof(cd_fingerprint) + splits_of(size) * sizeof(int64_t);
}

static bool is_rooted(uint32_t op)
{
    return op == CDDP_OP_BROADCAST || op == CDDP_OP_REDUCE || op == CDDP_OP_GATHER ||
           op == CDDP_OP_SCATTER;
}

/* The operand that has the same length on all ranks when shares are equal. */
static const cddp_tensor *measured(const cddp_collective *c)
{
    bool by_output =
        c->op == CDDP_OP_BROADCAST || c->op == CDDP_OP_SCATTER || c->op == CDDP_OP_REDUCE_SCATTER;
    return by_output ? &c->output : &c->input;
}

static uint64_t pair_hash(uint32_t from, uint32_t to, int64_t count)
{
    return cd_hash_mix(cd_hash_mix(cd_hash_mix(1, from), to), (uint64_t)count);
}

static void take_splits(const cddp_collective *c, uint32_t me, uint32_t size, cd_fingerprint *f)
{
    for (uint32_t r = 0; r < size; r++) {
        f->sent += pair_hash(me, r, c->send_counts[r]);
        f->expected += pair_hash(r, me, c->counts[r]);
        if (splits_of(size) == 0) continue;
        f->splits[r] = c->send_counts[r];
        f->splits[size + r] = c->counts[r];
    }
}

void cd_fingerprint_take(const cddp_collective *c, uint32_t me, uint32_t size, cd_fingerprint *f)
{
    bool has_tensor = c->op != CDDP_OP_BARRIER,
         is_explicit = c->counts != NULL || c->send_counts != NULL;
    uint64_t number = f->number;
    memset(f, 0, cd_fingerprint_bytes(size));
    f->number = number;
    f->op = (uint32_t)c->op;
    f->label = c->label;
    f->reduce_op = cd_step_is_reduction(c->op) ? (uint32_t)c->reduce_op : CDDP_RED_COUNT;
    f->root = is_rooted(f->op) ? c->root : 0;
    f->dtype = has_tensor ? (uint32_t)measured(c)->dtype : CDDP_DTYPE_COUNT;
    f->numel = is_explicit ? -1 : has_tensor ? cddp_tensor_numel(measured(c)) : 0;
    if (is_explicit && c->op == CDDP_OP_ALLTOALL)
        take_splits(c, me, size, f);
    else if (is_explicit)
        f->counts = cd_hash64(c->counts, size * sizeof *c->counts, 0);
}

/* ---- comparing ---- */

static const cd_fingerprint *at(const void *all, uint32_t size, uint32_t rank)
{
    return (const cd_fingerprint *)(const void *)((const unsigned char *)all +
                                                  rank * cd_fingerprint_bytes(size));
}

/* A hash of everything that must be equal on all ranks. */
static uint64_t opinion(const cd_fingerprint *f)
{
    uint64_t h = cd_hash_mix(f->number, f->label);
    h = cd_hash_mix(h, (uint64_t)f->numel);
    h = cd_hash_mix(h, f->counts);
    h = cd_hash_mix(h, (uint64_t)f->op << 32 | f->reduce_op);
    return cd_hash_mix(h, (uint64_t)f->root << 32 | f->dtype);
}

static size_t put(char *text, size_t bytes, size_t used, const char *words)
{
    if (used + 1 >= bytes) return used;
    int written = snprintf(text + used, bytes - used, "%s", words);
    return written < 0 ? used : used + (size_t)written < bytes ? used + (size_t)written : bytes - 1;
}

static void print_call(const cd_fingerprint *f, char *text, size_t bytes)
{
    char parts[4][48] = {"", "", "", ""};
    if (f->op >= CDDP_OP_COUNT) {
        snprintf(text, bytes, "something that is no operation");
        return;
    }
    if (f->reduce_op < CDDP_RED_COUNT)
        snprintf(parts[0], sizeof parts[0], "%s, ", cddp_red_op_name((cddp_red_op)f->reduce_op));
    if (is_rooted(f->op)) snprintf(parts[1], sizeof parts[1], "root %" PRIu32 ", ", f->root);
    if (f->numel >= 0)
        snprintf(parts[2], sizeof parts[2], "%" PRId64 " x ", f->numel);
    else
        snprintf(parts[2], sizeof parts[2], "shares %04" PRIx64 " x ", f->counts & 0xffff);
    if (f->label != 0) snprintf(parts[3], sizeof parts[3], ", bucket %" PRIu64, f->label - 1);
    bool has_tensor = f->op != CDDP_OP_BARRIER;
    snprintf(text, bytes, "%s(%s%s%s%s%s)", cddp_op_name((cddp_op)f->op), parts[0], parts[1],
             has_tensor ? parts[2] : "", has_tensor ? cddp_dtype_name((cddp_dtype)f->dtype) : "",
             parts[3]);
}

/* That hash, of one rank. */
typedef uint64_t (*opinion_fn)(const void *all, uint32_t size, uint32_t rank);

static uint64_t opinion_on_call(const void *all, uint32_t size, uint32_t rank)
{
    return opinion(at(all, size, rank));
}

static uint64_t opinion_on_content(const void *all, uint32_t size, uint32_t rank)
{
    (void)size;
    return ((const uint64_t *)all)[rank];
}

/* The lowest rank with the most frequent opinion. */
static uint32_t reference_rank(const void *all, uint32_t size, opinion_fn of)
{
    uint32_t best = 0, best_count = 0;
    for (uint32_t r = 0; r < size; r++) {
        uint32_t count = 0;
        for (uint32_t k = 0; k < size; k++) count += of(all, size, k) == of(all, size, r);
        if (count <= best_count) continue;
        best = r;
        best_count = count;
    }
    return best;
}

static bool splits_agree(const void *all, uint32_t size, const uint32_t *members, char *text,
                         size_t bytes)
{
    uint64_t sent = 0, expected = 0;
    for (uint32_t r = 0; r < size; r++) {
        sent += at(all, size, r)->sent;
        expected += at(all, size, r)->expected;
    }
    if (sent == expected) return true;
    for (uint32_t from = 0; splits_of(size) > 0 && from < size; from++) {
        for (uint32_t to = 0; to < size; to++) {
            int64_t given = at(all, size, from)->splits[to],
                    wanted = at(all, size, to)->splits[size + from];
            if (given == wanted) continue;
            snprintf(text, bytes,
                     "alltoall %" PRIu64 ": rank %" PRIu32 " sends %" PRId64
                     " elements to rank %" PRIu32 ", which expects %" PRId64,
                     at(all, size, 0)->number, members[from], given, members[to], wanted);
            return false;
        }
    }
    snprintf(text, bytes,
             "alltoall %" PRIu64
             ": some rank sends another number of elements than its peer expects",
             at(all, size, 0)->number);
    return false;
}

/* The ranks that differ from the reference and agree with rank `like`; all ranks that differ when
** `like` is the reference. */
typedef struct dissent {
    const void *all;
    const uint32_t *members;
    uint32_t size, reference, like;
    opinion_fn of;
} dissent;

static bool is_dissenter(const dissent *d, uint32_t r)
{
    const uint64_t opinion_of_r = d->of(d->all, d->size, r);
    return opinion_of_r != d->of(d->all, d->size, d->reference) &&
           (d->like == d->reference || opinion_of_r == d->of(d->all, d->size, d->like));
}

static uint32_t dissenters(const dissent *d)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < d->size; r++) count += is_dissenter(d, r);
    return count;
}

/* The first rank after `from` that differs, in an opinion that no rank before it has. */
static uint32_t next_kind(const dissent *d, uint32_t from)
{
    for (uint32_t r = from; r < d->size; r++) {
        uint32_t k = 0;
        while (k < r && d->of(d->all, d->size, k) != d->of(d->all, d->size, r)) k++;
        if (k == r && d->of(d->all, d->size, r) != d->of(d->all, d->size, d->reference)) return r;
    }
    return d->size;
}

/* The world's ranks of a dissent, as a list; members need not be in order. */
static uint32_t next_member(const void *self, uint32_t from)
{
    const dissent *d = self;
    uint32_t next = CD_NO_RANK;
    for (uint32_t r = 0; r < d->size; r++)
        if (d->members[r] >= from && d->members[r] < next && is_dissenter(d, r))
            next = d->members[r];
    return next;
}

static size_t put_ranks(const dissent *d, char *text, size_t bytes)
{
    cd_rank_list_print(&(cd_rank_list){d, next_member}, CD_NO_RANK, text, bytes);
    return strlen(text);
}

bool cd_fingerprints_agree(const void *all, uint32_t size, const uint32_t *members, char *text,
                           size_t bytes)
{
    char call[160], words[240], right_call[240];
    const uint32_t reference = reference_rank(all, size, opinion_on_call);
    dissent d = {all, members, size, reference, 0, opinion_on_call};
    if (next_kind(&d, 0) == size) return splits_agree(all, size, members, text, bytes);
    print_call(at(all, size, reference), call, sizeof call);
    snprintf(right_call, sizeof right_call,
             " where rank %" PRIu32 " calls %s (collective %" PRIu64 ")", members[reference], call,
             at(all, size, reference)->number);
    /* The right call is printed whatever the number of wrong ones: they stop where it has to
    ** begin. */
    const size_t room = bytes - strlen(right_call) - 1;
    size_t used = 0;
    for (d.like = next_kind(&d, 0); d.like < size; d.like = next_kind(&d, d.like + 1)) {
        char kind[240];
        size_t kind_used = put_ranks(&d, kind, sizeof kind);
        print_call(at(all, size, d.like), call, sizeof call);
        snprintf(words, sizeof words, " %s %s", dissenters(&d) > 1 ? "call" : "calls", call);
        kind_used = put(kind, sizeof kind, kind_used, words);
        if (used > 0 && used + kind_used + 2 + strlen(MORE) > room) {
            used = put(text, bytes, used, MORE);
            break;
        }
        if (used > 0) used = put(text, room, used, ", ");
        used = put(text, room, used, kind);
    }
    put(text, bytes, used, right_call);
    return false;
}

bool cd_contents_agree(const uint64_t *digests, uint32_t size, const uint32_t *members, char *text,
                       size_t bytes)
{
    const uint32_t reference = reference_rank(digests, size, opinion_on_content);
    const dissent d = {digests, members, size, reference, reference, opinion_on_content};
    char words[80];
    for (uint32_t r = 0; r < size; r++)
        if (digests[r] == 0) return true;
    if (next_kind(&d, 0) == size) return true;
    size_t used = put_ranks(&d, text, bytes);
    snprintf(words, sizeof words, " ended with bits that differ from rank %" PRIu32,
             members[reference]);
    put(text, bytes, used, words);
    return false;
}
