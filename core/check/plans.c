/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/plans.h"

#include "cddp/tensor.h"
#include "core/base/arena.h"
#include "core/base/text.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"

#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0
#define UNLIMITED (-1) /* as bucket_layout tells it */

typedef struct plan_facts {
    /* is_lost: who leads what, or what arrived, is not known any more */
    bool leads, is_lost;
    int64_t params, slots, arrivals, unused, windows; /* windows: finalised backwards */
    int64_t marks;                                    /* since the last of them */
    int64_t generation, group;
    /* is_due: to be rebuilt; asks: in the forward that has begun */
    bool is_wrapped, is_due, is_rebuilt, asks;
    /* another group: layouts are counted anew, from this one on */
    int64_t first_generation;
    bool starts_again;
} plan_facts;

typedef struct size {
    int64_t bytes, dtype;
    bool is_sparse;
} size;

typedef struct slot {
    int64_t bucket, slot, param, limit;
} slot;

/* A computed plan: the bucket of the parameter at each position of an order. */
typedef struct assigned {
    int64_t bucket, slot; /* bucket: the k-th to be opened */
} assigned;

typedef struct opened {
    int64_t bytes, members, limit, turn; /* turn: when it was closed, from 0; -1 while open */
} opened;

typedef struct draft {
    assigned *of;    /* (count) by parameter */
    opened *buckets; /* (count) */
    int64_t bucket_count;
} draft;

void cd_plans_init(cd_plans *p, cd_writer *writer)
{
    const cddp_allocator *a = writer->context.allocator;
    p->writer = writer;
    cd_ranks_init(&p->ranks, a, sizeof(plan_facts));
    cd_table_init(&p->leads, a, sizeof(int64_t));
    cd_table_init(&p->sizes, a, sizeof(size));
    cd_table_init(&p->slots, a, sizeof(slot));
    cd_table_init(&p->arrivals, a, sizeof(int64_t));
}

void cd_plans_fini(cd_plans *p)
{
    cd_ranks_fini(&p->ranks);
    cd_table_fini(&p->leads);
    cd_table_fini(&p->sizes);
    cd_table_fini(&p->slots);
    cd_table_fini(&p->arrivals);
}

/* ---- settings ---- */

static bool find_setting(const cd_plans *p, uint32_t rank, cddp_key key, cddp_fact_setting *found)
{
    return cd_writer_find_setting(p->writer, rank, key, found);
}

static int64_t bytes_of(double mib) { return mib > 0 && mib <= 1e6 ? (int64_t)(mib * MIB) : 0; }

static bool has_flag(const cd_plans *p, uint32_t rank, cddp_key flag)
{
    return cd_writer_has_flag(p->writer, rank, flag);
}

static bool is_static(const cd_plans *p, uint32_t rank)
{
    return has_flag(p, rank, CDDP_KEY_ddp_static_graph);
}

/* The small cap is the last bucket's (BKT-16). */
static bool is_last_small(const cd_plans *p, uint32_t rank)
{
    return has_flag(p, rank, CDDP_KEY_ddp_set_last_bucket_cap);
}

/* A rank that did not report its caps, or not all of a list, is not judged. */
static bool has_caps(const cd_plans *p, uint32_t rank)
{
    const cddp_facts *facts = p->writer->context.facts;
    const char *path = cd_setting_path(CDDP_KEY_ddp_bucket_cap_mb_list);
    cddp_fact_setting list = {0}, cap;
    (void)find_setting(p, rank, CDDP_KEY_ddp_bucket_cap_mb_list, &list);
    for (int64_t i = 1; i < list.items; i++)
        if (!facts->setting(facts->self, rank, path, i, &cap)) return false;
    return find_setting(p, rank, CDDP_KEY_ddp_bucket_cap_mb, &cap);
}

/* Of a list of caps the last one repeats (BKT-15). */
static int64_t listed_cap(const cd_plans *p, uint32_t rank, int64_t position)
{
    const cddp_facts *facts = p->writer->context.facts;
    cddp_fact_setting cap = {0};
    facts->setting(facts->self, rank, cd_setting_path(CDDP_KEY_ddp_bucket_cap_mb_list), position,
                   &cap);
    return bytes_of(cap.real);
}

/* The cap of the bucket that a dtype fills after `closed` others (BKT-11, BKT-12, REB-04). */
static int64_t cap_of(const cd_plans *p, uint32_t rank, const plan_facts *f, int64_t closed)
{
    cddp_fact_setting list = {0}, cap = {0}, first = {0};
    (void)find_setting(p, rank, CDDP_KEY_ddp_bucket_cap_mb_list, &list);
    if (list.items > 0) return listed_cap(p, rank, closed < list.items ? closed : list.items - 1);
    if (f->generation == 0 &&
        (is_static(p, rank) || !has_flag(p, rank, CDDP_KEY_ddp_find_unused_parameters)))
        return UNLIMITED;
    (void)find_setting(p, rank, CDDP_KEY_ddp_bucket_cap_mb, &cap);
    if (cap.real != 0.0) return bytes_of(cap.real); /* of less than a byte: every parameter alone */
    (void)find_setting(p, rank, CDDP_KEY_ddp_first_bucket_bytes, &first);
    return closed == 0 ? first.value : bytes_of(25);
}

