/* SPDX-License-Identifier: Apache-2.0 */
/* The comm hook that a rank's settings ask for, read by the reference's own code.
**
** ddp.comm_hook stands in place of the whole of [hook]; hook.comm_hook and hook.comm_wrapper are
** Accelerate's words (ACC-01, ACC-03); else hook.name, hook.inner and hook.options count.
*/
#pragma once
#include "cddp/plan.h"

#define CD_DECIDED_NAME_BYTES 64

typedef struct cd_decided_hook {
    char name[CD_DECIDED_NAME_BYTES]; /* "": none */
    const char *inner;                /* NULL: it wraps none */
    const char *options;              /* "key=value,…" or NULL; borrowed from the settings */
} cd_decided_hook;

void cd_decided_hook_read(cd_decided_hook *hook, const cddp_plan_settings *settings);

/* The next "key=value" of the options; *cursor starts at NULL. False past the end. */
typedef struct cd_decided_option {
    char key[CD_DECIDED_NAME_BYTES], value[CD_DECIDED_NAME_BYTES];
} cd_decided_option;
bool cd_decided_hook_next(const cd_decided_hook *hook, const char **cursor,
                          cd_decided_option *option);
/* A number of the options, or what counts where it is not given. "true" is 1, "false" 0. */
double cd_decided_hook_get(const cd_decided_hook *hook, const char *key, double otherwise);
/* The number that an option's value says; false: it is a text. */
bool cd_decided_option_read(const cd_decided_option *option, double *number);
/* What the hook averages over once it has started. */
typedef enum cd_decided_average {
    CD_AVERAGE_UNKNOWN, /* a plugin's hook: the plan does not say */
    CD_AVERAGE_ALL,
    CD_AVERAGE_BLOCKS, /* consecutive ranks, as option subgroup_size says */
    CD_AVERAGE_NONE    /* nobody: every rank keeps its own */
} cd_decided_average;
cd_decided_average cd_decided_hook_average(const cd_decided_hook *hook);
/* Whether the plan says what it does; and whether that is the mean over all ranks, but for a
** rounding. */
bool cd_decided_hook_is_known(const cd_decided_hook *hook);
bool cd_decided_hook_is_exact(const cd_decided_hook *hook);
/* The dtype in which its buckets travel, CDDP_DTYPE_COUNT: their own. False: a plugin's hook, of
** which the plan does not say. */
bool cd_decided_hook_wire(const cd_decided_hook *hook, cddp_dtype *wire);
/* PSG-01, LSG-01: reductions at the beginning that are those of the allreduce hook. */
uint64_t cd_decided_hook_start(const cd_decided_hook *hook);
