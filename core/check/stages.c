/* SPDX-License-Identifier: Apache-2.0 */
/* The comparisons of a rank are made when its `contribution` comes: all that they rest on comes
** from the same rank, before it. Only what was found is kept, so a run without an error costs the
** newest digests. */
#include "core/check/stages.h"

#include "cddp/tensor.h"
#include "core/base/hash.h"

#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <string.h>

typedef struct pack {
    int64_t digest, previous, path, bucket, slot;
    uint32_t step; /* of digest */
    bool has_previous;
} pack;

typedef struct slot {
    int64_t digest, param;
    uint32_t step, micro_step;
    bool is_judged;
    int64_t due; /* of a copy that waited for its bucket: what its rank had to pack; 0: not known */
} slot;

typedef struct launch {
    int64_t dtype, group, sequence;
    int64_t bad_step; /* + 1: the last at which it was not what was packed */
    int64_t slices;   /* as it was launched in this step; 0: not known */
    uint32_t step, micro_step;
} launch;

typedef struct final {
    int64_t digest, slice;
    uint32_t step, micro_step;
} final;

/* What a bucket delivered, and whether its slices still were that when they were written back. */
typedef struct result {
    int64_t slices; /* 0: not known */
    uint32_t step, micro_step;
    bool is_compared, has_changed;
} result;

/* Who starts a step from what. */
typedef struct starts {
    int64_t from[8]; /* (count) the first distinct ones */
    cd_rank_set who[8], all;
    size_t count;
} starts;

/* Who was found to be how; `fine`: every stage that the rank is seen in is right. */
typedef struct average {
    cd_rank_set packed, launched, settled, written, changed, fine, unknown, stale, all;
    starts starts;
    int64_t bucket;          /* + 1 */
    int64_t group, sequence; /* + 1: of a right rank's launch; 0: unknown */
} average;

void cd_stages_init(cd_stages *s, const cddp_allocator *allocator)
{
    cd_table_init(&s->packs, allocator, sizeof(pack));
    cd_table_init(&s->slots, allocator, sizeof(slot));
    cd_table_init(&s->finals, allocator, sizeof(final));
    cd_table_init(&s->launches, allocator, sizeof(launch));
    cd_table_init(&s->results, allocator, sizeof(result));
    cd_table_init(&s->joined, allocator, sizeof(cd_rank_set));
    cd_table_init(&s->shadows, allocator, sizeof(cddp_event_bucket_launch));
    cd_ranks_init(&s->judged, allocator, sizeof(int64_t));
    cd_table_init(&s->wrongs, allocator, sizeof(int64_t));
    cd_table_init(&s->locals, allocator, sizeof(cd_rank_set));
    cd_table_init(&s->exchanges, allocator, sizeof(starts));
    cd_table_init(&s->averages, allocator, sizeof(average));
    cd_arena_init(&s->memory, allocator, CD_RANK_SET_BLOCK);
}

void cd_stages_set_window(cd_stages *s, cd_horizon *horizon)
{
    cd_table_set_window(&s->joined, &(cd_table_window){.horizon = horizon});
    cd_table_set_window(&s->shadows, &(cd_table_window){.horizon = horizon});
}

void cd_stages_fini(cd_stages *s)
{
    cd_table_fini(&s->packs);
    cd_table_fini(&s->slots);
    cd_table_fini(&s->finals);
    cd_table_fini(&s->launches);
    cd_table_fini(&s->results);
    cd_table_fini(&s->joined);
    cd_table_fini(&s->shadows);
    cd_ranks_fini(&s->judged);
    cd_table_fini(&s->wrongs);
    cd_table_fini(&s->locals);
    cd_table_fini(&s->exchanges);
    cd_table_fini(&s->averages);
    cd_arena_fini(&s->memory);
}

static void take_pack(cd_stages *s, const cddp_event *e)
{
    const cddp_event_mark_ready *m = &e->as.mark_ready;
    pack *p = cd_table_add(&s->packs, CD_KEY(e->rank, m->param));
    slot *x = cd_table_add(&s->slots, CD_KEY(e->rank, m->bucket, m->slot));
    if (x != NULL)
        *x = (slot){m->digest,
                    m->param,
                    e->step,
                    e->micro_step,
                    m->digest != 0 && m->path != CDDP_PATH_DEFERRED && m->path != CDDP_PATH_SPARSE,
                    0};
    if (p == NULL) return;
    p->has_previous = p->digest != 0;
    p->previous = p->digest;
    p->digest = m->digest;
    p->path = m->path;
    p->bucket = m->bucket;
    p->slot = m->slot;
    p->step = e->step;
}

