/* SPDX-License-Identifier: Apache-2.0 */
/* I-MEM: a sharded model has no more full parameters at once than its strategy allows, and
** takes and frees them where it says.
**
** Judged from   unit_storage, added up here; unit_wait, where the host says that it waited for a
**               free on a device with streams, and order, from which follows whether it did;
**               planned_storage and planned_units, which the judge derives from the plan;
**               unit_pass and collective_post for where in an iteration that is. A forward
**               without gradients needs no plan: it leaves what was there.
** Exercised     an iteration of a rank ended, and some of it was full meanwhile; or the plan has
**               nothing full.
** Blame         the rank; the unit whose storage was taken last, is taken or freed elsewhere, or is
**               still there.
** Limits        full parameters alone: gradients, shards and what a device's allocator keeps are
**               not counted. An iteration for which the judge derives nothing is not judged. Where
**               an iteration has a gather, storage may be taken at any time since the last begin or
**               end of a unit.
*/
#include "core/check/writer.h"

#include "core/base/hash.h"

typedef struct planned {
    int64_t peak, left, moves;
    int64_t reserved, waits; /* reserved 0: no device with streams */
} planned;

/* Where storage of a unit is taken, or given back. */
typedef struct move {
    int64_t bytes, passes, collectives;
    bool released;
} move;

typedef struct unit_facts {
    int64_t bytes;            /* that are there */
    int64_t moves, iteration; /* how often, in which iteration of its rank */
    int64_t before;           /* bytes when its forward without gradients began */
} unit_facts;

typedef struct rank_facts {
    int64_t live, peak;                 /* peak: of the iteration */
    int64_t passes, collectives, moves; /* of the iteration */
    int64_t iteration;
    int64_t evaluated; /* 1 + the unit whose forward without gradients just ended; 0: none did */
    /* of the iteration: freed bytes that may still be computed with; of them those that no whole
    ** unit's free covers; frees; those that the host waited for */
    int64_t pending, unseen, frees, waits;
    /* of all iterations: frees, those that the host has come behind, and those when this one began
    */
    int64_t released, reached, before;
    uint32_t step; /* the last one that it spoke of */
    bool is_inside, has_erred, has_order;
} rank_facts;

typedef struct unit_name {
    char text[CD_WRITER_NAME_BYTES];
    int64_t hash; /* of all of it */
} unit_name;

