/* SPDX-License-Identifier: Apache-2.0 */
/* What a covering exploration ran, as text that can be checked without this program
** (docs/formats/cover.md).
**
** Errors     CDDP_E_IO when the file cannot be written whole.
*/
#pragma once
#include "sim/explore.h"

cddp_status cd_certificate_write(const char *path, const cd_explorer *explorer, uint64_t plan,
                                 cddp_error *err) CDDP_MUST_CHECK;
