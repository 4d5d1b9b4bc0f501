/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's training: the model, its wrapper, its optimizers, and everything that watches them.
**
** The parts: trainer.c builds and destroys, micro_step.c is one forward and backward, step.c one
** optimizer step, observe.c what enters the trace, collectives.c what the program communicates by
** itself, checkpoint.c saving, throwing away and loading, in_backward.c optimizers that step while
** backward runs, clipping.c by whose norm gradients are clipped.
**
** Lifetime   create → train → destroy, on the rank's own thread or fiber.
** Errors     an error of the wrapped runtime ends the training of this rank, as an exception would.
*/
#pragma once
#include "cddp/ddp.h"
#include "cddp/registry.h"
#include "core/model/optim/loss_scaler.h"
#include "core/oracle/numbers.h"
#include "core/oracle/oracle.h"
#include "core/train/blob.h"
#include "core/reference/reference.h"
#include "core/train/replica.h"
#include "core/train/streams.h"
#include "core/train/timed_device.h"
#include "core/tensor/symbol.h"
#include "core/trace/tracer.h"

#define CD_NO_VARIABLE (-1)

typedef struct cd_trainer_options {
    const cddp_plan *plan;
    cddp_rank *rank;
    const cddp_backend *backend;
    const cddp_registry *registry;
    struct cddp_tracer *tracer; /* may be NULL */
    bool oracle;
    cd_oracle_share *share;              /* ranks of one thread; else NULL */
    cd_reference_share *reference_share; /* likewise */
    /* (CD_REPLICA_DEVICES) for words of model.device; NULL: over the process heap */
    const cddp_device *devices;
} cd_trainer_options;

typedef struct cd_trainer {
    cd_trainer_options options;
    const cddp_plan *plan;
    cddp_rank *rank;
    const cddp_allocator *allocator; /* the rank's */
    struct cddp_tracer *tracer;
    cddp_plan_settings settings;

    cddp_group *group;   /* of the wrapper */
    cddp_group **groups; /* (plan->group_count) NULL where this rank is no member */
    /* of the program's own collectives, with own_values (own_capacity) that are given to them */
    cd_numbers own_numbers;
    double *own_values;
    size_t own_capacity;
    cd_replica *replica;
    const cddp_hook *hook;       /* NULL: none */
    const cddp_hook *inner_hook; /* what a wrapper wraps; else NULL */
    /* something in the hook's slot sums and then divides by the world (MIX-04, OIB-02) */
    bool divides_after;
    cddp_dtype wire; /* of its reductions, or CDDP_DTYPE_COUNT: the bucket's own */
    cddp_ddp *ddp;
    int32_t *variables; /* (parameter_count) variable index of each parameter, or CD_NO_VARIABLE */
    bool *reachable;    /* (parameter_count) of the graph search */
    bool *replaced;     /* (parameter_count) the wrapper hears of the old parameter only */
    bool *reachable_variables;
    uint64_t *contributions; /* (parameter_count) accumulations since gradients were dropped */
    cddp_grad **grads;       /* (grad_count) slots of every parameter that requires grad */
    size_t grad_count;
    cd_sampler *sampler;
    cd_loss_scaler scaler;
    double loss_scale; /* the scaler's, or 1 */

    cd_oracle *oracle; /* NULL: not judged */
    cd_reference *reference, *free_reference;
    cd_blob optimizer_state; /* before the step, for the reference */
    cddp_tensor *views;      /* (parameter_count) parameters as the oracle takes them */
    cddp_tensor *buffer_views;
    cddp_grad *grad_views;
    /* (parameter_count) what optimizers in backward consumed in this step, owned */
    cddp_grad *averaged;
    cddp_tensor *before;     /* (parameter_count) copies of the parameters before the step, owned */
    cddp_tensor *slots;      /* (slot_count) of the optimizers */
    cddp_tensor *join_state; /* those that travel at the end of join */
    int32_t *slot_parameters;
    size_t slot_count;

    cd_streams streams;           /* where gradients are queued; without streams it does nothing */
    cd_timed_device timed_device; /* of the replica, where passes over gradients take time */
    uint64_t backward_weights;    /* of all parameters that require grad */

    struct cd_clipping *clipping;   /* clipping.c; NULL: nothing is clipped after a reduction */
    struct cd_averaging *averaging; /* averaging.c; NULL: no model averager */
    cd_blob checkpoint, part;       /* part: of what is told of it */
    /* the micro-step at hand */
    const cd_micro *micro;
    struct collection *collection; /* open_micro: where firings go; else NULL */
    uint32_t gradient_count;       /* that became ready in the running backward */
    size_t exchange_count;         /* of batch norm statistics in its forwards */
    bool is_in_forward;            /* of a micro-step that the reference runs too */
    bool has_owners;               /* the oracle knows whose bucket is whose */
    bool has_stepped;              /* the step was taken, or given up, inside the micro-step */
    uint32_t step;
    uint32_t window_first; /* first micro-step since the last reduction of this step */
    uint64_t reductions;   /* so far, also before a resume */
    /* the first ones, which are the allreduce hook's whatever the hook is (chosen_hook.h) */
    uint64_t exact_reductions;
} cd_trainer;

