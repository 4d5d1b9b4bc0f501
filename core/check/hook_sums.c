/* SPDX-License-Identifier: Apache-2.0 */
/* Joining sums over ranks; ties between a hook's law, what was posted and what was written back. */
#include "core/check/hook_sums.h"

#include "cddp/backend.h"
#include "core/base/format.h"
#include "core/base/hash.h"
#include "core/check/facts.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

#define VARIANTS 4

/* A bucket between its launch and its hook's result, on one rank. */
typedef struct flight {
    int64_t bytes, posted, first_posted;
    uint64_t posts;
    bool is_open, is_seen, has_digests; /* is_seen: what the plan's hook posts was posted */
    uint64_t whole[2]; /* what it posts if it gives the whole share; of marks, 0: not known */
    bool is_whole;     /* it did */
    char name[CD_WRITER_NAME_BYTES]; /* of the plan's hook */
    int64_t delivered;               /* by its last operation */
} flight;

typedef struct post {
    int64_t bucket, op, sequence; /* sequence + 1 */
} post;
#define POSTS_MAX 64 /* of a rank in a group, in flight */

typedef struct slice {
    int64_t digest, dtype, bucket;
    bool is_due;
    /* what its rank accumulated last, and whether that is what was marked ready */
    int64_t local, local_dtype;
    uint32_t step, micro_step;
    bool is_marked;
} slice;

/* Ranks with the same result. */
typedef struct variant {
    double got;
    cd_rank_set ranks;
    uint32_t count;
} variant;

typedef struct sum {
    double given, bound;
    variant variants[VARIANTS];
    uint32_t variant_count, count, rank, step, micro_step;
    uint64_t whole;    /* how many ranks say a part of it */
    uint64_t sequence; /* of the least rank's event */
    int64_t ordinal;   /* how many sums of the law the bucket had before */
    char law[CD_WRITER_NAME_BYTES];
    bool is_collective; /* both sides are of an all-reduce */
} sum;

/* What one rank gave to a sum. */
typedef struct part {
    double given;
    int64_t block;
} part;

typedef struct breach {
    sum sum;
    bool is_made;
    int64_t lost; /* + 1: the only rank whose part explains it … */
    double times; /* … and how often it counts */
} breach;

/* The earliest place at which some rank did not give its share of a bucket as it is. */
typedef struct giver {
    uint32_t step, micro_step;
    bool is_known;
    cd_rank_set ranks;
} giver;

/* The earliest place at which some rank's hook made something else of what came. */
typedef struct own_result {
    uint32_t step, micro_step;
    bool is_known;
} own_result;

/* The first ranks that did something else with a bucket. */
typedef struct culprit {
    uint32_t step, micro_step, rank; /* the least */
    bool is_known;
    cd_rank_set ranks;
    cddp_finding finding;
    char title[256];
} culprit;

/* Not every rank has said its part. */
static bool keeps_sum(void *self, const cd_key *key, const void *value)
{
    const sum *j = value;
    (void)self, (void)key;
    return j->count != j->whole;
}

static bool keeps_part(void *self, const cd_key *key, const void *value)
{
    const cd_hook_sums *s = self;
    const part *p = value;
    const sum *j =
        cd_table_find(&s->sums, CD_KEY(key->part[0], key->part[1], p->block, key->part[3]));
    return j != NULL && j->count != j->whole;
}

void cd_hook_sums_init(cd_hook_sums *s, cd_writer *writer, const cddp_allocator *allocator)
{
    s->writer = writer;
    cd_table_init(&s->flights, allocator, sizeof(flight));
    cd_table_init(&s->slices, allocator, sizeof(slice));
    cd_table_init(&s->ordinals, allocator, sizeof(uint64_t));
    cd_table_init(&s->sums, allocator, sizeof(sum));
    cd_table_init(&s->breaches, allocator, sizeof(breach));
    cd_table_init(&s->parts, allocator, sizeof(part));
    cd_table_init(&s->givers, allocator, sizeof(giver));
    cd_ranks_init(&s->launched, allocator, sizeof(int64_t));
    cd_table_init(&s->culprits, allocator, sizeof(culprit));
    cd_table_init(&s->posts, allocator, sizeof(post));
    cd_table_init(&s->own_results, allocator, sizeof(own_result));
    cd_agree_init(&s->outputs, allocator);
    cd_writer_set_agree_window(writer, &s->outputs, CD_WHOLE_GROUP);
    cd_writer_set_window(writer, &s->sums, keeps_sum);
    cd_table_set_window(&s->parts,
                        &(cd_table_window){.horizon = cd_facts_get_horizon(writer->context.facts),
                                           .keeps = keeps_part,
                                           .self = s});
}

