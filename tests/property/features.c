/* SPDX-License-Identifier: Apache-2.0 */
/* The features, and the rules by which they exclude each other: a table of keys, predicates over
** draws, and a text. */
#include "tests/property/features.h"

#include "core/base/error.h"
#include "scenarios/reader/reader.h"

#include <stdio.h>
#include <string.h>

const feature features[FEATURES] = {
    [WORLD] = {"world.size", {"1", "2", "3", "4", "5"}},
    [MODEL] = {"model.name",
               {"mlp", "chain", "cnn", "branchy", "tied_lm", "transformer", "gan", "params",
                "embedding_bag"}},
    [DTYPE] = {"model.dtype", {"f32", "f64", "bf16"}},
    [EXACT] = {"model.exact", {"true", "false"}},
    [OPTIMIZER] = {"optimizer.0.kind", {"sgd", "adam", "adamw", "adagrad"}},
    [MOMENTUM] = {"optimizer.0.momentum", {"", "0.5"}},
    [MICROS] = {"train.micro_steps", {"1", "2", "3"}},
    [ZERO_GRAD] = {"train.zero_grad", {"none", "zero", "keep"}},
    [LOSS] = {"train.loss",
              {"dyadic", "mean", "sum", "token_mean", "global_mean", "global_token_mean"}},
    [CAP] = {"ddp.bucket_cap_mb", {"", "0.0001", "0.0005"}},
    [UNUSED] = {"ddp.find_unused_parameters", {"false", "true"}},
    [VIEW] = {"ddp.gradient_as_bucket_view", {"false", "true"}},
    [STATIC] = {"ddp.static_graph", {"false", "true"}},
    [BATCHED] = {"ddp.batched_grad_copy", {"false", "true"}},
    [BUFFERS] = {"ddp.broadcast_buffers", {"true", "false"}},
    [HOOK] = {"hook.name",
              {"", "allreduce", "fp16_compress", "bf16_compress", "reproducible", "powersgd",
               "topk", "quantize_per_tensor", "post_local_sgd"}},
    [CHOOSER] = {"schedule.chooser", {"fifo", "random"}},
    [READY] = {"schedule.ready", {"engine", "reversed", "shuffled", "chosen"}},
    [JOIN] = {"join.enable", {"false", "true"}},
    [DIVIDE] = {"join.divide_by_initial_world_size", {"true", "false"}},
    [AMP] = {"amp.enable", {"false", "true"}},
    [CLIP] = {"clip.max_norm", {"", "1"}},
    [SAMPLES] = {"data.samples", {"1", "2", "3"}},
    [SHUFFLE] = {"data.shuffle", {"false", "true"}},
    [DEVICE] = {"model.device", {"cpu", "symbol"}},
    [STEPS] = {"train.steps", {"1", "2", "3"}},
    [BRANCH] = {"when.0.branch", {"", "1"}},
    [MIXED] = {"mixed_precision.param_dtype", {"none", "bf16", "f16"}},
    [REDUCE] = {"mixed_precision.reduce_dtype", {"none", "f32", "bf16"}},
    [IN_BACKWARD] = {"optimizer.0.in_backward", {"false", "true"}},
    [OVERLAP] = {"optimizer.0.overlap",
                 {"none", "hook_then_optimizer", "hook_with_zero_step",
                  "hook_with_zero_step_interleaved"}},
    [CUT] = {"optimizer.0.shard_buckets", {"false", "true"}},
    [OBJECTIVE] = {"train.objective", {"as_written", "mean", "token_mean"}},
    [DELAYED] = {"ddp.delay_all_reduce_named_params", {"", "out.*"}},
    [CREATE_GRAPH] = {"when.0.create_graph", {"", "true"}},
    [REPLACE] = {"when.0.replace_buffers", {"", "true"}},
    [STREAMS] = {"streams.producers", {"0", "1", "3"}},
    [NORM] = {"model.options", {"", "norm=sync", "norm=batch"}},
    [COLLECTIVE] = {"collective.0.op",
                    {"", "allreduce", "broadcast", "allgather", "reduce_scatter", "reduce",
                     "gather", "alltoall"}},
    [REDUCTION] = {"collective.0.reduction", {"sum", "avg", "product", "min", "max"}},
    [IN_PLACE] = {"collective.0.in_place", {"true", "false"}},
    [PLACE] = {"collective.0.place",
               {"before_forward", "before_backward", "after_backward", "after_step"}},
    [AVERAGER] = {"averager.levels", {"", "1", "2", "3"}},
    [PERIODS] = {"averager.periods", {"", "*weight=2"}},
    [SHARD] = {"optimizer.0.shard", {"none", "parameters", "flat"}},
    [CLIP_GROUP] = {"clip.group", {"", "world"}},
    [RESUME] = {"train.checkpoint_step", {"0", "1", "2"}},
    [FORWARDS] = {"when.0.forwards", {"", "2"}},
    [SYNC] = {"when.0.sync", {"", "true"}},
    [OWN_MICROS] = {"train.micro_steps@0", {"", "3"}},
    [INIT] = {"model.init", {"shared", "distinct"}},
    [DROPOUT] = {"model.options", {"", "dropout=0.25"}},
    [EVALUATE] = {"when.0.evaluate", {"", "wrapper", "module"}},
    [POISON] = {"when.0.poison", {"", "inf"}},
};