cddp_status cd_trainer_create(const cd_trainer_options *options, cd_trainer **trainer,
                              cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_train(cd_trainer *trainer, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_destroy(cd_trainer *trainer); /* accepts NULL */

/* ---- between the files of the trainer ---- */

/* trainer.c: model, optimizers and wrapper, also after a resume. */
cddp_status cd_trainer_build(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_drop(cd_trainer *t);
cd_module *cd_trainer_module(const cd_trainer *t);
/* A parameter's share in the time of a backward, as train.backward_split says; of
** t->backward_weights. */
uint64_t cd_trainer_backward_weight(const cd_trainer *t, size_t parameter);
/* Refreshes views, buffer_views and grad_views from the module, as the host sees them. */
void cd_trainer_refresh_views(cd_trainer *t);
/* The same, when what was queued on the default stream has taken effect: before the oracle
** looks. */
cddp_status cd_trainer_show(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;

/* micro_step.c */
cddp_status cd_trainer_run_micro(cd_trainer *t, const cd_micro *micro,
                                 cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_set_callbacks(cd_trainer *t);

/* The training in pieces, for who decides from outside in which order the gradients of a backward
** become ready: begin → (begin_step → (open_micro → fire every firing → close_micro)* → end_step)*
** → finish. What train does, with the same code; only the backward waits between its firings.
** Devices without arithmetic only. */
typedef struct cd_firing {
    uint32_t parameter;  /* ordinal in the module */
    cddp_grad_kind kind; /* of the gradient that arrived */
} cd_firing;
cddp_status cd_trainer_begin(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
bool cd_trainer_has_step(const cd_trainer *t, uint32_t step);
cddp_status cd_trainer_begin_step(cd_trainer *t, uint32_t step, cddp_error *err) CDDP_MUST_CHECK;
/* Everything up to the backward, and what fires in it, in the engine's order; micro is borrowed
** until close. */
cddp_status cd_trainer_open_micro(cd_trainer *t, const cd_micro *micro, cd_firing *firings,
                                  size_t capacity, size_t *count, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_fire(cd_trainer *t, const cd_firing *firing,
                            cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_close_micro(cd_trainer *t, const cd_micro *micro,
                                   cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_end_step(cd_trainer *t, const cd_micro *last,
                                cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_finish(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
/* Adds a number to every element, whatever the dtype. */
cddp_status cd_tensor_add_number(const cddp_tensor *tensor, double number,
                                 cddp_error *err) CDDP_MUST_CHECK;

/* step.c */
/* Copies what judging the update needs: parameters and the state of the optimizers. */
cddp_status cd_trainer_keep_before(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_step(cd_trainer *t, const cd_micro *last, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_update(cd_trainer *t, const cd_micro *last, cddp_error *err) CDDP_MUST_CHECK;
/* A reduction in the middle of a step: judged by itself; what follows adds to its result
** (FIN-06). */
cddp_status cd_trainer_close_window(cd_trainer *t, const cd_micro *micro,
                                    cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_zero_grad(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;

typedef struct cd_trainer_decision {
    bool skipped;
    double norm, clip; /* of all gradients; NaN and 1 without clipping */
    double loss_scale;
} cd_trainer_decision;
void cd_trainer_emit_step(cd_trainer *t, size_t optimizer, const cd_trainer_decision *decision);
/* position: of the parameter in the optimizer. */
cddp_status cd_trainer_emit_touch(cd_trainer *t, size_t optimizer, size_t position, bool touched,
                                  cddp_error *err) CDDP_MUST_CHECK;

/* clipping.c: See Note [Whose norm] */
cddp_status cd_trainer_open_clipping(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_close_clipping(cd_trainer *t);
cddp_status cd_trainer_clip(cd_trainer *t, cd_trainer_decision *decision,
                            cddp_error *err) CDDP_MUST_CHECK;

/* in_backward.c: See Note [A step before the step] */
bool cd_trainer_steps_in_backward(const cd_trainer *t);
/* How, where it does: plan_check.c sees to it that there is one way. */
cddp_optimizer_overlap cd_trainer_overlap(const cd_trainer *t);
cddp_status cd_trainer_attach_optimizers(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
/* Tells of what they did not step on, and the oracle of whom buckets were dealt to. due: bit per
** optimizer. */
cddp_status cd_trainer_end_step_in_backward(cd_trainer *t, uint32_t due,
                                            cddp_error *err) CDDP_MUST_CHECK;

/* collectives.c */
typedef enum cd_place {
    CD_PLACE_BEFORE_FORWARD = CDDP_PLACE_BEFORE_FORWARD,
    CD_PLACE_BEFORE_BACKWARD = CDDP_PLACE_BEFORE_BACKWARD,
    CD_PLACE_AFTER_BACKWARD = CDDP_PLACE_AFTER_BACKWARD,
    CD_PLACE_AFTER_STEP = CDDP_PLACE_AFTER_STEP
} cd_place_in_step;
cddp_status cd_trainer_open_groups(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_close_groups(cd_trainer *t);
/* By name; NULL: that of the wrapper. NULL when this rank is no member. */
cddp_group *cd_trainer_find_group(const cd_trainer *t, const char *name);
cddp_status cd_trainer_run_collectives(cd_trainer *t, cd_place_in_step place,
                                       cddp_error *err) CDDP_MUST_CHECK;

/* averaging.c: the model averager of local SGD, what it must have done, and who must agree when.
** Without one they do nothing. */
cddp_status cd_trainer_open_averager(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_close_averager(cd_trainer *t);
void cd_trainer_emit_agreement(cd_trainer *t);
/* Whether an averager is in force and the hook says over which blocks it averages: of this rank's,
** the first rank and the size. */
bool cd_trainer_has_block(const cd_trainer *t, uint32_t *first, uint32_t *ranks);
/* Whether the hook still does exactly what the allreduce hook does. */
bool cd_trainer_is_before_start(const cd_trainer *t);
cddp_status cd_trainer_average(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
/* LSG-04: its step is the one number that a checkpoint keeps. */
cddp_status cd_trainer_save_averager(const cd_trainer *t, const cddp_state_writer *writer,
                                     cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_load_averager(cd_trainer *t, const cddp_state_reader *reader,
                                     cddp_error *err) CDDP_MUST_CHECK;

/* checkpoint.c: what train.checkpoint_step and train.resume ask for after this many steps. */
cddp_status cd_trainer_checkpoint(cd_trainer *t, uint32_t steps_done,
                                  cddp_error *err) CDDP_MUST_CHECK;

/* observe.c: `moment` numbers are those of the `value` event. */
typedef enum cd_moment {
    CD_MOMENT_BEFORE_INIT = CDDP_MOMENT_BEFORE_INIT,
    CD_MOMENT_AFTER_INIT = CDDP_MOMENT_AFTER_INIT,
    CD_MOMENT_FORWARD = CDDP_MOMENT_FORWARD,
    CD_MOMENT_AFTER_BACKWARD = CDDP_MOMENT_AFTER_BACKWARD,
    CD_MOMENT_BEFORE_STEP = CDDP_MOMENT_BEFORE_STEP,
    CD_MOMENT_AFTER_STEP = CDDP_MOMENT_AFTER_STEP,
    CD_MOMENT_END = CDDP_MOMENT_END,
    CD_MOMENT_CHECKPOINT = CDDP_MOMENT_CHECKPOINT,
    CD_MOMENT_RESUME = CDDP_MOMENT_RESUME
} cd_moment;
void cd_trainer_emit_settings(cd_trainer *t);
void cd_trainer_emit_seeds(cd_trainer *t);
void cd_trainer_emit_samples(cd_trainer *t, const cd_micro_batch *samples);
cddp_status cd_trainer_emit_parameters(cd_trainer *t, cd_moment moment,
                                       cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_emit_buffers(cd_trainer *t, cd_moment moment,
                                    cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_emit_optimizers(cd_trainer *t, cd_moment moment,
                                       cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_emit_gradient(cd_trainer *t, uint32_t parameter, const cddp_grad *grad,
                                     cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_emit_mark(cd_trainer *t, const char *name, int64_t value);