/* ---- one rank ---- */

typedef struct deed {
    int64_t bucket;
    int64_t kind;  /* 0: it makes the result of the bucket wrong; 1: it follows the result */
    int64_t param; /* + 1; 0: none */
    const char *title, *expected, *actual, *advice;
} deed;

static bool precedes(const cddp_event *e, const culprit *c)
{
    if (e->step != c->step) return e->step < c->step;
    if (e->micro_step != c->micro_step) return e->micro_step < c->micro_step;
    return e->rank < c->rank;
}

/* The earliest deed with a bucket is reported at the end, with every rank that did one then. */
static void note(cd_hook_sums *s, const cddp_event *e, const deed *d)
{
    culprit *c = cd_table_add(&s->culprits, CD_KEY(d->bucket, d->kind));
    if (c == NULL) return;
    const bool is_same = c->is_known && c->step == e->step && c->micro_step == e->micro_step;
    const bool is_first = !c->is_known || precedes(e, c);
    if (is_first && !is_same) c->ranks = (cd_rank_set){0};
    if (is_first || is_same) cd_rank_set_add(&c->ranks, &s->writer->memory, e->rank);
    if (!is_first) return;
    c->is_known = true;
    c->step = e->step;
    c->micro_step = e->micro_step;
    c->rank = e->rank;
    c->finding = cd_finding_at(s->writer, e);
    c->finding.bucket = (int32_t)d->bucket;
    if (d->param > 0) cd_finding_set_parameter(s->writer, &c->finding, d->param - 1);
    CD_SAY(c->title, "%s", d->title);
    CD_SAY(c->finding.expected, "%s", d->expected);
    CD_SAY(c->finding.actual, "%s", d->actual);
    CD_SAY(c->finding.advice, "%s", d->advice);
}

static void report_deed(cd_hook_sums *s, culprit *c)
{
    char who[96];
    const bool is_all = s->members > 1 && cd_rank_set_count(&c->ranks) == s->members;
    if (is_all)
        CD_SAY(who, "all ranks");
    else
        cd_rank_set_print(&c->ranks, c->rank, who, sizeof who);
    if (is_all) c->finding.rank = -1;
    CD_SAY(c->finding.title, "%s: %s", who, c->title);
    cd_finding_set_ranks(s->writer, &c->finding, &c->ranks);
    cd_writer_report(s->writer, &c->finding);
}

static void take_law(cd_hook_sums *s, const cddp_event *e)
{
    const cddp_event_bucket_law *l = &e->as.bucket_law;
    flight *f = cd_table_add(&s->flights, CD_KEY(e->rank, l->bucket));
    if (f == NULL) return;
    *f = (flight){.bytes = l->bytes, .posted = l->posted, .is_open = !l->shadow};
    CD_SAY(f->name, "%s", e->text != NULL ? e->text : "");
    int64_t *launched = cd_ranks_add(&s->launched, e->rank);
    if (launched != NULL) *launched = l->bucket + 1;
}

/* Two of them follow the law of a bucket. */
static void take_mark(cd_hook_sums *s, const cddp_event *e)
{
    const int64_t *launched = cd_ranks_find(&s->launched, e->rank);
    if (e->text == NULL || launched == NULL || strcmp(e->text, CD_TRACER_WHOLE_SHARE) != 0) return;
    flight *f = cd_table_find(&s->flights, CD_KEY(e->rank, *launched - 1));
    if (f != NULL) f->whole[f->whole[0] != 0] = (uint64_t)e->as.mark.value;
}

static void take_call(cd_hook_sums *s, const cddp_event *e)
{
    const int64_t bucket = e->as.hook_call.bucket;
    const flight *f = cd_table_find(&s->flights, CD_KEY(e->rank, bucket));
    if (f == NULL || !f->is_open || e->text == NULL || strcmp(f->name, e->text) == 0) return;
    char title[128];
    CD_SAY(title, "hook %s is called for bucket %lld; the plan names %s", e->text,
           (long long)bucket, f->name);
    note(s, e,
         &(deed){bucket, 0, 0, title, f->name, e->text,
                 "see hook.name, ddp.comm_hook and hook.comm_hook of the scenario"});
}

