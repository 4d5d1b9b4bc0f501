/* SPDX-License-Identifier: Apache-2.0 */
/* The program that every rank runs, on every world. */
#pragma once
#include "cddp/run.h"
#include "core/run/intake.h"
#include "core/run/wrappers.h"
#include "core/train/trainer.h"

typedef struct cd_rank_argument {
    const cddp_run_options *options;
    const cddp_trace_sink *sink;    /* of the run: judge and caller's sinks */
    const cd_tracer_values *values; /* of a run that nobody hears; NULL: values are events */
    const cd_run_wrappers *wrappers;
    struct cd_recall *recall; /* NULL: every judgement is made */
    /* (CD_REPLICA_DEVICES) of the ranks' tensors; NULL: over the process heap */
    const cddp_device *devices;
    cd_reductions *reductions; /* of a rank that is a process; NULL: those of its wrapper */
    bool is_dropped;           /* the memory of the ranks and of these devices, behind the run */
} cd_rank_argument;

/* Of the wrapper at this index, by the backend of the rank. */
cd_intake_options cd_rank_watch(const cd_rank_argument *argument, size_t index,
                                const cd_trainer_options *options);

/* A device without numbers has nothing that a watcher could judge. */
void cd_rank_report_unobserved(const cd_trainer_options *options);

/* A cddp_rank_fn; argument is a cd_rank_argument, the same for all ranks. */
cddp_status cd_rank_program(cddp_rank *rank, void *argument, cddp_error *err);
