/* SPDX-License-Identifier: Apache-2.0 */
/* I-ALIAS: in view mode a gradient is its own slice of the bucket in force, and slices do not
** overlap.
**
** Judged from   bucket_layout (slices of one bucket are disjoint) and grad_final's is_view,
**               generation and address, which counts elements from the start of the bucket.
** Exercised     a gradient was a view of a bucket.
** Blame         the rank, the bucket and the parameter; for an overlap both parameters.
** Limits        a globally unused parameter keeps whatever gradient it had (FIN-04) and is not
**               judged; storage outside the buckets is not visible.
*/
#include "core/check/writer.h"

typedef struct state {
    cd_writer writer;
    cd_table ends; /* (rank, generation, bucket) → end of the last slot, its param */
    uint64_t aliased;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-ALIAS", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->ends, context->allocator, 2 * sizeof(int64_t));
    return CDDP_OK;
}

static void take_layout(state *s, const cddp_event *e)
{
    const cddp_event_bucket_layout *l = &e->as.bucket_layout;
    int64_t *last = cd_table_add(&s->ends, CD_KEY(e->rank, l->generation, l->bucket));
    if (last == NULL) return;
    /* the layout is made anew: a rebuild, or a wrapper made again after a resume */
    if (l->slot == 0) last[0] = 0;
    if (l->offset < last[0] && cd_writer_is_first(&s->writer, CD_KEY(0), e)) {
        cddp_finding f = cd_finding_at(&s->writer, e);
        f.bucket = (int32_t)l->bucket;
        cd_finding_set_parameter(&s->writer, &f, l->param);
        CD_SAY(f.title, CDDP_FINDING_WHO ": %s and %s overlap in bucket %lld",
               cd_writer_get_parameter(&s->writer, last[1]), f.parameter, (long long)l->bucket);
        CD_SAY(f.expected, "%s starts at element %lld or later", f.parameter, (long long)last[0]);
        CD_SAY(f.actual, "it starts at element %lld", (long long)l->offset);
        cd_writer_hold(&s->writer, CD_KEY(0), &f);
    }
    if (l->offset + l->numel > last[0]) last[0] = l->offset + l->numel;
    last[1] = l->param;
}

static void take_final(state *s, const cddp_event *e)
{
    const cddp_event_grad_final *g = &e->as.grad_final;
    const cddp_facts *facts = s->writer.context.facts;
    cddp_fact_place place;
    if (g->globally_unused || g->presence != CDDP_PRESENCE_VALUE ||
        !cd_writer_find_place(&s->writer, e->rank, g->param, &place))
        return;
    int64_t newest = facts->generation(facts->self, e->rank);
    const char *wrong = NULL;
    if (g->is_view) s->aliased++;
    if (!g->is_view &&
        cd_writer_has_flag(&s->writer, e->rank, CDDP_KEY_ddp_gradient_as_bucket_view))
        wrong = "is not a view of its bucket";
    else if (g->is_view && g->generation != newest)
        wrong = "is a view of a layout that is no longer in force";
    else if (g->is_view && (g->bucket != place.bucket || g->address != place.offset))
        wrong = "lies in another parameter's slice";
    if (wrong == NULL || !cd_writer_is_first(&s->writer, CD_KEY(1), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    f.bucket = (int32_t)place.bucket;
    cd_finding_set_parameter(&s->writer, &f, g->param);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the gradient of %s %s", f.parameter, wrong);
    CD_SAY(f.expected, "element %lld of bucket %lld, layout %lld", (long long)place.offset,
           (long long)place.bucket, (long long)newest);
    if (g->is_view)
        CD_SAY(f.actual, "element %lld of bucket %lld, layout %lld", (long long)g->address,
               (long long)g->bucket, (long long)g->generation);
    else
        CD_SAY(f.actual, "separate storage");
    CD_SAY(f.advice, "in view mode gradients must not be replaced between backward and step, and a "
                     "rebuild must move "
                     "their values (REB-08)");
    cd_writer_hold(&s->writer, CD_KEY(1), &f);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_bucket_layout)
        take_layout(s, e);
    else if (e->kind == CDDP_EV_grad_final)
        take_final(s, e);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->aliased > 0)
        cd_writer_exercise(&s->writer, "%llu gradients were views of their bucket",
                           (unsigned long long)s->aliased);
    cd_table_fini(&s->ends);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_bucket_layout, CDDP_EV_grad_final};

CD_CHECK_TABLE(alias, "I-ALIAS", "gradient views are their own slices of the bucket in force",
               "In view mode a gradient aliases its own bucket slice of the current generation; no "
               "two parameters' "
               "gradients overlap; one owner per region.");
