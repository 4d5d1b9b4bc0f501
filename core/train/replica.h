/* SPDX-License-Identifier: Apache-2.0 */
/* One process's model and its optimizers: what a rank trains, and what the oracle trains again by
** itself.
**
** Nothing here communicates. The rank program and the oracle's engine both drive replicas, so that
** "the same samples on one process" means the same code on the same samples.
**
** Lifetime   create → (begin → forward… → loss… → backward)* → destroy. Borrows the plan.
** Threads    the rank's.
*/
#pragma once
#include "cddp/ddp.h"
#include "core/model/engine.h"
#include "core/model/model.h"
#include "core/model/optim/optimizer.h"
#include "core/plan/micro.h"
#include "core/train/sampler.h"
#include "core/train/shard.h"

typedef struct cd_replica_optimizer {
    cd_optimizer *optimizer;
    const char *name;
    cddp_selector steps;
    double lr;
    uint32_t *ordinals; /* (count) module parameters that it owns */
    cddp_grad **grads;  /* (count) their slots */
    size_t count;
    bool in_backward;               /* DDP has each parameter stepped when its bucket is reduced */
    cddp_optimizer_overlap overlap; /* with it: how */
    bool has_stepped;               /* in this step, for the trace */
    bool *has_touched;              /* (count) the same of its parameters */
    cd_shard *shard; /* which pieces the optimizer is over; NULL: over all of its parameters */
} cd_replica_optimizer;

typedef struct cd_replica {
    const cddp_plan *plan;
    const cddp_allocator *allocator;
    cddp_plan_settings settings;
    uint32_t rank;
    cd_model *model;
    cd_graph *graph;
    cd_replica_optimizer *optimizers; /* (optimizer_count) */
    size_t optimizer_count;
    uint8_t *uses;       /* (unit_count) of the model, for the current micro-step */
    bool *requires_grad; /* (parameter_count) before any [[when]] changed it */
    uint32_t *order;     /* (parameter_count) scratch for ready orders */
    cd_prng data_prng;
    cd_samplers samplers;  /* used when a loss or objective counts over all ranks */
    uint32_t divisor_step; /* + 1; of the two below */
    /* on average over all ranks and micro-steps of a step */
    double samples_per_forward, tokens_per_forward;
    /* losses are normalised as train.objective says, not as train.loss does */
    bool computes_objective;
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
    bool whole_optimizers; /* also those that the plan cuts into the ranks' parts: the oracle's */
    /* a model to look names up in: without optimizers, and what the plan names is not looked up
    ** yet */
    bool only_names;
} cd_replica_options;
cddp_status cd_replica_create(const cd_replica_options *options, cd_replica **replica,
                              cddp_error *err) CDDP_MUST_CHECK;
void cd_replica_destroy(cd_replica *replica); /* accepts NULL */

/* What [[when]] tables did to the parameters until this step: some stopped or began to require
** gradients, some were replaced (flags into replaced, (parameter_count), unless NULL). rank: whose
** tables apply. */
void cd_replica_begin_step(cd_replica *replica, uint32_t rank, uint32_t step, bool *replaced);

/* "unit=2": which unit of the model, and how often it runs. */
typedef struct cd_unit_use {
    uint32_t unit;
    uint8_t count;
} cd_unit_use;
cddp_status cd_replica_read_use(const cd_replica *replica, const char *text, cd_unit_use *use,
                                cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_replica_find_output(const cd_replica *replica, const char *name, uint32_t *output,
                                   cddp_error *err) CDDP_MUST_CHECK;

/* The divisor of the weighted sum of losses of the forward to which sample `first` of a micro-batch
** belongs; 0: none. */
cddp_status cd_replica_divisor(cd_replica *replica, const cd_micro *micro,
                               const cd_micro_batch *samples, uint32_t first, double *divisor,
                               cddp_error *err) CDDP_MUST_CHECK;
int64_t cd_replica_token_count(const cd_replica *replica, const int64_t *sample_ids,
                               uint32_t count);

/* One forward of a micro-step: samples first … first + count - 1 of its batch. */
typedef struct cd_pass {
    const cd_micro *micro;
    const cd_micro_batch *samples;
    uint32_t first, count;
    double loss_scale; /* 1 without a scaler */
    cd_batch batch;
    cd_outputs outputs;
    cd_value *loss;
} cd_pass;
cddp_status cd_replica_forward(cd_replica *replica, cd_pass *pass, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_replica_loss(cd_replica *replica, cd_pass *pass, cddp_error *err) CDDP_MUST_CHECK;
/* losses: (loss_count) summed by one backward. */
cddp_status cd_replica_backward(cd_replica *replica, const cd_micro *micro, cd_value *const *losses,
                                uint32_t loss_count, bool retain_graph,
                                cddp_error *err) CDDP_MUST_CHECK;

/* Changes a local gradient as the plan's `poison` asks. */
cddp_status cd_replica_poison(const cd_micro *micro, const char *parameter, bool is_first,
                              cddp_grad *grad, cddp_error *err) CDDP_MUST_CHECK;

/* On a device of exact forms a gradient is a symbol of its own: whose, from which rank, step and
** micro-step. Nothing on other devices. */
cddp_status cd_replica_write_atoms(const cd_micro *micro, uint32_t parameter,
                                   const cddp_tensor *dst, cddp_error *err) CDDP_MUST_CHECK;

/* With model.exact: puts every parameter back on the grid k/8, -8 <= k <= 8, wrapping around, so
** that the next step's sums are exact again. Part of the declared program, on every rank and in the
** reference alike. */
cddp_status cd_replica_regrid(cd_replica *replica, cddp_error *err) CDDP_MUST_CHECK;

/* Are buckets dealt to the ranks, each of which steps its own (ZRO-12)? */
bool cd_replica_assigns_buckets(const cd_replica *replica, size_t optimizer);
/* Does the plan cut an optimizer into the ranks' parts? */
bool cd_replica_is_sharded(const cd_replica *replica);
/* The state that an optimizer of the replica keeps for the k-th of its parameters: absent where
** another rank has it. */
void cd_replica_get_state(const cd_replica_optimizer *optimizer, size_t k,
                          cd_optimizer_state *state);
bool cd_replica_is_due(const cd_replica *replica, size_t optimizer, uint32_t step);
/* The learning rate of a step: lr × lr_decay^step by repeated multiplication, so that a resumed run
** has its bits. */
double cd_replica_lr(const cd_replica *replica, size_t optimizer, uint32_t step);
