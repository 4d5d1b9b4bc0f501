/* SPDX-License-Identifier: Apache-2.0 */
/* How small a common error may be and is still noticed: everything at a point times 1 - 2^-k, on
** all ranks in all steps, for k = 1, 2, 3 …
**
** The file has a line per wire and point: "mixed_bf16 ready.gradient 7 of 8": with k up to 7 each
** ratio that changes the training is noticed; up to 8 some ratio does. A smaller number than the
** file's is a bound that became wider.
*/
#pragma once
#include "core/base/text.h"

#include <stdbool.h>

/* *good: nothing is below the file. renews: the file is written instead. */
cddp_status st_slack_run(const char *path, bool renews, bool *good,
                         cddp_error *err) CDDP_MUST_CHECK;
/* The file as a section of docs/selftest.md. */
void st_slack_page(cd_text *text);
#define ST_SLACK_FILE "tests/selftest/slack.golden"
