/* SPDX-License-Identifier: Apache-2.0 */
/* Contradictions in what a plan says of the update: optimizers and when they step, their parts,
** clipping, averaging.
**
** Not here: the gradients that they step on (plan_check.c).
*/
#include "core/plan/plan_check.h"

#include "core/plan/zero.h"

#include <string.h>

static void check_periods(cd_contradictions *c, const cddp_plan_averager *a)
{
    char pattern[CD_PLAN_PATTERN_BYTES];
    uint64_t period = 0;
    if (a->periods.count > 0 && a->kind == CDDP_AVERAGER_HIERARCHICAL) {
        cd_plan_contradict(c, "averager.periods",
                           "averager.periods: a hierarchical averager's levels are of all "
                           "parameters: averager.kind = \"periodic\"");
    }
    for (size_t i = 0; i < a->periods.count; i++) {
        if (!cd_plan_read_period(a->periods.items[i], pattern, &period)) {
            cd_plan_contradict(c, "averager.periods",
                               "averager.periods: '%s' is not pattern=period, such as \"head.*=2\"",
                               a->periods.items[i]);
        }
    }
}

static void check_averager(cd_contradictions *c, const cddp_plan_settings *s)
{
    const cddp_plan_averager *a = &s->averager;
    cd_plan_level levels[CD_PLAN_LEVELS_MAX];
    const uint32_t count = a->levels != NULL ? cd_plan_read_levels(a->levels, levels) : 0;
    if (a->kind == CDDP_AVERAGER_NONE) {
        if (a->levels != NULL || a->warmup_steps > 0 || a->periods.count > 0) {
            cd_plan_contradict(c, "averager.kind",
                               "averager.%s has no effect without averager.kind",
                               a->levels != NULL     ? "levels"
                               : a->warmup_steps > 0 ? "warmup_steps"
                                                     : "periods");
        }
        return;
    }
    check_periods(c, a);
    if (a->levels == NULL) {
        cd_plan_contradict(
            c, "averager.levels",
            "averager.kind needs averager.levels: after how many steps is the model averaged?");
    } else if (count == 0) {
        cd_plan_contradict(c, "averager.levels",
                           "averager.levels = \"%s\" is not period:ranks/…/period with growing "
                           "periods and blocks that do not shrink, each made of whole smaller ones",
                           a->levels);
    } else if (a->kind == CDDP_AVERAGER_PERIODIC && count > 1) {
        cd_plan_contradict(c, "averager.levels",
                           "averager.levels has %u levels, but a periodic averager has one: "
                           "averager.kind = \"hierarchical\"",
                           count);
    }
    if (s->join.enable) {
        cd_plan_contradict(c, "averager.kind",
                           "averager.kind with join.enable: a rank that has run out of inputs "
                           "takes no steps, and would be missing from the average");
    }
    if (s->model.device != CDDP_MODEL_DEVICE_CPU || s->streams.producers > 0) {
        cd_plan_contradict(c, "averager.kind",
                           "averager.kind averages numbers on the host: drop %s",
                           s->model.device != CDDP_MODEL_DEVICE_CPU ? "model.device"
                                                                    : "streams.producers");
    }
    for (size_t i = 0; i < c->plan->optimizer_count; i++) {
        if (c->plan->optimizers[i].in_backward) {
            cd_plan_contradict(c, "averager.kind",
                               "averager.kind averages what has a gradient (AVG-02), and "
                               "optimizer.in_backward leaves none");
        }
    }
}

static bool has_sharded_optimizer(const cddp_plan *plan)
{
    for (size_t i = 0; i < cd_plan_optimizer_count(plan); i++) {
        if (cd_zero_get_shard(plan, i) != CDDP_SHARD_NONE) return true;
    }
    return false;
}

