/* SPDX-License-Identifier: Apache-2.0 */
/* Planted hooks that send only a part and state their own law: see feedback_hooks.c. */
#pragma once
#include "cddp/hook.h"

extern const cddp_hook plant_feedback, plant_by_index, plant_forgets, plant_seed, plant_stream,
    plant_claims;
