/* SPDX-License-Identifier: Apache-2.0 */
/* Contradictions: settings that cannot mean anything together. Each rule names both sides.
**
** A wrong program is not a contradiction: a static graph whose use changes, a rank that skips its backward and a
** mismatched option are what scenarios are for. Refused is only what would silently have no effect, or what has
** no meaning at all.
*/
#include "core/run/plan.h"

#include "core/base/error.h"
#include "core/comm/operands.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct contradictions {
    const cddp_plan *plan;
    cd_contradiction_fn tell;
    void *context;
    size_t count;
    const char *table; /* the repeating table that is being looked at, "when"; NULL: none */
    size_t index;
} contradictions;

static void tell(contradictions *c, const char *key, const char *format, ...) CDDP_PRINTF(3, 4);
static void tell(contradictions *c, const char *key, const char *format, ...)
{
    char message[256], place[96];
    const size_t length = c->table != NULL ? strlen(c->table) : 0;
    if (length > 0 && strncmp(key, c->table, length) == 0 && key[length] == '.') {
        snprintf(place, sizeof place, "%s[%zu]%s", c->table, c->index, key + length);
        key = place;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    c->count++;
    if (c->tell != NULL) {
        c->tell(c->context, key, message);
    }
}

/* From here on, keys of this table are those of its element. */
static void enter(contradictions *c, const char *table, size_t index)
{
    c->table = table;
    c->index = index;
}

/* Does any number below the limit belong to it? */
static bool selector_is_possible(const cddp_selector *selector, uint64_t limit)
{
    for (uint32_t i = 0; i < selector->term_count; i++) {
        const uint64_t first = selector->terms[i].modulus != 0 ? selector->terms[i].remainder : selector->terms[i].first;
        if (first < limit) {
            return true;
        }
    }
    return selector->term_count == 0;
}

static void check_selector(contradictions *c, const char *key, const cddp_selector *selector, uint64_t limit,
                           const char *limit_key)
{
    if (!selector_is_possible(selector, limit)) {
        char text[CD_SELECTOR_TEXT_BYTES];
        cd_selector_print(selector, text, sizeof text);
        tell(c, key, "%s = %s selects nothing: %s is %llu", key, text, limit_key, (unsigned long long)limit);
    }
}

uint32_t cd_plan_read_levels(const char *text, cd_plan_level levels[CD_PLAN_LEVELS_MAX])
{
    uint32_t count = 0;
    for (const char *at = text; count < CD_PLAN_LEVELS_MAX; at++) {
        char *end = NULL;
        const cd_plan_level *last = count > 0 ? &levels[count - 1] : NULL;
        const unsigned long long period = strtoull(at, &end, 10);
        if (end == at || *at == '-' || period == 0 || (last != NULL && (period <= last->period || last->ranks == 0))) {
            return 0;
        }
        unsigned long ranks = 0;
        if (*end == ':') {
            at = end + 1;
            ranks = strtoul(at, &end, 10);
            if (end == at || *at == '-' || ranks == 0 || ranks > 4096 || (last != NULL && (ranks <= last->ranks || ranks % last->ranks != 0))) {
                return 0;
            }
        }
        levels[count++] = (cd_plan_level){period, (uint32_t)ranks};
        if (*end == '\0') {
            return count;
        }
        if (*end != '/') {
            return 0;
        }
        at = end;
    }
    return 0;
}

bool cd_plan_read_period(const char *text, char pattern[CD_PLAN_PATTERN_BYTES], uint64_t *period)
{
    const char *equals = strrchr(text, '=');
    char *end = NULL;
    if (equals == NULL || equals == text || (size_t)(equals - text) >= CD_PLAN_PATTERN_BYTES || equals[1] < '0' || equals[1] > '9') {
        return false;
    }
    *period = strtoull(equals + 1, &end, 10);
    snprintf(pattern, CD_PLAN_PATTERN_BYTES, "%.*s", (int)(equals - text), text);
    return *end == '\0' && *period > 0 && *period <= 1000000000;
}

static void check_periods(contradictions *c, const cddp_plan_averager *a)
{
    char pattern[CD_PLAN_PATTERN_BYTES];
    uint64_t period = 0;
    if (a->periods.count > 0 && a->kind == 2) {
        tell(c, "averager.periods", "averager.periods: a hierarchical averager's levels are of all parameters: averager.kind = \"periodic\"");
    }
    for (size_t i = 0; i < a->periods.count; i++) {
        if (!cd_plan_read_period(a->periods.items[i], pattern, &period)) {
            tell(c, "averager.periods", "averager.periods: '%s' is not pattern=period, such as \"head.*=2\"", a->periods.items[i]);
        }
    }
}

static void check_averager(contradictions *c, const cddp_plan_settings *s)
{
    const cddp_plan_averager *a = &s->averager;
    cd_plan_level levels[CD_PLAN_LEVELS_MAX];
    const uint32_t count = a->levels != NULL ? cd_plan_read_levels(a->levels, levels) : 0;
    if (a->kind == 0) {
        if (a->levels != NULL || a->warmup_steps > 0 || a->periods.count > 0) {
            tell(c, "averager.kind", "averager.%s has no effect without averager.kind",
                 a->levels != NULL ? "levels" : a->warmup_steps > 0 ? "warmup_steps" : "periods");
        }
        return;
    }
    check_periods(c, a);
    if (a->levels == NULL) {
        tell(c, "averager.levels", "averager.kind needs averager.levels: after how many steps is the model averaged?");
    } else if (count == 0) {
        tell(c, "averager.levels",
             "averager.levels = \"%s\" is not period:ranks/…/period with growing periods and growing blocks, each made of whole smaller ones",
             a->levels);
    } else if (a->kind == 1 && count > 1) {
        tell(c, "averager.levels", "averager.levels has %u levels, but a periodic averager has one: averager.kind = \"hierarchical\"", count);
    }
    if (s->join.enable) {
        tell(c, "averager.kind", "averager.kind with join.enable: a rank that has run out of inputs takes no steps, and would be missing from the average");
    }
    if (s->model.device != 0 || s->streams.producers > 0) {
        tell(c, "averager.kind", "averager.kind averages numbers on the host: drop %s", s->model.device != 0 ? "model.device" : "streams.producers");
    }
    for (size_t i = 0; i < c->plan->optimizer_count; i++) {
        if (c->plan->optimizers[i].in_backward) {
            tell(c, "averager.kind", "averager.kind averages what has a gradient (AVG-02), and optimizer.in_backward leaves none");
        }
    }
}

static bool has_sharded_optimizer(const cddp_plan *plan)
{
    for (size_t i = 0; i < plan->optimizer_count; i++) {
        if (plan->optimizers[i].shard != 0) {
            return true;
        }
    }
    return false;
}

static const cddp_plan_group *find_group(const cddp_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->group_count; i++) {
        if (plan->groups[i].name != NULL && strcmp(plan->groups[i].name, name) == 0) {
            return &plan->groups[i];
        }
    }
    return NULL;
}

