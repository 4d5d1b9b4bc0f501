/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of single ranks are held to the rules of all: what has no meaning for a world has none
** for a rank. That ranks differ is no contradiction; scenarios are for that.
*/
#include "core/base/hash.h"
#include "core/plan/plan_check.h"

#include <stdio.h>
#include <string.h>

enum { SAID_MAX = sizeof((cd_heard *)0)->said / sizeof(uint64_t) };

void cd_heard_take(void *self, const char *key, const char *message)
{
    cd_heard *heard = self;
    const uint64_t hash = cd_hash_mix(cd_hash_text(key), cd_hash_text(message));
    char of_rank[416];
    for (size_t i = 0; i < heard->count; i++) {
        if (heard->said[i] != hash) continue;
        heard->again += heard->is_of_a_rank;
        if (heard->is_of_a_rank) return;
    }
    if (heard->count < SAID_MAX) heard->said[heard->count++] = hash;
    if (heard->report == NULL) return;
    if (heard->is_of_a_rank) {
        snprintf(of_rank, sizeof of_rank, "rank %u: %s", heard->rank, message);
        message = of_rank;
    }
    heard->report(heard->context, key, message);
}

size_t cd_plan_check_ranks(const cddp_plan *plan, cd_heard *heard)
{
    cddp_plan of_rank = *plan;
    cd_contradictions c = {.plan = &of_rank, .report = cd_heard_take, .context = heard};
    of_rank.override_count = 0;
    heard->is_of_a_rank = true;
    for (uint32_t rank = 0; plan->override_count > 0 && rank < plan->world.size; rank++) {
        const cddp_plan_settings before = of_rank.settings;
        if (cddp_plan_rank_settings(plan, rank, &of_rank.settings, NULL) != CDDP_OK) break;
        if (memcmp(&before, &of_rank.settings, sizeof before) == 0) continue; /* as most are */
        heard->rank = rank;
        cd_plan_check_settings(&c);
        cd_plan_check_fsdp(&c);
    }
    return c.count - heard->again;
}
