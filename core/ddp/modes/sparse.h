/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse gradients: rows travel with their indices, and every rank ends with the union (SPA-01…04).
**
** Ownership  a set owns, per sparse variable, the rows and values of its last result; a reduced
**            gradient borrows them until the variable's next reduction.
*/
#pragma once
#include "core/ddp/parts/bucket.h"
#include "core/comm/control.h"

typedef struct cd_sparse cd_sparse;

typedef struct cd_sparse_set {
    const cddp_allocator *allocator;
    cd_sparse *items; /* (count) one per sparse variable, in the arena of init */
    size_t count;
    uint64_t growth_count;
} cd_sparse_set;

typedef struct cd_sparse_launch {
    const cd_variable *variable;
    uint32_t index; /* of the variable */
    uint32_t bucket;
    bool contribute; /* false: a joined rank, which has no rows */
    cddp_group *group;
} cd_sparse_launch;

cddp_status cd_sparse_set_init(cd_sparse_set *set, const cd_wrapped *module, cd_arena *arena,
                               cddp_error *err);
void cd_sparse_set_fini(cd_sparse_set *set); /* accepts a zeroed set */
/* SPA-04: the sorted union of rows that the variable will carry in this iteration; copied, dropped
** after it. */
cddp_status cd_sparse_set_metadata(cd_sparse_set *set, size_t variable, const int64_t *rows,
                                   size_t row_count, cddp_error *err);
void cd_sparse_drop_metadata(cd_sparse_set *set);
/* Fills a future whose stages gather counts, then rows and values, then sum them in rank order.
** `self` of the stages is the item that *self receives. */
cddp_status cd_sparse_launch_reduce(cd_sparse_set *set, const cd_sparse_launch *launch,
                                    cddp_future *future, void **self, cddp_error *err);
/* Writes the result into the gradient slot. */
void cd_sparse_write_back(cd_sparse_set *set, size_t variable, cddp_grad *grad);
