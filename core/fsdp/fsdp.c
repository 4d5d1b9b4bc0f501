/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a wrapper, and one iteration: which unit is gathered, freed and reduced when.
**
**   pre-forward    order → gather → wait → gather the next one (forward_prefetch)
**   post-forward   free, but what FSD-11 keeps
**   pre-backward   gather → wait → gather the one before it (BACKWARD_PRE)
**   post-backward  free → gather the one before it (BACKWARD_POST) → reduce
**   backward-end   wait for the reductions, free what is left, show gradients
**
**      IDLE ──pre-forward with gradients──▶ FORWARD ──pre-backward──▶ BACKWARD ──end──▶ IDLE
**
** F1  between iterations nothing is full, but what a no_sync window of SHARD_GRAD_OP keeps
** F2  a full copy that is used again has this rank's shard in it as it is now (FSH-15)
** F3  at most REDUCTIONS_MAX reductions are in flight: their operands are memory
** F4  after a failure no call of an iteration does anything
** F5  all passes of a unit in one iteration compute with one content of its shard, as far as the
**     host looks: not where it would wait, and of a large shard at a sixteenth in each iteration
**
** Deviations from PyTorch: a forward without gradients leaves nothing full, so the one after it
** gathers the root again (FSH-16). A forward between a step and a forward with gradients that is
** not followed by a backward is refused where it would compute with old parameters. A second
** backward after one forward is refused (FSH-19).
**
** Not here: one unit (unit.c, gradient.c), order between ranks (order.c), construction (units.c).
*/
#include "core/fsdp/fsdp.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/sized.h"
#include "core/tensor/cpu.h"
#include "core/trace/attach.h"
#include "core/trace/tracer.h"

#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)16 << 10)
#define REDUCTIONS_MAX 2
#define LOOK_NUMEL 1024
#define LOOK_EVERY 16

/* ---- life ---- */

cddp_fsdp_mixed_precision cddp_fsdp_mixed_precision_default(void)
{
    return (cddp_fsdp_mixed_precision){.param_dtype = CDDP_DTYPE_COUNT,
                                       .reduce_dtype = CDDP_DTYPE_COUNT,
                                       .output_dtype = CDDP_DTYPE_COUNT,
                                       .cast_root_forward_inputs = true};
}

cddp_fsdp_options cddp_fsdp_options_default(void)
{
    return (cddp_fsdp_options){.size = sizeof(cddp_fsdp_options),
                               .wrap = cddp_fsdp_wrap_policy_default(),
                               .backward_prefetch = CDDP_FSDP_BACKWARD_PRE,
                               .mixed_precision = cddp_fsdp_mixed_precision_default(),
                               .buffer_dtype = CDDP_DTYPE_COUNT,
                               .limit_all_gathers = true};
}

static cddp_status check_options(const cddp_fsdp_options *o, cddp_error *err)
{
    if (o->group == NULL || (o->parameters == NULL && o->parameter_count > 0) ||
        (o->buffers == NULL && o->buffer_count > 0))
        return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_create: %s is NULL",
                       o->group == NULL        ? "group"
                       : o->parameters == NULL ? "parameters"
                                               : "buffers");
    if (o->prefetch_numel < 0 || o->live_numel_max < 0 || o->persistence_threshold < 0)
        return cd_fail(err, CDDP_E_ARG,
                       "cddp_fsdp_create: prefetch_numel %lld, live_numel_max %lld or "
                       "persistence_threshold %lld is below 0",
                       (long long)o->prefetch_numel, (long long)o->live_numel_max,
                       (long long)o->persistence_threshold);
    if (o->persistence_threshold > 0 && o->replicate_group != NULL)
        return cd_fail(err, CDDP_E_CONFIG,
                       "cddp_fsdp_create: persistence_threshold with replicate_group: units of a "
                       "hybrid strategy are all cut (FSD-12)");
    if ((unsigned)o->strategy >= CDDP_FSDP_STRATEGY_COUNT ||
        (unsigned)o->layout >= CDDP_FSDP_LAYOUT_COUNT ||
        (unsigned)o->backward_prefetch >= CDDP_FSDP_PREFETCH_COUNT ||
        (unsigned)o->order_check >= CDDP_FSDP_ORDER_CHECK_COUNT)
        return cd_fail(err, CDDP_E_ARG,
                       "cddp_fsdp_create: strategy %d, layout %d, backward_prefetch %d or "
                       "order_check %d does not exist",
                       (int)o->strategy, (int)o->layout, (int)o->backward_prefetch,
                       (int)o->order_check);
    if (o->buffer_dtype != CDDP_DTYPE_COUNT && !cddp_dtype_is_float(o->buffer_dtype))
        return cd_fail(err, CDDP_E_CONFIG, "buffer_dtype is %s, which is no floating dtype",
                       cddp_dtype_name(o->buffer_dtype));
    for (size_t i = 0; i < o->buffer_count; i++)
        if (o->buffers[i].name == NULL || o->buffers[i].tensor.device == NULL ||
            (o->buffers[i].tensor.dim_count <= CDDP_DIMS_MAX &&
             !cddp_tensor_is_contiguous(&o->buffers[i].tensor)))
            return cd_fail(err, CDDP_E_ARG, "buffer %zu '%s' has no name, no tensor or gaps", i,
                           o->buffers[i].name != NULL ? o->buffers[i].name : "");
    if (o->device_id != NULL && o->buffer_dtype != CDDP_DTYPE_COUNT)
        return cd_fail(err, CDDP_E_CONFIG,
                       "device_id with buffer_dtype: buffers are either moved or cast; give those "
                       "that are cast on their device");
    if (o->use_orig_params && o->layout == CDDP_FSDP_ROWS)
        return cd_fail(err, CDDP_E_CONFIG,
                       "use_orig_params aligns a flat parameter; CDDP_FSDP_ROWS has none");
    return CDDP_OK;
}

