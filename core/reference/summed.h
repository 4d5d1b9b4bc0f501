/* SPDX-License-Identifier: Apache-2.0 */
/* A reduction in f32 or a half type against the sum of what its members posted, addition by
** addition in the order that the plan names, or within what any order of up to eight can give.
**
** Errors     memory.
*/
#pragma once
#include "cddp/plan.h"
#include "core/oracle/any_order.h"
#include "core/oracle/compare.h"
#include "core/reference/observed.h"

/* found->numel: the elements that were compared; 0 where nothing is known of this sum. */
cddp_status cd_summed_compare(const cddp_plan *plan, const cd_observed_summed *summed,
                              const cddp_allocator *allocator, cd_comparison *found,
                              cddp_error *err) CDDP_MUST_CHECK;
