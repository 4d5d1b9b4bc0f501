/* SPDX-License-Identifier: Apache-2.0 */
#include "core/run/wrappers.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

static cddp_status open_one(cd_run_wrappers *w, size_t index, bool shares, cddp_error *err)
{
    cd_run_wrapper *own = &w->items[index];
    cddp_plan *plan = NULL;
    own->plan = w->plan;
    if (w->plan->wrapper_count > 0) {
        CD_TRY(cddp_plan_of_wrapper(w->plan, index, w->allocator, &plan, err));
        own->plan = plan;
    }
    /* alone, a rank's own operand is the sum; without an order there is nothing to add up */
    if (w->plan->world.size > 1 && w->has_order)
        CD_TRY(cd_reductions_create(w->allocator, NULL, &own->reductions, err));
    if (!shares) return CDDP_OK;
    CD_TRY(cd_oracle_share_create(w->allocator, &own->share, err));
    own->reference_share = cd_allocate_zero(w->allocator, sizeof *own->reference_share);
    if (own->reference_share == NULL) return cd_fail_memory(err, "what references share");
    cd_reference_share_init(own->reference_share, own->plan, w->allocator);
    return CDDP_OK;
}

cddp_status cd_run_wrappers_open(cd_run_wrappers *wrappers, const cddp_run_options *options,
                                 cddp_error *err)
{
    cd_run_wrappers *w = wrappers;
    const cddp_plan *plan = options->plan;
    const cddp_allocator *allocator = options->allocator;
    const bool shares = options->bind == NULL && !options->oracle_apart;
    *w = (cd_run_wrappers){.allocator = allocator,
                           .plan = plan,
                           .count = cddp_plan_wrapper_count(plan),
                           .has_order = options->bind == NULL && options->backend != NULL &&
                                        options->backend->capabilities.order == CDDP_ORDER_KNOWN};
    w->items = cd_allocate_array(allocator, w->count, sizeof *w->items);
    if (w->items == NULL) return cd_fail_memory(err, "%zu wrappers", w->count);
    for (size_t i = 0; i < w->count; i++) CD_TRY(open_one(w, i, shares, err));
    return CDDP_OK;
}

void cd_run_wrappers_close(cd_run_wrappers *w)
{
    for (size_t i = 0; w->items != NULL && i < w->count; i++) {
        cd_run_wrapper *own = &w->items[i];
        if (own->reference_share != NULL) cd_reference_share_fini(own->reference_share);
        cd_release(w->allocator, own->reference_share, sizeof *own->reference_share);
        cd_oracle_share_destroy(own->share);
        cd_reductions_destroy(own->reductions);
        if (own->plan != w->plan) cddp_plan_destroy((cddp_plan *)(uintptr_t)own->plan);
    }
    cd_release(w->allocator, w->items, w->count * sizeof *w->items);
    w->items = NULL;
}
