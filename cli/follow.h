/* SPDX-License-Identifier: Apache-2.0 */
/* Where watch gets its events: shards or a store that somebody is writing.
**
** Lifetime   open → read… → close.
** Errors     a file that is neither is named. Nothing is ever written.
*/
#pragma once
#include "verify/watch/watch.h"

typedef struct cd_follow cd_follow;

/* paths: shards, or one name: of a store, or of shards without their ranks. */
cddp_status cd_follow_open(const char *const *paths, size_t path_count, cd_follow **follow,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_follow_close(cd_follow *follow); /* accepts NULL */
/* Shows *watch what came since the last call, and settles it. The watch is the follower's. A job
** that was started anew begins anew here. */
cddp_status cd_follow_read(cd_follow *follow, const cd_watch **watch,
                           cddp_error *err) CDDP_MUST_CHECK;
const char *cd_follow_program(const cd_follow *follow); /* "" when it is not known */
