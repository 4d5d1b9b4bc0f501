/* SPDX-License-Identifier: Apache-2.0 */
/* The statistics that the references of one thread share: one record per key of what the ranks of a
** micro-step exchange.
**
** Each record needs a run of every rank. Without sharing, W references would need W² runs. A record
** depends on the key and on the plan; references whose keys differ share nothing.
**
** Lifetime   one per run; a reference that was given none makes one.
** Errors     memory.
*/
#pragma once
#include "core/reference/statistics.h"

/* What an exchange depends on, besides the plan. */
typedef struct cd_statistics_key {
    uint64_t digest;     /* of the parameters' values */
    uint64_t loss_scale; /* bits of it */
    const cddp_device *device;
    uint32_t settings_rank; /* the first rank with the settings of the rank whose reference asks */
    uint32_t step, micro_step;
    bool objective, is_wide; /* is_wide: in f64 */
    bool is_plain;           /* nothing is cast between units */
} cd_statistics_key;

/* What was exchanged in one micro-step. */
typedef struct cd_said {
    cd_statistics statistics;
    cd_statistics_key key;
    bool is_settled; /* nobody says anything new */
    uint64_t used;   /* when it was last asked for */
} cd_said;

typedef struct cd_statistics_share {
    const cddp_allocator *allocator;
    cd_said *said; /* (count) */
    size_t count, capacity;
    uint32_t world;
    uint64_t clock, made;
} cd_statistics_share;

void cd_statistics_share_init(cd_statistics_share *share, uint32_t world,
                              const cddp_allocator *allocator);
void cd_statistics_share_fini(cd_statistics_share *share);
/* The record of this key, borrowed until the next call. Where it is not settled, the caller runs
** every rank and settles it. */
cddp_status cd_statistics_share_find(cd_statistics_share *share, const cd_statistics_key *key,
                                     cd_said **said, cddp_error *err) CDDP_MUST_CHECK;
