/* SPDX-License-Identifier: Apache-2.0 */
/* Running a scenario as the verifier runs it, on the simulator, and listening to its events. */
#include "tests/selftest/world.h"

#include "cddp/plugin.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "scenarios/reader/reader.h"
#include "verify/worlds/compose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETS_MAX 8

const st_world_row st_worlds[] = {
#define ST_WORLD(name, scenario, sets, how, places) {#name, scenario, sets, how, places},
#include "tests/selftest/worlds.def"
#undef ST_WORLD
};
const size_t st_world_count = sizeof st_worlds / sizeof st_worlds[0];

/* ---- what a run says of itself ---- */

typedef struct listener {
    st_world *world;         /* NULL: names are known already */
    st_recording *recording; /* or NULL */
    st_finals finals;
} listener;

static void record(st_recording *r, const cddp_event *e)
{
    if (r->count == r->capacity) {
        const size_t capacity = r->capacity * 2 + 1024;
        cddp_event *events = realloc(r->events, capacity * sizeof *events);
        if (events == NULL) abort();
        r->events = events;
        r->capacity = capacity;
    }
    cddp_event *kept = &r->events[r->count++];
    *kept = *e;
    if (e->text == NULL) return;
    const size_t length = strlen(e->text) + 1;
    char *text = malloc(length);
    if (text == NULL) abort();
    memcpy(text, e->text, length);
    kept->text = text;
}

void st_recording_fini(st_recording *recording)
{
    for (size_t i = 0; i < recording->count; i++)
        free((char *)(uintptr_t)recording->events[i].text);
    free(recording->events);
    *recording = (st_recording){.count = 0};
}

static cddp_status replay(void *source, const cddp_trace_sink *sink, cddp_error *err)
{
    const st_recording *r = source;
    (void)err;
    for (size_t i = 0; i < r->count; i++) sink->event(sink->self, &r->events[i]);
    return CDDP_OK;
}

cddp_status st_recording_judge(st_recording *recording, const st_world *world,
                               cddp_verdict **verdict, cddp_error *err)
{
    return CD_PASS(cddp_judge(world->plan, world->registry, replay, recording, verdict, err));
}

static void learn(st_world *w, const cddp_event *e)
{
    const cddp_event_param *p = &e->as.param;
    if (e->kind == CDDP_EV_param && p->ordinal >= 0 && p->ordinal < ST_NAMES_MAX) {
        snprintf(w->parameters[p->ordinal], ST_NAME_BYTES, "%s", e->text);
        w->variables[p->ordinal] = p->param;
        if ((size_t)p->ordinal >= w->parameter_count) w->parameter_count = (size_t)p->ordinal + 1;
    }
    if (e->kind == CDDP_EV_buffer && e->as.buffer.buffer >= 0 &&
        e->as.buffer.buffer < ST_NAMES_MAX) {
        const size_t at = (size_t)e->as.buffer.buffer;
        snprintf(w->buffers[at], ST_NAME_BYTES, "%s", e->text);
        if (at >= w->buffer_count) w->buffer_count = at + 1;
    }
    if (e->kind == CDDP_EV_bucket_layout && e->as.bucket_layout.param >= 0 &&
        e->as.bucket_layout.param < ST_NAMES_MAX && e->as.bucket_layout.bucket < 64)
        w->buckets[e->as.bucket_layout.param] |= UINT64_C(1) << e->as.bucket_layout.bucket;
}

static void listen(void *self, const cddp_event *e)
{
    listener *l = self;
    if (l->world != NULL && e->rank == 0) learn(l->world, e);
    if (l->recording != NULL) record(l->recording, e);
    if (e->kind != CDDP_EV_value || e->as.value.moment != CDDP_MOMENT_END ||
        e->rank >= ST_RANKS_MAX)
        return;
    uint64_t *digest = &l->finals.digests[e->rank];
    *digest = cd_hash_mix(*digest, (uint64_t)e->as.value.what);
    *digest = cd_hash_mix(*digest, (uint64_t)e->as.value.id);
    *digest = cd_hash_mix(*digest, (uint64_t)e->as.value.presence);
    *digest = cd_hash_mix(*digest, (uint64_t)e->as.value.digest);
}

/* ---- runs ---- */

static cddp_status run(const st_world *world, listener *l, cddp_verdict **verdict, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_compose *compose = NULL;
    const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, l, listen, NULL};
    const cddp_trace_sink *sinks[] = {&sink};
    const cd_compose_options options = {.plan = world->plan,
                                        .registry = world->registry,
                                        .level = CDDP_TRACE_DIGEST};
    CD_TRY_OUT(cd_compose_open(&options, &compose, err));
    cddp_run_options how = cddp_run_options_default();
    cd_compose_fill(compose, &how);
    how.registry = world->registry;
    how.sinks = sinks;
    how.sink_count = 1;
    CD_TRY_OUT(cddp_run(&how, verdict, err));
out:
    cd_compose_close(compose);
    return status;
}

cddp_status st_world_run(const st_world *world, st_recording *recording, st_finals *finals,
                         cddp_verdict **verdict, cddp_error *err)
{
    listener l = {.recording = recording};
    CD_TRY(run(world, &l, verdict, err));
    *finals = l.finals;
    return CDDP_OK;
}

/* ---- life ---- */

static cddp_status read_plan(const st_world_row *row, cddp_plan **plan, cddp_error *err)
{
    char text[256];
    const char *sets[SETS_MAX];
    size_t count = 0;
    snprintf(text, sizeof text, "%s", row->sets);
    for (char *at = text; *at != '\0' && count < SETS_MAX;) {
        const size_t length = strcspn(at, " ");
        const bool is_last = at[length] == '\0';
        sets[count++] = at;
        at[length] = '\0';
        at += length + (is_last ? 0 : 1);
    }
    const cd_reader_options reader = {.sets = sets, .set_count = count};
    return cd_reader_read_file(&reader, row->scenario, plan, err);
}

/* The clean run of its plan. */
static cddp_status open_world(st_world *world, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_verdict *verdict = NULL;
    const st_injection none = {.point = SIZE_MAX};
    world->ranks = (uint32_t)world->plan->world.size;
    world->steps = (uint32_t)world->plan->settings.train.steps;
    listener l = {.world = world};
    st_injection_begin(&none);
    CD_TRY_OUT(run(world, &l, &verdict, err));
    if (verdict->outcome != CDDP_OUTCOME_VERIFIED || verdict->as_expected) {
        CD_TRY_OUT(cd_fail(err, CDDP_E_ARG, "the clean run of world '%s' is not verified: %s",
                           world->row->name, verdict->summary));
    }
    world->finals = l.finals;
    for (size_t i = 0; i < st_point_count; i++) world->reached[i] = st_injection_reached(i);
out:
    cddp_verdict_destroy(verdict);
    if (status != CDDP_OK) st_world_close(world);
    return status;
}

cddp_status st_world_open(const st_world_row *row, const cddp_registry *registry, st_world *world,
                          cddp_error *err)
{
    *world = (st_world){.row = row, .registry = registry};
    CD_TRY(read_plan(row, &world->plan, err));
    return CD_PASS(open_world(world, err));
}

cddp_status st_world_open_plan(struct cddp_plan *plan, const cddp_registry *registry,
                               st_world *world, cddp_error *err)
{
    static const st_world_row row = {"drawn", "", "", ST_RUN, "*"};
    *world = (st_world){.row = &row, .registry = registry, .plan = plan};
    return CD_PASS(open_world(world, err));
}

void st_world_close(st_world *world)
{
    cddp_plan_destroy(world->plan);
    world->plan = NULL;
}
