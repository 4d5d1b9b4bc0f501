/* SPDX-License-Identifier: Apache-2.0 */
/* The proof on exact forms: what lands in a gradient is (1/n)·Σ of exactly the contributions that the plan declares.
**
** On device `symbol` a gradient's element is a sum of atoms "gradient of parameter p, element i, from rank r,
** micro-step m, step s". The expected sum is built by running every rank's part of the window on a replica of the
** same device and dividing once; then the two are compared form by form. It holds for all values at once.
**
** Lifetime   create → judge per step → destroy. Borrows the plan and the tracer.
*/
#pragma once
#include "core/run/replica.h"
#include "core/trace/tracer.h"

typedef struct cd_proof cd_proof;

typedef struct cd_proof_options {
    const cddp_plan *plan;
    uint32_t rank;
    const cddp_allocator *allocator;
    struct cddp_tracer *tracer; /* may be NULL */
    const int32_t *variables;   /* (parameter_count) variable index of each parameter, or -1 */
} cd_proof_options;

cddp_status cd_proof_create(const cd_proof_options *options, cd_proof **proof, cddp_error *err) CDDP_MUST_CHECK;
void cd_proof_destroy(cd_proof *proof); /* accepts NULL */

/* Compares the gradients after the reduction of a step; what differs enters the trace as a compare event. */
cddp_status cd_proof_judge(cd_proof *proof, uint32_t step, uint64_t divisor, const cddp_grad *gradients,
                           cddp_error *err) CDDP_MUST_CHECK;
