/* SPDX-License-Identifier: Apache-2.0 */
/* A hook that misbehaves when asked: "mode=loop,rank=1,at=2" loops on rank 1 in its third
** call; rank -1: on every rank. Else it is the plain all-reduce. */
#include <cddp/device.h>
#include <cddp/plugin.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct bad {
    char mode[16];
    int rank, at, calls;
} bad;

static cddp_status bad_create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    bad *b = calloc(1, sizeof *b);
    if (b == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "hook bad: no memory");
    b->rank = -1;
    if (context->options != NULL &&
        sscanf(context->options, "mode=%15[a-z],rank=%d,at=%d", b->mode, &b->rank, &b->at) != 3) {
        free(b);
        return cddp_error_set(err, CDDP_E_CONFIG, "hook bad takes mode=…,rank=…,at=…");
    }
    *self = b;
    return CDDP_OK;
}

static void bad_destroy(void *self) { free(self); }

static cddp_status misbehave(bad *b, const cddp_group *group, cddp_error *err)
{
    volatile int forever = 1;
    if (b->rank >= 0 && (int)cddp_group_rank(group) != b->rank) return CDDP_OK;
    if (b->calls++ < b->at) return CDDP_OK;
    while (strcmp(b->mode, "loop") == 0 && forever) continue;
    while (strcmp(b->mode, "sleep") == 0 && forever) sleep(1);
    if (strcmp(b->mode, "error") == 0)
        return cddp_error_set(err, CDDP_E_STATE, "hook bad: my queue has 3 entries, not 2");
    return CDDP_OK;
}

static cddp_status bad_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                           cddp_future *future, cddp_error *err)
{
    const cddp_tensor *buffer = &bucket->buffer;
    cddp_status status = misbehave(self, group, err);
    if (status != CDDP_OK) return status;
    status = buffer->device->divide(buffer, buffer, cddp_group_size(group), NULL, err);
    if (status != CDDP_OK) return status;
    cddp_collective sum = {.size = sizeof sum,
                           .op = CDDP_OP_ALLREDUCE,
                           .reduce_op = CDDP_RED_SUM,
                           .input = *buffer,
                           .output = *buffer,
                           .label = (uint64_t)bucket->index + 1};
    status = cddp_group_post(group, &sum, &future->works[0], err);
    if (status == CDDP_OK) future->work_count = 1;
    future->result = *buffer;
    return status;
}

static const cddp_hook hook = {.size = sizeof hook,
                               .abi = CDDP_HOOK_ABI,
                               .name = "bad",
                               .flags = CDDP_HOOK_EXACT,
                               .create = bad_create,
                               .destroy = bad_destroy,
                               .run = bad_run};
static const cddp_hook *const hooks[] = {&hook, NULL};

CDDP_PLUGIN_EXPORT extern const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1,
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "bad",
                                    .version = "1",
                                    .hooks = hooks};
