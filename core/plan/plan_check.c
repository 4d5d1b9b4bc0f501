/* SPDX-License-Identifier: Apache-2.0 */
/* Contradictions: settings that cannot mean anything together. Each rule names both sides.
**
** A wrong program is not a contradiction: a static graph whose use changes, a rank that skips its
** backward and a mismatched option are what scenarios are for. Refused is only what would silently
** have no effect, or what has no meaning at all.
**
** Here: settings of the training, and what changes and is expected in it. What updates parameters:
** plan_check_update.c. The ranks among themselves: plan_check_world.c.
*/
#include "core/plan/plan_check.h"

#include "core/base/error.h"
#include "core/base/format.h"
#include "core/plan/chosen_hook.h"
#include "core/plan/own_messages.h"
#include "core/plan/zero.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void cd_plan_contradict(cd_contradictions *c, const char *key, const char *format, ...)
{
    char message[384], place[96];
    const size_t length = c->table != NULL ? strlen(c->table) : 0;
    if (length > 0 && strncmp(key, c->table, length) == 0 && key[length] == '.') {
        snprintf(place, sizeof place, "%s[%zu]%s", c->table, c->index, key + length);
        key = place;
    }
    va_list args;
    va_start(args, format);
    cd_vformat(message, sizeof message, format, args);
    va_end(args);
    c->count++;
    if (c->report != NULL) c->report(c->context, key, message);
}

void cd_plan_enter_table(cd_contradictions *c, const char *table, size_t index)
{
    c->table = table;
    c->index = index;
}

/* Does any number below the limit belong to it? */
static bool selector_is_possible(const cddp_selector *selector, uint64_t limit)
{
    for (uint32_t i = 0; i < selector->term_count; i++) {
        const uint64_t first = selector->terms[i].modulus != 0 ? selector->terms[i].remainder
                                                               : selector->terms[i].first;
        if (first < limit) return true;
    }
    return selector->term_count == 0;
}

void cd_plan_check_selector(cd_contradictions *c, const char *key, const cddp_selector *selector,
                            uint64_t limit, const char *limit_key)
{
    if (!selector_is_possible(selector, limit)) {
        char text[CD_SELECTOR_TEXT_BYTES];
        cd_selector_print(selector, text, sizeof text);
        cd_plan_contradict(c, key, "%s = %s selects nothing: %s is %llu", key, text, limit_key,
                           (unsigned long long)limit);
    }
}

const cddp_plan_group *cd_plan_find_group(const cddp_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->group_count; i++) {
        if (plan->groups[i].name != NULL && strcmp(plan->groups[i].name, name) == 0)
            return &plan->groups[i];
    }
    return NULL;
}

