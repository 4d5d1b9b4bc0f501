/* SPDX-License-Identifier: Apache-2.0 */
/* A group made of some members of another: the same backend and options, the same tracer, the same
** defaults.
**
** Not here: agreement on the members. Every rank passes the same positions. */
#include "core/comm/group.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/sized.h"

cddp_status cddp_group_create_subset(const cddp_group *parent, const cddp_group_subset *subset,
                                     cddp_group **group, cddp_error *err)
{
    if (parent == NULL || group == NULL)
        return cd_fail(err, CDDP_E_ARG, "cddp_group_create_subset: %s is NULL",
                       parent == NULL ? "parent" : "group");
    CD_TRY(CD_SIZED_CHECK(subset, cddp_group_subset, members, err));
    const cddp_allocator *a = parent->arena.allocator;
    uint32_t own = UINT32_MAX;
    cddp_status status = CDDP_OK;
    if (subset->name == NULL || subset->member_count == 0 || subset->members == NULL)
        return cd_fail(err, CDDP_E_ARG, "a subset of group '%s' needs a name and members",
                       parent->name);
    uint32_t *members = cd_allocate_array(a, subset->member_count, sizeof *members);
    if (members == NULL)
        return cd_fail_memory(err, "group '%s' of %u", subset->name, subset->member_count);
    for (uint32_t i = 0; i < subset->member_count; i++) {
        if (subset->members[i] >= parent->group_size) {
            status =
                cd_fail(err, CDDP_E_ARG, "group '%s' lists rank %u of group '%s', which has %u",
                        subset->name, subset->members[i], parent->name, parent->group_size);
            goto out;
        }
        members[i] = cd_group_member(parent, subset->members[i]);
        if (subset->members[i] == parent->group_rank) own = i;
    }
    if (own == UINT32_MAX) {
        status = cd_fail(err, CDDP_E_ARG, "rank %u of group '%s' is no member of '%s'",
                         parent->group_rank, parent->name, subset->name);
        goto out;
    }
    cddp_group_options options = {.size = sizeof options,
                                  .backend = parent->backend,
                                  .rank = parent->rank,
                                  .tracer = parent->tracer,
                                  .works_max = parent->works_max,
                                  .spec = {.size = sizeof options.spec,
                                           .name = subset->name,
                                           .group_rank = own,
                                           .group_size = subset->member_count,
                                           .members = members,
                                           .timeout_ns = parent->timeout_ns,
                                           .in_flight_max = parent->in_flight_max,
                                           .options = parent->options}};
    CD_TRY_OUT(cddp_group_create(&options, group, err));
out:
    cd_release(a, members, subset->member_count * sizeof *members);
    return status;
}