static cddp_status copy_buffers(cddp_fsdp *f, const cddp_fsdp_options *o, cddp_error *err)
{
    f->buffer_count = o->buffer_count;
    f->buffer_dtype = o->buffer_dtype;
    f->buffers = cd_arena_array(&f->arena, o->buffer_count + 1, sizeof *f->buffers);
    f->buffer_copies = cd_arena_array(&f->arena, o->buffer_count + 1, sizeof *f->buffer_copies);
    CD_TRY(cd_arena_check(&f->arena, err, "%zu buffers", o->buffer_count));
    for (size_t i = 0; i < o->buffer_count; i++) {
        f->buffers[i] = o->buffers[i];
        f->buffers[i].name = cd_arena_strdup(&f->arena, o->buffers[i].name);
    }
    return CD_PASS(cd_arena_check(&f->arena, err, "%zu buffers", o->buffer_count));
}

/* Units of one wrapper are on one device with streams, or on devices without. */
static cddp_status open_ahead(cddp_fsdp *f, const cddp_fsdp_options *o, cddp_error *err)
{
    const cddp_device *device = NULL;
    for (uint32_t k = 0; k < f->unit_count; k++) {
        const cddp_device *d = f->units[k].device;
        if (d == NULL || (d->flags & CDDP_DEVICE_ASYNC) == 0) continue;
        if (device != NULL && device != d)
            return cd_fail(err, CDDP_E_CONFIG,
                           "'%s' is on another device with streams than the units before it: a "
                           "rank computes on one (FSD-18)",
                           cd_fsdp_unit_words(f, k));
        device = d;
    }
    return CD_PASS(cd_fsdp_ahead_init(&f->ahead,
                                      &(cd_fsdp_ahead_spec){.device = device,
                                                            .memory = &f->memory,
                                                            .arena = &f->arena,
                                                            .unit_count = f->unit_count,
                                                            .has_limit = o->limit_all_gathers},
                                      err));
}

