/* SPDX-License-Identifier: Apache-2.0 */
/* Timelines for the results of a report. */
#include "cli/drawn.h"

#include "cddp/store.h"
#include "core/base/alloc.h"
#include "core/base/error.h"

#include <inttypes.h>

/* What a browser still opens at once. */
#define DRAWN_MAX 48
#define DRAWN_SLICES_MAX 250000

void cd_drawn_init(cd_drawn *d)
{
    *d = (cd_drawn){0};
    cd_text_init(&d->why, false);
}

void cd_drawn_fini(cd_drawn *d)
{
    for (size_t i = 0; d->timelines != NULL && i < d->count; i++)
        cd_timeline_fini(&d->timelines[i]);
    cd_release(NULL, d->timelines, d->count * sizeof *d->timelines);
    cd_release(NULL, d->shown, d->count * sizeof *d->shown);
    cd_text_fini(&d->why);
}

static void look(cd_timeline *t, const cddp_verdict *verdict)
{
    for (size_t f = 0; f < verdict->finding_count; f++) {
        const cddp_finding *finding = &verdict->findings[f];
        cd_timeline_look_at(t, finding->step);
        for (uint32_t e = 0; e < finding->event_count && e < CDDP_FINDING_EVENTS_MAX; e++)
            cd_timeline_look_for(t, finding->events[e].rank, finding->events[e].sequence);
    }
    for (size_t w = 0; w < verdict->wait_count; w++) cd_timeline_look_at(t, verdict->waits[w].step);
}

static cddp_status draw(cd_timeline *t, const cd_drawn_events *events, const cd_report *report,
                        size_t result, size_t slices_max, cddp_error *err)
{
    cd_timeline_init(t);
    look(t, &report->results[result].verdict);
    CD_TRY(events->replay(events->source, report, result, cd_timeline_sink(t), err));
    return CD_PASS(cd_timeline_end(t, slices_max, err));
}

/* Those with findings first: they are what the page is opened for. */
static cddp_status draw_all(cd_drawn *d, const cd_drawn_events *events, const cd_report *report,
                            bool failing, size_t slices_max, cddp_error *err)
{
    size_t slices = 0, drawn = 0;
    for (size_t i = 0; i < report->count; i++) {
        if (d->shown[i] == NULL) continue;
        slices += d->timelines[i].slice_count;
        drawn++;
    }
    for (size_t i = 0; i < report->count; i++) {
        const cddp_verdict *v = &report->results[i].verdict;
        const bool is_failing = v->finding_count > 0 || v->wait_count > 0;
        if (is_failing != failing || !events->has(events->source, report, i)) continue;
        if (drawn >= DRAWN_MAX || slices >= DRAWN_SLICES_MAX) continue;
        CD_TRY(draw(&d->timelines[i], events, report, i, slices_max, err));
        slices += d->timelines[i].slice_count;
        d->shown[i] = &d->timelines[i];
        drawn++;
    }
    return CDDP_OK;
}

static void explain(cd_drawn *d, const cd_drawn_events *events, const cd_report *report)
{
    size_t there = 0, drawn = 0;
    for (size_t i = 0; i < report->count; i++) {
        there += events != NULL && events->has(events->source, report, i);
        drawn += d->shown[i] != NULL;
    }
    if (there == 0)
        cd_text_push(&d->why, "Nothing was recorded: run with --trace run.db to see the timeline.");
    else if (drawn < there)
        cd_text_printf(&d->why,
                       "%zu of %zu runs are drawn here. One of the others: report %s --run N.",
                       drawn, there, events->name);
}

cddp_status cd_drawn_take(cd_drawn *d, const cd_drawn_events *events, const cd_report *report,
                          size_t slices_max, cddp_error *err)
{
    d->timelines = cd_allocate_array(NULL, report->count, sizeof *d->timelines);
    d->shown = cd_allocate_array(NULL, report->count, sizeof *d->shown);
    if (d->timelines == NULL || d->shown == NULL)
        return cd_fail_memory(err, "the timelines of %zu runs", report->count);
    d->count = report->count;
    if (events != NULL) {
        CD_TRY(draw_all(d, events, report, true, slices_max, err));
        CD_TRY(draw_all(d, events, report, false, slices_max, err));
    }
    explain(d, events, report);
    return CDDP_OK;
}

/* ---- the runs of a store ---- */

static bool is_stored(const void *source, const cd_report *report, size_t result)
{
    (void)source;
    return report->results[result].stored_run != 0;
}

static cddp_status replay_stored(void *source, const cd_report *report, size_t result,
                                 const cddp_trace_sink *sink, cddp_error *err)
{
    return CD_PASS(cddp_store_each_event(source, report->results[result].stored_run,
                                         CDDP_STORE_RECORDED, sink, err));
}

cddp_status cd_drawn_take_stored(cd_drawn *d, const char *path, const cd_report *report,
                                 size_t slices_max, cddp_error *err)
{
    cddp_store *store = NULL;
    bool is_any = false;
    for (size_t i = 0; i < report->count; i++) is_any |= is_stored(NULL, report, i);
    if (path == NULL || !is_any) return CD_PASS(cd_drawn_take(d, NULL, report, slices_max, err));
    CD_TRY(cddp_store_open(path, CDDP_STORE_READ, NULL, &store, err));
    const cd_drawn_events events = {path, is_stored, replay_stored, store};
    const cddp_status status = cd_drawn_take(d, &events, report, slices_max, err);
    cddp_store_close(store);
    return CD_PASS(status);
}