static void take_post(cd_hook_sums *s, const cddp_event *e)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    if (c->digest == 0) return;
    post *kept = cd_table_add(&s->posts, CD_KEY(c->group, e->rank, c->sequence % POSTS_MAX));
    if (kept != NULL) *kept = (post){c->bucket, c->op, c->sequence + 1};
    flight *f = c->bucket >= 0 ? cd_table_find(&s->flights, CD_KEY(e->rank, c->bucket)) : NULL;
    if (f == NULL || !f->is_open) return;
    f->has_digests = true;
    if (f->posts++ == 0) f->first_posted = c->digest;
    f->is_seen = f->is_seen || c->digest == f->posted;
    for (int i = 0; i < 2; i++)
        f->is_whole = f->is_whole || (f->whole[i] != 0 &&
                                      f->whole[i] == ((uint64_t)c->digest & CD_SUM_SIGHT_BITS));
}

static void take_delivery(cd_hook_sums *s, const cddp_event *e)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    const post *p = cd_table_find(&s->posts, CD_KEY(d->group, e->rank, d->sequence % POSTS_MAX));
    if (p == NULL || p->sequence != d->sequence + 1 || d->status != CDDP_OK || d->digest == 0)
        return;
    flight *f = p->bucket >= 0 ? cd_table_find(&s->flights, CD_KEY(e->rank, p->bucket)) : NULL;
    if (f != NULL) f->delivered = d->digest;
    const bool is_alike =
        p->op == CDDP_OP_ALLGATHER || p->op == CDDP_OP_BROADCAST ||
        (p->op == CDDP_OP_ALLREDUCE && cd_writer_has_equal_bits(s->writer, d->group));
    if (is_alike &&
        !cd_agree_push(&s->outputs,
                       &(cd_statement){.key = CD_KEY(d->group, d->sequence), CD_SAYS(d->digest)},
                       e) &&
        (s->parted_step == 0 || e->step + 1 < s->parted_step))
        s->parted_step = e->step + 1;
}

bool cd_hook_sums_has_parted(const cd_hook_sums *s, uint32_t step)
{
    return s->parted_step != 0 && step + 1 >= s->parted_step;
}

/* Whether the result is what the only operation delivered, of what the plan's hook posts. */
static void note_result(cd_hook_sums *s, const cddp_event *e, const flight *f)
{
    const cddp_event_hook_done *h = &e->as.hook_done;
    const bool has_given = (f->posted != 0 && f->is_seen) || f->is_whole;
    const bool is_passed_on =
        f->posts == 1 && has_given && h->digest != 0 && f->delivered == h->digest;
    own_result *own = is_passed_on ? NULL : cd_table_add(&s->own_results, CD_KEY(h->bucket));
    if (own == NULL) return;
    if (own->is_known &&
        (own->step < e->step || (own->step == e->step && own->micro_step <= e->micro_step)))
        return;
    *own = (own_result){e->step, e->micro_step, true};
}

/* A hook whose way is its own did not give the rank's share as it is: where that is missing in the
** mean, it is the rank's. */
static void note_giver(cd_hook_sums *s, const cddp_event *e, const flight *f)
{
    giver *g = f->whole[0] != 0 && f->has_digests && !f->is_whole
                   ? cd_table_add(&s->givers, CD_KEY(e->as.hook_done.bucket))
                   : NULL;
    if (g == NULL) return;
    const bool is_same = g->is_known && g->step == e->step && g->micro_step == e->micro_step;
    const bool is_earlier =
        !g->is_known || e->step < g->step || (e->step == g->step && e->micro_step < g->micro_step);
    if (is_earlier) *g = (giver){e->step, e->micro_step, true, {0}};
    if (is_earlier || is_same) cd_rank_set_add(&g->ranks, &s->writer->memory, e->rank);
}

/* Up to then every rank's hook passed on what came. */
static bool was_passed_on(const cd_hook_sums *s, int64_t bucket, const sum *j)
{
    const own_result *own = cd_table_find(&s->own_results, CD_KEY(bucket));
    return own == NULL || own->step > j->step ||
           (own->step == j->step && own->micro_step > j->micro_step);
}

