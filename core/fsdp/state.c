/* SPDX-License-Identifier: Apache-2.0 */
/* Stored state: full and by rows, streamed unit by unit; as it lies in memory; and back.
**
** A full copy of one unit is alive at a time, in the original dtype, beside what training keeps
** (FMP-09). PyTorch keeps the root's until the end (FST-01), here it is freed before the next.
**
** Reading needs no communication but the agreement that all ranks can: each rank asks the program
** for its own elements of each parameter, by name and position. So any world, strategy, wrapping
** and layout can read what another one wrote.
*/
#include "core/base/error.h"
#include "core/base/sized.h"
#include "core/fsdp/fsdp.h"
#include "core/fsdp/move.h"
#include "core/tensor/view.h"

#include <string.h>

/* ---- writing ---- */

typedef struct writing {
    const cddp_fsdp_sink *sink;
    bool sharded;    /* rows, not the whole */
    bool is_written; /* by this rank */
    size_t slot;
    uint32_t world, rank; /* of the rows */
    cddp_error failure; /* of the sink: what is left is gathered for the others, and not written */
} writing;

static cddp_status write_member(const cddp_fsdp *f, const writing *w, size_t ordinal,
                                const cddp_tensor *whole, cddp_error *err)
{
    cddp_fsdp_entry e = {.name = f->parameters[ordinal].name,
                         .ordinal = ordinal,
                         .slot = w->slot,
                         .tensor = *whole,
                         .row_count = whole->dim_count > 0 ? whole->sizes[0] : 1,
                         .dim_count = whole->dim_count};
    memcpy(e.sizes, whole->sizes, sizeof e.sizes);
    if (w->sharded && whole->dim_count > 0) {
        const int64_t rows = whole->sizes[0];
        const cd_range own = cd_slice_of(rows, cd_slice_length(rows, w->world), w->rank);
        e.first_row = own.first;
        e.row_count = cd_range_numel(own);
        e.tensor.offset += own.first * whole->strides[0];
        e.tensor.sizes[0] = e.row_count;
    }
    return CD_PASS(w->sink->entry(w->sink->context, &e, err));
}

/* Under each of its names (FPM-01). */
static cddp_status write_members(const cddp_fsdp *f, const writing *w, const cd_fsdp_unit *u,
                                 const cddp_tensor *whole, cddp_error *err)
{
    for (size_t i = 0; i < f->parameter_count; i++) {
        if (f->unit_of[i] != (int64_t)u->index) continue;
        const cddp_tensor view = cd_fsdp_layout_view(&u->layout, f->member_of[i], whole);
        CD_TRY(write_member(f, w, i, &view, err));
    }
    return CDDP_OK;
}

static cddp_status write_vector(cddp_fsdp *f, writing *w, cd_fsdp_unit *u, const cddp_tensor *part,
                                cddp_error *err)
{
    cd_fsdp_buffer whole = {.capacity = 0};
    const cddp_status gathered = cd_fsdp_unit_gather_whole(u, part, &whole, err);
    CD_TRY(cd_fsdp_give_up(f, gathered, err));
    f->gathers += cd_fsdp_unit_is_sharded(u);
    if (w->is_written && w->failure.status == CDDP_OK &&
        write_members(f, w, u, &whole.tensor, &w->failure) != CDDP_OK &&
        w->failure.status == CDDP_OK) /* a sink that says nothing but its status */
        (void)cd_fail(&w->failure, CDDP_E_IO, "the sink refused a parameter of '%s'",
                      cd_fsdp_unit_words(f, u->index));
    cd_fsdp_memory_give(&f->memory, &whole);
    return CDDP_OK;
}

/* What the sink said, when every gather that others take part in is over. */
static cddp_status end_writing(const writing *w, cddp_error *err)
{
    if (w->failure.status == CDDP_OK) return CDDP_OK;
    return cd_fail(err, w->failure.status, "%s", w->failure.message);
}

