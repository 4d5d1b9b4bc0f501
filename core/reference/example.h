/* SPDX-License-Identifier: Apache-2.0 */
/* A micro-step as data for a second form of the model: parameters, samples, weights, divisors.
**
** The samples' numbers are made by core/model (they are the definition of the data). Divisors are
** counted here.
**
** Lifetime   zeroed → init → fill … → fini. What fill gives is valid until the next one.
*/
#pragma once
#include "core/base/arena.h"
#include "core/oracle/oracle.h"
#include "core/plan/replica/replica.h"
#include "core/tensor/numbers.h"

typedef struct cd_example {
    cd_arena memory;
    cd_numbers numbers;
    cd_second_forward *forwards; /* (forward_count) of the micro-step that is being filled */
    size_t forward_count;
} cd_example;

void cd_example_init(cd_example *example, const cddp_allocator *allocator);
void cd_example_fini(cd_example *example);

/* What one rank runs. */
typedef struct cd_example_batch {
    const cd_micro *micro;
    const cd_micro_batch *samples;
    /* (micro->forwards, tables + 1) of the loss, where they are averages of a step: without a
    ** table, and of each [[output]] */
    const double *divisors;
    bool is_own; /* the rank whose gradients are judged */
} cd_example_batch;

/* ranks: (rank_count) one, or all that normalise with common statistics. values: (parameter_count)
** as the forward used them. Leaves *why where the micro-step has no second form. */
typedef struct cd_example_request {
    cd_replica *replica;
    const cd_example_batch *ranks; /* (rank_count) */
    size_t rank_count;
    const cddp_tensor *(*forward_parameter)(void *context, uint32_t parameter);
    void *context;
    double loss_scale;
} cd_example_request;
cddp_status cd_example_fill(cd_example *example, const cd_example_request *request,
                            cd_second_program *program, const char **why, cddp_error *err);
