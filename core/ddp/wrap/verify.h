/* SPDX-License-Identifier: Apache-2.0 */
/* Do all ranks wrap the same thing? Checked before anything is broadcast, reported on every rank
** (INI-08, ERR-07). */
#pragma once
#include "core/ddp/parts/module.h"
#include "core/ddp/parts/options.h"

/* Collective. One all-reduce of two numbers when everything agrees. */
cddp_status cd_verify_across_ranks(const cd_wrapped *module, const cd_ddp_config *config,
                                   cddp_group *group, cddp_error *err);