void cd_plan_check_settings(cd_contradictions *c)
{
    const cddp_plan_settings *s = &c->plan->settings;
    const cddp_plan_ddp *ddp = &s->ddp;
    if (ddp->skip_all_reduce_unused_params && !ddp->find_unused_parameters && !ddp->static_graph) {
        cd_plan_contradict(c, "ddp.skip_all_reduce_unused_params",
                           "ddp.skip_all_reduce_unused_params needs ddp.find_unused_parameters or "
                           "ddp.static_graph to know what is unused");
    }
    if (ddp->bucket_cap_mb > 0 && ddp->bucket_cap_mb_list.count > 0) {
        cd_plan_contradict(
            c, "ddp.bucket_cap_mb",
            "ddp.bucket_cap_mb has no effect beside ddp.bucket_cap_mb_list: give one of them");
    }
    if (ddp->average_contributions && !ddp->accumulate_in_hook) {
        cd_plan_contradict(
            c, "ddp.average_contributions",
            "ddp.average_contributions has no effect without ddp.accumulate_in_hook");
    }
    if (ddp->accumulate_in_hook && s->train.zero_grad == CDDP_ZERO_GRAD_KEEP) {
        cd_plan_contradict(c, "ddp.accumulate_in_hook",
                           "ddp.accumulate_in_hook with train.zero_grad = \"keep\": what is kept "
                           "in .grad would be added again");
    }
    if (ddp->comm_hook != NULL && ddp->comm_hook[0] == ':') {
        cd_plan_contradict(c, "ddp.comm_hook",
                           "ddp.comm_hook = '%s' has options but no name: write NAME:key=value",
                           ddp->comm_hook);
    }
    if (ddp->comm_hook != NULL && strncmp(ddp->comm_hook, "no:", 3) == 0) {
        cd_plan_contradict(c, "ddp.comm_hook", "ddp.comm_hook = '%s' gives options to no hook",
                           ddp->comm_hook);
    }
    if (s->hook.name == NULL && (s->hook.options != NULL || s->hook.inner != NULL)) {
        cd_plan_contradict(c, "hook.name", "hook.%s is given but no hook.name",
                           s->hook.options != NULL ? "options" : "inner");
    }
    if (s->hook.name != NULL &&
        (s->hook.comm_hook != CDDP_COMM_HOOK_NO || s->hook.comm_wrapper != CDDP_COMM_WRAPPER_NO)) {
        cd_plan_contradict(c, "hook.comm_hook",
                           "hook.name and hook.comm_hook both choose the hook: give one of them");
    }
    cd_chosen_hook chosen;
    cd_choose_hook(s, &chosen);
    if (s->hook.continuations != CDDP_CONTINUATIONS_ROUNDS && chosen.name == NULL) {
        cd_plan_contradict(c, "hook.continuations",
                           "hook.continuations has no effect without a hook: an all-reduce alone "
                           "is not continued");
    }
    if (s->hook.comm_state_option != NULL && s->hook.comm_hook < 3) {
        cd_plan_contradict(c, "hook.comm_state_option",
                           "hook.comm_state_option belongs to hook.comm_hook = \"power_sgd\" or "
                           "\"batched_power_sgd\" (ACC-03)");
    }
    if (s->train.checkpoint_step > s->train.steps) {
        cd_plan_contradict(c, "train.checkpoint_step",
                           "train.checkpoint_step = %llu lies behind train.steps = %llu",
                           (unsigned long long)s->train.checkpoint_step,
                           (unsigned long long)s->train.steps);
    }
    if (s->train.checkpoint_step > 0 && s->model.device != CDDP_MODEL_DEVICE_CPU) {
        cd_plan_contradict(c, "train.checkpoint_step",
                           "train.checkpoint_step needs model.device = \"cpu\": other devices hold "
                           "no numbers to save");
    }
    if (s->train.resume && s->train.checkpoint_step == 0) {
        cd_plan_contradict(c, "train.resume",
                           "train.resume needs train.checkpoint_step: there is nothing to load");
    }
    if (s->train.resume && s->join.enable) {
        cd_plan_contradict(c, "train.resume",
                           "train.resume with join.enable: a rank that has run out of inputs "
                           "cannot take part in the first broadcast of the new wrapper");
    }
    if (!s->join.enable &&
        (!s->join.divide_by_initial_world_size || s->join.throw_on_early_termination ||
         s->join.broadcast_optimizer_state)) {
        cd_plan_contradict(c, "join.enable",
                           "settings of [join] have no effect without join.enable = true");
    }
    if (s->join.epochs > 1 && !s->join.enable) {
        cd_plan_contradict(c, "join.epochs",
                           "join.epochs has no effect without join.enable = true: steps without "
                           "join contexts are not cut");
    }
    if (s->train.steps % s->join.epochs != 0) {
        cd_plan_contradict(c, "join.epochs",
                           "train.steps = %llu cannot be cut into join.epochs = %llu of equal "
                           "length",
                           (unsigned long long)s->train.steps, (unsigned long long)s->join.epochs);
    }
    if (s->clip.norm_type != 2 && s->clip.max_norm <= 0)
        cd_plan_contradict(c, "clip.norm_type",
                           "clip.norm_type has no effect without clip.max_norm");
    if (s->clip.norm_type > 16 && !isinf(s->clip.norm_type))
        cd_plan_contradict(c, "clip.norm_type",
                           "clip.norm_type is %g: powers of small gradients vanish beyond 16; "
                           "1 to 16, or inf",
                           s->clip.norm_type);
    if (s->clip.norm_type != 2 && s->clip.place == CDDP_CLIP_BEFORE_REDUCTION)
        cd_plan_contradict(c, "clip.norm_type",
                           "clip.norm_type with clip.place = \"before_reduction\": that mistake "
                           "clips each gradient by its own 2-norm");
    if (s->clip.place != CDDP_CLIP_AFTER_REDUCTION && s->clip.max_norm <= 0)
        cd_plan_contradict(c, "clip.place", "clip.place has no effect without clip.max_norm");
    if (s->clip.place == CDDP_CLIP_BEFORE_UNSCALE && !s->amp.enable) {
        cd_plan_contradict(
            c, "clip.place",
            "clip.place = \"before_unscale\" needs amp.enable: there is nothing to unscale");
    }
    if (s->model.dtype == CDDP_F64 && s->mixed_precision.param_dtype > 0) {
        cd_plan_contradict(c, "mixed_precision.param_dtype",
                           "model.dtype = \"f64\" computes in f64: mixed_precision.param_dtype "
                           "casts to what computes in f32");
    }
    if (s->train.objective != CDDP_OBJECTIVE_AS_WRITTEN && s->train.loss == CDDP_LOSS_DYADIC) {
        cd_plan_contradict(c, "train.objective",
                           "train.objective compares with a normalised loss: train.loss = "
                           "\"dyadic\" gives samples other weights");
    }
    if (s->train.objective != CDDP_OBJECTIVE_AS_WRITTEN && s->join.enable) {
        cd_plan_contradict(c, "train.objective",
                           "train.objective counts over all ranks, join.enable lets them run out "
                           "of inputs: drop one");
    }
    if (s->model.device == CDDP_MODEL_DEVICE_SYMBOL &&
        s->mixed_precision.param_dtype + s->mixed_precision.reduce_dtype > 0) {
        cd_plan_contradict(
            c, "mixed_precision.param_dtype",
            "model.device = \"symbol\" is exact: casts of [mixed_precision] need cpu or shape");
    }
    if (s->streams.producers > 0 && s->model.device != CDDP_MODEL_DEVICE_CPU) {
        cd_plan_contradict(c, "streams.producers",
                           "streams.producers: gradients without numbers are not produced: it "
                           "needs model.device = \"cpu\"");
    }
    if (s->streams.producers > 0 && !s->fsdp.enable &&
        s->mixed_precision.param_dtype + s->mixed_precision.reduce_dtype > 0) {
        cd_plan_contradict(c, "streams.producers",
                           "streams.producers: the host computes with the parameters, which "
                           "[mixed_precision] would cast on a stream: drop one");
    }
    if (s->train.pass_us_per_mb > 0 && s->model.device != CDDP_MODEL_DEVICE_SHAPE) {
        cd_plan_contradict(c, "train.pass_us_per_mb",
                           "train.pass_us_per_mb needs model.device = \"shape\": there time is all "
                           "that a copy takes");
    }
    if (s->streams.producers > 0 && s->train.pass_us_per_mb > 0) {
        cd_plan_contradict(
            c, "streams.producers",
            "train.pass_us_per_mb and streams.operation_us both say what a copy takes: drop one");
    }
    if (s->model.device != CDDP_MODEL_DEVICE_CPU &&
        s->model.layout != CDDP_MODEL_LAYOUT_CONTIGUOUS) {
        cd_plan_contradict(c, "model.layout",
                           "model.layout orders numbers, and model.device = \"%s\" has none: drop "
                           "one of them",
                           s->model.device == CDDP_MODEL_DEVICE_SYMBOL ? "symbol" : "shape");
    }
    if (s->model.device != CDDP_MODEL_DEVICE_CPU && s->model.memory != CDDP_MODEL_MEMORY_BACKEND) {
        cd_plan_contradict(c, "model.memory",
                           "model.memory says where numbers live, and model.device = \"%s\" has "
                           "none: drop one of them",
                           s->model.device == CDDP_MODEL_DEVICE_SYMBOL ? "symbol" : "shape");
    }
    if (s->model.device != CDDP_MODEL_DEVICE_CPU && (s->amp.enable || s->clip.max_norm > 0)) {
        cd_plan_contradict(
            c, "model.device",
            "model.device without numbers knows no overflow and no norm: drop %s or use cpu",
            s->amp.enable ? "amp.enable" : "clip.max_norm");
    }
}