static void take_shadow(cd_stages *s, const cddp_event *e)
{
    const cddp_event_bucket_launch *l = &e->as.bucket_launch;
    if (l->digest == 0) return;
    cd_rank_set *ranks = cd_table_add(&s->joined, CD_KEY(l->group, l->sequence));
    cddp_event_bucket_launch *known =
        cd_table_add(&s->shadows, CD_KEY(l->group, l->sequence, e->rank));
    if (ranks == NULL || known == NULL) return;
    cd_rank_set_add(ranks, &s->memory, e->rank);
    *known = *l;
}

/* The bucket as launched is what was packed into its slots. */
static void take_launch(cd_stages *s, const cddp_event *e)
{
    const cddp_event_bucket_launch *l = &e->as.bucket_launch;
    launch *known = cd_table_add(&s->launches, CD_KEY(e->rank, l->bucket));
    if (known == NULL) return;
    known->dtype = l->dtype;
    known->group = l->group;
    known->sequence = l->sequence;
    known->slices = l->slices;
    known->step = e->step;
    known->micro_step = e->micro_step;
    if (l->slices == 0) return;
    uint64_t digest = 0;
    for (int64_t i = 0;; i++) {
        const slot *x = cd_table_find(&s->slots, CD_KEY(e->rank, l->bucket, i));
        if (x == NULL || x->step != e->step || x->micro_step != e->micro_step) break;
        if (!x->is_judged) return;
        digest = cd_hash_mix(digest, (uint64_t)x->digest);
    }
    if (digest != (uint64_t)l->slices) known->bad_step = (int64_t)e->step + 1;
}

static void take_final(cd_stages *s, const cddp_event *e)
{
    final *f = cd_table_add(&s->finals, CD_KEY(e->rank, e->as.grad_final.param));
    if (f == NULL) return;
    *f = (final){e->as.grad_final.digest, e->as.grad_final.slice, e->step, e->micro_step};
}

static void take_result(cd_stages *s, const cddp_event *e)
{
    result *r = cd_table_add(&s->results, CD_KEY(e->rank, e->as.bucket_done.bucket));
    if (r != NULL) *r = (result){e->as.bucket_done.slices, e->step, e->micro_step, false, false};
}

/* Whether the slices as they were written back are those that arrived; an unknown one leaves it
** open. */
static bool has_settled_otherwise(cd_stages *s, const cddp_event *e, int64_t bucket)
{
    result *r = cd_table_find(&s->results, CD_KEY(e->rank, bucket));
    if (r == NULL || r->slices == 0 || r->step != e->step || r->micro_step != e->micro_step)
        return false;
    if (r->is_compared) return r->has_changed;
    uint64_t digest = 0;
    r->is_compared = true;
    for (int64_t i = 0;; i++) {
        const slot *x = cd_table_find(&s->slots, CD_KEY(e->rank, bucket, i));
        if (x == NULL || x->step != e->step || x->micro_step != e->micro_step) break;
        const final *f = cd_table_find(&s->finals, CD_KEY(e->rank, x->param));
        if (f == NULL || f->slice == 0 || f->step != e->step || f->micro_step != e->micro_step)
            return false;
        digest = cd_hash_mix(digest, (uint64_t)f->slice);
    }
    r->has_changed = digest != (uint64_t)r->slices;
    return r->has_changed;
}

/* What the rank had to pack, in the way in which it says that it packed; 0: unknown. */
static int64_t due_of(const cddp_event_contribution *c, int64_t path)
{
    switch (path) {
    case CDDP_PATH_RECIPROCAL:
    case CDDP_PATH_ZERO:
        return c->reciprocal;
    case CDDP_PATH_DIVIDE:
        return c->divided;
    case CDDP_PATH_HOOK:
        return c->plain;
    default:
        return 0;
    }
}

static void note_start(cd_stages *s, starts *a, uint32_t rank, int64_t start)
{
    size_t k = 0;
    cd_rank_set_add(&a->all, &s->memory, rank);
    while (k < a->count && a->from[k] != start) k++;
    if (k == sizeof a->from / sizeof a->from[0]) return;
    if (k == a->count) a->from[a->count++] = start;
    cd_rank_set_add(&a->who[k], &s->memory, rank);
}

