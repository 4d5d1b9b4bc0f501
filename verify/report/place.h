/* SPDX-License-Identifier: Apache-2.0 */
/* The line of a file that a result is about: of a scenario the key that explains its culprit best,
** of a recorded program the line that the finding names.
**
** It is where to look first, not a proof of the cause: place.def has the keys of every rule.
*/
#pragma once
#include "verify/report/result.h"

/* scenario: the text of the file. Sets place, place_key and place_line. */
void cd_result_locate(cd_result *result, const char *file, const char *scenario);
/* "rank 1 at train.py:31", as the advice of a finding of a recorded program ends. False: it names
** none. path has path_bytes of room. */
bool cd_finding_find_source(const cddp_finding *finding, char *path, size_t path_bytes,
                            uint32_t *line);
