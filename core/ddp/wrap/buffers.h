/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers: who is synchronised, when it is due, from whom (BUF-01…08).
**
** Ownership  the list lies in the arena of init; borrows the module table and the user's hook
**            context. Owns the works that an asynchronous hook left under way.
*/
#pragma once
#include "core/ddp/parts/module.h"
#include "core/ddp/parts/options.h"
#include "core/ddp/parts/sync.h"

typedef struct cd_buffers {
    const cddp_allocator *allocator;
    cd_wrapped *module;
    bool broadcast_buffers;
    bool require_forward_param_sync; /* set by the forward before (BUF-05) */
    /* one of them, or none, replaces the broadcast */
    cddp_buffer_hook_fn hook;
    cddp_async_buffer_hook_fn async_hook;
    void *hook_context;
    bool hook_after_forward;
    cddp_buffer *listed; /* (listed_count) what is synchronised, as a hook sees it */
    size_t listed_count;
    cd_broadcast_plan plan;
    /* (pending_count) what the hook left under way, until the end of a backward; owned */
    cddp_buffer_future *pending;
    size_t pending_count, pending_capacity;
    bool is_stale; /* a buffer was replaced: list and plan are made again (BUF-01) */
    uint64_t growth_count;
} cd_buffers;

cddp_status cd_buffers_init(cd_buffers *buffers, cd_wrapped *module, const cd_ddp_config *config,
                            cd_arena *arena, cddp_error *err);
void cd_buffers_fini(cd_buffers *buffers); /* accepts a zeroed struct */
/* BUF-02. after_forward: asks for the other hook location. */
bool cd_buffers_will_sync(const cd_buffers *buffers, bool after_forward);
/* Broadcasts from root, or calls the hook, and emits buffer_sync with its location. */
cddp_status cd_buffers_sync(cd_buffers *buffers, cddp_group *group, cddp_tracer *tracer,
                            uint32_t root, int64_t location, cddp_error *err);
bool cd_buffers_has_hook(const cd_buffers *buffers);
/* The end of a backward that reduced: awaits what the hook left under way. */
cddp_status cd_buffers_await(cd_buffers *buffers, cddp_error *err);
/* After a failure, or in another group: gives it back. */
void cd_buffers_abandon(cd_buffers *buffers);
cddp_status cd_buffers_replace(cd_buffers *buffers, const char *name, const cddp_tensor *tensor,
                               cddp_error *err);