static void check_clip_group(contradictions *c, const cddp_plan_clip *clip, const char *group)
{
    const bool is_own = strcmp(group, "own") == 0;
    if (clip->max_norm <= 0) {
        tell(c, "clip.group", "clip.group has no effect without clip.max_norm");
    }
    if (clip->place == 1) {
        tell(c, "clip.group", "clip.group with clip.place = \"before_reduction\": each gradient is clipped by itself, as soon as it is there");
    }
    if (is_own && !has_sharded_optimizer(c->plan)) {
        tell(c, "clip.group", "clip.group = \"own\" has no effect without optimizer.shard: every rank steps everything");
    }
    if (!is_own && strcmp(group, "world") != 0 && find_group(c->plan, group) == NULL) {
        tell(c, "clip.group", "clip.group = \"%s\", but no [[group]] is called so", group);
    }
    if (cd_plan_has_streams(c->plan)) {
        tell(c, "clip.group", "clip.group adds what the host has computed: drop streams.producers");
    }
}

/* Also what single ranks are told. */
static void check_clip_groups(contradictions *c)
{
    const cddp_plan_clip *clip = &c->plan->settings.clip;
    if (clip->group != NULL) {
        check_clip_group(c, clip, clip->group);
    }
    for (size_t i = 0; i < c->plan->override_count; i++) {
        const char *group = NULL;
        if (strcmp(c->plan->overrides[i].key, "clip.group") == 0) {
            memcpy(&group, c->plan->overrides[i].parsed, sizeof group);
        }
        if (group != NULL) {
            check_clip_group(c, clip, group);
        }
    }
}

