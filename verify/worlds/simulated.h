/* SPDX-License-Identifier: Apache-2.0 */
/* A bare simulated world with its backend, for trials that have no plan.
**
** Lifetime   begin → launch ranks by cd_sim_ops() → end. The backend is valid until end.
** Errors     CDDP_E_NOMEM, and what cd_sim_create refuses.
*/
#pragma once
#include "cddp/backend.h"
#include "sim/world.h"

typedef struct cd_simulated {
    cd_sim *sim; /* NULL: not begun */
    cddp_backend backend;
} cd_simulated;

cddp_status cd_simulated_begin(cd_simulated *world, const cd_sim_config *config,
                               cddp_error *err) CDDP_MUST_CHECK;
void cd_simulated_end(cd_simulated *world); /* accepts a zeroed one */
