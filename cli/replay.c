/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing a run with its record, event by event. */
#include "cli/replay.h"

#include "core/base/error.h"
#include "core/trace/event.h"

#include <stdio.h>
#include <string.h>

static bool same_text(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") == 0;
}

static bool same_event(const cddp_event *a, const cddp_event *b)
{
    if (a->kind != b->kind || a->rank != b->rank || a->step != b->step || a->micro_step != b->micro_step) return false;
    if (a->time_ns != b->time_ns || a->sequence != b->sequence) return false;
    uint32_t fields = cd_event_field_counts[a->kind];
    return memcmp(a->as.field, b->as.field, fields * sizeof a->as.field[0]) == 0 && same_text(a->text, b->text);
}

static void compare(void *self, const cddp_event *event)
{
    cd_replay *r = self;
    if (r->parted || r->stopped) return;
    bool beyond = r->next >= r->recorded.count;
    cddp_event expected = {0};
    if (!beyond) expected = cd_memory_sink_get(&r->recorded, r->next);
    if (!beyond && same_event(&expected, event)) {
        r->next++;
        r->stopped = r->until != 0 && r->next >= r->until;
        return;
    }
    r->parted = true;
    r->has_extra = true;
    r->extra = *event;
    r->extra.text = NULL;
    snprintf(r->extra_text, sizeof r->extra_text, "%s", event->text != NULL ? event->text : "");
    if (event->text != NULL) r->extra.text = r->extra_text;
}

static cddp_status flush(void *self, cddp_error *err)
{
    const cd_replay *r = self;
    if (r->parted) return cd_fail(err, CDDP_E_ABORTED, "the runs parted after %zu events", r->next);
    if (r->stopped) return cd_fail(err, CDDP_E_ABORTED, "stopped after %zu events, as asked", r->next);
    return CDDP_OK;
}

void cd_replay_init(cd_replay *replay)
{
    *replay = (cd_replay){.sink = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, replay, compare, flush}};
    cd_memory_sink_init(&replay->recorded, NULL);
}

void cd_replay_fini(cd_replay *replay)
{
    cd_memory_sink_fini(&replay->recorded);
}

cddp_status cd_replay_load(cd_replay *replay, cddp_store *store, int64_t run, cddp_error *err)
{
    CD_TRY(cddp_store_each_event(store, run, CDDP_STORE_RECORDED, &replay->recorded.sink, err));
    CD_TRY(replay->recorded.sink.flush(replay->recorded.sink.self, err));
    return CDDP_OK;
}