static void check_settings(contradictions *c, const cddp_plan_settings *s)
{
    check_averager(c, s);
    const cddp_plan_ddp *ddp = &s->ddp;
    if (ddp->skip_all_reduce_unused_params && !ddp->find_unused_parameters && !ddp->static_graph) {
        tell(c, "ddp.skip_all_reduce_unused_params",
             "ddp.skip_all_reduce_unused_params needs ddp.find_unused_parameters or ddp.static_graph to know what is unused");
    }
    if (ddp->bucket_cap_mb > 0 && ddp->bucket_cap_mb_list.count > 0) {
        tell(c, "ddp.bucket_cap_mb", "ddp.bucket_cap_mb has no effect beside ddp.bucket_cap_mb_list: give one of them");
    }
    if (ddp->average_contributions && !ddp->accumulate_in_hook) {
        tell(c, "ddp.average_contributions", "ddp.average_contributions has no effect without ddp.accumulate_in_hook");
    }
    if (ddp->accumulate_in_hook && s->train.zero_grad == 2) {
        tell(c, "ddp.accumulate_in_hook",
             "ddp.accumulate_in_hook with train.zero_grad = \"keep\": what is kept in .grad would be added again");
    }
    if (ddp->comm_hook != NULL && ddp->comm_hook[0] == ':') {
        tell(c, "ddp.comm_hook", "ddp.comm_hook = '%s' has options but no name: write NAME:key=value", ddp->comm_hook);
    }
    if (ddp->comm_hook != NULL && strncmp(ddp->comm_hook, "no:", 3) == 0) {
        tell(c, "ddp.comm_hook", "ddp.comm_hook = '%s' gives options to no hook", ddp->comm_hook);
    }
    if (s->hook.name == NULL && (s->hook.options != NULL || s->hook.inner != NULL)) {
        tell(c, "hook.name", "hook.%s is given but no hook.name", s->hook.options != NULL ? "options" : "inner");
    }
    if (s->hook.name != NULL && (s->hook.comm_hook != 0 || s->hook.comm_wrapper != 0)) {
        tell(c, "hook.comm_hook", "hook.name and hook.comm_hook both choose the hook: give one of them");
    }
    if (s->hook.comm_state_option != NULL && s->hook.comm_hook < 3) {
        tell(c, "hook.comm_state_option",
             "hook.comm_state_option belongs to hook.comm_hook = \"power_sgd\" or \"batched_power_sgd\" (ACC-03)");
    }
    if (s->train.checkpoint_step > s->train.steps) {
        tell(c, "train.checkpoint_step", "train.checkpoint_step = %llu lies behind train.steps = %llu",
             (unsigned long long)s->train.checkpoint_step, (unsigned long long)s->train.steps);
    }
    if (s->train.checkpoint_step > 0 && s->model.device != 0) {
        tell(c, "train.checkpoint_step", "train.checkpoint_step needs model.device = \"cpu\": other devices hold no numbers to save");
    }
    if (s->train.resume && s->train.checkpoint_step == 0) {
        tell(c, "train.resume", "train.resume needs train.checkpoint_step: there is nothing to load");
    }
    if (!s->join.enable &&
        (!s->join.divide_by_initial_world_size || s->join.throw_on_early_termination || s->join.broadcast_optimizer_state)) {
        tell(c, "join.enable", "settings of [join] have no effect without join.enable = true");
    }
    if (s->clip.place != 0 && s->clip.max_norm <= 0) {
        tell(c, "clip.place", "clip.place has no effect without clip.max_norm");
    }
    if (s->clip.place == 2 && !s->amp.enable) {
        tell(c, "clip.place", "clip.place = \"before_unscale\" needs amp.enable: there is nothing to unscale");
    }
    if (s->model.dtype == CDDP_F64 && s->mixed_precision.param_dtype > 0) {
        tell(c, "mixed_precision.param_dtype", "model.dtype = \"f64\" computes in f64: mixed_precision.param_dtype casts to what computes in f32");
    }
    if (s->train.objective != 0 && s->train.loss == 0) {
        tell(c, "train.objective", "train.objective compares with a normalised loss: train.loss = \"dyadic\" gives samples weights of its own");
    }
    if (s->train.objective != 0 && s->join.enable) {
        tell(c, "train.objective", "train.objective counts over all ranks, join.enable lets them run out of inputs: drop one");
    }
    if (s->model.device == 1 && s->mixed_precision.param_dtype + s->mixed_precision.reduce_dtype > 0) {
        tell(c, "mixed_precision.param_dtype",
             "model.device = \"symbol\" is exact: casts of [mixed_precision] need cpu or shape");
    }
    if (s->streams.producers > 0 && s->model.device != 0) {
        tell(c, "streams.producers", "streams.producers: gradients without numbers are not produced: it needs model.device = \"cpu\"");
    }
    if (s->streams.producers > 0 && s->mixed_precision.param_dtype + s->mixed_precision.reduce_dtype > 0) {
        tell(c, "streams.producers", "streams.producers: the host computes with the parameters, which [mixed_precision] would cast on a stream: drop one");
    }
    if (s->streams.producers > 0 && s->train.pass_us_per_mb > 0) {
        tell(c, "streams.producers", "train.pass_us_per_mb and streams.operation_us both say what a copy takes: drop one");
    }
    if (s->model.device != 0 && s->model.memory != 0) {
        tell(c, "model.memory", "model.memory says where numbers live, and model.device = \"%s\" has none: drop one of them",
             s->model.device == 1 ? "symbol" : "shape");
    }
    if (s->model.device != 0 && (s->amp.enable || s->clip.max_norm > 0)) {
        tell(c, "model.device", "model.device without numbers knows no overflow and no norm: drop %s or use cpu",
             s->amp.enable ? "amp.enable" : "clip.max_norm");
    }
}

/* What steps inside the backward cannot wait for something that is known only after it. */
static void check_optimizer_in_backward(contradictions *c, const cddp_plan_optimizer *optimizer)
{
    const cddp_plan_settings *s = &c->plan->settings;
    const char *key = optimizer->overlap != 0 ? "optimizer.overlap" : "optimizer.in_backward";
    if (optimizer->in_backward && optimizer->overlap != 0) {
        tell(c, key, "optimizer.in_backward and optimizer.overlap are two ways to step in backward: drop one");
    }
    for (size_t i = 0; i < c->plan->optimizer_count; i++) {
        const cddp_plan_optimizer *other = &c->plan->optimizers[i];
        if ((other->in_backward || other->overlap != 0) && other->overlap != optimizer->overlap) {
            tell(c, key, "all optimizers that step in backward do it in the same way: only one can be attached");
            break;
        }
    }
    if (optimizer->steps.term_count > 0) {
        tell(c, key, "%s steps whenever a bucket is averaged: optimizer.steps cannot hold it back", key);
    }
    if (s->amp.enable || s->clip.max_norm > 0) {
        tell(c, key, "%s steps before gradients can be %s: drop %s", key, s->amp.enable ? "unscaled" : "clipped",
             s->amp.enable ? "amp.enable" : "clip.max_norm");
    }
}

