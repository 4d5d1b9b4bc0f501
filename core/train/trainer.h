/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's training: its program, its watcher, and the parts: the model, its wrapper, its
** optimizers, and what a step does besides.
**
** The files: trainer.c builds, trains and destroys, wrapper.c wraps the model, micro_step.c is one
** forward and backward, step.c one optimizer step, observe.c what enters the trace, collectives.c
** what the program communicates by itself, evaluation.c forwards that train nothing, checkpoint.c
** saving, throwing away and loading, in_backward.c optimizers that step while backward runs,
** clipping.c the norm by which gradients are clipped.
**
** Lifetime   create → train → destroy, on the rank's own thread or fiber.
** Errors     an error of the wrapped runtime ends the training of this rank, as an exception would.
*/
#pragma once
#include "cddp/ddp.h"
#include "cddp/registry.h"
#include "core/ddp/wrap/observe.h"
#include "core/base/arena.h"
#include "core/model/optim/loss_scaler.h"
#include "core/tensor/blob.h"
#include "core/tensor/numbers.h"
#include "core/train/loss_divisor.h"
#include "core/train/shard.h"
#include "core/train/sharding.h"
#include "core/train/streams.h"
#include "core/train/timed_device.h"
#include "core/train/watcher.h"
#include "core/tensor/symbol.h"
#include "core/trace/tracer.h"

#define CD_NO_VARIABLE (-1)

/* What this rank keeps of an optimizer besides the replica's. */
typedef struct cd_trainer_optimizer {
    cd_shard *shard; /* which pieces it is over; NULL: over all of its parameters */
    cd_scaled_optimizer scaled;
    bool is_due;         /* in this step */
    bool has_overflowed; /* it skips this step, since a gradient was not finite */
    bool has_stepped;    /* in backward, in this step, for the trace */
    bool *has_touched;   /* (.count of the replica's) the same of its parameters */
} cd_trainer_optimizer;

typedef struct cd_trainer_options {
    const cddp_plan *plan;
    cddp_rank *rank;
    const cddp_backend *backend;
    const cddp_registry *registry;
    struct cddp_tracer *tracer; /* may be NULL */
    int64_t wrapper;            /* which of the rank's */
    cddp_group *world;          /* that of another wrapper, borrowed; NULL: it makes its own, */
    const char *group_name;     /* of this name; NULL: "world" */
    cddp_group **named;         /* the plan's groups, of another wrapper, borrowed; or NULL */
    const cd_watcher *watcher;  /* who looks on; borrowed until destroy. NULL: nobody */
    /* (CD_REPLICA_DEVICES) for words of model.device; NULL: over the process heap */
    const cddp_device *devices;
    bool is_dropped; /* these devices' storage and the rank's memory, behind the run */
} cd_trainer_options;

/* What the plan asks of this rank. */
typedef struct cd_program {
    const cddp_plan *plan;
    cddp_plan_settings settings; /* the rank's */
    cd_sampler *sampler;
} cd_program;

/* What was last found in a tensor that is reported at every moment. */
typedef struct cd_trainer_look {
    int64_t digest, presence, nonfinite;
    bool is_known;
} cd_trainer_look;

/* The watcher, and the values shown to it: the host's view when it was last refreshed. */
typedef struct cd_trainer_view {
    const cd_watcher *watcher;     /* NULL: nobody, or not yet */
    cddp_tensor *parameters;       /* (parameter_count) */
    cddp_grad *gradients;          /* (parameter_count) */
    cddp_tensor *buffers;          /* (buffer_count) */
    cd_trainer_look *buffer_looks; /* (buffer_count) */
    bool knows_owners;             /* whose bucket is whose */
} cd_trainer_view;

/* ---- parts ---- */

/* What this rank keeps of a parameter besides the module's. */
typedef struct cd_trainer_parameter {
    int32_t variable;       /* index in the wrapper, or CD_NO_VARIABLE */
    uint64_t contributions; /* accumulations since gradients were dropped */
    cddp_grad averaged;     /* what an optimizer in backward consumed in this step, owned */
    cd_trainer_look value_look, gradient_look;
} cd_trainer_parameter;