uint32_t feature_level_count(const feature *f)
{
    uint32_t n = 0;
    while (n < LEVELS_MAX && f->levels[n] != NULL) n++;
    return n;
}

const char *feature_value(const feature_draw *d, size_t f)
{
    return features[f].levels[d->level[f]];
}

static bool is(const feature_draw *d, size_t f, const char *value)
{
    return strcmp(feature_value(d, f), value) == 0;
}

/* Features that use the hook's slot, and wrappers around it. */
static bool makes_sense_beside_hooks(const feature_draw *d)
{
    const bool casts = !is(d, MIXED, "none") || !is(d, REDUCE, "none"),
               delays = !is(d, DELAYED, "");
    const bool in_backward = is(d, IN_BACKWARD, "true");
    if (casts && (is(d, DEVICE, "symbol") || !is(d, HOOK, "") || is(d, VIEW, "true") ||
                  !is(d, DTYPE, "f32")))
        return false; /* MIX-05 */
    /* OIB-01 */
    if (in_backward && (casts || !is(d, HOOK, "") || is(d, AMP, "true") || is(d, CLIP, "1")))
        return false;
    if (delays &&
        (!is(d, MODEL, "mlp") || is(d, JOIN, "true") || in_backward || !is(d, READY, "engine")))
        return false; /* DEL-03; the trigger's gradient is the last (DEL-05) */
    return true;
}

/* A collective of the program's own, and a model averager with the hook that makes it worth
** having. */
static bool makes_sense_beside_the_reducer(const feature_draw *d)
{
    const bool reduces = is(d, COLLECTIVE, "allreduce") || is(d, COLLECTIVE, "reduce_scatter") ||
                         is(d, COLLECTIVE, "reduce");
    if (!reduces && !is(d, REDUCTION, "sum")) return false;
    if (!is(d, COLLECTIVE, "allreduce") && !is(d, COLLECTIVE, "reduce") && !is(d, IN_PLACE, "true"))
        return false;
    if (is(d, COLLECTIVE, "") && !is(d, PLACE, "before_forward")) return false;
    /* ranks without inputs would be missing */
    if (!is(d, COLLECTIVE, "") && is(d, JOIN, "true")) return false;
    /* forms are linear */
    if (is(d, DEVICE, "symbol") && !is(d, REDUCTION, "sum") && !is(d, REDUCTION, "avg"))
        return false;
    if (is(d, MODEL, "params") && !is(d, PERIODS, "")) return false; /* they have no weight */
    if (is(d, AVERAGER, "")) return is(d, PERIODS, "");
    return !is(d, DEVICE, "symbol") && is(d, STREAMS, "0") && !is(d, JOIN, "true") &&
           !is(d, IN_BACKWARD, "true");
}

