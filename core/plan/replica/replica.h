/* SPDX-License-Identifier: Apache-2.0 */
/* One process's model and its optimizers, built from the plan: what a rank trains, and what the
** reference trains again by its own passes (core/reference/own_pass.h).
**
** Nothing here communicates, and nothing here decides: samples, divisors, rates and who steps when
** are given by the caller.
**
** Lifetime   create → (begin → forward… → loss… → backward)* → destroy. Borrows the plan.
** Threads    the rank's.
*/
#pragma once
#include "core/base/arena.h"
#include "core/model/engine.h"
#include "core/model/model.h"
#include "core/plan/micro.h"
#include "core/plan/replica/optimizers.h"

/* What the plan makes of a parameter. */
typedef struct cd_replica_parameter {
    bool requires_grad; /* before any [[when]] changed it */
    bool is_replaced;   /* by the step at hand: the wrapper knows the old parameter only */
} cd_replica_parameter;

typedef struct cd_replica {
    cd_arena memory; /* of the replica itself and of what lives as long */
    const cddp_plan *plan;
    const cddp_allocator *allocator;
    cddp_plan_settings settings;
    uint32_t rank;
    cd_model *model;
    cd_graph *graph;
    cd_replica_optimizer *optimizers; /* (optimizer_count) */
    size_t optimizer_count;
    uint8_t *uses;                    /* (unit_count) of the model, for the current micro-step */
    cd_replica_parameter *parameters; /* (parameter_count) */
    uint32_t *order;                  /* (parameter_count) scratch for ready orders */
    cd_prng model_prng, data_prng;    /* as the model's values and its data are drawn from */
    /* of the running backward */
    uint32_t
        first_ready; /* the parameter that the engine would take first; UINT32_MAX: not known */
    uint32_t ready_count; /* parameters that became ready */
} cd_replica;

#define CD_REPLICA_DEVICES 3 /* words of model.device */

/* A device for every word of model.device, whose storage comes from this allocator. */
void cd_replica_make_devices(const cddp_allocator *allocator,
                             cddp_device devices[CD_REPLICA_DEVICES]);
/* The device that the plan's settings name: one of these; NULL: over the process heap. */
const cddp_device *cd_replica_device(const cddp_plan_settings *settings,
                                     const cddp_device *devices);

/* device: of its tensors; NULL: that of the plan, over the process heap. */
typedef struct cd_replica_options {
    const cddp_plan *plan;
    uint32_t rank;
    const cddp_device *device;
    const cddp_allocator *allocator;
    /* which pieces of an optimizer this process steps; NULL: it steps all of every one */
    const cd_optimizer_cutter *cutter;
    /* a model to look names up in: without optimizers, and what the plan names is not looked up
    ** yet */
    bool only_names;
    bool in_f64; /* whatever model.dtype says */
} cd_replica_options;
cddp_status cd_replica_create(const cd_replica_options *options, cd_replica **replica,
                              cddp_error *err) CDDP_MUST_CHECK;
void cd_replica_destroy(cd_replica *replica); /* accepts NULL */

/* What [[when]] tables did to the parameters until this step: some stopped or began to require
** gradients, some were replaced. rank: whose tables apply. */
void cd_replica_begin_step(cd_replica *replica, uint32_t rank, uint32_t step);

/* "unit=2": which unit of the model, and how often it runs. */
typedef struct cd_unit_use {
    uint32_t unit;
    uint8_t count;
} cd_unit_use;
cddp_status cd_replica_read_use(const cd_replica *replica, const char *text, cd_unit_use *use,
                                cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_replica_find_output(const cd_replica *replica, const char *name, uint32_t *output,
                                   cddp_error *err) CDDP_MUST_CHECK;

/* Tokens of these samples. */
int64_t cd_replica_token_count(const cd_replica *replica, const int64_t *sample_ids,
                               uint32_t count);

/* One forward of a micro-step: samples first … first + count - 1 of its batch. */
typedef struct cd_pass {
    const cd_micro *micro;
    const cd_micro_batch *samples;
    uint32_t first, count;
    double divisor; /* of the weighted sum of losses; 0: none */
    /* (output_count) where the plan has an [[output]] */
    cd_loss_term terms[CD_MODEL_OUTPUTS_MAX];
    bool has_terms;
    double loss_scale;             /* 1 without a scaler */
    const cddp_dtype *input_dtype; /* inputs of the model are cast to it; NULL: they are not */
    cd_batch batch;
    cd_outputs outputs;
    /* (loss_count) one, or with loss_each one per output that the forward produced */
    cd_value *losses[CD_MODEL_OUTPUTS_MAX];
    uint32_t loss_count;
} cd_pass;
cddp_status cd_replica_forward(cd_replica *replica, cd_pass *pass, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_replica_loss(cd_replica *replica, cd_pass *pass, cddp_error *err) CDDP_MUST_CHECK;
/* What a micro-step runs backwards of. */
#define CD_REPLICA_FORWARDS_MAX 8
typedef struct cd_replica_losses {
    cd_value *items[CD_MODEL_OUTPUTS_MAX]; /* (count) */
    uint32_t count, together;              /* so many go into one backward */
} cd_replica_losses;
/* Adds those of one forward. */
void cd_replica_add_losses(const cd_pass *pass, cd_replica_losses *losses);
/* losses: (loss_count) summed by one backward. */
cddp_status cd_replica_backward(cd_replica *replica, const cd_micro *micro, cd_value *const *losses,
                                uint32_t loss_count, bool retain_graph,
                                cddp_error *err) CDDP_MUST_CHECK;

/* Adds a number to every element of a tensor, whatever its dtype. */
cddp_status cd_tensor_add_number(const cddp_tensor *tensor, double number,
                                 cddp_error *err) CDDP_MUST_CHECK;

/* The order of ready gradients is chosen: the engine would take this parameter next. Poison without
** a named parameter strikes the engine's first one, whatever is chosen, so that the plan alone says
** which. */
void cd_replica_offer(cd_replica *replica, uint32_t parameter);
/* A parameter becomes ready. Changes its local gradient as the plan's `poison` asks. */
cddp_status cd_replica_make_ready(cd_replica *replica, const cd_micro *micro, uint32_t parameter,
                                  cddp_grad *grad, cddp_error *err) CDDP_MUST_CHECK;

/* On a device of exact forms a gradient is a symbol: whose, from which rank, step and
** micro-step. Nothing on other devices. */
cddp_status cd_replica_write_atoms(const cd_micro *micro, uint32_t parameter,
                                   const cddp_tensor *dst, cddp_error *err) CDDP_MUST_CHECK;

/* With model.exact: puts every parameter back on the grid k/8, -8 <= k <= 8, wrapping around, so
** that the next step's sums are exact again. Part of the declared program, on every rank and in the
** reference alike. */
cddp_status cd_replica_regrid(cd_replica *replica, cddp_error *err) CDDP_MUST_CHECK;
/* The same for one tensor. */
cddp_status cd_regrid_tensor(const cddp_allocator *allocator, const cddp_tensor *tensor,
                             cddp_error *err) CDDP_MUST_CHECK;
