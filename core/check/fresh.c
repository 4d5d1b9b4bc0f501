/* SPDX-License-Identifier: Apache-2.0 */
/* I-FRESH: a unit computes with the parameters of this step.
**
** Judged from   unit_read (the content of a full parameter as a forward or a backward begins to
**               compute with it, and what layers on streams have read of it when it ends); fresh
**               (what the judge accepted of it at the begin of the step).
** Exercised     a full parameter was compared.
** Blame         the rank that computes with something else.
** Limits        a trace without content, and a step for which the judge accepted nothing, are not
**               judged.
*/
#include "core/check/writer.h"

#include "cddp/tensor.h"

typedef struct content {
    int64_t step, digest; /* of this step */
    int64_t dtype;        /* in which its unit computes */
    int64_t before, before_step;
    bool is_known, has_before;
} content;

typedef struct state {
    cd_writer writer;
    cd_table contents; /* (rank, ordinal) → content */
    uint64_t compared;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    const cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-FRESH", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    cd_table_init(&((state *)*self)->contents, context->allocator, sizeof(content));
    return CDDP_OK;
}

static void take_fresh(state *s, const cddp_event *e)
{
    const cddp_event_fresh *f = &e->as.fresh;
    content *c = cd_table_add(&s->contents, CD_KEY(e->rank, f->ordinal));
    if (c == NULL) return;
    if (c->is_known && c->digest != f->digest) {
        c->before = c->digest;
        c->before_step = c->step;
        c->has_before = true;
    }
    c->step = f->at_step;
    c->digest = f->digest;
    c->dtype = f->dtype;
    c->is_known = true;
}

static const char *pass_of(const cddp_event *e)
{
    const int64_t pass = e->as.unit_read.pass;
    return pass == CDDP_UNIT_PRE_BACKWARD || pass == CDDP_UNIT_POST_BACKWARD ? "backward"
                                                                             : "forward";
}

static void report_dtype(state *s, const cddp_event *e, const content *c)
{
    const cddp_event_unit_read *u = &e->as.unit_read;
    if (!cd_writer_is_first(&s->writer, CD_KEY(0), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the %s computes with %s in %s", pass_of(e),
           cd_writer_get_ordinal(&s->writer, u->ordinal), cddp_dtype_name((cddp_dtype)u->dtype));
    CD_SAY(f.expected, "%s, the param_dtype of its unit", cddp_dtype_name((cddp_dtype)c->dtype));
    CD_SAY(f.actual, "%s", cddp_dtype_name((cddp_dtype)u->dtype));
    CD_SAY(f.advice, "gathers and copies of whole units are cast to param_dtype (FMP-02)");
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

static void take_read(state *s, const cddp_event *e)
{
    const cddp_event_unit_read *u = &e->as.unit_read;
    const content *c = cd_table_find(&s->contents, CD_KEY(e->rank, u->ordinal));
    if (c == NULL || c->step != (int64_t)e->step || u->digest == 0) return;
    s->compared++;
    if (u->dtype != c->dtype) {
        report_dtype(s, e, c);
        return;
    }
    if (c->digest == u->digest || !cd_writer_is_first(&s->writer, CD_KEY(0), e)) return;
    const bool is_old = c->has_before && c->before == u->digest;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the %s computes with %s %s", pass_of(e),
           is_old ? "an older" : "another", cd_writer_get_ordinal(&s->writer, u->ordinal));
    CD_SAY(f.expected, "what it is in step %lld, %016llx", (long long)c->step,
           (unsigned long long)c->digest);
    if (is_old)
        CD_SAY(f.actual, "what it was in step %lld, %016llx", (long long)c->before_step,
               (unsigned long long)u->digest);
    else
        CD_SAY(f.actual, "%016llx, which it was in no step before", (unsigned long long)u->digest);
    CD_SAY(f.advice, "a full copy does not outlive an optimizer step, and all ranks gather the "
                     "same unit at the same time (FSH-14, FSH-15)");
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

static void event(void *self, const cddp_event *e)
{
    if (e->kind == CDDP_EV_fresh)
        take_fresh(self, e);
    else
        take_read(self, e);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->compared > 0)
        cd_writer_exercise(&s->writer, "%llu full parameters were those of their step",
                           (unsigned long long)s->compared);
    cd_table_fini(&s->contents);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_fresh, CDDP_EV_unit_read};

CD_CHECK_TABLE(fresh, "I-FRESH", "a unit computes with the parameters of this step",
               "Every full parameter that a forward or a backward computes with is the one that "
               "the last completed step left, on every rank.");
