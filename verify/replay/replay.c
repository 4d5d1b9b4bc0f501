/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing a run with its record, event by event. */
#include "verify/replay/replay.h"

#include "core/base/error.h"
#include "core/trace/event.h"
#include "core/trace/rank_end.h"
#include "core/trace/tracer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same_text(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") == 0;
}

static bool same_place(const cddp_event *a, const cddp_event *b)
{
    return a->kind == b->kind && a->rank == b->rank && a->step == b->step &&
           a->micro_step == b->micro_step && same_text(a->text, b->text);
}

static bool same_event(const cddp_event *a, const cddp_event *b)
{
    uint32_t fields = cd_event_field_counts[a->kind];
    return same_place(a, b) && a->time_ns == b->time_ns && a->sequence == b->sequence &&
           memcmp(a->as.field, b->as.field, fields * sizeof a->as.field[0]) == 0;
}

/* ---- across worlds ---- */

/* What the judge makes of sums and gathers, of which not every world shows it the operands. */
static bool is_of_sums(const cddp_event *e)
{
    return e->text != NULL && (strcmp(e->text, CD_TRACER_SHOWN_SUM) == 0 ||
                               strcmp(e->text, CD_TRACER_SHOWN_FORM) == 0);
}

/* The world ended ranks that went round in circles. */
static bool is_endless(const cddp_event *e)
{
    return e->kind == CDDP_EV_mark && e->text != NULL && strcmp(e->text, CD_RANK_ENDLESS) == 0;
}

static bool is_of_world(const cddp_event *e)
{
    switch ((cddp_event_kind)e->kind) {
    case CDDP_EV_choice:
    case CDDP_EV_waiting_for:
    case CDDP_EV_memory:
    case CDDP_EV_touch:
    case CDDP_EV_order:
    case CDDP_EV_fault:
    case CDDP_EV_message:
    case CDDP_EV_compute:
    case CDDP_EV_store_key:
    case CDDP_EV_store_wait:
    case CDDP_EV_store_done:
        return true;
    /* Which sums can be added up again is what the transport promises of its order. */
    case CDDP_EV_compare:
        return e->as.compare.link == CDDP_LINK_SUM && e->as.compare.bad == 0;
    case CDDP_EV_unjudged:
        return e->as.unjudged.link == CDDP_LINK_SUM ||
               (e->text != NULL &&
                strncmp(e->text, CD_TRACER_SUM_UNKNOWN, sizeof CD_TRACER_SUM_UNKNOWN - 1) == 0);
    case CDDP_EV_mark:
        return is_of_sums(e) || is_endless(e);
    default:
        return false;
    }
}

/* The plan has another backend; what another backend promises of its order is no event of the rank;
** time passes as it likes. Of a failure in another order of additions nothing that follows from
** their bits counts. */
static bool is_compared(const cd_replay *r, uint16_t kind, uint32_t field)
{
    const cddp_field_type type = cddp_event_describe(kind)->fields[field].type;
    if (kind == CDDP_EV_run_begin)
        return field != offsetof(cddp_event_run_begin, plan) / sizeof(int64_t);
    /* Not every transport sees when it starts. */
    if (kind == CDDP_EV_collective_done &&
        field == offsetof(cddp_event_collective_done, start) / sizeof(int64_t))
        return false;
    if (kind == CDDP_EV_group && field == offsetof(cddp_event_group, order) / sizeof(int64_t))
        return false;
    const bool is_of_bits =
        type == CDDP_FIELD_digest || type == CDDP_FIELD_f64 || type == CDDP_FIELD_presence;
    if (r->has_other_bits && is_of_bits) return false;
    return type != CDDP_FIELD_ns;
}

static bool same_across(const cd_replay *r, const cddp_event *a, const cddp_event *b)
{
    if (!same_place(a, b)) return false;
    for (uint32_t i = 0; i < cd_event_field_counts[a->kind]; i++)
        if (is_compared(r, a->kind, i) && a->as.field[i] != b->as.field[i]) return false;
    return true;
}

/* The transport compared operations and refused one: the simulator lets them meet. */
static bool is_refusal(const cddp_event *e)
{
    if (e->kind == CDDP_EV_error) return e->as.error.status == CDDP_E_MISMATCH;
    return e->kind == CDDP_EV_collective_done && e->as.collective_done.status == CDDP_E_MISMATCH;
}

