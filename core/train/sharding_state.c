/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint of a sharded model, and what another wrapper makes of it.
**
** The bytes of whole tensors have fixed places in one blob: parameters in the model's order, then
** the slots of every parameter of every optimizer. Units are gathered one by one, and each writes
** to its places (FST-01).
**
**   FULL_STATE_DICT     every rank has all places, or rank 0 alone, which broadcasts them
**   SHARDED_STATE_DICT  a rank has its rows. No two ranks of a shard group have one byte, so that a
**                       sum of 64-bit words puts them together
**   LOCAL_STATE_DICT    the shards as they lie, behind each other; they fit the same cut only
**
** Buffers are each rank's own (FSD-20), and so is what is saved of them: they are in a blob that no
** rank gives to others.
**
** A rank that has no element of a parameter does not know how often it was stepped: ranks agree on
** that (FST-10).
**
** Not here: gathers and cuts (core/fsdp).
*/
#include "core/train/sharding.h"

#include "cddp/fsdp.h"
#include "core/base/error.h"
#include "core/comm/control.h"
#include "core/train/trainer.h"

#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)4 << 10)
#define WORD ((int64_t)sizeof(int64_t))

static size_t bytes_of(const cddp_tensor *t, int64_t numel)
{
    return (size_t)numel * cddp_dtype_bytes(t->dtype);
}

/* ---- places ---- */

static const cddp_tensor *parameter_of(const cd_trainer *t, size_t ordinal)
{
    return &cd_trainer_module(t)->parameters[ordinal].tensor;
}

static size_t whole_bytes(const cd_trainer *t, size_t ordinal)
{
    const cddp_tensor *p = parameter_of(t, ordinal);
    return bytes_of(p, cddp_tensor_numel(p));
}

/* Of a parameter's values: slot < 0. */
static size_t find_place(const cd_trainer *t, size_t optimizer, size_t k, int slot, size_t ordinal)
{
    const cd_replica *r = t->replica;
    size_t at = 0;
    if (slot < 0) {
        for (size_t i = 0; i < ordinal; i++) at += whole_bytes(t, i);
        return at;
    }
    for (size_t i = 0; i < cd_trainer_module(t)->parameter_count; i++) at += whole_bytes(t, i);
    for (size_t i = 0; i < r->optimizer_count; i++) {
        for (size_t n = 0; n < r->optimizers[i].count; n++) {
            const size_t bytes = whole_bytes(t, r->optimizers[i].ordinals[n]);
            if (i == optimizer && n == k) return at + (size_t)slot * bytes;
            at += CD_OPTIMIZER_SLOTS_MAX * bytes;
        }
    }
    return at;
}

static cddp_status make_room(cd_trainer *t, size_t bytes, cddp_error *err)
{
    const cddp_state_writer writer = cd_blob_writer(&t->saved.all);
    static const unsigned char zeros[64] = {0};
    const size_t rounded = (bytes + 7) / 8 * 8;
    cd_blob_clear(&t->saved.all);
    for (size_t at = 0; at < rounded; at += sizeof zeros) {
        const size_t next = rounded - at < sizeof zeros ? rounded - at : sizeof zeros;
        if (!writer.write(writer.context, zeros, next))
            return cd_fail_memory(err, "a checkpoint of %zu bytes", bytes);
    }
    return CDDP_OK;
}

/* ---- saving ---- */

/* What a sink writes, and where. */
typedef struct writing {
    cd_trainer *t;
    size_t optimizer;
    int slot;             /* -1: values */
    const int64_t *steps; /* (count of the optimizer) */
    cd_blob *buffers;
    cd_sharding_entries came;
} writing;

static cddp_status write_entry(void *context, const cddp_fsdp_entry *e, cddp_error *err)
{
    writing *w = context;
    cd_trainer *t = w->t;
    size_t k = 0;
    CD_TRY(cd_sharding_entries_take(&w->came, t, e, err));
    if (e->is_buffer) return CD_PASS(cd_blob_push_tensor(w->buffers, &e->tensor, err));
    if (w->slot >= 0) {
        const cd_replica_optimizer *o = &t->replica->optimizers[w->optimizer];
        while (k < o->count && o->ordinals[k] != e->ordinal) k++;
        if (k == o->count || w->steps[k] == 0) return CDDP_OK;
    }
    const cddp_tensor *whole = parameter_of(t, e->ordinal);
    const int64_t rows = whole->dim_count > 0 ? whole->sizes[0] : 1,
                  row = rows > 0 ? cddp_tensor_numel(whole) / rows : 0;
    const size_t first = bytes_of(whole, row * e->first_row),
                 bytes = bytes_of(whole, cddp_tensor_numel(&e->tensor));
    uint8_t *to = t->saved.all.bytes + find_place(t, w->optimizer, k, w->slot, e->ordinal) + first;
    return bytes > 0 ? CD_PASS(e->tensor.device->read(&e->tensor, to, bytes, err)) : CDDP_OK;
}

