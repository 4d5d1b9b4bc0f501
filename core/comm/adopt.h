/* SPDX-License-Identifier: Apache-2.0 */
/* Adopts a backend table: refuses missing required slots, fills empty optional ones.
**
** Errors     CDDP_E_ARG names the backend and the slot.
*/
#pragma once
#include "cddp/backend.h"

/* Checks size, abi, name, capabilities and required slots. *full is the table with stubs in empty
** optional slots, so that no call site tests for NULL. With full NULL it only checks. */
cddp_status cd_backend_adopt(const cddp_backend *backend, cddp_backend *full,
                             cddp_error *err) CDDP_MUST_CHECK;
