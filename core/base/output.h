/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the program leaves behind: reports, shrunk scenarios, certificates, frontiers.
**
** A file is complete or unchanged: new content is written beside it and then takes its name. A
** device or a link is written directly.
**
** Errors     one sentence with the path and the reason; a failed write leaves no half of a file.
*/
#pragma once
#include "core/base/text.h"

/* Can the path be written? Asked before the work whose result belongs there. Changes nothing. */
cddp_status cd_output_check(const char *path, cddp_error *err) CDDP_MUST_CHECK;
/* The same for a path and a file that is read: it would be lost. */
cddp_status cd_output_check_input(const char *path, const char *input,
                                  cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_output_write(const char *path, const cd_text *text, cddp_error *err) CDDP_MUST_CHECK;
