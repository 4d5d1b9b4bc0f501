/* SPDX-License-Identifier: Apache-2.0 */
/* The user's options, checked and turned into bytes and flags (INI-01, INI-03, BKT-12).
**
** Ownership  the list of capacities lies in the arena; everything else is a value.
** Errors     a refused option is named together with the value that was given.
*/
#pragma once
#include "cddp/ddp.h"
#include "core/base/arena.h"
#include "core/ddp/parts/bucket_plan.h"

typedef struct cd_ddp_config {
    bool broadcast_buffers, init_sync;
    bool find_unused_parameters, static_graph;
    bool gradient_as_bucket_view, batched_grad_copy;
    bool skip_all_reduce_unused_params, set_last_bucket_cap;
    bool mixed_precision; /* any of the three dtypes below was given */
    bool join_broadcast_optimizer_state;
    bool accumulate_in_hook, average_contributions;
    bool strict; /* this rank's business alone: ranks need not agree */
    cddp_dtype param_dtype, reduce_dtype, buffer_dtype; /* CDDP_DTYPE_COUNT: original */
    uint32_t sample_rate;
    cd_bucket_caps caps;
} cd_ddp_config;

/* Accepts a struct of an older, shorter size: what it does not know keeps its default. */
cddp_ddp_options cd_ddp_options_complete(const cddp_ddp_options *given);
cddp_status cd_ddp_config_init(cd_ddp_config *config, const cddp_ddp_options *options,
                               cd_arena *arena, cddp_error *err);
/* "find_unused_parameters=0 static_graph=1 …": the same settings for a person; always
** terminated. */
void cd_ddp_config_print(const cd_ddp_config *config, char *text, size_t text_bytes);