static cddp_status begin_writing(const cddp_fsdp *f, const cddp_fsdp_sink *sink, const char *call,
                                 bool sharded, writing *w, cddp_error *err)
{
    CD_TRY(cd_fsdp_check_idle(f, call, err));
    CD_TRY(CD_SIZED_CHECK(sink, cddp_fsdp_sink, rank0_only, err));
    if (sink->entry == NULL) return cd_fail(err, CDDP_E_ARG, "%s: the sink has no entry", call);
    if (sharded && sink->rank0_only)
        return cd_fail(err, CDDP_E_CONFIG, "%s: each rank writes its own rows, not rank 0 alone",
                       call);
    const bool is_first = cddp_group_rank(f->group) == 0 &&
                          (f->replicate_group == NULL || cddp_group_rank(f->replicate_group) == 0);
    *w = (writing){.sink = sink,
                   .sharded = sharded,
                   .is_written = !sink->rank0_only || is_first,
                   .world = cddp_group_size(f->group),
                   .rank = cddp_group_rank(f->group)};
    return CDDP_OK;
}

/* Ignored parameters and buffers are this rank's own. */
static cddp_status write_own(const cddp_fsdp *f, const writing *w, cddp_error *err)
{
    for (size_t i = 0; i < f->parameter_count; i++) {
        if (f->unit_of[i] >= 0) continue;
        writing whole = *w;
        whole.sharded = false;
        CD_TRY(write_member(f, &whole, i, &f->parameters[i].tensor, err));
    }
    for (size_t i = 0; i < f->buffer_count; i++) {
        const cddp_tensor *t = &f->buffers[i].tensor;
        /* FMP-07: the original dtype, with what the copy has now */
        if (f->buffer_copies[i].device != NULL)
            CD_TRY(cd_fsdp_move(t, &f->buffer_copies[i], NULL, err));
        cddp_fsdp_entry e = {.name = f->buffers[i].name,
                             .ordinal = i,
                             .is_buffer = true,
                             .tensor = *t,
                             .row_count = t->dim_count > 0 ? t->sizes[0] : 1,
                             .dim_count = t->dim_count};
        memcpy(e.sizes, t->sizes, sizeof e.sizes);
        CD_TRY(w->sink->entry(w->sink->context, &e, err));
    }
    return CDDP_OK;
}

static cddp_status write_parameters(cddp_fsdp *f, const cddp_fsdp_sink *sink, const char *call,
                                    bool sharded, cddp_error *err)
{
    writing w;
    CD_TRY(begin_writing(f, sink, call, sharded, &w, err));
    for (uint32_t k = 0; k < f->unit_count; k++)
        if (!cd_fsdp_unit_is_empty(&f->units[k]))
            CD_TRY(write_vector(f, &w, &f->units[k], &f->units[k].shard, err));
    CD_TRY(end_writing(&w, err));
    return w.is_written ? CD_PASS(write_own(f, &w, err)) : CDDP_OK;
}

cddp_status cddp_fsdp_full_state(cddp_fsdp *f, const cddp_fsdp_sink *sink, cddp_error *err)
{
    return CD_PASS(write_parameters(f, sink, "cddp_fsdp_full_state", false, err));
}

cddp_status cddp_fsdp_sharded_state(cddp_fsdp *f, const cddp_fsdp_sink *sink, cddp_error *err)
{
    return CD_PASS(write_parameters(f, sink, "cddp_fsdp_sharded_state", true, err));
}

/* ---- votes ---- */

/* The smallest number that a rank of all groups has; the largest negative of -x is the maximum. */
static cddp_status smallest(cddp_fsdp *f, int64_t *numbers, size_t count, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_control votes = {0};
    cddp_group *const groups[] = {f->group, f->replicate_group};
    const cd_control_spec spec = {.allocator = f->allocator,
                                  .group = f->group,
                                  .dtype = CDDP_I64,
                                  .numel = (int64_t)count};
    CD_TRY_OUT(cd_control_init(&votes, &spec, err));
    memcpy(votes.host, numbers, count * sizeof *numbers);
    for (size_t i = 0; i < 2; i++)
        if (groups[i] != NULL)
            CD_TRY_OUT(cd_fsdp_give_up(f,
                                       cd_control_allreduce(groups[i], &votes, CDDP_RED_MIN, err),
                                       err));
    memcpy(numbers, votes.host, count * sizeof *numbers);
out:
    cd_control_fini(&votes);
    return status;
}

