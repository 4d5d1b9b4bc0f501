/* SPDX-License-Identifier: Apache-2.0 */
/* Taking a backend table into use: refusing what is missing, filling what is optional.
**
** Errors     CDDP_E_ARG names the backend and the slot.
*/
#pragma once
#include "cddp/backend.h"

/* Checks size, abi, name, capabilities and required slots; *full is the table with stubs in empty
** optional slots, so that no call site tests for NULL. full may be NULL when only the check is
** wanted. */
cddp_status cd_backend_adopt(const cddp_backend *backend, cddp_backend *full,
                             cddp_error *err) CDDP_MUST_CHECK;
