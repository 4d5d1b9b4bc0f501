/* SPDX-License-Identifier: Apache-2.0 */
/* What the plan makes of a value between two moments.
**
** Note [What moves a value]
**   initial values   drawn from the plan's seed, rank 0's where state is broadcast
**   a step's end     with model.exact, parameters go back to their grid
**   before the step  gradients of optimizers that are due are divided by the loss scale, and all
**                    that are trained are multiplied by the clip factor, in the declared order
**   an update        what the oracle judged (links 4 and 12), and the optimizers' state with their
**                    step counts, as the reference has them
**   a reduction      what the oracle judged, where no grad_final of the wrapper says it
**   an average       of parameters that this step does not average: nothing; of the others,
**                    weighted sums over the ranks stay (custody_average.c)
**   planned touches  of parameters after a step, of buffers before a forward
** Everything else stays, and I-CHAIN needs no expected digest for it.
**
** Not here: whether the chain holds (core/check/chain.c).
*/
#include "core/reference/custody.h"

#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/hash.h"
#include "core/plan/plan.h"
#include "core/reference/custody_average.h"
#include "core/reference/custody_values.h"
#include "core/reference/planned.h"
#include "core/reference/scaling.h"
#include "core/reference/shown.h"
#include "core/tensor/blob.h"
#include "core/tensor/numbers.h"
#include "core/tensor/saved.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 12)

typedef struct kept_gradient {
    cddp_grad_kind kind;
    cd_kept value, rows;
} kept_gradient;

struct cd_custody {
    cd_arena memory;
    cd_custody_options options;
    cd_module *module;        /* the reference's: what is declared of parameters and buffers */
    int32_t *variables;       /* (parameter_count) */
    cd_kept *parameters;      /* (parameter_count) as last accepted, where a transform needs them */
    cd_kept *buffers;         /* (buffer_count) likewise */
    kept_gradient *gradients; /* (parameter_count) as they were judged after the backward */
    bool has_gradients;       /* of this step */
    uint64_t *unclipped;      /* (parameter_count) digests of what was shown before the clip */
    bool has_unclipped;       /* of this step */
    bool *is_there;           /* (parameter_count) whose gradient was there when last shown */
    bool is_before_grid;      /* the step has ended and parameters are not on their grid yet */
    uint32_t touched_step, touched_micro; /* + 1: the last forward whose buffers were touched */
    double norm, seen_norm;               /* by which the rank has to clip, and says it does */
    double factor_before;                 /* of the step before; 1: nothing was clipped */
    float scale_before;                   /* the loss scale of the step before */
    bool has_norm;
    cd_scaling scaling;                /* the judge's own */
    bool found_nonfinite, has_updated; /* in this step */
    bool has_lost_scale; /* an update ran on gradients that were not seen after their backward */
    cd_blob scaler;      /* what a scaler in this state would save */
    cd_custody_averager averager;
    bool has_averager, is_before_average;
    cd_functionals before_average;
    cd_awaited_average awaited;
    uint32_t *blocks; /* (parameter_count) over which this step averages it; 0: it stays */
    /* the last step that leaves a backward, + 1; (parameter_count) what it began with */
    uint32_t begun_step;
    cddp_tensor *begun;
    cd_kept scratch;
    cd_numbers numbers;
    cd_custody_room room;
};

/* ---- emission ---- */

typedef struct derived {
    int64_t what, moment;
    size_t id;
    int32_t variable;
    const char *how;
} derived;

static void expect(const cd_custody *c, const derived *d, uint64_t digest, bool is_there)
{
    CD_EMIT(c->options.tracer, expected, d->how, .what = d->what, .moment = d->moment,
            .id = (int64_t)d->id, .presence = is_there ? CDDP_PRESENCE_VALUE : CDDP_PRESENCE_ABSENT,
            .digest = (int64_t)digest, .param = d->variable);
}

static cddp_status expect_tensor(const cd_custody *c, const derived *d, const cddp_tensor *tensor,
                                 cddp_error *err)
{
    uint64_t digest = 0;
    CD_TRY(tensor->device->digest(tensor, &digest, err));
    expect(c, d, digest, true);
    return CDDP_OK;
}

/* ---- the plan ---- */

static bool is_listed(const cddp_text_list *patterns, const char *name)
{
    return cd_planned_lists(patterns, name);
}

static cd_micro planned_micro(const cd_custody *c, uint32_t step, uint32_t micro_step)
{
    cd_micro micro;
    cd_planned_micro(c->options.plan, c->options.settings,
                     (cd_micro_place){c->options.rank, step, micro_step}, &micro);
    return micro;
}

static bool has_numbers(const cd_custody *c)
{
    return (c->module->device->flags & CDDP_DEVICE_VALUES) != 0;
}

/* Requires gradients now, as every step so far leaves it. */
static bool is_trained_at(const cd_custody *c, size_t parameter, uint32_t step)
{
    const cd_replica *r = c->options.reference->replica;
    return cd_planned_requires_grad(c->options.plan, (cd_micro_place){c->options.rank, step, 0},
                                    c->module->parameters[parameter].name,
                                    r->parameters[parameter].requires_grad);
}

/* Its gradient is among those that are clipped. */
static bool is_ever_trained(const cd_custody *c, size_t parameter)
{
    return c->options.reference->replica->parameters[parameter].requires_grad ||
           cd_planned_unfreezes(c->options.plan, c->module->parameters[parameter].name);
}