static void take_done(cd_hook_sums *s, const cddp_event *e)
{
    const cddp_event_hook_done *h = &e->as.hook_done;
    flight *f = cd_table_find(&s->flights, CD_KEY(e->rank, h->bucket));
    if (f == NULL || !f->is_open) return;
    char title[128], expected[96], actual[96];
    f->is_open = false;
    note_result(s, e, f);
    note_giver(s, e, f);
    s->tied++;
    CD_SAY(title, "hook %s does not send what the plan makes of bucket %lld", f->name,
           (long long)h->bucket);
    CD_SAY(expected, "%lld bytes", (long long)f->bytes);
    CD_SAY(actual, "%lld bytes", (long long)h->wire_bytes);
    if (f->bytes >= 0 && f->bytes != h->wire_bytes) {
        note(s, e,
             &(deed){h->bucket, 0, 0, title, expected, actual,
                     "does the hook use the options of the plan: rank, k, ratio, start?"});
        return;
    }
    CD_SAY(expected, "a collective of numbers with digest %016llx", (unsigned long long)f->posted);
    CD_SAY(actual, "%llu collective%s, %sof numbers with digest %016llx",
           (unsigned long long)f->posts, f->posts == 1 ? "" : "s",
           f->posts == 1 ? "" : "the first ", (unsigned long long)f->first_posted);
    if (f->posted != 0 && f->has_digests && !f->is_seen)
        note(s, e,
             &(deed){h->bucket, 0, 0, title, expected, actual,
                     "does the hook forget a debt, choose other elements, or round otherwise?"});
}

static void take_local(cd_hook_sums *s, const cddp_event *e)
{
    const cddp_event_grad_local *g = &e->as.grad_local;
    slice *kept = cd_table_add(&s->slices, CD_KEY(e->rank, g->param));
    if (kept == NULL) return;
    kept->local = g->presence == CDDP_PRESENCE_VALUE ? g->digest : 0;
    kept->local_dtype = g->dtype;
    kept->step = e->step;
    kept->micro_step = e->micro_step;
    kept->is_marked = false;
}

static void take_ready(cd_hook_sums *s, const cddp_event *e)
{
    const cddp_event_mark_ready *m = &e->as.mark_ready;
    slice *kept = cd_table_find(&s->slices, CD_KEY(e->rank, m->param));
    if (kept != NULL)
        kept->is_marked = !m->unused && kept->step == e->step && kept->micro_step == e->micro_step;
}

/* A hook is given gradients as they were accumulated: the division is its own (GRD-02). */
static void take_left(cd_hook_sums *s, const cddp_event *e)
{
    const cddp_event_bucket_slice *b = &e->as.bucket_slice;
    slice *kept = cd_table_find(&s->slices, CD_KEY(e->rank, b->param));
    if (kept != NULL) kept->bucket = b->bucket;
    if (kept == NULL || !kept->is_marked || kept->local == 0 || kept->local_dtype != b->dtype)
        return;
    kept->is_marked = false;
    s->tied++;
    if (kept->local == b->digest) return;
    char title[128], expected[32], actual[32];
    CD_SAY(title, "the hook is given another gradient of %s than was accumulated",
           cd_writer_get_parameter(s->writer, b->param));
    CD_SAY(expected, "%016llx", (unsigned long long)kept->local);
    CD_SAY(actual, "%016llx", (unsigned long long)b->digest);
    note(s, e,
         &(deed){b->bucket, 1, b->param + 1, title, expected, actual,
                 "with a comm hook gradients enter their bucket as they are (GRD-02)"});
}

static void take_slice(cd_hook_sums *s, const cddp_event *e)
{
    const cddp_event_bucket_slice *b = &e->as.bucket_slice;
    slice *kept = cd_table_add(&s->slices, CD_KEY(e->rank, b->param));
    if (kept == NULL) return;
    kept->digest = b->digest;
    kept->dtype = b->dtype;
    kept->bucket = b->bucket;
    kept->is_due = true;
}

