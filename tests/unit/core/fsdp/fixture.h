/* SPDX-License-Identifier: Apache-2.0 */
/* A toy for the sharded runtime: three units whose forward is nothing, gradients that the test
** writes, SGD with momentum over shards, and the same training on one process.
**
**     root: weight (2, 4), bias (2)      a: weight (5, 3), bias (5)      b: weight (4, 5), bias (4)
**
** The units are those of Linear(3,5), Linear(5,4), Linear(4,2): 20, 24 and 10 elements, which are
** gathered as 10, 12 and 5 by two ranks.
*/
#pragma once
#include "cddp/fsdp.h"
#include "tests/unit/core/ddp/fixture.h"

#define TOY_PARAMETERS 6
#define TOY_NUMEL_MAX 20
#define TOY_LR 0.5f

static const struct {
    const char *name;
    uint32_t dims;
    int64_t sizes[2];
} toy_shapes[TOY_PARAMETERS] = {
    {"weight", 2, {2, 4}}, {"bias", 1, {2}},        {"a.weight", 2, {5, 3}},
    {"a.bias", 1, {5}},    {"b.weight", 2, {4, 5}}, {"b.bias", 1, {4}},
};
static const char *const toy_units[] = {"a", "b"};
enum { TOY_ROOT, TOY_A, TOY_B, TOY_UNITS };

typedef struct toy {
    lane *l;
    cddp_fsdp *fsdp;
    cddp_fsdp_options options;
    float momentum[TOY_UNITS][64]; /* (share) of each shard */
    /* one process: what the model is after the same steps */
    float values[TOY_PARAMETERS][TOY_NUMEL_MAX], state[TOY_PARAMETERS][TOY_NUMEL_MAX];
    bool skips_one; /* rank 0 has no gradient of "a.bias" in odd steps */
    bool trains_no_a;
} toy;

static inline int64_t toy_numel(size_t i)
{
    return toy_shapes[i].sizes[0] * (toy_shapes[i].dims > 1 ? toy_shapes[i].sizes[1] : 1);
}
static inline size_t toy_unit(size_t i) { return i / 2; }

/* Element e of a contiguous tensor of any dtype. */
static inline double toy_get(lane *l, const cddp_tensor *t, int64_t e)
{
    double wide = 0;
    const cddp_tensor one = cddp_tensor_slice(t, e, 1);
    const int64_t count = 1;
    const cddp_tensor to = cddp_tensor_of(cddp_device_cpu(), &wide, 0, CDDP_F64, &count, 1);
    CHECK_OK(cddp_device_cpu()->copy(&to, &one, NULL, &l->err));
    return wide;
}
static inline void toy_set(lane *l, const cddp_tensor *t, int64_t e, double value)
{
    const cddp_tensor one = cddp_tensor_slice(t, e, 1);
    CHECK_OK(cddp_device_cpu()->fill(&one, value, NULL, &l->err));
}

/* Whole numbers, so that their sums are exact in any order. */
static inline float toy_initial(size_t i, int64_t e)
{
    return (float)((int64_t)(i * 7) + e) - 9.0f;
}
static inline float toy_gradient(const toy *t, uint32_t rank, size_t i, int64_t e, int step)
{
    if (t->skips_one && rank == 0 && i == 3 && step % 2 == 1) return 0;
    return (float)(((int64_t)(i + 1) * (e + 3) + 5 * (int64_t)rank + 3 * step) % 17 - 8);
}

static inline void toy_init(toy *t, lane *l)
{
    *t = (toy){.l = l, .options = cddp_fsdp_options_default()};
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        cddp_parameter *p = lane_add(l, toy_shapes[i].name, CDDP_F32, toy_numel(i));
        p->tensor = cddp_tensor_of(l->device, p->tensor.storage, 0, CDDP_F32, toy_shapes[i].sizes,
                                   toy_shapes[i].dims);
        for (int64_t e = 0; e < toy_numel(i); e++)
            t->values[i][e] = ((float *)p->tensor.storage)[e] = toy_initial(i, e);
    }
    t->options.parameters = l->parameters;
    t->options.parameter_count = l->count;
    t->options.group = l->group;
    t->options.wrap.kind = CDDP_FSDP_WRAP_NAMES;
    t->options.wrap.words = toy_units;
    t->options.wrap.word_count = 2;
}