/* ---- initial values ---- */

/* State is broadcast from rank 0, but for what the wrapper was to leave alone; what is only
** reduced later is broadcast too (DEL-01). */
static bool comes_from_rank_0(const cd_custody *c, const char *name, bool is_parameter)
{
    const cddp_plan_settings *s = c->options.settings;
    if (!s->ddp.init_sync) return false;
    if (is_parameter && is_listed(&s->ddp.delay_all_reduce_named_params, name)) return true;
    return !is_listed(&s->model.ignore, name);
}

static cddp_status start_tensor(cd_custody *c, const derived *d, const char *name, cd_init init,
                                const cddp_tensor *like, cddp_error *err)
{
    const cddp_plan *plan = c->options.plan;
    const bool is_copied = comes_from_rank_0(c, name, d->what == CDDP_WHAT_PARAMETER);
    const uint32_t origin = is_copied ? 0 : c->options.rank;
    cddp_plan_settings settings;
    CD_TRY(cddp_plan_rank_settings(plan, origin, &settings, err));
    const cd_prng root = cd_prng_seed(plan->world.seed);
    const cd_prng prng = settings.model.init == CDDP_MODEL_INIT_DISTINCT
                             ? cd_prng_split_index(&root, "model", origin + 1u)
                             : cd_prng_split(&root, "model");
    const cd_prng parameters = cd_prng_split(&prng, "parameters");
    CD_TRY(cd_kept_make(&c->scratch, like, err));
    const cd_walk walk = {&parameters, name, init, settings.model.exact};
    CD_TRY(cd_walk_fill(&walk, &c->room, &c->scratch.tensor, err));
    CD_TRY(expect_tensor(c, d, &c->scratch.tensor, err));
    return CDDP_OK;
}

/* A new optimizer's. Where ranks hold pieces or receive state at the end of join, theirs is made
** otherwise. */
static cddp_status start_optimizers(const cd_custody *c, cddp_error *err)
{
    const cd_replica *r = c->options.reference->replica;
    size_t id = 0;
    if (c->options.settings->join.enable || cd_replica_is_sharded(r)) return CDDP_OK;
    for (size_t i = 0; i < r->optimizer_count; i++) {
        for (size_t k = 0; k < r->optimizers[i].count; k++, id++) {
            uint64_t digest = 0;
            CD_TRY(cd_optimizer_state_digest(r->optimizers[i].optimizer, k, &digest, err));
            expect(c,
                   &(derived){CDDP_WHAT_OPTIMIZER, CDDP_MOMENT_BEGIN, id, -1,
                              "as a new optimizer begins"},
                   digest, true);
        }
    }
    return CDDP_OK;
}

cddp_status cd_custody_start(cd_custody *custody, cddp_error *err)
{
    cd_custody *c = custody;
    if (!cd_tracer_wants_digest(c->options.tracer)) return CDDP_OK;
    for (size_t i = 0; i < c->module->parameter_count; i++) {
        const cd_parameter *p = &c->module->parameters[i];
        derived d = {CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_INIT, i, c->variables[i],
                     "drawn from the plan's seed"};
        if (p->init.kind != CD_INIT_GIVEN) {
            CD_TRY(start_tensor(c, &d, p->name, p->init, &p->tensor, err));
            continue;
        }
        d.how = "as it was recorded"; /* the reference read the recording itself */
        CD_TRY(expect_tensor(c, &d, &p->tensor, err));
    }
    for (size_t i = 0; i < c->module->buffer_count; i++) {
        const cd_buffer *b = &c->module->buffers[i];
        CD_TRY(start_tensor(c,
                            &(derived){CDDP_WHAT_BUFFER, CDDP_MOMENT_AFTER_INIT, i, -1,
                                       "as the model declares it"},
                            b->name, b->init, &b->tensor, err));
    }
    return CD_PASS(start_optimizers(c, err));
}

/* ---- gradients ---- */

/* Whether anything is done to gradients between the backward and the optimizers. */
static bool transforms_gradients(const cd_custody *c)
{
    const cddp_plan_settings *s = c->options.settings;
    return has_numbers(c) &&
           (s->amp.enable || (s->clip.max_norm > 0 && s->clip.place != CDDP_CLIP_BEFORE_REDUCTION));
}

static cddp_status keep_gradients(cd_custody *c, const cddp_grad *gradients, cddp_error *err)
{
    for (size_t i = 0; i < c->module->parameter_count; i++) {
        kept_gradient *k = &c->gradients[i];
        k->kind = gradients[i].kind;
        if (k->kind != CDDP_GRAD_UNDEFINED)
            CD_TRY(cd_kept_copy(&k->value, &gradients[i].value, err));
        if (k->kind == CDDP_GRAD_SPARSE) {
            const cddp_tensor rows = cddp_rows_tensor(&gradients[i].rows);
            CD_TRY(cd_kept_copy(&k->rows, &rows, err));
        }
    }
    c->has_gradients = true;
    return CDDP_OK;
}

/* The norm is the judge's (decisions_judge.c): of the gradients that it judged. */
static double clip_factor(const cd_custody *c)
{
    return cd_scaling_clip(c->options.settings->clip.max_norm, c->norm);
}

