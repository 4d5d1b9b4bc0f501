/* SPDX-License-Identifier: Apache-2.0 */
/* Stages of ZeRO in DeepSpeed's words, as options of a sharded model.
**
** Not here: stage 1 (core/ddp/optimizers), what the options do (fsdp.c, units.c).
*/
#include "cddp/fsdp.h"
#include "core/base/error.h"
#include "core/base/sized.h"

cddp_fsdp_zero cddp_fsdp_zero_default(void)
{
    return (cddp_fsdp_zero){.size = sizeof(cddp_fsdp_zero),
                            .stage = 3,
                            .stage3_prefetch_bucket_size = 50000000,
                            .stage3_max_live_parameters = 1000000000};
}

static cddp_status check_stage(const cddp_fsdp_zero *z, cddp_error *err)
{
    const cddp_fsdp_zero initial = cddp_fsdp_zero_default();
    const struct {
        const char *word;
        int64_t value, initial;
    } words[] = {{"stage3_prefetch_bucket_size", z->stage3_prefetch_bucket_size,
                  initial.stage3_prefetch_bucket_size},
                 {"stage3_max_live_parameters", z->stage3_max_live_parameters,
                  initial.stage3_max_live_parameters},
                 {"stage3_param_persistence_threshold", z->stage3_param_persistence_threshold,
                  initial.stage3_param_persistence_threshold},
                 {"mics_shard_size", z->mics_shard_size, initial.mics_shard_size}};
    if (z->stage != 2 && z->stage != 3)
        return cd_fail(err, CDDP_E_ARG,
                       "cddp_fsdp_options_set_zero: stage %u; 2 and 3 are sharded models, 1 is a "
                       "sharded optimizer (cddp/zero.h)",
                       z->stage);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (words[i].value < 0)
            return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_options_set_zero: %s is %lld, below 0",
                           words[i].word, (long long)words[i].value);
        if (z->stage == 2 && words[i].value != words[i].initial)
            return cd_fail(err, CDDP_E_CONFIG,
                           "cddp_fsdp_options_set_zero: %s is of stage 3; stage 2 keeps what it "
                           "gathered in forward until its backward",
                           words[i].word);
    }
    return CDDP_OK;
}

cddp_status cddp_fsdp_options_set_zero(cddp_fsdp_options *options, const cddp_fsdp_zero *zero,
                                       cddp_error *err)
{
    cddp_fsdp_zero own = cddp_fsdp_zero_default();
    CD_TRY(CD_SIZED_CHECK(zero, cddp_fsdp_zero, mics_shard_size, err));
    CD_TRY(CD_SIZED_CHECK(options, cddp_fsdp_options, persistence_threshold, err));
    cd_sized_copy(&own, sizeof own, zero);
    CD_TRY(check_stage(&own, err));
    if ((own.mics_shard_size > 0) != (options->replicate_group != NULL))
        return cd_fail(err, CDDP_E_CONFIG,
                       "cddp_fsdp_options_set_zero: mics_shard_size is %u, and replicate_group is "
                       "%s: shard groups have replicas, and the whole world has none",
                       own.mics_shard_size, options->replicate_group != NULL ? "given" : "not");
    options->strategy = own.stage == 2            ? CDDP_FSDP_SHARD_GRAD_OP
                        : own.mics_shard_size > 0 ? CDDP_FSDP_HYBRID_SHARD
                                                  : CDDP_FSDP_FULL_SHARD;
    if (own.stage == 2) return CDDP_OK;
    const bool looks_ahead = own.stage3_prefetch_bucket_size > 0;
    options->backward_prefetch = looks_ahead ? CDDP_FSDP_BACKWARD_PRE : CDDP_FSDP_PREFETCH_NONE;
    options->forward_prefetch = looks_ahead;
    options->prefetch_numel = own.stage3_prefetch_bucket_size;
    options->live_numel_max = own.stage3_max_live_parameters;
    options->persistence_threshold = own.stage3_param_persistence_threshold;
    return CDDP_OK;
}