/* A sharded optimizer, and a norm that is added up over its parts. */
static bool makes_sense_when_sharded(const feature_draw *d)
{
    const bool is_sharded = !is(d, SHARD, "none");
    if (!is(d, CLIP_GROUP, "") && (!is_sharded || !is(d, CLIP, "1"))) return false; /* ZOO-127 */
    if (!is_sharded) return true;
    if (is(d, MODEL, "params")) return false; /* several dtypes (ZRO-08) */
    /* parameters that the wrapper does not reduce itself */
    if (!is(d, DELAYED, "")) return false;
    return !is(d, JOIN, "true") && !is(d, IN_BACKWARD, "true") && is(d, DEVICE, "cpu") &&
           is(d, STREAMS, "0") && is(d, AVERAGER, "");
}

/* An optimizer behind the hook (OIB-03, ZRO-10…12). */
static bool makes_sense_behind_the_hook(const feature_draw *d)
{
    const bool is_assigned =
        is(d, OVERLAP, "hook_with_zero_step") || is(d, OVERLAP, "hook_with_zero_step_interleaved");
    if (is(d, CUT, "true") && !is_assigned) return false;
    if (is(d, OVERLAP, "none")) return true;
    if (is(d, IN_BACKWARD, "true") || !is(d, SHARD, "none") || !is(d, MIXED, "none") ||
        !is(d, REDUCE, "none"))
        return false;
    if (is(d, AMP, "true") || is(d, CLIP, "1") || !is(d, AVERAGER, "") || !is(d, DELAYED, ""))
        return false;
    if (!is_assigned) return is(d, HOOK, "") && is(d, MICROS, "1");
    if (is(d, UNUSED, "true") && !is(d, STATIC, "true")) return false;
    return !is(d, JOIN, "true") && is(d, DEVICE, "cpu") && is(d, STREAMS, "0");
}

/* What a program does between backwards, and what a rank does alone. */
static bool makes_sense_in_time(const feature_draw *d)
{
    const bool is_low = !is(d, MIXED, "none") || !is(d, REDUCE, "none");
    const bool goes_on = is(d, RESUME, "0") || (is(d, RESUME, "1") && !is(d, STEPS, "1")) ||
                         (is(d, RESUME, "2") && is(d, STEPS, "3"));
    const bool is_behind = is(d, IN_BACKWARD, "true") || !is(d, OVERLAP, "none");
    const bool is_alone = !is(d, FORWARDS, "") || !is(d, SYNC, "") || !is(d, OWN_MICROS, "");
    if (!goes_on || (!is(d, RESUME, "0") && (is(d, JOIN, "true") || is(d, DEVICE, "symbol") ||
                                             !is(d, STREAMS, "0") || is_low)))
        return false;
    /* sparse gradients: host memory, and optimizers that take them (SPA-01) */
    if (is(d, MODEL, "embedding_bag") &&
        (is(d, DEVICE, "symbol") || !is(d, STREAMS, "0") || is_behind || is_low ||
         !is(d, HOOK, "") || !is(d, OPTIMIZER, "sgd") || is(d, MOMENTUM, "0.5") ||
         is(d, CLIP, "1") || is(d, AMP, "true") || !is(d, SHARD, "none") || !is(d, DTYPE, "f32") ||
         is(d, JOIN, "true") || is(d, BATCHED, "true")))
        return false;
    if (is(d, NORM, "norm=batch") && !is(d, MODEL, "mlp") && !is(d, MODEL, "cnn")) return false;
    if (is(d, NORM, "norm=batch") && (is(d, DEVICE, "symbol") || is(d, SAMPLES, "1"))) return false;
    if (is_alone && (is(d, JOIN, "true") || is_behind || !is(d, OBJECTIVE, "as_written") ||
                     !is(d, DELAYED, "") || is(d, STATIC, "true")))
        return false;
    /* an average over all ranks' micro-steps needs equal counts */
    if (!is(d, OWN_MICROS, "") && (is(d, LOSS, "global_mean") || is(d, LOSS, "global_token_mean")))
        return false;
    if (is(d, OWN_MICROS, "")) return true;
    /* as many reductions and synchronised forwards in a step as the others have */
    if (is(d, MICROS, "1") && (!is(d, SYNC, "") || !is(d, FORWARDS, ""))) return false;
    return is(d, COLLECTIVE, "") && !is(d, NORM, "norm=sync");
}