/* The batch is assigned sample by sample: any other number of samples contradicts it. */
static void check_batch(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    const cddp_plan_settings *s = &plan->settings;
    if (plan->world.batch == 0) return;
    if (plan->world.batch < plan->world.size) {
        cd_plan_contradict(c, "world.batch",
                           "world.batch = %llu leaves some of %llu ranks without a sample",
                           (unsigned long long)plan->world.batch,
                           (unsigned long long)plan->world.size);
    }
    if (s->train.micro_steps != 1) {
        cd_plan_contradict(c, "world.batch",
                           "world.batch and train.micro_steps both say how many micro-steps there "
                           "are: give one of them");
    }
    if (s->data.samples != 1 || s->data.dataset_size != 0) {
        cd_plan_contradict(c, "world.batch",
                           "world.batch assigns single samples of one endless epoch: it needs "
                           "data.samples = 1 and no "
                           "data.dataset_size");
    }
    for (size_t i = 0; i < plan->when_count; i++) {
        if (plan->whens[i].samples != CDDP_PLAN_UNSET ||
            plan->whens[i].forwards != CDDP_PLAN_UNSET) {
            cd_plan_contradict(c, "world.batch",
                               "world.batch assigns one sample per micro-step: when.samples and "
                               "when.forwards cannot change that");
        }
    }
}