static bool is_unscaled(const cd_custody *c, size_t parameter, uint32_t step)
{
    const cd_replica *r = c->options.reference->replica;
    for (size_t i = 0; c->options.settings->amp.enable && i < r->optimizer_count; i++) {
        const cd_replica_optimizer *o = &r->optimizers[i];
        for (size_t k = 0; cddp_selector_has(&o->steps, step) && k < o->count; k++) {
            if (o->ordinals[k] == parameter) return true;
        }
    }
    return false;
}

/* What is done to a gradient between its backward and its optimizer. */
typedef struct change {
    double inverse, factor; /* 1: not unscaled, not clipped */
} change;

static cddp_status digest_changed(cd_custody *c, const kept_gradient *k, change by,
                                  uint64_t *digest, cddp_error *err)
{
    CD_TRY(cd_kept_copy(&c->scratch, &k->value.tensor, err));
    const cddp_tensor *t = &c->scratch.tensor;
    const bool clips_first = c->options.settings->clip.place == CDDP_CLIP_BEFORE_UNSCALE;
    if (clips_first && by.factor != 1) CD_TRY(cd_custody_multiply(&c->room, t, by.factor, err));
    if (by.inverse != 1) CD_TRY(cd_custody_multiply(&c->room, t, by.inverse, err));
    if (!clips_first && by.factor != 1) CD_TRY(cd_custody_multiply(&c->room, t, by.factor, err));
    cddp_grad made = {.kind = k->kind, .value = *t};
    if (k->kind == CDDP_GRAD_SPARSE) made.rows = cddp_rows_of(&k->rows.tensor);
    return CD_PASS(cd_gradient_digest(&made, digest, err));
}

static void say_change(change planned, change done, char *words, size_t word_bytes)
{
    if (done.inverse != planned.inverse && done.factor != planned.factor)
        snprintf(words, word_bytes, "is neither unscaled nor clipped as the plan says");
    else if (done.inverse == 1 && planned.inverse != 1)
        snprintf(words, word_bytes, "is not unscaled by the loss scale");
    else if (done.inverse != planned.inverse)
        cd_real_format(words, word_bytes, "is unscaled by the loss scale %.9g instead of %.9g",
                       1 / done.inverse, 1 / planned.inverse);
    else if (done.factor == 1)
        cd_real_format(words, word_bytes, "is not clipped by the clip factor %.9g", planned.factor);
    else
        cd_real_format(words, word_bytes, "is multiplied by the clip factor %.9g instead of %.9g",
                       done.factor, planned.factor);
}

/* Where the rank prepared the gradient otherwise: which decision makes what it has. */
static cddp_status explain_change(cd_custody *c, const kept_gradient *k, change planned,
                                  uint64_t seen, char *words, size_t word_bytes, cddp_error *err)
{
    const cddp_plan_amp *amp = &c->options.settings->amp;
    const double before = c->scale_before > 0 ? 1 / (double)c->scale_before : 1;
    const double inverses[] = {planned.inverse,
                               1,
                               (double)(float)before,
                               planned.inverse * amp->growth_factor,
                               planned.inverse / amp->growth_factor,
                               planned.inverse * amp->backoff_factor,
                               planned.inverse / amp->backoff_factor};
    const double factors[] = {planned.factor, 1,
                              cd_scaling_clip(c->options.settings->clip.max_norm, c->seen_norm),
                              c->factor_before};
    const size_t inverse_count = planned.inverse != 1 ? sizeof inverses / sizeof inverses[0] : 1,
                 factor_count = c->has_norm ? sizeof factors / sizeof factors[0] : 1;
    uint64_t digest = 0;
    for (size_t i = 1; i < inverse_count * factor_count; i++) {
        const change done = {inverses[i % inverse_count], factors[i / inverse_count]};
        CD_TRY(digest_changed(c, k, done, &digest, err));
        if (digest != seen) continue;
        say_change(planned, done, words, word_bytes);
        return CDDP_OK;
    }
    return CDDP_OK;
}

static cddp_status note_overflow(cd_custody *c, const kept_gradient *k, cddp_error *err)
{
    int64_t index = -1;
    CD_TRY(k->value.tensor.device->find_nonfinite(&k->value.tensor, &index, err));
    c->found_nonfinite |= index >= 0;
    return CDDP_OK;
}

/* What the judge saw of it before the clip, where the rank has clipped what it should. */
static cddp_status hold_unclipped(cd_custody *c, size_t i, change planned, cddp_error *err)
{
    const bool clips_first = c->options.settings->clip.place == CDDP_CLIP_BEFORE_UNSCALE;
    const change before = {clips_first ? 1 : planned.inverse, 1};
    uint64_t digest = 0;
    if (!c->has_unclipped) return CDDP_OK;
    CD_TRY(digest_changed(c, &c->gradients[i], before, &digest, err));
    if (digest != c->unclipped[i])
        CD_EMIT(c->options.tracer, misshown, "clips.gradients", .id = (int64_t)i,
                .expected = (int64_t)(digest & CD_SHOWN_DIGEST_BITS),
                .actual = (int64_t)(c->unclipped[i] & CD_SHOWN_DIGEST_BITS),
                .what = CDDP_WHAT_GRADIENT);
    return CDDP_OK;
}