static void take_mark(cd_stages *s, const cddp_event *e)
{
    starts *a = e->text != NULL && strcmp(e->text, CD_TRACER_STARTS) == 0
                    ? cd_table_add(&s->exchanges, CD_KEY(e->step))
                    : NULL;
    if (a != NULL) note_start(s, a, e->rank, e->as.mark.value);
}

/* The stages at which a rank can be seen to be wrong, in their order. */
typedef enum place {
    PLACE_PACKED,
    PLACE_LAUNCHED,
    PLACE_SETTLED,
    PLACE_WRITTEN,
    PLACE_CHANGED,
    PLACE_UNKNOWN,
    PLACE_FINE
} place;

static place find_place(cd_stages *s, const cddp_event *e, const pack *p, const launch *l,
                        int64_t due)
{
    const cddp_event_contribution *c = &e->as.contribution;
    const final *f = cd_table_find(&s->finals, CD_KEY(e->rank, c->param));
    const bool is_packed = p != NULL && p->step == e->step && p->digest != 0;
    const bool is_final =
        f != NULL && f->step == e->step && f->micro_step == e->micro_step && f->slice != 0;
    if (due != 0 && p->digest != due) return PLACE_PACKED;
    if (l != NULL && l->bad_step == (int64_t)e->step + 1) return PLACE_LAUNCHED;
    if (is_packed && has_settled_otherwise(s, e, p->bucket)) return PLACE_SETTLED;
    if (is_final && f->slice != f->digest) return PLACE_WRITTEN;
    if (is_final && c->judged != 0 && c->judged != f->digest) return PLACE_CHANGED;
    return due == 0 || !is_final ? PLACE_UNKNOWN : PLACE_FINE;
}

/* Copies that wait for their bucket are divided together (GRD-08): what was packed shows when the
** bucket is launched. It is judged with the last of its contributions. */
static bool was_packed_otherwise(cd_stages *s, const cddp_event *e, const pack *p, const launch *l)
{
    const cddp_event_contribution *c = &e->as.contribution;
    slot *own = cd_table_find(&s->slots, CD_KEY(e->rank, p->bucket, p->slot));
    if (own == NULL || l == NULL || l->slices == 0 || l->dtype != c->dtype || l->step != e->step ||
        l->micro_step != e->micro_step)
        return false;
    uint64_t digest = 0;
    own->due = c->divided;
    for (int64_t i = 0;; i++) {
        const slot *x = cd_table_find(&s->slots, CD_KEY(e->rank, p->bucket, i));
        if (x == NULL || x->step != e->step || x->micro_step != e->micro_step) break;
        if (x->due == 0) return false;
        digest = cd_hash_mix(digest, (uint64_t)x->due);
    }
    return digest != (uint64_t)l->slices;
}

static void take_contribution(cd_stages *s, const cddp_event *e)
{
    const cddp_event_contribution *c = &e->as.contribution;
    const pack *p = cd_table_find(&s->packs, CD_KEY(e->rank, c->param));
    const bool is_packed = p != NULL && p->step == e->step && p->digest != 0;
    const launch *l = is_packed ? cd_table_find(&s->launches, CD_KEY(e->rank, p->bucket)) : NULL;
    const int64_t due = l != NULL && l->dtype == c->dtype ? due_of(c, p->path) : 0;
    const bool is_deferred = p != NULL && p->step == e->step && p->path == CDDP_PATH_DEFERRED;
    const launch *whole =
        is_deferred ? cd_table_find(&s->launches, CD_KEY(e->rank, p->bucket)) : NULL;
    const place at = is_deferred && was_packed_otherwise(s, e, p, whole)
                         ? PLACE_PACKED
                         : find_place(s, e, p, l, due);
    /* of an average within its bound, only what is seen to be wrong is kept */
    if (c->start == 0 && at >= PLACE_UNKNOWN) return;
    average *a = cd_table_add(&s->averages, CD_KEY(e->step, e->micro_step, c->param));
    if (a == NULL) return;
    cd_rank_set_add(&a->all, &s->memory, e->rank);
    if (c->start != 0) note_start(s, &a->starts, e->rank, c->start);
    if (is_packed || is_deferred) a->bucket = p->bucket + 1;
    if (due != 0 && p->digest == due) {
        a->group = l->group;
        a->sequence = l->sequence + 1;
    }
    cd_rank_set *const where[] = {[PLACE_PACKED] = &a->packed,   [PLACE_LAUNCHED] = &a->launched,
                                  [PLACE_SETTLED] = &a->settled, [PLACE_WRITTEN] = &a->written,
                                  [PLACE_CHANGED] = &a->changed, [PLACE_UNKNOWN] = &a->unknown,
                                  [PLACE_FINE] = &a->fine};
    cd_rank_set_add(where[at], &s->memory, e->rank);
    if (at == PLACE_PACKED && p->has_previous && p->digest == p->previous)
        cd_rank_set_add(&a->stale, &s->memory, e->rank);
}