bool cd_plan_has_continuations(const cddp_plan *plan)
{
    bool has = plan->settings.hook.continuations != CDDP_CONTINUATIONS_ROUNDS;
    for (size_t i = 0; !has && i < plan->override_count; i++) {
        has = strcmp(plan->overrides[i].key, "hook.continuations") == 0 &&
              *(const int64_t *)plan->overrides[i].parsed != CDDP_CONTINUATIONS_ROUNDS;
    }
    return has;
}

bool cd_plan_has_streams(const cddp_plan *plan)
{
    bool has_streams = plan->settings.streams.producers > 0;
    for (size_t i = 0; !has_streams && i < plan->override_count; i++) {
        has_streams = strcmp(plan->overrides[i].key, "streams.producers") == 0 &&
                      *(const uint64_t *)plan->overrides[i].parsed > 0;
    }
    return has_streams;
}

static void check_streams(cd_contradictions *c)
{
    if (!cd_plan_has_streams(c->plan) && c->plan->settings.streams.operation_us != 1) {
        cd_plan_contradict(c, "streams.operation_us",
                           "streams.operation_us has no effect without streams.producers");
    }
    if (cd_plan_has_streams(c->plan) && c->plan->world.timeout_ms > 0) {
        cd_plan_contradict(c, "world.timeout_ms",
                           "world.timeout_ms limits how long a host waits: with streams.producers "
                           "it waits for no operation");
    }
}

/* Whether some forward runs inside no_sync. A rank's own settings may say so, too. */
static bool may_accumulate(const cddp_plan *plan)
{
    bool may = plan->settings.train.micro_steps > 1 || plan->override_count > 0;
    for (size_t i = 0; i < plan->when_count; i++) may = may || plan->whens[i].sync == 0;
    return may;
}

/* The greatest number that some rank has for a key. */
static uint64_t greatest(const cddp_plan *plan, const char *key, uint64_t common)
{
    for (size_t i = 0; i < plan->override_count; i++) {
        const cddp_plan_override *o = &plan->overrides[i];
        const uint64_t own = strcmp(o->key, key) == 0 ? *(const uint64_t *)o->parsed : common;
        if (own > common) common = own;
    }
    return common;
}

static uint64_t most_micro_steps(const cddp_plan *plan)
{
    if (plan->world.batch > 0 && plan->world.size > 0)
        return (plan->world.batch + plan->world.size - 1) / plan->world.size;
    return greatest(plan, "train.micro_steps", plan->settings.train.micro_steps);
}

/* Through the wrapper an evaluation is one of its forwards. */
static void check_evaluation(cd_contradictions *c, const cddp_plan_when *when)
{
    const cddp_plan_settings *s = &c->plan->settings;
    const bool wraps =
        when->evaluate == CDDP_EVALUATE_WRAPPER || when->evaluate == CDDP_EVALUATE_WITH_GRAD;
    if (when->skip == CDDP_SKIP_ALL && when->evaluate > CDDP_EVALUATE_NOTHING) {
        cd_plan_contradict(c, "when.evaluate",
                           "when.evaluate comes before a forward: when.skip = \"all\" leaves none");
    }
    if (wraps && s->join.enable) {
        cd_plan_contradict(c, "when.evaluate",
                           "when.evaluate through the wrapper with join.enable: a joined rank "
                           "would shadow an iteration that does not come; use \"module\"");
    }
    if (wraps && !s->fsdp.enable && s->mixed_precision.param_dtype != CDDP_PARAM_DTYPE_NONE) {
        cd_plan_contradict(c, "when.evaluate",
                           "when.evaluate through the wrapper with mixed_precision.param_dtype: "
                           "low-precision copies are given back by the next backward only; use "
                           "\"module\"");
    }
}

