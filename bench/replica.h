/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by benches of the reducer: a DDP over a list of parameters, and the bytes of its buckets
** without DDP.
**
** Lifetime   init → use → fini; borrows list and group until fini.
*/
#pragma once
#include "bench/list.h"
#include "cddp/ddp.h"

typedef struct bench_replica {
    cddp_parameter parameters[BENCH_PARAMETERS_MAX];
    cddp_grad grads[BENCH_PARAMETERS_MAX];
    char names[BENCH_PARAMETERS_MAX][24];
    cddp_ddp *ddp;
} bench_replica;

cddp_status bench_replica_init(bench_replica *replica, const bench_list *list, cddp_group *group,
                               bool views, cddp_error *err);
void bench_replica_fini(bench_replica *replica, const bench_list *list);

/* The bytes of the buckets, twice, and the end of each bucket. */
typedef struct bench_slab {
    cddp_tensor all, other;
    int64_t sizes[BENCH_PARAMETERS_MAX];
    uint32_t count;
} bench_slab;

cddp_status bench_slab_init(bench_slab *slab, const cddp_ddp *ddp, cddp_error *err);
void bench_slab_fini(bench_slab *slab);
/* Posts the sum of bucket b, whose elements begin at `at`. */
cddp_status bench_slab_post(const bench_slab *slab, cddp_group *group, uint32_t b, int64_t at,
                            cddp_work **work, cddp_error *err);
