/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the events of a run, up to a limit, so that findings can be shown with those they rest
** on. */
#pragma once
#include "core/trace/sink.h"

/* about 60 MB; beyond it findings are shown without their events */
#define CD_RECORDER_EVENTS_MAX 400000

typedef struct cd_recorder {
    cddp_trace_sink sink; /* give it to the run */
    cd_memory_sink memory;
} cd_recorder;

void cd_recorder_init(cd_recorder *recorder);
void cd_recorder_fini(cd_recorder *recorder);