static cddp_fsdp_sink sink_of(const cd_trainer *t, writing *w)
{
    return (cddp_fsdp_sink){.size = sizeof(cddp_fsdp_sink),
                            .entry = write_entry,
                            .context = w,
                            .rank0_only = t->program.settings.fsdp.rank0_only};
}

static bool is_sharded_state(const cd_trainer *t)
{
    return t->program.settings.fsdp.state_dict_type == CDDP_SHARDING_STATE_SHARDED;
}

/* FST-02 */
static bool is_written(const cd_trainer *t)
{
    return !t->program.settings.fsdp.rank0_only || t->rank->rank == 0;
}

/* Which state there is, and after how many steps, wherever it lies. */
static cddp_status agree_on_steps(cd_trainer *t, cd_sharding_saved *saved, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_control votes = {0};
    size_t at = 0;
    const cd_control_spec spec = {.allocator = t->allocator,
                                  .group = t->groups.world,
                                  .dtype = CDDP_I64,
                                  .numel = (int64_t)saved->entry_count};
    CD_TRY_OUT(cd_control_init(&votes, &spec, err));
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &t->replica->optimizers[i];
        for (size_t k = 0; k < o->count; k++) {
            const int64_t held = cd_replica_find_piece(o, k);
            cd_optimizer_state state = {.is_present = false};
            if (held >= 0) cd_optimizer_get_state(o->optimizer, (size_t)held, &state);
            ((int64_t *)votes.host)[at++] = state.is_present ? (int64_t)state.step + 1 : 0;
        }
    }
    CD_TRY_OUT(cd_control_allreduce(t->groups.world, &votes, CDDP_RED_MAX, err));
    memcpy(saved->steps, votes.host, saved->entry_count * sizeof *saved->steps);
out:
    cd_control_fini(&votes);
    return status;
}

/* This rank's elements of one slot of one unit, as they lie in its shard. */
static cddp_status collect_slot(const cd_trainer *t, const writing *w, uint32_t unit,
                                const cddp_tensor *vector, cddp_error *err)
{
    const cd_replica_optimizer *o = &t->replica->optimizers[w->optimizer];
    for (size_t k = 0; k < o->count; k++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        cd_optimizer_state state = {.is_present = false};
        const int64_t held = cd_replica_find_piece(o, k);
        CD_TRY(cddp_fsdp_get_piece(cd_sharding_get(t), o->ordinals[k], &piece, err));
        if (held < 0 || piece.unit != (int64_t)unit || piece.count == 0) continue;
        cd_optimizer_get_state(o->optimizer, (size_t)held, &state);
        if (!state.is_present || state.slots[w->slot].device == NULL) continue;
        const cddp_tensor to = cddp_tensor_slice(vector, piece.offset, piece.count);
        CD_TRY(to.device->copy(&to, &state.slots[w->slot], NULL, err));
    }
    return CDDP_OK;
}

/* All ranks gather the same units: what they step is the same, and whose state there is. */
static bool has_slot(const cd_trainer *t, const writing *w, uint32_t unit)
{
    const cd_replica_optimizer *o = &t->replica->optimizers[w->optimizer];
    for (size_t k = 0; k < o->count; k++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        if (w->steps[k] > 0 &&
            cddp_fsdp_get_piece(cd_sharding_get(t), o->ordinals[k], &piece, NULL) == CDDP_OK &&
            piece.unit == (int64_t)unit)
            return true;
    }
    return false;
}

