/* SPDX-License-Identifier: Apache-2.0 */
/* A run as slices. Events open and close them; whatever is open at the end never ended. */
#include "verify/timeline/timeline.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/models.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A slice that has begun, and by what its end will know it. */
typedef struct cd_open {
    cd_slice slice;
    int64_t key, part;
    size_t next; /* of the same rank: a position + 1; 0: the last one */
} cd_open;

/* What is kept of a rank while its events come. */
typedef struct cd_seen {
    size_t open;     /* its newest open slice: a position + 1 */
    size_t slot;     /* where its next slot probably stands: ranks show the same layouts */
    int64_t wrapper; /* that its events are about */
} cd_seen;

static double as_real(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void cd_timeline_init(cd_timeline *t)
{
    *t = (cd_timeline){0};
    cd_arena_init(&t->arena, NULL, 1 << 16);
}

void cd_timeline_fini(cd_timeline *t) { cd_arena_fini(&t->arena); }

/* The next place of an array; NULL when memory ran out, which end reports. */
#define PUSH(t, items, count, capacity)                                               \
    (cd_arena_grow(&(t)->arena, (void **)&(t)->items, &(t)->capacity, (t)->count + 1, \
                   sizeof *(t)->items)                                                \
         ? &(t)->items[(t)->count++]                                                  \
         : NULL)

void cd_timeline_look_for(cd_timeline *t, uint32_t rank, uint64_t sequence)
{
    cd_spot *spot = PUSH(t, spots, spot_count, spot_capacity);
    if (spot != NULL) *spot = (cd_spot){.rank = rank, .sequence = sequence, .at = UINT64_MAX};
}

/* ---- what matters ---- */

void cd_timeline_look_at(cd_timeline *t, uint32_t step)
{
    for (size_t i = 0; i < t->focus_count; i++)
        if (t->focus[i] == step) return;
    uint32_t *focus = PUSH(t, focus, focus_count, focus_capacity);
    if (focus != NULL) *focus = step;
}

/* How many steps lie between this one and the nearest that matters. */
static uint32_t distance_of(const cd_timeline *t, uint32_t step)
{
    uint32_t least = t->focus_count == 0 ? step : UINT32_MAX;
    for (size_t i = 0; i < t->focus_count; i++) {
        const uint32_t f = t->focus[i], distance = f > step ? f - step : step - f;
        if (distance < least) least = distance;
    }
    return least;
}

/* Room for something of this step in an array that is cut at CD_CELLS_MAX. What is far from the
** steps that matter comes early in most runs, and may not take all of it. */
static size_t room_for(const cd_timeline *t, uint32_t step)
{
    return distance_of(t, step) == 0 ? CD_CELLS_MAX / 4 * 3 : CD_CELLS_MAX / 2;
}

/* ---- several wrappers ---- */

static int64_t wrapper_of(const cd_timeline *t, uint32_t rank)
{
    return rank < t->rank_count ? t->seen[rank].wrapper : 0;
}

static void take_wrapper(cd_timeline *t, const cddp_event *e)
{
    const int64_t wrapper = e->as.mark.value;
    if (e->rank >= t->rank_count || wrapper < 0 || wrapper >= CD_MODELS_MAX) return;
    t->seen[e->rank].wrapper = wrapper;
    if (wrapper >= t->wrapper_count) t->wrapper_count = wrapper + 1;
}

/* A parameter's or a bucket's number among those of all wrappers. */
static int64_t number_of(const cd_timeline *t, uint32_t rank, int64_t number)
{
    return number < 0 ? number : number + wrapper_of(t, rank) * CD_TIMELINE_PARAMS;
}

/* The label, and whose it is where it is not the first wrapper's. */
static const char *label_of(cd_timeline *t, uint32_t rank, const char *label)
{
    const int64_t wrapper = wrapper_of(t, rank);
    return wrapper == 0 ? label
                        : cd_arena_printf(&t->arena, "%s, wrapper %" PRId64, label, wrapper);
}

/* ---- slices ---- */

/* Where an event stands on both scales. */
typedef struct place {
    const cddp_event *event;
    uint64_t at;
} place;

/* A place for an open slice, first in the chain of its rank. */
static cd_open *push_open(cd_timeline *t, uint32_t rank)
{
    if (rank >= t->rank_count) return NULL; /* beyond the limit, or memory ran out */
    size_t at = t->open_free;
    if (at != 0) {
        t->open_free = t->open[at - 1].next;
    } else {
        if (PUSH(t, open, open_count, open_capacity) == NULL) return NULL;
        at = t->open_count;
    }
    t->open[at - 1] = (cd_open){.next = t->seen[rank].open};
    t->seen[rank].open = at;
    return &t->open[at - 1];
}

static cd_slice *begin(cd_timeline *t, const place *p, cd_lane lane, int64_t key, int64_t part,
                       const char *label)
{
    cd_open *o = push_open(t, p->event->rank);
    if (o == NULL) return NULL;
    o->key = key;
    o->part = part;
    o->slice = (cd_slice){.rank = p->event->rank,
                          .step = p->event->step,
                          .micro_step = p->event->micro_step,
                          .lane = lane,
                          .end = CD_SLICE_OPEN,
                          .from_ns = p->event->time_ns,
                          .to_ns = p->event->time_ns,
                          .from = p->at,
                          .to = p->at,
                          .label = label,
                          .bucket = -1,
                          .group = -1,
                          .sequence = -1};
    return &o->slice;
}

static void keep(cd_timeline *t, const cd_slice *slice)
{
    cd_slice *s = PUSH(t, slices, slice_count, slice_capacity);
    if (s != NULL) *s = *slice;
}

/* The newest that matches: what a rank opens again, it closes from the inside. */
static cd_open *find_open(cd_timeline *t, uint32_t rank, cd_lane lane, int64_t key, int64_t part)
{
    if (rank >= t->rank_count) return NULL;
    for (size_t at = t->seen[rank].open; at != 0; at = t->open[at - 1].next) {
        cd_open *o = &t->open[at - 1];
        if (o->slice.lane == lane && o->key == key && o->part == part) return o;
    }
    return NULL;
}

static void close_open(cd_timeline *t, cd_open *o, const place *p, cd_slice_end how)
{
    const size_t at = (size_t)(o - t->open) + 1;
    o->slice.end = how;
    o->slice.to_ns = p->event->time_ns;
    o->slice.to = p->at;
    keep(t, &o->slice);
    size_t *link = &t->seen[p->event->rank].open;
    while (*link != at) link = &t->open[*link - 1].next;
    *link = o->next;
    o->next = t->open_free;
    t->open_free = at;
}

static void end(cd_timeline *t, const place *p, cd_lane lane, int64_t key, int64_t part)
{
    cd_open *o = find_open(t, p->event->rank, lane, key, part);
    if (o != NULL) close_open(t, o, p, CD_SLICE_DONE);
}

enum { KEY_FORWARD, KEY_BACKWARD, KEY_STEP };

static void take_post(cd_timeline *t, const place *p)
{
    const cddp_event_collective_post *c = &p->event->as.collective_post;
    const char *op = c->op >= 0 && c->op < CDDP_OP_COUNT ? cddp_op_name((cddp_op)c->op) : "call";
    cd_slice *s = begin(t, p, CD_LANE_COLLECTIVE, c->group, c->sequence,
                        cd_arena_printf(&t->arena, "%s #%" PRId64, op, c->sequence));
    if (s == NULL) return;
    s->group = c->group;
    s->sequence = c->sequence;
    s->bucket = c->bucket;
    if (c->numel > 0 && c->dtype >= 0 && c->dtype < CDDP_DTYPE_COUNT)
        s->bytes = c->numel * (int64_t)cddp_dtype_bytes((cddp_dtype)c->dtype);
}

static void take_done(cd_timeline *t, const place *p)
{
    const cddp_event_collective_done *c = &p->event->as.collective_done;
    cd_open *o = find_open(t, p->event->rank, CD_LANE_COLLECTIVE, c->group, c->sequence);
    if (o != NULL) close_open(t, o, p, c->status == CDDP_OK ? CD_SLICE_DONE : CD_SLICE_FAILED);
}

/* A bucket fills from its first gradient to its launch, and travels until its result is there. */
static void take_bucket(cd_timeline *t, const place *p, int64_t bucket, bool is_launch)
{
    const int64_t key = number_of(t, p->event->rank, bucket);
    cd_open *o = find_open(t, p->event->rank, CD_LANE_BUCKET, key, 0);
    if (!is_launch && o != NULL) return;
    if (is_launch && o != NULL) close_open(t, o, p, CD_SLICE_DONE);
    const char *label =
        cd_arena_printf(&t->arena, "bucket %" PRId64 "%s", bucket, is_launch ? "" : " fills");
    cd_slice *s =
        begin(t, p, CD_LANE_BUCKET, key, is_launch ? 1 : 0, label_of(t, p->event->rank, label));
    if (s != NULL) s->bucket = bucket;
}

static void take_hook(cd_timeline *t, const place *p)
{
    const cddp_event_hook_call *h = &p->event->as.hook_call;
    const char *name = p->event->text != NULL ? p->event->text : "hook";
    const char *label = cd_arena_printf(&t->arena, "%.60s, bucket %" PRId64, name, h->bucket);
    cd_slice *s = begin(t, p, CD_LANE_HOOK, number_of(t, p->event->rank, h->bucket), 0,
                        label_of(t, p->event->rank, label));
    if (s == NULL) return;
    s->bucket = h->bucket;
    s->bytes = h->bytes;
}

/* A step reaches from the event of its optimizer to the last tensor that it touches. What comes
** behind it on this rank closes it. */
static void take_step(cd_timeline *t, const place *p)
{
    const cddp_event_optimizer_step *s = &p->event->as.optimizer_step;
    const char *name = p->event->text != NULL ? p->event->text : "optimizer";
    end(t, p, CD_LANE_OPTIMIZER, KEY_STEP, 0);
    const char *label =
        cd_arena_printf(&t->arena, "%.60s%s", name, s->skipped != 0 ? ", skipped" : "");
    (void)begin(t, p, CD_LANE_OPTIMIZER, KEY_STEP, 0, label_of(t, p->event->rank, label));
}

static void end_step(cd_timeline *t, const place *p)
{
    cd_open *o = find_open(t, p->event->rank, CD_LANE_OPTIMIZER, KEY_STEP, 0);
    if (o != NULL && p->event->kind != CDDP_EV_optimizer_touch) close_open(t, o, p, CD_SLICE_DONE);
}

/* ---- what else is shown ---- */

static void name_id(cd_timeline *t, bool is_group, int64_t id, const char *name)
{
    cd_named *items = is_group ? t->groups : t->params;
    const size_t count = is_group ? t->group_count : t->param_count;
    if (!is_group && id < 0) return; /* it is never reduced */
    if (id >= 0 && (uint64_t)id < count && items[id].id == id) return;
    for (size_t i = count; i-- > 0;)
        if (items[i].id == id) return;
    cd_named *n = is_group ? PUSH(t, groups, group_count, group_capacity)
                           : PUSH(t, params, param_count, param_capacity);
    if (n != NULL) *n = (cd_named){id, cd_arena_strdup(&t->arena, name != NULL ? name : "")};
}

static bool is_same_slot(const cd_slot *a, const cd_slot *b)
{
    return a->generation == b->generation && a->bucket == b->bucket && a->slot == b->slot &&
           a->param == b->param && a->offset == b->offset && a->numel == b->numel &&
           a->wrapper == b->wrapper;
}

static void take_slot(cd_timeline *t, const place *p)
{
    const cddp_event_bucket_layout *l = &p->event->as.bucket_layout;
    const cd_slot slot = {p->event->rank,
                          l->generation,
                          l->bucket,
                          l->slot,
                          number_of(t, p->event->rank, l->param),
                          l->offset,
                          l->numel,
                          l->dtype,
                          wrapper_of(t, p->event->rank)};
    if (p->event->rank >= t->rank_count) return;
    size_t *expected = &t->seen[p->event->rank].slot;
    for (size_t i = 0; i < t->slot_count; i++) {
        const size_t at = (*expected + i) % t->slot_count;
        if (is_same_slot(&t->slots[at], &slot)) {
            *expected = at + 1;
            return;
        }
    }
    if (t->slot_count >= CD_CELLS_MAX) {
        t->cells_left++;
        return;
    }
    cd_slot *s = PUSH(t, slots, slot_count, slot_capacity);
    if (s != NULL) *s = slot;
}

static void take_use(cd_timeline *t, uint32_t rank, uint32_t step, int64_t param, int64_t used)
{
    if (t->use_count >= room_for(t, step)) {
        t->cells_left++;
        return;
    }
    cd_use *u = PUSH(t, uses, use_count, use_capacity);
    if (u != NULL) *u = (cd_use){rank, step, param, used};
}

/* Wrong tensors first: of those that are right as many as there is room for. */
static void take_compare(cd_timeline *t, const cddp_event *e)
{
    const cddp_event_compare *c = &e->as.compare;
    if (t->cell_count >= (c->bad > 0 ? CD_CELLS_MAX : room_for(t, e->step))) {
        t->cells_left++;
        return;
    }
    cd_cell *cell = PUSH(t, cells, cell_count, cell_capacity);
    if (cell == NULL) return;
    *cell = (cd_cell){.rank = e->rank,
                      .step = e->step,
                      .micro_step = e->micro_step,
                      .link = c->link,
                      .param = number_of(t, e->rank, c->param),
                      .element = c->element,
                      .ulps = c->ulps,
                      .bad = c->bad,
                      .shape = c->shape,
                      .expected = as_real(c->expected),
                      .actual = as_real(c->actual),
                      .bound = as_real(c->bound),
                      .ratio = as_real(c->ratio)};
}

static void take_choice(cd_timeline *t, const place *p)
{
    const cddp_event_choice *c = &p->event->as.choice;
    if (t->pick_count >= CD_PICKS_MAX) {
        t->picks_left++;
        return;
    }
    cd_pick *pick = PUSH(t, picks, pick_count, pick_capacity);
    if (pick == NULL) return;
    *pick = (cd_pick){p->at,
                      c->point,
                      c->options,
                      c->chosen,
                      c->who,
                      cd_arena_strdup(&t->arena, p->event->text != NULL ? p->event->text : "")};
}

/* ---- events ---- */

static void take_of_rank(cd_timeline *t, const place *p)
{
    const cddp_event *e = p->event;
    if (e->kind != CDDP_EV_optimizer_step) end_step(t, p);
    switch (e->kind) {
    case CDDP_EV_forward_begin:
        (void)begin(t, p, CD_LANE_COMPUTE, KEY_FORWARD, 0,
                    label_of(t, e->rank,
                             e->as.forward_begin.joined != 0 ? "shadow forward" : "forward"));
        break;
    case CDDP_EV_forward_end:
        end(t, p, CD_LANE_COMPUTE, KEY_FORWARD, 0);
        break;
    case CDDP_EV_backward_begin:
        (void)begin(t, p, CD_LANE_COMPUTE, KEY_BACKWARD, 0,
                    label_of(t, e->rank,
                             e->as.backward_begin.sync != 0 ? "backward" : "backward, no sync"));
        break;
    case CDDP_EV_backward_end:
        end(t, p, CD_LANE_COMPUTE, KEY_BACKWARD, 0);
        break;
    case CDDP_EV_mark_ready:
        take_bucket(t, p, e->as.mark_ready.bucket, false);
        break;
    case CDDP_EV_bucket_launch:
        take_bucket(t, p, e->as.bucket_launch.bucket, true);
        break;
    case CDDP_EV_bucket_done:
        end(t, p, CD_LANE_BUCKET, number_of(t, e->rank, e->as.bucket_done.bucket), 1);
        break;
    case CDDP_EV_hook_call:
        take_hook(t, p);
        break;
    case CDDP_EV_hook_done:
        end(t, p, CD_LANE_HOOK, number_of(t, e->rank, e->as.hook_done.bucket), 0);
        break;
    case CDDP_EV_collective_post:
        take_post(t, p);
        break;
    case CDDP_EV_collective_done:
        take_done(t, p);
        break;
    case CDDP_EV_optimizer_step:
        take_step(t, p);
        break;
    case CDDP_EV_group:
        name_id(t, true, e->as.group.group, e->text);
        break;
    case CDDP_EV_param:
        name_id(t, false, number_of(t, e->rank, e->as.param.param), e->text);
        break;
    case CDDP_EV_bucket_layout:
        take_slot(t, p);
        break;
    case CDDP_EV_used_local:
        take_use(t, e->rank, e->step, number_of(t, e->rank, e->as.used_local.param),
                 e->as.used_local.used);
        break;
    case CDDP_EV_used_global:
        if (e->rank == 0)
            take_use(t, CD_EVERY_RANK, e->step, number_of(t, e->rank, e->as.used_global.param),
                     e->as.used_global.used);
        break;
    case CDDP_EV_compare:
        take_compare(t, e);
        break;
    default:
        break;
    }
}

/* A store may say anything of its ranks. */
#define RANKS_MAX 65536

static void see_rank(cd_timeline *t, uint32_t rank)
{
    if (rank < t->rank_count || rank >= RANKS_MAX) return;
    if (cd_arena_grow(&t->arena, (void **)&t->seen, &t->seen_capacity, rank + 1, sizeof *t->seen))
        while (t->rank_count <= rank) t->seen[t->rank_count++] = (cd_seen){0};
}

static void take_event(void *self, const cddp_event *e)
{
    cd_timeline *t = self;
    const place p = {e, t->event_count++};
    if (e->time_ns > t->end_ns) t->end_ns = e->time_ns;
    for (size_t i = 0; i < t->spot_count; i++)
        if (t->spots[i].rank == e->rank && t->spots[i].sequence == e->sequence)
            t->spots[i].at = p.at, t->spots[i].time_ns = e->time_ns;
    if (e->kind == CDDP_EV_choice) {
        take_choice(t, &p);
    } else if (e->rank != UINT32_MAX) {
        see_rank(t, e->rank);
        if (cd_models_is_mark(e)) take_wrapper(t, e);
        take_of_rank(t, &p);
    }
}

const cddp_trace_sink *cd_timeline_sink(cd_timeline *t)
{
    t->sink = (cddp_trace_sink){sizeof t->sink, CDDP_TRACE_ABI, t, take_event, NULL};
    return &t->sink;
}

/* ---- the end ---- */

static int by_place(const void *a, const void *b)
{
    const cd_slice *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

#define ROWS_MAX 64

/* The first row that is free when a slice begins; beyond ROWS_MAX they share the last. */
static void give_rows(cd_timeline *t)
{
    uint64_t free_from[ROWS_MAX] = {0};
    for (size_t i = 0; i < t->slice_count; i++) {
        cd_slice *s = &t->slices[i];
        if (i == 0 || s[-1].rank != s->rank || s[-1].lane != s->lane)
            memset(free_from, 0, sizeof free_from);
        while (s->row < ROWS_MAX - 1 && free_from[s->row] > s->from) s->row++;
        free_from[s->row] = s->to + 1;
    }
}

/* A slice, and how far it is from what matters. */
typedef struct ranked {
    uint32_t distance;
    cd_slice slice;
} ranked;

static int by_distance(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->distance != y->distance) return x->distance < y->distance ? -1 : 1;
    if (x->slice.from != y->slice.from) return x->slice.from < y->slice.from ? -1 : 1;
    return by_place(&x->slice, &y->slice);
}

static cddp_status leave_out(cd_timeline *t, size_t slices_max, cddp_error *err)
{
    const size_t count = t->slice_count;
    if (count <= slices_max) return CDDP_OK;
    ranked *all = cd_allocate_array(NULL, count, sizeof *all);
    if (all == NULL) return cd_fail_memory(err, "a timeline of %zu slices", count);
    for (size_t i = 0; i < count; i++)
        all[i] = (ranked){distance_of(t, t->slices[i].step), t->slices[i]};
    qsort(all, count, sizeof *all, by_distance);
    for (size_t i = 0; i < slices_max; i++) t->slices[i] = all[i].slice;
    t->slices_left += count - slices_max;
    t->slice_count = slices_max;
    cd_release(NULL, all, count * sizeof *all);
    return CDDP_OK;
}

cddp_status cd_timeline_end(cd_timeline *t, size_t slices_max, cddp_error *err)
{
    for (uint32_t rank = 0; rank < t->rank_count; rank++)
        for (size_t at = t->seen[rank].open; at != 0; at = t->open[at - 1].next) {
            cd_slice *s = &t->open[at - 1].slice;
            s->to = t->event_count;
            s->to_ns = t->end_ns;
            keep(t, s);
        }
    for (size_t i = 0; t->wrapper_count > 1 && i < t->param_count; i++)
        t->params[i].name =
            cd_arena_printf(&t->arena, "wrapper %" PRId64 ": %s",
                            t->params[i].id / CD_TIMELINE_PARAMS, t->params[i].name);
    CD_TRY(cd_arena_check(&t->arena, err, "a timeline of %" PRIu64 " events", t->event_count));
    CD_TRY(leave_out(t, slices_max, err));
    if (t->slice_count > 0) qsort(t->slices, t->slice_count, sizeof *t->slices, by_place);
    give_rows(t);
    return CDDP_OK;
}

const char *cd_timeline_group(const cd_timeline *t, int64_t group)
{
    for (size_t i = 0; i < t->group_count; i++)
        if (t->groups[i].id == group) return t->groups[i].name;
    return NULL;
}

const char *cd_lane_name(cd_lane lane)
{
    static const char *const names[] = {"compute", "buckets", "collectives", "hooks", "optimizer"};
    return lane < CD_LANE_COUNT ? names[lane] : "?";
}