/* ---- an optimizer's state ---- */

static cddp_status check_slots(const cddp_fsdp *f, const cddp_fsdp_slots *s, cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(s, cddp_fsdp_slots, sharded, err));
    if (s->tensors == NULL && s->slot_count > 0)
        return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_optimizer_state: tensors is NULL");
    for (uint32_t k = 0; k < f->unit_count; k++) {
        for (size_t i = 0; i < s->slot_count; i++) {
            const cddp_tensor *t = &s->tensors[k * s->slot_count + i];
            if (t->device == NULL) continue;
            if (!cddp_tensor_is_contiguous(t) || cddp_tensor_numel(t) != f->units[k].layout.share)
                return cd_fail(err, CDDP_E_ARG,
                               "slot %zu of '%s' has %lld elements; its shard has %lld", i,
                               cd_fsdp_unit_words(f, k), (long long)cddp_tensor_numel(t),
                               (long long)f->units[k].layout.share);
        }
    }
    return CDDP_OK;
}

/* A slot as one number: 0 is absent, 1 has the dtype of the shard, and so on. */
static int64_t number_of(const cd_fsdp_unit *u, const cddp_tensor *slot)
{
    const int64_t count = CDDP_DTYPE_COUNT;
    return slot->device != NULL ? 1 + ((int64_t)slot->dtype - (int64_t)u->dtype + count) % count
                                : 0;
}

static const char *words_of(const cd_fsdp_unit *u, int64_t number)
{
    return cddp_dtype_name((cddp_dtype)((number - 1 + (int64_t)u->dtype) % CDDP_DTYPE_COUNT));
}

/* FST-10: else gathers of different slots would pair with each other. */
static cddp_status agree_on_slots(cddp_fsdp *f, const cddp_fsdp_slots *s, cddp_error *err)
{
    for (uint32_t k = 0; k < f->unit_count; k++) {
        for (size_t i = 0; i < s->slot_count; i++) {
            const cd_fsdp_unit *u = &f->units[k];
            const int64_t own = number_of(u, &s->tensors[k * s->slot_count + i]);
            int64_t ends[2] = {own, -own};
            CD_TRY(smallest(f, ends, 2, err));
            if (ends[0] == -ends[1]) continue;
            if (ends[0] == 0)
                return cd_fail(
                    err, CDDP_E_MISMATCH,
                    "slot %zu of '%s' is there on some ranks and absent on others; it is "
                    "%s here",
                    i, cd_fsdp_unit_words(f, k), own > 0 ? "there" : "absent");
            return cd_fail(err, CDDP_E_MISMATCH,
                           "slot %zu of '%s' is %s on some ranks and %s on others; it is %s here",
                           i, cd_fsdp_unit_words(f, k), words_of(u, ends[0]), words_of(u, -ends[1]),
                           words_of(u, own));
        }
    }
    return CDDP_OK;
}