static cddp_status save_slot(cd_trainer *t, writing *w, cddp_tensor *vectors, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_fsdp *f = cd_sharding_get(t);
    const uint32_t units = cddp_fsdp_unit_count(f);
    const cddp_fsdp_sink sink = sink_of(t, w);
    const cddp_fsdp_slots slots = {.size = sizeof slots,
                                   .tensors = vectors,
                                   .slot_count = 1,
                                   .sharded = is_sharded_state(t)};
    for (uint32_t u = 0; u < units; u++) vectors[u] = (cddp_tensor){.device = NULL};
    for (uint32_t u = 0; u < units; u++) {
        cddp_parameter flat = {.name = NULL};
        void *storage = NULL;
        CD_TRY_OUT(cddp_fsdp_flat(f, u, &flat, err));
        if (flat.tensor.device == NULL || !has_slot(t, w, u)) continue;
        const int64_t share = cddp_tensor_numel(&flat.tensor);
        CD_TRY_OUT(flat.tensor.device->allocate(flat.tensor.device, flat.tensor.dtype,
                                                share > 0 ? share : 1, &storage, err));
        vectors[u] = cddp_tensor_of(flat.tensor.device, storage, 0, flat.tensor.dtype, &share, 1);
        if (share > 0) CD_TRY_OUT(flat.tensor.device->fill(&vectors[u], 0, NULL, err));
        CD_TRY_OUT(collect_slot(t, w, u, &vectors[u], err));
    }
    CD_TRY_OUT(cd_sharding_entries_begin(&w->came, t, vectors, err));
    CD_TRY_OUT(cddp_fsdp_optimizer_state(f, &slots, &sink, err));
    if (is_written(t)) CD_TRY_OUT(cd_sharding_entries_end(&w->came, t, err));
out:
    for (uint32_t u = 0; u < units; u++) {
        const int64_t numel = vectors[u].device != NULL ? cddp_tensor_numel(&vectors[u]) : 0;
        if (vectors[u].device != NULL)
            vectors[u].device->release(vectors[u].device, vectors[u].dtype, numel > 0 ? numel : 1,
                                       vectors[u].storage);
    }
    return status;
}

/* How many slots this optimizer has; the same on every rank. */
static cddp_status count_slots(const cd_replica_optimizer *o, uint32_t *count)
{
    cd_optimizer_state state = {.slot_count = 0};
    if (o->count > 0) cd_optimizer_get_state(o->optimizer, 0, &state);
    *count = state.slot_count;
    return CDDP_OK;
}

static cddp_status save_whole(cd_trainer *t, cd_sharding_saved *saved, cddp_error *err)
{
    writing w = {.t = t,
                 .slot = -1,
                 .steps = saved->steps,
                 .buffers = &saved->buffers,
                 .came = {.memory = &saved->memory, .takes_rows = is_sharded_state(t)}};
    const cd_replica *r = t->replica;
    const cddp_fsdp_sink sink = sink_of(t, &w);
    cddp_tensor *vectors =
        cd_arena_array(&saved->memory, cddp_fsdp_unit_count(cd_sharding_get(t)), sizeof *vectors);
    CD_TRY(cd_arena_check(&saved->memory, err, "a checkpoint"));
    CD_TRY(make_room(t, find_place(t, r->optimizer_count, 0, 0, 0), err));
    CD_TRY(cd_sharding_entries_begin(&w.came, t, NULL, err));
    CD_TRY(is_sharded_state(t) ? cddp_fsdp_sharded_state(cd_sharding_get(t), &sink, err)
                               : cddp_fsdp_full_state(cd_sharding_get(t), &sink, err));
    if (is_written(t)) CD_TRY(cd_sharding_entries_end(&w.came, t, err));
    for (w.optimizer = 0; w.optimizer < r->optimizer_count; w.optimizer++) {
        uint32_t count = 0;
        CD_TRY(count_slots(&r->optimizers[w.optimizer], &count));
        for (w.slot = 0; w.slot < (int)count; w.slot++) CD_TRY(save_slot(t, &w, vectors, err));
        w.steps += r->optimizers[w.optimizer].count;
    }
    return CDDP_OK;
}

static cddp_status save_shards(cd_trainer *t, cd_sharding_saved *saved, cddp_error *err)
{
    cddp_fsdp *f = cd_sharding_get(t);
    const cd_module *module = cd_trainer_module(t);
    cd_blob_clear(&t->saved.all);
    for (size_t i = 0; i < module->buffer_count; i++)
        CD_TRY(cd_blob_push_tensor(&saved->buffers, &module->buffers[i].tensor, err));
    for (uint32_t u = 0; u < saved->unit_count; u++) {
        cddp_parameter flat = {.name = NULL};
        saved->shards[u].size = sizeof saved->shards[u];
        CD_TRY(cddp_fsdp_flat(f, u, &flat, err));
        CD_TRY(cddp_fsdp_get_local(f, u, &saved->shards[u], err));
        if (flat.tensor.device != NULL)
            CD_TRY(cd_blob_push_tensor(&t->saved.all, &flat.tensor, err));
    }
    return CD_PASS(cd_replica_save_optimizers(t->replica, &t->saved.all, err));
}

