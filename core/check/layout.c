/* SPDX-License-Identifier: Apache-2.0 */
/* The newest layout of every rank. */
#include "core/check/layout.h"

void cd_layouts_init(cd_layouts *layouts, const cddp_allocator *allocator)
{
    cd_table_init(&layouts->places, allocator, sizeof(cd_place));
    cd_table_init(&layouts->members, allocator, 2 * sizeof(int64_t));
    cd_ranks_init(&layouts->newest, allocator, sizeof(int64_t));
}

void cd_layouts_fini(cd_layouts *layouts)
{
    cd_table_fini(&layouts->places);
    cd_table_fini(&layouts->members);
    cd_ranks_fini(&layouts->newest);
}

void cd_layouts_learn(cd_layouts *layouts, const cddp_event *event)
{
    if (event->kind != CDDP_EV_bucket_layout) return;
    const cddp_event_bucket_layout *l = &event->as.bucket_layout;
    int64_t *newest = cd_ranks_add(&layouts->newest, event->rank);
    cd_place *place = cd_table_add(&layouts->places, CD_KEY(event->rank, l->param));
    int64_t *member = cd_table_add(&layouts->members, CD_KEY(event->rank, l->bucket, l->slot));
    /* Not the highest: a wrapper that is made again starts from generation 0. */
    if (newest != NULL) *newest = l->generation + 1;
    if (place != NULL)
        *place = (cd_place){l->bucket, l->slot, l->offset, l->numel, l->generation, l->dtype};
    if (member != NULL) {
        member[0] = l->param;
        member[1] = l->generation;
    }
}

const cd_place *cd_layouts_find(const cd_layouts *layouts, uint32_t rank, int64_t param)
{
    return cd_table_find(&layouts->places, CD_KEY(rank, param));
}

int64_t cd_layouts_generation(const cd_layouts *layouts, uint32_t rank)
{
    const int64_t *newest = cd_ranks_find(&layouts->newest, rank);
    return newest != NULL ? *newest - 1 : -1;
}

int64_t cd_layouts_member(const cd_layouts *layouts, uint32_t rank,
                          const int64_t bucket_and_slot[2])
{
    const int64_t *member =
        cd_table_find(&layouts->members, CD_KEY(rank, bucket_and_slot[0], bucket_and_slot[1]));
    return member != NULL && member[1] == cd_layouts_generation(layouts, rank) ? member[0] : -1;
}
