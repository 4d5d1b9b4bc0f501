/* SPDX-License-Identifier: Apache-2.0 */
/* The PCT chooser. */
#include "sim/choose_pct.h"

#include "core/base/assert.h"
#include "core/base/hash.h"

/* The identity of an option, equal wherever it is offered: kind, choosing rank, semantic id. */
static uint64_t identity(const cddp_choice *choice, uint32_t option)
{
    uint64_t id = choice->options != NULL ? choice->options[option] : option;
    return cd_hash_mix(cd_hash_mix((uint64_t)choice->kind + 1, choice->rank), id);
}

/* 0 … fallen_count-1 behind all that never fell; who fell last stands last. */
static uint64_t priority(const cd_pct_chooser *p, uint64_t id)
{
    for (uint32_t i = p->fallen_count; i-- > 0;)
        if (p->fallen[i] == id) return p->fallen_count - 1 - i;
    return CD_PCT_DEPTH_MAX + (cd_hash_mix(p->seed, id) >> 1);
}

static uint32_t highest(const cd_pct_chooser *p, const cddp_choice *choice)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < choice->option_count; i++)
        if (priority(p, identity(choice, i)) > priority(p, identity(choice, best))) best = i;
    return best;
}

static uint32_t choose(void *self, const cddp_choice *choice, cd_place place)
{
    cd_pct_chooser *p = self;
    p->choice_count = place.number + 1;
    if (choice->option_count > p->contenders_max) p->contenders_max = choice->option_count;
    uint32_t best = highest(p, choice);
    for (uint32_t i = 0; i + 1 < p->depth; i++) {
        if (p->change_at[i] != place.number || p->fallen_count >= CD_PCT_DEPTH_MAX) continue;
        p->fallen[p->fallen_count++] = identity(choice, best);
        best = highest(p, choice);
    }
    return best;
}

cd_chooser cd_chooser_pct(cd_pct_chooser *pct, uint64_t seed, uint32_t depth, uint64_t choices)
{
    CD_ASSERT(depth >= 1 && depth <= CD_PCT_DEPTH_MAX);
    *pct = (cd_pct_chooser){.seed = seed, .depth = depth};
    cd_prng root = cd_prng_seed(seed), prng = cd_prng_split(&root, "pct");
    for (uint32_t i = 0; i + 1 < depth; i++)
        pct->change_at[i] = cd_prng_below(&prng, choices > 0 ? choices : 1);
    return (cd_chooser){.self = pct, .name = "pct", .choose = choose};
}