cddp_status cddp_fsdp_create(const cddp_fsdp_options *options, cddp_fsdp **fsdp, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_fsdp_options own = cddp_fsdp_options_default();
    if (fsdp == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_create: fsdp is NULL");
    CD_TRY(CD_SIZED_CHECK(options, cddp_fsdp_options, gradient_divide_factor, err));
    cd_sized_copy(&own, sizeof own, options);
    CD_TRY(check_options(&own, err));
    const cddp_allocator *allocator =
        own.allocator != NULL ? own.allocator : cddp_group_world_rank(own.group)->allocator;
    cd_arena arena;
    cd_arena_init(&arena, allocator, MEMORY_BLOCK_BYTES);
    cddp_fsdp *f = cd_arena_push(&arena, sizeof *f);
    if (f == NULL) return cd_fail_memory(err, "a sharded model");
    f->arena = arena;
    f->allocator = allocator;
    f->host_table = cd_device_with_allocator(cddp_device_cpu(), allocator);
    f->host = allocator != NULL ? &f->host_table : cddp_device_cpu();
    f->group = own.group;
    f->replicate_group = own.replicate_group;
    f->tracer = cd_tracer_attach(cddp_group_world_rank(own.group), own.tracer);
    cd_fsdp_memory_init(&f->memory, allocator, f->tracer);
    f->backward_prefetch = own.backward_prefetch;
    f->forward_prefetch = own.forward_prefetch;
    f->prefetch_numel = own.prefetch_numel;
    f->live_numel_max = own.live_numel_max;
    f->order_check = own.order_check;
    f->compares_reductions = true;
    CD_TRY_OUT(copy_buffers(f, &own, err));
    CD_TRY_OUT(cd_fsdp_make_units(f, &own, err));
    CD_TRY_OUT(cd_fsdp_compare(f, &own, err));
    CD_TRY_OUT(cd_fsdp_cut(f, &own, err));
    CD_TRY_OUT(open_ahead(f, &own, err));
    cd_fsdp_report_cut(f);
    CD_EMIT(f->tracer, mark, "sharded_units", .value = f->unit_count);
    *fsdp = f;
    f = NULL;
out:
    cddp_fsdp_destroy(f);
    return status;
}

static void release_copies(cddp_fsdp *f)
{
    for (size_t i = 0; i < f->buffer_count && f->buffer_copies != NULL; i++) {
        cddp_tensor *t = &f->buffer_copies[i];
        const int64_t numel = t->device != NULL ? cddp_tensor_numel(t) : 0;
        if (t->device != NULL)
            t->device->release(t->device, t->dtype, numel > 0 ? numel : 1, t->storage);
        t->device = NULL;
    }
}

void cddp_fsdp_destroy(cddp_fsdp *f)
{
    if (f == NULL) return;
    f->memory.tracer = NULL; /* what goes with the wrapper is no decision of an iteration */
    for (uint32_t k = 0; k < f->unit_count && f->units != NULL; k++)
        cd_fsdp_unit_fini(&f->units[k]);
    release_copies(f);
    cd_fsdp_memory_fini(&f->memory);
    cd_fsdp_ahead_fini(&f->ahead);
    cd_control_fini(&f->one);
    cd_control_fini(&f->all);
    cd_control_fini(&f->all_replicas);
    cd_arena_fini(&f->arena);
}

/* ---- inspection ---- */

uint32_t cddp_fsdp_unit_count(const cddp_fsdp *f) { return f != NULL ? f->unit_count : 0; }

int64_t cddp_fsdp_unit_of(const cddp_fsdp *f, const char *module)
{
    for (size_t m = 0; f != NULL && module != NULL && m < f->tree.count; m++)
        if (strcmp(f->tree.modules[m].name, module) == 0) return f->unit_of_module[m];
    return -1;
}

static cddp_status check_unit(const cddp_fsdp *f, uint32_t unit, const char *call, cddp_error *err)
{
    if (f == NULL) return cd_fail(err, CDDP_E_ARG, "%s: fsdp is NULL", call);
    if (unit >= f->unit_count)
        return cd_fail(err, CDDP_E_ARG, "%s: unit %u of %u", call, unit, f->unit_count);
    return CDDP_OK;
}

cddp_status cddp_fsdp_unit(const cddp_fsdp *f, uint32_t unit, cddp_fsdp_unit_info *info,
                           cddp_error *err)
{
    CD_TRY(check_unit(f, unit, "cddp_fsdp_unit", err));
    CD_TRY(CD_SIZED_CHECK(info, cddp_fsdp_unit_info, name, err));
    const cd_fsdp_unit *u = &f->units[unit];
    const cddp_fsdp_unit_info own = {.size = info->size,
                                     .name = u->name,
                                     .strategy = u->strategy,
                                     .numel = u->layout.numel,
                                     .share = u->layout.share,
                                     .shard_count = u->layout.world,
                                     .parameter_count = (uint32_t)u->layout.member_count,
                                     .dtype = u->dtype,
                                     .param_dtype = u->param_dtype,
                                     .reduce_dtype = u->reduce_dtype,
                                     .requires_grad = u->requires_grad,
                                     .is_full = u->state == CD_FSDP_FULL,
                                     .input_dtype = u->input_dtype,
                                     .output_dtype = u->output_dtype,
                                     .device = u->device,
                                     .shard_device = u->shard.device};
    cd_sized_fill(info, &own, sizeof own);
    return CDDP_OK;
}

cddp_status cddp_fsdp_get_counts(const cddp_fsdp *f, cddp_fsdp_counts *counts, cddp_error *err)
{
    if (f == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_get_counts: fsdp is NULL");
    CD_TRY(CD_SIZED_CHECK(counts, cddp_fsdp_counts, gathers, err));
    const cddp_fsdp_counts own = {.size = counts->size,
                                  .gathers = f->gathers,
                                  .reductions = f->reductions,
                                  .replica_reductions = f->replica_reductions,
                                  .order_checks = f->order_checks,
                                  .full_bytes = f->memory.full_bytes,
                                  .full_bytes_peak = f->memory.full_bytes_peak,
                                  .limit_waits = f->limit_waits};
    cd_sized_fill(counts, &own, sizeof own);
    return CDDP_OK;
}

const cddp_tensor *cddp_fsdp_parameter(const cddp_fsdp *f, size_t ordinal)
{
    if (f == NULL || ordinal >= f->parameter_count) return NULL;
    if (f->unit_of[ordinal] < 0) return &f->parameters[ordinal].tensor;
    const cd_fsdp_unit *u = &f->units[f->unit_of[ordinal]];
    const cddp_tensor *full = &u->layout.members[f->member_of[ordinal]].full;
    return u->state == CD_FSDP_FULL ? full : NULL;
}

const cddp_tensor *cddp_fsdp_buffer(const cddp_fsdp *f, size_t buffer)
{
    if (f == NULL || buffer >= f->buffer_count) return NULL;
    return f->buffer_copies[buffer].device != NULL ? &f->buffer_copies[buffer]
                                                   : &f->buffers[buffer].tensor;
}

cddp_status cddp_fsdp_flat(const cddp_fsdp *f, uint32_t unit, cddp_parameter *flat, cddp_error *err)
{
    CD_TRY(check_unit(f, unit, "cddp_fsdp_flat", err));
    if (flat == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_flat: flat is NULL");
    cd_fsdp_unit *u = &f->units[unit];
    *flat = (cddp_parameter){.name = u->name,
                             .tensor = u->shard,
                             .grad = &u->grad,
                             .requires_grad = u->requires_grad};
    return CDDP_OK;
}

cddp_status cddp_fsdp_get_piece(const cddp_fsdp *f, size_t ordinal, cddp_fsdp_piece *piece,
                                cddp_error *err)
{
    if (f == NULL || ordinal >= f->parameter_count)
        return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_get_piece: parameter %zu of %zu", ordinal,
                       f != NULL ? f->parameter_count : 0);
    CD_TRY(CD_SIZED_CHECK(piece, cddp_fsdp_piece, unit, err));
    cddp_fsdp_piece own = {.size = piece->size, .unit = f->unit_of[ordinal]};
    if (own.unit < 0) {
        own.tensor = f->parameters[ordinal].tensor;
        own.count = cddp_tensor_numel(&own.tensor);
        if (f->parameters[ordinal].grad != NULL) own.gradient = *f->parameters[ordinal].grad;
    } else {
        const cd_fsdp_unit *u = &f->units[own.unit];
        const cd_fsdp_member *m = &u->layout.members[f->member_of[ordinal]];
        const cd_range part =
            cd_fsdp_layout_part(&u->layout, f->member_of[ordinal], u->shard_rank, &own.offset);
        own.first = part.first;
        own.count = cd_range_numel(part);
        own.tensor = cddp_tensor_slice(&u->shard, own.offset, own.count);
        if (m->requires_grad && u->grad.kind == CDDP_GRAD_DENSE) {
            own.gradient.kind = CDDP_GRAD_DENSE;
            own.gradient.value = cddp_tensor_slice(&u->grad.value, own.offset, own.count);
        }
    }
    cd_sized_fill(piece, &own, sizeof own);
    return CDDP_OK;
}

/* ---- failures ---- */

static cddp_status check_alive(const cddp_fsdp *f, const char *call, cddp_error *err)
{
    if (f == NULL) return cd_fail(err, CDDP_E_ARG, "%s: fsdp is NULL", call);
    if (f->failure.status == CDDP_OK) return CDDP_OK;
    return cd_fail(err, f->failure.status, "%s", f->failure.message);
}

cddp_status cd_fsdp_check_idle(const cddp_fsdp *f, const char *call, cddp_error *err)
{
    CD_TRY(check_alive(f, call, err));
    if (f->phase == CD_FSDP_IDLE) return CDDP_OK;
    return cd_fail(err, CDDP_E_STATE, "%s is called between iterations: a %s is under way", call,
                   f->phase == CD_FSDP_FORWARD ? "forward, whose backward has not begun,"
                                               : "backward");
}

/* F4. The other ranks are or will be in a collective that this one does not join. */
cddp_status cd_fsdp_give_up(cddp_fsdp *f, cddp_status status, const cddp_error *err)
{
    cddp_error ignored = CDDP_ERROR_INIT;
    if (status == CDDP_OK || f->failure.status != CDDP_OK) return status;
    f->failure.status = status;
    memcpy(f->failure.message, err->message, sizeof f->failure.message);
    if (cddp_group_abort(f->group, f->failure.message, &ignored) != CDDP_OK)
        cd_error_reset(&ignored);
    if (f->replicate_group != NULL &&
        cddp_group_abort(f->replicate_group, f->failure.message, &ignored) != CDDP_OK)
        cd_error_reset(&ignored);
    return status;
}

/* ---- gathers ---- */

/* FSH-12: before it is known whether the unit needs a gather. */
static cddp_status limit(cddp_fsdp *f, const cd_fsdp_unit *u, cddp_error *err)
{
    int64_t freed = -1;
    if (!cd_fsdp_unit_is_sharded(u)) return CDDP_OK;
    CD_TRY(cd_fsdp_ahead_limit(&f->ahead, &freed, err));
    if (freed < 0) return CDDP_OK;
    f->limit_waits++;
    CD_EMIT(f->tracer, unit_wait, NULL, .unit = freed);
    return CDDP_OK;
}

static cddp_status gather(cddp_fsdp *f, cd_fsdp_unit *u, bool compares, cddp_error *err)
{
    if (cd_fsdp_unit_is_empty(u)) return CDDP_OK;
    if (u->layout.share > 0) CD_TRY(limit(f, u, err));
    if (u->state != CD_FSDP_SHARDED) return CDDP_OK;
    if (cd_fsdp_unit_is_sharded(u) && u->layout.share > 0) {
        if (compares) CD_TRY(cd_fsdp_compare_order(f, u->index, false, err));
        f->gathers++;
    }
    f->progress[u->index].needs_unshard = false;
    return CD_PASS(cd_fsdp_unit_gather(u, err));
}

static bool is_prefetched(const cddp_fsdp *f, const cd_fsdp_unit *u)
{
    return !cd_fsdp_unit_is_empty(u) && cd_fsdp_unit_is_sharded(u) && u->state == CD_FSDP_SHARDED &&
           f->progress[u->index].needs_unshard;
}

/* Elements of a unit where it is full, with its padding; 0: it is never cut. */
static int64_t full_numel(const cd_fsdp_unit *u)
{
    return cd_fsdp_unit_is_sharded(u) ? u->layout.share * (int64_t)u->layout.world : 0;
}

/* ZER-07: a unit is not gathered ahead where more would be full than is allowed. */
static bool has_room(const cddp_fsdp *f, const cd_fsdp_unit *target)
{
    int64_t live = full_numel(target);
    for (uint32_t k = 0; k < f->unit_count; k++)
        if (f->units[k].state != CD_FSDP_SHARDED) live += full_numel(&f->units[k]);
    return f->live_numel_max == 0 || live <= f->live_numel_max;
}

/* ZER-08: one unit ahead, and further ones until those ahead have prefetch_numel elements.
** goes_on: the one behind the target is looked at, too. */
static cddp_status look_ahead(cddp_fsdp *f, cd_fsdp_unit *target, bool is_wanted, int64_t *ahead,
                              bool *goes_on, cddp_error *err)
{
    const bool gathers =
        is_wanted && !cd_fsdp_unit_is_empty(target) && target->state == CD_FSDP_SHARDED;
    const bool is_full_up = gathers && cd_fsdp_unit_is_sharded(target) && !has_room(f, target);
    *ahead += full_numel(target);
    *goes_on = !is_full_up && *ahead < f->prefetch_numel;
    return gathers && !is_full_up ? CD_PASS(gather(f, target, true, err)) : CDDP_OK;
}

/* FSH-09, FSH-10: in the reverse of this iteration's post-forwards. */
static cddp_status prefetch_backward(cddp_fsdp *f, uint32_t unit, cddp_error *err)
{
    int64_t at = f->progress[unit].post_position - 1, ahead = 0;
    for (bool goes_on = true; goes_on && at >= 0; at--) {
        cd_fsdp_unit *target = &f->units[f->post_forward[at]];
        CD_TRY(look_ahead(f, target, is_prefetched(f, target), &ahead, &goes_on, err));
    }
    return CDDP_OK;
}

/* FSH-11: the order of the first iteration. */
static cddp_status prefetch_forward(cddp_fsdp *f, cddp_error *err)
{
    const cd_fsdp_order *o = &f->forward;
    int64_t ahead = 0;
    bool goes_on = f->forward_prefetch && o->is_recorded;
    for (size_t at = o->at; goes_on && at < o->count; at++)
        CD_TRY(look_ahead(f, &f->units[o->units[at]], true, &ahead, &goes_on, err));
    return CDDP_OK;
}

/* ---- forward ---- */

static cddp_status cast_buffers(cddp_fsdp *f, cddp_error *err)
{
    if (f->has_cast_buffers || f->buffer_dtype == CDDP_DTYPE_COUNT) return CDDP_OK;
    for (size_t i = 0; i < f->buffer_count; i++) {
        const cddp_tensor *t = &f->buffers[i].tensor;
        const int64_t numel = cddp_tensor_numel(t);
        void *storage = NULL;
        if (!cddp_dtype_is_float(t->dtype) || t->dtype == f->buffer_dtype) continue;
        CD_TRY(
            t->device->allocate(t->device, f->buffer_dtype, numel > 0 ? numel : 1, &storage, err));
        f->buffer_copies[i] =
            cddp_tensor_of(t->device, storage, 0, f->buffer_dtype, t->sizes, t->dim_count);
        if (numel > 0) CD_TRY(t->device->copy(&f->buffer_copies[i], t, NULL, err));
    }
    f->has_cast_buffers = true;
    return CDDP_OK;
}

/* F2. A copy that this iteration's forward made is used again; a copy from before a step is not. */
static cddp_status check_fresh(cddp_fsdp *f, cd_fsdp_unit *u, cddp_error *err)
{
    bool fresh = true;
    if (u->state != CD_FSDP_FULL || cd_fsdp_unit_is_empty(u)) return CDDP_OK;
    CD_TRY(cd_fsdp_unit_check_fresh(u, &fresh, err));
    if (fresh) return CDDP_OK;
    return cd_fail(err, CDDP_E_STATE,
                   "the shard of '%s' was changed while its full copy stayed from an earlier "
                   "forward (FSH-15). Run that forward without gradients, or its backward before "
                   "the step; no step inside a no_sync window",
                   cd_fsdp_unit_words(f, u->index));
}

/* Of a large shard one block of LOOK_EVERY, another one in each iteration: a step or a state that
** was loaded changes all of them, and reading all would cost more than a tenth of the gathers. */
static cddp_status look_at_shard(const cddp_fsdp *f, const cd_fsdp_unit *u, uint64_t *digest,
                                 cddp_error *err)
{
    const int64_t share = u->layout.share;
    const bool is_large = share > LOOK_NUMEL * LOOK_EVERY;
    const int64_t block = is_large ? LOOK_NUMEL : share,
                  first = is_large ? (int64_t)(f->iteration % LOOK_EVERY) * LOOK_NUMEL : 0;
    *digest = 0;
    for (int64_t at = first; at < share; at += block * LOOK_EVERY) {
        uint64_t own = 0;
        const cddp_tensor part =
            cddp_tensor_slice(&u->shard, at, share - at < block ? share - at : block);
        CD_TRY(part.device->digest(&part, &own, err));
        *digest = cd_hash_mix(*digest, own);
    }
    return CDDP_OK;
}

/* F5. A unit that was freed after forward is gathered again, and would compute its gradient with
** other parameters than its output. */
static cddp_status check_unchanged(const cddp_fsdp *f, const cd_fsdp_unit *u, cddp_error *err)
{
    cd_fsdp_progress *p = &f->progress[u->index];
    const cddp_device *home = u->shard.device;
    const bool had_shard = p->has_shard;
    uint64_t now = 0;
    if (u->layout.share == 0 || home == NULL || (home->flags & CDDP_DEVICE_ASYNC) != 0 ||
        (home->flags & CDDP_DEVICE_VALUES) == 0)
        return CDDP_OK;
    CD_TRY(look_at_shard(f, u, &now, err));
    if (had_shard && now != p->shard)
        return cd_fail(err, CDDP_E_STATE,
                       "the shard of '%s' was changed between a forward and its backward, which "
                       "compute with one content: change it behind cddp_fsdp_backward_end, or run "
                       "that forward without gradients (FSH-15)",
                       cd_fsdp_unit_words(f, u->index));
    p->shard = now;
    return CDDP_OK;
}

static cddp_status run_pre_forward(cddp_fsdp *f, uint32_t unit, bool grad_mode, cddp_error *err)
{
    cd_fsdp_unit *u = &f->units[unit];
    cd_fsdp_progress *p = &f->progress[unit];
    CD_EMIT(f->tracer, mark, "sharded_pass", .value = unit);
    if (unit == 0 && f->phase == CD_FSDP_IDLE) CD_TRY(cd_fsdp_report_gaps(f, false, err));
    CD_EMIT(f->tracer, unit_pass, NULL, .unit = unit, .pass = CDDP_UNIT_PRE_FORWARD,
            .grad_mode = grad_mode);
    CD_TRY(cast_buffers(f, err));
    if (f->phase == CD_FSDP_IDLE && f->running_forwards == 0)
        CD_TRY(cd_fsdp_ahead_begin(&f->ahead, err));
    const bool recomputes = f->phase == CD_FSDP_BACKWARD; /* activation checkpointing (FSH-22) */
    if (grad_mode && !recomputes) {
        f->phase = CD_FSDP_FORWARD;
        CD_TRY(cd_fsdp_follow(f, &f->forward, unit, "forward", err));
    }
    p->was_full = u->state == CD_FSDP_FULL;
    CD_TRY(check_fresh(f, u, err));
    if (grad_mode) CD_TRY(check_unchanged(f, u, err));
    CD_TRY(gather(f, u, grad_mode, err));
    CD_TRY(cd_fsdp_unit_await(u, err));
    CD_TRY(cd_fsdp_report_read(f, u, CDDP_UNIT_PRE_FORWARD, err));
    if (grad_mode && !recomputes) CD_TRY(prefetch_forward(f, err));
    p->in_forward = 1;
    f->running_forwards++;
    p->grad_mode = grad_mode;
    return CDDP_OK;
}

cddp_status cddp_fsdp_pre_forward(cddp_fsdp *f, uint32_t unit, bool grad_mode, cddp_error *err)
{
    cddp_error own = CDDP_ERROR_INIT;
    if (err == NULL) err = &own;
    CD_TRY(check_unit(f, unit, "cddp_fsdp_pre_forward", err));
    CD_TRY(check_alive(f, "cddp_fsdp_pre_forward", err));
    if (f->progress[unit].in_forward)
        return cd_fail(err, CDDP_E_STATE,
                       "the forward of '%s' begins, and the one before has not ended: call "
                       "cddp_fsdp_post_forward",
                       cd_fsdp_unit_words(f, unit));
    /* Recomputation comes before the end of a unit's backward. */
    if (grad_mode && f->progress[unit].has_run_backward)
        return cd_fail(err, CDDP_E_STATE,
                       "the forward of '%s' begins, and its backward of this iteration is over: "
                       "call cddp_fsdp_backward_end",
                       cd_fsdp_unit_words(f, unit));
    return cd_fsdp_give_up(f, CD_PASS(run_pre_forward(f, unit, grad_mode, err)), err);
}

static cddp_status run_post_forward(cddp_fsdp *f, uint32_t unit, bool needs_backward,
                                    cddp_error *err)
{
    cd_fsdp_unit *u = &f->units[unit];
    cd_fsdp_progress *p = &f->progress[unit];
    p->in_forward = 0;
    f->running_forwards--;
    CD_EMIT(f->tracer, unit_pass, NULL, .unit = unit, .pass = CDDP_UNIT_POST_FORWARD,
            .grad_mode = p->grad_mode);
    /* Shards on the host may change from now on: those that were copied must be there. */
    if (f->is_offloaded && !p->grad_mode && f->running_forwards == 0)
        CD_TRY(cd_fsdp_ahead_settle(&f->ahead, err));
    if (!p->grad_mode) return p->was_full ? CDDP_OK : CD_PASS(cd_fsdp_unit_free(u, err));
    if (f->phase == CD_FSDP_BACKWARD) return CDDP_OK; /* recomputed: its backward comes at once */
    if (p->post_position < 0) {
        p->post_position = (int64_t)f->post_forward_count;
        f->post_forward[f->post_forward_count++] = unit;
    }
    /* FSD-11; a unit of which no backward is expected is freed, too */
    if (!(unit == 0 && needs_backward) && !(cd_fsdp_unit_keeps(u) && needs_backward))
        CD_TRY(cd_fsdp_unit_free(u, err));
    p->needs_backward = p->needs_backward || needs_backward;
    p->has_shard = p->needs_backward;
    p->needs_unshard = p->needs_backward && u->state == CD_FSDP_SHARDED;
    return CDDP_OK;
}

cddp_status cddp_fsdp_post_forward(cddp_fsdp *f, uint32_t unit, bool needs_backward,
                                   cddp_error *err)
{
    cddp_error own = CDDP_ERROR_INIT;
    if (err == NULL) err = &own;
    CD_TRY(check_unit(f, unit, "cddp_fsdp_post_forward", err));
    CD_TRY(check_alive(f, "cddp_fsdp_post_forward", err));
    if (!f->progress[unit].in_forward)
        return cd_fail(err, CDDP_E_STATE, "the forward of '%s' ends, and has not begun",
                       cd_fsdp_unit_words(f, unit));
    return cd_fsdp_give_up(f, CD_PASS(run_post_forward(f, unit, needs_backward, err)), err);
}

cddp_status cddp_fsdp_wait_unit(cddp_fsdp *f, uint32_t unit, cddp_stream *stream, cddp_error *err)
{
    CD_TRY(check_unit(f, unit, "cddp_fsdp_wait_unit", err));
    const cd_fsdp_unit *u = &f->units[unit];
    if (u->state != CD_FSDP_FULL && !cd_fsdp_unit_is_empty(u))
        return cd_fail(
            err, CDDP_E_STATE,
            "a stream is to wait for '%s', which is not full: call cddp_fsdp_pre_forward "
            "or cddp_fsdp_pre_backward before",
            cd_fsdp_unit_words(f, unit));
    return CD_PASS(cd_fsdp_unit_let(u, stream, err));
}

/* ---- backward ---- */

static cddp_status run_pre_backward(cddp_fsdp *f, uint32_t unit, cddp_error *err)
{
    cd_fsdp_unit *u = &f->units[unit];
    CD_EMIT(f->tracer, mark, "sharded_pass", .value = unit);
    CD_EMIT(f->tracer, unit_pass, NULL, .unit = unit, .pass = CDDP_UNIT_PRE_BACKWARD,
            .grad_mode = 1);
    CD_TRY(check_unchanged(f, u, err));
    if (f->phase == CD_FSDP_FORWARD) {
        f->phase = CD_FSDP_BACKWARD;
        CD_TRY(cd_fsdp_end_order(f, &f->forward, "forward", err));
    }
    f->progress[unit].in_backward = true;
    CD_TRY(gather(f, u, true, err));
    CD_TRY(cd_fsdp_unit_await(u, err));
    CD_TRY(cd_fsdp_report_read(f, u, CDDP_UNIT_PRE_BACKWARD, err));
    if (f->backward_prefetch == CDDP_FSDP_BACKWARD_PRE) CD_TRY(prefetch_backward(f, unit, err));
    if (!cd_fsdp_unit_is_empty(u)) CD_TRY(cd_fsdp_unit_prepare_gradients(u, err));
    return CDDP_OK;
}

cddp_status cddp_fsdp_pre_backward(cddp_fsdp *f, uint32_t unit, cddp_error *err)
{
    cddp_error own = CDDP_ERROR_INIT;
    if (err == NULL) err = &own;
    CD_TRY(check_unit(f, unit, "cddp_fsdp_pre_backward", err));
    CD_TRY(check_alive(f, "cddp_fsdp_pre_backward", err));
    const cd_fsdp_progress *p = &f->progress[unit];
    if (p->in_backward) return CDDP_OK; /* FSH-02: the first gradient counts */
    if (p->has_run_backward || !p->needs_backward)
        return cd_fail(err, CDDP_E_STATE,
                       p->has_run_backward
                           ? "the backward of '%s' begins twice in one iteration"
                           : "the backward of '%s' begins, and no forward since the last backward "
                             "had an output that requires a gradient (FSH-19)",
                       cd_fsdp_unit_words(f, unit));
    return cd_fsdp_give_up(f, CD_PASS(run_pre_backward(f, unit, err)), err);
}

/* The oldest reduction ends, and leaves the queue when it has no further stage. */
static cddp_status advance_oldest(cddp_fsdp *f, cddp_error *err)
{
    cd_fsdp_unit *u = &f->units[f->reducing[0]];
    const bool scattered = u->reducing == CD_FSDP_SCATTERING;
    CD_TRY(cd_fsdp_unit_advance(u, err));
    if (u->reducing != CD_FSDP_REDUCED) {
        f->replica_reductions += scattered;
        return CDDP_OK;
    }
    f->reducing_count--;
    memmove(f->reducing, f->reducing + 1, f->reducing_count * sizeof *f->reducing);
    return CDDP_OK;
}

/* What was scattered goes on to the replicas before anything else is reduced: RS u, AR u, RS v. */
static cddp_status pass_on(cddp_fsdp *f, cddp_error *err)
{
    for (size_t i = 0; i < f->reducing_count; i++) {
        cd_fsdp_unit *u = &f->units[f->reducing[i]];
        if (u->reducing != CD_FSDP_SCATTERING || u->replicas == NULL) continue;
        CD_TRY(cd_fsdp_unit_advance(u, err));
        f->replica_reductions++;
    }
    return CDDP_OK;
}

static cddp_status reduce(cddp_fsdp *f, cd_fsdp_unit *u, cddp_error *err)
{
    if (u->layout.share == 0) return CD_PASS(cd_fsdp_unit_reduce(u, err)); /* nothing travels */
    CD_TRY(pass_on(f, err));
    while (f->reducing_count >= REDUCTIONS_MAX || u->reducing != CD_FSDP_REDUCED)
        CD_TRY(advance_oldest(f, err));
    CD_TRY(cd_fsdp_compare_order(f, u->index, true, err));
    CD_TRY(cd_fsdp_unit_reduce(u, err));
    if (u->reducing == CD_FSDP_REDUCED) return CDDP_OK;
    f->reductions += cd_fsdp_unit_is_sharded(u);
    f->replica_reductions += !cd_fsdp_unit_is_sharded(u);
    f->reducing[f->reducing_count++] = u->index;
    return CDDP_OK;
}

/* SHARD_GRAD_OP keeps its full copy in a no_sync window (FSY-03), and NO_SHARD what it casts. */
static bool stays_full(const cddp_fsdp *f, const cd_fsdp_unit *u)
{
    return f->no_sync_depth > 0 && cd_fsdp_unit_keeps(u);
}

static cddp_status run_post_backward(cddp_fsdp *f, uint32_t unit, cddp_error *err)
{
    cd_fsdp_unit *u = &f->units[unit];
    const bool has_gradient = u->requires_grad && cd_fsdp_unit_has_gradient(u);
    f->progress[unit].in_backward = false;
    f->progress[unit].has_run_backward = true;
    CD_EMIT(f->tracer, unit_pass, NULL, .unit = unit, .pass = CDDP_UNIT_POST_BACKWARD,
            .grad_mode = 1);
    CD_TRY(cd_fsdp_follow(f, &f->backward, has_gradient ? unit : unit + f->unit_count, "backward",
                          err));
    /* FSH-20: the input's gradient of a frozen unit may still be computed. */
    if (!stays_full(f, u) && u->requires_grad) CD_TRY(cd_fsdp_unit_free(u, err));
    if (f->backward_prefetch == CDDP_FSDP_BACKWARD_POST) CD_TRY(prefetch_backward(f, unit, err));
    if (!has_gradient) {
        cd_fsdp_unit_drop_gradients(u);
        return CDDP_OK;
    }
    return f->no_sync_depth > 0 ? CD_PASS(cd_fsdp_unit_accumulate(u, err))
                                : CD_PASS(reduce(f, u, err));
}

cddp_status cddp_fsdp_post_backward(cddp_fsdp *f, uint32_t unit, cddp_error *err)
{
    cddp_error own = CDDP_ERROR_INIT;
    if (err == NULL) err = &own;
    CD_TRY(check_unit(f, unit, "cddp_fsdp_post_backward", err));
    CD_TRY(check_alive(f, "cddp_fsdp_post_backward", err));
    if (!f->progress[unit].in_backward)
        return cd_fail(err, CDDP_E_STATE, "the backward of '%s' ends, and has not begun",
                       cd_fsdp_unit_words(f, unit));
    return cd_fsdp_give_up(f, CD_PASS(run_post_backward(f, unit, err)), err);
}

static void forget_progress(cddp_fsdp *f)
{
    CD_ASSERT(f->post_forward_count <= f->unit_count);
    for (uint32_t k = 0; k < f->unit_count; k++)
        f->progress[k] = (cd_fsdp_progress){.post_position = -1};
    f->post_forward_count = 0;
    f->iteration++;
    f->phase = CD_FSDP_IDLE;
}

/* What a program shows of its gradients is whole; a recorder says which of it was reduced. */
static void tell_reduced(const cddp_fsdp *f)
{
    if (f->tracer == NULL || f->tracer->watch == NULL || f->no_sync_depth > 0) return;
    for (uint32_t k = 0; k < f->unit_count; k++)
        if (f->progress[k].has_run_backward)
            CD_EMIT(f->tracer, mark, CD_TRACER_UNIT_REDUCED, .value = k);
}

static cddp_status run_backward_end(cddp_fsdp *f, cddp_error *err)
{
    while (f->reducing_count > 0) CD_TRY(advance_oldest(f, err));
    if (f->is_offloaded) CD_TRY(cd_fsdp_ahead_settle(&f->ahead, err)); /* the host reads them */
    CD_TRY(cd_fsdp_end_order(f, &f->backward, "backward", err));
    for (uint32_t k = 0; k < f->unit_count; k++) {
        cd_fsdp_unit *u = &f->units[k];
        if (cd_fsdp_unit_is_empty(u)) continue;
        if (u->state == CD_FSDP_GATHERING || !stays_full(f, u)) CD_TRY(cd_fsdp_unit_free(u, err));
        CD_TRY(cd_fsdp_unit_show_gradient(u, err));
    }
    CD_EMIT(f->tracer, unit_pass, NULL, .pass = CDDP_UNIT_BACKWARD_END, .grad_mode = 1);
    if (f->no_sync_depth == 0) f->compares_reductions = false;
    tell_reduced(f);
    forget_progress(f);
    return CD_PASS(cd_fsdp_report_gaps(f, true, err));
}

cddp_status cddp_fsdp_backward_end(cddp_fsdp *f, cddp_error *err)
{
    cddp_error own = CDDP_ERROR_INIT;
    if (err == NULL) err = &own;
    CD_TRY(check_alive(f, "cddp_fsdp_backward_end", err));
    if (f->phase != CD_FSDP_BACKWARD)
        return cd_fail(err, CDDP_E_STATE, "cddp_fsdp_backward_end: no backward has begun");
    for (uint32_t k = 0; k < f->unit_count; k++)
        if (f->progress[k].in_backward || f->progress[k].in_forward)
            return cd_fail(err, CDDP_E_STATE, "the iteration ends inside the %s of '%s'",
                           f->progress[k].in_backward ? "backward" : "forward",
                           cd_fsdp_unit_words(f, k));
    return cd_fsdp_give_up(f, CD_PASS(run_backward_end(f, err)), err);
}

/* ---- no_sync ---- */

cddp_status cddp_fsdp_no_sync_begin(cddp_fsdp *f, cddp_error *err)
{
    CD_TRY(cd_fsdp_check_idle(f, "cddp_fsdp_no_sync_begin", err));
    f->no_sync_depth++;
    return CDDP_OK;
}

cddp_status cddp_fsdp_no_sync_end(cddp_fsdp *f, cddp_error *err)
{
    CD_TRY(cd_fsdp_check_idle(f, "cddp_fsdp_no_sync_end", err));
    if (f->no_sync_depth == 0)
        return cd_fail(err, CDDP_E_STATE, "cddp_fsdp_no_sync_end: no window is open");
    f->no_sync_depth--;
    return CDDP_OK;
}

cddp_status cddp_fsdp_check_step(const cddp_fsdp *f, cddp_error *err)
{
    CD_TRY(cd_fsdp_check_idle(f, "cddp_fsdp_check_step", err));
    for (uint32_t k = 0; k < f->unit_count; k++) {
        CD_TRY(cd_fsdp_unit_check_gradient(&f->units[k], err));
        if (cd_fsdp_unit_has_gradient(&f->units[k]))
            return cd_fail(err, CDDP_E_STATE,
                           "'%s' has gradients of a no_sync window that were not reduced: run a "
                           "backward outside of it before the step (FSY-07)",
                           cd_fsdp_unit_words(f, k));
    }
    return CDDP_OK;
}

cddp_status cddp_fsdp_zero_grad(cddp_fsdp *f, bool set_to_none, cddp_error *err)
{
    CD_TRY(cd_fsdp_check_idle(f, "cddp_fsdp_zero_grad", err));
    for (uint32_t k = 0; k < f->unit_count; k++) {
        cd_fsdp_unit *u = &f->units[k];
        cd_fsdp_unit_drop_gradients(u);
        cd_fsdp_memory_give(&f->memory, &u->accumulated);
        if (set_to_none)
            cddp_grad_drop(&u->grad);
        else if (u->grad.kind == CDDP_GRAD_DENSE)
            CD_TRY(u->grad.value.device->fill(&u->grad.value, 0.0, NULL, err));
    }
    return CDDP_OK;
}