/* ---- a plan worked out ---- */

/* The k-th parameter to be given a place. */
static int64_t param_at(const cd_plans *p, uint32_t rank, const plan_facts *f, int64_t k)
{
    if (f->generation == 0) return k;
    if (is_last_small(p, rank)) k = f->params - 1 - k;
    const int64_t *arrived = f->arrivals > 0 ? cd_table_find(&p->arrivals, CD_KEY(rank, k)) : NULL;
    /* a rank that had joined before anything arrived takes the order of registration (REB-09) */
    return arrived != NULL ? *arrived : k;
}

/* Each dtype fills its own bucket until the bytes reach the cap. A parameter that expects sparse
** gradients has a bucket alone. */
static void work_out(const cd_plans *p, uint32_t rank, const plan_facts *f, draft *d)
{
    int64_t open[CDDP_DTYPE_COUNT], closed[CDDP_DTYPE_COUNT] = {0}, turns = 0;
    for (int64_t t = 0; t < CDDP_DTYPE_COUNT; t++) open[t] = -1;
    for (int64_t k = 0; k < f->params; k++) {
        const int64_t param = param_at(p, rank, f, k);
        const size *s = cd_table_find(&p->sizes, CD_KEY(rank, param));
        int64_t b = s->is_sparse ? -1 : open[s->dtype];
        if (b < 0) {
            b = d->bucket_count++;
            d->buckets[b] =
                (opened){.limit = s->is_sparse ? 0 : cap_of(p, rank, f, closed[s->dtype]),
                         .turn = -1};
            if (!s->is_sparse) open[s->dtype] = b;
        }
        opened *bucket = &d->buckets[b];
        d->of[param] = (assigned){b, bucket->members++};
        if (bucket->limit == UNLIMITED) continue;
        bucket->bytes += s->bytes;
        if (!s->is_sparse && bucket->bytes < bucket->limit) continue;
        bucket->turn = turns++;
        if (s->is_sparse) continue;
        open[s->dtype] = -1;
        closed[s->dtype]++;
    }
    for (int64_t b = 0; b < d->bucket_count; b++)
        if (d->buckets[b].turn < 0) d->buckets[b].turn = turns++;
}

/* Where a bucket stands: at first the last to be opened comes first (BKT-10); rebuilt ones as they
** were closed, or with the small one last. */
static int64_t index_of(const plan_facts *f, bool last_small, const draft *d, int64_t b)
{
    if (f->generation == 0) return d->bucket_count - 1 - b;
    return last_small ? d->bucket_count - 1 - d->buckets[b].turn : d->buckets[b].turn;
}

static void say_slot(char *text, size_t text_bytes, const slot *s)
{
    char limit[40] = "without a cap";
    if (s->limit != UNLIMITED) CD_SAY(limit, "with a cap of %lld bytes", (long long)s->limit);
    cd_say(text, text_bytes, "slot %lld of bucket %lld, %s", (long long)s->slot,
           (long long)s->bucket, limit);
}

static void compare(cd_plans *p, const cddp_event *e, const plan_facts *f, const draft *d)
{
    const bool last_small = is_last_small(p, e->rank);
    for (int64_t k = 0; k < f->slots; k++) {
        const slot *is = cd_table_find(&p->slots, CD_KEY(e->rank, k));
        const assigned *a = &d->of[is->param];
        const opened *b = &d->buckets[a->bucket];
        const slot due = {index_of(f, last_small, d, a->bucket), a->slot, is->param, b->limit};
        if (is->bucket == due.bucket && is->slot == due.slot && is->limit == due.limit) continue;
        cddp_finding finding = cd_finding_at(p->writer, e);
        finding.bucket = (int32_t)is->bucket;
        cd_finding_set_parameter(p->writer, &finding, is->param);
        CD_SAY(finding.title,
               CDDP_FINDING_WHO ": layout %lld is not what its bucket caps and %s give: %s",
               (long long)f->generation,
               f->generation == 0 ? "the order of its parameters" : "the order of arrival",
               finding.parameter);
        say_slot(finding.expected, sizeof finding.expected, &due);
        say_slot(finding.actual, sizeof finding.actual, is);
        CD_SAY(finding.advice, "a bucket is closed as soon as its bytes reach its cap, each dtype "
                               "for itself (BKT-02 to BKT-16, REB-04)");
        cd_writer_report(p->writer, &finding);
        return;
    }
    cd_writer_exercise(p->writer, "bucket caps: layout %lld, %lld bucket%s",
                       (long long)f->generation, (long long)d->bucket_count,
                       cd_plural((uint64_t)d->bucket_count));
}

