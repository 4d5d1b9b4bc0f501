/* SPDX-License-Identifier: Apache-2.0 */
/* --log: events as lines on standard error while they happen (docs/formats/log.md names the
** columns). */
#pragma once
#include "cddp/trace.h"
#include "core/base/log.h"

#define CD_LOG_COMPONENT_COUNT 8

typedef struct cd_log_sink {
    cddp_trace_sink sink;                /* give it to the run */
    cd_log logs[CD_LOG_COMPONENT_COUNT]; /* one per component */
} cd_log_sink;

/* spec as in "ddp:debug,sim:info"; refuses unknown components and levels, naming those there
** are. */
cddp_status cd_log_sink_init(cd_log_sink *log, const char *spec, cddp_error *err) CDDP_MUST_CHECK;