static void check_clip_group(cd_contradictions *c, const cddp_plan_clip *clip, const char *group)
{
    const bool is_own = strcmp(group, "own") == 0;
    if (clip->max_norm <= 0)
        cd_plan_contradict(c, "clip.group", "clip.group has no effect without clip.max_norm");
    if (clip->place == CDDP_CLIP_BEFORE_REDUCTION) {
        cd_plan_contradict(c, "clip.group",
                           "clip.group with clip.place = \"before_reduction\": each gradient is "
                           "clipped by itself, as soon as it is there");
    }
    if (is_own && !has_sharded_optimizer(c->plan)) {
        cd_plan_contradict(c, "clip.group",
                           "clip.group = \"own\" has no effect without optimizer.shard: every rank "
                           "steps everything");
    }
    if (!is_own && strcmp(group, "world") != 0 && cd_plan_find_group(c->plan, group) == NULL) {
        cd_plan_contradict(c, "clip.group", "clip.group = \"%s\", but no [[group]] is called so",
                           group);
    }
    if (cd_plan_has_streams(c->plan)) {
        cd_plan_contradict(c, "clip.group",
                           "clip.group adds what the host has computed: drop streams.producers");
    }
}

/* Also what single ranks set. */
static void check_clip_groups(cd_contradictions *c)
{
    const cddp_plan_clip *clip = &c->plan->settings.clip;
    if (clip->group != NULL) check_clip_group(c, clip, clip->group);
    for (size_t i = 0; i < c->plan->override_count; i++) {
        const char *group = NULL;
        if (strcmp(c->plan->overrides[i].key, "clip.group") == 0)
            memcpy(&group, c->plan->overrides[i].parsed, sizeof group);
        if (group != NULL) check_clip_group(c, clip, group);
    }
}

/* An optimizer inside the backward cannot wait for something that is known only after it. */
static bool steps_in_backward(const cddp_plan_optimizer *optimizer)
{
    return optimizer->in_backward || optimizer->overlap != CDDP_PLAN_OVERLAP_NONE;
}

/* Each is held against the first alone: where several ways are there, one behind it differs. */
static bool steps_in_another_way(const cddp_plan *plan, const cddp_plan_optimizer *optimizer)
{
    for (size_t i = 0; i < plan->optimizer_count; i++)
        if (steps_in_backward(&plan->optimizers[i]))
            return plan->optimizers[i].overlap != optimizer->overlap;
    return false;
}

static void check_left_backwards(cd_contradictions *c, const char *key)
{
    for (size_t i = 0; c->plan->settings.train.micro_steps > 1 && i < c->plan->when_count; i++) {
        const int64_t abort_after = c->plan->whens[i].abort_after;
        if (abort_after == CDDP_PLAN_UNSET || abort_after == 0) continue;
        cd_plan_contradict(c, "when.abort_after",
                           "%s steps in the backward: when.abort_after with train.micro_steps "
                           "gives up a step that a later micro-step takes",
                           key);
        break;
    }
}

static void check_optimizer_in_backward(cd_contradictions *c, const cddp_plan_optimizer *optimizer)
{
    const cddp_plan_settings *s = &c->plan->settings;
    const char *key = optimizer->overlap != CDDP_PLAN_OVERLAP_NONE ? "optimizer.overlap"
                                                                   : "optimizer.in_backward";
    if (optimizer->in_backward && optimizer->overlap != CDDP_PLAN_OVERLAP_NONE) {
        cd_plan_contradict(c, key,
                           "optimizer.in_backward and optimizer.overlap are two ways to step in "
                           "backward: drop one");
    }
    if (steps_in_another_way(c->plan, optimizer)) {
        cd_plan_contradict(c, key,
                           "all optimizers that step in backward do it in the same way: only "
                           "one can be attached");
    }
    if (optimizer->steps.term_count > 0) {
        cd_plan_contradict(
            c, key, "%s steps whenever a bucket is averaged: optimizer.steps cannot hold it back",
            key);
    }
    if (s->mixed_precision.param_dtype != CDDP_PARAM_DTYPE_NONE ||
        s->mixed_precision.reduce_dtype != CDDP_REDUCE_DTYPE_NONE) {
        cd_plan_contradict(
            c, key,
            "%s and mixed_precision both take the place behind the reduction: drop one (MIX-05)",
            key);
    }
    for (size_t i = 0; i < c->plan->when_count; i++) {
        if (c->plan->whens[i].skip != CDDP_SKIP_STEP) continue;
        cd_plan_contradict(c, "when.skip",
                           "%s steps in the backward: when.skip = \"step\" leaves nothing out",
                           key);
        break;
    }
    check_left_backwards(c, key);
    if (s->amp.enable || s->clip.max_norm > 0) {
        cd_plan_contradict(c, key, "%s steps before gradients can be %s: drop %s", key,
                           s->amp.enable ? "unscaled" : "clipped",
                           s->amp.enable ? "amp.enable" : "clip.max_norm");
    }
}