static void take_final(cd_hook_sums *s, const cddp_event *e)
{
    const cddp_event_grad_final *g = &e->as.grad_final;
    slice *kept = cd_table_find(&s->slices, CD_KEY(e->rank, g->param));
    if (kept == NULL || !kept->is_due) return;
    kept->is_due = false;
    if (g->presence != CDDP_PRESENCE_VALUE || g->globally_unused || g->dtype != kept->dtype ||
        g->digest == 0 || kept->digest == 0)
        return;
    s->tied++;
    if (g->digest == kept->digest) return;
    char title[128], expected[32], actual[32];
    CD_SAY(title, "the gradient of %s is not its slice of the hook's result",
           cd_writer_get_parameter(s->writer, g->param));
    CD_SAY(expected, "%016llx", (unsigned long long)kept->digest);
    CD_SAY(actual, "%016llx", (unsigned long long)g->digest);
    note(s, e,
         &(deed){kept->bucket, 1, g->param + 1, title, expected, actual,
                 "a bucket's result is written back as it is, cast to the gradient's dtype "
                 "(FIN-03)"});
}

/* ---- all ranks ---- */

static void add_variant(cd_hook_sums *s, sum *j, const cddp_event *e)
{
    const double got = cd_f64_of(e->as.bucket_sum.got);
    uint32_t i = 0;
    while (i < j->variant_count && j->variants[i].got != got) i++;
    if (i == VARIANTS) i = VARIANTS - 1; /* more than that agree on nothing */
    if (i == j->variant_count) {
        j->variants[i].got = got;
        j->variant_count++;
    }
    j->variants[i].count++;
    cd_rank_set_add(&j->variants[i].ranks, &s->writer->memory, e->rank);
}

static sum *add_to_sum(cd_hook_sums *s, const cddp_event *e, int64_t group)
{
    const cddp_event_bucket_sum *b = &e->as.bucket_sum;
    const int64_t law = b->bucket * 64 + b->number,
                  block = b->ranks > 0 ? (int64_t)e->rank / b->ranks : -1;
    uint64_t *before = cd_table_add(&s->ordinals, CD_KEY(e->rank, law));
    if (before == NULL) return NULL;
    sum *j = cd_table_add(&s->sums, CD_KEY((int64_t)*before, law, block, group));
    part *p = cd_table_add(&s->parts, CD_KEY((int64_t)*before, law, e->rank, group));
    if (j == NULL || p == NULL) return NULL;
    *p = (part){cd_f64_of(b->given), block};
    j->ordinal = (int64_t)*before;
    (*before)++;
    j->is_collective = b->number >= CD_LAW_COLLECTIVES;
    j->given += cd_f64_of(b->given);
    j->bound += cd_f64_of(b->bound);
    add_variant(s, j, e);
    if (j->count == 0 || e->rank < j->rank) {
        j->rank = e->rank;
        j->step = e->step;
        j->micro_step = e->micro_step;
        j->sequence = e->sequence;
        CD_SAY(j->law, "%s", e->text != NULL ? e->text : "");
    }
    j->count++;
    return j;
}

static bool is_off(const sum *j, const variant *v)
{
    return !(fabs(v->got - j->given) <= j->bound);
}

/* Note [Whose part is missing]
** A mean is stated as two sums, with different weights: each must come out as what the ranks gave.
** Where one rank's part is left out, or counts twice, both are off by the same multiple of its part
** in them. A rank is named when no other one explains both, and no common factor does. A chance
** agreement needs as many digits as the sums have above their bounds: a multiple other than 0 or 2
** is believed with ten binary digits, those with six. */
typedef struct pair {
    double off[2], given[2], bound[2];
} pair;

static bool explains(const pair *p, double a, double b)
{
    return fabs(p->off[0] * b - p->off[1] * a) <= p->bound[0] * fabs(b) + p->bound[1] * fabs(a);
}

static bool read_pair(const sum *const sums[2], pair *p)
{
    for (int i = 0; i < 2; i++) {
        const sum *j = sums[i];
        if (j == NULL || j->count != j->whole || j->variant_count != 1) return false;
        p->given[i] = j->given;
        p->bound[i] = j->bound;
        p->off[i] = j->variants[0].got - j->given;
        if (!(fabs(p->off[i]) > 0x1p6 * j->bound)) return false;
    }
    return !explains(p, p->given[0], p->given[1]);
}

