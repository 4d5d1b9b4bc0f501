/* SPDX-License-Identifier: Apache-2.0 */
/* I-COUNT: a sharded model posts the collectives that its plan implies, in that order, and no
** others.
**
** Judged from   planned_collective and planned_units, which the judge derives from the plan;
**               collective_post of the rank between the root's pre-forward and the end of backward
**               (unit_pass), in whatever group. A gather is of the unit for which storage was taken
**               last (unit_storage), a reduction of the unit whose backward ended last.
** Exercised     an iteration of a rank ended with as many collectives as planned.
** Blame         the rank. After its first departure nothing more of it is judged.
** Limits        an iteration for which the judge derives nothing is not judged. What happens
**               between iterations (states, norms) is not counted here. What a collective
**               carries is for others (I-FRESH, I-REF). So is the group in which a layer exchanges
**               statistics: those of other ranks are wrong (I-REF).
*/
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"
#include "core/base/hash.h"
#include "core/base/operation.h"

#include <string.h>

typedef struct planned {
    int64_t op, dtype, numel, passes;
    bool replicas, is_exchange; /* of a layer's statistics, among all ranks */
    int64_t name;               /* of the unit, hashed */
    char unit[48];
} planned;

typedef struct totals {
    int64_t count;
    bool is_known;
} totals;

typedef struct unit_name {
    int64_t hash;
    char text[48];
} unit_name;

typedef struct rank_facts {
    int64_t position, passes; /* of the iteration */
    int64_t group;            /* in which shards lie; 0: not known, or nothing is cut */
    int64_t taken, ended;     /* units: storage was taken last, backward ended last; -1: none */
    uint32_t step;            /* the last one that it spoke of */
    bool is_inside, has_departed;
} rank_facts;

typedef struct state {
    cd_writer writer;
    cd_table collectives; /* (rank, step, micro, position) → planned */
    cd_table iterations;  /* (rank, step, micro) → totals */
    cd_table names;       /* (rank, unit) → unit_name */
    cd_ranks ranks;       /* of rank_facts */
    uint64_t judged, counted, bytes;
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
        cd_check_begin(context, &(cd_check_spec){"I-COUNT", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->collectives, context->allocator, sizeof(planned));
    cd_table_init(&s->iterations, context->allocator, sizeof(totals));
    cd_table_init(&s->names, context->allocator, sizeof(unit_name));
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_writer_set_window(&s->writer, &s->collectives, keeps);
    cd_writer_set_window(&s->writer, &s->iterations, keeps);
    return CDDP_OK;
}

/* "reduce_scatter of 24 f32 in the shard group, after 7 begins and ends of units" */
static void print(char *text, size_t bytes, const planned *p)
{
    char operation[72];
    const int64_t sum = cd_operation_reduces(p->op) ? CDDP_RED_SUM : -1;
    const int64_t data[5] = {p->op, sum, -1, p->dtype, p->numel};
    cd_operation_print(data, operation, sizeof operation);
    cd_say(text, bytes, "%s%s, after %lld begins and ends of units", operation,
           p->replicas ? " over replicas" : "", (long long)p->passes);
}

/* Of which unit a collective is that is posted now; NULL: nothing says so. */
static const unit_name *find_unit(const state *s, const cddp_event *e, const rank_facts *r)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    int64_t unit = -1;
    if (e->kind != CDDP_EV_collective_post || c->dtype == CDDP_I64) return NULL;
    if (r->group != 0 && c->group != r->group)
        return NULL; /* the unit before goes on to replicas */
    if (c->op == CDDP_OP_ALLGATHER) unit = r->taken;
    if (cd_operation_reduces(c->op)) unit = r->ended;
    return unit >= 0 ? cd_table_find(&s->names, CD_KEY(e->rank, unit)) : NULL;
}