cddp_status cddp_fsdp_optimizer_state(cddp_fsdp *f, const cddp_fsdp_slots *slots,
                                      const cddp_fsdp_sink *sink, cddp_error *err)
{
    writing w;
    if (slots == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_optimizer_state: slots is NULL");
    CD_TRY(begin_writing(f, sink, "cddp_fsdp_optimizer_state", slots->sharded, &w, err));
    CD_TRY(check_slots(f, slots, err));
    CD_TRY(agree_on_slots(f, slots, err));
    for (uint32_t k = 0; k < f->unit_count; k++) {
        for (size_t i = 0; i < slots->slot_count; i++) {
            const cddp_tensor *t = &slots->tensors[k * slots->slot_count + i];
            w.slot = i;
            if (t->device != NULL && !cd_fsdp_unit_is_empty(&f->units[k]))
                CD_TRY(write_vector(f, &w, &f->units[k], t, err));
        }
    }
    return CD_PASS(end_writing(&w, err));
}

/* ---- reading ---- */

static const cddp_fsdp_stored *find_stored(const cddp_fsdp_source *s, const char *name)
{
    for (size_t i = 0; i < s->stored_count; i++)
        if (s->stored[i].name != NULL && strcmp(s->stored[i].name, name) == 0) return &s->stored[i];
    return NULL;
}

static bool has_shape(const cddp_fsdp_stored *stored, const cddp_tensor *t)
{
    if (stored->dim_count != t->dim_count) return false;
    for (uint32_t d = 0; d < t->dim_count; d++)
        if (stored->sizes[d] != t->sizes[d]) return false;
    return true;
}

/* Parameters in their order, then buffers. */
typedef struct item {
    const char *name;
    const cddp_tensor *tensor;
    bool is_cut; /* else this rank's own: an ignored parameter, or a buffer */
} item;

static size_t count_items(const cddp_fsdp *f) { return f->parameter_count + f->buffer_count; }

static item get_item(const cddp_fsdp *f, size_t i)
{
    if (i < f->parameter_count)
        return (item){f->parameters[i].name, &f->parameters[i].tensor, f->unit_of[i] >= 0};
    const cddp_buffer *b = &f->buffers[i - f->parameter_count];
    return (item){b->name, &b->tensor, false};
}

/* What is this rank's own is read where the state names it, else the program does that itself. */
static cddp_status check_source(const cddp_fsdp *f, const cddp_fsdp_source *s, cddp_error *err)
{
    char left[96], right[96];
    for (size_t i = 0; i < count_items(f); i++) {
        const item m = get_item(f, i);
        const cddp_fsdp_stored *stored = find_stored(s, m.name);
        if (stored == NULL && !m.is_cut) continue;
        if (stored == NULL)
            return cd_fail(err, CDDP_E_MISMATCH,
                           "the stored state has no '%s', which the model has; nothing was loaded",
                           m.name);
        if (!has_shape(stored, m.tensor))
            return cd_fail(err, CDDP_E_MISMATCH,
                           "'%s' is [%s] in the stored state and [%s] in the model; nothing was "
                           "loaded",
                           m.name,
                           cd_sizes_print(stored->sizes, stored->dim_count, left, sizeof left),
                           cd_sizes_print(m.tensor->sizes, m.tensor->dim_count, right,
                                          sizeof right));
    }
    for (size_t i = 0; i < count_items(f); i++) {
        const item m = get_item(f, i);
        const cddp_fsdp_stored *stored = find_stored(s, m.name);
        if (stored == NULL || stored->dtype == m.tensor->dtype) continue;
        return cd_fail(err, CDDP_E_MISMATCH,
                       "'%s' is %s in the stored state and %s in the model; nothing was loaded",
                       m.name, cddp_dtype_name(stored->dtype), cddp_dtype_name(m.tensor->dtype));
    }
    for (size_t k = 0; k < s->stored_count; k++) {
        const char *name = s->stored[k].name;
        size_t i = 0;
        while (i < count_items(f) && (name == NULL || strcmp(get_item(f, i).name, name) != 0)) i++;
        if (i == count_items(f))
            return cd_fail(err, CDDP_E_MISMATCH,
                           "the stored state has '%s', which the model has not; nothing was loaded",
                           name != NULL ? name : "(no name)");
        if (find_stored(s, name) != &s->stored[k])
            return cd_fail(err, CDDP_E_MISMATCH,
                           "the stored state has '%s' twice, and the model has it once; nothing "
                           "was loaded",
                           name);
    }
    return CDDP_OK;
}

/* Into other memory first: a read that fails changes nothing of the unit. */
static cddp_status read_unit(cddp_fsdp *f, cd_fsdp_unit *u, const cddp_fsdp_source *s,
                             cd_fsdp_buffer *read, cddp_error *err)
{
    const cddp_device *home = u->shard.device;
    const cd_fsdp_wish wish = {.device = home, .dtype = u->dtype, .numel = u->layout.share};
    CD_TRY(cd_fsdp_memory_take(&f->memory, &wish, read, err));
    if (u->layout.share > 0) CD_TRY(home->fill(&read->tensor, 0.0, NULL, err));
    for (size_t i = 0; i < u->layout.member_count; i++) {
        int64_t offset = 0;
        const cd_range part = cd_fsdp_layout_part(&u->layout, i, u->shard_rank, &offset);
        const int64_t numel = cd_range_numel(part);
        if (numel == 0) continue;
        const cddp_tensor to = cddp_tensor_slice(&read->tensor, offset, numel);
        CD_TRY(s->read(s->context, u->layout.members[i].name, part.first, &to, err));
    }
    return CDDP_OK;
}

static cddp_status read_own(cddp_fsdp *f, const item *m, const cddp_fsdp_source *s,
                            cd_fsdp_buffer *read, cddp_error *err)
{
    const cd_fsdp_wish wish = {.device = m->tensor->device,
                               .dtype = m->tensor->dtype,
                               .numel = cddp_tensor_numel(m->tensor)};
    if (m->is_cut || wish.numel == 0 || find_stored(s, m->name) == NULL) return CDDP_OK;
    CD_TRY(cd_fsdp_memory_take(&f->memory, &wish, read, err));
    return CD_PASS(s->read(s->context, m->name, 0, &read->tensor, err));
}

/* read: (unit_count + items) */
static cddp_status read_all(cddp_fsdp *f, const cddp_fsdp_source *s, cd_fsdp_buffer *read,
                            cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(s, cddp_fsdp_source, context, err));
    if (s->read == NULL || (s->stored == NULL && s->stored_count > 0))
        return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_load: the source has no %s",
                       s->read == NULL ? "read" : "stored");
    CD_TRY(check_source(f, s, err));
    for (size_t i = 0; i < count_items(f); i++) {
        const item m = get_item(f, i);
        CD_TRY(read_own(f, &m, s, &read[f->unit_count + i], err));
    }
    for (uint32_t k = 0; k < f->unit_count; k++)
        if (!cd_fsdp_unit_is_empty(&f->units[k]))
            CD_TRY(read_unit(f, &f->units[k], s, &read[k], err));
    return CDDP_OK;
}