/* How an operation fails, in which words and when it is noticed, is the world's doing. */
static bool is_failure(const cddp_event *e)
{
    switch ((cddp_event_kind)e->kind) {
    case CDDP_EV_collective_done:
        return e->as.collective_done.status != CDDP_OK;
    case CDDP_EV_error:
    case CDDP_EV_group_abort:
        return true;
    case CDDP_EV_rank_end:
        return e->as.rank_end.status != CDDP_OK || e->as.rank_end.end != CDDP_RANK_RETURNED;
    default:
        return false;
    }
}

/* A signal ended the rank. */
static bool is_struck(const cddp_event *e)
{
    return e->kind == CDDP_EV_rank_end && e->as.rank_end.end == CDDP_RANK_KILLED;
}

static size_t lane_of(const cddp_event *e)
{
    return e->rank == UINT32_MAX ? 0 : (size_t)e->rank + 1;
}

/* Where ranks failed, how many of them returned is the world's doing, too. */
static bool is_left_out(const cd_replay *r, const cddp_event *e)
{
    if (r->has_other_bits && e->kind == CDDP_EV_compare && e->as.compare.bad == 0) return true;
    return is_of_world(e) || (r->record_fails && e->kind == CDDP_EV_run_end);
}

/* The first event from `from` on that the lane has to meet. */
static size_t find_next(const cd_replay *r, size_t lane, size_t from)
{
    for (; from < r->recorded.count; from++) {
        if (lane_of(&r->recorded.events[from]) != lane) continue;
        const cddp_event e = cd_memory_sink_get(&r->recorded, from); /* with its text */
        if (!is_left_out(r, &e)) break;
    }
    return from;
}

/* ---- the comparison ---- */

static size_t find_expected(const cd_replay *r, const cddp_event *event)
{
    if (!r->across) return r->met;
    const size_t lane = lane_of(event);
    return lane < r->cursor_count ? r->cursors[lane] : r->recorded.count;
}

static void meet(cd_replay *r, size_t index)
{
    r->met++;
    r->last = index;
    r->stopped =
        (r->until != 0 && r->met >= r->until) || r->until_kind == r->recorded.events[index].kind;
    if (!r->across) return;
    const size_t lane = lane_of(&r->recorded.events[index]);
    r->cursors[lane] = find_next(r, lane, index + 1);
}

/* Of a rank that a signal ended: its record ends, or the planted fault strikes. */
static bool is_end_of_struck(const cd_replay *r, size_t index, const cddp_event *event)
{
    if (!r->across || r->struck < 0 || index >= r->recorded.count) return false;
    return is_struck(&r->recorded.events[index]) ||
           (event->rank == (uint32_t)r->struck && is_struck(event));
}

/* Ranks that go round in circles: how often they went round before they were ended is the world's
** doing. */
static bool is_end_of_circle(const cd_replay *r, size_t index, const cddp_event *event)
{
    if (!r->across || !r->is_endless || index >= r->recorded.count) return false;
    const cddp_event *recorded = &r->recorded.events[index];
    return (event->kind == CDDP_EV_rank_end && event->as.rank_end.end == CDDP_RANK_HUNG) ||
           (recorded->kind == CDDP_EV_rank_end && recorded->as.rank_end.end == CDDP_RANK_HUNG);
}

/* The fault strikes in the operation: the record may show how the rank waited in it. */
static void skip_to_death(cd_replay *r, size_t lane, size_t index)
{
    for (; index < r->recorded.count && !is_struck(&r->recorded.events[index]);
         index = find_next(r, lane, index + 1))
        r->met++;
}

/* What the rank went round more often in the record. */
static void skip_to_end(cd_replay *r, size_t lane, size_t index)
{
    for (; index < r->recorded.count && !is_failure(&r->recorded.events[index]);
         index = find_next(r, lane, index + 1))
        r->met++;
}