/* OIB-03: the allreduce hook is its own, and every backward is a step. */
static void check_hook_then_optimizer(cd_contradictions *c)
{
    const cddp_plan_settings *s = &c->plan->settings;
    if (s->train.micro_steps > 1) {
        cd_plan_contradict(c, "optimizer.overlap",
                           "hook_then_optimizer steps in every backward: train.micro_steps cannot "
                           "accumulate (OIB-03)");
    }
    if (s->hook.name != NULL || s->hook.comm_hook != CDDP_COMM_HOOK_NO ||
        s->ddp.comm_hook != NULL) {
        cd_plan_contradict(c, "optimizer.overlap",
                           "hook_then_optimizer takes the comm-hook slot with its own all-reduce: "
                           "drop the comm hook (OIB-03)");
    }
}

/* ZRO-11 counts backwards: what leaves some out would have to be counted, too. */
static const char *uncounted_backward(const cddp_plan *plan)
{
    for (size_t i = 0; i < plan->when_count; i++) {
        const cddp_plan_when *w = &plan->whens[i];
        const char *key = w->skip != CDDP_PLAN_UNSET          ? "when.skip"
                          : w->abort_after != CDDP_PLAN_UNSET ? "when.abort_after"
                          : w->early_step != CDDP_PLAN_UNSET  ? "when.early_step"
                          : w->stop != CDDP_PLAN_UNSET        ? "when.stop"
                          : w->bypass != CDDP_PLAN_UNSET      ? "when.bypass"
                          : w->grad_mode != CDDP_PLAN_UNSET   ? "when.grad_mode"
                                                              : NULL;
        if (key != NULL) return key;
    }
    return NULL;
}

static void check_zero_step(cd_contradictions *c, const cddp_plan_optimizer *optimizer)
{
    const cddp_plan_settings *s = &c->plan->settings;
    const char *key = "optimizer.overlap", *uncounted = uncounted_backward(c->plan);
    if (c->plan->optimizer_count > 1 || optimizer->parameters.count > 0) {
        cd_plan_contradict(c, key,
                           "hook_with_zero_step steps whole buckets: it is the only optimizer, and "
                           "owns all parameters (ZRO-10)");
    }
    if (s->ddp.find_unused_parameters && !s->ddp.static_graph) {
        cd_plan_contradict(
            c, key,
            "hook_with_zero_step waits for the rebuild, and ddp.find_unused_parameters never "
            "rebuilds: it would never update anything (ZRO-11)");
    }
    if (s->train.resume) {
        cd_plan_contradict(
            c, key,
            "hook_with_zero_step with train.resume: a wrapper that is made anew leaves out its "
            "first updates again (ZRO-11), so no resumed training is the uninterrupted one");
    }
    if (uncounted != NULL) {
        cd_plan_contradict(
            c, key, "hook_with_zero_step counts backwards until it updates (ZRO-11): drop %s",
            uncounted);
    }
    if (s->join.enable) {
        cd_plan_contradict(c, key,
                           "hook_with_zero_step with join.enable: no rank would step the "
                           "parameters of a joined rank (ZRO-09)");
    }
    if (s->averager.kind != CDDP_AVERAGER_NONE) {
        cd_plan_contradict(c, key,
                           "hook_with_zero_step with averager.kind: what a rank broadcasts is its "
                           "own model, and there would be nothing left to average");
    }
    if (s->model.device != CDDP_MODEL_DEVICE_CPU) {
        cd_plan_contradict(
            c, key, "hook_with_zero_step is judged by numbers: it needs model.device = \"cpu\"");
    }
    if (cd_plan_has_streams(c->plan)) {
        cd_plan_contradict(
            c, key, "hook_with_zero_step sends what the host has stepped: drop streams.producers");
    }
}

