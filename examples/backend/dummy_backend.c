/* SPDX-License-Identifier: Apache-2.0 */
/* A backend from outside the tree, complete in form and wrong in substance: where to begin one of
** your own.
**
** Every rank is alone here. A barrier of one rank works; an all-reduce returns zeros, which is
** wrong, and `cddp-verify backend-conformance` reports it:
**
**     cmake -B build -DCMAKE_PREFIX_PATH=/where/cddp/is/installed && cmake --build build
**     cddp-verify backend-conformance dummy -n 2 --plugin build/dummy_backend.so
**
** Broadcast is not declared at all: a caller gets the error "backend dummy does not implement
** broadcast".
*/
#include <cddp/plugin.h>

#include <stdlib.h>

/* A group has only the fields that the operations below need. A real backend would connect to the
** members here. */
typedef struct dummy_group {
    uint32_t rank, size;
} dummy_group;

static cddp_status dummy_open(const cddp_backend *backend, cddp_rank *rank,
                              const cddp_group_spec *spec, void **group, cddp_error *err)
{
    (void)backend;
    (void)rank;
    dummy_group *g = malloc(sizeof *g);
    if (g == NULL)
        return cddp_error_set(err, CDDP_E_NOMEM, "dummy: no memory for group '%s'", spec->name);
    *g = (dummy_group){spec->group_rank, spec->group_size};
    *group = g;
    return CDDP_OK;
}

static void dummy_close(void *group) { free(group); }

/* Everything ends at once, so a work needs no state; a real backend starts the operation and
** returns. */
static cddp_status dummy_post(void *group, const cddp_collective *collective, void **work,
                              cddp_error *err)
{
    if (collective->op == CDDP_OP_ALLREDUCE) {
        const cddp_tensor *out = &collective->output;
        cddp_status status = out->device->fill(out, 0.0, NULL, err); /* the planted mistake */
        if (status != CDDP_OK) return status;
    }
    *work = group; /* any non-NULL handle */
    return CDDP_OK;
}

static cddp_status dummy_test(void *group, void *work, bool *done, cddp_error *err)
{
    (void)group;
    (void)work;
    (void)err;
    *done = true;
    return CDDP_OK;
}

static cddp_status dummy_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    (void)group;
    (void)work;
    (void)timeout_ns;
    (void)err;
    return CDDP_OK;
}

static void dummy_release(void *group, void *work)
{
    (void)group;
    (void)work;
}

static const cddp_backend dummy = {
    .size = sizeof dummy,
    .abi = CDDP_BACKEND_ABI,
    .name = "dummy",
    .capabilities = {.size = sizeof(cddp_capabilities),
                     .ops = 1u << CDDP_OP_ALLREDUCE | 1u << CDDP_OP_BARRIER,
                     .dtypes = CDDP_DTYPE_BIT(CDDP_F32) | CDDP_DTYPE_BIT(CDDP_I32),
                     .reduce_ops = 1u << CDDP_RED_SUM,
                     .devices = CDDP_DEVICE_HOST,
                     .in_place = true,
                     .order = CDDP_ORDER_UNSPECIFIED,
                     .algorithm = "none",
                     .world_size_max = 64},
    .open = dummy_open,
    .close = dummy_close,
    .post = dummy_post,
    .test = dummy_test,
    .wait = dummy_wait,
    .release = dummy_release,
};

static const cddp_backend *const backends[] = {&dummy, NULL};

CDDP_PLUGIN_EXPORT extern const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1,
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "dummy",
                                    .version = "1",
                                    .backends = backends};