/* The multiple by which both sums are off; 0: this part does not explain it. */
static double find_multiple(const pair *p, const part *const parts[2])
{
    for (int i = 0; i < 2; i++)
        if (parts[i] == NULL || !(fabs(parts[i]->given) > 0x1p6 * p->bound[i])) return 0;
    if (!explains(p, parts[0]->given, parts[1]->given)) return 0;
    const double times = p->off[0] / parts[0]->given;
    const bool is_plain = fabs(fabs(times) - 1) < 0x1p-5;
    for (int i = 0; i < 2; i++)
        if (!is_plain && !(fabs(p->off[i]) > 0x1p10 * p->bound[i])) return 0;
    return times;
}

/* See Note [Whose part is missing]. law: of the second of the two sums. */
static void find_lost(const cd_hook_sums *s, const sum *second, const cd_key *key, breach *b)
{
    const int64_t law = key->part[1], block = key->part[2], group = key->part[3];
    const sum *const sums[2] = {cd_table_find(&s->sums,
                                              CD_KEY(second->ordinal, law - 1, block, group)),
                                second};
    uint32_t fits = 0;
    pair p;
    if (!read_pair(sums, &p)) return;
    for (uint32_t rank = 0; rank < s->launched.count; rank++) {
        const part *const parts[2] = {cd_table_find(&s->parts,
                                                    CD_KEY(second->ordinal, law - 1, rank, group)),
                                      cd_table_find(&s->parts,
                                                    CD_KEY(second->ordinal, law, rank, group))};
        const bool is_in = parts[0] != NULL && parts[0]->block == block;
        const double times = is_in ? find_multiple(&p, parts) : 0;
        if (times == 0) continue;
        fits++;
        b->lost = (int64_t)rank + 1;
        b->times = 1 + times;
    }
    if (fits != 1) b->lost = 0;
}

static void take_sum(cd_hook_sums *s, const cddp_event *e, int64_t group)
{
    cddp_fact_group found;
    const cddp_event_bucket_sum *b = &e->as.bucket_sum;
    const bool is_known = cd_writer_find_group(s->writer, group, &found);
    if (is_known) s->members = (uint64_t)found.members;
    sum *j = is_known ? add_to_sum(s, e, group) : NULL;
    if (j == NULL) return;
    j->whole = b->ranks > 0 ? (uint64_t)b->ranks : (uint64_t)found.members;
    if (j->count != j->whole) return;
    s->judged++;
    bool is_broken = false;
    for (uint32_t i = 0; i < j->variant_count; i++)
        is_broken = is_broken || is_off(j, &j->variants[i]);
    breach *earliest = is_broken ? cd_table_add(&s->breaches, CD_KEY(b->bucket)) : NULL;
    if (earliest == NULL) return;
    const sum *k = &earliest->sum;
    if (!earliest->is_made || j->step < k->step ||
        (j->step == k->step && j->micro_step < k->micro_step))
        *earliest = (breach){*j, true, 0, 0};
    const bool is_here = earliest->sum.step == j->step && earliest->sum.micro_step == j->micro_step;
    const int64_t block = b->ranks > 0 ? (int64_t)e->rank / b->ranks : -1;
    if (is_here && b->number == CD_LAW_MEANS + 1)
        find_lost(s, j, CD_KEY(j->ordinal, b->bucket * 64 + b->number, block, group), earliest);
}

/* A collective did not give what its members posted, in this step or before: I-COLL's. */
static bool is_reduced_wrongly(const cd_hook_sums *s, const sum *j)
{
    return s->wrong_step != 0 && j->step + 1 >= s->wrong_step;
}

static const char *hook_of(const cd_hook_sums *s, uint32_t rank, int64_t bucket)
{
    const flight *f = cd_table_find(&s->flights, CD_KEY(rank, bucket));
    return f != NULL ? f->name : "";
}

/* The rank whose part explains the breach is the one that did not give it as it is. */
static bool is_lost_by_its_rank(const cd_hook_sums *s, int64_t bucket, const breach *b)
{
    const giver *g = cd_table_find(&s->givers, CD_KEY(bucket));
    return b->lost != 0 && g != NULL && g->step == b->sum.step &&
           g->micro_step == b->sum.micro_step && cd_rank_set_count(&g->ranks) == 1 &&
           cd_rank_set_has(&g->ranks, (uint32_t)(b->lost - 1));
}