cddp_status cd_sharding_save(cd_trainer *t, cd_sharding_saved *saved, cddp_error *err)
{
    const cd_replica *r = t->replica;
    *saved = (cd_sharding_saved){.shard_count = cd_sharding_get_shards(t),
                                 .unit_count = cddp_fsdp_unit_count(cd_sharding_get(t))};
    saved->buffers.allocator = t->allocator;
    cd_arena_init(&saved->memory, t->allocator, MEMORY_BLOCK_BYTES);
    for (size_t i = 0; i < r->optimizer_count; i++) saved->entry_count += r->optimizers[i].count;
    saved->steps = cd_arena_array(&saved->memory, saved->entry_count + 1, sizeof *saved->steps);
    saved->shards = cd_arena_array(&saved->memory, saved->unit_count + 1, sizeof *saved->shards);
    CD_TRY(cd_arena_check(&saved->memory, err, "a checkpoint"));
    if (t->program.settings.fsdp.state_dict_type == CDDP_SHARDING_STATE_LOCAL)
        return CD_PASS(save_shards(t, saved, err));
    CD_TRY(agree_on_steps(t, saved, err));
    return CD_PASS(save_whole(t, saved, err));
}

void cd_sharding_saved_fini(cd_sharding_saved *saved)
{
    if (saved->steps != NULL || saved->shards != NULL) cd_arena_fini(&saved->memory);
    cd_blob_fini(&saved->buffers);
    *saved = (cd_sharding_saved){.steps = NULL};
}

/* ---- loading ---- */

/* Every rank has all bytes afterwards. */
static cddp_status spread(cd_trainer *t, const cd_sharding_saved *saved, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_control words = {0};
    const cddp_plan_fsdp *p = &t->program.settings.fsdp;
    const cd_control_spec spec = {.allocator = t->allocator,
                                  .group = t->groups.world,
                                  .dtype = CDDP_I64,
                                  .numel = (int64_t)t->saved.all.used / WORD};
    const bool sums = p->state_dict_type == CDDP_SHARDING_STATE_SHARDED;
    if ((!sums && !p->rank0_only) || spec.numel == 0) return CDDP_OK;
    CD_TRY_OUT(cd_control_init(&words, &spec, err));
    /* replicas of a shard group have the same rows */
    if (!sums || t->rank->rank < saved->shard_count)
        memcpy(words.host, t->saved.all.bytes, t->saved.all.used);
    else
        memset(words.host, 0, t->saved.all.used);
    CD_TRY_OUT(sums ? cd_control_allreduce(t->groups.world, &words, CDDP_RED_SUM, err)
                    : cd_control_broadcast(t->groups.world, &words, 0, err));
    memcpy(t->saved.all.bytes, words.host, t->saved.all.used);
out:
    cd_control_fini(&words);
    return status;
}

/* Elements of a parameter, or of a slot of its state, that a shard has. */
typedef struct part {
    size_t ordinal;
    int64_t first;
    const cddp_tensor *to;
    size_t place; /* of the whole */
} part;

static cddp_status read_part(const cd_trainer *t, const part *p, cddp_error *err)
{
    const cddp_tensor *whole = parameter_of(t, p->ordinal);
    const int64_t numel = cddp_tensor_numel(p->to), all = cddp_tensor_numel(whole);
    const size_t end = p->place + bytes_of(whole, all);
    if (p->first < 0 || p->first > all || numel > all - p->first || p->to->dtype != whole->dtype)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the sharded model reads elements %lld to %lld of '%s' as %s; the stored "
                       "state has %lld of %s",
                       (long long)p->first, (long long)p->first + (long long)numel,
                       cd_trainer_module(t)->parameters[p->ordinal].name,
                       cddp_dtype_name(p->to->dtype), (long long)all,
                       cddp_dtype_name(whole->dtype));
    if (end > t->saved.all.used)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "the stored state has %zu bytes, and '%s' needs those up to %zu",
                       t->saved.all.used, cd_trainer_module(t)->parameters[p->ordinal].name, end);
    const uint8_t *from = t->saved.all.bytes + p->place + bytes_of(whole, p->first);
    return CD_PASS(p->to->device->write(p->to, from, bytes_of(p->to, numel), err));
}

static cddp_status read_parameter(void *context, const char *name, int64_t first,
                                  const cddp_tensor *to, cddp_error *err)
{
    cd_trainer *t = context;
    const cd_module *module = cd_trainer_module(t);
    size_t i = 0;
    while (i < module->parameter_count && strcmp(module->parameters[i].name, name) != 0) i++;
    if (i == module->parameter_count)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the sharded model reads '%s', which the stored state has not", name);
    const part wanted = {i, first, to, find_place(t, 0, 0, -1, i)};
    return CD_PASS(read_part(t, &wanted, err));
}

