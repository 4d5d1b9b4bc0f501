/* SPDX-License-Identifier: Apache-2.0 */
/* Events about the content of many tensors, for producers in other languages: the loop over
** parameters is here, and not in an interpreter. */
#include "cddp/shard.h"

#include "cddp/tensor.h"
#include "core/trace/tracer.h"
#include "record/projection.h"

#include <math.h>

bool cddp_shard_project(const void *bytes, int64_t numel, int32_t dtype, double *sum,
                        double *magnitude)
{
    cd_projection p;
    if (!cd_projection_of(bytes, numel, dtype, &p)) return false;
    *sum = p.sum;
    *magnitude = p.magnitude;
    return true;
}

/* What is known of one tensor of the call. */
typedef struct content {
    uint64_t digest;
    cd_projection projection;
    bool is_present, is_projected;
} content;

static content look(const cddp_shard_tensors *t, size_t i)
{
    const cddp_shard_tensor *x = &t->tensors[i];
    const void *bytes = (const void *)(uintptr_t)t->bytes[i];
    content c = {.is_present = bytes != NULL};
    if (bytes == NULL || x->numel < 0 || x->dtype < 0 || x->dtype >= CDDP_DTYPE_COUNT) return c;
    const size_t element = cddp_dtype_bytes((cddp_dtype)x->dtype);
    if ((t->content & CDDP_SHARD_DIGESTS) != 0)
        c.digest = cddp_shard_digest(bytes, (size_t)x->numel * element, element);
    if ((t->content & (CDDP_SHARD_PROJECTIONS | CDDP_SHARD_PRESENT_ONLY)) != 0)
        c.is_projected = cd_projection_of(bytes, x->numel, x->dtype, &c.projection);
    return c;
}

/* A gradient in view mode lies in its bucket. */
static void place(const cddp_shard_tensor *x, uint64_t bytes, cddp_event_grad_final *g)
{
    const uint64_t element = cddp_dtype_bytes((cddp_dtype)x->dtype);
    g->is_view = bytes != 0 && bytes >= x->address && bytes - x->address < x->address_bytes;
    g->address = g->is_view ? (int64_t)((bytes - x->address) / element) : -1;
}

static void fill(const cddp_shard_tensors *t, size_t i, const content *c, cddp_event *e)
{
    cddp_shard_tensor *x = &t->tensors[i];
    const int64_t presence = c->is_present ? CDDP_PRESENCE_VALUE : CDDP_PRESENCE_ABSENT;
    const bool nonfinite = c->is_projected && !isfinite(c->projection.magnitude);
    for (uint32_t k = 0; k < CDDP_EVENT_FIELDS; k++) e->as.field[k] = x->field[k];
    switch (t->kind) {
    case CDDP_EV_grad_local:
        if (x->epoch != t->epoch) x->field[3] = 0;
        x->epoch = t->epoch;
        x->field[3] += c->is_present;
        e->as.grad_local.contributions = x->field[3];
        e->as.grad_local.presence = presence;
        e->as.grad_local.digest = (int64_t)c->digest;
        e->as.grad_local.nonfinite = nonfinite;
        break;
    case CDDP_EV_grad_final:
        e->as.grad_final.presence = presence;
        e->as.grad_final.digest = (int64_t)c->digest;
        e->as.grad_final.nonfinite = nonfinite;
        place(x, t->bytes[i], &e->as.grad_final);
        break;
    case CDDP_EV_optimizer_touch:
        e->as.optimizer_touch.touched = c->is_present;
        e->as.optimizer_touch.gradient = (int64_t)c->digest;
        break;
    default:
        e->as.value.presence = presence;
        e->as.value.digest = (int64_t)c->digest;
        e->as.value.nonfinite = nonfinite ? 0 : -1;
        break;
    }
}