typedef struct state {
    cd_writer writer;
    cd_table iterations; /* (rank, step, micro) → planned */
    cd_table moves;      /* (rank, step, micro, unit's name and position) → move */
    cd_table units;      /* (rank, unit) → unit_facts */
    cd_table names;      /* (rank, unit) → unit_name */
    cd_table frees;      /* (rank, k-th of its iteration) → bytes that it covers */
    cd_table streams;    /* (rank, stream) → frees that it is behind */
    cd_table points;     /* (rank, point) → the same, when it was recorded */
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
    cd_table_init(&s->moves, context->allocator, sizeof(move));
    cd_table_init(&s->units, context->allocator, sizeof(unit_facts));
    cd_table_init(&s->names, context->allocator, sizeof(unit_name));
    cd_table_init(&s->frees, context->allocator, sizeof(int64_t));
    cd_table_init(&s->streams, context->allocator, sizeof(int64_t));
    cd_table_init(&s->points, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_writer_set_window(&s->writer, &s->iterations, keeps);
    cd_writer_set_window(&s->writer, &s->moves, keeps);
    return CDDP_OK;
}

static const char *name_of(const state *s, const cddp_event *e, int64_t unit)
{
    const unit_name *name = cd_table_find(&s->names, CD_KEY(e->rank, unit));
    return name != NULL ? name->text : "?";
}

#define MOVE_KEY(rank, step, micro, hash, position) \
    CD_KEY(rank, step, micro, (int64_t)cd_hash_mix((uint64_t)(hash), (uint64_t)(position)))

static const char advice[] = "free a unit after its forward and its backward as the strategy says, "
                             "and gather one unit ahead at most (FSD-11, FSH-06)";

static void report(state *s, const cddp_event *e, rank_facts *r, const planned *p)
{
    const bool at_end = e->kind == CDDP_EV_unit_pass;
    int64_t unit = at_end ? -1 : e->as.unit_storage.unit;
    r->has_erred = true;
    if (!cd_writer_is_first(&s->writer, CD_KEY(0), e)) return;
    for (size_t i = 0; at_end && unit < 0 && i < s->units.count; i++) {
        const cd_key *k = cd_table_key(&s->units, i);
        const unit_facts *u = cd_table_value(&s->units, i);
        if (k->part[0] == (int64_t)e->rank && u->bytes > 0) unit = k->part[1];
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
    CD_SAY(f.advice, "%s", advice);
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

/* "80 bytes freed after 7 begins and ends of units and 9 collectives" */
static void print(char *text, size_t bytes, const move *m)
{
    cd_say(text, bytes, "%lld bytes %s after %lld begins and ends of units and %lld collectives",
           (long long)m->bytes, m->released ? "freed" : "taken", (long long)m->passes,
           (long long)m->collectives);
}

/* seen: NULL: nothing more happens in the iteration. */
static void report_place(state *s, const cddp_event *e, rank_facts *r, int64_t unit,
                         const move *wanted, const move *seen)
{
    char words[160] = "nothing more of this unit";
    r->has_erred = true;
    if (!cd_writer_is_first(&s->writer, CD_KEY(0), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    const bool is_free = seen != NULL ? seen->released : wanted != NULL && wanted->released;
    CD_SAY(f.title, CDDP_FINDING_WHO ": unit '%s' is %s at another place than the plan's",
           name_of(s, e, unit), is_free ? "freed" : "gathered");
    if (wanted != NULL) print(words, sizeof words, wanted);
    CD_SAY(f.expected, "%s", words);
    CD_SAY(words, "nothing more of this unit");
    if (seen != NULL) print(words, sizeof words, seen);
    CD_SAY(f.actual, "%s", words);
    CD_SAY(f.advice, "%s", advice);
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

static const move *find_move(const state *s, const cddp_event *e, int64_t unit, int64_t position)
{
    const unit_name *name = cd_table_find(&s->names, CD_KEY(e->rank, unit));
    const int64_t hash = name != NULL ? name->hash : 0;
    return cd_table_find(&s->moves, MOVE_KEY(e->rank, e->step, e->micro_step, hash, position));
}

/* What was freed is memory until the device is done with it. */
static void report_reserved(state *s, const cddp_event *e, rank_facts *r, const planned *p)
{
    r->has_erred = true;
    if (!cd_writer_is_first(&s->writer, CD_KEY(0), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO
           ": more memory of full parameters is in use on the device than the plan allows");
    CD_SAY(f.expected, "at most %lld bytes, with what was freed and is perhaps computed with",
           (long long)p->reserved);
    CD_SAY(f.actual,
           "%lld bytes are full, and for %lld freed ones the host has not waited, with "
           "unit '%s'",
           (long long)r->live, (long long)r->pending, name_of(s, e, e->as.unit_storage.unit));
    CD_SAY(f.advice,
           "before a gather wait for the oldest of two frees (limit_all_gathers, FSH-12)");
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

static void report_waits(state *s, const cddp_event *e, rank_facts *r, const planned *p)
{
    r->has_erred = true;
    if (!cd_writer_is_first(&s->writer, CD_KEY(0), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the host waits for freed units at other times than "
                                     "limit_all_gathers does");
    CD_SAY(f.expected, "%lld waits in the iteration", (long long)p->waits);
    CD_SAY(f.actual, "%lld", (long long)r->waits);
    CD_SAY(f.advice, "before a gather wait for the oldest of two frees (FSH-12)");
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

/* A unit of which nothing is left is a free that the host may wait for. */
static void take_free(state *s, const cddp_event *e, rank_facts *r, const unit_facts *u)
{
    r->pending += e->as.unit_storage.bytes;
    r->unseen += e->as.unit_storage.bytes;
    if (u->bytes > 0) return;
    int64_t *covered = cd_table_add(&s->frees, CD_KEY(e->rank, r->frees));
    if (covered == NULL) return;
    *covered = r->unseen;
    r->unseen = 0;
    r->frees++;
    r->released++;
}

/* ---- what the host is behind ---- */

/* Frees that whatever a stream is given next comes behind: on the default stream all, since what it
** was given before computes with them; and those that the host, which gives it, is behind. */
static int64_t known_of(const state *s, const cddp_event *e, const rank_facts *r, int64_t stream)
{
    const int64_t *known = cd_table_find(&s->streams, CD_KEY(e->rank, stream));
    if (stream == 0) return r->released;
    return known != NULL && *known > r->reached ? *known : r->reached;
}

static void take_order(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_order *o = &e->as.order;
    r->has_order = true;
    if (!o->waits) {
        int64_t *recorded = cd_table_add(&s->points, CD_KEY(e->rank, o->point));
        if (recorded != NULL) *recorded = known_of(s, e, r, o->from);
        return;
    }
    const int64_t *recorded = cd_table_find(&s->points, CD_KEY(e->rank, o->point));
    const int64_t known = o->point < 0       ? known_of(s, e, r, o->from)
                          : recorded != NULL ? *recorded
                                             : 0;
    if (o->to < 0) {
        if (known > r->reached) r->reached = known;
        return;
    }
    int64_t *stream = cd_table_add(&s->streams, CD_KEY(e->rank, o->to));
    if (stream != NULL && known > *stream) *stream = known;
}

static void report_unwaited(state *s, const cddp_event *e, rank_facts *r)
{
    r->has_erred = true;
    if (!cd_writer_is_first(&s->writer, CD_KEY(0), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title,
           CDDP_FINDING_WHO ": the host goes on as if the device were done with the freed "
                            "unit '%s'",
           name_of(s, e, e->as.unit_wait.unit));
    CD_SAY(f.expected,
           "it waits for what the default stream was given before free %lld of the "
           "iteration",
           (long long)r->waits);
    CD_SAY(f.actual, "it has come behind %lld of them",
           (long long)(r->reached > r->before ? r->reached - r->before : 0));
    CD_SAY(f.advice, "wait for a mark that the default stream recorded behind the free (FSH-12)");
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

/* The oldest. */
static void take_wait(state *s, const cddp_event *e, rank_facts *r)
{
    const int64_t *covered = cd_table_find(&s->frees, CD_KEY(e->rank, r->waits));
    if (!r->is_inside) return;
    if (r->waits < r->frees && covered != NULL) r->pending -= *covered;
    r->waits++;
    if (r->has_order && !r->has_erred && r->waits <= r->frees && r->reached < r->before + r->waits)
        report_unwaited(s, e, r);
}

static bool is_as_planned(const move *wanted, const move *seen)
{
    return wanted != NULL && wanted->released == seen->released && wanted->bytes == seen->bytes &&
           wanted->passes == seen->passes &&
           (!seen->released || wanted->collectives == seen->collectives);
}

static void take_storage(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_unit_storage *m = &e->as.unit_storage;
    const int64_t change = m->released ? -m->bytes : m->bytes;
    unit_facts *u = cd_table_add(&s->units, CD_KEY(e->rank, m->unit));
    if (u == NULL) return;
    u->bytes += change;
    r->live += change;
    if (r->live > r->peak) r->peak = r->live;
    if (m->released && r->is_inside) take_free(s, e, r, u);
    const planned *p = cd_table_find(&s->iterations, CD_KEY(e->rank, e->step, e->micro_step));
    if (!r->is_inside || r->has_erred || p == NULL) return;
    if (r->live > p->peak) {
        report(s, e, r, p);
        return;
    }
    if (p->reserved > 0 && r->live + r->pending > p->reserved) {
        report_reserved(s, e, r, p);
        return;
    }
    if (u->iteration != r->iteration) u->moves = 0;
    u->iteration = r->iteration;
    const move *wanted = find_move(s, e, m->unit, u->moves++);
    const move seen = {m->bytes, r->passes, r->collectives, m->released};
    r->moves++;
    if (!is_as_planned(wanted, &seen)) report_place(s, e, r, m->unit, wanted, &seen);
}

/* Something that the plan has did not happen: which unit? */
static void report_missing(state *s, const cddp_event *e, rank_facts *r)
{
    for (size_t i = 0; i < s->names.count; i++) {
        const cd_key *k = cd_table_key(&s->names, i);
        const unit_facts *u = cd_table_find(&s->units, k);
        const bool has_moved = u != NULL && u->iteration == r->iteration;
        if (k->part[0] != (int64_t)e->rank) continue;
        const move *wanted = find_move(s, e, k->part[1], has_moved ? u->moves : 0);
        if (wanted == NULL) continue;
        report_place(s, e, r, k->part[1], wanted, NULL);
        return;
    }
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
    if (r->moves != p->moves) {
        report_missing(s, e, r);
        return;
    }
    if (r->waits != p->waits) {
        report_waits(s, e, r, p);
        return;
    }
    s->judged += r->peak > 0 || p->peak == 0;
    if (r->peak > s->peak) s->peak = r->peak;
}

/* A forward without gradients leaves of a unit what was there: known when anything else begins or
** ends. */
static void take_evaluation(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_unit_pass *p = &e->as.unit_pass;
    if (r->evaluated > 0) {
        const unit_facts *last = cd_table_find(&s->units, CD_KEY(e->rank, r->evaluated - 1));
        if (!r->has_erred && last != NULL && last->bytes != last->before) {
            const move wanted = {last->bytes, r->passes, r->collectives, true};
            report_place(s, e, r, r->evaluated - 1, &wanted, NULL);
        }
        r->evaluated = 0;
    }
    if (p->grad_mode || p->pass > CDDP_UNIT_POST_FORWARD) return;
    unit_facts *u = cd_table_add(&s->units, CD_KEY(e->rank, p->unit));
    if (u == NULL) return;
    if (p->pass == CDDP_UNIT_PRE_FORWARD)
        u->before = u->bytes;
    else
        r->evaluated = p->unit + 1;
}

static void take_pass(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_unit_pass *p = &e->as.unit_pass;
    take_evaluation(s, e, r);
    if (p->pass == CDDP_UNIT_BACKWARD_END) {
        take_end(s, e, r);
        return;
    }
    if (p->unit == 0 && p->pass == CDDP_UNIT_PRE_FORWARD && p->grad_mode && !r->is_inside) {
        r->is_inside = true;
        r->peak = r->live;
        r->passes = r->collectives = r->moves = 0;
        r->pending = r->unseen = r->frees = r->waits = 0; /* gathers come behind them */
        r->before = r->released;
        r->iteration++;
    }
    r->passes++;
}

static void take_plan(state *s, const cddp_event *e)
{
    if (e->kind == CDDP_EV_planned_units) {
        const cddp_event_planned_units *u = &e->as.planned_units;
        planned *p = cd_table_add(&s->iterations, CD_KEY(e->rank, u->at_step, u->at_micro));
        if (p != NULL) *p = (planned){u->peak, u->left, u->moves, u->reserved, u->waits};
        return;
    }
    const cddp_event_planned_storage *p = &e->as.planned_storage;
    const int64_t hash = (int64_t)cd_hash_text(e->text);
    move *m =
        cd_table_add(&s->moves, MOVE_KEY(e->rank, p->at_step, p->at_micro, hash, p->position));
    if (m != NULL) *m = (move){p->bytes, p->passes, p->collectives, p->released};
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    if (e->step > r->step) r->step = e->step;
    if (e->kind == CDDP_EV_planned_units || e->kind == CDDP_EV_planned_storage) {
        take_plan(s, e);
    } else if (e->kind == CDDP_EV_unit) {
        unit_name *name = cd_table_add(&s->names, CD_KEY(e->rank, e->as.unit.unit));
        if (name == NULL) return;
        cd_say(name->text, sizeof name->text, "%s", e->text != NULL ? e->text : "");
        name->hash = (int64_t)cd_hash_text(e->text);
    } else if (e->kind == CDDP_EV_unit_storage) {
        take_storage(s, e, r);
    } else if (e->kind == CDDP_EV_unit_wait) {
        take_wait(s, e, r);
    } else if (e->kind == CDDP_EV_order) {
        take_order(s, e, r);
    } else if (e->kind == CDDP_EV_collective_post) {
        r->collectives++;
    } else {
        take_pass(s, e, r);
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
    cd_table_fini(&s->moves);
    cd_table_fini(&s->units);
    cd_table_fini(&s->names);
    cd_table_fini(&s->frees);
    cd_table_fini(&s->streams);
    cd_table_fini(&s->points);
    cd_ranks_fini(&s->ranks);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_planned_units, CDDP_EV_planned_storage,
                                 CDDP_EV_unit,          CDDP_EV_unit_storage,
                                 CDDP_EV_unit_pass,     CDDP_EV_collective_post,
                                 CDDP_EV_unit_wait,     CDDP_EV_order};

CD_CHECK_TABLE(
    mem, "I-MEM", "no more parameters are full at once than the strategy allows",
    "The bytes of full parameters never exceed what strategy and prefetch imply for the "
    "iteration. Each unit is gathered and freed where they say, and at the end what they "
    "leave is there and nothing else.");
