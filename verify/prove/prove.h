/* SPDX-License-Identifier: Apache-2.0 */
/* A proof of one scenario: every schedule, rank by rank.
**
** The argument has four steps:
**
**   1  What a rank sends depends on two things only: the order in which its own gradients become
**      ready, and the results of its collectives. rank.h searches exactly that, with the real code.
**   2  A recorded run gives every rank its results. Given those, the rank issues one sequence of
**      collectives, contents included, in every order of its gradients.
**   3  So the first collective is sent as recorded in every schedule. Its result is then as
**      recorded, hence so is the second collective, and so on to the recorded end.
**   4  The recorded run was verified on device symbol: for all values.
**
** Rank 0's order can change a result: it decides the layout that rank 0 proposes for the rebuild.
** Every such order is recorded. Behind it every rank is searched, or, where a layout of the same
** form was searched already, walked once. See Note [Layouts that are alike]
**
** The simulator runs what is recorded; nothing here models the reducer.
*/
#pragma once
#include "cddp/run.h"
#include "verify/prove/rank.h"

#define CD_PROVE_CULPRIT_BYTES 640
#define CD_PROVE_SCHEDULE_BYTES 4096
#define CD_PROVE_SIZES 4 /* worlds of 2 and more that are run */
#define CD_PROVE_MODELS 8
#define CD_PROVE_LARGE_SIZES 3 /* worlds that one rank at a time is put into */

typedef struct cd_proof cd_proof;

/* Which rebuilt layouts are searched; the others are walked, or not recorded at all. See
** Note [Layouts that are alike] and Note [Orders of one form] */
typedef enum cd_prove_layouts {
    /* all, unless that means more than a million states; of forms, beyond ten thousand orders */
    CD_PROVE_LAYOUTS_BY_COST,
    CD_PROVE_LAYOUTS_ALL,
    CD_PROVE_LAYOUTS_ALIKE,
    CD_PROVE_LAYOUTS_FORMS
} cd_prove_layouts;

typedef struct cd_prove_options {
    /* ready orders are chosen, device symbol or shape, nothing but "verified" expected */
    const cddp_plan *plan;
    const cddp_registry *registry;
    /* of rank 0 in the window that decides the layout; more are not all tried */
    uint64_t orders_max;
    uint32_t probes; /* random runs before the search */
    uint32_t jobs;   /* processes for the orders of rank 0 */
    cd_prove_layouts layouts;
    bool (*stop)(void *context);
    void (*progress)(void *context, const cd_proof *proof); /* may be NULL */
    void *context;
} cd_prove_options;

typedef enum cd_proof_end {
    CD_PROOF_HOLDS,
    CD_PROOF_REFUTED,
    CD_PROOF_BOUNDED, /* nothing was refuted, and not everything was tried */
    CD_PROOF_STOPPED  /* by the budget or by Ctrl-C */
} cd_proof_end;

struct cd_proof {
    cd_proof_end end;
    char bound[CD_PROVE_CULPRIT_BYTES]; /* what was not tried */
    uint32_t rank_count;
    size_t items;     /* of the longest sequence */
    double schedules; /* covered: the product of the orders of all windows of all ranks */
    char schedules_exactly[64];
    double estimate;               /* Knuth's, from the probes */
    uint32_t probes, probe_spread; /* spread: of the probes, in percent of the estimate */
    double states_estimate, orders_estimate;
    double orders_all; /* of rank 0 that could change a rebuilt layout; 0: not known yet */
    uint64_t states, events, rank_runs, world_runs;
    uint64_t orders_tried, layouts; /* of rank 0, and what came of them */
    uint64_t walked;                /* layouts whose form had been searched */
    bool walks_alike;               /* layouts of a form that was searched are walked */
    double forms;                   /* of orders, each recorded once; 0: all orders are recorded */
    uint64_t drawn;                 /* orders that were recorded besides */
    uint32_t windows_max, window_count;
    uint32_t shared_ranks; /* not searched themselves: they are one with another rank */
    /* Any number of ranks. See Note [Numbers of ranks]. */
    /* the sequence is the same for every number from here on; 0: not shown */
    uint32_t any_from;
    char any_missing[CD_PROVE_CULPRIT_BYTES]; /* why not */
    /* sizes of the worlds whose sequences were compared */
    uint32_t worlds[CD_PROVE_SIZES], world_count;
    uint32_t models[CD_PROVE_MODELS], model_count; /* the recorded ranks that further ranks do as */
    /* calls with the runtime's own numbers; counts or names of ranks; shares */
    uint32_t steering, counting, sharing;
    uint32_t large[CD_PROVE_LARGE_SIZES], large_count;
    uint64_t projected;            /* ranks that ran alone in a larger world */
    bool has_choice;               /* and received several numbers of ranks */
    bool projected_in_every_order; /* one of them was searched there too */
    uint32_t refuted_size;         /* the world in which it was refuted; 0: the scenario's own */
    bool values;                   /* contents were exact: device symbol */
    /* refuted */
    cd_rank_proof parting; /* is_refuted: rank by rank */
    uint32_t parting_rank;
    char culprit[CD_PROVE_CULPRIT_BYTES];
    /* replays it; "": the engine's own order, or none is known */
    char schedule[CD_PROVE_SCHEDULE_BYTES];
    bool has_schedule;
    bool world_agrees; /* the whole world fails under that schedule too */
};

cddp_status cd_prove(const cd_prove_options *options, cd_proof *proof,
                     cddp_error *err) CDDP_MUST_CHECK;