/* The loss computes the objective: the same counts, or counts that are equal everywhere. */
static bool makes_sense_as_a_loss(const feature_draw *d)
{
    if (is(d, OBJECTIVE, "as_written")) return true;
    if (is(d, JOIN, "true")) return false;
    if (is(d, OBJECTIVE, "mean")) return is(d, LOSS, "mean") || is(d, LOSS, "global_mean");
    return is(d, LOSS, "token_mean") || is(d, LOSS, "global_token_mean");
}

/* Comm hooks that keep a state or change more than a dtype. */
static bool has_own_hook(const feature_draw *d)
{
    return !is(d, HOOK, "") && !is(d, HOOK, "allreduce") && !is(d, HOOK, "fp16_compress") &&
           !is(d, HOOK, "bf16_compress");
}

/* What the model and a step are besides. */
static bool makes_sense_at_the_edges(const feature_draw *d)
{
    const bool drops = !is(d, DROPOUT, ""), is_poisoned = !is(d, POISON, "");
    if (has_own_hook(d) && (is(d, DEVICE, "symbol") || !is(d, STREAMS, "0"))) return false;
    /* replicas part; it starts with a step, and shares no statistics */
    if (is(d, HOOK, "post_local_sgd") &&
        (is(d, AVERAGER, "") || !is(d, SYNC, "") || !is(d, OWN_MICROS, "") ||
         is(d, NORM, "norm=sync") || is(d, STATIC, "true")))
        return false;
    /* forms are linear, and norms have the key */
    if (drops && (!is(d, MODEL, "mlp") || is(d, DEVICE, "symbol") || !is(d, NORM, "")))
        return false;
    /* the scaler leaves the step out on every rank, but where each trains on its own gradients */
    if (is_poisoned && (!is(d, AMP, "true") || is(d, HOOK, "post_local_sgd"))) return false;
    if (!is(d, EVALUATE, "") && is(d, JOIN, "true")) return false;
    return !is(d, INIT, "distinct") || !is(d, WORLD, "1");
}

/* Combinations that are no valid program, or that the single-process reference does not declare. */
static bool makes_sense(const feature_draw *d)
{
    bool symbol = is(d, DEVICE, "symbol"),
         casts = is(d, HOOK, "fp16_compress") || is(d, HOOK, "bf16_compress");
    bool branches = is(d, BRANCH, "1") || is(d, MODEL, "branchy") || is(d, MODEL, "gan");
    if (branches && !is(d, UNUSED, "true")) return false; /* RED-12 */
    /* only branchy has branches */
    if (is(d, BRANCH, "1") && !is(d, MODEL, "branchy")) return false;
    /* STA-02, STA-01 */
    if (is(d, STATIC, "true") && (is(d, UNUSED, "true") || branches)) return false;
    if (symbol && (casts || is(d, AMP, "true") || is(d, CLIP, "1") || !is(d, OPTIMIZER, "sgd") ||
                   is(d, MOMENTUM, "0.5") || is(d, MODEL, "transformer")))
        return false;
    if (is(d, NORM, "norm=sync") && ((!is(d, MODEL, "mlp") && !is(d, MODEL, "cnn")) ||
                                     is(d, JOIN, "true") || is(d, WORLD, "1") || symbol))
        return false; /* JON-18; two values per channel at least */
    if (!is(d, STREAMS, "0") && (symbol || !is(d, MIXED, "none") || !is(d, REDUCE, "none")))
        return false; /* the host keeps the numbers */
    if (is(d, MOMENTUM, "0.5") && !is(d, OPTIMIZER, "sgd")) return false;
    if (casts && !is(d, DTYPE, "f32")) return false;
    if (is(d, DIVIDE, "false") && !is(d, JOIN, "true")) return false;
    if (is(d, JOIN, "true") && !is(d, OPTIMIZER, "sgd"))
        return false; /* step counters of joined ranks stand still (INT-01) */
    if (is(d, JOIN, "true") && is(d, AMP, "true") && !is(d, WORLD, "1"))
        return false; /* and so do their loss scalers, which differ at the end */
    if (is(d, CHOOSER, "fifo") && is(d, READY, "chosen")) return false;
    return makes_sense_beside_hooks(d) && makes_sense_as_a_loss(d) &&
           makes_sense_beside_the_reducer(d) && makes_sense_when_sharded(d) &&
           makes_sense_behind_the_hook(d) && makes_sense_in_time(d) && makes_sense_at_the_edges(d);
}

