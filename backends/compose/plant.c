/* SPDX-License-Identifier: Apache-2.0 */
/* The mistakes of plants.def. Most are made when the operation is over: the old output is
** restored, wholly or in part, as if it had never been written.
*/
#include "backends/compose/plant.h"

#include "core/base/error.h"

/* Elements up to which an operation is small. */
#define FEW ((int64_t)64)

static const struct {
    const char *word;
    bool is_shared;
} plants[CD_PLANT_COUNT] = {
#define CD_PLANT(name, word, is_shared, summary) [CD_PLANT_##name] = {#word, is_shared},
#include "backends/compose/plants.def"
#undef CD_PLANT
};

const char *cd_plant_word(cd_plant plant)
{
    return (size_t)plant < CD_PLANT_COUNT ? plants[plant].word : NULL;
}

bool cd_plant_is_shared(cd_plant plant) { return plants[plant].is_shared; }

/* ---- rooms ---- */

void cd_plant_room_fini(cd_plant_room *room)
{
    if (room->storage != NULL)
        room->device->release(room->device, room->dtype, room->capacity, room->storage);
    *room = (cd_plant_room){.storage = NULL};
}

/* A view with the tensor's size and dtype; its content is undefined. */
static cddp_status make_view(cd_plant_room *room, const cddp_tensor *like, cddp_error *err)
{
    const int64_t numel = cddp_tensor_numel(like);
    if (room->storage == NULL || room->device != like->device || room->dtype != like->dtype ||
        room->capacity < numel) {
        void *storage = NULL;
        CD_TRY(like->device->allocate(like->device, like->dtype, numel, &storage, err));
        cd_plant_room_fini(room);
        *room = (cd_plant_room){.device = like->device,
                                .dtype = like->dtype,
                                .capacity = numel,
                                .storage = storage};
    }
    room->view = cddp_tensor_of(like->device, room->storage, 0, like->dtype, &numel, 1);
    return CDDP_OK;
}

static cddp_tensor flat_of(const cddp_tensor *t)
{
    return cddp_tensor_slice(t, 0, cddp_tensor_numel(t));
}

static cddp_status keep(cd_plant_room *room, const cddp_tensor *t, cddp_stream *stream,
                        cddp_error *err)
{
    const cddp_tensor flat = flat_of(t);
    CD_TRY(make_view(room, t, err));
    CD_TRY(t->device->copy(&room->view, &flat, stream, err));
    return CDDP_OK;
}

/* Restores elements [begin, end). */
static cddp_status put_back(const cd_plant_work *p, const cd_step_work *w, const int64_t range[2],
                            cddp_error *err)
{
    const cddp_tensor to = cddp_tensor_slice(&w->call.output, range[0], range[1] - range[0]);
    const cddp_tensor from = cddp_tensor_slice(&p->before.view, range[0], range[1] - range[0]);
    CD_TRY(to.device->copy(&to, &from, w->call.stream, err));
    return CDDP_OK;
}

/* ---- one operation ---- */

static bool is_struck(const cd_step_group *g, const cd_step_work *w)
{
    const cd_fault_plan *f = &g->node->fault;
    return w->number >= f->from && (f->rank < 0 || f->rank == (int64_t)g->rank->rank);
}

static bool is_in_place(const cddp_collective *c)
{
    return c->input.storage == c->output.storage && c->input.offset == c->output.offset;
}

/* The rank whose contribution counts as zeros. */
static bool is_left_out(const cd_step_group *g, const cddp_collective *c)
{
    const bool has_root = c->op == CDDP_OP_REDUCE || c->op == CDDP_OP_GATHER ||
                          c->op == CDDP_OP_SCATTER || c->op == CDDP_OP_BROADCAST;
    const bool gives = cd_step_has_input(g, c) || c->op == CDDP_OP_BROADCAST;
    return gives && c->op != CDDP_OP_SEND && g->me == (has_root ? c->root : 0);
}

static cddp_status leave_out(cd_plant_work *p, cddp_collective *c, cddp_error *err)
{
    if (c->op == CDDP_OP_BROADCAST || is_in_place(c)) { /* overwritten anyway */
        CD_TRY(c->output.device->fill(&c->output, 0.0, c->stream, err));
        return CDDP_OK;
    }
    CD_TRY(make_view(&p->before, &c->input, err));
    CD_TRY(c->input.device->fill(&p->before.view, 0.0, c->stream, err));
    c->input = p->before.view;
    return CDDP_OK;
}

/* Elements from here on are restored, of an output of so many. */
static int64_t kept_from(cd_plant plant, int64_t numel)
{
    switch (plant) {
    case CD_PLANT_TAIL:
        return numel - numel % 4;
    case CD_PLANT_NARROW:
        return numel % 256;
    case CD_PLANT_LARGE:
        return numel > FEW ? 0 : numel;
    case CD_PLANT_SEGMENTS:
        return numel > FEW ? FEW : numel;
    default:
        return 0;
    }
}

static cddp_status refuse_empty(cd_plant plant, const cddp_collective *c, cddp_error *err)
{
    const bool is_empty = c->op != CDDP_OP_BARRIER &&
                          (c->input.device == NULL || cddp_tensor_numel(&c->input) == 0) &&
                          (c->output.device == NULL || cddp_tensor_numel(&c->output) == 0);
    return plant == CD_PLANT_EMPTY && is_empty
               ? cd_fail(err, CDDP_E_BACKEND, "fault: an operation on no elements")
               : CDDP_OK;
}