/* By a factor that is NaN every number becomes NaN, whose bits nobody promises. */
static cddp_status is_all_nan(cd_custody *c, const cddp_grad *seen, const kept_gradient *k,
                              bool *is_all, cddp_error *err)
{
    const size_t numel = (size_t)cddp_tensor_numel(&k->value.tensor);
    *is_all = false;
    CD_TRY(cd_numbers_read_gradient(&c->numbers, seen, numel, err));
    for (size_t i = 0; i < c->numbers.count; i++)
        if (!isnan(c->numbers.values[i])) return CDDP_OK;
    *is_all = true;
    return CDDP_OK;
}

/* seen: as the rank has it. */
static cddp_status derive_gradient(cd_custody *c, size_t i, uint32_t step, const cddp_grad *seen,
                                   cddp_error *err)
{
    const kept_gradient *k = &c->gradients[i];
    const bool unscales = is_unscaled(c, i, step);
    const change planned = {unscales ? cd_scaling_get_inverse(&c->scaling) : 1,
                            c->has_norm && is_ever_trained(c, i) ? clip_factor(c) : 1};
    char how[200], words[100] = "";
    derived d = {CDDP_WHAT_GRADIENT, CDDP_MOMENT_BEFORE_STEP, i, c->variables[i], how};
    snprintf(how, sizeof how, "as it was judged, then unscaled and clipped as the plan says");
    if (k->kind == CDDP_GRAD_UNDEFINED) {
        expect(c, &d, 0, false);
        return CDDP_OK;
    }
    uint64_t digest = 0, found = 0;
    if (unscales) CD_TRY(note_overflow(c, k, err));
    CD_TRY(digest_changed(c, k, planned, &digest, err));
    if (seen != NULL && seen->kind == k->kind) {
        bool is_nan = false;
        CD_TRY(cd_gradient_digest(seen, &found, err));
        if (isnan(planned.factor) && found != digest) CD_TRY(is_all_nan(c, seen, k, &is_nan, err));
        digest = is_nan ? found : digest;
        if (found != digest)
            CD_TRY(explain_change(c, k, planned, found, words, sizeof words, err));
        else
            CD_TRY(hold_unclipped(c, i, planned, err));
    }
    if (words[0] != '\0')
        snprintf(how, sizeof how, "as it was judged, then unscaled and clipped; here it %s", words);
    expect(c, &d, digest, true);
    return CDDP_OK;
}

static cddp_status derive_gradients(cd_custody *c, uint32_t step, const cddp_grad *seen,
                                    cddp_error *err)
{
    c->found_nonfinite = false;
    c->has_lost_scale |= !c->has_gradients;
    if (c->options.settings->amp.enable && c->has_lost_scale) return CDDP_OK;
    for (size_t i = 0; c->has_gradients && i < c->module->parameter_count; i++)
        CD_TRY(derive_gradient(c, i, step, seen != NULL ? &seen[i] : NULL, err));
    c->has_updated = c->has_gradients;
    c->factor_before = c->has_norm ? clip_factor(c) : 1;
    c->scale_before = (float)cd_scaling_get(&c->scaling);
    c->has_gradients = c->has_norm = c->has_unclipped = false;
    return CDDP_OK;
}

/* On a device of exact forms a zero has a digest, and no presence. */
static cddp_status derive_zeros(cd_custody *c, const cddp_grad *gradients, cddp_error *err)
{
    const bool is_exact = (c->module->device->flags & CDDP_DEVICE_EXACT) != 0;
    if (!is_exact || c->options.settings->train.zero_grad != CDDP_ZERO_GRAD_ZERO) return CDDP_OK;
    for (size_t i = 0; i < c->module->parameter_count; i++) {
        if (gradients[i].kind != CDDP_GRAD_DENSE) continue;
        CD_TRY(cd_kept_make(&c->scratch, &gradients[i].value, err));
        CD_TRY(c->scratch.tensor.device->fill(&c->scratch.tensor, 0, NULL, err));
        CD_TRY(expect_tensor(c,
                             &(derived){CDDP_WHAT_GRADIENT, CDDP_MOMENT_BEGIN, i, c->variables[i],
                                        "zeros, as the plan asks"},
                             &c->scratch.tensor, err));
    }
    return CDDP_OK;
}

/* ---- parameters and buffers ---- */

static cddp_status keep_parameters(cd_custody *c, const cddp_tensor *parameters, cddp_error *err)
{
    for (size_t i = 0; i < c->module->parameter_count; i++)
        CD_TRY(cd_kept_copy(&c->parameters[i], &parameters[i], err));
    return CDDP_OK;
}

static cddp_status keep_buffers(cd_custody *c, const cddp_tensor *buffers, cddp_error *err)
{
    for (size_t i = 0; i < c->module->buffer_count; i++)
        CD_TRY(cd_kept_copy(&c->buffers[i], &buffers[i], err));
    return CDDP_OK;
}

static cddp_status derive_grid(cd_custody *c, int64_t moment, uint32_t step, cddp_error *err)
{
    if (!c->is_before_grid || !c->options.settings->model.exact || !has_numbers(c)) return CDDP_OK;
    for (size_t i = 0; i < c->module->parameter_count; i++) {
        const cddp_tensor *t = &c->parameters[i].tensor;
        if (is_trained_at(c, i, step) && cddp_dtype_is_float(t->dtype))
            CD_TRY(cd_custody_regrid(&c->room, t, err));
        CD_TRY(expect_tensor(c,
                             &(derived){CDDP_WHAT_PARAMETER, moment, i, c->variables[i],
                                        "what the step left, back on its grid"},
                             t, err));
    }
    c->is_before_grid = false;
    return CDDP_OK;
}

