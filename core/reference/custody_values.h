/* SPDX-License-Identifier: Apache-2.0 */
/* Values that the judge keeps, and its own arithmetic on them: a walk of initial values, the grid,
** products and sums with their rounding. Nothing here is called by a run.
**
** Lifetime   a zeroed cd_kept is empty; fini releases it.
** Threads    the rank's.
** Errors     no memory; what the device reports.
*/
#pragma once
#include "core/model/module.h"

/* A copy that belongs to the judge. */
typedef struct cd_kept {
    cddp_tensor tensor; /* contiguous; device NULL: nothing is kept */
} cd_kept;
void cd_kept_fini(cd_kept *kept);
cddp_status cd_kept_copy(cd_kept *kept, const cddp_tensor *from, cddp_error *err) CDDP_MUST_CHECK;
/* Room for values like those of another tensor. */
cddp_status cd_kept_make(cd_kept *kept, const cddp_tensor *like, cddp_error *err) CDDP_MUST_CHECK;

/* Room for the bytes of one tensor. */
typedef struct cd_custody_room {
    const cddp_allocator *allocator;
    unsigned char *bytes;
    size_t byte_capacity;
} cd_custody_room;
void cd_custody_room_fini(cd_custody_room *room);

/* What a parameter or buffer starts from: drawn from the generator of its model, split by its
** name. */
typedef struct cd_walk {
    const cd_prng *prng;
    const char *name;
    cd_init init;
    bool is_dyadic;
} cd_walk;
cddp_status cd_walk_fill(const cd_walk *walk, cd_custody_room *room, const cddp_tensor *to,
                         cddp_error *err) CDDP_MUST_CHECK;

/* In place. */
cddp_status cd_custody_regrid(cd_custody_room *room, const cddp_tensor *tensor,
                              cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_custody_multiply(cd_custody_room *room, const cddp_tensor *tensor, double factor,
                                cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_custody_add(cd_custody_room *room, const cddp_tensor *tensor, double number,
                           cddp_error *err) CDDP_MUST_CHECK;