static void take_compare(cd_stages *s, const cddp_event *e)
{
    const cddp_event_compare *c = &e->as.compare;
    int64_t *judged = cd_ranks_add(&s->judged, e->rank);
    if (judged != NULL && c->link >= 0 && c->link < 63) *judged |= INT64_C(1) << c->link;
    if (c->bad == 0) return;
    (void)cd_table_add(&s->wrongs, CD_KEY(e->rank, c->link, e->step, c->param));
    if (c->link != CD_LINK_PRECISION) return;
    cd_rank_set *ranks = cd_table_add(&s->locals, CD_KEY(e->step, c->param));
    if (ranks != NULL) cd_rank_set_add(ranks, &s->memory, e->rank);
}

void cd_stages_push(cd_stages *s, const cddp_event *e)
{
    switch (e->kind) {
    case CDDP_EV_mark_ready:
        take_pack(s, e);
        break;
    case CDDP_EV_bucket_launch:
        if (e->as.bucket_launch.shadow)
            take_shadow(s, e);
        else
            take_launch(s, e);
        break;
    case CDDP_EV_bucket_done:
        take_result(s, e);
        break;
    case CDDP_EV_grad_final:
        take_final(s, e);
        break;
    case CDDP_EV_contribution:
        take_contribution(s, e);
        break;
    case CDDP_EV_compare:
        take_compare(s, e);
        break;
    case CDDP_EV_mark:
        take_mark(s, e);
        break;
    default:
        break;
    }
}

/* The ranks that did not start from what most of them started from; all where none are most. */
static const cd_rank_set *find_odd_starters(cd_stages *s, const starts *a, cd_rank_set *odd)
{
    size_t most = 0;
    uint32_t count = 0, voters = 0;
    for (size_t k = 0; k < a->count; k++) {
        const uint32_t ranks = cd_rank_set_count(&a->who[k]);
        voters += ranks;
        if (ranks <= count) continue;
        count = ranks;
        most = k;
    }
    if (count * 2 <= voters) return &a->all;
    for (size_t k = 0; k < a->count; k++)
        if (k != most) cd_rank_set_unite(odd, &s->memory, &a->who[k]);
    return odd;
}

static bool has_any(const cd_rank_set *set) { return cd_rank_set_count(set) > 0; }

cddp_judgement cd_stages_judged(const cd_stages *s, const cddp_fact_judged *of)
{
    const int64_t *judged = cd_ranks_find(&s->judged, of->rank);
    if (judged == NULL || (*judged & INT64_C(1) << of->link) == 0) return CDDP_JUDGED_UNKNOWN;
    return cd_table_find(&s->wrongs, CD_KEY(of->rank, of->link, of->step, of->param)) != NULL
               ? CDDP_JUDGED_WRONG
               : CDDP_JUDGED_RIGHT;
}

static bool list_ranks(cd_stages *s, const cd_rank_set *ranks, cddp_fact_stage *found)
{
    const uint32_t count = cd_rank_set_count(ranks);
    uint32_t *list = cd_arena_push(&s->memory, (count + 1) * sizeof *list);
    if (list == NULL) return false;
    found->ranks = list;
    found->rank_count = count;
    for (uint32_t r = cd_rank_set_next(ranks, 0); r != CD_NO_RANK;
         r = cd_rank_set_next(ranks, r + 1))
        *list++ = r;
    return true;
}

