/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's engine: a replica that trains any rank's part of the plan by itself.
**
** Lifetime   create → hand `.engine` to the oracle → destroy after the oracle. Borrows the plan.
*/
#pragma once
#include "core/base/arena.h"
#include "core/oracle/oracle.h"
#include "core/plan/replica/replica.h"
#include "core/reference/crossed.h"
#include "core/reference/example.h"
#include "core/reference/low_precision.h"
#include "core/reference/normaliser.h"
#include "core/reference/samples.h"
#include "core/reference/statistics_share.h"
#include "core/reference/wide.h"

/* Data that the references of one thread share. They differ in their initial values, and not in the
** plan. */
typedef struct cd_reference_share {
    cd_statistics_share statistics;
    cd_samples samples;
} cd_reference_share;
void cd_reference_share_init(cd_reference_share *share, const cddp_plan *plan,
                             const cddp_allocator *allocator);
void cd_reference_share_fini(cd_reference_share *share);

/* Runs every rank, to find what they exchange. */
typedef struct cd_scout {
    struct cd_reference *owner;
    cd_replica *replica;
    cd_normaliser normaliser;
    cd_crossed crossed; /* its own: passes of scouts run inside of the owner's */
} cd_scout;

typedef struct cd_reference {
    cd_arena memory; /* of the reference itself and its arrays */
    cd_oracle_engine engine;
    const cddp_plan *plan;
    const cddp_allocator *allocator;
    cd_replica *replica;
    cd_normaliser normaliser; /* of the replica */
    cd_low_precision low, full;
    cd_crossed crossed; /* of a sharded model; else zeroed */
    cd_wide wide;
    cd_replica *ran;              /* that of the last run: its gradients are asked for */
    cddp_plan_settings *settings; /* (setting_count) those that ranks have; most have the same */
    size_t setting_count, setting_capacity;
    uint32_t *settings_of;     /* (world size) which of them */
    cd_reference_share *share; /* the run's, or own */
    cd_reference_share own;
    cddp_tensor *parameters; /* (parameter_count) views of the replica's */
    /* (parameter_count) views of the replica's slots, refreshed by the getter */
    cddp_grad *gradients;
    const cddp_tensor *loaded; /* buffers, of the latest load; NULL: none */
    cddp_tensor *buffers;
    uint32_t *uses;     /* (parameter_count) by the forwards of the last run, for each backward */
    cddp_tensor *slots; /* (slot_count) of the optimizers */
    int32_t *slot_parameters;
    size_t slot_count;
    const cd_blob *state;   /* optimizers' state before the step; NULL: it keeps its own */
    const cd_blob *restart; /* of a free-running one: the run's before the step */
    bool is_free_running;
    const double *loss_scale; /* the run's, borrowed */
    /* (optimizer_count) which of them step in the update at hand; borrowed for it */
    const bool *due;
    /* (optimizer_count) rates of rate_step; See Note [Two forms of a rate] */
    double *rates;
    uint32_t rate_step;
    const cd_micro *running; /* micro-step whose gradients arrive now */
    /* Synchronised batch norm; else NULL and 0. */
    cd_scout scouts[2]; /* in the plan's precision, and in f64 */
    /* of what is asked for; its digest is of the loaded values once has_digest */
    cd_statistics_key key;
    bool has_digest;
    cd_statistics *listening; /* whose exchanges the running pass takes part in */
    cd_example example;       /* a micro-step as data for the second form */
} cd_reference;

typedef struct cd_reference_options {
    const cddp_plan *plan;
    uint32_t rank;             /* whose settings and initial values the replica has */
    const cddp_device *device; /* of its tensors: the rank's, so that both compute alike */
    const cddp_allocator *allocator;
    /* the rank's optimizers before a step; NULL: the reference keeps its own, as it must where no
    ** rank has all */
    const cd_blob *state;
    bool is_free_running;   /* parameters too are its own: they go on from its last update */
    const cd_blob *restart; /* from which a free-running one restarts; NULL: it never does */
    const double *loss_scale;
    cd_reference_share *share; /* that of ranks of one thread; NULL: own */
} cd_reference_options;

cddp_status cd_reference_create(const cd_reference_options *options, cd_reference **reference,
                                cddp_error *err) CDDP_MUST_CHECK;
void cd_reference_destroy(cd_reference *reference); /* accepts NULL */