static void say_lost(const breach *b, char *text, size_t text_bytes)
{
    const long long rank = (long long)b->lost - 1;
    if (fabs(b->times) < 0x1p-5)
        cd_say(text, text_bytes, "as without the part of rank %lld", rank);
    else
        cd_say(text, text_bytes, "as if the part of rank %lld counted %s times", rank,
               cd_ratio_print(b->times).text);
}

static void report_lost(cd_hook_sums *s, int64_t bucket, const breach *b)
{
    const uint32_t rank = (uint32_t)(b->lost - 1);
    const cddp_event place = {.kind = CDDP_EV_bucket_sum,
                              .rank = rank,
                              .step = b->sum.step,
                              .micro_step = b->sum.micro_step,
                              .sequence = b->sum.sequence};
    cddp_finding f = cd_finding_at(s->writer, &place);
    f.bucket = (int32_t)bucket;
    f.is_consequence = cd_hook_sums_has_parted(s, b->sum.step) || is_reduced_wrongly(s, &b->sum);
    cd_finding_set_rank(s->writer, &f, rank);
    CD_SAY(f.title, "rank %u: hook %s does not give the rank's part of bucket %lld to the mean",
           rank, hook_of(s, rank, bucket), (long long)bucket);
    CD_SAY(f.expected, "%.9g, within %.3g", b->sum.given, b->sum.bound);
    char lost[96];
    say_lost(b, lost, sizeof lost);
    CD_SAY(f.actual, "%.9g, %s", b->sum.variants[0].got, lost);
    CD_SAY(f.advice, "the other ranks post their whole share, as it is or divided: compare what "
                     "the hook posts on this one");
    cd_writer_report(s->writer, &f);
}

static void report_breach(cd_hook_sums *s, int64_t bucket, const breach *b)
{
    const sum *j = &b->sum;
    if (is_lost_by_its_rank(s, bucket, b)) {
        report_lost(s, bucket, b);
        return;
    }
    cd_rank_set wrong = {0};
    uint32_t count = 0;
    const variant *worst = NULL;
    for (uint32_t i = 0; i < j->variant_count; i++) {
        const variant *v = &j->variants[i];
        if (!is_off(j, v)) continue;
        cd_rank_set_unite(&wrong, &s->writer->memory, &v->ranks);
        count += v->count;
        if (worst == NULL || fabs(v->got - j->given) > fabs(worst->got - j->given)) worst = v;
    }
    const cddp_event place = {.kind = CDDP_EV_bucket_sum,
                              .rank = cd_rank_set_next(&wrong, 0),
                              .step = j->step,
                              .micro_step = j->micro_step,
                              .sequence = j->sequence};
    cddp_finding f = cd_finding_at(s->writer, &place);
    char who[96];
    const bool is_all = count == j->count && j->count > 1;
    if (is_all)
        CD_SAY(who, "all ranks");
    else
        cd_rank_set_print(&wrong, place.rank, who, sizeof who);
    f.bucket = (int32_t)bucket;
    f.rank = is_all ? -1 : (int32_t)place.rank;
    cd_finding_set_ranks(s->writer, &f, &wrong);
    const bool is_passed_on = !j->is_collective && was_passed_on(s, bucket, j);
    f.is_consequence = cd_hook_sums_has_parted(s, j->step) || is_reduced_wrongly(s, j);
    if (j->is_collective)
        CD_SAY(f.title, "%s: a collective of bucket %lld does not give the sum of what entered it",
               who, (long long)bucket);
    else if (is_passed_on)
        CD_SAY(f.title,
               "%s: the collective of bucket %lld does not give the mean of what entered it", who,
               (long long)bucket);
    else
        CD_SAY(f.title, "%s: the result of hook %s for bucket %lld breaks its law: %s", who,
               hook_of(s, place.rank, bucket), (long long)bucket, j->law);
    /* not more: the last digits depend on the order of ranks */
    CD_SAY(f.expected, "%.9g, within %.3g", j->given, j->bound);
    if (j->given != 0)
        CD_SAY(f.actual, "%.9g, which is %s of it", worst->got,
               cd_ratio_print(worst->got / j->given).text);
    else
        CD_SAY(f.actual, "%.9g", worst->got);
    const size_t used = strlen(f.actual);
    if (b->lost != 0 && used + 2 < sizeof f.actual) {
        cd_say(f.actual + used, sizeof f.actual - used, "; ");
        say_lost(b, f.actual + used + 2, sizeof f.actual - used - 2);
    }
    CD_SAY(f.advice, "%s",
           j->is_collective
               ? "run the backend's conformance tests at this element count, dtype and "
                 "world size"
           : is_passed_on
               ? "hooks passed on what their collective delivered, bit for bit: run the backend's "
                 "conformance tests at this element count, dtype and world size"
               : "the law is of docs/hooks.md, with the options of the plan; debts are kept by "
                 "the judge");
    cd_writer_report(s->writer, &f);
}