/* OIB-03: the allreduce hook is its own, and every backward is a step. */
static void check_hook_then_optimizer(contradictions *c)
{
    const cddp_plan_settings *s = &c->plan->settings;
    if (s->train.micro_steps > 1) {
        tell(c, "optimizer.overlap", "hook_then_optimizer steps in every backward: train.micro_steps cannot accumulate (OIB-03)");
    }
    if (s->hook.name != NULL || s->hook.comm_hook != 0 || s->ddp.comm_hook != NULL) {
        tell(c, "optimizer.overlap", "hook_then_optimizer takes the comm-hook slot with an all-reduce of its own: drop the comm hook (OIB-03)");
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
        if (key != NULL) {
            return key;
        }
    }
    return NULL;
}

static void check_zero_step(contradictions *c, const cddp_plan_optimizer *optimizer)
{
    const cddp_plan_settings *s = &c->plan->settings;
    const char *key = "optimizer.overlap", *uncounted = uncounted_backward(c->plan);
    if (c->plan->optimizer_count > 1 || optimizer->parameters.count > 0) {
        tell(c, key, "hook_with_zero_step steps whole buckets: it is the only optimizer, and owns all parameters (ZRO-10)");
    }
    if (s->ddp.find_unused_parameters && !s->ddp.static_graph) {
        tell(c, key, "hook_with_zero_step waits for the rebuild, and ddp.find_unused_parameters never rebuilds: it would never update anything (ZRO-11)");
    }
    if (s->train.resume) {
        tell(c, key, "hook_with_zero_step with train.resume: a wrapper that is made anew leaves out its first updates again (ZRO-11), so no resumed training is the uninterrupted one");
    }
    if (uncounted != NULL) {
        tell(c, key, "hook_with_zero_step counts backwards until it updates (ZRO-11): drop %s", uncounted);
    }
    if (s->join.enable) {
        tell(c, key, "hook_with_zero_step with join.enable: nobody would step what is a joined rank's (ZRO-09)");
    }
    if (s->averager.kind != 0) {
        tell(c, key, "hook_with_zero_step with averager.kind: what a rank broadcasts is its own model, and there would be nothing left to average");
    }
    if (s->model.device != 0) {
        tell(c, key, "hook_with_zero_step is judged by numbers: it needs model.device = \"cpu\"");
    }
    if (cd_plan_has_streams(c->plan)) {
        tell(c, key, "hook_with_zero_step sends what the host has stepped: drop streams.producers");
    }
}

static void check_overlap(contradictions *c, const cddp_plan_optimizer *optimizer)
{
    if (optimizer->overlap == 1) {
        check_hook_then_optimizer(c);
    } else if (optimizer->overlap > 1) {
        check_zero_step(c, optimizer);
    }
    if (optimizer->shard_buckets && optimizer->overlap < 2) {
        tell(c, "optimizer.shard_buckets", "optimizer.shard_buckets has no effect without optimizer.overlap = \"hook_with_zero_step\"");
    }
}

