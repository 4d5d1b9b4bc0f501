/* SPDX-License-Identifier: Apache-2.0 */
/* Delayed all-reduce: named parameters share one flat gradient buffer that is summed when a trigger
** fires (DEL-01…06).
**
** Ownership  owns the buffer; the delayed parameters' gradient slots borrow slices of it until
**            fini.
*/
#pragma once
#include "core/ddp/parts/module.h"

typedef struct cd_delayed {
    cd_wrapped *module;
    uint32_t trigger; /* ordinal */
    bool is_active;   /* there are delayed parameters */
    cddp_tensor flat; /* 1-D */
    cddp_work *work;  /* the sum under way */
} cd_delayed;

cddp_status cd_delayed_init(cd_delayed *delayed, cd_wrapped *module,
                            const cddp_ddp_options *options, cddp_error *err);
void cd_delayed_fini(cd_delayed *delayed); /* accepts a zeroed struct */
/* DEL-02: rank 0's values of the delayed parameters. */
cddp_status cd_delayed_broadcast(cd_delayed *delayed, cddp_group *group, cddp_error *err);
/* DEL-04, after every forward: undefined gradients become zeroed slices. */
cddp_status cd_delayed_point_grads(cd_delayed *delayed, cddp_error *err);
/* DEL-03: the trigger's gradient was accumulated. */
cddp_status cd_delayed_trigger(cd_delayed *delayed, cddp_group *group, cddp_error *err);
cddp_status cd_delayed_await(cd_delayed *delayed, cddp_error *err);
void cd_delayed_abandon(cd_delayed *delayed); /* gives back a sum that nobody will wait for */