static bool touches_parameters(const cd_custody *c, uint32_t step)
{
    return planned_micro(c, step, (uint32_t)c->options.settings->train.micro_steps - 1)
        .touch_parameters;
}

static cddp_status derive_touches(cd_custody *c, cd_kept *kept, const derived *like, size_t count,
                                  cddp_error *err)
{
    for (size_t i = 0; i < count; i++) {
        derived d = *like;
        d.id = i;
        d.variable = d.what == CDDP_WHAT_PARAMETER ? c->variables[i] : -1;
        if (kept[i].tensor.device == NULL) continue;
        CD_TRY(cd_custody_add(&c->room, &kept[i].tensor, c->options.rank + 1.0, err));
        CD_TRY(expect_tensor(c, &d, &kept[i].tensor, err));
    }
    return CDDP_OK;
}

static cddp_status enter_forward(cd_custody *c, const cd_custody_moment *now, cddp_error *err)
{
    const bool is_first =
        c->touched_step != now->step + 1 || c->touched_micro != now->micro_step + 1;
    c->touched_step = now->step + 1;
    c->touched_micro = now->micro_step + 1;
    if (!is_first || !has_numbers(c) || !planned_micro(c, now->step, now->micro_step).touch_buffers)
        return CDDP_OK;
    return CD_PASS(derive_touches(c, c->buffers,
                                  &(derived){.what = CDDP_WHAT_BUFFER,
                                             .moment = now->moment,
                                             .how = "what was left, and the planned number more"},
                                  c->module->buffer_count, err));
}

/* ---- the model averager ---- */

/* One without a gradient takes no part. */
static uint32_t block_of(const cd_custody *c, const cd_custody_moment *now, size_t parameter)
{
    const bool can_be =
        c->is_there[parameter] && cddp_dtype_is_float(now->parameters[parameter].dtype);
    return can_be ? cd_custody_averager_due(&c->averager, now->step,
                                            c->module->parameters[parameter].name)
                  : 0;
}

static cddp_status sum_functionals(cd_custody *c, const cd_custody_moment *now,
                                   cd_functionals *functionals, cddp_error *err)
{
    *functionals = (cd_functionals){.of = {{.tensors = 0}}};
    for (size_t i = 0; i < c->module->parameter_count; i++) {
        const uint32_t block = block_of(c, now, i);
        if (block != 0) {
            const cd_averaged averaged = {now->step, block, i, &now->parameters[i]};
            CD_TRY(cd_functionals_add(functionals, &c->averager, &averaged, &c->numbers, err));
            if (!c->is_before_average)
                CD_TRY(cd_awaited_average_add(&c->awaited, &averaged, &c->numbers, err));
        }
    }
    return CDDP_OK;
}

/* Before the average; a step that is skipped is averaged all the same. */
static cddp_status leave_update(cd_custody *c, const cd_custody_moment *now, cddp_error *err)
{
    if (!c->has_averager || !has_numbers(c)) return CDDP_OK;
    c->is_before_average = false;
    cd_awaited_average_begin(&c->awaited);
    CD_TRY(sum_functionals(c, now, &c->before_average, err));
    c->is_before_average = true;
    for (size_t i = 0; i < c->module->parameter_count; i++) {
        c->blocks[i] = block_of(c, now, i);
        if (c->blocks[i] != 0) continue;
        CD_TRY(expect_tensor(c,
                             &(derived){CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_AVERAGE, i,
                                        c->variables[i], "this step does not average it"},
                             &now->parameters[i], err));
    }
    return CDDP_OK;
}

void cd_custody_accumulated(cd_custody *custody, size_t parameter, cddp_grad_kind kind)
{
    if (parameter < custody->module->parameter_count && kind != CDDP_GRAD_UNDEFINED)
        custody->is_there[parameter] = true;
}

cddp_status cd_custody_summed(cd_custody *custody, const cd_observed_summed *summed,
                              cddp_error *err)
{
    cd_custody *c = custody;
    size_t at = 0;
    if (!c->is_before_average || !cd_awaited_average_takes(&c->awaited, summed)) return CDDP_OK;
    if (!cd_awaited_average_state(&c->awaited, summed, c->options.tracer)) return CDDP_OK;
    for (size_t i = 0; i < c->module->parameter_count; i++) {
        if (c->blocks[i] == 0) continue;
        const cddp_tensor *like = &c->module->parameters[i].tensor;
        CD_TRY(cd_kept_make(&c->scratch, like, err));
        CD_TRY(cd_numbers_write(&c->numbers, &c->scratch.tensor, summed->result.items + at, err));
        CD_TRY(expect_tensor(c,
                             &(derived){CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_AVERAGE, i,
                                        c->variables[i], "its part of the sum that came back"},
                             &c->scratch.tensor, err));
        at += (size_t)cddp_tensor_numel(like);
    }
    return CDDP_OK;
}