/* What keeps to the first group, or has no meaning in two. */
static const char *find_bound_to_the_world(const cddp_plan *plan)
{
    const cddp_plan_settings *s = &plan->settings;
    bool is_sharded = false, is_nameless = false;
    for (size_t i = 0; i < plan->optimizer_count; i++) {
        is_sharded |= cd_zero_get_shard(plan, i) != CDDP_SHARD_NONE ||
                      plan->optimizers[i].overlap != CDDP_PLAN_OVERLAP_NONE ||
                      plan->optimizers[i].in_backward;
    }
    for (size_t i = 0; i < plan->collective_count; i++)
        is_nameless |= plan->collectives[i].group == NULL;
    return s->join.enable                                    ? "join.enable"
           : s->averager.kind != CDDP_AVERAGER_NONE          ? "averager.kind"
           : is_sharded                                      ? "an optimizer that is shared or "
                                                               "steps in backward"
           : s->clip.group != NULL                           ? "clip.group"
           : s->train.resume                                 ? "train.resume"
           : s->train.objective != CDDP_OBJECTIVE_AS_WRITTEN ? "train.objective"
           : s->train.loss == CDDP_LOSS_GLOBAL_MEAN || s->train.loss == CDDP_LOSS_GLOBAL_TOKEN_MEAN
               ? "a train.loss over all ranks"
           : plan->output_count > 0                         ? "[[output]]"
           : s->ddp.average_contributions                   ? "ddp.average_contributions"
           : s->ddp.delay_all_reduce_named_params.count > 0 ? "a delayed all-reduce"
           : is_nameless                                    ? "a [[collective]] without a group"
                                                            : NULL;
}

static void check_swap(cd_contradictions *c, const cddp_plan_when *when)
{
    const cddp_plan *plan = c->plan;
    const cddp_plan_group *group = cd_plan_find_group(plan, when->group);
    const char *bound = find_bound_to_the_world(plan);
    if (group == NULL && strcmp(when->group, "world") != 0) {
        cd_plan_contradict(c, "when.group", "when.group = \"%s\", but no [[group]] is called so",
                           when->group);
    }
    if (when->micro_steps.term_count > 0) {
        cd_plan_contradict(c, "when.micro_steps",
                           "when.group applies from the beginning of a step: when.micro_steps has "
                           "no meaning beside it");
    }
    for (size_t i = 0; group != NULL && i < group->members.count; i++) {
        const uint32_t least = i > 0 ? group->members.items[i - 1] + 1 : 0;
        if (group->members.items[i] >= least && (i > 0 || group->members.items[0] == 0)) continue;
        cd_plan_contradict(c, "when.group",
                           "when.group = \"%s\": a wrapper's group has rank 0 first, and then "
                           "others in ascending order",
                           when->group);
        break;
    }
    if (bound != NULL) {
        cd_plan_contradict(c, "when.group",
                           "when.group with %s: that belongs to the group with which the training "
                           "began",
                           bound);
    }
}

/* MIX-04: low-precision copies are given back when a backward has ended. */
static void check_backwards(cd_contradictions *c, const cddp_plan_when *when)
{
    const cddp_plan_settings *s = &c->plan->settings;
    const bool is_twice = when->backwards != CDDP_PLAN_UNSET && when->backwards > 1;
    if (s->fsdp.enable || s->mixed_precision.param_dtype == CDDP_PARAM_DTYPE_NONE) return;
    if (!is_twice && when->backward_each != 1 && when->loss_each != 1) return;
    const char *key = is_twice               ? "when.backwards"
                      : when->loss_each == 1 ? "when.loss_each"
                                             : "when.backward_each";
    cd_plan_contradict(c, key,
                       "%s with mixed_precision.param_dtype: the first backward gives back the "
                       "copies in low precision that the next one needs",
                       key);
}

