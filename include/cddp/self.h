/* SPDX-License-Identifier: Apache-2.0 */
/* The backend of a world of one: every collective is a copy, or nothing.
**
** Lifetime   a static table.
** Threads    read-only.
** Errors     as in the backend port.
*/
#pragma once
#include "cddp/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns borrowed static table. */
CDDP_API const cddp_backend *cddp_backend_self(void);

#ifdef __cplusplus
}
#endif
