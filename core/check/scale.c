/* SPDX-License-Identifier: Apache-2.0 */
/* I-SCALE: what is synchronised has the declared scale; where it has not, the ratio is named in
** closed form.
**
** Judged from   compare events of gradients and updates whose shape is a ratio.
** Exercised     a gradient was compared with the single-process one or with the average of the
**               local ones.
** Blame         the ranks whose comparison failed; all of them when the divisor is wrong
**               everywhere.
** Limits        needs the oracle: a trace without compare events does not exercise it.
*/
#include "core/check/tally.h"

typedef struct state {
    cd_writer writer;
    cd_tally tally;
    uint64_t gradients;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-SCALE", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_tally_init(&s->tally, context->allocator);
    return CDDP_OK;
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind != CDDP_EV_compare) return;
    const cddp_event_compare *c = &e->as.compare;
    if (c->link == CD_LINK_MATHEMATICS || c->link == CD_LINK_REDUCTION) s->gradients++;
    if (c->bad == 0 || c->shape == CD_SHAPE_RATIO) cd_tally_push(&s->tally, e);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->gradients > 0)
        cd_writer_exercise(&s->writer, "%llu gradients compared", (unsigned long long)s->gradients);
    cddp_finding f;
    for (size_t i = 0; cd_tally_get(&s->tally, &s->writer, i, &f); i++)
        cd_writer_report(&s->writer, &f);
    cd_tally_fini(&s->tally);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_compare};

CD_CHECK_TABLE(scale, "I-SCALE", "gradients have the declared scale",
               "The ratio of distributed to reference is 1 per contribution; where it is not, its "
               "closed form is reported.");
