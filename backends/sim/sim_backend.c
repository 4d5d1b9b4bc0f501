/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator behind the backend port. Every function only forwards to sim/collective.c.
**
** The void pointers of the port are a cd_member (group) and a cd_part (work).
*/
#include "backends/sim/sim_backend.h"

#include "core/base/error.h"
#include "core/trace/tracer.h"
#include "sim/collective.h"

#include <string.h>

static cddp_status open_group(const cddp_backend *backend, cddp_rank *rank,
                              const cddp_group_spec *spec, void **group, cddp_error *err)
{
    cd_member *member = NULL;
    if (rank->world != backend->self)
        return cd_fail(err, CDDP_E_ARG,
                       "group '%s': rank %u is not in the simulated world of this backend",
                       spec->name, rank->rank);
    if (spec->options != NULL && spec->options[0] != '\0')
        return cd_fail(err, CDDP_E_CONFIG,
                       "group '%s': backend sim takes no group options, but was given '%s'",
                       spec->name, spec->options);
    CD_TRY(cd_member_open(rank, spec, &member, err));
    *group = member;
    return CDDP_OK;
}

static void close_group(void *group) { cd_member_close(group); }

static cddp_status post(void *group, const cddp_collective *collective, void **work,
                        cddp_error *err)
{
    cd_part *part = NULL;
    CD_TRY(cd_member_post(group, collective, &part, err));
    *work = part;
    return CDDP_OK;
}

static cddp_status test(void *group, void *work, bool *done, cddp_error *err)
{
    (void)group;
    CD_TRY(cd_part_test(work, done, err));
    return CDDP_OK;
}

static cddp_status wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    (void)group;
    CD_TRY(cd_part_wait(work, timeout_ns, err));
    return CDDP_OK;
}

static void release(void *group, void *work)
{
    (void)group;
    cd_part_release(work);
}

static cddp_status abort_group(void *group, const char *reason, cddp_error *err)
{
    CD_TRY(cd_member_abort(group, reason, err));
    return CDDP_OK;
}

static void describe(void *group, void *work, char *text, size_t text_bytes)
{
    (void)group;
    cd_part_print(work, text, text_bytes);
}

static void observe(void *group, cddp_tracer *tracer)
{
    if (cd_tracer_wants_digest(tracer)) cd_member_observe(group);
}

static int64_t digest_read(void *group, void *work)
{
    (void)group;
    return (int64_t)cd_part_digest_read(work);
}

cddp_backend cd_sim_backend(cd_sim *sim)
{
    return (cddp_backend){
        .size = sizeof(cddp_backend),
        .abi = CDDP_BACKEND_ABI,
        .name = "sim",
        .capabilities =
            {
                .size = sizeof(cddp_capabilities),
                .ops = (1u << CDDP_OP_COUNT) - 1,
                .dtypes = (1u << CDDP_DTYPE_COUNT) - 1,
                .reduce_ops = (1u << CDDP_RED_COUNT) - 1,
                .any_device = true,
                .in_place = true,
                .async = true,
                .order = CDDP_ORDER_KNOWN,
                .algorithm = cd_algorithm_name(cd_sim_get_algorithm(sim)),
                .world_size_max = cd_sim_world_size(sim),
            },
        .self = sim,
        .open = open_group,
        .close = close_group,
        .post = post,
        .test = test,
        .wait = wait,
        .release = release,
        .abort = abort_group,
        .describe = describe,
        .observe = observe,
        .digest_read = digest_read,
    };
}