/* The plan leaves one of its backwards half-way: no optimizer steps, and averages are due all the
** same. */
static bool leaves_backward(const cd_custody *c, uint32_t step)
{
    for (uint32_t m = 0; m < c->options.settings->train.micro_steps; m++) {
        const cd_micro micro = planned_micro(c, step, m);
        if (micro.abort_after > 0 && cd_planned_contributes(&micro)) return true;
    }
    return false;
}

/* Without an update the average is of what the step began with. Which of the sums that are seen is
** the averager's, and not one of the backward that was left, is not known. */
static cddp_status leave_begin(cd_custody *c, const cd_custody_moment *now, cddp_error *err)
{
    if (c->is_before_average || c->begun_step != now->step + 1) return CDDP_OK;
    const size_t count = c->module->parameter_count;
    for (size_t i = 0; i < count; i++) c->begun[i] = c->parameters[i].tensor;
    return CD_PASS(leave_update(
        c, &(cd_custody_moment){.step = now->step, .moment = now->moment, .parameters = c->begun},
        err));
}

static cddp_status leave_average(cd_custody *c, const cd_custody_moment *now, cddp_error *err)
{
    cd_functionals after;
    CD_TRY(leave_begin(c, now, err));
    if (!c->is_before_average) return CDDP_OK;
    c->is_before_average = false;
    CD_TRY(sum_functionals(c, now, &after, err));
    cd_functionals_state(&c->before_average, &after, c->options.tracer);
    if (c->awaited.is_open && c->before_average.of[1].tensors > 0)
        CD_EMIT(c->options.tracer, unjudged,
                "of an average of half types the sum is not seen bit for bit here: its bound",
                .link = CDDP_LINK_SUM, .count = 1);
    return CDDP_OK;
}

/* ---- moments ---- */

static cddp_status begin_step(cd_custody *c, const cd_custody_moment *now, cddp_error *err)
{
    c->has_gradients = c->has_norm = c->has_unclipped = false;
    CD_TRY(derive_zeros(c, now->gradients, err));
    return CDDP_OK;
}

static cddp_status put_scaling(const cddp_state_writer *writer, double scale, uint64_t clean,
                               cddp_error *err)
{
    cd_state_out out = {.writer = writer, .who = "loss scaler"};
    CD_TRY(cd_state_put(&out, &scale, sizeof scale, err));
    CD_TRY(cd_state_put(&out, &clean, sizeof clean, err));
    return CD_PASS(cd_state_put_seal(&out, err));
}

/* The scaler's scale and the clean steps since it changed. */
static cddp_status end_scaling(cd_custody *c, const cd_custody_moment *now, cddp_error *err)
{
    const cddp_plan_amp *amp = &c->options.settings->amp;
    const cddp_state_writer writer = cd_blob_writer(&c->scaler);
    if (!amp->enable || !has_numbers(c) || c->has_lost_scale) return CDDP_OK;
    if (c->has_updated) cd_scaling_end_step(&c->scaling, c->found_nonfinite);
    c->has_updated = false;
    const double scale = cd_scaling_get(&c->scaling);
    const uint64_t clean = amp->growth_interval - c->scaling.until_growth;
    cd_blob_clear(&c->scaler);
    CD_TRY(cd_blob_end(&c->scaler, put_scaling(&writer, scale, clean, err), err));
    char how[100];
    cd_real_format(how, sizeof how, "scale %.9g with %llu clean steps, by the policy", scale,
                   (unsigned long long)clean);
    expect(c, &(derived){CDDP_WHAT_SCALER, now->moment, 0, -1, how}, cd_blob_digest(&c->scaler),
           true);
    return CDDP_OK;
}

static cddp_status end_step(cd_custody *c, const cd_custody_moment *now, cddp_error *err)
{
    if (has_numbers(c) && touches_parameters(c, now->step)) {
        CD_TRY(derive_touches(c, c->parameters,
                              &(derived){.what = CDDP_WHAT_PARAMETER,
                                         .moment = now->moment,
                                         .how = "what was left, and the planned number more"},
                              c->module->parameter_count, err));
    }
    c->is_before_grid = true;
    return CD_PASS(end_scaling(c, now, err));
}

/* A moment that is named wrongly shows something else than it should; I-SHOWN says so. */
static bool shows_enough(const cd_custody_moment *now)
{
    switch (now->moment) {
    case CDDP_MOMENT_BEGIN:
        return now->gradients != NULL;
    case CDDP_MOMENT_AFTER_BACKWARD:
        return now->gradients != NULL || now->accumulates;
    case CDDP_MOMENT_AFTER_UPDATE:
    case CDDP_MOMENT_AFTER_AVERAGE:
        return now->parameters != NULL;
    default:
        return true;
    }
}

