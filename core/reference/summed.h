/* SPDX-License-Identifier: Apache-2.0 */
/* A reduction in f32 or a half type against the sum of what its members posted, addition by
** addition in the order that is promised, or within what any order of up to eight can give. Of more
** members without a promise the orders that the judge knows are tried.
**
** Errors     memory.
*/
#pragma once
#include "core/oracle/any_order.h"
#include "core/oracle/compare.h"
#include "core/oracle/numbers.h"
#include "core/reference/observed.h"

/* Of the order of additions, by the plan of a simulated network, or by the backend. */
typedef struct cd_sum_promise {
    const char *algorithm;   /* names with a bar between two (cd_orders_read); NULL: no promise */
    uint32_t ranks_per_node; /* of a simulated network; else 0 */
} cd_sum_promise;

/* found->numel: the elements that were compared; 0 where nothing is known of this sum. */
cddp_status cd_summed_compare(const cd_sum_promise *promise, const cd_observed_summed *summed,
                              const cddp_allocator *allocator, cd_comparison *found,
                              cddp_error *err) CDDP_MUST_CHECK;
/* Of all that the comparison rests on: see cd_sum_sight_begin. *is_known: false where the numbers
** do not have the bits of the tensors that they are copies of (NaN, large integers). */
cddp_status cd_summed_digest(const cd_observed_summed *summed, cd_numbers *numbers,
                             uint64_t *digest, bool *is_known, cddp_error *err) CDDP_MUST_CHECK;
/* Likewise, without the operands and the result. */
uint64_t cd_summed_digest_form(const cd_observed_summed *summed);
