/* SPDX-License-Identifier: Apache-2.0 */
/* Consecutive blocks of ranks. */
#include "core/hooks/block_group.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <stdio.h>

cddp_status cd_block_group_create(const cddp_group *parent, const char *purpose, uint32_t size,
                                  cddp_group **group, cddp_error *err)
{
    uint32_t world = cddp_group_size(parent);
    if (size == 0 || world % size != 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "%s: blocks of %u ranks do not divide the %u of group '%s'", purpose, size,
                       world, cddp_group_name(parent));
    const cddp_allocator *a = cddp_group_world_rank(parent)->allocator;
    uint32_t first = cddp_group_rank(parent) / size * size;
    uint32_t *members = cd_allocate_array(a, size, sizeof *members);
    if (members == NULL) return cd_fail_memory(err, "a group of %u for %s", size, purpose);
    for (uint32_t i = 0; i < size; i++) members[i] = first + i;
    char name[192];
    snprintf(name, sizeof name, "%s/%s of %u from %u", cddp_group_name(parent), purpose, size,
             first);
    cddp_group_subset subset = {.size = sizeof subset,
                                .name = name,
                                .member_count = size,
                                .members = members};
    cddp_status status = cddp_group_create_subset(parent, &subset, group, err);
    cd_release(a, members, size * sizeof *members);
    return status;
}