/* All slots of a layout were reported. */
static void judge_layout(cd_plans *p, const cddp_event *e, const plan_facts *f)
{
    const size_t count = (size_t)f->params;
    const bool leads =
        f->generation == 0 ||
        (f->is_wrapped && cd_table_find(&p->leads, CD_KEY(e->rank, f->group)) != NULL);
    const bool is_known = f->generation == 0 ||
                          (f->generation == 1 && (f->arrivals == 0 || f->arrivals == f->params));
    if (!has_caps(p, e->rank) || f->is_lost || !leads || !is_known) return;
    for (int64_t k = 0; k < f->params; k++)
        if (cd_table_find(&p->sizes, CD_KEY(e->rank, k)) == NULL) return;
    draft d = {0};
    cd_arena scratch;
    cd_arena_init(&scratch, p->writer->context.allocator, 0);
    d.of = cd_arena_array(&scratch, count, sizeof *d.of);
    d.buckets = cd_arena_array(&scratch, count, sizeof *d.buckets);
    if (!scratch.exhausted) {
        work_out(p, e->rank, f, &d);
        compare(p, e, f, &d);
    }
    cd_arena_fini(&scratch);
}

/* ---- events ---- */

/* A module is reported again when it is wrapped again. */
static void take_param(cd_plans *p, const cddp_event *e, plan_facts *f)
{
    const cddp_event_param *m = &e->as.param;
    if (m->ordinal == 0) {
        f->params = f->slots = f->arrivals = f->unused = f->windows = f->marks = 0;
        f->is_wrapped = f->is_due = f->is_rebuilt = f->asks = f->starts_again = false;
        f->first_generation = 0;
    }
    const bool is_reduced =
        m->param >= 0 && m->numel >= 0 && m->dtype >= 0 && m->dtype < CDDP_DTYPE_COUNT;
    size *s = is_reduced ? cd_table_add(&p->sizes, CD_KEY(e->rank, m->param)) : NULL;
    if (s == NULL) return;
    *s = (size){m->numel * (int64_t)cddp_dtype_bytes((cddp_dtype)m->dtype), m->dtype,
                m->sparse != 0};
    if (m->param >= f->params) f->params = m->param + 1;
}

static void take_slot(cd_plans *p, const cddp_event *e, plan_facts *f)
{
    const cddp_event_bucket_layout *l = &e->as.bucket_layout;
    if (f->starts_again) f->first_generation = l->generation;
    f->starts_again = false;
    const int64_t generation = l->generation - f->first_generation;
    if (f->slots == f->params || generation != f->generation) f->slots = 0;
    f->generation = generation;
    slot *s = l->param >= 0 && l->param < f->params
                  ? cd_table_add(&p->slots, CD_KEY(e->rank, f->slots))
                  : NULL;
    if (s == NULL) return;
    *s = (slot){l->bucket, l->slot, l->param, l->limit};
    if (++f->slots == f->params) judge_layout(p, e, f);
}

static void arrive(cd_plans *p, uint32_t rank, plan_facts *f, int64_t param)
{
    const bool is_known = param >= 0 && param < f->params;
    int64_t *at = is_known && f->arrivals < f->params
                      ? cd_table_add(&p->arrivals, CD_KEY(rank, f->arrivals))
                      : NULL;
    if (at == NULL) return;
    *at = param;
    f->arrivals++;
}

/* Layouts are rebuilt unless unused parameters are searched for in every pass (REB-01). */
static bool rebuilds(const cd_plans *p, uint32_t rank)
{
    return is_static(p, rank) || !has_flag(p, rank, CDDP_KEY_ddp_find_unused_parameters);
}

/* The first synchronised backward tells; of a static graph the second, in which the unused are
** taken to come last (REB-02). */
static bool is_watched(const cd_plans *p, uint32_t rank, const plan_facts *f)
{
    return !f->is_rebuilt && rebuilds(p, rank) && f->windows >= is_static(p, rank);
}

static void take_backward_end(cd_plans *p, const cddp_event *e, plan_facts *f)
{
    if (!e->as.backward_end.finalized) return;
    for (int64_t k = 0; is_watched(p, e->rank, f) && is_static(p, e->rank) && k < f->unused; k++) {
        const int64_t *param = cd_table_find(&p->arrivals, CD_KEY(e->rank, k, 1));
        if (param != NULL) arrive(p, e->rank, f, *param);
    }
    /* a rank that leads another group than the wrapper's knows no parameters, and has no buckets */
    f->is_due = is_watched(p, e->rank, f) && f->params > 0 && f->arrivals == f->params;
    f->unused = f->marks = 0;
    f->windows++;
}

