/* SPDX-License-Identifier: Apache-2.0 */
/* The quotient of a tensor of forms by a whole number. The device divides, but is not believed: the
** quotient is added up again, and must give what was divided.
**
** Threads    no state.
** Errors     memory.
*/
#pragma once
#include "cddp/device.h"

/* Divides in place. *is_quotient: n times the result is what stood there. */
cddp_status cd_form_quotient(const cddp_tensor *forms, int64_t n, bool *is_quotient,
                             cddp_error *err) CDDP_MUST_CHECK;