static inline cddp_status toy_try_wrap(toy *t)
{
    return cddp_fsdp_create(&t->options, &t->fsdp, &t->l->err);
}
static inline void toy_wrap(toy *t)
{
    lane *l = t->l;
    CHECK_OK(toy_try_wrap(t));
    /* Nothing of the program's storage is used from here on. */
    for (size_t i = 0; i < l->count; i++)
        CHECK_OK(l->device->fill(&l->parameters[i].tensor, -77.0, NULL, &l->err));
}
static inline void toy_fini(toy *t)
{
    cddp_fsdp_destroy(t->fsdp);
    for (size_t i = 0; i < t->l->count; i++) cddp_grad_fini(&t->l->grads[i]);
}

/* The full parameters of a unit are those of the one process, rounded as its forward sees them. */
static inline void toy_check_unit(toy *t, uint32_t unit)
{
    lane *l = t->l;
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        if (toy_unit(i) != unit) continue;
        const cddp_tensor *full = cddp_fsdp_parameter(t->fsdp, i);
        CHECK(full != NULL && cddp_tensor_numel(full) == toy_numel(i));
        CHECK(full->dim_count == toy_shapes[i].dims && full->sizes[0] == toy_shapes[i].sizes[0]);
        for (int64_t e = 0; e < toy_numel(i); e++) {
            uint64_t storage = 0;
            const int64_t count = 1;
            const cddp_tensor rounded =
                cddp_tensor_of(cddp_device_cpu(), &storage, 0, full->dtype, &count, 1);
            toy_set(l, &rounded, 0, (double)t->values[i][e]);
            CHECK(toy_get(l, full, e) == toy_get(l, &rounded, 0));
        }
    }
}

/* Adds a gradient to the slot of parameter i, in the dtype of what was computed with. */
static inline void toy_accumulate(toy *t, size_t i, int step)
{
    lane *l = t->l;
    cddp_grad *grad = &l->grads[i];
    const cddp_tensor *full = cddp_fsdp_parameter(t->fsdp, i);
    CHECK(full != NULL);
    if (t->skips_one && l->r == 0 && i == 3 && step % 2 == 1) return;
    const bool fresh = grad->kind == CDDP_GRAD_UNDEFINED;
    CHECK_OK(cddp_grad_define(grad, full, &l->err));
    for (int64_t e = 0; e < toy_numel(i); e++)
        toy_set(l, &grad->value, e,
                (fresh ? 0 : toy_get(l, &grad->value, e)) +
                    (double)toy_gradient(t, l->r, i, e, step));
}

static inline void toy_forward_unit(toy *t, uint32_t unit)
{
    lane *l = t->l;
    CHECK_OK(cddp_fsdp_pre_forward(t->fsdp, unit, true, &l->err));
    toy_check_unit(t, unit);
    CHECK_OK(cddp_fsdp_post_forward(t->fsdp, unit, !(t->trains_no_a && unit == TOY_A), &l->err));
}
static inline void toy_forward(toy *t)
{
    lane *l = t->l;
    CHECK_OK(cddp_fsdp_pre_forward(t->fsdp, TOY_ROOT, true, &l->err));
    toy_check_unit(t, TOY_ROOT);
    toy_forward_unit(t, TOY_A);
    toy_forward_unit(t, TOY_B);
    toy_check_unit(t, TOY_ROOT);
    CHECK_OK(cddp_fsdp_post_forward(t->fsdp, TOY_ROOT, true, &l->err));
}
static inline void toy_gradients_of(toy *t, uint32_t unit, int step)
{
    toy_check_unit(t, unit);
    for (size_t i = TOY_PARAMETERS; i-- > 0;)
        if (toy_unit(i) == unit) toy_accumulate(t, i, step);
}
/* The root's output is b's: b is first, and the root's own gradients are complete last. */
static inline void toy_backward(toy *t, int step)
{
    lane *l = t->l;
    CHECK_OK(cddp_fsdp_pre_backward(t->fsdp, TOY_B, &l->err));
    CHECK_OK(cddp_fsdp_pre_backward(t->fsdp, TOY_ROOT, &l->err));
    toy_gradients_of(t, TOY_B, step);
    CHECK_OK(cddp_fsdp_post_backward(t->fsdp, TOY_B, &l->err));
    if (!t->trains_no_a) {
        CHECK_OK(cddp_fsdp_pre_backward(t->fsdp, TOY_A, &l->err));
        toy_gradients_of(t, TOY_A, step);
        CHECK_OK(cddp_fsdp_post_backward(t->fsdp, TOY_A, &l->err));
    }
    toy_gradients_of(t, TOY_ROOT, step);
    CHECK_OK(cddp_fsdp_post_backward(t->fsdp, TOY_ROOT, &l->err));
    CHECK_OK(cddp_fsdp_backward_end(t->fsdp, &l->err));
}

