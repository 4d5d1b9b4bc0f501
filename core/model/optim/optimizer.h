/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers: PyTorch's formulas in PyTorch's order of operations, each rounded to the parameter's
** dtype.
**
** An undefined gradient is not a zero gradient. A parameter whose .grad is undefined is skipped: it
** keeps its value and gets no state. A parameter with a zero gradient decays, moves by its
** momentum, and its step is counted. SGD works through the device table alone and so runs on every
** device; on `symbol` it is exact (lr, momentum … read as ratios). The others compute on host
** storage, or on a device that has their rule (cddp/layers.h); they do nothing on devices without
** values (`shape`) and refuse exact ones.
**
** Lifetime   create → step … → destroy. Parameters and gradient slots are borrowed until destroy.
**            State is made at a parameter's first step with a gradient, and kept.
** Threads    one thread.
** Errors     name the optimizer and the parameter. A step that fails leaves that parameter
**            unchanged.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/device.h"
#include "cddp/hook.h"

typedef enum cd_optimizer_kind {
#define CD_OPTIMIZER(name, summary) CD_OPTIMIZER_##name,
#include "core/model/optim/optimizers.def"
#undef CD_OPTIMIZER
    CD_OPTIMIZER_KIND_COUNT
} cd_optimizer_kind;

const char *cd_optimizer_name(cd_optimizer_kind kind); /* "sgd" */

typedef struct cd_optimizer_parameter {
    const char *name;
    cddp_tensor tensor;
    cddp_grad *grad;
} cd_optimizer_parameter;

typedef struct cd_optimizer_options {
    cd_optimizer_kind kind;
    double lr;
    double weight_decay;
    bool maximize;
    double momentum, dampening;                 /* sgd */
    bool nesterov;                              /* sgd */
    double beta1, beta2;                        /* adam, adamw */
    bool amsgrad;                               /* adam, adamw */
    double eps;                                 /* adam, adamw, adagrad */
    double lr_decay, initial_accumulator_value; /* adagrad */
    /* this rank's parameters are not known yet; cd_optimizer_state_begin follows later */
    bool defers_state;
} cd_optimizer_options;

/* PyTorch's defaults of that kind (SGD's lr, which has none there, is 0.01). */
cd_optimizer_options cd_optimizer_options_default(cd_optimizer_kind kind);

typedef struct cd_optimizer cd_optimizer;

/* The array of parameters is copied; names are borrowed until destroy. */
cddp_status cd_optimizer_create(const cd_optimizer_options *options,
                                const cd_optimizer_parameter *parameters, size_t parameter_count,
                                const cddp_allocator *allocator, cd_optimizer **optimizer,
                                cddp_error *err) CDDP_MUST_CHECK;
void cd_optimizer_destroy(cd_optimizer *optimizer); /* accepts NULL */

cddp_status cd_optimizer_step(cd_optimizer *optimizer, cddp_error *err) CDDP_MUST_CHECK;
/* One parameter only (optimizer in backward). */
cddp_status cd_optimizer_step_parameter(cd_optimizer *optimizer, size_t parameter,
                                        cddp_error *err) CDDP_MUST_CHECK;
void cd_optimizer_set_lr(cd_optimizer *optimizer, double lr);
double cd_optimizer_get_lr(const cd_optimizer *optimizer);
/* What it computes with. */
const cd_optimizer_options *cd_optimizer_get_options(const cd_optimizer *optimizer);
/* With defers_state, before the first step: another tensor and slot under the same name. */
void cd_optimizer_replace(cd_optimizer *optimizer, size_t parameter, const cddp_tensor *tensor,
                          cddp_grad *grad);
size_t cd_optimizer_parameter_count(const cd_optimizer *optimizer);

/* ---- state: what must agree between replicas and survive a checkpoint ---- */

#define CD_OPTIMIZER_SLOTS_MAX 3

typedef struct cd_optimizer_state {
    bool is_present; /* the parameter has had a gradient */
    uint64_t step;   /* of this parameter; sgd counts none */
    uint32_t slot_count;
    const char *slot_names[CD_OPTIMIZER_SLOTS_MAX]; /* "exp_avg" */
    /* with the parameter's sizes; undefined where absent */
    cddp_tensor slots[CD_OPTIMIZER_SLOTS_MAX];
} cd_optimizer_state;

/* Borrows until the next step or destroy. */
void cd_optimizer_get_state(const cd_optimizer *optimizer, size_t parameter,
                            cd_optimizer_state *state);
/* is_present, of the state */
bool cd_optimizer_has_state(const cd_optimizer *optimizer, size_t parameter);
/* A digest of presence, step and slots. */
cddp_status cd_optimizer_state_digest(const cd_optimizer *optimizer, size_t parameter,
                                      uint64_t *digest, cddp_error *err) CDDP_MUST_CHECK;
/* Makes the state that a first step would make, so that a broadcast can fill it. */
cddp_status cd_optimizer_state_define(cd_optimizer *optimizer, size_t parameter,
                                      cddp_error *err) CDDP_MUST_CHECK;
/* With defers_state: makes what another optimizer would have made when it was created. */
cddp_status cd_optimizer_state_begin(cd_optimizer *optimizer, size_t parameter,
                                     cddp_error *err) CDDP_MUST_CHECK;
/* Makes the state of a parameter present or absent, with this count. The caller fills the slots. */
cddp_status cd_optimizer_state_set(cd_optimizer *optimizer, size_t parameter, bool is_present,
                                   uint64_t step, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_optimizer_save(const cd_optimizer *optimizer, const cddp_state_writer *writer,
                              cddp_error *err) CDDP_MUST_CHECK;
/* Into an optimizer of the same kind over parameters of the same sizes; refuses others, naming what
** differs. After a failure part of the state may be the loaded one. */
cddp_status cd_optimizer_load(cd_optimizer *optimizer, const cddp_state_reader *reader,
                              cddp_error *err) CDDP_MUST_CHECK;