/* The self-test has a point for each of these options (tests/selftest/points.def). */
static const char *options_of_hook(const feature_draw *d)
{
    if (is(d, HOOK, "powersgd"))
        return "[hook]\noptions = \"matrix_approximation_rank=1,start_powerSGD_iter=2\"\n";
    if (is(d, HOOK, "topk")) return "[hook]\noptions = \"ratio=0.25\"\n";
    if (is(d, HOOK, "post_local_sgd"))
        return "[hook]\noptions = "
               "\"start_localSGD_iter=1,post_local_gradient_allreduce=false\"\n";
    return "";
}

/* The plan, or NULL when the reader refuses the combination. */
cddp_plan *feature_plan(const feature_draw *d)
{
    /* odd ranks run out of inputs */
    static const char joins[] =
        "[[rank]]\nranks = \"1%2\"\n[rank.data]\ninputs = 1\n"
        "[join]\nbroadcast_optimizer_state = true\n"; /* without it replicas part (INT-01) */
    static const char triggers[] = "[ddp]\nparam_to_hook_all_reduce = \"layers.0.weight\"\n";
    static const char even_steps[] = "[[when]]\nsteps = \"0%2\"\n"; /* even steps differ */
    /* odd ranks go another way */
    static const char branches[] = "[[when]]\nranks = \"1%2\"\nbranch = 1\n";
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    char text[1024], sets[FEATURES + 3][96];
    const char *list[FEATURES + 3];
    size_t count = 0;
    const bool has_even_steps = is(d, CREATE_GRAPH, "true") || is(d, REPLACE, "true");
    snprintf(text, sizeof text, "schema = 1\ntitle = \"drawn\"\n%s%s%s%s%s%s%s%s%s%s%s%s",
             is(d, DELAYED, "") ? "" : triggers, is(d, JOIN, "true") ? joins : "",
             has_even_steps ? even_steps : "",
             is(d, CREATE_GRAPH, "true") ? "create_graph = true\n" : "",
             is(d, REPLACE, "true") ? "replace_buffers = true\n" : "",
             is(d, BRANCH, "1") ? branches : "",
             is(d, FORWARDS, "2") ? "[[when]]\nmicro_steps = 0\nforwards = 2\n" : "",
             is(d, SYNC, "true") ? "[[when]]\nmicro_steps = 0\nsync = true\n" : "",
             is(d, EVALUATE, "wrapper")  ? "[[when]]\nevaluate = \"wrapper\"\n"
             : is(d, EVALUATE, "module") ? "[[when]]\nevaluate = \"module\"\n"
                                         : "",
             is(d, POISON, "") ? "" : "[[when]]\nranks = 0\nsteps = \"1%2\"\npoison = \"inf\"\n",
             options_of_hook(d), is(d, RESUME, "0") ? "" : "[train]\nresume = true\n");
    snprintf(sets[count++], sizeof sets[0], "world.seed=%llu",
             (unsigned long long)(d->seed % 1000000));
    for (size_t f = 0; f < FEATURES; f++)
        if (f != BRANCH && f != CREATE_GRAPH && f != REPLACE && f != FORWARDS && f != SYNC &&
            f != EVALUATE && f != POISON &&
            (f < REDUCTION || f > PLACE || !is(d, COLLECTIVE, "")) &&
            feature_value(d, f)[0] != '\0')
            snprintf(sets[count++], sizeof sets[0], "%s=%s", features[f].key, feature_value(d, f));
    if (!is(d, AVERAGER, "")) snprintf(sets[count++], sizeof sets[0], "averager.kind=periodic");
    for (size_t i = 0; i < count; i++) list[i] = sets[i];
    cd_reader_options options = {.sets = list, .set_count = count};
    return cd_reader_read_text(&options, "drawn", text, &plan, &err) == CDDP_OK ? plan : NULL;
}

