/* SPDX-License-Identifier: Apache-2.0 */
/* Names in a plan that the language does not know: parts of the model, hooks, checks.
**
** A name that nobody has is a typing error, and would silently show nothing.
*/
#pragma once
#include "cddp/registry.h"
#include "core/plan/plan.h"
#include "core/plan/replica/replica.h"

/* What the plan says about parts of the replica's model, where it applies to the replica's rank.
** Reports each unknown name as cd_plan_find_contradictions reports contradictions. Returns how
** many. */
size_t cd_replica_find_unknown_names(const cd_replica *replica, cd_contradiction_fn report,
                                     void *context);
/* The same as one error. */
cddp_status cd_replica_check_names(const cd_replica *replica, cddp_error *err) CDDP_MUST_CHECK;

/* The same for the models of all ranks, and for what the registry knows. For a plan without
** contradictions, before it is run. */
size_t cd_plan_find_unknown_names(const cddp_plan *plan, const cddp_registry *registry,
                                  cd_contradiction_fn report, void *context);
/* Are there unknown names, and is each like nothing that is known? Then a plugin that is not loaded
** has them, presumably. */
bool cd_plan_lacks_plugin(const cddp_plan *plan, const cddp_registry *registry);
