/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/zero.h"

#include <string.h>

#define BYTES_PER_MB 1048576.0

/* Words of DeepSpeed that are no keys, and what to do instead. */
static const struct {
    const char *word, *why;
} refusals[] = {
    {"allgather_bucket_size", "what was stepped is gathered as a whole, without buckets"},
    {"allgather_partitions", "parameters are gathered after each step, and never broadcast"},
    {"reduce_scatter", "stage 1 all-reduces, stages 2 and 3 scatter, and neither can do otherwise"},
    {"offload_param", "where shards lie is a setting of [fsdp]"},
    {"offload_optimizer", "where shards lie is a setting of [fsdp]"},
    {"cpu_offload", "where shards lie is a setting of [fsdp]"},
    {"cpu_offload_params", "where shards lie is a setting of [fsdp]"},
    {"cpu_offload_use_pin_memory", "memory is never pinned"},
    {"sub_group_size", "an optimizer steps all of its shards at once"},
    {"stage3_max_reuse_distance",
     "a unit is freed after its forward, however soon it is used again"},
    {"stage3_module_granularity_threshold", "which modules are units says fsdp.auto_wrap_policy"},
    {"stage3_use_all_reduce_for_fetch_params", "units are always gathered"},
    {"stage3_gather_16bit_weights_on_model_save",
     "a full state has the parameters' own dtype; fsdp.state_dict_type says which state"},
    {"stage3_gather_fp16_weights_on_model_save",
     "a full state has the parameters' own dtype; fsdp.state_dict_type says which state"},
    {"stage3_model_persistence_threshold",
     "units stay whole by their own size alone: stage3_param_persistence_threshold"},
    {"zero_hpz_partition_size", "parameters have no second partition; mics_shard_size cuts them "
                                "within smaller groups"},
    {"zero_quantized_weights", "gathers carry mixed_precision.param_dtype, and no integers"},
    {"zero_quantized_nontrainable_weights",
     "gathers carry mixed_precision.param_dtype, and no integers"},
    {"zero_quantized_gradients", "sums carry mixed_precision.reduce_dtype, and no integers"},
    {"mics_hierarchical_params_gather", "a unit is gathered in one step"},
    {"round_robin_gradients", "each gradient goes to the rank that has its slice"},
    {"ignore_unused_parameters", "parameters without a gradient are always accepted (FPM-07)"},
    {"load_from_fp32_weights", "a state is loaded bit for bit"},
    {"legacy_stage1", "there is one way to do stage 1"},
    {"elastic_checkpoint", "a state is always loaded into any world (FST-09)"},
    {"memory_efficient_linear", "layers are computed in one way"},
    {"leaf_module", "which modules are units says fsdp.auto_wrap_policy"},
};

const char *cd_zero_find_refusal(const char *table, const char *field)
{
    /* "offload_param" is a table there */
    const char *word = strncmp(table, "zero.", 5) == 0 ? table + 5 : field;
    if (word == field && strcmp(table, "zero") != 0) return NULL;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        if (strcmp(refusals[i].word, word) == 0) return refusals[i].why;
    return NULL;
}

static void shard_model(const cddp_plan_zero *z, cddp_plan_fsdp *f)
{
    f->enable = true;
    f->sharding_strategy = CDDP_SHARDING_GRAD_OP;
    if (z->stage == 2) return;
    const bool looks_ahead = z->stage3_prefetch_bucket_size > 0;
    f->sharding_strategy = z->mics_shard_size > 0 ? CDDP_SHARDING_HYBRID : CDDP_SHARDING_FULL;
    f->shard_group_size = z->mics_shard_size;
    f->backward_prefetch = looks_ahead ? CDDP_SHARDING_PREFETCH_PRE : CDDP_SHARDING_PREFETCH_NONE;
    f->forward_prefetch = looks_ahead;
}

static double bytes_of(int64_t model_dtype)
{
    return model_dtype == CDDP_MODEL_DTYPE_F64 ? 8 : model_dtype == CDDP_MODEL_DTYPE_F32 ? 4 : 2;
}

void cd_zero_resolve(const cddp_plan *plan, cddp_plan_settings *settings)
{
    const cddp_plan_zero *z = &plan->zero;
    if (z->stage >= 2) shard_model(z, &settings->fsdp);
    if (z->stage == 1)
        settings->ddp.bucket_cap_mb =
            (double)z->reduce_bucket_size * bytes_of(settings->model.dtype) / BYTES_PER_MB;
}

bool cd_zero_shards_model(const cddp_plan *plan)
{
    return plan->settings.fsdp.enable || plan->zero.stage >= 2;
}

int64_t cd_zero_get_shard(const cddp_plan *plan, size_t optimizer)
{
    if (plan->zero.stage == 1) return CDDP_SHARD_FLAT;
    return optimizer < plan->optimizer_count ? plan->optimizers[optimizer].shard : CDDP_SHARD_NONE;
}
