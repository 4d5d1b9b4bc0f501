/* SPDX-License-Identifier: Apache-2.0 */
/* What the rest of the core may know of a group beyond cddp/comm.h: its audit. */
#pragma once
#include "cddp/comm.h"

void cd_group_audit(const cddp_group *group);