static void check_when(cd_contradictions *c, const cddp_plan_when *when)
{
    const cddp_plan *plan = c->plan;
    check_evaluation(c, when);
    if (when->group != NULL) check_swap(c, when);
    if (when->group != NULL && when->abort_after != CDDP_PLAN_UNSET && when->abort_after > 0) {
        cd_plan_contradict(c, "when.abort_after",
                           "when.abort_after with when.group: both reset the reducer");
    }
    if (when->abort_after != CDDP_PLAN_UNSET && when->abort_after > 0 &&
        plan->settings.train.zero_grad == CDDP_ZERO_GRAD_KEEP) {
        cd_plan_contradict(
            c, "when.abort_after",
            "when.abort_after with train.zero_grad = \"keep\": what the backward has "
            "left, of some parameters, would be in the next step's average");
    }
    if (when->abort_after != CDDP_PLAN_UNSET && when->abort_after > 0 &&
        plan->settings.join.enable) {
        cd_plan_contradict(c, "when.abort_after",
                           "when.abort_after with join.enable: the program forgets the half-done "
                           "reduction by a change of its group (UPG-02), which ends the join "
                           "context");
    }
    cd_plan_check_selector(c, "when.ranks", &when->ranks, plan->world.size, "world.size");
    cd_plan_check_selector(c, "when.steps", &when->steps,
                           greatest(plan, "train.steps", plan->settings.train.steps),
                           "train.steps");
    cd_plan_check_selector(c, "when.micro_steps", &when->micro_steps, most_micro_steps(plan),
                           "train.micro_steps");
    if (when->freeze.count + when->unfreeze.count + when->replace_parameters.count > 0 &&
        when->micro_steps.term_count > 0) {
        cd_plan_contradict(c, "when.micro_steps",
                           "when.%s applies from the beginning of a step: when.micro_steps has no "
                           "meaning beside it",
                           when->freeze.count > 0     ? "freeze"
                           : when->unfreeze.count > 0 ? "unfreeze"
                                                      : "replace_parameters");
    }
    if (when->replace_parameters.count > 0 && when->ranks.term_count > 0) {
        cd_plan_contradict(
            c, "when.replace_parameters",
            "when.replace_parameters is what a program does on all ranks: drop when.ranks");
    }
    if (when->replace_parameters.count > 0 && plan->settings.ddp.gradient_as_bucket_view) {
        cd_plan_contradict(c, "when.replace_parameters",
                           "a replaced parameter has no view: when.replace_parameters needs "
                           "ddp.gradient_as_bucket_view = false");
    }
    if (when->no_sync_depth != CDDP_PLAN_UNSET && (when->sync == 1 || !may_accumulate(plan))) {
        cd_plan_contradict(c, "when.no_sync_depth", "when.no_sync_depth has no effect: %s",
                           when->sync == 1 ? "when.sync = true keeps the forward out of no_sync"
                                           : "no forward runs inside no_sync without "
                                             "train.micro_steps > 1 or when.sync = false");
    }
    if (when->await_producers == 0 && !cd_plan_has_streams(plan)) {
        cd_plan_contradict(
            c, "when.await_producers",
            "when.await_producers has no effect without streams.producers: nobody has to wait");
    }
    if (when->ready_order.count > 0 && when->ready != CDDP_WHEN_READY_LISTED) {
        cd_plan_contradict(c, "when.ready_order",
                           "when.ready_order has no effect without when.ready = \"listed\"");
    }
    if (when->ready == CDDP_WHEN_READY_LISTED && when->ready_order.count == 0)
        cd_plan_contradict(c, "when.ready", "when.ready = \"listed\" needs when.ready_order");
    if (when->poison_parameter != NULL &&
        (when->poison == CDDP_PLAN_UNSET || when->poison == CDDP_POISON_NOTHING)) {
        cd_plan_contradict(c, "when.poison_parameter",
                           "when.poison_parameter has no effect without when.poison");
    }
    if (when->backward_each == 1 && (when->forwards == CDDP_PLAN_UNSET || when->forwards < 2)) {
        cd_plan_contradict(c, "when.backward_each",
                           "when.backward_each needs when.forwards of at least 2");
    }
    if (when->loss_each == 1 && plan->settings.ddp.average_contributions) {
        cd_plan_contradict(c, "when.loss_each",
                           "when.loss_each with ddp.average_contributions: which outputs have a "
                           "backward, and so the divisor, depends on the model");
    }
    if (when->loss_each == 1 && when->forwards != CDDP_PLAN_UNSET && when->forwards > 1) {
        cd_plan_contradict(c, "when.loss_each",
                           "when.loss_each has a backward for each output of one forward: drop "
                           "when.forwards");
    }
    if (when->skip == CDDP_SKIP_STEP && when->sync == 0 &&
        plan->settings.train.zero_grad == CDDP_ZERO_GRAD_KEEP) {
        cd_plan_contradict(c, "when.skip",
                           "when.skip = \"step\" with when.sync = false leaves gradients of each "
                           "rank, which train.zero_grad = \"keep\" would average in a later step: "
                           "make them micro-steps of one step");
    }
    check_backwards(c, when);
    if (when->touch_buffers == 1 && plan->settings.model.device != CDDP_MODEL_DEVICE_CPU) {
        cd_plan_contradict(c, "when.touch_buffers",
                           "when.touch_buffers adds a number: it needs model.device = \"cpu\"");
    }
    if (when->grad_mode == 0 && when->backwards != CDDP_PLAN_UNSET && when->backwards > 0) {
        cd_plan_contradict(c, "when.backwards",
                           "when.grad_mode = false leaves no graph for when.backwards = %lld",
                           (long long)when->backwards);
    }
}

