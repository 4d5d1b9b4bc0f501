/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin whose hooks end the process that they run in: crash by a signal, the others with 0, as
** if all were well: leave the usual way, leave_now, leave_at_once and leave_quickly past what is
** registered for it. spin never returns. break does on rank 1
** what its options say. sulk is right, and crashes with a message when it is to be
** saved. And three lossy ones that end nothing: lawless states no law, lawful does, and
** falls_silent does, but for rank 1 from its third call on. */
#define _POSIX_C_SOURCE 200809L
#include "cddp/device.h"
#include "cddp/plugin.h"
#include "cddp/self.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cddp_status crash(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                         cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    abort();
}

static cddp_status leave(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                         cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    exit(0);
}

static cddp_status leave_now(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    _exit(0);
}

static cddp_status leave_at_once(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                 cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    _Exit(0);
}

static cddp_status leave_quickly(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                 cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    quick_exit(0);
}

static cddp_status lawless(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                           cddp_future *future, cddp_error *err)
{
    const cddp_tensor *b = &bucket->buffer;
    cddp_collective sum = {.size = sizeof sum,
                           .op = CDDP_OP_ALLREDUCE,
                           .reduce_op = CDDP_RED_SUM,
                           .input = *b,
                           .output = *b,
                           .label = (uint64_t)bucket->index + 1};
    cddp_status status = b->device->divide(b, b, cddp_group_size(group), NULL, err);
    (void)self;
    future->result = *b;
    if (status == CDDP_OK) status = cddp_group_post(group, &sum, &future->works[0], err);
    if (status == CDDP_OK) future->work_count = 1;
    return status;
}

static cddp_status remember(const cddp_hook_context *context, void **self, cddp_error *err)
{
    (void)err;
    *self = context->tracer;
    return CDDP_OK;
}

static void forget(void *self) { (void)self; }

static cddp_status lawful(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                          cddp_future *future, cddp_error *err)
{
    const cddp_law law = {.size = sizeof law,
                          .name = "nothing is nothing",
                          .bucket = bucket->index};
    if (self != NULL) cddp_tracer_law(self, &law);
    return lawless(NULL, bucket, group, future, err);
}

typedef struct silence {
    cddp_tracer *tracer;
    uint32_t calls;
} silence;

static cddp_status silence_create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    silence *s = calloc(1, sizeof *s);
    if (s == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "no memory");
    s->tracer = context->tracer;
    *self = s;
    return CDDP_OK;
}

static cddp_status falls_silent(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    silence *s = self;
    const bool is_silent = cddp_group_rank(group) == 1 && s->calls++ >= 2;
    return lawful(is_silent ? NULL : s->tracer, bucket, group, future, err);
}

/* Right, once in a process. */
static cddp_status once_created(const cddp_hook_context *context, void **self, cddp_error *err)
{
    static int created;
    if (created++ > 0) return cddp_error_set(err, CDDP_E_STATE, "the process had this hook before");
    return remember(context, self, err);
}

static cddp_status spin(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                        cddp_future *future, cddp_error *err)
{
    volatile bool is_wanted = false;
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    while (!is_wanted) {
    }
    return CDDP_OK;
}

/* "crash=run": what rank 1 does, and in which function. */
typedef struct breaker {
    char what[16], where[16];
    bool is_rank_1;
} breaker;

static volatile int depth;

static int descend(int level)
{
    volatile char room[1024];
    room[level % 1024] = (char)level;
    depth = level;
    return level > 1000000 ? 0 : descend(level + 1) + room[0];
}

static void break_in(const breaker *b, const char *function)
{
    volatile bool is_wanted = false;
    if (!b->is_rank_1 || strcmp(b->where, function) != 0) return;
    if (strcmp(b->what, "crash") == 0) raise(SIGSEGV);
    if (strcmp(b->what, "leave") == 0) exit(3);
    if (strcmp(b->what, "overflow") == 0) (void)descend(0);
    while (strcmp(b->what, "loop") == 0 && !is_wanted) continue;
}

static cddp_status break_create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    breaker *b = calloc(1, sizeof *b);
    if (b == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "no memory");
    if (context->options == NULL ||
        sscanf(context->options, "%15[a-z]=%15[a-z]", b->what, b->where) != 2) {
        free(b);
        return cddp_error_set(err, CDDP_E_CONFIG, "hook break takes crash=FUNCTION and the like");
    }
    b->is_rank_1 = cddp_group_rank(context->group) == 1;
    /* only where a proof runs a rank of a larger world by itself */
    if (strcmp(b->where, "alone") == 0) b->is_rank_1 = cddp_group_size(context->group) > 6;
    *self = b;
    break_in(b, "create");
    return CDDP_OK;
}

static void break_destroy(void *self)
{
    if (self != NULL) break_in(self, "destroy");
    free(self);
}

static cddp_status break_stage(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                               cddp_error *err)
{
    (void)bucket, (void)err;
    break_in(self, "stage");
    future->next = NULL;
    return CDDP_OK;
}

static cddp_status break_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    break_in(self, "run");
    break_in(self, "alone");
    future->next = break_stage;
    return lawless(NULL, bucket, group, future, err);
}

static cddp_status break_rebuilt(void *self, uint32_t bucket_count, cddp_error *err)
{
    (void)bucket_count, (void)err;
    break_in(self, "rebuilt");
    return CDDP_OK;
}

