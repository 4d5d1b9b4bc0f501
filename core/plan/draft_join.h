/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts of trainings with one wrapper each, joined into one draft whose ranks have them all.
**
** Errors   CDDP_E_UNSUPPORTED, in words, where the parts differ in what wrappers share.
*/
#pragma once
#include "core/plan/draft.h"

typedef struct cd_draft_part {
    const cd_draft *draft; /* borrowed as long as what it is joined into */
    const char *name;      /* of its [[wrapper]] */
    bool own_group;
} cd_draft_part;

/* The draft is empty before. What all parts have in common is said once. */
cddp_status cd_draft_join(cd_draft *joined, const cd_draft_part *parts, size_t count,
                          cddp_error *err) CDDP_MUST_CHECK;