typedef struct cd_trainer_groups {
    cddp_group *world;   /* of the wrapper, at first */
    cddp_group *wrapped; /* of the wrapper now; NULL: this rank has left */
    cddp_group **named;  /* (plan->group_count) NULL where this rank is no member */
    /* of the program's own collectives, with values that are given to them */
    cd_numbers numbers;
    double *values; /* (value_capacity) */
    size_t value_capacity;
} cd_trainer_groups;

/* How buckets are reduced. */
typedef struct cd_trainer_reduction {
    const cddp_hook *hook;       /* NULL: none */
    const cddp_hook *inner_hook; /* what a wrapper wraps; else NULL */
    /* something in the hook's slot sums and then divides by the world (MIX-04, OIB-02) */
    bool divides_after;
    cddp_dtype wire;             /* CDDP_DTYPE_COUNT: the bucket's own */
    cd_bucket_observer observer; /* what the watcher sees of buckets */
    cd_tracer_operands operands; /* and of reductions */
    cddp_status
        travel_status; /* the first failure of looking: the next result or the end says it */
    cddp_error travel_error;
    cd_continuation_chooser continuations;
} cd_trainer_reduction;

/* The graph search of a forward (FWD-02). */
typedef struct cd_trainer_search {
    bool *reachable; /* (parameter_count) */
    bool *variables; /* (parameter_count) the same by variable */
} cd_trainer_search;

/* Slots of every parameter that requires grad, now or later. */
typedef struct cd_trainer_gradients {
    cddp_grad **grads; /* (count) */
    size_t count;
} cd_trainer_gradients;

typedef struct cd_trainer_scaling {
    cd_loss_scaler scaler;
    double scale; /* the scaler's, or 1 */
} cd_trainer_scaling;

/* Optimizer slots that travel at the end of join. */
typedef struct cd_trainer_join {
    /* (slot_count) of the optimizers, those that exist first; as many again for the self-test */
    cddp_tensor *slots;
    size_t slot_count;
    bool is_follower; /* its context is that of another trainer's wrapper, which ends it */
} cd_trainer_join;

typedef struct cd_trainer_saved {
    cd_blob all, part; /* part: of what the trace reports one by one */
} cd_trainer_saved;

/* The step and the micro-step at hand. */
typedef struct cd_trainer_place {
    uint32_t step, micro_step;
    const cd_micro *micro;
    struct collection *collection; /* open_micro: where firings go; else NULL */
    uint32_t gradient_count;       /* that became ready in the running backward */
    uint32_t leaves_after;         /* behind how many of them the plan leaves it; 0: never */
    size_t exchange_count;         /* of batch norm statistics in its forwards */
    bool accumulates;              /* the backward that ended reduced nothing */
    bool begins_window;            /* it ended with a reduction, and the step goes on */
    bool is_in_forward;            /* of a micro-step that contributes */
    bool has_moved;                /* buckets were rebuilt at its begin, with gradients there */
    bool has_stepped;              /* the step was taken, or given up, inside the micro-step */
    bool was_left;                 /* the backward of this micro-step was */
    bool has_entered;              /* a backward of this step started */
} cd_trainer_place;

struct cd_trainer {
    cd_trainer_options options;
    cddp_rank *rank;
    const cddp_allocator *allocator; /* the rank's */
    struct cddp_tracer *tracer;
    cd_arena memory;     /* of what lives as long as the model: until a resume, or the end */
    cd_arena run_memory; /* of what lives as long as the trainer */

    cd_program program;
    cd_trainer_view view;
    cd_trainer_place now;

    cd_trainer_groups groups;
    cd_replica *replica;
    cd_trainer_optimizer *optimizers; /* (optimizer_count) of the replica */
    cd_trainer_parameter *parameters; /* (parameter_count) of the replica's module */
    cd_loss_divisor divisor;
    cddp_ddp *ddp;                /* NULL: the model is sharded */
    struct cd_sharding *sharding; /* sharding.c; NULL: the model is wrapped */
    cd_trainer_reduction reduction;
    cd_trainer_search search;
    cd_trainer_gradients trained;
    cd_trainer_scaling scaling;
    cd_trainer_join join;
    cd_trainer_saved saved;
    cd_streams streams;           /* where gradients are queued; without streams it does nothing */
    cd_timed_device timed_device; /* of the replica, where passes over gradients take time */
    uint64_t backward_weights;    /* of all parameters that require grad */
    struct cd_clipping *clipping; /* clipping.c; NULL: nothing is clipped after a reduction */
    struct cd_averaging *averaging; /* averaging.c; NULL: no model averager */
};

