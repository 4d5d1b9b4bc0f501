/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks of a plan are interchangeable, so that one of them stands for the others. */
#pragma once
#include "cddp/plan.h"

/* NULL: ranks 1 … n-1 are interchangeable; else why they are not. */
const char *cd_world_find_asymmetry(const cddp_plan *plan);
