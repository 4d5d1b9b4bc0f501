/* SPDX-License-Identifier: Apache-2.0 */
/* I-NONE: an absent gradient stays absent, and an optimizer leaves its parameter and state alone.
**
** Judged from   compare events of link 7 (presence) and those whose shape is presence;
**               optimizer_touch against the rank's last grad_final and grad_local; optimizer_touch
**               across ranks.
** Exercised     the oracle compared presence, or an optimizer met an absent gradient.
** Blame         the rank that touched; across ranks the odd ones.
** Limits        absent is what the trace says: presence 0. A gradient of zeros is a value. A rank
**               that passes over a parameter and gets it from one that steps (own_average.h)
**               differs by right.
*/
#include "core/check/own_average.h"
#include "core/check/tally.h"

typedef struct presence {
    uint64_t sequence;
    bool is_known, is_absent;
} presence;

/* How many parameters without a name, which the reducer leaves out, an optimizer has met in a
** step. */
typedef struct nameless {
    int64_t optimizer, count;
    uint32_t step;
} nameless;

typedef struct state {
    cd_writer writer;
    cd_tally tally;
    cd_table gradients; /* (rank, param) → presence */
    cd_agree touches;   /* (step, optimizer, param) → touched */
    cd_ranks nameless;  /* rank → nameless */
    cd_own_average own;
    uint64_t absent, compared;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-NONE", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_tally_init(&s->tally, context->allocator);
    cd_table_init(&s->gradients, context->allocator, sizeof(presence));
    cd_agree_init(&s->touches, context->allocator);
    cd_ranks_init(&s->nameless, context->allocator, sizeof(nameless));
    cd_own_average_init(&s->own, &s->writer);
    cd_writer_set_agree_window(&s->writer, &s->touches, CD_WHOLE_BY_STEP);
    return CDDP_OK;
}

static void set_presence(state *s, const cddp_event *e, const int64_t param_and_presence[2])
{
    presence *p = cd_table_add(&s->gradients, CD_KEY(e->rank, param_and_presence[0]));
    if (p == NULL) return;
    *p = (presence){e->sequence, true, param_and_presence[1] == 0};
}

/* An optimizer meets its parameters in one order: one without a name is the k-th of them. */
static int64_t find_parameter(state *s, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    nameless *n = t->param < 0 ? cd_ranks_add(&s->nameless, e->rank) : NULL;
    if (n == NULL) return t->param;
    if (n->step != e->step || n->optimizer != t->optimizer) n->count = 0;
    n->step = e->step;
    n->optimizer = t->optimizer;
    return -++n->count;
}

static void take_touch(state *s, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    cd_agree_push(&s->touches,
                  &(cd_statement){.key = CD_KEY(e->step, t->optimizer, find_parameter(s, e)),
                                  CD_SAYS(t->touched)},
                  e);
    if (!t->touched) s->absent++;
    const presence *p = cd_table_find(&s->gradients, CD_KEY(e->rank, t->param));
    if (p == NULL || !p->is_known || !p->is_absent || !t->touched ||
        !cd_writer_is_first(&s->writer, CD_KEY(0), e))
        return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_add_event(&f, e->rank, p->sequence);
    cd_finding_set_parameter(&s->writer, &f, t->param);
    CD_SAY(f.title, CDDP_FINDING_WHO ": an optimizer stepped on %s, which has no gradient",
           f.parameter);
    CD_SAY(f.expected, "parameter and optimizer state untouched: its gradient is absent");
    CD_SAY(f.actual, "touched at step %u", e->step);
    CD_SAY(f.advice, "absent is not zero: with momentum or weight decay a zero gradient moves the "
                     "parameter (UNU-05)");
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    cd_own_average_push(&s->own, e);
    switch (e->kind) {
    case CDDP_EV_grad_final:
        set_presence(s, e, (int64_t[]){e->as.grad_final.param, e->as.grad_final.presence});
        break;
    case CDDP_EV_grad_local:
        if (e->as.grad_local.presence != CDDP_PRESENCE_ABSENT)
            set_presence(s, e, (int64_t[]){e->as.grad_local.param, e->as.grad_local.presence});
        break;
    case CDDP_EV_optimizer_touch:
        take_touch(s, e);
        break;
    case CDDP_EV_compare:
        if (e->as.compare.link == CD_LINK_PRESENCE) s->compared++;
        if (e->as.compare.shape == CD_SHAPE_PRESENCE ||
            (e->as.compare.link == CD_LINK_PRESENCE && e->as.compare.bad == 0))
            cd_tally_push(&s->tally, e);
        break;
    default:
        break;
    }
}

static void report_split(state *s, const cd_split *split, uint64_t count)
{
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    cd_finding_set_parameter(&s->writer, &f, split->key->part[2]);
    CD_SAY(f.title, "%s disagree on whether %s has a gradient%s", who,
           split->key->part[2] < 0 ? "a parameter that the reducer leaves out" : f.parameter,
           cd_writer_get_count(&s->writer, count, "parameters"));
    CD_SAY(f.expected, "rank %u: %s", split->right.rank,
           split->right.data[0] ? "stepped on" : "left alone");
    CD_SAY(f.actual, "rank %u: %s", split->odd.rank,
           split->odd.data[0] ? "stepped on" : "left alone");
    if (cd_writer_has_flag(&s->writer, split->odd.rank, CDDP_KEY_ddp_find_unused_parameters))
        CD_SAY(f.advice, "the reduced map, which is the same on all ranks, decides who is globally "
                         "unused");
    cd_writer_report(&s->writer, &f);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->compared > 0)
        cd_writer_exercise(&s->writer, "%llu presence patterns compared",
                           (unsigned long long)s->compared);
    if (s->absent > 0)
        cd_writer_exercise(&s->writer, "an optimizer met %llu absent gradients",
                           (unsigned long long)s->absent);
    cddp_finding f;
    for (size_t i = 0; cd_tally_get(&s->tally, &s->writer, i, &f); i++)
        cd_writer_report(&s->writer, &f);
    cd_split split;
    uint64_t count = 0;
    size_t cursor = 0;
    /* One optimizer that touched an absent gradient explains why ranks differ. */
    bool explained = cd_table_find(&s->writer.held, CD_KEY(0)) != NULL;
    cd_own_average_end(&s->own);
    while (!explained && cd_agree_next_step(&s->touches, &cursor, &split, &count)) {
        if (cd_own_average_serves(&s->own, split.key->part[2])) continue;
        report_split(s, &split, count);
        explained = true;
    }
    cd_tally_fini(&s->tally);
    cd_table_fini(&s->gradients);
    cd_ranks_fini(&s->nameless);
    cd_agree_fini(&s->touches);
    cd_own_average_fini(&s->own);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_compare,         CDDP_EV_grad_final,
                                 CDDP_EV_grad_local,      CDDP_EV_param,
                                 CDDP_EV_optimizer_touch, CDDP_EV_mark,
                                 CDDP_EV_projection,      CDDP_EV_value,
                                 CDDP_EV_collective_post};

CD_CHECK_TABLE(none, "I-NONE", "absent gradients stay absent and untouched",
               "The presence pattern (absent, zero, value) and the optimizer-state touch pattern "
               "equal the single-process run's.");
