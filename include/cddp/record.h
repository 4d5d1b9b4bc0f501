/* SPDX-License-Identifier: Apache-2.0 */
/* Recording a training program, so that `cddp-verify check run.db.*` can judge it.
**
** cddp_record_open once, at the start, or CDDP_RECORD=run.db in the environment of a program that
** does not call it: from then on every group and every wrapper that has no tracer yet writes its
** events into the shard of this rank, run.db.RANK. The other functions say, one line each,
** what only the program knows: where a step begins, local gradients, the optimizer's step,
** samples, values. Without a recording each of them is one comparison.
**
** A program that makes no group before its first optimizer steps is recorded as one process, or as
** the rank that a launcher's variables name.
**
** Parameters are named by their position in cddp_ddp_options.parameters (named_parameters order).
** docs/howto/record.md has a program with all the calls.
**
** Lifetime   open → (the program) → close. One recording per process, of one rank.
** Ownership  tensors and texts are borrowed during the call.
** Threads    any; the calls of a step belong to the thread that trains.
** Errors     recording never stops the program. What went wrong (the disk is full) is in the shard,
**            and is returned by close, or by cddp_run_ranks after the end of its function.
*/
#pragma once
#include "cddp/trace.h"
#include "cddp/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_record_options {
    uint32_t size; /* sizeof(cddp_record_options) known to the writer */
    /* world_size 0: of the first group or wrapper, or as the launcher's environment says */
    uint32_t rank, world_size;
    uint32_t generation;    /* how often the job was restarted; 0: as the launcher says */
    cddp_trace_level level; /* what events contain */
} cddp_record_options;

/* At level digest; the rank is that of the first group. */
CDDP_API cddp_record_options cddp_record_options_default(void);

/* path: of the run, "run.db"; the file of rank 3 is run.db.3. options may be NULL. The file is made
** when the rank is known. Behind the first group of several ranks it is an error: what goes through
** that would be missing. */
CDDP_API cddp_status cddp_record_open(const char *path, const cddp_record_options *options,
                                      cddp_error *err) CDDP_MUST_CHECK;
/* The program of this rank ended: well (CDDP_OK), or with an error and why (may be NULL). Returns
** what went wrong with the recording. Without this call nobody knows that the rank came to its end,
** and nothing is verified. What groups and wrappers do until they are destroyed belongs to the
** recording: while a group is there, it ends with the last one. */
CDDP_API cddp_status cddp_record_close(cddp_status ended, const char *why, cddp_error *err);
CDDP_API bool cddp_record_is_on(void);
/* For events that have no function here. Returns borrowed until close; NULL without a recording. */
CDDP_API cddp_tracer *cddp_record_tracer(void);

/* Of several wrappers (a generator and a discriminator), which one the calls are about that follow,
** until it is said again: 0 is the one that was created first, 1 the second. One that is created
** after another was destroyed takes its number. A program with one wrapper need not say it; where
** a program with several says nothing, nothing is verified. */
CDDP_API void cddp_record_wrapper(size_t wrapper);

/* ---- a step ---- */

/* Steps count from 0. Of a number beyond 32 bits the low ones are recorded. A program that never
** says where a step begins has a new one at the first forward after a backward that was reduced;
** without cddp_ddp, at the first gradient after an optimizer stepped. */
CDDP_API void cddp_record_step_begin(uint64_t step);
/* Further forwards and backwards of the same step: 1, 2, … */
CDDP_API void cddp_record_micro_step(uint64_t micro_step);
/* The samples of the next forward. Within an epoch every sample is used once, by one rank. */
CDDP_API void cddp_record_samples(uint64_t epoch, const int64_t *ids, size_t count);
/* A gradient after this backward added to it, before it is marked ready. */
CDDP_API void cddp_record_gradient(size_t parameter, const cddp_tensor *gradient);
/* The same gradient after its reduction. For programs that reduce without cddp_ddp; and for those
** that clip or unscale gradients afterwards, before they do. */
CDDP_API void cddp_record_reduced(size_t parameter, const cddp_tensor *gradient);
/* Where gradients are dropped, or filled with zeros: before it is done or behind it, and before the
** next backward. The recorder looks whether it was done. */
CDDP_API void cddp_record_zero_grad(bool to_none);

typedef struct cddp_record_update {
    uint32_t size; /* sizeof(cddp_record_update) known to the writer */
    int64_t optimizer;
    const char *name; /* "sgd" */
    bool is_skipped;
    double lr;
    /* by which gradients were divided, and multiplied, since their reduction; 1: they were not */
    double loss_scale, clip;
    double norm; /* of all gradients; NaN: not computed */
} cddp_record_update;

/* Optimizer 0 without a scaler and without clipping. */
CDDP_API cddp_record_update cddp_record_update_default(void);
/* An optimizer steps; what it does to each parameter follows. Called before it changes any. */
CDDP_API void cddp_record_optimizer_step(const cddp_record_update *update);
/* gradient: the one that it consumed; NULL: it has none and the parameter stays. */
CDDP_API void cddp_record_optimizer_touch(int64_t optimizer, size_t parameter,
                                          const cddp_tensor *gradient);

/* ---- values ---- */

/* A parameter of a program that reduces without cddp_ddp, before its first step. */
CDDP_API void cddp_record_parameter(size_t parameter, const char *name, const cddp_tensor *tensor);
/* All of them were named: the ranks of the world train them together. */
CDDP_API void cddp_record_parameters_end(void);
/* Where that parameter and its gradient lie from now on. The recorder looks whether anything but a
** step changes the parameter, and whether zero_grad clears the gradient. gradient: NULL where its
** place may change. Borrows both until cddp_record_storage_end, or until it is called again for the
** parameter. With cddp_ddp the recorder knows. */
CDDP_API void cddp_record_storage(size_t parameter, const cddp_tensor *tensor,
                                  const cddp_tensor *gradient);
/* The training is over: it looks a last time, and borrows nothing any more. */
CDDP_API void cddp_record_storage_end(void);
/* The content of a tensor at a moment. Of each parameter behind each step, and behind whatever else
** changes it by right: CDDP_MOMENT_AFTER_STEP. Of one that is exchanged for a forward and its
** backward, in front of the forward: CDDP_MOMENT_FORWARD, where all ranks have the same then, and
** CDDP_MOMENT_ADAPTED, where each rank has its own. It is back when the optimizer steps. */
CDDP_API void cddp_record_value(cddp_event_enum_what what, cddp_event_enum_moment moment, size_t id,
                                const cddp_tensor *tensor);

#ifdef __cplusplus
}
#endif