static void check_overlap(cd_contradictions *c, const cddp_plan_optimizer *optimizer)
{
    if (optimizer->overlap == CDDP_PLAN_OVERLAP_HOOK_THEN_OPTIMIZER)
        check_hook_then_optimizer(c);
    else if (optimizer->overlap > 1)
        check_zero_step(c, optimizer);
    if (optimizer->shard_buckets && optimizer->overlap < 2) {
        cd_plan_contradict(c, "optimizer.shard_buckets",
                           "optimizer.shard_buckets has no effect without optimizer.overlap = "
                           "\"hook_with_zero_step\"");
    }
}

/* Parts of an optimizer are stepped at the same time and exchanged then. */
static void check_sharded_optimizer(cd_contradictions *c, const cddp_plan_optimizer *optimizer)
{
    const cddp_plan_settings *s = &c->plan->settings;
    if (optimizer->in_backward || optimizer->overlap != CDDP_PLAN_OVERLAP_NONE) {
        cd_plan_contradict(c, "optimizer.shard",
                           "optimizer.shard exchanges what all ranks stepped, optimizer.%s steps "
                           "bucket by bucket: drop one",
                           optimizer->in_backward ? "in_backward" : "overlap");
    }
    if (s->join.enable) {
        cd_plan_contradict(c, "optimizer.shard",
                           "optimizer.shard with join.enable: a rank that has run out of inputs "
                           "takes no steps, and nobody else steps its part (ZRO-09)");
    }
    if (s->averager.kind != CDDP_AVERAGER_NONE) {
        cd_plan_contradict(c, "optimizer.shard",
                           "optimizer.shard with averager.kind: what a rank broadcasts is its own "
                           "model, and there would be nothing left to average");
    }
    if (s->model.device != CDDP_MODEL_DEVICE_CPU) {
        cd_plan_contradict(c, "optimizer.shard",
                           "optimizer.shard is judged by numbers: it needs model.device = \"cpu\"");
    }
    if (cd_plan_has_streams(c->plan)) {
        cd_plan_contradict(
            c, "optimizer.shard",
            "optimizer.shard exchanges what the host has stepped: drop streams.producers");
    }
}

/* How each rank finds its part of a sharded optimizer. */
static void check_shard(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    const char *order = plan->settings.shard.order != CDDP_SHARD_ORDER_SIZE ? "shard.order" : NULL,
               *padding = plan->settings.shard.padding != CDDP_SHARD_PADDING_COUNTED
                              ? "shard.padding"
                              : NULL;
    bool has_whole = false, has_flat = false;
    for (size_t i = 0; i < cd_plan_optimizer_count(plan); i++) {
        const int64_t shard = cd_zero_get_shard(plan, i);
        has_whole |= shard == CDDP_SHARD_PARAMETERS;
        has_flat |= shard == CDDP_SHARD_FLAT;
    }
    for (size_t i = 0; i < plan->override_count; i++) {
        order = strcmp(plan->overrides[i].key, "shard.order") == 0 ? "shard.order" : order;
        padding = strcmp(plan->overrides[i].key, "shard.padding") == 0 ? "shard.padding" : padding;
    }
    if (order != NULL && !has_whole) {
        cd_plan_contradict(c, order,
                           "shard.order has no effect without optimizer.shard = \"parameters\"");
    }
    if (padding != NULL && !has_flat) {
        cd_plan_contradict(c, padding,
                           "shard.padding has no effect without optimizer.shard = \"flat\"");
    }
}

