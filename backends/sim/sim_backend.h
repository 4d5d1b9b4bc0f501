/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator as a backend: collectives of a simulated world through the public backend port.
**
** Lifetime   the table is a value in the caller's storage. It is bound to one world, which must
**            outlive it.
*/
#pragma once
#include "cddp/backend.h"
#include "sim/world.h"

cddp_backend cd_sim_backend(cd_sim *sim);
