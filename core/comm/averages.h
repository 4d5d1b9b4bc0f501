/* SPDX-License-Identifier: Apache-2.0 */
/* What a recorder hears of a model averager: that there is one, and which parameters it has
** averaged. Without a recorder nothing happens.
**
** Threads    the rank's thread.
*/
#pragma once
#include "cddp/comm.h"

/* Ranks of the group train apart between averages. */
void cd_averages_begin(const cddp_group *group);
/* An averager's step is over: what was averaged in an earlier one may differ again. */
void cd_averages_step(const cddp_group *group);
/* In the step that has begun with cd_averages_step this one was averaged over the group. */
void cd_averages_note(const cddp_group *group, const cddp_tensor *parameter);