static const char *const own_messages[CD_OWN_COUNT] = {
#define CD_OWN_MESSAGE(constant, words) words,
#include "core/plan/own_messages.def"
};

const char *cd_own_message_get(cd_own_message message) { return own_messages[message]; }

/* An expectation that the verifier itself could satisfy expects nothing of the run. */
static void check_words(cd_contradictions *c, const char *words)
{
    if (strlen(words) < 3) {
        cd_plan_contradict(c, "expect.error",
                           "expect.error: almost every message has '%s': name more of the error",
                           words);
        return;
    }
    for (size_t i = 0; i < CD_OWN_COUNT; i++) {
        if (strstr(own_messages[i], words) == NULL) continue;
        cd_plan_contradict(c, "expect.error",
                           "expect.error: '%s' is in what the verifier itself may say (\"%s\"): "
                           "name words of the run's error",
                           words, own_messages[i]);
        return;
    }
}

/* The least train.loss that some rank has: 0 is "dyadic". */
static bool some_loss_is_dyadic(const cddp_plan *plan)
{
    bool is_dyadic = plan->settings.train.loss == CDDP_LOSS_DYADIC;
    for (size_t i = 0; i < plan->override_count; i++) {
        is_dyadic |= strcmp(plan->overrides[i].key, "train.loss") == 0 &&
                     *(const int64_t *)plan->overrides[i].parsed == CDDP_LOSS_DYADIC;
    }
    return is_dyadic;
}

static void check_output(cd_contradictions *c, size_t index)
{
    const cddp_plan_output *output = &c->plan->outputs[index];
    const bool is_normalised = output->loss != CDDP_OUTPUT_LOSS_COMMON,
               is_meant = output->objective == CDDP_OUTPUT_OBJECTIVE_MEAN ||
                          output->objective == CDDP_OUTPUT_OBJECTIVE_TOKEN_MEAN;
    const bool says_nothing =
        !is_normalised && output->objective == CDDP_OUTPUT_OBJECTIVE_COMMON && output->weight == 1;
    if (output->name == NULL || output->name[0] == '\0') {
        cd_plan_contradict(c, "output.name", "[[output]] number %zu names no output", index);
        return;
    }
    for (size_t i = 0; i < index; i++) {
        const char *other = c->plan->outputs[i].name;
        if (other != NULL && strcmp(other, output->name) == 0)
            cd_plan_contradict(c, "output.name", "two [[output]] tables are of '%s'", other);
    }
    if (says_nothing) {
        cd_plan_contradict(c, "output.name",
                           "the [[output]] of '%s' says nothing: give output.loss, "
                           "output.objective or output.weight",
                           output->name);
    }
    if ((is_normalised || is_meant) && some_loss_is_dyadic(c->plan)) {
        cd_plan_contradict(c, is_normalised ? "output.loss" : "output.objective",
                           "output.%s of '%s' normalises a loss: train.loss = \"dyadic\" gives "
                           "samples other weights",
                           is_normalised ? "loss" : "objective", output->name);
    }
    if (is_meant && c->plan->settings.join.enable) {
        cd_plan_contradict(c, "output.objective",
                           "output.objective counts over all ranks, join.enable lets them run out "
                           "of inputs: drop one");
    }
}

static void check_epochs(cd_contradictions *c)
{
    const cddp_plan_settings *s = &c->plan->settings;
    for (size_t i = 0; i < c->plan->override_count; i++) {
        const cddp_plan_override *o = &c->plan->overrides[i];
        if (strcmp(o->key, "train.steps") != 0 || s->join.epochs == 1 ||
            *(const uint64_t *)o->parsed == s->train.steps)
            continue;
        cd_plan_contradict(c, "join.epochs",
                           "join.epochs cuts the train.steps of all ranks: a rank with fewer "
                           "inputs has data.inputs");
    }
}

