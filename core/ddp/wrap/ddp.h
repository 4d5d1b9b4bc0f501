/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a cddp_ddp: what the facade and the join protocol share. */
#pragma once
#include "core/ddp/wrap/buffers.h"
#include "core/ddp/modes/delayed.h"
#include "core/ddp/modes/join.h"
#include "core/ddp/parts/logger.h"
#include "core/ddp/modes/mixed_precision.h"
#include "core/ddp/parts/module.h"
#include "core/ddp/parts/options.h"
#include "core/ddp/reducer/reducer.h"
#include "core/ddp/wrap/shadow.h"

struct cddp_ddp {
    cd_arena arena; /* owns the object itself, and the tables of its parts */
    const cddp_allocator *allocator;
    cddp_group *held;    /* that it was given last, until it is destroyed */
    cddp_group *group;   /* NULL: this rank is not a member (UPG-01) */
    cddp_tracer *tracer; /* may be NULL */
    int64_t wrapper;     /* its number there, see Note [Events of several wrappers] */
    cd_ddp_config config;
    cd_wrapped module;
    cd_logger logger;
    cd_mixed mixed;
    cd_buffers buffers;
    cd_delayed delayed;
    cd_join join;
    cd_shadow shadow;
    cd_reducer reducer;
    uint64_t *first_sizes; /* (first_size_count) bytes of the buckets before a rebuild (LOG-01) */
    size_t first_size_count;
    bool says_settings; /* a recorder's tracer: nobody else says what is in force */
    bool has_reducer;   /* false: every trainable parameter is delayed (DEL-06) */
    bool hooks_removed; /* UPG-03 */
    uint32_t no_sync_depth;
    bool in_forward, forward_is_sync; /* between forward_begin and forward_end */
    /* a forward with gradients has begun, or ended, and no backward has ended since */
    bool grad_mode, awaits_backward;
    bool in_call; /* a call that may run hooks and optimizers is under way */
};

/* Parameters (and buffers, when they are synchronised) of `root` on every rank (INI-11, JON-12).
** extra: what else to send, may be NULL. */
typedef struct cd_state_broadcast {
    uint32_t root;
    const cddp_tensor *extra; /* (extra_count) */
    size_t extra_count;
} cd_state_broadcast;
cddp_status cd_ddp_broadcast_state(cddp_ddp *ddp, const cd_state_broadcast *what, cddp_error *err);