static cddp_status load_parameters(cd_trainer *t, const cd_sharding_saved *saved, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    cd_arena_mark mark = cd_arena_get_mark(&t->memory);
    cddp_fsdp_stored *stored =
        cd_arena_array(&t->memory, module->parameter_count + 1, sizeof *stored);
    (void)saved;
    CD_TRY(cd_arena_check(&t->memory, err, "the names of a checkpoint"));
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cddp_tensor *p = &module->parameters[i].tensor;
        stored[i] = (cddp_fsdp_stored){.name = module->parameters[i].name,
                                       .dim_count = p->dim_count,
                                       .dtype = p->dtype};
        memcpy(stored[i].sizes, p->sizes, sizeof stored[i].sizes);
    }
    const cddp_fsdp_source source = {.size = sizeof source,
                                     .stored = stored,
                                     .stored_count = module->parameter_count,
                                     .read = read_parameter,
                                     .context = t};
    CD_TRY(cddp_fsdp_load(cd_sharding_get(t), &source, err));
    cd_arena_rewind(&t->memory, mark);
    return CDDP_OK;
}

/* This rank's elements of the state of one parameter. */
static cddp_status load_entry(cd_trainer *t, size_t optimizer, size_t k, int64_t steps,
                              cddp_error *err)
{
    const cd_replica_optimizer *o = &t->replica->optimizers[optimizer];
    cddp_fsdp_piece piece = {.size = sizeof piece};
    cd_optimizer_state state;
    const int64_t held = cd_replica_find_piece(o, k);
    CD_TRY(cddp_fsdp_get_piece(cd_sharding_get(t), o->ordinals[k], &piece, err));
    if (held < 0 || piece.count == 0 || steps == 0) return CDDP_OK;
    CD_TRY(cd_optimizer_state_set(o->optimizer, (size_t)held, true, (uint64_t)(steps - 1), err));
    cd_optimizer_get_state(o->optimizer, (size_t)held, &state);
    for (uint32_t s = 0; s < state.slot_count; s++) {
        const part wanted = {o->ordinals[k], piece.first, &state.slots[s],
                             find_place(t, optimizer, k, (int)s, o->ordinals[k])};
        if (wanted.to->device != NULL) CD_TRY(read_part(t, &wanted, err));
    }
    return CDDP_OK;
}

/* FST-04: refused where the cut is another. */
static cddp_status load_shards(cd_trainer *t, const cd_sharding_saved *saved, cddp_error *err)
{
    cddp_fsdp *f = cd_sharding_get(t);
    const cddp_state_reader reader = cd_blob_reader(&t->saved.all);
    if (saved->unit_count != cddp_fsdp_unit_count(f))
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the stored shards are those of %u units, and the model has %u",
                       saved->unit_count, cddp_fsdp_unit_count(f));
    for (uint32_t u = 0; u < saved->unit_count; u++)
        CD_TRY(cddp_fsdp_load_local(f, u, &saved->shards[u], NULL, err));
    for (uint32_t u = 0; u < saved->unit_count; u++) {
        cddp_parameter flat = {.name = NULL};
        CD_TRY(cddp_fsdp_flat(f, u, &flat, err));
        if (flat.tensor.device != NULL)
            CD_TRY(cd_blob_pop_tensor(&t->saved.all, &flat.tensor, err));
    }
    return CD_PASS(cd_replica_load_optimizers(t->replica, &reader, err));
}

/* Into the module's own tensors: the wrapper casts or moves them at the next forward. */
static cddp_status load_buffers(const cd_trainer *t, cd_sharding_saved *saved, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->buffer_count; i++)
        CD_TRY(cd_blob_pop_tensor(&saved->buffers, &module->buffers[i].tensor, err));
    return CDDP_OK;
}

cddp_status cd_sharding_load(cd_trainer *t, cd_sharding_saved *saved, cddp_error *err)
{
    const cd_replica *r = t->replica;
    size_t at = 0;
    CD_TRY(load_buffers(t, saved, err));
    if (t->program.settings.fsdp.state_dict_type == CDDP_SHARDING_STATE_LOCAL) {
        CD_TRY(load_shards(t, saved, err));
        return CD_PASS(cd_sharding_collect(t, err));
    }
    CD_TRY(spread(t, saved, err));
    CD_TRY(load_parameters(t, saved, err));
    for (size_t i = 0; i < r->optimizer_count; i++)
        for (size_t k = 0; k < r->optimizers[i].count; k++)
            CD_TRY(load_entry(t, i, k, saved->steps[at++], err));
    return CD_PASS(cd_sharding_collect(t, err));
}