static void check_expect(cd_contradictions *c)
{
    const cddp_plan_expect *expect = &c->plan->expect;
    if (expect->verdict == CDDP_EXPECT_FINDINGS && expect->finding_count == 0) {
        cd_plan_contradict(
            c, "expect.verdict",
            "expect.verdict = \"findings\" needs an [[expect.finding]] that says which");
    }
    if (expect->verdict != CDDP_EXPECT_FINDINGS && expect->finding_count > 0 &&
        expect->verdict != CDDP_EXPECT_ERROR) {
        cd_plan_contradict(c, "expect.verdict",
                           "[[expect.finding]] contradicts expect.verdict = \"verified\"");
    }
    if (expect->verdict == CDDP_EXPECT_ERROR && expect->error.count == 0)
        cd_plan_contradict(c, "expect.verdict", "%s", own_messages[CD_OWN_WORDS_NEEDED]);
    for (size_t i = 0; i < expect->error.count; i++) check_words(c, expect->error.items[i]);
    if (expect->verdict != CDDP_EXPECT_ERROR && expect->error.count > 0)
        cd_plan_contradict(c, "expect.error", "expect.error needs expect.verdict = \"error\"");
    if (expect->also.count > 0 && expect->verdict == CDDP_EXPECT_VERIFIED) {
        cd_plan_contradict(c, "expect.also",
                           "expect.also excuses findings beside those named: it needs "
                           "expect.verdict = \"findings\"");
    }
    if (expect->same_with.count > 0 && expect->verdict != CDDP_EXPECT_VERIFIED) {
        cd_plan_contradict(c, "expect.same_with",
                           "expect.same_with compares runs that are verified: it needs "
                           "expect.verdict = \"verified\"");
    }
    for (size_t i = 0; i < expect->finding_count; i++) {
        cd_plan_enter_table(c, "expect.finding", i);
        const char *check = expect->findings[i].check;
        if (check == NULL || check[0] == '\0') {
            cd_plan_contradict(c, "expect.finding.check",
                               "[[expect.finding]] number %zu names no check", i);
        }
    }
}

static size_t search_one(void *self, const cddp_plan *written, cd_contradiction_fn report_fn,
                         void *context)
{
    (void)self;
    cddp_plan resolved = *written;
    const cddp_plan *plan = &resolved;
    cd_heard heard = {.report = report_fn, .context = context};
    cd_contradictions c = {.plan = written, .report = cd_heard_take, .context = &heard};
    cd_plan_check_zero(&c);
    cd_zero_resolve(written, &resolved.settings);
    c.plan = plan;
    if (plan->title == NULL) cd_plan_contradict(&c, "title", "a scenario needs a title");
    cd_plan_check_settings(&c);
    for (size_t i = 0; i < plan->override_count; i++) {
        cd_plan_check_selector(&c, "rank.ranks", &plan->overrides[i].ranks, plan->world.size,
                               "world.size");
    }
    check_epochs(&c);
    for (size_t i = 0; i < plan->output_count; i++) {
        cd_plan_enter_table(&c, "output", i);
        check_output(&c, i);
    }
    cd_plan_enter_table(&c, NULL, 0);
    check_batch(&c);
    check_streams(&c);
    cd_plan_check_world(&c);
    cd_plan_check_update(&c);
    cd_plan_check_fsdp(&c);
    for (size_t i = 0; i < plan->when_count; i++) {
        cd_plan_enter_table(&c, "when", i);
        check_when(&c, &plan->whens[i]);
    }
    const bool replays =
        plan->schedule.chooser != NULL && strcmp(plan->schedule.chooser, "replay") == 0;
    if (replays != (plan->schedule.string != NULL)) {
        cd_plan_contradict(
            &c, "schedule.string",
            replays ? "schedule.chooser = \"replay\" needs schedule.string"
                    : "schedule.string has no effect without schedule.chooser = \"replay\"");
    }
    check_expect(&c);
    return c.count + cd_plan_check_ranks(plan, &heard);
}

size_t cd_plan_find_contradictions(const cddp_plan *plan, cd_contradiction_fn report_fn,
                                   void *context)
{
    cd_contradictions c = {.plan = plan, .report = report_fn, .context = context};
    cd_plan_check_wrappers(&c);
    if (plan->wrapper_count == 0) return c.count + search_one(NULL, plan, report_fn, context);
    /* their plans can only be made of what is whole */
    if (c.count > 0) return c.count;
    return cd_plan_search_wrappers(plan, &(cd_plan_search){search_one, NULL}, report_fn, context);
}

static void keep_first(void *context, const char *key, const char *message)
{
    (void)key;
    char *first = context;
    if (first[0] == '\0') snprintf(first, 256, "%s", message);
}

cddp_status cddp_plan_check(const cddp_plan *plan, cddp_error *err)
{
    char first[256] = "";
    const size_t count = cd_plan_find_contradictions(plan, keep_first, first);
    return count == 0 ? CDDP_OK : cd_fail(err, CDDP_E_CONFIG, "%s", first);
}
