/* SPDX-License-Identifier: Apache-2.0 */
/* Planted hooks that send less than there is and state a law of their own: see feedback_hooks.c. */
#pragma once
#include "cddp/hook.h"

extern const cddp_hook plant_feedback, plant_by_index, plant_forgets, plant_seed;
