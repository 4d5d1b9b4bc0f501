/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that entered a forward otherwise than they were left: were they changed before their
** broadcast, or after it? The judge reports the digest of what a broadcast of them would have sent:
** one number per dtype, the buffers one behind the other. I-CHAIN looks for it among the broadcasts
** that the rank posted.
**
** Threads    the rank's.
** Limits     of what one broadcast sends at once: 250 MiB of a dtype. Beyond it nothing is found.
*/
#pragma once
#include "core/reference/custody_values.h"

struct cddp_tracer;

typedef struct cd_entered {
    const cddp_tensor *buffers; /* (count) as they enter */
    const uint64_t *was, *is;   /* (count) their digests as they were left, and now */
    const bool *is_ignored;     /* (count) no broadcast brings it */
    size_t count;
} cd_entered;

/* room: zeroed at first, then kept; cd_kept_fini ends it. */
cddp_status cd_entered_emit(const cd_entered *entered, cd_kept *room, struct cddp_tracer *tracer,
                            cddp_error *err) CDDP_MUST_CHECK;
