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

static cddp_status draw(cd_timeline *t, cddp_store *store, const cd_result *result, cddp_error *err)
{
    cd_timeline_init(t);
    for (size_t f = 0; f < result->verdict.finding_count; f++) {
        const cddp_finding *finding = &result->verdict.findings[f];
        for (uint32_t e = 0; e < finding->event_count && e < CDDP_FINDING_EVENTS_MAX; e++)
            cd_timeline_look_for(t, finding->events[e].rank, finding->events[e].sequence);
    }
    CD_TRY(cddp_store_each_event(store, result->stored_run, CDDP_STORE_RECORDED,
                                 cd_timeline_sink(t), err));
    return CD_PASS(cd_timeline_end(t, err));
}

/* Those with findings first: they are what the page is opened for. */
static cddp_status draw_all(cd_drawn *d, cddp_store *store, const cd_report *report, bool failing,
                            size_t *drawn, cddp_error *err)
{
    size_t slices = 0;
    for (size_t i = 0; i < report->count; i++) {
        const cd_result *r = &report->results[i];
        const bool is_failing = r->verdict.finding_count > 0 || r->verdict.wait_count > 0;
        if (d->shown[i] != NULL) slices += d->timelines[i].slice_count;
        if (r->stored_run == 0 || is_failing != failing) continue;
        if (*drawn >= DRAWN_MAX || slices >= DRAWN_SLICES_MAX) continue;
        CD_TRY(draw(&d->timelines[i], store, r, err));
        slices += d->timelines[i].slice_count;
        d->shown[i] = &d->timelines[i];
        ++*drawn;
    }
    return CDDP_OK;
}

cddp_status cd_drawn_take(cd_drawn *d, const char *path, const cd_report *report, cddp_error *err)
{
    cddp_store *store = NULL;
    cddp_status status = CDDP_OK;
    size_t stored = 0, drawn = 0;
    d->timelines = cd_allocate_array(NULL, report->count, sizeof *d->timelines);
    d->shown = cd_allocate_array(NULL, report->count, sizeof *d->shown);
    if (d->timelines == NULL || d->shown == NULL)
        return cd_fail_memory(err, "the timelines of %zu runs", report->count);
    d->count = report->count;
    for (size_t i = 0; i < report->count; i++) stored += report->results[i].stored_run != 0;
    if (path == NULL || stored == 0) {
        cd_text_push(&d->why, "Nothing was recorded: run with --trace run.db to see the timeline.");
        return CDDP_OK;
    }
    CD_TRY(cddp_store_open(path, CDDP_STORE_READ, NULL, &store, err));
    CD_TRY_OUT(draw_all(d, store, report, true, &drawn, err));
    CD_TRY_OUT(draw_all(d, store, report, false, &drawn, err));
    if (drawn < stored)
        cd_text_printf(&d->why,
                       "%zu of %zu runs are drawn here. One of the others: report %s --run N.",
                       drawn, stored, path);
out:
    cddp_store_close(store);
    return status;
}