/* Into the program's tensor, and into what forward computes with in its place (FMP-07, FSD-18). */
static cddp_status take_own(cddp_fsdp *f, size_t i, const cd_fsdp_buffer *read, cddp_error *err)
{
    const cddp_tensor *to = get_item(f, i).tensor;
    if (read->tensor.device == NULL) return CDDP_OK;
    const cddp_tensor from = cddp_tensor_of(to->device, read->tensor.storage, read->tensor.offset,
                                            to->dtype, to->sizes, to->dim_count);
    CD_TRY(to->device->copy(to, &from, NULL, err));
    if (i < f->parameter_count) return CDDP_OK;
    const cddp_tensor *copy = &f->buffer_copies[i - f->parameter_count];
    if (copy->device == NULL) return CDDP_OK;
    CD_TRY(cd_fsdp_move(copy, to, NULL, err));
    return CD_PASS(cd_fsdp_ahead_settle(&f->ahead, err));
}

/* All ranks take what they read, or none does. */
static cddp_status take_all(cddp_fsdp *f, cddp_status own, cd_fsdp_buffer *read, cddp_error *err)
{
    int64_t fine = own == CDDP_OK;
    CD_TRY(smallest(f, &fine, 1, err));
    if (fine == 0)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "another rank cannot load its part of the state; nothing was loaded");
    for (size_t i = 0; i < count_items(f); i++)
        CD_TRY(take_own(f, i, &read[f->unit_count + i], err));
    for (uint32_t k = 0; k < f->unit_count; k++) {
        cd_fsdp_unit *u = &f->units[k];
        if (read[k].tensor.device != NULL && u->layout.share > 0)
            CD_TRY(u->shard.device->copy(&u->shard, &read[k].tensor, NULL, err));
        if (!cd_fsdp_unit_is_empty(u)) CD_TRY(cd_fsdp_unit_free(u, err));
    }
    return CDDP_OK;
}

cddp_status cddp_fsdp_load(cddp_fsdp *f, const cddp_fsdp_source *source, cddp_error *err)
{
    cddp_error other = CDDP_ERROR_INIT;
    CD_TRY(cd_fsdp_check_idle(f, "cddp_fsdp_load", err));
    const cd_arena_mark mark = cd_arena_get_mark(&f->arena);
    const size_t count = f->unit_count + count_items(f);
    cd_fsdp_buffer *read = cd_arena_array(&f->arena, count, sizeof *read);
    CD_TRY(cd_arena_check(&f->arena, err, "a state of %u units", f->unit_count));
    const cddp_status own = read_all(f, source, read, err);
    const cddp_status all = take_all(f, own, read, own == CDDP_OK ? err : &other);
    for (size_t k = 0; k < count; k++) cd_fsdp_memory_give(&f->memory, &read[k]);
    cd_arena_rewind(&f->arena, mark);
    return CD_PASS(own != CDDP_OK ? own : all);
}

