/* SPDX-License-Identifier: Apache-2.0 */
/* The tracer of a group or wrapper that was given none: that of a recording, when the process has
** one (record/). Core knows no recorder. The reference is weak, so a program without record/ in
** it has no recording, and links. */
#pragma once
#include "cddp/trace.h"

struct cddp_tracer *cd_record_attach(cddp_rank *rank, struct cddp_tracer *own)
    __attribute__((weak));

static inline struct cddp_tracer *cd_tracer_attach(cddp_rank *rank, struct cddp_tracer *own)
{
    return own == NULL && cd_record_attach != NULL ? cd_record_attach(rank, own) : own;
}