cddp_status cd_custody_look(cd_custody *custody, const cd_custody_moment *now, cddp_error *err)
{
    cd_custody *c = custody;
    const cddp_plan_settings *s = c->options.settings;
    if (!cd_tracer_wants_digest(c->options.tracer) || !shows_enough(now)) return CDDP_OK;
    for (size_t i = 0; now->gradients != NULL && i < c->module->parameter_count; i++)
        c->is_there[i] = now->gradients[i].kind != CDDP_GRAD_UNDEFINED;
    switch (now->moment) {
    case CDDP_MOMENT_BEGIN:
        CD_TRY(derive_grid(c, now->moment, now->step > 0 ? now->step - 1 : 0, err));
        CD_TRY(begin_step(c, now, err));
        break;
    case CDDP_MOMENT_CHECKPOINT:
    case CDDP_MOMENT_JOIN_END:
    case CDDP_MOMENT_END:
        CD_TRY(derive_grid(c, now->moment, now->step, err));
        break;
    case CDDP_MOMENT_FORWARD:
        CD_TRY(enter_forward(c, now, err));
        break;
    case CDDP_MOMENT_AFTER_BACKWARD:
        if (transforms_gradients(c) && !now->accumulates)
            CD_TRY(keep_gradients(c, now->gradients, err));
        break;
    case CDDP_MOMENT_BEFORE_STEP:
        CD_TRY(derive_gradients(c, now->step, now->gradients, err));
        break;
    case CDDP_MOMENT_AFTER_UPDATE:
        CD_TRY(leave_update(c, now, err));
        break;
    case CDDP_MOMENT_AFTER_AVERAGE:
        CD_TRY(leave_average(c, now, err));
        break;
    case CDDP_MOMENT_AFTER_STEP:
        CD_TRY(end_step(c, now, err));
        break;
    default:
        break;
    }
    const bool is_begun =
        c->has_averager && now->moment == CDDP_MOMENT_BEGIN && leaves_backward(c, now->step);
    const bool needs_parameters = has_numbers(c) && now->parameters != NULL &&
                                  ((s->model.exact && now->moment == CDDP_MOMENT_AFTER_STEP) ||
                                   touches_parameters(c, now->step) || is_begun);
    if (needs_parameters) CD_TRY(keep_parameters(c, now->parameters, err));
    if (is_begun && needs_parameters) c->begun_step = now->step + 1;
    if (has_numbers(c) && now->buffers != NULL) CD_TRY(keep_buffers(c, now->buffers, err));
    return CDDP_OK;
}

/* ---- what the oracle judged ---- */

/* Of a gradient that the wrapper reduces, grad_final says what its reduction left; the rows of a
** sparse one are not in it. */
cddp_status cd_custody_reduced(cd_custody *custody, const cddp_grad *gradients, cddp_error *err)
{
    const cd_custody *c = custody;
    if (!cd_tracer_wants_digest(c->options.tracer)) return CDDP_OK;
    for (size_t i = 0; i < c->module->parameter_count; i++) {
        uint64_t digest = 0;
        if (c->variables[i] >= 0 && gradients[i].kind != CDDP_GRAD_SPARSE) continue;
        CD_TRY(cd_gradient_digest(&gradients[i], &digest, err));
        expect(c,
               &(derived){CDDP_WHAT_GRADIENT, CDDP_MOMENT_AFTER_BACKWARD, i, c->variables[i],
                          "as the oracle saw it after the backward"},
               digest, gradients[i].kind != CDDP_GRAD_UNDEFINED);
    }
    return CDDP_OK;
}

/* This rank's part of an optimizer's entry, as the reference, which has all of it, says. */
static cddp_status part_digest(const cd_optimizer_state *whole, cd_part_range own, uint64_t *digest,
                               cddp_error *err)
{
    const int64_t count = own.end - own.first;
    uint64_t d = count > 0 ? cd_hash_mix(whole->is_present, whole->step) : cd_hash_mix(0, 0);
    for (uint32_t s = 0; count > 0 && s < CD_OPTIMIZER_SLOTS_MAX; s++) {
        const cddp_tensor *t = &whole->slots[s];
        uint64_t slot = 0;
        if (!whole->is_present || t->device == NULL) continue;
        /* a slice is of a contiguous vector; all of it has its own strides */
        const cddp_tensor slice = cddp_tensor_of(t->device, t->storage, t->offset + own.first,
                                                 t->dtype, &count, 1),
                          part = count == cddp_tensor_numel(t) ? *t : slice;
        CD_TRY(t->device->digest(&part, &slot, err));
        d = cd_hash_mix(d, slot);
    }
    *digest = d;
    return CDDP_OK;
}

/* The step counts are in no slot: the digest has them. */
static cddp_status expect_optimizer(const cd_custody *c, size_t optimizer, size_t k,
                                    const derived *at, cddp_error *err)
{
    const cd_replica_optimizer *o = &c->options.reference->replica->optimizers[optimizer];
    const uint32_t ordinal = o->ordinals[k];
    const derived d = {at->what, at->moment, at->id, c->variables[ordinal], at->how};
    const cd_part *part = cd_oracle_get_part(c->options.oracle, ordinal);
    const int64_t numel = cddp_tensor_numel(&c->module->parameters[ordinal].tensor);
    uint64_t digest = 0;
    if (part->share != 0 && numel == 0) return CDDP_OK; /* nobody's, or anybody's */
    if (part->share == 0) {
        CD_TRY(cd_optimizer_state_digest(o->optimizer, k, &digest, err));
    } else {
        cd_optimizer_state state;
        cd_optimizer_get_state(o->optimizer, k, &state);
        /* the oracle counts the two parts of a complex number */
        const int64_t lanes = c->module->parameters[ordinal].tensor.dtype == CDDP_C64 ? 2 : 1;
        cd_part_range own = cd_part_get(part, numel * lanes, c->options.rank);
        own = (cd_part_range){own.first / lanes, own.end / lanes};
        CD_TRY(part_digest(&state, own, &digest, err));
    }
    expect(c, &d, digest, true);
    return CDDP_OK;
}

