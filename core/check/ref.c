/* SPDX-License-Identifier: Apache-2.0 */
/* I-REF: gradient, update, optimizer state and buffers equal the single-process reference.
**
** Judged from   compare events of every link, except those whose shape says more than "different":
**               a ratio is I-SCALE, a missing or doubled contribution I-ONCE, presence I-NONE, an
**               overflow I-RANGE, a hook's law I-HOOK. An unexplained reduction is I-COLL's as
**               well, where nothing but the reduction can be wrong.
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

static void event(void *self, const cddp_event *e)
{
    state *s = self;
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
    cddp_finding f;
    for (size_t i = 0; cd_tally_get(&s->tally, &s->writer, i, &f); i++)
        cd_writer_report(&s->writer, &f);
    cd_tally_fini(&s->tally);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_compare, CDDP_EV_uncompared};

CD_CHECK_TABLE(ref, "I-REF", "training equals single-process training",
               "Gradient and update equal the single-process oracle on the same global batch, "
               "within a derived bound, "
               "bit for bit on exact inputs.");