/* ---- draws ---- */

static void draw_levels(cd_prng *prng, feature_draw *d)
{
    d->seed = cd_prng_next(prng);
    for (size_t f = 0; f < FEATURES; f++)
        d->level[f] = (uint32_t)cd_prng_below(prng, feature_level_count(&features[f]));
    /* Rare features stay rare, so that the common ones meet each other as well. */
    if (!cd_prng_chance(prng, 1, 4)) d->level[DEVICE] = 0;
    if (!cd_prng_chance(prng, 1, 3)) d->level[JOIN] = d->level[DIVIDE] = 0;
    if (!cd_prng_chance(prng, 1, 3)) d->level[MIXED] = d->level[REDUCE] = 0;
    if (!cd_prng_chance(prng, 1, 3)) d->level[IN_BACKWARD] = 0;
    if (!cd_prng_chance(prng, 1, 3)) d->level[OBJECTIVE] = 0;
    if (!cd_prng_chance(prng, 1, 2))
        d->level[COLLECTIVE] = d->level[REDUCTION] = d->level[IN_PLACE] = d->level[PLACE] = 0;
    if (!cd_prng_chance(prng, 1, 3)) d->level[AVERAGER] = d->level[PERIODS] = 0;
    if (!cd_prng_chance(prng, 1, 3)) d->level[RESUME] = 0;
    if (!cd_prng_chance(prng, 1, 3)) d->level[FORWARDS] = d->level[SYNC] = d->level[OWN_MICROS] = 0;
    if (!cd_prng_chance(prng, 1, 3)) d->level[INIT] = d->level[DROPOUT] = 0;
    if (!cd_prng_chance(prng, 1, 3)) d->level[EVALUATE] = d->level[POISON] = 0;
    if (cd_prng_chance(prng, 1, 2)) d->level[MODEL] = (uint32_t)cd_prng_below(prng, 4);
}

void feature_draw_any(cd_prng *prng, feature_draw *d)
{
    do draw_levels(prng, d);
    while (!makes_sense(d));
}

static bool is_valid(const feature_draw *d)
{
    cddp_plan *plan = makes_sense(d) ? feature_plan(d) : NULL;
    const bool is_read = plan != NULL;
    cddp_plan_destroy(plan);
    return is_read;
}

/* Few features besides, so that rare pairs are found; many, so that other pairs meet on the way. */
bool feature_draw_pair(cd_prng *prng, const feature_pair *pair, uint32_t tries, feature_draw *d)
{
    for (uint32_t n = 0; n <= tries; n++) {
        draw_levels(prng, d);
        for (size_t f = 0; f < FEATURES; f++)
            if (n == tries || cd_prng_below(prng, tries) < n) d->level[f] = 0;
        d->level[pair->a] = pair->i;
        d->level[pair->b] = pair->j;
        if (is_valid(d)) return true;
    }
    return false;
}