/* A device that only knows sizes has no content that could be wrong. */
static cddp_status refuse_shapes(const cddp_tensor *t, cddp_error *err)
{
    if (t->device == NULL || (t->device->flags & (CDDP_DEVICE_VALUES | CDDP_DEVICE_EXACT)) != 0)
        return CDDP_OK;
    return cd_fail(err, CDDP_E_UNSUPPORTED, "fault: device %s has no elements to change",
                   t->device->name);
}

cddp_status cd_plant_begin(cd_step_group *g, cd_step_work *w, cd_plant_group *plants_of,
                           cddp_collective *c, cddp_error *err)
{
    const cd_plant plant = (cd_plant)g->node->fault.plant;
    cd_plant_work *p = w->extra;
    p->is_struck = plant != CD_PLANT_NONE && is_struck(g, w);
    p->is_second = plants_of->under_way > 0;
    p->is_counted = plant != CD_PLANT_NONE;
    plants_of->under_way += p->is_counted;
    if (!p->is_struck) return CDDP_OK;
    CD_TRY(refuse_empty(plant, c, err));
    CD_TRY(refuse_shapes(cd_step_has_output(g, c) ? &c->output : &c->input, err));
    if (plant == CD_PLANT_OP && cd_step_is_reduction(c->op)) c->reduce_op = CDDP_RED_SUM;
    if (plant == CD_PLANT_ROOT) return is_left_out(g, c) ? leave_out(p, c, err) : CDDP_OK;
    const bool keeps = plant == CD_PLANT_ALIAS || plant == CD_PLANT_TAIL ||
                       plant == CD_PLANT_EARLY || plant == CD_PLANT_FIRST ||
                       plant == CD_PLANT_NARROW || plant == CD_PLANT_LARGE ||
                       plant == CD_PLANT_SEGMENTS;
    if (keeps && cd_step_has_output(g, c)) CD_TRY(keep(&p->before, &c->output, c->stream, err));
    return CDDP_OK;
}

/* slot: the result of the operation before, if its size fits; this result is kept for the next
** one. */
static cddp_status give_last(cd_plant_group *plants_of, cd_plant_work *p, const cd_step_work *w,
                             cddp_error *err)
{
    const cddp_tensor out = flat_of(&w->call.output);
    cd_plant_room *last = &plants_of->last;
    const cddp_tensor old = last->view;
    CD_TRY(keep(&p->before, &out, w->call.stream, err));
    if (old.device == out.device && old.dtype == out.dtype &&
        cddp_tensor_numel(&old) == cddp_tensor_numel(&out))
        CD_TRY(out.device->copy(&out, &old, w->call.stream, err));
    CD_TRY(keep(last, &p->before.view, w->call.stream, err));
    return CDDP_OK;
}

static cddp_status strike_input(const cd_step_group *g, const cd_step_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    const bool is_elsewhere =
        !cd_step_has_output(g, c) || c->input.storage != c->output.storage || !is_in_place(c);
    if (cd_step_has_input(g, c) && is_elsewhere)
        CD_TRY(c->input.device->fill(&c->input, 0.0, c->stream, err));
    return CDDP_OK;
}

static cddp_status strike_output(cd_step_group *g, cd_step_work *w, cd_plant_group *plants_of,
                                 cddp_error *err)
{
    cd_plant_work *p = w->extra;
    const cddp_collective *c = &w->call;
    const int64_t numel = cddp_tensor_numel(&c->output);
    const bool is_average = cd_step_is_reduction(c->op) && c->reduce_op == CDDP_RED_AVG;
    const bool counts_twice = cd_step_is_reduction(c->op) && is_in_place(c);
    const cd_plant plant = (cd_plant)g->node->fault.plant;
    switch (plant) {
    case CD_PLANT_DIVISOR:
        return is_average ? c->output.device->scale(&c->output, &c->output,
                                                    (double)g->size / (g->size + 1), c->stream, err)
                          : CDDP_OK;
    case CD_PLANT_SHARE:
        return cd_step_is_reduction(c->op) && c->reduce_op == CDDP_RED_SUM
                   ? c->output.device->scale(&c->output, &c->output,
                                             (double)g->size / (g->size + 1), c->stream, err)
                   : CDDP_OK;
    case CD_PLANT_ALIAS: {
        const cddp_tensor flat = flat_of(&c->output);
        return counts_twice
                   ? flat.device->reduce(CDDP_RED_SUM, &flat, &p->before.view, c->stream, err)
                   : CDDP_OK;
    }
    case CD_PLANT_ELEMENTS:
        return is_average && numel > 0
                   ? c->output.device->scale(&c->output, &c->output,
                                             (double)g->size / (double)numel, c->stream, err)
                   : CDDP_OK;
    case CD_PLANT_SLOT:
        return CD_PASS(give_last(plants_of, p, w, err));
    case CD_PLANT_FIRST:
        return p->is_second ? put_back(p, w, (const int64_t[2]){0, numel}, err) : CDDP_OK;
    case CD_PLANT_TAIL:
    case CD_PLANT_EARLY:
    case CD_PLANT_NARROW:
    case CD_PLANT_LARGE:
    case CD_PLANT_SEGMENTS:
        return CD_PASS(put_back(p, w, (const int64_t[2]){kept_from(plant, numel), numel}, err));
    default:
        return CDDP_OK;
    }
}

cddp_status cd_plant_finish(cd_step_group *g, cd_step_work *w, cd_plant_group *plants_of,
                            cddp_error *err)
{
    const cd_plant_work *p = w->extra;
    if (!p->is_struck) return CDDP_OK;
    if (g->node->fault.plant == CD_PLANT_SCRATCH) CD_TRY(strike_input(g, w, err));
    if (cd_step_has_output(g, &w->call)) CD_TRY(strike_output(g, w, plants_of, err));
    return CDDP_OK;
}
