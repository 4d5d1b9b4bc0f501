/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/feedback.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <string.h>

void cd_feedback_push(cd_feedback *f, const cddp_event *e)
{
    cd_feedback_rank *rank = &f->ranks[e->rank];
    if (e->kind == CDDP_EV_wrap) {
        rank->group = e->as.wrap.group;
        rank->has_wrapper = true;
    }
    if (e->kind != CDDP_EV_mark || e->text == NULL || strcmp(e->text, CD_FEEDBACK_CHANGED) != 0)
        return;
    if (rank->count++ == 0) {
        rank->bucket = e->as.mark.value;
        rank->step = e->step;
    }
    rank->changes =
        cd_hash_mix(cd_hash_mix(rank->changes, e->step + 1), (uint64_t)e->as.mark.value);
}

bool cd_feedback_find(const cd_feedback *f, uint32_t *rank)
{
    for (uint32_t i = 0; i < f->rank_count; i++) {
        const cd_feedback_rank *one = &f->ranks[i];
        for (uint32_t k = 0; one->count > 0 && k < f->rank_count; k++) {
            const cd_feedback_rank *other = &f->ranks[k];
            if (!other->has_wrapper || other->group != one->group || other->changes == one->changes)
                continue;
            *rank = i;
            return true;
        }
    }
    return false;
}

uint64_t cd_feedback_count(const cd_feedback *f)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < f->rank_count; i++)
        most = f->ranks[i].count > most ? f->ranks[i].count : most;
    return most;
}

cddp_status cd_feedback_init(cd_feedback *f, uint32_t rank_count, const cddp_allocator *allocator,
                             cddp_error *err)
{
    *f = (cd_feedback){.allocator = allocator, .rank_count = rank_count};
    f->ranks = cd_allocate_array(allocator, rank_count, sizeof *f->ranks);
    return f->ranks != NULL ? CDDP_OK : cd_fail_memory(err, "%u ranks", rank_count);
}

void cd_feedback_fini(cd_feedback *f)
{
    cd_release(f->allocator, f->ranks, f->rank_count * sizeof *f->ranks);
    f->ranks = NULL;
}