static bool list_starters(cd_stages *s, const starts *a, cddp_fact_stage *found)
{
    cd_rank_set odd = {0};
    const cd_rank_set *ranks = find_odd_starters(s, a, &odd);
    found->stage = CDDP_STAGE_STARTED;
    found->has_majority = ranks != &a->all;
    return list_ranks(s, ranks, found);
}

/* The first stage at which a rank was seen to be wrong. */
static const cd_rank_set *find_wrong(const average *a, cddp_stage *stage)
{
    const struct {
        cddp_stage stage;
        const cd_rank_set *ranks;
    } order[] = {{CDDP_STAGE_PACKED, &a->packed},
                 {CDDP_STAGE_LAUNCHED, &a->launched},
                 {CDDP_STAGE_SETTLED, &a->settled},
                 {CDDP_STAGE_WRITTEN, &a->written},
                 {CDDP_STAGE_CHANGED, &a->changed}};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        if (!has_any(order[i].ranks)) continue;
        *stage = order[i].stage;
        return order[i].ranks;
    }
    return NULL;
}

enum { ZEROS_MAX = 1 << 28 };

/* As cpu_digest takes it of numbers, or symbol_digest of one form without terms. */
bool cd_stages_is_zeros(const cddp_event_bucket_launch *what)
{
    static const unsigned char zeros[4096];
    const uint64_t numel = (uint64_t)what->numel;
    if (numel > ZEROS_MAX || what->digest == 0) return true; /* not worth the time, or unknown */
    uint64_t digest = numel;
    size_t left = (size_t)numel * cddp_dtype_bytes((cddp_dtype)what->dtype);
    for (size_t n; left > 0; left -= n) {
        n = left < sizeof zeros ? left : sizeof zeros;
        digest = cd_hash64(zeros, n, digest);
    }
    return what->digest == (int64_t)digest ||
           what->digest == (int64_t)cd_hash_mix(cd_hash_mix(numel, 0), numel);
}

/* The joined ranks that took part in this average with something else than zeros. */
static void find_odd_joined(cd_stages *s, const average *a, cd_rank_set *odd)
{
    const cd_rank_set *joined =
        a->sequence != 0 ? cd_table_find(&s->joined, CD_KEY(a->group, a->sequence - 1)) : NULL;
    if (joined == NULL) return;
    for (uint32_t r = cd_rank_set_next(joined, 0); r != CD_NO_RANK;
         r = cd_rank_set_next(joined, r + 1)) {
        const cddp_event_bucket_launch *x =
            cd_table_find(&s->shadows, CD_KEY(a->group, a->sequence - 1, r));
        if (x != NULL && !cd_stages_is_zeros(x)) cd_rank_set_add(odd, &s->memory, r);
    }
}

bool cd_stages_find(cd_stages *s, const cddp_fact_average *of, cddp_fact_stage *found)
{
    const average *a = cd_table_find(&s->averages, CD_KEY(of->step, of->micro_step, of->param));
    const cd_rank_set *locals = cd_table_find(&s->locals, CD_KEY(of->step, of->param));
    const starts *exchange = cd_table_find(&s->exchanges, CD_KEY(of->step));
    *found = (cddp_fact_stage){.stage = CDDP_STAGE_LOCAL, .bucket = a != NULL ? a->bucket - 1 : -1};
    /* what ranks gather of each other makes every local gradient follow from all of their models */
    if (exchange != NULL && exchange->count > 1) {
        found->is_exchanged = true;
        return list_starters(s, exchange, found);
    }
    if (locals != NULL) return list_ranks(s, locals, found);
    if (a == NULL) return false;
    const cd_rank_set *ranks = find_wrong(a, &found->stage);
    if (ranks != NULL) {
        found->is_stale = found->stage == CDDP_STAGE_PACKED &&
                          cd_rank_set_count(&a->stale) == cd_rank_set_count(&a->packed);
        return list_ranks(s, ranks, found);
    }
    cd_rank_set odd_joined = {0};
    find_odd_joined(s, a, &odd_joined);
    if (has_any(&odd_joined)) {
        found->stage = CDDP_STAGE_JOINED;
        return list_ranks(s, &odd_joined, found);
    }
    if (a->starts.count > 1) return list_starters(s, &a->starts, found);
    found->stage = has_any(&a->unknown) ? CDDP_STAGE_UNKNOWN : CDDP_STAGE_REDUCED;
    return list_ranks(s, &a->all, found);
}
