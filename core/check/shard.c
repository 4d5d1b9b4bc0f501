/* SPDX-License-Identifier: Apache-2.0 */
/* I-SHARD: every element of a sharded model has one owner, and padding stays zero.
**
** Judged from   unit and unit_part of all ranks of a shard group; planned_part of the rank itself;
**               unit_gap.
** Exercised     all ranks of a shard group have reported their part of a parameter.
** Blame         the rank whose part is not the plan's; of parts that overlap or leave something
**               out the rank that has the later one; the rank whose padding is not zero.
** Limits        what a group's ranks have not all reported is not judged. Padding is judged between
**               iterations and after a backward: that nothing reads it in between is not seen.
*/
#include "core/check/writer.h"

#include "core/trace/tracer.h"
#include "core/base/text.h"

typedef struct part {
    int64_t first, count, numel, unit, group, shards;
    uint64_t sequence;
    bool is_known, on_host;
} part;

typedef struct unit_facts {
    int64_t group, shards, shard;
    bool is_known, on_host;
} unit_facts;

typedef struct state {
    cd_writer writer;
    cd_table units;   /* (rank, unit) → unit_facts */
    cd_table parts;   /* (ordinal, group, shard) → part; group -1: of the rank `shard` */
    cd_table reports; /* (ordinal, group) → how many ranks reported */
    cd_table owners;  /* (ordinal, group, shard) → world rank */
    cd_table own;     /* (rank, ordinal) → part */
    uint64_t tiled, gaps;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    const cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-SHARD", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->units, context->allocator, sizeof(unit_facts));
    cd_table_init(&s->parts, context->allocator, sizeof(part));
    cd_table_init(&s->reports, context->allocator, sizeof(int64_t));
    cd_table_init(&s->owners, context->allocator, sizeof(int64_t));
    cd_table_init(&s->own, context->allocator, sizeof(part));
    return CDDP_OK;
}

static void take_part(state *s, const cddp_event *e)
{
    const cddp_event_unit_part *p = &e->as.unit_part;
    const unit_facts *u = cd_table_find(&s->units, CD_KEY(e->rank, p->unit));
    if (u == NULL) return;
    const int64_t shard = u->group >= 0 ? u->shard : (int64_t)e->rank;
    part *kept = cd_table_add(&s->parts, CD_KEY(p->ordinal, u->group, shard));
    part *own = cd_table_add(&s->own, CD_KEY(e->rank, p->ordinal));
    int64_t *count = cd_table_add(&s->reports, CD_KEY(p->ordinal, u->group));
    int64_t *owner = cd_table_add(&s->owners, CD_KEY(p->ordinal, u->group, shard));
    if (kept == NULL || own == NULL || count == NULL || owner == NULL) return;
    *count += !kept->is_known;
    *kept = *own = (part){p->first,  p->count,    p->numel, p->unit,   u->group,
                          u->shards, e->sequence, true,     u->on_host};
    *owner = e->rank;
}

static void judge_home(state *s, const cddp_event *e, const part *own)
{
    const cddp_event_planned_part *p = &e->as.planned_part;
    if (p->on_host < 0 || own->on_host == (p->on_host > 0) ||
        !cd_writer_is_first(&s->writer, CD_KEY(3), e))
        return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_add_event(&f, e->rank, own->sequence);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the shard of %s is on the %s",
           cd_writer_get_ordinal(&s->writer, p->ordinal), own->on_host ? "host" : "device");
    CD_SAY(f.expected, "on the %s", own->on_host ? "device" : "host");
    CD_SAY(f.actual, "on the %s", own->on_host ? "host" : "device");
    CD_SAY(f.advice, "fsdp.cpu_offload says where shards are (FS2-15)");
    cd_writer_hold(&s->writer, CD_KEY(3), &f);
}

static void take_planned(state *s, const cddp_event *e)
{
    const cddp_event_planned_part *p = &e->as.planned_part;
    const part *own = cd_table_find(&s->own, CD_KEY(e->rank, p->ordinal));
    if (own != NULL) judge_home(s, e, own);
    if (own == NULL || (own->count == p->count && (p->count == 0 || own->first == p->first)) ||
        !cd_writer_is_first(&s->writer, CD_KEY(0), e))
        return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_add_event(&f, e->rank, own->sequence);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the part of %s is not the plan's",
           cd_writer_get_ordinal(&s->writer, p->ordinal));
    CD_SAY(f.expected, "%lld element%s from element %lld on", (long long)p->count,
           cd_plural((uint64_t)p->count), (long long)p->first);
    CD_SAY(f.actual, "%lld element%s from element %lld on", (long long)own->count,
           cd_plural((uint64_t)own->count), (long long)own->first);
    CD_SAY(f.advice, "shards are slices of equal length, rounded up; padding is at the end "
                     "(FPM-02, FS2-01)");
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

