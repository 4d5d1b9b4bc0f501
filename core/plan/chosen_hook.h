/* SPDX-License-Identifier: Apache-2.0 */
/* Which comm hook a rank's settings choose, under any of the three ways to say it: ddp.comm_hook,
** hook.name, and Accelerate's words.
*/
#pragma once
#include "cddp/plan.h"

typedef struct cd_chosen_hook {
    char own[64];        /* the name inside ddp.comm_hook */
    const char *name;    /* NULL: none */
    const char *inner;   /* what a wrapper wraps, or NULL */
    const char *options; /* or NULL; borrowed from the settings */
} cd_chosen_hook;

/* Fills *chosen, which the pointers may point into: it must not be copied. */
void cd_choose_hook(const cddp_plan_settings *settings, cd_chosen_hook *chosen);
