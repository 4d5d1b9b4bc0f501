/* SPDX-License-Identifier: Apache-2.0 */
/* Names in a scenario that only the parts behind it know: faults, algorithms, links, and options of
** comm hooks. A mistake in one is found where all others are, with its place. */
#pragma once
#include "core/plan/plan.h"

/* How many are unknown; each is reported with the key that it is of. */
size_t cd_names_examine(const cddp_plan *plan, cd_contradiction_fn report, void *context);
