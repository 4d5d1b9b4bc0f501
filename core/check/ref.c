/* SPDX-License-Identifier: Apache-2.0 */
/* I-REF: gradient, update, optimizer state and buffers equal the single-process reference.
**
** Judged from   compare events of every link, except those whose shape says more than "different":
**               a ratio is I-SCALE, a missing or doubled contribution I-ONCE, presence I-NONE, an
**               overflow I-RANGE, a hook's law I-HOOK. An unexplained reduction is I-COLL's as
**               well, where nothing but the reduction can be wrong. contribution events of averages
**               whose bound is wide: what a rank packed and wrote back is known to the bit.
** Exercised     a gradient was compared with the single-process one (link 1) or an update with the
**               reference (link 4).
** Blame         the ranks whose comparison failed.
** Limits        needs the oracle. Of ranks that each start a step from other values, the oracle
**               makes a reference of the first ones only (uncompared); a finding that rests on one
**               says how many were left.
*/
#include "core/check/tally.h"

typedef struct state {
    cd_writer writer;
    cd_tally tally;
    uint64_t exact, bounded;
    /* ranks that gave something else to an average, which is within its bound all the same */
    cddp_event given;          /* the earliest, of the least rank */
    cd_rank_set givers, asked; /* asked: all that gave something to an average with such a bound */
    bool has_given;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-REF", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_tally_init(&s->tally, context->allocator);
    return CDDP_OK;
}

static bool is_mine(const cddp_event_compare *c)
{
    switch (c->shape) {
    case CD_SHAPE_RATIO:
    case CD_SHAPE_MISSING:
    case CD_SHAPE_DOUBLED:
    case CD_SHAPE_PRESENCE:
        return false;
    case CD_SHAPE_NONFINITE: /* I-RANGE's; but one process, in the same arithmetic, stayed finite */
        return c->link == CD_LINK_PRECISION;
    case CD_SHAPE_UNEXPLAINED:
    default:
        return c->link != CD_LINK_LAW;
    }
}

/* At which the rank itself is seen to be wrong. */
static bool is_own_stage(cddp_stage stage)
{
    return stage == CDDP_STAGE_PACKED || stage == CDDP_STAGE_LAUNCHED ||
           stage == CDDP_STAGE_SETTLED || stage == CDDP_STAGE_WRITTEN ||
           stage == CDDP_STAGE_CHANGED;
}

/* A bound that is wide hides a share that is missing. What a rank packs and writes back is known to
** the bit. */
static void take_given(state *s, const cddp_event *e)
{
    const cddp_fact_average average = {e->step, e->micro_step, e->as.contribution.param};
    cddp_fact_stage stage;
    bool is_wrong = false;
    cd_rank_set_add(&s->asked, &s->writer.memory, e->rank);
    if (e->as.contribution.start != 0 || !cd_writer_find_stage(&s->writer, &average, &stage))
        return;
    for (uint32_t i = 0; i < stage.rank_count; i++)
        is_wrong = is_wrong || (stage.ranks[i] == e->rank && is_own_stage(stage.stage));
    const cddp_event *g = &s->given;
    const bool is_same = s->has_given && g->step == e->step && g->micro_step == e->micro_step &&
                         g->as.contribution.param == e->as.contribution.param;
    const bool is_earlier =
        !s->has_given || e->step < g->step ||
        (e->step == g->step && e->micro_step == g->micro_step && e->rank < g->rank && is_same);
    if (!is_wrong || !(is_same || is_earlier)) return;
    if (!is_same) s->givers = (cd_rank_set){0};
    cd_rank_set_add(&s->givers, &s->writer.memory, e->rank);
    if (is_earlier) s->given = *e;
    s->has_given = true;
}

static void report_given(state *s)
{
    static const char *const titles[] = {
        [CDDP_STAGE_PACKED] = "what was packed of %s is not the gradient",
        [CDDP_STAGE_LAUNCHED] = "the bucket of %s changes between packing and launch",
        [CDDP_STAGE_SETTLED] = "the result of the bucket of %s changes before it is written back",
        [CDDP_STAGE_WRITTEN] = "%s is not what its bucket delivered",
        [CDDP_STAGE_CHANGED] = "%s changes after it was written back"};
    const cddp_event *e = &s->given;
    const cddp_fact_average average = {e->step, e->micro_step, e->as.contribution.param};
    cddp_fact_stage stage;
    char who[96], what[128];
    if (!s->has_given || !cd_writer_find_stage(&s->writer, &average, &stage) ||
        !is_own_stage(stage.stage))
        return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_set_parameter(&s->writer, &f, e->as.contribution.param);
    cd_finding_set_ranks(&s->writer, &f, &s->givers);
    const uint32_t count = cd_rank_set_count(&s->givers);
    const bool is_all = count > 1 && count == cd_rank_set_count(&s->asked);
    if (is_all) f.rank = -1;
    if (is_all)
        CD_SAY(who, "all ranks");
    else
        cd_rank_set_print(&s->givers, e->rank, who, sizeof who);
    cd_say(what, sizeof what, titles[stage.stage], f.parameter);
    f.bucket = (int32_t)stage.bucket;
    CD_SAY(f.title, "%s: %s", who, what);
    CD_SAY(f.expected, "what the rank accumulated, divided as the plan divides, to the end");
    CD_SAY(f.actual, "other bits; the average is within its bound all the same, which is wide");
    CD_SAY(f.advice, "additions in a narrow dtype round so much that one share can hide in them");
    cd_writer_report(&s->writer, &f);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_contribution) take_given(s, e);
    if (e->kind == CDDP_EV_uncompared) cd_tally_push_uncompared(&s->tally, e);
    if (e->kind != CDDP_EV_compare) return;
    const cddp_event_compare *c = &e->as.compare;
    if (c->link == CD_LINK_MATHEMATICS || c->link == CD_LINK_UPDATE) {
        if (c->bound == 0)
            s->exact++;
        else
            s->bounded++;
    }
    if (c->bad == 0 || is_mine(c)) cd_tally_push(&s->tally, e);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->exact + s->bounded > 0)
        cd_writer_exercise(&s->writer,
                           "%llu tensors compared bit for bit, %llu within a derived bound",
                           (unsigned long long)s->exact, (unsigned long long)s->bounded);
    report_given(s);
    cddp_finding f;
    for (size_t i = 0; cd_tally_get(&s->tally, &s->writer, i, &f); i++)
        cd_writer_report(&s->writer, &f);
    cd_tally_fini(&s->tally);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_compare, CDDP_EV_uncompared, CDDP_EV_contribution};

CD_CHECK_TABLE(ref, "I-REF", "training equals single-process training",
               "Gradient and update equal the single-process oracle on the same global batch, "
               "within a derived bound, "
               "bit for bit on exact inputs.");
