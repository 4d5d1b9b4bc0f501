/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a replica's optimizers as bytes, by the judge's own code.
**
** A checkpoint of the run is written and read by core/model. If that is wrong, the judge does not
** repeat it, and a run without a checkpoint is right.
**
** Layout: for each parameter of each optimizer its presence and its count, and the content of its
** slots where they are present.
*/
#pragma once
#include "core/plan/replica/replica.h"
#include "core/tensor/blob.h"

/* Appends. */
cddp_status cd_optimizer_bytes_push(const cd_replica *replica, cd_blob *blob,
                                    cddp_error *err) CDDP_MUST_CHECK;
/* Into a replica of the same plan. */
cddp_status cd_optimizer_bytes_pop(cd_replica *replica, cd_blob *blob,
                                   cddp_error *err) CDDP_MUST_CHECK;
