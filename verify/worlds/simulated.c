/* SPDX-License-Identifier: Apache-2.0 */
/* A bare simulated world with its backend. */
#include "verify/worlds/simulated.h"

#include "backends/sim/sim_backend.h"
#include "core/base/error.h"

cddp_status cd_simulated_begin(cd_simulated *world, const cd_sim_config *config, cddp_error *err)
{
    CD_TRY(cd_sim_create(config, &world->sim, err));
    world->backend = cd_sim_backend(world->sim);
    return CDDP_OK;
}

void cd_simulated_end(cd_simulated *world)
{
    cd_sim_destroy(world->sim);
    world->sim = NULL;
}
