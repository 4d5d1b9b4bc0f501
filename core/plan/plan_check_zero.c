/* SPDX-License-Identifier: Apache-2.0 */
/* Contradictions with [zero]: words of another stage, and keys that say the same in other words. */
#include "core/plan/plan_check.h"

#include "core/plan/zero.h"

#include <stdio.h>
#include <string.h>

/* Which stages know a word. */
static const struct {
    const char *field;
    bool is_of[4];
    const char *why; /* what the others do */
} words[] = {
    {"reduce_bucket_size",
     {false, true, false, false},
     "stages 2 and 3 reduce whole units, and fsdp.auto_wrap_policy says how large they are"},
    {"stage3_prefetch_bucket_size",
     {false, false, false, true},
     "stages 1 and 2 gather nothing in backward"},
    {"stage3_max_live_parameters",
     {false, false, false, true},
     "stages 1 and 2 have all parameters at once"},
    {"stage3_param_persistence_threshold",
     {false, false, false, true},
     "stages 1 and 2 have all parameters at once"},
    {"mics_shard_size", {false, false, false, true}, "stages 1 and 2 cut over all ranks"},
    {"overlap_comm", {false, true, true, true}, NULL},
    {"contiguous_gradients", {false, true, true, true}, NULL},
};

/* Keys that a stage sets. */
static const struct {
    const char *key;
    uint64_t first, last; /* stages */
} settled[] = {
    {"ddp.bucket_cap_mb", 1, 1},     {"ddp.bucket_cap_mb_list", 1, 1},
    {"fsdp.enable", 1, 3},           {"fsdp.sharding_strategy", 2, 3},
    {"fsdp.shard_group_size", 2, 3}, {"fsdp.backward_prefetch", 3, 3},
    {"fsdp.forward_prefetch", 3, 3},
};

static bool is_given(const cddp_plan *plan, const cd_key_row *row)
{
    union {
        char bytes[64];
        double aligned;
    } initial = {{0}};
    const char *base =
        row->scope == CD_SCOPE_RANK ? (const char *)&plan->settings : (const char *)plan;
    cd_key_parse_initial(row, initial.bytes);
    return memcmp(base + row->offset, initial.bytes, row->width) != 0;
}

static void check_words(cd_contradictions *c)
{
    const uint64_t stage = c->plan->zero.stage;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char key[64];
        snprintf(key, sizeof key, "zero.%s", words[i].field);
        if (words[i].is_of[stage] || !is_given(c->plan, cd_key_find("zero", words[i].field)))
            continue;
        if (stage == 0)
            cd_plan_contradict(c, key, "%s has no effect without zero.stage", key);
        else
            cd_plan_contradict(c, key, "%s has no effect with zero.stage = %d: %s", key, (int)stage,
                               words[i].why);
    }
}

static void check_others(cd_contradictions *c)
{
    const uint64_t stage = c->plan->zero.stage;
    for (size_t i = 0; i < sizeof settled / sizeof settled[0]; i++)
        if (stage >= settled[i].first && stage <= settled[i].last &&
            is_given(c->plan, cd_key_find_path(settled[i].key)))
            cd_plan_contradict(c, settled[i].key,
                               "%s with zero.stage = %d, which sets it: drop one", settled[i].key,
                               (int)stage);
    for (size_t i = 0; i < c->plan->optimizer_count; i++)
        if (c->plan->optimizers[i].shard != CDDP_SHARD_NONE)
            cd_plan_contradict(c, "optimizer.shard",
                               "optimizer.shard with zero.stage = %d, which says what is sharded: "
                               "drop one",
                               (int)stage);
}

void cd_plan_check_zero(cd_contradictions *c)
{
    const cddp_plan_zero *z = &c->plan->zero;
    if (z->stage > 3) return; /* the range of its key */
    check_words(c);
    if (z->stage == 0) return;
    check_others(c);
    if (!z->overlap_comm)
        cd_plan_contradict(c, "zero.overlap_comm",
                           "zero.overlap_comm = false: reductions always run while backward goes "
                           "on; drop it");
    if (!z->contiguous_gradients)
        cd_plan_contradict(c, "zero.contiguous_gradients",
                           "zero.contiguous_gradients = false: gradients of a bucket or a unit "
                           "always lie in one buffer; drop it");
    if (z->mics_shard_size > 0 && z->stage3_param_persistence_threshold > 0)
        cd_plan_contradict(c, "zero.stage3_param_persistence_threshold",
                           "zero.stage3_param_persistence_threshold with zero.mics_shard_size: "
                           "units of a hybrid strategy are all cut (FSD-12)");
}
