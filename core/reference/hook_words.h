/* SPDX-License-Identifier: Apache-2.0 */
/* Which comm hook a rank's settings ask for, as the judge reads them: ddp.comm_hook, hook.name or
** Accelerate's words (ACC-01, ACC-03). It is the reference's own reading; training has another.
*/
#pragma once
#include "cddp/plan.h"
#include "core/oracle/hook_law/planned.h"

typedef struct cd_hook_words {
    cd_planned_words words; /* .name NULL: no hook; borrowed from the settings, or from own */
    char own[64];
} cd_hook_words;

/* *words must not be copied: it may point into itself. */
void cd_hook_words_read(const cddp_plan_settings *settings, cd_hook_words *words);
