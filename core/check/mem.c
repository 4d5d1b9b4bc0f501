/* SPDX-License-Identifier: Apache-2.0 */
/* I-MEM: a sharded model has no more full parameters at once than its strategy allows.
**
** Judged from   unit_storage, added up here; planned_units, which the judge derives from the plan;
**               unit_pass for where an iteration begins and ends.
** Exercised     an iteration of a rank ended, and some of it was full meanwhile; or the plan has
**               nothing full.
** Blame         the rank; the unit whose storage was taken last, or that is still there.
** Limits        full parameters alone: gradients, shards and what a device's allocator keeps are
**               not counted. An iteration for which the judge derives nothing is not judged.
*/
#include "core/check/writer.h"

typedef struct planned {
    int64_t peak, left;
} planned;

typedef struct rank_facts {
    int64_t live, peak; /* peak: of the iteration */
    uint32_t step;      /* the last one that it spoke of */
    bool is_inside, has_erred;
} rank_facts;

typedef struct state {
    cd_writer writer;
    cd_table iterations; /* (rank, step, micro) → planned */
    cd_table units;      /* (rank, unit) → bytes that are there */
    cd_table names;      /* (rank, unit) → its module */
    cd_ranks ranks;      /* of rank_facts */
    uint64_t judged;
    int64_t peak; /* of all */
} state;

/* Plans are made long before their steps. */
static bool keeps(void *self, const cd_key *key, const void *value)
{
    const rank_facts *r = cd_ranks_find(&((const state *)self)->ranks, (uint32_t)key->part[0]);
    (void)value;
    return r != NULL && key->part[1] + 1 >= r->step;
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    const cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-MEM", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->iterations, context->allocator, sizeof(planned));
    cd_table_init(&s->units, context->allocator, sizeof(int64_t));
    cd_table_init(&s->names, context->allocator, CD_WRITER_NAME_BYTES);
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_writer_set_window(&s->writer, &s->iterations, keeps);
    return CDDP_OK;
}

static const char *name_of(const state *s, const cddp_event *e, int64_t unit)
{
    const char *name = cd_table_find(&s->names, CD_KEY(e->rank, unit));
    return name != NULL ? name : "?";
}

static void report(state *s, const cddp_event *e, rank_facts *r, const planned *p)
{
    const bool at_end = e->kind == CDDP_EV_unit_pass;
    int64_t unit = at_end ? -1 : e->as.unit_storage.unit;
    r->has_erred = true;
    if (!cd_writer_is_first(&s->writer, CD_KEY(0), e)) return;
    for (size_t i = 0; at_end && unit < 0 && i < s->units.count; i++) {
        const cd_key *k = cd_table_key(&s->units, i);
        const int64_t *bytes = cd_table_value(&s->units, i);
        if (k->part[0] == (int64_t)e->rank && *bytes > 0) unit = k->part[1];
    }
    cddp_finding f = cd_finding_at(&s->writer, e);
    if (at_end) {
        CD_SAY(f.title, CDDP_FINDING_WHO ": the iteration ends with other full parameters than the "
                                         "plan leaves");
        CD_SAY(f.expected, "%lld bytes of full parameters", (long long)p->left);
    } else {
        CD_SAY(f.title, CDDP_FINDING_WHO ": more parameters are full at once than the strategy "
                                         "allows");
        CD_SAY(f.expected, "at most %lld bytes of full parameters", (long long)p->peak);
    }
    CD_SAY(f.actual, "%lld bytes%s%s%s", (long long)r->live, unit >= 0 ? ", with unit '" : "",
           unit >= 0 ? name_of(s, e, unit) : "", unit >= 0 ? "'" : "");
    CD_SAY(f.advice, "free a unit after its forward and its backward as the strategy says, and "
                     "gather one unit ahead at most (FSD-11, FSH-06)");
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

static void take_storage(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_unit_storage *m = &e->as.unit_storage;
    const int64_t change = m->released ? -m->bytes : m->bytes;
    int64_t *unit = cd_table_add(&s->units, CD_KEY(e->rank, m->unit));
    if (unit != NULL) *unit += change;
    r->live += change;
    if (r->live > r->peak) r->peak = r->live;
    const planned *p = cd_table_find(&s->iterations, CD_KEY(e->rank, e->step, e->micro_step));
    if (r->is_inside && !r->has_erred && p != NULL && r->live > p->peak) report(s, e, r, p);
}

static void take_end(state *s, const cddp_event *e, rank_facts *r)
{
    const planned *p = cd_table_find(&s->iterations, CD_KEY(e->rank, e->step, e->micro_step));
    const bool is_judged = r->is_inside && !r->has_erred && p != NULL;
    r->is_inside = false;
    if (!is_judged) return;
    if (r->live != p->left) {
        report(s, e, r, p);
        return;
    }
    s->judged += r->peak > 0 || p->peak == 0;
    if (r->peak > s->peak) s->peak = r->peak;
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    if (e->step > r->step) r->step = e->step;
    if (e->kind == CDDP_EV_planned_units) {
        const cddp_event_planned_units *u = &e->as.planned_units;
        planned *p = cd_table_add(&s->iterations, CD_KEY(e->rank, u->at_step, u->at_micro));
        if (p != NULL) *p = (planned){u->peak, u->left};
    } else if (e->kind == CDDP_EV_unit) {
        char *name = cd_table_add(&s->names, CD_KEY(e->rank, e->as.unit.unit));
        if (name != NULL && e->text != NULL) cd_say(name, CD_WRITER_NAME_BYTES, "%s", e->text);
    } else if (e->kind == CDDP_EV_unit_storage) {
        take_storage(s, e, r);
    } else if (e->as.unit_pass.pass == CDDP_UNIT_BACKWARD_END) {
        take_end(s, e, r);
    } else if (e->as.unit_pass.unit == 0 && e->as.unit_pass.pass == CDDP_UNIT_PRE_FORWARD &&
               e->as.unit_pass.grad_mode && !r->is_inside) {
        r->is_inside = true;
        r->peak = r->live;
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->judged > 0)
        cd_writer_exercise(&s->writer, "%llu iterations with at most %lld bytes of full parameters",
                           (unsigned long long)s->judged, (long long)s->peak);
    cd_table_fini(&s->iterations);
    cd_table_fini(&s->units);
    cd_table_fini(&s->names);
    cd_ranks_fini(&s->ranks);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_planned_units, CDDP_EV_unit, CDDP_EV_unit_storage,
                                 CDDP_EV_unit_pass};

CD_CHECK_TABLE(mem, "I-MEM", "no more parameters are full at once than the strategy allows",
               "The bytes of full parameters never exceed what strategy and prefetch imply for the "
               "iteration, and at its end what they leave is there and nothing else.");