/* SGD with momentum over the shards, padding included. */
static inline void toy_step(toy *t)
{
    lane *l = t->l;
    CHECK_OK(cddp_fsdp_check_step(t->fsdp, &l->err));
    for (uint32_t k = 0; k < TOY_UNITS; k++) {
        cddp_parameter flat;
        CHECK_OK(cddp_fsdp_flat(t->fsdp, k, &flat, &l->err));
        if (flat.grad->kind == CDDP_GRAD_UNDEFINED) continue;
        float *values = flat.tensor.storage, *gradient = flat.grad->value.storage;
        for (int64_t e = 0; e < cddp_tensor_numel(&flat.tensor); e++) {
            t->momentum[k][e] = 0.5f * t->momentum[k][e] + gradient[e];
            values[e] -= TOY_LR * t->momentum[k][e];
        }
        cddp_grad_drop(flat.grad);
    }
}

/* The same step on one process: the mean over `ranks` ranks of the sum of `steps` gradients,
** rounded once. */
static inline void toy_step_alone(toy *t, uint32_t ranks, const int *steps, size_t step_count)
{
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        if (t->trains_no_a && toy_unit(i) == TOY_A) continue;
        for (int64_t e = 0; e < toy_numel(i); e++) {
            float sum = 0;
            for (uint32_t r = 0; r < ranks; r++)
                for (size_t s = 0; s < step_count; s++) sum += toy_gradient(t, r, i, e, steps[s]);
            t->state[i][e] = 0.5f * t->state[i][e] + sum / (float)ranks;
            t->values[i][e] -= TOY_LR * t->state[i][e];
        }
    }
}

static inline void toy_iterate(toy *t, int step)
{
    toy_forward(t);
    toy_backward(t, step);
}

/* Padding was zero at the start, and has no gradient (FPM-05). */
static inline void toy_check_padding(toy *t)
{
    lane *l = t->l;
    bool *mine = calloc(TOY_UNITS, 64);
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CHECK_OK(cddp_fsdp_get_piece(t->fsdp, i, &piece, &l->err));
        for (int64_t e = 0; e < piece.count; e++) {
            CHECK(((const float *)piece.tensor.storage)[piece.tensor.offset + e] ==
                  t->values[i][piece.first + e]);
            bool *at = &mine[piece.unit * 64 + piece.offset + e];
            CHECK(!*at); /* one owner within this shard */
            *at = true;
        }
    }
    for (uint32_t k = 0; k < cddp_fsdp_unit_count(t->fsdp); k++) {
        cddp_parameter flat;
        CHECK_OK(cddp_fsdp_flat(t->fsdp, k, &flat, &l->err));
        for (int64_t e = 0; e < cddp_tensor_numel(&flat.tensor); e++)
            CHECK(mine[k * 64 + e] || ((const float *)flat.tensor.storage)[e] == 0);
    }
    free(mine);
}

/* Gathers and reductions of units since lane_mark, in order: "AG a, RS b". order checks are i64. */
static inline void toy_sequence(const toy *t, char *text, size_t text_bytes)
{
    const lane *l = t->l;
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = l->since; i < l->sink.count; i++) {
        const cddp_event *e = &l->sink.events[i];
        if (e->kind != CDDP_EV_collective_post || e->as.collective_post.dtype == CDDP_I64) continue;
        const cddp_event_collective_post *c = &e->as.collective_post;
        const char *name = "?";
        for (uint32_t k = 0; k < cddp_fsdp_unit_count(t->fsdp); k++) {
            cddp_fsdp_unit_info u = {.size = sizeof u};
            CHECK(cddp_fsdp_unit(t->fsdp, k, &u, NULL) == CDDP_OK);
            const int64_t whole = u.share * (int64_t)u.shard_count;
            if (c->numel == (c->op == CDDP_OP_REDUCE_SCATTER ? whole : u.share))
                name = u.name[0] != '\0' ? u.name : "R";
        }
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s %s", used > 0 ? ", " : "",
                                 c->op == CDDP_OP_ALLGATHER        ? "AG"
                                 : c->op == CDDP_OP_REDUCE_SCATTER ? "RS"
                                 : c->op == CDDP_OP_ALLREDUCE      ? "AR"
                                                                   : "other",
                                 name);
    }
}
#define CHECK_SEQUENCE(toy, wanted)                                                        \
    do {                                                                                   \
        char check_sequence[1024];                                                         \
        toy_sequence((toy), check_sequence, sizeof check_sequence);                        \
        if (strcmp(check_sequence, (wanted)) != 0) {                                       \
            fprintf(stderr, "%s:%d: rank %u: \"%s\", wanted \"%s\"\n", __FILE__, __LINE__, \
                    (toy)->l->r, check_sequence, (wanted));                                \
            abort();                                                                       \
        }                                                                                  \
    } while (0)
