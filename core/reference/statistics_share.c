/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps exchanges by their keys. See statistics_share.h. */
#include "core/reference/statistics_share.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

/* kept whatever their size: micro-steps of two steps, for loss and objective */
#define SAID_MIN 8
#define SAID_MAX 64
#define SAID_NUMBERS ((size_t)1 << 22) /* kept in more than SAID_MIN */

void cd_statistics_share_init(cd_statistics_share *share, uint32_t world,
                              const cddp_allocator *allocator)
{
    *share = (cd_statistics_share){.allocator = allocator, .world = world};
}

void cd_statistics_share_fini(cd_statistics_share *share)
{
    for (size_t i = 0; i < share->count; i++) cd_statistics_fini(&share->said[i].statistics);
    cd_release(share->allocator, share->said, share->capacity * sizeof *share->said);
    cd_statistics_share_init(share, share->world, share->allocator);
}

static bool is_same(const cd_statistics_key *a, const cd_statistics_key *b)
{
    return a->digest == b->digest && a->loss_scale == b->loss_scale && a->device == b->device &&
           a->settings_rank == b->settings_rank && a->step == b->step &&
           a->micro_step == b->micro_step && a->objective == b->objective &&
           a->is_wide == b->is_wide && a->is_plain == b->is_plain;
}

/* Ranks of one thread are at most a step apart. */
static bool is_over(const cd_said *said, const cd_statistics_key *key)
{
    return said->key.step + 1 < key->step;
}

static bool may_grow(const cd_statistics_share *share)
{
    size_t numbers = 0;
    for (size_t i = 0; i < share->count; i++) {
        const cd_statistics *s = &share->said[i].statistics;
        for (size_t k = 0; k < s->count; k++) numbers += s->world * s->exchanges[k].width;
    }
    return share->count < SAID_MIN || (share->count < SAID_MAX && numbers < SAID_NUMBERS);
}

/* The one that holds it; else one of a step that is over, so that steady training allocates
** nothing; else the one that was asked for the longest ago. */
static cd_said *pick_said(const cd_statistics_share *share, const cd_statistics_key *key)
{
    cd_said *over = NULL, *oldest = NULL;
    for (size_t i = 0; i < share->count; i++) {
        cd_said *said = &share->said[i];
        if (said->is_settled && is_same(&said->key, key)) return said;
        over = over == NULL && is_over(said, key) ? said : over;
        oldest = oldest == NULL || said->used < oldest->used ? said : oldest;
    }
    return over != NULL ? over : may_grow(share) ? NULL : oldest;
}

cddp_status cd_statistics_share_find(cd_statistics_share *share, const cd_statistics_key *key,
                                     cd_said **said, cddp_error *err)
{
    cd_said *s = pick_said(share, key);
    if (s == NULL) {
        if (!cd_vec_grow(share->allocator, (void **)&share->said, &share->capacity,
                         share->count + 1, sizeof *share->said))
            return cd_fail_memory(err, "the statistics of %zu micro-steps", share->count + 1);
        s = &share->said[share->count++];
        *s = (cd_said){.is_settled = false};
        cd_statistics_init(&s->statistics, share->world, share->allocator);
    }
    if (!s->is_settled || !is_same(&s->key, key)) {
        s->key = *key;
        s->is_settled = false;
        share->made++;
    }
    s->used = ++share->clock;
    *said = s;
    return CDDP_OK;
}