/* The batch is dealt sample by sample, so whatever else says how many there are contradicts it. */
static void check_batch(contradictions *c)
{
    const cddp_plan *plan = c->plan;
    const cddp_plan_settings *s = &plan->settings;
    if (plan->world.batch == 0) {
        return;
    }
    if (plan->world.batch < plan->world.size) {
        tell(c, "world.batch", "world.batch = %llu leaves some of %llu ranks without a sample",
             (unsigned long long)plan->world.batch, (unsigned long long)plan->world.size);
    }
    if (s->train.micro_steps != 1) {
        tell(c, "world.batch",
             "world.batch and train.micro_steps both say how many micro-steps there are: give one of them");
    }
    if (s->data.samples != 1 || s->data.dataset_size != 0) {
        tell(c, "world.batch",
             "world.batch deals single samples of one endless epoch: it needs data.samples = 1 and no "
             "data.dataset_size");
    }
    for (size_t i = 0; i < plan->when_count; i++) {
        if (plan->whens[i].samples != CDDP_PLAN_UNSET || plan->whens[i].forwards != CDDP_PLAN_UNSET) {
            tell(c, "world.batch",
                 "world.batch deals one sample per micro-step: when.samples and when.forwards cannot change that");
        }
    }
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

static void check_streams(contradictions *c)
{
    if (!cd_plan_has_streams(c->plan) && c->plan->settings.streams.operation_us != 1) {
        tell(c, "streams.operation_us", "streams.operation_us has no effect without streams.producers");
    }
    if (cd_plan_has_streams(c->plan) && c->plan->world.timeout_ms > 0) {
        tell(c, "world.timeout_ms", "world.timeout_ms limits how long a host waits: with streams.producers it waits for no operation");
    }
}

static void check_agent(contradictions *c)
{
    const cddp_plan_agent *agent = &c->plan->settings.agent;
    const char *key = agent->late_ms != 0         ? "agent.late_ms"
                      : agent->timeout_ms != 30000 ? "agent.timeout_ms"
                      : agent->attempts != 1       ? "agent.attempts"
                      : agent->backoff_ms != 1000  ? "agent.backoff_ms"
                                                   : NULL;
    for (size_t i = 0; key == NULL && i < c->plan->override_count; i++) {
        key = strncmp(c->plan->overrides[i].key, "agent.", 6) == 0 ? c->plan->overrides[i].key : NULL;
    }
    if (key != NULL && !c->plan->rendezvous.enable) {
        tell(c, key, "%s has no effect without rendezvous.enable = true: nobody meets through a store", key);
    }
}

static void check_rendezvous(contradictions *c)
{
    const cddp_plan *plan = c->plan;
    check_agent(c);
    if (plan->rendezvous.enable && plan->rendezvous.host >= plan->world.size) {
        tell(c, "rendezvous.host", "rendezvous.host = %llu, but world.size is %llu", (unsigned long long)plan->rendezvous.host,
             (unsigned long long)plan->world.size);
    }
    if (!plan->rendezvous.enable && (plan->rendezvous.host != 0 || !plan->rendezvous.generations)) {
        tell(c, "rendezvous.enable", "settings of [rendezvous] have no effect without rendezvous.enable = true");
    }
}

static void check_fault(contradictions *c, const cddp_plan_fault *fault)
{
    const bool joins = fault->when >= 4;
    check_selector(c, "fault.side", &fault->side, c->plan->world.size, "world.size");
    if (joins && !c->plan->rendezvous.enable) {
        tell(c, "fault.when", "fault.when around a join needs rendezvous.enable = true: otherwise ranks find each other at once");
    }
    if (!joins && fault->joiner != CDDP_PLAN_UNSET) {
        tell(c, "fault.joiner", "fault.joiner has no effect unless fault.when is before_join, inside_join or after_join");
    }
}

/* Who is not a member issues nothing. */
static bool has_issuer(const cddp_plan *plan, const cddp_plan_collective *collective)
{
    const cddp_plan_group *group = collective->group != NULL ? find_group(plan, collective->group) : NULL;
    for (size_t i = 0; group != NULL && i < group->members.count; i++) {
        if (cddp_selector_has(&collective->ranks, group->members.items[i])) {
            return true;
        }
    }
    return group == NULL || group->members.count == 0;
}

static const cddp_op collective_ops[] = {CDDP_OP_ALLREDUCE, CDDP_OP_BROADCAST, CDDP_OP_ALLGATHER, CDDP_OP_BARRIER,
                                         CDDP_OP_REDUCE_SCATTER, CDDP_OP_REDUCE, CDDP_OP_GATHER, CDDP_OP_SCATTER,
                                         CDDP_OP_ALLTOALL, CDDP_OP_SEND, CDDP_OP_RECV};
static const cddp_red_op collective_reductions[] = {CDDP_RED_SUM, CDDP_RED_AVG,  CDDP_RED_PRODUCT, CDDP_RED_MIN,
                                                    CDDP_RED_MAX, CDDP_RED_BAND, CDDP_RED_BOR,     CDDP_RED_BXOR};

cddp_op cd_plan_op(const cddp_plan_collective *collective)
{
    return collective_ops[collective->op];
}

cddp_red_op cd_plan_reduction(const cddp_plan_collective *collective)
{
    return collective_reductions[collective->reduction];
}

static void check_collective(contradictions *c, const cddp_plan_collective *collective)
{
    const cddp_op op = cd_plan_op(collective);
    const cddp_red_op reduction = cd_plan_reduction(collective);
    const cddp_dtype dtype = (cddp_dtype)collective->dtype;
    const bool is_whole = dtype == CDDP_I64 || dtype == CDDP_I32 || dtype == CDDP_U8, is_bitwise = collective->reduction >= 5;
    const char *word = cddp_red_op_name(reduction);
    if (!cd_op_is_reduction(op) && reduction != CDDP_RED_SUM) {
        tell(c, "collective.reduction", "collective.reduction has no effect on %s", cddp_op_name(op));
    } else if (is_bitwise && !is_whole) {
        tell(c, "collective.reduction", "collective.reduction = \"%s\" is of whole numbers, and collective.dtype is %s", word, cddp_dtype_name(dtype));
    } else if (reduction == CDDP_RED_AVG && is_whole) {
        tell(c, "collective.reduction", "collective.reduction = \"avg\" is of fractions, and collective.dtype is %s", cddp_dtype_name(dtype));
    } else if (dtype == CDDP_C64 && reduction != CDDP_RED_SUM && reduction != CDDP_RED_AVG) {
        tell(c, "collective.reduction", "collective.reduction = \"%s\": complex numbers are only added and averaged", word);
    }
    if (!collective->in_place && op != CDDP_OP_ALLREDUCE && op != CDDP_OP_REDUCE) {
        tell(c, "collective.in_place", "collective.in_place has no effect on %s", cddp_op_name(op));
    }
    if (op == CDDP_OP_BARRIER && (collective->numel != 5 || dtype != CDDP_F32)) {
        tell(c, collective->numel != 5 ? "collective.numel" : "collective.dtype", "a barrier has no tensor: drop collective.%s",
             collective->numel != 5 ? "numel" : "dtype");
    }
    if (!cd_op_is_rooted(op) && collective->root != 0) {
        tell(c, "collective.root", "collective.root has no effect on %s", cddp_op_name(op));
    }
    const cddp_plan_group *group = collective->group != NULL ? find_group(c->plan, collective->group) : NULL;
    const uint64_t members = group != NULL && group->members.count > 0 ? group->members.count : c->plan->world.size;
    if (cd_op_is_rooted(op) && collective->root >= members) {
        tell(c, "collective.root", "collective.root = %llu, but the group has %llu ranks", (unsigned long long)collective->root,
             (unsigned long long)members);
    }
    if ((op == CDDP_OP_SEND || op == CDDP_OP_RECV) && collective->ranks.term_count == 0) {
        tell(c, "collective.op", "collective.op = \"%s\" needs collective.ranks: who %s", cddp_op_name(op), op == CDDP_OP_SEND ? "sends" : "receives");
    }
    if ((op == CDDP_OP_SEND || op == CDDP_OP_RECV) && members != 2) {
        tell(c, "collective.group", "collective.op = \"%s\" needs a group of two ranks: others would not count it among their operations", cddp_op_name(op));
    }
}

static void check_groups(contradictions *c)
{
    const cddp_plan *plan = c->plan;
    for (size_t i = 0; i < plan->group_count; i++) {
        const cddp_plan_group *group = &plan->groups[i];
        enter(c, "group", i);
        if (group->name == NULL) {
            tell(c, "group.name", "[[group]] number %zu has no name", i);
        }
        for (size_t k = 0; k < i; k++) {
            if (group->name != NULL && plan->groups[k].name != NULL && strcmp(group->name, plan->groups[k].name) == 0) {
                tell(c, "group.name", "two groups are called '%s'", group->name);
            }
        }
        for (size_t k = 0; k < group->members.count; k++) {
            for (size_t earlier = 0; earlier < k; earlier++) {
                if (group->members.items[earlier] == group->members.items[k]) {
                    tell(c, "group.members", "group '%s' has member %u twice", group->name != NULL ? group->name : "?", group->members.items[k]);
                }
            }
            if (group->members.items[k] >= plan->world.size) {
                tell(c, "group.members", "group '%s' has member %u, but world.size is %llu",
                     group->name != NULL ? group->name : "?", group->members.items[k], (unsigned long long)plan->world.size);
            }
        }
    }
    for (size_t i = 0; i < plan->collective_count; i++) {
        const cddp_plan_collective *collective = &plan->collectives[i];
        enter(c, "collective", i);
        check_selector(c, "collective.ranks", &collective->ranks, plan->world.size, "world.size");
        check_selector(c, "collective.steps", &collective->steps, plan->settings.train.steps, "train.steps");
        check_collective(c, collective);
        if (collective->group != NULL && find_group(plan, collective->group) == NULL) {
            tell(c, "collective.group", "collective.group = \"%s\", but no [[group]] is called so", collective->group);
        } else if (!has_issuer(plan, collective)) {
            tell(c, "collective.ranks", "collective.ranks selects nobody of group '%s'", collective->group);
        }
    }
}

static void check_when(contradictions *c, const cddp_plan_when *when)
{
    const cddp_plan *plan = c->plan;
    check_selector(c, "when.ranks", &when->ranks, plan->world.size, "world.size");
    check_selector(c, "when.steps", &when->steps, plan->settings.train.steps, "train.steps");
    check_selector(c, "when.micro_steps", &when->micro_steps, plan->settings.train.micro_steps, "train.micro_steps");
    if (when->freeze.count + when->unfreeze.count + when->replace_parameters.count > 0 &&
        when->micro_steps.term_count > 0) {
        tell(c, "when.micro_steps",
             "when.%s applies from the beginning of a step: when.micro_steps has no meaning beside it",
             when->freeze.count > 0     ? "freeze"
             : when->unfreeze.count > 0 ? "unfreeze"
                                        : "replace_parameters");
    }
    if (when->replace_parameters.count > 0 && when->ranks.term_count > 0) {
        tell(c, "when.replace_parameters",
             "when.replace_parameters is what a program does on all ranks: drop when.ranks");
    }
    if (when->replace_parameters.count > 0 && plan->settings.ddp.gradient_as_bucket_view) {
        tell(c, "when.replace_parameters",
             "a replaced parameter has no view: when.replace_parameters needs ddp.gradient_as_bucket_view = false");
    }
    if (when->await_producers == 0 && !cd_plan_has_streams(plan)) {
        tell(c, "when.await_producers", "when.await_producers has no effect without streams.producers: nobody has to wait");
    }
    if (when->ready_order.count > 0 && when->ready != 4) {
        tell(c, "when.ready_order", "when.ready_order has no effect without when.ready = \"listed\"");
    }
    if (when->ready == 4 && when->ready_order.count == 0) {
        tell(c, "when.ready", "when.ready = \"listed\" needs when.ready_order");
    }
    if (when->poison_parameter != NULL && (when->poison == CDDP_PLAN_UNSET || when->poison == 0)) {
        tell(c, "when.poison_parameter", "when.poison_parameter has no effect without when.poison");
    }
    if (when->backward_each == 1 && (when->forwards == CDDP_PLAN_UNSET || when->forwards < 2)) {
        tell(c, "when.backward_each", "when.backward_each needs when.forwards of at least 2");
    }
    if (when->grad_mode == 0 && when->backwards != CDDP_PLAN_UNSET && when->backwards > 0) {
        tell(c, "when.backwards", "when.grad_mode = false leaves no graph for when.backwards = %lld", (long long)when->backwards);
    }
}

/* Parts of an optimizer are stepped at the same time and exchanged then. */
static void check_sharded_optimizer(contradictions *c, const cddp_plan_optimizer *optimizer)
{
    const cddp_plan_settings *s = &c->plan->settings;
    if (optimizer->in_backward || optimizer->overlap != 0) {
        tell(c, "optimizer.shard", "optimizer.shard exchanges what all ranks stepped, optimizer.%s steps bucket by bucket: drop one",
             optimizer->in_backward ? "in_backward" : "overlap");
    }
    if (s->join.enable) {
        tell(c, "optimizer.shard", "optimizer.shard with join.enable: a rank that has run out of inputs takes no steps, and nobody else steps its part (ZRO-09)");
    }
    if (s->averager.kind != 0) {
        tell(c, "optimizer.shard", "optimizer.shard with averager.kind: what a rank broadcasts is its own model, and there would be nothing left to average");
    }
    if (s->model.device != 0) {
        tell(c, "optimizer.shard", "optimizer.shard is judged by numbers: it needs model.device = \"cpu\"");
    }
    if (cd_plan_has_streams(c->plan)) {
        tell(c, "optimizer.shard", "optimizer.shard exchanges what the host has stepped: drop streams.producers");
    }
}

/* Who finds his part of a sharded optimizer how. */
static void check_shard(contradictions *c)
{
    const cddp_plan *plan = c->plan;
    const char *order = plan->settings.shard.order != 0 ? "shard.order" : NULL, *padding = plan->settings.shard.padding != 0 ? "shard.padding" : NULL;
    bool has_whole = false, has_flat = false;
    for (size_t i = 0; i < plan->optimizer_count; i++) {
        has_whole |= plan->optimizers[i].shard == 1;
        has_flat |= plan->optimizers[i].shard == 2;
    }
    for (size_t i = 0; i < plan->override_count; i++) {
        order = strcmp(plan->overrides[i].key, "shard.order") == 0 ? "shard.order" : order;
        padding = strcmp(plan->overrides[i].key, "shard.padding") == 0 ? "shard.padding" : padding;
    }
    if (order != NULL && !has_whole) {
        tell(c, order, "shard.order has no effect without optimizer.shard = \"parameters\"");
    }
    if (padding != NULL && !has_flat) {
        tell(c, padding, "shard.padding has no effect without optimizer.shard = \"flat\"");
    }
}

static void check_optimizer(contradictions *c, const cddp_plan_optimizer *optimizer)
{
    if (optimizer->shard != 0) {
        check_sharded_optimizer(c, optimizer);
    }
    const bool keeps_state = optimizer->kind != 0 || optimizer->momentum > 0;
    if (optimizer->in_backward || optimizer->overlap != 0) {
        check_optimizer_in_backward(c, optimizer);
    }
    check_overlap(c, optimizer);
    check_selector(c, "optimizer.steps", &optimizer->steps, c->plan->settings.train.steps, "train.steps");
    if (optimizer->kind != 0 && (optimizer->momentum > 0 || optimizer->nesterov)) {
        tell(c, "optimizer.momentum", "optimizer.momentum and optimizer.nesterov belong to sgd");
    }
    if (optimizer->nesterov && optimizer->momentum <= 0) {
        tell(c, "optimizer.nesterov", "optimizer.nesterov needs optimizer.momentum");
    }
    if (keeps_state && c->plan->settings.model.device == 1) {
        tell(c, "optimizer.kind", "model.device = \"symbol\" proves the way to the optimizer: an optimizer that keeps state needs cpu");
    }
    if (optimizer->kind != 0 && c->plan->settings.join.broadcast_optimizer_state) {
        tell(c, "join.broadcast_optimizer_state",
             "join.broadcast_optimizer_state carries tensors: the step counts of %s would still differ; use sgd",
             optimizer->kind == 1 ? "adam" : optimizer->kind == 2 ? "adamw" : "adagrad");
    }
}

static void check_expect(contradictions *c)
{
    const cddp_plan_expect *expect = &c->plan->expect;
    if (expect->verdict == CDDP_EXPECT_FINDINGS && expect->finding_count == 0) {
        tell(c, "expect.verdict", "expect.verdict = \"findings\" needs an [[expect.finding]] that says which");
    }
    if (expect->verdict != CDDP_EXPECT_FINDINGS && expect->finding_count > 0 && expect->verdict != CDDP_EXPECT_ERROR) {
        tell(c, "expect.verdict", "[[expect.finding]] contradicts expect.verdict = \"verified\"");
    }
    if (expect->verdict == CDDP_EXPECT_ERROR && expect->error.count == 0) {
        tell(c, "expect.verdict", "expect.verdict = \"error\" needs expect.error: words of the message");
    }
    if (expect->verdict != CDDP_EXPECT_ERROR && expect->error.count > 0) {
        tell(c, "expect.error", "expect.error needs expect.verdict = \"error\"");
    }
    if (expect->also.count > 0 && expect->verdict == CDDP_EXPECT_VERIFIED) {
        tell(c, "expect.also", "expect.also excuses findings beside those named: it needs expect.verdict = \"findings\"");
    }
    if (expect->same_with.count > 0 && expect->verdict != CDDP_EXPECT_VERIFIED) {
        tell(c, "expect.same_with",
             "expect.same_with compares runs that are verified: it needs expect.verdict = \"verified\"");
    }
    for (size_t i = 0; i < expect->finding_count; i++) {
        enter(c, "expect.finding", i);
        if (expect->findings[i].check == NULL) {
            tell(c, "expect.finding.check", "[[expect.finding]] number %zu names no check", i);
        }
    }
}

/* What the simulator would take and not heed. */
static void check_network(contradictions *c)
{
    const cddp_plan_network *n = &c->plan->network;
    const bool has_bus = n->bus != NULL && strcmp(n->bus, "ideal") != 0;
    if (n->nics_per_node > 0 && n->transport != 2) {
        tell(c, "network.nics_per_node",
             "network.nics_per_node: only network.transport = \"messages\" has ranks wait for a card that they share");
    }
    if (n->nics_per_node > 0 && n->ranks_per_node == 0) {
        tell(c, "network.nics_per_node", "network.nics_per_node needs network.ranks_per_node: who shares the cards");
    }
    const char *idle = has_bus                      ? "network.bus"
                       : n->connection_gb_per_s > 0 ? "network.connection_gb_per_s"
                       : n->launch_us > 0           ? "network.launch_us"
                                                    : NULL;
    if (n->transport == 0 && idle != NULL) {
        tell(c, idle, "%s has no effect with network.transport = \"direct\", which takes no time", idle);
    }
    if (n->host_gb_per_s > 0 && (n->algorithm == NULL || strcmp(n->algorithm, "hfreduce") != 0)) {
        tell(c, "network.host_gb_per_s", "network.host_gb_per_s: only network.algorithm = \"hfreduce\" adds on hosts");
    }
}

size_t cd_plan_find_contradictions(const cddp_plan *plan, cd_contradiction_fn tell_fn, void *context)
{
    contradictions c = {.plan = plan, .tell = tell_fn, .context = context};
    if (plan->title == NULL) {
        tell(&c, "title", "a scenario needs a title");
    }
    check_settings(&c, &plan->settings);
    for (size_t i = 0; i < plan->override_count; i++) {
        check_selector(&c, "rank.ranks", &plan->overrides[i].ranks, plan->world.size, "world.size");
    }
    check_network(&c);
    check_batch(&c);
    check_streams(&c);
    check_rendezvous(&c);
    check_shard(&c);
    check_clip_groups(&c);
    for (size_t i = 0; i < plan->fault_count; i++) {
        enter(&c, "fault", i);
        check_fault(&c, &plan->faults[i]);
    }
    check_groups(&c);
    for (size_t i = 0; i < plan->optimizer_count; i++) {
        enter(&c, "optimizer", i);
        check_optimizer(&c, &plan->optimizers[i]);
    }
    for (size_t i = 0; i < plan->when_count; i++) {
        enter(&c, "when", i);
        check_when(&c, &plan->whens[i]);
    }
    const bool replays = plan->schedule.chooser != NULL && strcmp(plan->schedule.chooser, "replay") == 0;
    if (replays != (plan->schedule.string != NULL)) {
        tell(&c, "schedule.string", replays ? "schedule.chooser = \"replay\" needs schedule.string"
                                            : "schedule.string has no effect without schedule.chooser = \"replay\"");
    }
    check_expect(&c);
    return c.count;
}

static void keep_first(void *context, const char *key, const char *message)
{
    (void)key;
    char *first = context;
    if (first[0] == '\0') {
        snprintf(first, 256, "%s", message);
    }
}

cddp_status cddp_plan_check(const cddp_plan *plan, cddp_error *err)
{
    char first[256] = "";
    const size_t count = cd_plan_find_contradictions(plan, keep_first, first);
    return count == 0 ? CDDP_OK : cd_fail(err, CDDP_E_CONFIG, "%s", first);
}
