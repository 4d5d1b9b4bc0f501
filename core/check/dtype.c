/* SPDX-License-Identifier: Apache-2.0 */
/* I-DTYPE: every collective and every accumulation site uses the dtype it was declared to use.
**
** Judged from   bucket_layout against bucket_launch and the gradients that were marked ready for it
**               (GRD-15); collective_post of a bucket against policy(site 0), or against the
**               bucket's own dtype without a hook; grad_local against policy(site 1); grad_final
**               against the parameter, or against planned_part where the plan keeps another one.
** Exercised     a reduction of a bucket was compared with its declared dtype.
** Blame         the rank, the bucket and, for a gradient, the parameter.
** Limits        only reductions are compared: a hook may gather indices and counts in other
**               dtypes. Of a hook's, only those of floating-point numbers: integers have no
**               precision to lose.
*/
#include "core/check/writer.h"

#include "cddp/tensor.h"

typedef struct rank_facts {
    int64_t wire, gradient; /* declared dtypes + 1; 0: none */
    bool has_hook;
} rank_facts;

typedef struct state {
    cd_writer writer;
    cd_ranks ranks;     /* of rank_facts */
    cd_table buckets;   /* (rank, bucket) → dtype + 1 of the newest layout */
    cd_table gradients; /* (rank, param) → dtype + 1 of the last local gradient */
    cd_table params;    /* param → dtype + 1 */
    cd_table ordinals;  /* param → position among all parameters + 1 */
    cd_table planned;   /* that → dtype + 1 of the gradient of a sharded parameter */
    uint64_t compared;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-DTYPE", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->buckets, context->allocator, sizeof(int64_t));
    cd_table_init(&s->gradients, context->allocator, sizeof(int64_t));
    cd_table_init(&s->params, context->allocator, sizeof(int64_t));
    cd_table_init(&s->ordinals, context->allocator, sizeof(int64_t));
    cd_table_init(&s->planned, context->allocator, sizeof(int64_t));
    return CDDP_OK;
}

typedef struct site {
    const char *name; /* "bucket 1 on the wire" */
    const char *advice;
    int64_t kind, id; /* reported once per */
    int64_t expected, actual;
    int64_t bucket, param;
} site;

static void expect(state *s, const cddp_event *e, const site *x)
{
    if (!cd_writer_is_first(&s->writer, CD_KEY(x->kind, x->id), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    f.bucket = (int32_t)x->bucket;
    cd_finding_set_parameter(&s->writer, &f, x->param);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s is %s, declared %s", x->name,
           cddp_dtype_name((cddp_dtype)x->actual), cddp_dtype_name((cddp_dtype)x->expected));
    CD_SAY(f.expected, "%s", cddp_dtype_name((cddp_dtype)x->expected));
    CD_SAY(f.actual, "%s", cddp_dtype_name((cddp_dtype)x->actual));
    CD_SAY(f.advice, "%s", x->advice);
    cd_writer_hold(&s->writer, CD_KEY(x->kind, x->id), &f);
}

static void remember(cd_table *table, const cd_key *key, int64_t dtype)
{
    int64_t *value = cd_table_add(table, key);
    if (value != NULL) *value = dtype + 1;
}

static int64_t recall(const cd_table *table, const cd_key *key)
{
    const int64_t *value = cd_table_find(table, key);
    return value != NULL ? *value - 1 : -1;
}

static void take_post(state *s, const cddp_event *e, const rank_facts *r)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    if (c->bucket < 0 || !cd_operation_reduces(c->op) || c->dtype < 0) return;
    if (r->has_hook && !cddp_dtype_is_float((cddp_dtype)c->dtype) && c->dtype != CDDP_C64) return;
    int64_t expected = r->wire > 0   ? r->wire - 1
                       : r->has_hook ? -1
                                     : recall(&s->buckets, CD_KEY(e->rank, c->bucket));
    if (expected < 0) return;
    s->compared++;
    if (expected == c->dtype) return; /* nothing needs a name */
    char name[64];
    CD_SAY(name, "bucket %lld on the wire", (long long)c->bucket);
    expect(s, e,
           &(site){name,
                   "the requested reduction precision must hold on every reduction, also after a "
                   "parameter is unfrozen",
                   0, c->bucket, expected, c->dtype, c->bucket, -1});
}

static void take_ready(state *s, const cddp_event *e)
{
    const cddp_event_mark_ready *m = &e->as.mark_ready;
    int64_t gradient = recall(&s->gradients, CD_KEY(e->rank, m->param)),
            bucket = recall(&s->buckets, CD_KEY(e->rank, m->bucket));
    if (gradient == CDDP_C64)
        gradient =
            CDDP_F32; /* a complex gradient lies in a real bucket of twice the length (SPA-05) */
    if (gradient < 0 || bucket < 0 || m->path == CDDP_PATH_ZERO || gradient == bucket) return;
    char name[128];
    CD_SAY(name, "the gradient of %s", cd_writer_get_parameter(&s->writer, m->param));
    expect(s, e,
           &(site){name, "a bucket holds gradients of one dtype (GRD-15, BKT-17)", 1, m->param,
                   bucket, gradient, m->bucket, m->param});
}

