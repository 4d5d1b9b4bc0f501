/* SPDX-License-Identifier: Apache-2.0 */
/* The referee of a rank: referee_open.c makes it from the plan, referee.c judges with it. */
#pragma once
#include "core/reference/referee.h"

#include "core/base/arena.h"
#include "core/oracle/hook_law/hook_law.h"
#include "core/reference/custody.h"
#include "core/reference/decisions.h"
#include "core/reference/evaluation.h"
#include "core/reference/exchanged.h"
#include "core/reference/shown.h"
#include "core/reference/unit_law.h"
#include "core/reference/unit_sums.h"

struct cd_referee {
    cd_arena memory; /* of the referee itself and its arrays */
    cd_referee_options options;
    const cddp_allocator *allocator;
    cddp_plan_settings settings; /* of the rank */
    double loss_scale;           /* of the step; the references borrow it */
    cd_reference *reference, *free_reference;
    cd_oracle *oracle;
    cd_custody *custody;
    cd_shown shown;
    int32_t *variables; /* (parameter_count) of the wrapper, as the plan numbers them */
    cd_decisions decisions;
    cd_part *parts;             /* (parameter_count) as the plan assigns them */
    bool *due;                  /* (optimizer_count) of the update at hand */
    cd_formula *formulas;       /* (optimizer_count) of link 14 */
    uint32_t travelled, summed; /* results of buckets since the last reduction; sums compared */
    cd_hook_law *hook_law;      /* NULL: the plan names no hook, or its input is no bucket */
    cd_observed_before_update before; /* the copies from which an update is judged */
    cd_blob optimizer_state;          /* the bytes of .before: a reader's own cursor */
    cd_numbers numbers;               /* of gradients, or a collective's result */
    cd_exchanged_turn exchanged;
    cd_evaluation evaluation;
    cd_unit_law *units; /* of a sharded model; else NULL */
    cd_unit_sums sums;  /* of a sharded model with numbers; else zeroed */
    cd_kept cast;       /* of a parameter, to the dtype of its unit */
    bool casts_units;   /* some compute in another dtype than their parameters' */
};

/* The oracle counts the two parts of a complex number. */
static inline int64_t cd_referee_lanes_of(cddp_dtype dtype) { return dtype == CDDP_C64 ? 2 : 1; }