cddp_status cd_trainer_create(const cd_trainer_options *options, cd_trainer **trainer,
                              cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_train(cd_trainer *trainer, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_destroy(cd_trainer *trainer); /* accepts NULL */

/* The training in pieces, for a rank whose wrappers take turns: select → (begin → (enter_step →
** run_turn for each micro-step → leave_step)* → end_epoch)* → finish, with a select wherever
** another trainer went on in between. The last epoch ends with finish. has_step: false where the
** rank leaves the loop before this step. */
void cd_trainer_select(cd_trainer *trainer);
cddp_status cd_trainer_enter_step(cd_trainer *trainer, uint32_t step, bool *has_step,
                                  cddp_error *err) CDDP_MUST_CHECK;
uint32_t cd_trainer_steps(const cd_trainer *trainer);
uint32_t cd_trainer_epochs(const cd_trainer *trainer);
/* end: of the epoch, the first step behind it. */
cddp_status cd_trainer_end_epoch(cd_trainer *trainer, uint32_t end,
                                 cddp_error *err) CDDP_MUST_CHECK;
uint32_t cd_trainer_micro_steps(const cd_trainer *trainer);
/* micro: filled, and borrowed until the step is left. */
cddp_status cd_trainer_run_turn(cd_trainer *trainer, uint32_t micro_step, cd_micro *micro,
                                cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_leave_step(cd_trainer *trainer, const cd_micro *last,
                                  cddp_error *err) CDDP_MUST_CHECK;

/* ---- between the files of the trainer ---- */

/* trainer.c: model, optimizers and wrapper, also after a resume. */
cddp_status cd_trainer_build(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_drop(cd_trainer *t);
cd_module *cd_trainer_module(const cd_trainer *t);
/* A parameter's share in the time of a backward, as train.backward_split says; of
** t->backward_weights. */
uint64_t cd_trainer_backward_weight(const cd_trainer *t, size_t parameter);
/* Refreshes the views from the module, as the host sees it. */
cd_watched_values cd_trainer_refresh_views(cd_trainer *t);
/* Without gradients. */
cd_watched_values cd_trainer_refresh_parameters(cd_trainer *t);

/* wrapper.c: the model wrapped, its hook registered, and the dtypes that are declared in the
** trace. */
cddp_status cd_trainer_wrap(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_report_gradients(cd_trainer *t);
/* bucket_watch.c: the watcher sees what comm hooks are given and give, and the numbers of
** reductions. */
void cd_trainer_watch_buckets(cd_trainer *t);
cddp_status cd_trainer_end_watching(const cd_trainer *trainer, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_watch_reductions(cd_trainer *t);

/* optimizers.c: the replica, with the pieces of its optimizers that this rank steps. */
cddp_status cd_trainer_make_replica(cd_trainer *t, const cddp_device *device,
                                    cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_drop_replica(cd_trainer *t);

/* micro_step.c */
cddp_status cd_trainer_run_micro(cd_trainer *t, const cd_micro *micro,
                                 cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_set_callbacks(cd_trainer *t);
/* FWD-02. searches: gradients are recorded, and the wrapper may want to know what they reach. */
cddp_status cd_trainer_end_forward(cd_trainer *t, cd_pass *pass, bool searches,
                                   cddp_error *err) CDDP_MUST_CHECK;

/* evaluation.c: what the plan has evaluated before a micro-step; mostly nothing. */
cddp_status cd_trainer_evaluate(cd_trainer *t, const cd_micro *micro, const cd_micro_batch *samples,
                                cddp_error *err) CDDP_MUST_CHECK;

/* The training in pieces, for a caller that decides in which order the gradients of a backward
** become ready: begin → (begin_step → (open_micro → fire every firing → close_micro)* → end_step)*
** → finish. A join has one epoch there. The code is that of train; only the backward waits between
** its firings. Devices without arithmetic only. */
typedef struct cd_firing {
    uint32_t parameter;  /* ordinal in the module */
    cddp_grad_kind kind; /* of the gradient that arrived */
} cd_firing;
/* first: the trainer whose wrapper this one's joins together with; NULL: there is none. */
cddp_status cd_trainer_begin(cd_trainer *t, const cd_trainer *first,
                             cddp_error *err) CDDP_MUST_CHECK;
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

/* step.c */
cddp_status cd_trainer_step(cd_trainer *t, const cd_micro *last, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_update(cd_trainer *t, const cd_micro *last, cddp_error *err) CDDP_MUST_CHECK;
/* A reduction in the middle of a step: judged by itself; what follows adds to its result
** (FIN-06). */
cddp_status cd_trainer_close_window(cd_trainer *t, const cd_micro *micro,
                                    cddp_error *err) CDDP_MUST_CHECK;
/* The loss scale is now the scaler's. */
void cd_trainer_rescale(cd_trainer *t);
cddp_status cd_trainer_zero_grad(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;

typedef struct cd_trainer_decision {
    bool skipped;
    bool is_unscaled, is_clipped_first; /* as it happened: they were clipped before */
    double norm, clip;                  /* of all gradients; NaN and 1 without clipping */
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
/* Reports what they did not step on, and to whom buckets were assigned. */
cddp_status cd_trainer_end_step_in_backward(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;

/* collectives.c */
cddp_status cd_trainer_open_groups(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
/* One group; left alone where this rank is no member. */
cddp_status cd_trainer_open_group(cd_trainer *t, const cddp_plan_group *planned, cddp_group **group,
                                  cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_close_groups(cd_trainer *t);
/* By name; NULL: that of the wrapper. NULL when this rank is no member. */
cddp_group *cd_trainer_find_group(const cd_trainer *t, const char *name);
cddp_status cd_trainer_run_collectives(cd_trainer *t, cddp_plan_collective_place place,
                                       cddp_error *err) CDDP_MUST_CHECK;

/* averaging.c: the model averager of local SGD, what it must have done, and who must agree when.
** Without one they do nothing. */
cddp_status cd_trainer_open_averager(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_close_averager(cd_trainer *t);
void cd_trainer_emit_agreement(cd_trainer *t);
/* Over how many consecutive ranks the hook says that it averages; 0: it says nothing, or no
** averager is in force. */
uint32_t cd_trainer_get_block(const cd_trainer *t);
cddp_status cd_trainer_average(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
/* LSG-04: its step is the one number that a checkpoint keeps. */
cddp_status cd_trainer_save_averager(const cd_trainer *t, const cddp_state_writer *writer,
                                     cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_load_averager(cd_trainer *t, const cddp_state_reader *reader,
                                     cddp_error *err) CDDP_MUST_CHECK;

/* checkpoint.c: the states of hook, scaler and averager, by the bytes that they would save. */
cddp_status cd_trainer_emit_states(cd_trainer *t, int64_t moment, cddp_error *err) CDDP_MUST_CHECK;
/* What train.checkpoint_step and train.resume ask for after this many steps. */
cddp_status cd_trainer_checkpoint(cd_trainer *t, uint32_t steps_done,
                                  cddp_error *err) CDDP_MUST_CHECK;

/* observe.c: `moment` numbers are those of the `value` event. */
/* Shows a moment: the watcher sees the values, then they enter the trace. */
cddp_status cd_trainer_show(cd_trainer *t, cddp_event_enum_moment moment,
                            cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_emit_settings(cd_trainer *t);
void cd_trainer_emit_seeds(cd_trainer *t);
/* One forward's: samples first … first + count - 1 of the micro-batch, one by one before it and in
** all after it, and its loss. */
void cd_trainer_emit_samples(cd_trainer *t, const cd_pass *pass);
void cd_trainer_emit_consumed(cd_trainer *t, const cd_pass *pass);
cddp_status cd_trainer_emit_loss(cd_trainer *t, const cd_pass *pass,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* The sum of a pass's losses; as it is where the device has no numbers. */
cddp_status cd_trainer_read_loss(cd_trainer *t, const cd_pass *pass, double *loss,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* How gradients stand before the first backward of a step. */
cddp_status cd_trainer_emit_entry(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_emit_parameters(cd_trainer *t, cddp_event_enum_moment moment,
                                       cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_emit_buffers(cd_trainer *t, cddp_event_enum_moment moment,
                                    cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_emit_optimizers(cd_trainer *t, cddp_event_enum_moment moment,
                                       cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_trainer_emit_gradient(cd_trainer *t, uint32_t parameter, const cddp_grad *grad,
                                     cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_emit_mark(cd_trainer *t, const char *name, int64_t value);