/* A failure in both is met without being equal: the rank is over then. */
static void compare(void *self, const cddp_event *event)
{
    cd_replay *r = self;
    if (r->parted || r->stopped || (r->across && is_left_out(r, event))) return;
    if (r->across && lane_of(event) < r->cursor_count && r->is_over[lane_of(event)]) return;
    const size_t index = find_expected(r, event);
    /* Both fail here. Whether they fail alike is seen at the end of both; and so it is of a rank
    ** whose operation was refused in the record. What is refused in both, as models that differ are
    ** by every wrapper, is no refusal of the transport. */
    const bool is_refused = r->across && index < r->recorded.count &&
                            is_refusal(&r->recorded.events[index]) && !is_refusal(event);
    r->was_refused |= is_refused;
    const bool is_cut = is_end_of_struck(r, index, event);
    if (is_cut) skip_to_death(r, lane_of(event), index);
    const bool is_circle = is_end_of_circle(r, index, event);
    if (is_circle) skip_to_end(r, lane_of(event), index);
    if (is_refused || is_cut || is_circle ||
        (r->across && index < r->recorded.count && is_failure(event) &&
         is_failure(&r->recorded.events[index]))) {
        r->cursors[lane_of(event)] = r->recorded.count;
        r->is_over[lane_of(event)] = true;
        r->has_failed = true;
        return;
    }
    if (index < r->recorded.count) {
        cddp_event expected = cd_memory_sink_get(&r->recorded, index);
        if (r->across ? same_across(r, &expected, event) : same_event(&expected, event)) {
            meet(r, index);
            return;
        }
    }
    r->parted = true;
    r->was_interrupted = r->interrupted != NULL && r->interrupted();
    r->expected = index;
    r->has_extra = true;
    r->extra = *event;
    r->extra.text = NULL;
    snprintf(r->extra_text, sizeof r->extra_text, "%s", event->text != NULL ? event->text : "");
    if (event->text != NULL) r->extra.text = r->extra_text;
}

static cddp_status flush(void *self, cddp_error *err)
{
    const cd_replay *r = self;
    if (r->parted) return cd_fail(err, CDDP_E_ABORTED, "the runs parted after %zu events", r->met);
    if (r->stopped)
        return cd_fail(err, CDDP_E_ABORTED, "stopped after %zu events, as asked", r->met);
    return CDDP_OK;
}

void cd_replay_init(cd_replay *replay)
{
    *replay = (cd_replay){.sink = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, replay, compare, flush},
                          .until_kind = -1,
                          .struck = -1};
    cd_memory_sink_init(&replay->recorded, NULL);
}

void cd_replay_fini(cd_replay *replay)
{
    free(replay->cursors);
    free(replay->is_over);
    cd_memory_sink_fini(&replay->recorded);
}

cddp_status cd_replay_load(cd_replay *replay, cddp_store *store, int64_t run, cddp_error *err)
{
    CD_TRY(cddp_store_each_event(store, run, CDDP_STORE_RECORDED, &replay->recorded.sink, err));
    CD_TRY(replay->recorded.sink.flush(replay->recorded.sink.self, err));
    replay->total = replay->recorded.count;
    return CDDP_OK;
}

cddp_status cd_replay_set_across(cd_replay *r, bool order_known, cddp_error *err)
{
    r->across = true;
    r->order_known = order_known;
    r->total = 0;
    for (size_t i = 0; i < r->recorded.count; i++) {
        const cddp_event e = cd_memory_sink_get(&r->recorded, i);
        if (lane_of(&e) >= r->cursor_count) r->cursor_count = lane_of(&e) + 1;
        r->record_fails |= is_failure(&e);
        r->is_endless |= is_endless(&e);
    }
    r->has_other_bits = r->record_fails && !order_known;
    r->cursors = malloc((r->cursor_count + 1) * sizeof *r->cursors);
    r->is_over = calloc(r->cursor_count + 1, sizeof *r->is_over);
    if (r->cursors == NULL || r->is_over == NULL)
        return cd_fail_memory(err, "the positions of %zu ranks", r->cursor_count);
    /* What a rank did after its first failure need not come again. */
    for (size_t i = 0; i < r->recorded.count; i++) {
        const cddp_event e = cd_memory_sink_get(&r->recorded, i);
        if (is_left_out(r, &e) || r->is_over[lane_of(&e)]) continue;
        r->is_over[lane_of(&e)] = is_failure(&e);
        r->total += !is_failure(&e);
    }
    memset(r->is_over, 0, r->cursor_count * sizeof *r->is_over);
    for (size_t lane = 0; lane < r->cursor_count; lane++) r->cursors[lane] = find_next(r, lane, 0);
    return CDDP_OK;
}

/* Where a rank was in its operations when its record ended: around the at-th, from 0. */
typedef struct last_place {
    uint64_t at;
    const char *when;
    bool has_earlier; /* of its earlier operations one was still under way, and ended elsewhere */
} last_place;