static void emit_projection(cddp_shard *shard, const cddp_event *of, const cddp_shard_tensor *x,
                            const cd_projection *p)
{
    cddp_event e = {.step = of->step, .micro_step = of->micro_step, .time_ns = of->time_ns};
    const bool is_local = of->kind == CDDP_EV_grad_local;
    const int64_t variable = is_local                              ? of->as.grad_local.param
                             : of->kind == CDDP_EV_optimizer_touch ? of->as.optimizer_touch.param
                                                                   : of->as.grad_final.param;
    e.kind = CDDP_EV_projection;
    e.as.projection = (cddp_event_projection){.param = variable,
                                              .reduced = !is_local,
                                              .sum = cd_f64_bits(p->sum),
                                              .magnitude = cd_f64_bits(p->magnitude),
                                              .numel = x->numel,
                                              .dtype = x->dtype};
    cddp_shard_emit(shard, &e);
}

/* The program changed the gradient after it was reduced, and before an optimizer took it. */
static void emit_rewritten(cddp_shard *shard, const cddp_event *touch, uint64_t digest,
                           bool is_explained)
{
    const cddp_event_optimizer_touch *t = &touch->as.optimizer_touch;
    cddp_event e = {.step = touch->step, .micro_step = touch->micro_step, .kind = CDDP_EV_rewrite};
    if (!is_explained) {
        e.text = "the program itself";
        e.as.rewrite = (cddp_event_rewrite){.optimizer = t->optimizer,
                                            .norm = cd_f64_bits((double)NAN),
                                            .factor = cd_f64_bits((double)NAN),
                                            .params = 1};
        cddp_shard_emit(shard, &e);
    }
    e.kind = CDDP_EV_value;
    e.text = NULL;
    e.as.value = (cddp_event_value){.what = CDDP_WHAT_GRADIENT,
                                    .moment = CDDP_MOMENT_BEFORE_STEP,
                                    .id = touch->as.field[5],
                                    .presence = CDDP_PRESENCE_VALUE,
                                    .digest = (int64_t)digest,
                                    .param = t->param,
                                    .nonfinite = -1};
    cddp_shard_emit(shard, &e);
}

void cddp_shard_emit_tensors(cddp_shard *shard, const cddp_shard_tensors *t)
{
    if (shard == NULL || t == NULL || t->size < sizeof *t) return;
    const bool is_gradient = t->kind == CDDP_EV_grad_local || t->kind == CDDP_EV_grad_final;
    if (!is_gradient && t->kind != CDDP_EV_optimizer_touch && t->kind != CDDP_EV_value) return;
    bool is_explained = (t->content & CDDP_SHARD_REWRITTEN) != 0;
    for (size_t i = 0; i < t->count; i++) {
        content c = look(t, i);
        const uint64_t expected = t->expected != NULL ? t->expected[i] : 0;
        if (t->digests != NULL) t->digests[i] = c.digest;
        const bool is_zero = c.is_projected && c.projection.magnitude == 0;
        if ((t->content & CDDP_SHARD_PRESENT_ONLY) != 0 && (!c.is_present || is_zero)) continue;
        cddp_event e = {.time_ns = cddp_shard_now_ns(),
                        .step = t->step,
                        .micro_step = t->micro_step,
                        .kind = (uint16_t)t->kind};
        fill(t, i, &c, &e);
        const bool is_rewritten = t->kind == CDDP_EV_optimizer_touch && c.is_present &&
                                  expected != 0 && expected != c.digest;
        if (is_rewritten) {
            const cddp_shard_tensor *x = &t->tensors[i];
            emit_rewritten(shard, &e, c.digest, is_explained);
            is_explained = true;
            c.is_projected = cd_projection_of((const void *)(uintptr_t)t->bytes[i], x->numel,
                                              x->dtype, &c.projection);
        }
        cddp_shard_emit(shard, &e);
        const bool is_wanted = is_gradient && (t->content & CDDP_SHARD_PROJECTIONS) != 0;
        if ((is_wanted || is_rewritten) && c.is_projected)
            emit_projection(shard, &e, &t->tensors[i], &c.projection);
    }
}