static void take_local(state *s, const cddp_event *e, const rank_facts *r)
{
    const cddp_event_grad_local *g = &e->as.grad_local;
    if (g->presence == CDDP_PRESENCE_ABSENT) return;
    remember(&s->gradients, CD_KEY(e->rank, g->param), g->dtype);
    if (r->gradient <= 0 || r->gradient - 1 == g->dtype) return;
    char name[128];
    CD_SAY(name, "the accumulated gradient of %s", cd_writer_get_parameter(&s->writer, g->param));
    expect(
        s, e,
        &(site){name,
                "micro-batches must be accumulated in the declared dtype, not converted at the end",
                2, g->param, r->gradient - 1, g->dtype, -1, g->param});
}

static void take_final(state *s, const cddp_event *e)
{
    const cddp_event_grad_final *g = &e->as.grad_final;
    const int64_t ordinal = recall(&s->ordinals, CD_KEY(g->param));
    int64_t expected = recall(&s->planned, CD_KEY(ordinal));
    if (expected < 0) expected = recall(&s->params, CD_KEY(g->param));
    if (g->presence == CDDP_PRESENCE_ABSENT || expected < 0 || expected == g->dtype) return;
    char name[128];
    CD_SAY(name, "the final gradient of %s", cd_writer_get_parameter(&s->writer, g->param));
    expect(s, e,
           &(site){name, "the write-back casts to the parameter's dtype (HOOK-07)", 3, g->param,
                   expected, g->dtype, g->bucket, g->param});
}

static void take_launch(state *s, const cddp_event *e)
{
    const cddp_event_bucket_launch *b = &e->as.bucket_launch;
    int64_t expected = recall(&s->buckets, CD_KEY(e->rank, b->bucket));
    if (expected < 0 || expected == b->dtype) return;
    char name[64];
    CD_SAY(name, "launched bucket %lld", (long long)b->bucket);
    expect(s, e,
           &(site){name, "a bucket keeps the dtype of its parameters", 4, b->bucket, expected,
                   b->dtype, b->bucket, -1});
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    switch (e->kind) {
    case CDDP_EV_param:
        if (e->as.param.param < 0) break;
        remember(&s->params, CD_KEY(e->as.param.param), e->as.param.dtype);
        remember(&s->ordinals, CD_KEY(e->as.param.param), e->as.param.ordinal);
        break;
    case CDDP_EV_planned_part:
        remember(&s->planned, CD_KEY(e->as.planned_part.ordinal), e->as.planned_part.dtype);
        break;
    case CDDP_EV_bucket_layout:
        remember(&s->buckets, CD_KEY(e->rank, e->as.bucket_layout.bucket),
                 e->as.bucket_layout.dtype);
        break;
    case CDDP_EV_policy:
        if (e->as.policy.site == CDDP_SITE_WIRE)
            r->wire = e->as.policy.dtype + 1;
        else if (e->as.policy.site == CDDP_SITE_GRADIENT)
            r->gradient = e->as.policy.dtype + 1;
        break;
    case CDDP_EV_hook_call:
        r->has_hook = true;
        break;
    case CDDP_EV_grad_local:
        take_local(s, e, r);
        break;
    case CDDP_EV_mark_ready:
        take_ready(s, e);
        break;
    case CDDP_EV_bucket_launch:
        take_launch(s, e);
        break;
    case CDDP_EV_collective_post:
        take_post(s, e, r);
        break;
    case CDDP_EV_grad_final:
        take_final(s, e);
        break;
    default:
        break;
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->compared > 0)
        cd_writer_exercise(&s->writer, "%llu reductions compared with their declared dtype",
                           (unsigned long long)s->compared);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->buckets);
    cd_table_fini(&s->gradients);
    cd_table_fini(&s->params);
    cd_table_fini(&s->ordinals);
    cd_table_fini(&s->planned);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_param,         CDDP_EV_bucket_layout,   CDDP_EV_policy,
                                 CDDP_EV_hook_call,     CDDP_EV_grad_local,      CDDP_EV_mark_ready,
                                 CDDP_EV_bucket_launch, CDDP_EV_collective_post, CDDP_EV_grad_final,
                                 CDDP_EV_planned_part};

CD_CHECK_TABLE(
    dtype, "I-DTYPE", "reductions and accumulations use their declared dtype",
    "Wire and accumulation dtypes equal policy at every collective and accumulation site.");
