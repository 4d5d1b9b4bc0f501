/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline as the trace event format (JSON) that Perfetto's UI and chrome://tracing open.
**
** A rank is a process, and each row of a lane a thread of it. A flow joins the slices of one
** collective, from the rank that posted it to the next one that did. Counters are the bytes that a
** rank has in flight. With `is_virtual` every event takes one nanosecond more than it did:
** simulated ranks do much in no time, and a slice without a length cannot be seen.
*/
#pragma once
#include "verify/timeline/timeline.h"
#include "core/base/text.h"

void cd_perfetto_print(cd_text *text, const cd_timeline *timeline, const char *title,
                       bool is_virtual);
