/* SPDX-License-Identifier: Apache-2.0 */
/* Rebuilding buckets in arrival order, once, with rank 0's layout on every rank (REB-01…10). */
#pragma once
#include "core/ddp/reducer/reducer.h"

/* At the start of a grad-mode forward: checks that the prior reduction finished, then rebuilds if
** it is due. */
cddp_status cd_reducer_rebuild_buckets(cd_reducer *reducer, bool *rebuilt, cddp_error *err);
/* Back to the first layout: a rebuilt one was agreed with the members of a group that is being left
** (UPG-01). */
cddp_status cd_reducer_forget_layout(cd_reducer *reducer, cddp_error *err);
/* A joined rank has no arrivals and proposes registration order (JON-08). */
void cd_reducer_push_all_arrivals(cd_reducer *reducer);