static void take_ready(cd_plans *p, const cddp_event *e, plan_facts *f)
{
    const cddp_event_mark_ready *m = &e->as.mark_ready;
    f->marks++;
    if (!is_watched(p, e->rank, f)) return;
    if (!m->unused) {
        arrive(p, e->rank, f, m->param);
        return;
    }
    int64_t *at = cd_table_add(&p->arrivals, CD_KEY(e->rank, f->unused++, 1));
    if (at != NULL) *at = m->param;
}

/* The event is the rebuild that should not be, or the end of the forward in which there was
** none. */
static void report_rebuild(cd_plans *p, const cddp_event *e, const plan_facts *f)
{
    cddp_finding finding = cd_finding_at(p->writer, e);
    if (!has_caps(p, e->rank) || f->is_lost) return;
    if (e->kind != CDDP_EV_rebuild) {
        CD_SAY(finding.title,
               CDDP_FINDING_WHO ": buckets are not rebuilt although the order in which gradients "
                                "arrive is known");
        CD_SAY(finding.expected, "new buckets in the first forward after that backward");
        CD_SAY(finding.actual, "layout %lld", (long long)f->generation);
    } else {
        CD_SAY(finding.title, CDDP_FINDING_WHO ": buckets are rebuilt %s",
               f->is_rebuilt ? "again" : "although unused parameters are searched for");
        CD_SAY(finding.expected, "layout %lld for good", (long long)f->generation);
        CD_SAY(finding.actual, "layout %lld", (long long)e->as.rebuild.generation);
    }
    CD_SAY(finding.advice, "rebuilding depends on settings only, never on what one rank saw: ranks "
                           "agree on it by broadcasts (REB-01, REB-07)");
    cd_writer_report(p->writer, &finding);
}

static void take_forward(cd_plans *p, const cddp_event *e, plan_facts *f)
{
    if (e->kind == CDDP_EV_forward_begin) {
        f->is_lost |= f->marks > 0; /* a backward was left: the reducer may have been reset */
        f->asks = f->is_due && e->as.forward_begin.grad_mode;
        return;
    }
    if (f->asks && f->is_due) {
        report_rebuild(p, e, f);
        f->is_lost = true; /* reported once */
    }
    f->asks = false;
}

static void take_rebuild(cd_plans *p, const cddp_event *e, plan_facts *f)
{
    if (!rebuilds(p, e->rank) || f->is_rebuilt) {
        report_rebuild(p, e, f);
        f->is_lost = true;
    }
    f->is_rebuilt = true;
    f->is_due = false;
}

static void take_group(cd_plans *p, const cddp_event *e, plan_facts *f)
{
    if (f->arrivals > 0 || f->windows > 0) f->is_lost = true;
    if (e->as.group.group_rank != 0) return;
    int64_t *leads = cd_table_add(&p->leads, CD_KEY(e->rank, e->as.group.group));
    if (leads != NULL) *leads = 1;
    f->leads = true;
}

/* The rebuild is forgotten, and the first layout is back: where it was in force it stays. */
static void take_regroup(const cddp_event *e, plan_facts *f)
{
    f->group = e->as.regroup.group;
    f->slots = f->arrivals = f->unused = f->windows = f->marks = 0;
    f->is_due = f->is_rebuilt = f->asks = false;
    f->starts_again = f->generation > 0;
}

void cd_plans_learn(cd_plans *p, const cddp_event *e)
{
    plan_facts *f = cd_ranks_add(&p->ranks, e->rank);
    if (f == NULL) return;
    if (e->kind == CDDP_EV_group) take_group(p, e, f);
    if (!f->leads) return;
    switch (e->kind) {
    case CDDP_EV_param:
        take_param(p, e, f);
        break;
    case CDDP_EV_bucket_layout:
        take_slot(p, e, f);
        break;
    case CDDP_EV_wrap:
        f->group = e->as.wrap.group;
        f->is_wrapped = true;
        break;
    case CDDP_EV_regroup:
        take_regroup(e, f);
        break;
    case CDDP_EV_mark_ready:
        take_ready(p, e, f);
        break;
    case CDDP_EV_backward_end:
        take_backward_end(p, e, f);
        break;
    case CDDP_EV_rebuild:
        take_rebuild(p, e, f);
        break;
    case CDDP_EV_forward_begin:
    case CDDP_EV_forward_end:
        take_forward(p, e, f);
        break;
    case CDDP_EV_mark: /* with what it had made ready, or inside no_sync with nothing */
        f->is_lost |= e->text != NULL && strcmp(e->text, CD_TRACER_LEFT) == 0;
        break;
    default:
        break;
    }
}
