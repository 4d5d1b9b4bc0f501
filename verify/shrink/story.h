/* SPDX-License-Identifier: Apache-2.0 */
/* A shrunk failure, narrated in order: what was decided, what followed from it, and from where on
** it could not be avoided.
**
** The decisions that matter are the deviations of the shrunk schedule: without any one of them the
** run does not fail the same way. What they change is read from the nearest verified run, which is
** the shrunk run less one thing. The point from where on the failure was inevitable is measured:
** the first choices are answered as before, and the rest at random.
**
** Errors     memory, and whatever keeps a run from being repeated.
*/
#pragma once
#include "verify/shrink/shrink.h"

typedef struct cd_story {
    cd_text paragraph;
    cd_text inevitable; /* one sentence */
} cd_story;

#define CD_STORY_TRIES 20 /* random continuations per prefix */

cddp_status cd_story_print(cd_story *story, const cd_shrink *shrink,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_story_fini(cd_story *story); /* accepts a zeroed one */
