/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the events of a run, up to a limit. */
#include "cli/recorder.h"

static void record(void *self, const cddp_event *event)
{
    cd_recorder *r = self;
    if (r->memory.count < CD_RECORDER_EVENTS_MAX) r->memory.sink.event(&r->memory, event);
}

void cd_recorder_init(cd_recorder *recorder)
{
    *recorder =
        (cd_recorder){.sink = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, recorder, record, NULL}};
    cd_memory_sink_init(&recorder->memory, NULL);
}

void cd_recorder_fini(cd_recorder *recorder) { cd_memory_sink_fini(&recorder->memory); }