static cddp_status expect_optimizers(const cd_custody *c, int64_t moment, const char *how,
                                     cddp_error *err)
{
    const cd_replica *r = c->options.reference->replica;
    derived d = {.what = CDDP_WHAT_OPTIMIZER, .moment = moment, .how = how};
    for (size_t i = 0; i < r->optimizer_count; i++) {
        for (size_t k = 0; k < r->optimizers[i].count; k++, d.id++)
            CD_TRY(expect_optimizer(c, i, k, &d, err));
    }
    return CDDP_OK;
}

cddp_status cd_custody_resumed(cd_custody *c, cddp_error *err)
{
    if (!cd_tracer_wants_digest(c->options.tracer)) return CDDP_OK;
    return CD_PASS(
        expect_optimizers(c, CDDP_MOMENT_RESUME,
                          "the elements that this rank has now, as the reference has them", err));
}

cddp_status cd_custody_updated(cd_custody *custody, const cddp_tensor *parameters, cddp_error *err)
{
    const cd_custody *c = custody;
    if (!cd_tracer_wants_digest(c->options.tracer)) return CDDP_OK;
    for (size_t i = 0; i < c->module->parameter_count; i++) {
        CD_TRY(expect_tensor(c,
                             &(derived){CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_UPDATE, i,
                                        c->variables[i], "as the oracle saw it after the update"},
                             &parameters[i], err));
    }
    return CD_PASS(expect_optimizers(c, CDDP_MOMENT_AFTER_UPDATE,
                                     "slots and step count as the reference has them", err));
}

cddp_status cd_custody_clips(cd_custody *custody, const cd_observed_gradients *shown,
                             cddp_error *err)
{
    cd_custody *c = custody;
    if (!c->has_gradients || shown->count != c->module->parameter_count) return CDDP_OK;
    for (size_t i = 0; i < shown->count; i++)
        CD_TRY(cd_gradient_digest(&shown->items[i], &c->unclipped[i], err));
    c->has_unclipped = true;
    return CDDP_OK;
}

void cd_custody_note_norm(cd_custody *custody, double norm, double seen)
{
    custody->norm = norm;
    custody->seen_norm = seen;
    custody->has_norm = true;
}

/* ---- life ---- */

static cddp_status fill_in(cd_custody *c, cddp_error *err)
{
    const size_t parameters = c->module->parameter_count, buffers = c->module->buffer_count;
    c->variables = cd_arena_array(&c->memory, parameters + 1, sizeof *c->variables);
    c->parameters = cd_arena_array(&c->memory, parameters + 1, sizeof *c->parameters);
    c->gradients = cd_arena_array(&c->memory, parameters + 1, sizeof *c->gradients);
    c->unclipped = cd_arena_array(&c->memory, parameters + 1, sizeof *c->unclipped);
    c->buffers = cd_arena_array(&c->memory, buffers + 1, sizeof *c->buffers);
    c->is_there = cd_arena_array(&c->memory, parameters + 1, sizeof *c->is_there);
    c->blocks = cd_arena_array(&c->memory, parameters + 1, sizeof *c->blocks);
    c->begun = cd_arena_array(&c->memory, parameters + 1, sizeof *c->begun);
    CD_TRY(cd_arena_check(&c->memory, err, "the custody of rank %u", c->options.rank));
    memcpy(c->variables, c->options.variables, parameters * sizeof *c->variables);
    c->options.variables = c->variables;
    return CDDP_OK;
}

cddp_status cd_custody_create(const cd_custody_options *options, cd_custody **custody,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena memory;
    cd_arena_init(&memory, options->allocator, MEMORY_BLOCK_BYTES);
    cd_custody *c = cd_arena_push(&memory, sizeof *c);
    CD_TRY(cd_arena_check(&memory, err, "the custody of rank %u", options->rank));
    c->memory = memory;
    c->options = *options;
    c->module = options->reference->replica->model->module;
    c->room.allocator = c->awaited.allocator = options->allocator;
    c->scaler.allocator = options->allocator;
    cd_scaling_init(&c->scaling, &options->settings->amp);
    c->factor_before = 1;
    c->numbers.allocator = options->allocator;
    c->numbers.has_lanes = true;
    c->has_averager =
        cd_custody_averager_read(&c->averager, options->plan, options->settings, options->rank);
    CD_TRY_OUT(fill_in(c, err));
    *custody = c;
    c = NULL;
out:
    cd_custody_destroy(c);
    return status;
}

void cd_custody_destroy(cd_custody *c)
{
    if (c == NULL) return;
    const bool has_parameters = c->parameters != NULL && c->gradients != NULL;
    for (size_t i = 0; has_parameters && i < c->module->parameter_count; i++) {
        cd_kept_fini(&c->parameters[i]);
        cd_kept_fini(&c->gradients[i].value);
        cd_kept_fini(&c->gradients[i].rows);
    }
    for (size_t i = 0; c->buffers != NULL && i < c->module->buffer_count; i++)
        cd_kept_fini(&c->buffers[i]);
    cd_kept_fini(&c->scratch);
    cd_awaited_average_fini(&c->awaited);
    cd_custody_room_fini(&c->room);
    cd_numbers_fini(&c->numbers);
    cd_blob_fini(&c->scaler);
    cd_arena_fini(&c->memory);
}