/* ---- shards as they lie ---- */

cddp_status cddp_fsdp_get_local(const cddp_fsdp *f, uint32_t unit, cddp_fsdp_local *local,
                                cddp_error *err)
{
    CD_TRY(cd_fsdp_check_idle(f, "cddp_fsdp_get_local", err));
    CD_TRY(CD_SIZED_CHECK(local, cddp_fsdp_local, layout, err));
    if (unit >= f->unit_count)
        return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_get_local: unit %u of %u", unit, f->unit_count);
    const cd_fsdp_unit *u = &f->units[unit];
    const cddp_fsdp_local own = {.size = local->size,
                                 .rank = u->shard_rank,
                                 .world = u->layout.world,
                                 .numel = u->layout.numel,
                                 .share = u->layout.share,
                                 .layout = cd_fsdp_layout_digest(&u->layout),
                                 .dtype = u->dtype};
    cd_sized_fill(local, &own, sizeof own);
    return CDDP_OK;
}

cddp_status cddp_fsdp_load_local(cddp_fsdp *f, uint32_t unit, const cddp_fsdp_local *stored,
                                 const cddp_tensor *elements, cddp_error *err)
{
    cddp_fsdp_local own = {.size = sizeof own};
    cddp_fsdp_local there = {.dtype = CDDP_DTYPE_COUNT};
    CD_TRY(cddp_fsdp_get_local(f, unit, &own, err));
    CD_TRY(CD_SIZED_CHECK(stored, cddp_fsdp_local, layout, err));
    cd_sized_copy(&there, sizeof there, stored);
    cd_fsdp_unit *u = &f->units[unit];
    if (stored->rank != own.rank || stored->world != own.world || stored->share != own.share)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the stored shard of '%s' is number %u of %u with %lld elements, this rank "
                       "has number %u of %u with %lld; load a full or sharded state instead",
                       cd_fsdp_unit_words(f, unit), stored->rank, stored->world,
                       (long long)stored->share, own.rank, own.world, (long long)own.share);
    if (there.dtype != CDDP_DTYPE_COUNT && there.dtype != own.dtype)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the stored shard of '%s' has elements of %s, and that of this rank of %s",
                       cd_fsdp_unit_words(f, unit), cddp_dtype_name(there.dtype),
                       cddp_dtype_name(own.dtype));
    if (stored->layout != own.layout || stored->numel != own.numel)
        return cd_fail(
            err, CDDP_E_MISMATCH,
            "the stored shard of '%s' was cut from other parameters: %lld elements there "
            "and %lld here, layout %016llx there and %016llx here",
            cd_fsdp_unit_words(f, unit), (long long)stored->numel, (long long)own.numel,
            (unsigned long long)stored->layout, (unsigned long long)own.layout);
    if (elements == NULL || own.share == 0) return CDDP_OK;
    if (elements->device == NULL || elements->storage == NULL ||
        cddp_tensor_numel(elements) != own.share || elements->dtype != u->dtype ||
        !cddp_tensor_is_contiguous(elements))
        return cd_fail(err, CDDP_E_ARG,
                       "the stored shard of '%s' is given as %s%lld elements of %s, not %lld of %s "
                       "without gaps",
                       cd_fsdp_unit_words(f, unit),
                       elements->device == NULL || elements->storage == NULL ? "no storage for "
                                                                             : "",
                       (long long)cddp_tensor_numel(elements), cddp_dtype_name(elements->dtype),
                       (long long)own.share, cddp_dtype_name(u->dtype));
    CD_TRY(cd_fsdp_move(&u->shard, elements, NULL, err));
    if (cd_fsdp_unit_is_offloaded(u)) CD_TRY(cd_fsdp_ahead_settle(&f->ahead, err));
    return CD_PASS(cd_fsdp_unit_free(u, err));
}
