/* SPDX-License-Identifier: Apache-2.0 */
/* The backend of a world of one rank, and the smallest complete backend: copy this file to begin
** another.
**
** The parts of a backend, in the order of the file:
**   1. a group record, made by open and freed by close;
**   2. post, which starts an operation and returns a work. Here every operation ends inside post,
**      so all share one static work (a real transport makes a record per operation);
**   3. test, wait and release, which complete a work;
**   4. abort, which fails outstanding and later operations;
**   5. the table, in which capabilities are data: an operation that is not listed never reaches
**      post.
**
** With one rank every reduction is the identity (average too), except the sum with a factor.
** Limitation: send and recv are missing, because there is no peer.
*/
#include "cddp/self.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

typedef struct self_group {
    const cddp_allocator *allocator;
    bool aborted;
    char done_work; /* its address is the work of every operation */
} self_group;

static cddp_status self_open(const cddp_backend *backend, cddp_rank *rank,
                             const cddp_group_spec *spec, void **group, cddp_error *err)
{
    (void)backend;
    if (spec->options != NULL && spec->options[0] != '\0')
        return cd_fail(err, CDDP_E_CONFIG, "backend self has no options, but was given \"%s\"",
                       spec->options);
    self_group *g = cd_allocate_zero(rank->allocator, sizeof *g);
    if (g == NULL) return cd_fail_memory(err, "group '%s'", spec->name);
    g->allocator = rank->allocator;
    *group = g;
    return CDDP_OK;
}

static void self_close(void *group)
{
    self_group *g = group;
    if (g != NULL) cd_release(g->allocator, g, sizeof *g);
}

/* Input and output may have different shapes of the same length; both are contiguous
** (cddp/backend.h). */
static cddp_tensor flat(const cddp_tensor *t)
{
    cddp_tensor view = {.device = t->device,
                        .storage = t->storage,
                        .offset = t->offset,
                        .dtype = t->dtype,
                        .dim_count = 1};
    view.sizes[0] = 1;
    view.strides[0] = 1;
    for (uint32_t i = 0; i < t->dim_count; i++) view.sizes[0] *= t->sizes[i];
    return view;
}

static cddp_status self_post(void *group, const cddp_collective *c, void **work, cddp_error *err)
{
    self_group *g = group;
    if (g->aborted) return cd_fail(err, CDDP_E_ABORTED, "the group was aborted");
    if (c->op != CDDP_OP_BARRIER && c->op != CDDP_OP_BROADCAST) {
        cddp_tensor in = flat(&c->input), out = flat(&c->output);
        bool reduces = c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_REDUCE ||
                       c->op == CDDP_OP_REDUCE_SCATTER;
        if (reduces && c->reduce_op == CDDP_RED_PREMUL_SUM)
            CD_TRY(out.device->scale(&out, &in, c->premultiplier, c->stream, err));
        else if (in.storage != out.storage || in.offset != out.offset)
            CD_TRY(out.device->copy(&out, &in, c->stream, err));
    }
    *work = &g->done_work;
    return CDDP_OK;
}

static cddp_status self_test(void *group, void *work, bool *done, cddp_error *err)
{
    (void)group;
    (void)work;
    (void)err;
    *done = true;
    return CDDP_OK;
}

static cddp_status self_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    (void)group;
    (void)work;
    (void)timeout_ns;
    (void)err;
    return CDDP_OK;
}

static void self_release(void *group, void *work)
{
    (void)group;
    (void)work;
}

static cddp_status self_abort(void *group, const char *reason, cddp_error *err)
{
    (void)reason;
    (void)err;
    ((self_group *)group)->aborted = true;
    return CDDP_OK;
}

#define ALL_BITS(count) ((1u << (count)) - 1)

static const cddp_backend table = {
    .size = sizeof table,
    .abi = CDDP_BACKEND_ABI,
    .name = "self",
    .capabilities =
        {
            .size = sizeof(cddp_capabilities),
            .ops = ALL_BITS(CDDP_OP_COUNT) & ~(1u << CDDP_OP_SEND | 1u << CDDP_OP_RECV),
            .dtypes = ALL_BITS(CDDP_DTYPE_COUNT),
            .reduce_ops = ALL_BITS(CDDP_RED_COUNT),
            .any_device = true,
            .in_place = true,
            .order = CDDP_ORDER_KNOWN,
            .algorithm = "self",
            .world_size_max = 1,
        },
    .open = self_open,
    .close = self_close,
    .post = self_post,
    .test = self_test,
    .wait = self_wait,
    .release = self_release,
    .abort = self_abort,
};

const cddp_backend *cddp_backend_self(void) { return &table; }