static void depart(state *s, const cddp_event *e, rank_facts *r, const planned *p)
{
    char wanted[160] = "the end of backward", seen[160] = "the end of backward";
    const cddp_event_collective_post *c = &e->as.collective_post;
    const bool is_post = e->kind == CDDP_EV_collective_post;
    r->has_departed = true;
    if (!cd_writer_is_first(&s->writer, CD_KEY(0), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    if (p != NULL) print(wanted, sizeof wanted, p);
    const unit_name *unit = find_unit(s, e, r);
    if (is_post) {
        const bool leaves_group = r->group != 0 && c->group != r->group;
        print(seen, sizeof seen,
              &(planned){.op = c->op,
                         .dtype = c->dtype,
                         .numel = c->numel,
                         .passes = r->passes,
                         .replicas = leaves_group});
    }
    CD_SAY(f.title, CDDP_FINDING_WHO ": collective %lld of the iteration is not the plan's",
           (long long)r->position + 1);
    const char *of = p == NULL ? "" : p->is_exchange ? ", statistics of '" : ", of unit '";
    CD_SAY(f.expected, "%s%s%s%s", wanted, of, p != NULL ? p->unit : "", p != NULL ? "'" : "");
    CD_SAY(f.actual, "%s%s%s%s", seen, unit != NULL ? ", of unit '" : "",
           unit != NULL ? unit->text : "", unit != NULL ? "'" : "");
    CD_SAY(f.advice, "fsdp.sharding_strategy says what is freed, fsdp.backward_prefetch what is "
                     "gathered ahead (FSD-11, FSH-09)");
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

static void take_post(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    if (!r->is_inside || r->has_departed) return;
    if (cd_table_find(&s->iterations, CD_KEY(e->rank, e->step, e->micro_step)) == NULL) return;
    const planned *p =
        cd_table_find(&s->collectives, CD_KEY(e->rank, e->step, e->micro_step, r->position));
    const bool is_right =
        p != NULL && p->op == c->op && p->dtype == c->dtype && p->numel == c->numel;
    const bool is_there = is_right && p->passes == r->passes;
    const unit_name *unit = find_unit(s, e, r);
    const bool is_of_unit = is_there && !p->is_exchange;
    const bool is_other = is_of_unit && unit != NULL && unit->hash != p->name;
    const bool is_elsewhere = is_of_unit && r->group != 0 && p->replicas != (c->group != r->group);
    if (!is_there || is_other || is_elsewhere) {
        depart(s, e, r, p);
        return;
    }
    r->position++;
    s->counted++;
    s->bytes += (uint64_t)c->numel * cddp_dtype_bytes((cddp_dtype)c->dtype);
}

static void take_end(state *s, const cddp_event *e, rank_facts *r)
{
    const totals *t = cd_table_find(&s->iterations, CD_KEY(e->rank, e->step, e->micro_step));
    const bool is_judged = r->is_inside && !r->has_departed && t != NULL;
    r->is_inside = false;
    if (!is_judged) return;
    const planned *p =
        cd_table_find(&s->collectives, CD_KEY(e->rank, e->step, e->micro_step, r->position));
    if (p != NULL)
        depart(s, e, r, p);
    else if (t->count == r->position)
        s->judged++;
}

static void take_pass(const cddp_event *e, rank_facts *r)
{
    const cddp_event_unit_pass *p = &e->as.unit_pass;
    if (p->pass == CDDP_UNIT_POST_BACKWARD) r->ended = p->unit;
    const bool begins = p->unit == 0 && p->pass == CDDP_UNIT_PRE_FORWARD && p->grad_mode;
    if (begins && !r->is_inside) {
        r->is_inside = true;
        r->position = r->passes = 0;
        r->taken = r->ended = -1;
    }
    r->passes++;
}

static void take_planned(state *s, const cddp_event *e)
{
    const cddp_event_planned_collective *c = &e->as.planned_collective;
    planned *p =
        cd_table_add(&s->collectives, CD_KEY(e->rank, c->at_step, c->at_micro, c->position));
    if (p == NULL) return;
    *p = (planned){.op = c->op,
                   .dtype = c->dtype,
                   .numel = c->numel,
                   .passes = c->passes,
                   .replicas = c->replicas};
    const char *text = e->text != NULL ? e->text : "";
    const size_t prefix = sizeof CD_STATISTICS_OF - 1;
    p->name = (int64_t)cd_hash_text(e->text);
    p->is_exchange = strncmp(text, CD_STATISTICS_OF, prefix) == 0;
    CD_SAY(p->unit, "%s", p->is_exchange ? text + prefix : text);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    if (e->step > r->step) r->step = e->step;
    if (e->kind == CDDP_EV_planned_collective) {
        take_planned(s, e);
    } else if (e->kind == CDDP_EV_planned_units) {
        const cddp_event_planned_units *u = &e->as.planned_units;
        totals *t = cd_table_add(&s->iterations, CD_KEY(e->rank, u->at_step, u->at_micro));
        if (t != NULL) *t = (totals){u->count, true};
    } else if (e->kind == CDDP_EV_unit) {
        unit_name *name = cd_table_add(&s->names, CD_KEY(e->rank, e->as.unit.unit));
        if (name != NULL) name->hash = (int64_t)cd_hash_text(e->text);
        if (name != NULL) CD_SAY(name->text, "%s", e->text != NULL ? e->text : "");
        r->group = e->as.unit.group >= 0 ? e->as.unit.group : 0; /* anew after a resume */
    } else if (e->kind == CDDP_EV_unit_storage) {
        if (!e->as.unit_storage.released) r->taken = e->as.unit_storage.unit;
    } else if (e->kind == CDDP_EV_collective_post) {
        take_post(s, e, r);
    } else if (e->as.unit_pass.pass == CDDP_UNIT_BACKWARD_END) {
        take_end(s, e, r);
    } else {
        take_pass(e, r);
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->judged > 0)
        cd_writer_exercise(&s->writer,
                           "%llu iterations with %llu collectives and %llu bytes given to them",
                           (unsigned long long)s->judged, (unsigned long long)s->counted,
                           (unsigned long long)s->bytes);
    cd_table_fini(&s->collectives);
    cd_table_fini(&s->iterations);
    cd_table_fini(&s->names);
    cd_ranks_fini(&s->ranks);
    cd_check_end(s);
}

static const uint16_t kinds[] = {
    CDDP_EV_planned_collective, CDDP_EV_planned_units, CDDP_EV_collective_post,
    CDDP_EV_unit_pass,          CDDP_EV_unit,          CDDP_EV_unit_storage};

CD_CHECK_TABLE(
    count, "I-COUNT", "a sharded model posts the collectives that its plan implies",
    "Per iteration a rank posts the gathers and reductions that strategy, wrapping and "
    "prefetch imply, in that order, at those places and with those sizes, and no others.");