/* An operation that has not ended on a rank: whether it ended well on another. */
static bool has_ended_elsewhere(const cd_replay *r, const cddp_event *posted)
{
    for (size_t i = 0; i < r->recorded.count; i++) {
        const cddp_event *e = &r->recorded.events[i];
        const cddp_event_collective_done *d = &e->as.collective_done;
        if (e->kind == CDDP_EV_collective_done && d->status == CDDP_OK && e->rank != posted->rank &&
            d->group == posted->as.collective_post.group &&
            d->sequence == posted->as.collective_post.sequence)
            return true;
    }
    return false;
}

static bool has_ended_here(const cd_replay *r, size_t post)
{
    const cddp_event *posted = &r->recorded.events[post];
    for (size_t i = post + 1; i < r->recorded.count; i++) {
        const cddp_event *e = &r->recorded.events[i];
        const cddp_event_collective_done *d = &e->as.collective_done;
        if (e->kind == CDDP_EV_collective_done && d->status == CDDP_OK && e->rank == posted->rank &&
            d->group == posted->as.collective_post.group &&
            d->sequence == posted->as.collective_post.sequence)
            return true;
    }
    return false;
}

/* It was inside the first of its operations that ended nowhere: with several under way, all behind
** that one are lost with it. */
static last_place find_last_place(const cd_replay *r, uint32_t rank)
{
    last_place place = {.when = "before"};
    uint64_t count = 0;
    for (size_t i = 0; i < r->recorded.count; i++) {
        const cddp_event *e = &r->recorded.events[i];
        if (e->rank != rank || e->kind != CDDP_EV_collective_post) continue;
        const uint64_t at = count++;
        if (has_ended_here(r, i)) {
            if (!place.has_earlier) place = (last_place){.at = count, .when = "before"};
            continue;
        }
        if (!has_ended_elsewhere(r, e))
            return (last_place){.at = at, .when = "inside", .has_earlier = place.has_earlier};
        place = (last_place){.at = at, .when = "after", .has_earlier = true};
    }
    return place;
}

typedef struct planted {
    const char *kind, *when;
    uint64_t at, rank, duration_ns;
} planted;

static cddp_status plant(cddp_plan *plan, const planted *fault, cddp_error *err)
{
    const struct {
        const char *name, *value;
        uint64_t number;
    } settings[] = {{"kind", fault->kind, 0},
                    {"when", fault->when, 0},
                    {"at", NULL, fault->at},
                    {"rank", NULL, fault->rank},
                    {"duration_ns", NULL, fault->duration_ns}};
    const size_t index = plan->fault_count;
    char key[48], value[32];
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        snprintf(key, sizeof key, "fault.%zu.%s", index, settings[i].name);
        snprintf(value, sizeof value, "%" PRIu64, settings[i].number);
        CD_TRY(
            cddp_plan_set(plan, key, settings[i].value != NULL ? settings[i].value : value, err));
    }
    return CDDP_OK;
}

/* Within the time-out of those that wait for it. */
static uint64_t hold_ns(const cddp_plan *plan)
{
    const uint64_t timeout_ms = (uint64_t)plan->world.timeout_ms;
    return timeout_ms > 0 && timeout_ms < 4000 ? timeout_ms * 250000 : UINT64_C(1000000000);
}

cddp_status cd_replay_plant(cd_replay *r, cddp_plan *plan, cddp_error *err)
{
    for (size_t i = 0; i < r->recorded.count && r->struck < 0; i++)
        if (is_struck(&r->recorded.events[i])) r->struck = r->recorded.events[i].rank;
    if (r->struck < 0) return CDDP_OK;
    const last_place last = find_last_place(r, (uint32_t)r->struck);
    /* A death in the simulator takes all that is under way: what ended elsewhere ends first. */
    const planted hold = {"hang", "before", last.at, (uint64_t)r->struck, hold_ns(plan)},
                  death = {"kill", last.when, last.at, (uint64_t)r->struck, 0};
    if (last.has_earlier && strcmp(last.when, "inside") == 0) CD_TRY(plant(plan, &hold, err));
    return CD_PASS(plant(plan, &death, err));
}

bool cd_replay_end(cd_replay *r)
{
    if (r->parted) return false;
    if (r->stopped || r->met == r->total) return true;
    r->expected = r->across ? r->recorded.count : r->met;
    for (size_t lane = 0; lane < r->cursor_count; lane++)
        if (r->cursors[lane] < r->expected) r->expected = r->cursors[lane];
    return false;
}
