/* SPDX-License-Identifier: Apache-2.0 */
/* The relay: the watcher of a rank's trainer. It copies what the trainer shows, and passes the
** copies on to the referee, as the structs of core/reference/observed.def.
**
** Lifetime   create → (a trainer with its watcher) → destroy, after the trainer.
** Threads    the rank's.
*/
#pragma once
#include "core/reference/referee.h"
#include "core/train/watcher.h"

typedef struct cd_relay_options {
    const cddp_plan *plan;
    const cddp_rank *rank;
    struct cddp_tracer *tracer;          /* may be NULL */
    cd_oracle_share *share;              /* ranks of one thread; else NULL */
    cd_reference_share *reference_share; /* likewise */
} cd_relay_options;

typedef struct cd_relay cd_relay;

cddp_status cd_relay_create(const cd_relay_options *options, cd_relay **relay,
                            cddp_error *err) CDDP_MUST_CHECK;
void cd_relay_destroy(cd_relay *relay); /* accepts NULL */
/* Borrowed until destroy. */
const cd_watcher *cd_relay_get_watcher(const cd_relay *relay);