static cddp_status break_save(void *self, const cddp_state_writer *writer, cddp_error *err)
{
    (void)writer, (void)err;
    break_in(self, "save");
    return CDDP_OK;
}

static cddp_status sulk(void *self, const cddp_state_writer *writer, cddp_error *err)
{
    (void)self, (void)writer, (void)err;
    fputs("sulk: the state is 7 bytes short\n", stderr);
    abort();
}

static cddp_status wake(void *self, const cddp_state_reader *reader, cddp_error *err)
{
    (void)self, (void)reader, (void)err;
    return CDDP_OK;
}

static const cddp_hook break_hook = {.size = sizeof break_hook,
                                     .abi = CDDP_HOOK_ABI,
                                     .name = "break",
                                     .flags =
                                         CDDP_HOOK_EXACT | CDDP_HOOK_STATEFUL | CDDP_HOOK_LINEAR,
                                     .create = break_create,
                                     .destroy = break_destroy,
                                     .run = break_run,
                                     .rebuilt = break_rebuilt,
                                     .save = break_save,
                                     .load = wake};
static const cddp_hook spin_hook = {.size = sizeof spin_hook,
                                    .abi = CDDP_HOOK_ABI,
                                    .name = "spin",
                                    .run = spin};
static const cddp_hook sulk_hook = {.size = sizeof sulk_hook,
                                    .abi = CDDP_HOOK_ABI,
                                    .name = "sulk",
                                    .flags = CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL,
                                    .create = remember,
                                    .destroy = forget,
                                    .run = lawless,
                                    .save = sulk,
                                    .load = wake};
static const cddp_hook lawless_hook = {.size = sizeof lawless_hook,
                                       .abi = CDDP_HOOK_ABI,
                                       .name = "lawless",
                                       .flags = CDDP_HOOK_LOSSY,
                                       .run = lawless};
static const cddp_hook lawful_hook = {.size = sizeof lawful_hook,
                                      .abi = CDDP_HOOK_ABI,
                                      .name = "lawful",
                                      .flags = CDDP_HOOK_LOSSY,
                                      .create = remember,
                                      .destroy = forget,
                                      .run = lawful};
static const cddp_hook silent_hook = {.size = sizeof silent_hook,
                                      .abi = CDDP_HOOK_ABI,
                                      .name = "falls_silent",
                                      .flags = CDDP_HOOK_LOSSY,
                                      .create = silence_create,
                                      .destroy = free,
                                      .run = falls_silent};
static const cddp_hook created_hook = {.size = sizeof created_hook,
                                       .abi = CDDP_HOOK_ABI,
                                       .name = "once",
                                       .flags = CDDP_HOOK_LOSSY,
                                       .create = once_created,
                                       .destroy = forget,
                                       .run = lawful};
static const cddp_hook crash_hook = {.size = sizeof crash_hook,
                                     .abi = CDDP_HOOK_ABI,
                                     .name = "crash",
                                     .run = crash};
static const cddp_hook leave_hook = {.size = sizeof leave_hook,
                                     .abi = CDDP_HOOK_ABI,
                                     .name = "leave",
                                     .run = leave};
static const cddp_hook now_hook = {.size = sizeof now_hook,
                                   .abi = CDDP_HOOK_ABI,
                                   .name = "leave_now",
                                   .run = leave_now};
static const cddp_hook once_hook = {.size = sizeof once_hook,
                                    .abi = CDDP_HOOK_ABI,
                                    .name = "leave_at_once",
                                    .run = leave_at_once};
static const cddp_hook quick_hook = {.size = sizeof quick_hook,
                                     .abi = CDDP_HOOK_ABI,
                                     .name = "leave_quickly",
                                     .run = leave_quickly};
static const cddp_hook *const hooks[] = {&crash_hook, &leave_hook,   &now_hook,     &once_hook,
                                         &quick_hook, &lawless_hook, &lawful_hook,  &spin_hook,
                                         &sulk_hook,  &break_hook,   &created_hook, &silent_hook,
                                         NULL};

/* ---- what it does before there are ranks: CRASH_PLUGIN_ON_LOAD says what ---- */

static void break_down(const char *how)
{
    if (strcmp(how, "abort") == 0) abort();
    if (strcmp(how, "crash") == 0) raise(SIGSEGV);
    if (strcmp(how, "leave") == 0) exit(0);
    if (strcmp(how, "leave_now") == 0) _exit(0);
    while (strcmp(how, "loop") == 0) pause();
}

static cddp_status break_probe(const cddp_backend *backend, cddp_error *err)
{
    const char *how = getenv("CRASH_PLUGIN_IN_PROBE");
    (void)backend, (void)err;
    break_down(how != NULL ? how : "");
    return CDDP_OK;
}

static cddp_backend fragile; /* of a world of one rank */
static const cddp_backend *const backends[] = {&fragile, NULL};

__attribute__((constructor)) static void begin(void)
{
    const char *how = getenv("CRASH_PLUGIN_ON_LOAD");
    fragile = *cddp_backend_self();
    fragile.name = "fragile";
    fragile.probe = break_probe;
    if (how != NULL) break_down(how);
}

CDDP_PLUGIN_EXPORT const cddp_plugin cddp_plugin_v1 = {.size = sizeof(cddp_plugin),
                                                       .abi = CDDP_PLUGIN_ABI,
                                                       .name = "crash",
                                                       .version = "1",
                                                       .backends = backends,
                                                       .hooks = hooks};
