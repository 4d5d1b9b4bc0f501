/* SPDX-License-Identifier: Apache-2.0 */
/* n times a form is found by doubling: of n with k bits, at most 2k additions. */
#include "core/oracle/form_quotient.h"

#include "core/base/error.h"
#include "core/oracle/form_scratch.h"
#include "core/tensor/symbol.h"

/* Tensors like it. */
typedef struct room {
    cddp_tensor dividend, power, product, twin;
} room;

static cddp_status multiply(room *r, const cddp_tensor *quotient, int64_t n, cddp_error *err)
{
    const cddp_device *device = quotient->device;
    CD_TRY(device->fill(&r->product, 0, NULL, err));
    CD_TRY(device->copy(&r->power, quotient, NULL, err));
    for (int64_t left = n; left > 0; left /= 2) {
        if (left % 2 != 0) CD_TRY(device->reduce(CDDP_RED_SUM, &r->product, &r->power, NULL, err));
        if (left == 1) break;
        CD_TRY(device->copy(&r->twin, &r->power, NULL, err));
        CD_TRY(device->reduce(CDDP_RED_SUM, &r->power, &r->twin, NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_form_quotient(const cddp_tensor *forms, int64_t n, bool *is_quotient,
                             cddp_error *err)
{
    room r = {.dividend = {.device = NULL}};
    cd_symbol_difference d = {.index = -1};
    cddp_status status = CDDP_OK;
    *is_quotient = true;
    if (n == 1) return CDDP_OK;
    CD_TRY_OUT(cd_form_scratch_make(forms, &r.dividend, err));
    CD_TRY_OUT(cd_form_scratch_make(forms, &r.power, err));
    CD_TRY_OUT(cd_form_scratch_make(forms, &r.product, err));
    CD_TRY_OUT(cd_form_scratch_make(forms, &r.twin, err));
    CD_TRY_OUT(forms->device->copy(&r.dividend, forms, NULL, err));
    CD_TRY_OUT(forms->device->divide(forms, forms, n, NULL, err));
    CD_TRY_OUT(multiply(&r, forms, n, err));
    CD_TRY_OUT(cd_symbol_compare_views(&r.product, &r.dividend, &d, err));
    *is_quotient = d.index < 0;
out:
    cd_form_scratch_release(&r.dividend);
    cd_form_scratch_release(&r.power);
    cd_form_scratch_release(&r.product);
    cd_form_scratch_release(&r.twin);
    return status;
}