static void check_optimizer(cd_contradictions *c, const cddp_plan_optimizer *optimizer)
{
    if (optimizer->shard != CDDP_SHARD_NONE || c->plan->zero.stage == 1)
        check_sharded_optimizer(c, optimizer);
    const cddp_plan_settings *s = &c->plan->settings;
    const bool keeps_state = optimizer->kind != CDDP_OPTIMIZER_SGD || optimizer->momentum > 0;
    if (optimizer->steps.term_count > 0 && s->amp.enable && s->clip.max_norm > 0 &&
        s->clip.place == CDDP_CLIP_AFTER_REDUCTION) {
        cd_plan_contradict(c, "clip.max_norm",
                           "clip.max_norm with amp.enable and optimizer.steps: gradients of an "
                           "optimizer that is not due stay scaled, and would enter the norm");
    }
    if (steps_in_backward(optimizer)) check_optimizer_in_backward(c, optimizer);
    check_overlap(c, optimizer);
    cd_plan_check_selector(c, "optimizer.steps", &optimizer->steps, c->plan->settings.train.steps,
                           "train.steps");
    if (optimizer->kind != CDDP_OPTIMIZER_SGD && (optimizer->momentum > 0 || optimizer->nesterov)) {
        cd_plan_contradict(c, "optimizer.momentum",
                           "optimizer.momentum and optimizer.nesterov belong to sgd");
    }
    if (optimizer->nesterov && optimizer->momentum <= 0)
        cd_plan_contradict(c, "optimizer.nesterov", "optimizer.nesterov needs optimizer.momentum");
    if (keeps_state && c->plan->settings.model.device == CDDP_MODEL_DEVICE_SYMBOL) {
        cd_plan_contradict(c, "optimizer.kind",
                           "model.device = \"symbol\" proves the way to the optimizer: an "
                           "optimizer that keeps state needs cpu");
    }
    if (optimizer->kind != CDDP_OPTIMIZER_SGD && c->plan->settings.join.broadcast_optimizer_state) {
        cd_plan_contradict(c, "join.broadcast_optimizer_state",
                           "join.broadcast_optimizer_state carries tensors: the step counts of %s "
                           "would still differ; use sgd",
                           optimizer->kind == CDDP_OPTIMIZER_ADAM    ? "adam"
                           : optimizer->kind == CDDP_OPTIMIZER_ADAMW ? "adamw"
                                                                     : "adagrad");
    }
}

/* What single ranks change: the optimizer that the first of them then has. */
static void check_own_optimizers(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    for (size_t k = 0; k < plan->override_count; k++) {
        const cddp_plan_override *o = &plan->overrides[k];
        uint32_t rank = 0;
        if (strncmp(o->key, "optimizer.", 10) != 0) continue;
        while (rank < plan->world.size && !cddp_selector_has(&o->ranks, rank)) rank++;
        if (o->element >= (int64_t)cd_plan_optimizer_count(plan)) {
            cd_plan_contradict(c, o->key,
                               "%s of [[optimizer]] number %lld for some ranks: there %s %zu",
                               o->key, (long long)o->element,
                               plan->optimizer_count == 1 ? "is" : "are", plan->optimizer_count);
            continue;
        }
        for (size_t i = 0; rank < plan->world.size && i < cd_plan_optimizer_count(plan); i++) {
            const cddp_plan_optimizer own = cd_plan_optimizer_of(plan, rank, i);
            if (o->element == CD_PLAN_ALL_ELEMENTS || o->element == (int64_t)i)
                check_optimizer(c, &own);
        }
    }
}

void cd_plan_check_update(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    check_own_optimizers(c);
    check_averager(c, &plan->settings);
    check_shard(c);
    check_clip_groups(c);
    if (plan->optimizer_count == 0 && plan->zero.stage == 1) {
        const cddp_plan_optimizer own = cd_plan_optimizer_of(plan, 0, 0);
        check_sharded_optimizer(c, &own);
    }
    for (size_t i = 0; i < plan->optimizer_count; i++) {
        cd_plan_enter_table(c, "optimizer", i);
        check_optimizer(c, &plan->optimizers[i]);
    }
}
