/* SPDX-License-Identifier: Apache-2.0 */
/* An update of one parameter on an exact device, by the published formula of SGD. */
#pragma once
#include "core/oracle/state.h"

typedef struct cd_form_update {
    size_t parameter;
    const cd_formula *formula; /* of SGD */
    const cddp_tensor *before, *gradient, *after;
    const cddp_tensor *momentum; /* before the step; NULL: there is none yet */
} cd_form_update;
cddp_status cd_form_update_judge(cd_oracle *oracle, const cd_form_update *update,
                                 cddp_error *err) CDDP_MUST_CHECK;