/* What the judge of hooks found on one rank. */
static void take_compare(cd_hook_sums *s, const cddp_event *e)
{
    const cddp_event_compare *c = &e->as.compare;
    const slice *kept = cd_table_find(&s->slices, CD_KEY(e->rank, c->param));
    if (c->link == CD_LINK_SUM && c->bad > 0 && (s->wrong_step == 0 || e->step + 1 < s->wrong_step))
        s->wrong_step = e->step + 1;
    if (c->link != CD_LINK_LAW || c->bad == 0) return;
    const int64_t bucket = kept != NULL ? kept->bucket : -1;
    char title[256], expected[96], actual[96];
    CD_SAY(title, "hook %s breaks its law for %s: %s", hook_of(s, e->rank, bucket),
           cd_writer_get_parameter(s->writer, c->param), e->text != NULL ? e->text : "");
    CD_SAY(expected, "%.9g, within %.3g", cd_f64_of(c->expected), cd_f64_of(c->bound));
    CD_SAY(actual, "%.9g at element %lld", cd_f64_of(c->actual), (long long)c->element);
    note(s, e,
         &(deed){bucket, 0, c->param + 1, title, expected, actual,
                 "the law is of docs/hooks.md, with the options of the plan; debts and factors "
                 "are kept by the judge"});
}

void cd_hook_sums_take(cd_hook_sums *s, const cddp_event *e, int64_t group)
{
    switch (e->kind) {
    case CDDP_EV_bucket_law:
        take_law(s, e);
        break;
    case CDDP_EV_mark:
        take_mark(s, e);
        break;
    case CDDP_EV_hook_call:
        take_call(s, e);
        break;
    case CDDP_EV_collective_post:
        take_post(s, e);
        break;
    case CDDP_EV_collective_done:
        take_delivery(s, e);
        break;
    case CDDP_EV_hook_done:
        take_done(s, e);
        break;
    case CDDP_EV_grad_local:
        take_local(s, e);
        break;
    case CDDP_EV_mark_ready:
        take_ready(s, e);
        break;
    case CDDP_EV_bucket_slice:
        if (e->as.bucket_slice.left)
            take_left(s, e);
        else
            take_slice(s, e);
        break;
    case CDDP_EV_grad_final:
        take_final(s, e);
        break;
    case CDDP_EV_compare:
        take_compare(s, e);
        break;
    case CDDP_EV_bucket_sum:
        take_sum(s, e, group);
        break;
    default:
        break;
    }
}

bool cd_hook_sums_has_culprit(const cd_hook_sums *s, int64_t bucket, uint32_t step)
{
    const culprit *c = cd_table_find(&s->culprits, CD_KEY(bucket, 0));
    return c != NULL && c->is_known && c->step <= step;
}

/* A rank that did something else with the bucket is the cause of a wrong sum. */
void cd_hook_sums_end(cd_hook_sums *s)
{
    for (size_t i = 0; i < s->breaches.count; i++) {
        const int64_t bucket = cd_table_key(&s->breaches, i)->part[0];
        const breach *b = cd_table_value(&s->breaches, i);
        const culprit *c = cd_table_find(&s->culprits, CD_KEY(bucket, 0));
        const bool has_cause = c != NULL && c->is_known &&
                               (c->step < b->sum.step ||
                                (c->step == b->sum.step && c->micro_step <= b->sum.micro_step));
        if (!has_cause) report_breach(s, bucket, b);
    }
    for (size_t i = 0; i < s->culprits.count; i++) report_deed(s, cd_table_value(&s->culprits, i));
    cd_agree_fini(&s->outputs);
    cd_ranks_fini(&s->launched);
    cd_table *tables[] = {&s->flights,  &s->slices, &s->ordinals,    &s->sums,  &s->breaches,
                          &s->culprits, &s->posts,  &s->own_results, &s->parts, &s->givers};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) cd_table_fini(tables[i]);
}
