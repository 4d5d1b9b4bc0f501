/* SPDX-License-Identifier: Apache-2.0 */
/* Bucket plans: a layout is what sizes, caps and order say, and is rebuilt when the first arrival
** is known (BKT-02 to BKT-16, REB-01 to REB-04).
**
** Judged from   settings (the caps, find_unused_parameters, static_graph), param (bytes,
**               dtype, sparse), mark_ready (who arrived when), bucket_layout, rebuild,
**               forward_begin and forward_end, backward_end; of the first rank of a group, since a
**               layout is rank 0's.
** Limits        nothing is reported before the caps were reported as options, nor after a group was
**               opened, or a backward was left, while gradients arrived. The assignment is computed
**               here once more: the accused has another.
*/
#pragma once
#include "core/check/writer.h"

typedef struct cd_plans {
    cd_writer *writer;
    cd_ranks ranks; /* of plan_facts */
    cd_table leads; /* (rank, group) → 1 where it is the group's first */
    cd_table sizes; /* (rank, param) → size */
    cd_table slots; /* (rank, k-th reported) → slot of the layout that is being reported */
    /* (rank, k, 0) → param as it arrived; (rank, k, 1) → unused in this backward */
    cd_table arrivals;
} cd_plans;

/* writer: who reports; it must outlive this. */
void cd_plans_init(cd_plans *plans, cd_writer *writer);
void cd_plans_fini(cd_plans *plans);
void cd_plans_learn(cd_plans *plans, const cddp_event *event); /* ignores other kinds */
