/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rate schedules in closed form: the rate of a step is a function of its number alone, so
** a resumed run needs no schedule state. */
#pragma once
#include "cddp/status.h"

typedef enum cd_lr_kind {
    CD_LR_CONSTANT,
    CD_LR_STEP,   /* base × gamma^⌊t / period⌋ (StepLR) */
    CD_LR_COSINE, /* floor + (base - floor)(1 + cos(π t / period)) / 2 (CosineAnnealingLR) */
    CD_LR_LINEAR, /* base × (start + (1 - start) min(t, period) / period): warm-up (LinearLR) */
    CD_LR_KIND_COUNT
} cd_lr_kind;

typedef struct cd_lr_schedule {
    cd_lr_kind kind;
    double base;
    uint64_t period; /* ≥ 1 unless constant */
    double gamma;    /* step */
    double floor;    /* cosine: eta_min */
    double start;    /* linear: start_factor */
} cd_lr_schedule;

cddp_status cd_lr_schedule_check(const cd_lr_schedule *schedule, cddp_error *err) CDDP_MUST_CHECK;
/* The rate of step t = 0, 1, 2 … of a checked schedule. */
double cd_lr_at(const cd_lr_schedule *schedule, uint64_t t);
const char *cd_lr_kind_name(cd_lr_kind kind); /* "cosine" */