static void take_gap(state *s, const cddp_event *e)
{
    const cddp_event_unit_gap *g = &e->as.unit_gap;
    const double norm = cd_f64_of(g->norm);
    s->gaps++;
    if (norm == 0 || !cd_writer_is_first(&s->writer, CD_KEY(1, g->what), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the padding of %s in unit %lld is not zero",
           g->what == CDDP_WHAT_GRADIENT ? "the gradient's shard" : "the shard",
           (long long)g->unit);
    CD_SAY(f.expected, "%lld element%s of zero, of no parameter", (long long)g->count,
           cd_plural((uint64_t)g->count));
    CD_SAY(f.actual, "their norm is %g", norm);
    CD_SAY(f.advice, "padding enters the norm that gradients are clipped by; fill it with zeros "
                     "before a reduction, and let no optimizer step it (FPM-05)");
    cd_writer_hold(&s->writer, CD_KEY(1, g->what), &f);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_unit) {
        unit_facts *u = cd_table_add(&s->units, CD_KEY(e->rank, e->as.unit.unit));
        if (u != NULL)
            *u = (unit_facts){e->as.unit.group, e->as.unit.shards, e->as.unit.shard, true,
                              e->as.unit.on_host != 0};
    } else if (e->kind == CDDP_EV_unit_part) {
        take_part(s, e);
    } else if (e->kind == CDDP_EV_planned_part) {
        take_planned(s, e);
    } else if (e->kind == CDDP_EV_unit_gap) {
        take_gap(s, e);
    }
}

/* The owner of element `at`, or of the least one behind it that has an owner. */
static const part *next_part(const state *s, int64_t ordinal, int64_t group, int64_t *shard)
{
    const part *best = NULL;
    const int64_t before = *shard;
    for (int64_t k = 0;; k++) {
        const part *p = cd_table_find(&s->parts, CD_KEY(ordinal, group, k));
        if (p == NULL) break;
        const part *last =
            before >= 0 ? cd_table_find(&s->parts, CD_KEY(ordinal, group, before)) : NULL;
        const bool is_after =
            last == NULL || p->first > last->first || (p->first == last->first && k > before);
        if (p->count == 0 || !is_after || (best != NULL && best->first <= p->first)) continue;
        best = p;
        *shard = k;
    }
    return best;
}

typedef struct tear {
    int64_t ordinal, group, shard, at, numel;
} tear;

static void report_tear(state *s, const tear *t, const part *p)
{
    const int64_t *owner = cd_table_find(&s->owners, CD_KEY(t->ordinal, t->group, t->shard));
    const cddp_event at = {.rank = owner != NULL ? (uint32_t)*owner : 0, .sequence = p->sequence};
    if (!cd_writer_is_first(&s->writer, CD_KEY(2), &at)) return;
    cddp_finding f = cd_finding_at(&s->writer, &at);
    const bool overlaps = p->first < t->at;
    CD_SAY(f.title, "rank %u: elements of %s have %s", at.rank,
           cd_writer_get_ordinal(&s->writer, t->ordinal), overlaps ? "two owners" : "no owner");
    CD_SAY(f.expected, "element %lld of %lld is the next one without an owner", (long long)t->at,
           (long long)t->numel);
    CD_SAY(f.actual, "the next part is that of rank %u, %lld element%s from element %lld on",
           at.rank, (long long)p->count, cd_plural((uint64_t)p->count), (long long)p->first);
    CD_SAY(f.advice, "shards of a unit tile it: every element lies in one of them");
    cd_writer_hold(&s->writer, CD_KEY(2), &f);
}

/* Parts of one parameter in the order of their first elements must follow each other. */
static void judge_tiles(state *s, int64_t ordinal, int64_t group)
{
    int64_t at = 0, shard = -1, last = 0;
    const part *any = cd_table_find(&s->parts, CD_KEY(ordinal, group, 0)), *p = NULL;
    if (any == NULL) return;
    s->tiled++;
    while ((p = next_part(s, ordinal, group, &shard)) != NULL) {
        if (p->first != at) {
            report_tear(s, &(tear){ordinal, group, shard, at, any->numel}, p);
            return;
        }
        at += p->count;
        last = shard;
    }
    if (at == any->numel) return;
    const part *end = cd_table_find(&s->parts, CD_KEY(ordinal, group, last));
    if (end != NULL) report_tear(s, &(tear){ordinal, group, last, at, any->numel}, end);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    for (size_t i = 0; i < s->reports.count; i++) {
        const cd_key *k = cd_table_key(&s->reports, i);
        const int64_t *count = cd_table_value(&s->reports, i);
        const part *any = cd_table_find(&s->parts, CD_KEY(k->part[0], k->part[1], 0));
        if (k->part[1] < 0) /* every rank has all of it */
            s->tiled++;
        else if (any != NULL && *count == any->shards)
            judge_tiles(s, k->part[0], k->part[1]);
    }
    if (s->tiled > 0)
        cd_writer_exercise(&s->writer,
                           "%llu parameters with one owner of each element, padding "
                           "looked at %llu times",
                           (unsigned long long)s->tiled, (unsigned long long)s->gaps);
    cd_table_fini(&s->units);
    cd_table_fini(&s->parts);
    cd_table_fini(&s->reports);
    cd_table_fini(&s->owners);
    cd_table_fini(&s->own);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_unit, CDDP_EV_unit_part, CDDP_EV_planned_part,
                                 CDDP_EV_unit_gap};

CD_CHECK_TABLE(shard, "I-SHARD", "every element of a sharded model has one owner",
               "The shards of a unit tile it over its group: every element lies in exactly one, as "
               "the plan cuts it. What belongs to no parameter stays zero.");
