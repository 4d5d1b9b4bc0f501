/* SPDX-License-Identifier: Apache-2.0 */
/* The sequence of units and what is full, from the plan alone.
**
** L1  a unit that is full is not gathered again (FSH-15)
** L2  after its forward a unit is freed. The root stays, and what SHARD_GRAD_OP keeps, where a
**     backward is to come (FSD-11)
** L3  after its backward a unit is freed; one that is frozen as a whole when the iteration ends
**     (FSH-20). In a no_sync window SHARD_GRAD_OP keeps it (FSY-03)
** L4  prefetch gathers one unit ahead: the one before it in the order of post-forwards, when that
**     was freed and its backward is to come (FSH-09, FSH-10); in forward the next one of the order
**     of the first iteration (FSH-11). Stage 3 of ZeRO looks further, and stops where more were
**     full than it may be (ZER-07, ZER-08)
** L5  a unit is reduced where it has a gradient (FPM-08), outside of a no_sync window (FSY-02)
** L6  before a gather, and before a reduction, ranks compare what they are about to do: in the
**     first iteration, or in all of them (FSH-13)
** L7  storage is taken when a gather begins, and given back where a unit is freed
** L8  with streams, what was freed in an iteration may be computed with until the host has waited
**     for that: with limit_all_gathers before a gather, or where a unit is full and needs none, for
**     the oldest free if there are two or more (FSH-12)
** L9  a synchronised batch norm exchanges statistics in its forward, and sums in its backward, when
**     it has read its parameters. A layer that is computed again exchanges again
*/
#include "core/reference/unit_law.h"

#include "cddp/backend.h"
#include "core/base/error.h"
#include "core/base/operation.h"
#include "core/reference/decisions.h"
#include "core/reference/own_pass.h"
#include "core/reference/planned.h"
#include "core/reference/units.h"
#include "core/trace/tracer.h"

#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)4 << 10)
#define NO_UNIT UINT32_MAX

typedef enum touch_kind { TOUCH_FORWARD, TOUCH_BACKWARD, TOUCH_GRADIENT } touch_kind;

/* What the judge's own pass did with a parameter. */
typedef struct touch {
    uint32_t parameter;
    touch_kind kind;
    bool is_defined; /* of a gradient */
} touch;

typedef struct unit {
    const char *name;            /* in full: checks tell units apart by it */
    int64_t numel, share, whole; /* elements; whole: of its parameters alone */
    cddp_dtype dtype, wire;      /* of gathers and of reductions */
    cddp_dtype kept;             /* of the shard's gradient */
    uint32_t trained;
    /* as it stands */
    bool is_full, is_awaited, has_gradient;
    int64_t bytes; /* full now */
    int64_t moves; /* of its storage, in the iteration */
    /* of the iteration */
    bool may_go_back, may_be_prefetched, is_open, has_ended;
    uint32_t arrived;
    int64_t position; /* among post-forwards; -1: none */
} unit;

/* The exchanges of a layer with synchronised batch norm, which follow the use of its bias. */
typedef struct exchange {
    const char *name; /* NULL: the parameter is no such bias */
    int64_t channels;
    uint32_t forwards, backwards; /* uses of the pass at hand */
    uint32_t exchanged;           /* in backward */
} exchange;

/* A unit was freed, and what of it the default stream may still read. */
typedef struct free_record {
    int64_t bytes;
} free_record;

typedef struct order {
    uint32_t *units; /* (count) */
    size_t count, capacity, at;
    bool is_recorded;
} order;

struct cd_unit_law {
    cd_arena memory; /* of the law itself */
    const cddp_plan *plan;
    cddp_plan_settings settings; /* of the rank */
    uint32_t rank;
    cd_planned_mesh mesh;
    cd_samples *samples;
    cd_replica *replica; /* on a device without numbers */
    cd_part *parts;      /* (parameter_count) */
    uint32_t *unit_of;   /* (parameter_count) */
    int64_t *starts;     /* (parameter_count) in the vector of its unit */
    exchange *exchanges; /* (parameter_count) */
    unit *units;         /* (unit_count) the root first, with or without parameters */
    uint32_t unit_count;
    touch *touches; /* (touch_count) of the pass at hand */
    size_t touch_count, touch_capacity;

    order forward;             /* of the first iteration */
    bool has_ended_backward;   /* one did */
    bool has_ended_reductions; /* a synchronised one did */
    uint32_t *post_forward;    /* (unit_count) */
    uint32_t post_forward_count;
    uint32_t *left; /* (unit_count) units in the order in which their forwards ended first */
    uint32_t left_count;
    bool needs_gradients, in_window;
    const unit *scattered; /* reduced in its shard group alone so far; NULL: none */
    int64_t live, peak;
    /* with streams */
    free_record *frees; /* (free_count) that the host has not waited for, the oldest first */
    size_t free_count, free_capacity;
    int64_t unseen;  /* freed bytes that no free covers yet */
    int64_t pending; /* all freed bytes that may still be computed with */
    int64_t reserved, waits;

    /* of the emission at hand */
    struct cddp_tracer *tracer;
    cd_micro_place place;
    int64_t position, passes, moves;

    /* As the run has them now, where the emission is ahead of a resume. */
    cd_part *run_parts;
    uint32_t *run_unit_of;
    int64_t *run_starts;
    unit *run_units;
    bool has_resumed, run_has_resumed;

    cd_unit_reduction *reductions; /* (reduction_count) that were emitted and not taken */
    size_t reduction_count, reduction_capacity;
    bool lacks_memory;
};

/* ---- construction ---- */

static bool is_cut(const cd_unit_law *l) { return l->mesh.shards > 1; }

static bool has_streams(const cd_unit_law *l) { return l->settings.streams.producers > 0; }

static bool keeps(const cd_unit_law *l)
{
    return l->settings.fsdp.sharding_strategy == CDDP_SHARDING_GRAD_OP ||
           l->settings.fsdp.sharding_strategy == CDDP_SHARDING_HYBRID_ZERO2;
}

static const char *name_unit(cd_unit_law *l, const char *parameter, size_t length)
{
    char *name = cd_arena_array(&l->memory, length + 1, 1);
    if (name != NULL) memcpy(name, parameter, length);
    return name;
}

static cddp_status find_units(cd_unit_law *l, cddp_error *err)
{
    const cd_module *module = l->replica->model->module;
    const size_t count = module->parameter_count;
    const bool by_rows = l->settings.fsdp.layout == CDDP_SHARDING_CUT_ROWS;
    uint32_t *numbers = cd_arena_array(&l->memory, count + 1, sizeof *numbers);
    size_t *lengths = cd_arena_array(&l->memory, count + 1, sizeof *lengths);
    int64_t *numels = cd_arena_array(&l->memory, count + 1, sizeof *numels);
    int64_t *starts = l->starts = cd_arena_array(&l->memory, count + 1, sizeof *starts);
    uint32_t *first = cd_arena_array(&l->memory, count + 2, sizeof *first);
    l->parts = cd_arena_array(&l->memory, count + 1, sizeof *l->parts);
    l->unit_of = cd_arena_array(&l->memory, count + 1, sizeof *l->unit_of);
    l->units = cd_arena_array(&l->memory, count + 1, sizeof *l->units);
    l->post_forward = cd_arena_array(&l->memory, count + 1, sizeof *l->post_forward);
    l->left = cd_arena_array(&l->memory, count + 1, sizeof *l->left);
    cd_planned_precision *precisions = cd_arena_array(&l->memory, count + 1, sizeof *precisions);
    CD_TRY(cd_arena_check(&l->memory, err, "the units of rank %u", l->rank));
    const cd_planned_units found = {.parts = l->parts,
                                    .units = numbers,
                                    .lengths = lengths,
                                    .numels = numels,
                                    .starts = starts};
    CD_TRY(cd_planned_find_units(l->plan, &l->settings, module, &l->memory, &found, err));
    CD_TRY(cd_planned_find_precision(l->plan, &l->settings, module, &l->memory, precisions, err));
    l->units[0].name = "(root)";
    l->unit_count = 1;
    for (size_t i = 0; i < count; i++) {
        const cd_parameter *p = &module->parameters[i];
        uint32_t *number = &first[numbers[i]];
        if (lengths[i] > 0 && *number == 0) {
            l->units[l->unit_count].name = name_unit(l, p->name, lengths[i]);
            CD_TRY(cd_arena_check(&l->memory, err, "the name of a unit"));
            *number = l->unit_count++;
        }
        unit *u = &l->units[*number];
        l->unit_of[i] = *number;
        u->dtype = precisions[i].param;
        u->wire = precisions[i].reduce;
        u->kept = precisions[i].kept;
        if (u->dtype == CDDP_DTYPE_COUNT) u->dtype = p->tensor.dtype;
        if (u->kept == CDDP_DTYPE_COUNT) u->kept = p->tensor.dtype;
        if (u->wire == CDDP_DTYPE_COUNT) u->wire = p->tensor.dtype;
        u->numel = numels[i];
        const int64_t whole = cddp_tensor_numel(&p->tensor);
        u->whole += whole;
        /* a part of nothing still has a share of 1 (units.c) */
        const int64_t rows = whole > 0 ? l->parts[i].share : 0;
        if (is_cut(l)) u->share = by_rows ? u->share + rows : l->parts[i].share;
    }
    return CDDP_OK;
}

/* Forms have no statistics. */
static bool exchanges_statistics(const cd_unit_law *l)
{
    return l->replica->model->exchanges_statistics && l->plan->world.size > 1 &&
           l->settings.model.device == CDDP_MODEL_DEVICE_CPU;
}

/* By names: "x.bias" beside the buffer "x.running_mean". */
static cddp_status find_exchanges(cd_unit_law *l, cddp_error *err)
{
    static const char bias[] = ".bias", mean[] = ".running_mean";
    const cd_module *module = l->replica->model->module;
    l->exchanges = cd_arena_array(&l->memory, module->parameter_count + 1, sizeof *l->exchanges);
    CD_TRY(cd_arena_check(&l->memory, err, "the batch norms of rank %u", l->rank));
    for (size_t b = 0; exchanges_statistics(l) && b < module->buffer_count; b++) {
        const char *name = module->buffers[b].name, *end = strstr(name, mean);
        if (end == NULL || end[sizeof mean - 1] != '\0') continue;
        const size_t length = (size_t)(end - name), prefix = sizeof CD_STATISTICS_OF - 1;
        for (size_t i = 0; i < module->parameter_count; i++) {
            const char *own = module->parameters[i].name;
            if (strncmp(own, name, length) != 0 || strcmp(own + length, bias) != 0) continue;
            char *text = cd_arena_array(&l->memory, prefix + length + 1, 1);
            CD_TRY(cd_arena_check(&l->memory, err, "the name of a batch norm"));
            memcpy(text, CD_STATISTICS_OF, prefix);
            memcpy(text + prefix, name, length);
            l->exchanges[i] =
                (exchange){.name = text,
                           .channels = cddp_tensor_numel(&module->parameters[i].tensor)};
        }
    }
    return CDDP_OK;
}

static cddp_status note(cd_unit_law *l, const touch *t, cddp_error *err)
{
    if (!cd_arena_grow(&l->memory, (void **)&l->touches, &l->touch_capacity, l->touch_count + 1,
                       sizeof *l->touches))
        return cd_fail_memory(err, "the uses of parameters on rank %u", l->rank);
    l->touches[l->touch_count++] = *t;
    return CDDP_OK;
}

static cddp_status note_use(void *context, uint32_t parameter, bool in_backward, cddp_error *err)
{
    const touch t = {parameter, in_backward ? TOUCH_BACKWARD : TOUCH_FORWARD, false};
    return CD_PASS(note(context, &t, err));
}

static cddp_status note_gradient(void *context, uint32_t parameter, cddp_grad *grad,
                                 cddp_error *err)
{
    const touch t = {parameter, TOUCH_GRADIENT, grad->kind != CDDP_GRAD_UNDEFINED};
    return CD_PASS(note(context, &t, err));
}

static cddp_status make_replica(cd_unit_law *l, cddp_error *err)
{
    const cd_replica_options options = {.plan = l->plan,
                                        .rank = l->rank,
                                        .device = cddp_device_shape(),
                                        .allocator = l->memory.allocator,
                                        .only_names = true};
    CD_TRY(cd_replica_create(&options, &l->replica, err));
    const cd_graph_callbacks callbacks = {.context = l, .use = note_use, .ready = note_gradient};
    cd_graph_set_callbacks(l->replica->graph, &callbacks);
    return CDDP_OK;
}

static void show_run(cd_unit_law *l);

cddp_status cd_unit_law_create(const cd_unit_law_options *options, cd_unit_law **law,
                               cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena memory;
    cd_arena_init(&memory, options->allocator, MEMORY_BLOCK_BYTES);
    cd_unit_law *l = cd_arena_push(&memory, sizeof *l);
    if (l == NULL) return cd_fail_memory(err, "the units of rank %u", options->rank);
    *l = (cd_unit_law){.memory = memory,
                       .plan = options->plan,
                       .rank = options->rank,
                       .samples = options->samples};
    CD_TRY_OUT(cddp_plan_rank_settings(l->plan, l->rank, &l->settings, err));
    l->mesh = cd_planned_get_mesh(l->plan, &l->settings);
    CD_TRY_OUT(make_replica(l, err));
    CD_TRY_OUT(find_units(l, err));
    CD_TRY_OUT(find_exchanges(l, err));
    show_run(l);
    *law = l;
    l = NULL;
out:
    cd_unit_law_destroy(l);
    return status;
}

void cd_unit_law_destroy(cd_unit_law *l)
{
    if (l == NULL) return;
    cd_replica_destroy(l->replica);
    cd_arena_fini(&l->memory);
}

cddp_dtype cd_unit_law_get_dtype(const cd_unit_law *l, size_t parameter)
{
    return l->run_units[l->run_unit_of[parameter]].dtype;
}

static void show_run(cd_unit_law *l)
{
    l->run_parts = l->parts;
    l->run_unit_of = l->unit_of;
    l->run_starts = l->starts;
    l->run_units = l->units;
}

/* Ahead of the run. */
static cddp_status begin_anew(cd_unit_law *l, cddp_error *err)
{
    if (l->has_resumed) return CDDP_OK;
    l->has_resumed = true;
    cd_planned_resume(&l->settings);
    l->mesh = cd_planned_get_mesh(l->plan, &l->settings);
    CD_TRY(find_units(l, err));
    l->forward = (order){.units = l->forward.units, .capacity = l->forward.capacity};
    l->has_ended_backward = l->has_ended_reductions = false;
    l->live = l->peak = 0;
    l->scattered = NULL;
    return CDDP_OK;
}

cddp_status cd_unit_law_resume(cd_unit_law *l, cddp_error *err)
{
    if (l->run_has_resumed) return CDDP_OK;
    CD_TRY(begin_anew(l, err));
    l->run_has_resumed = true;
    show_run(l);
    return CDDP_OK;
}

/* ---- what the judge of sums asks ---- */

bool cd_unit_law_take(cd_unit_law *l, const cd_unit_reduction *like, cd_unit_reduction *taken)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->reduction_count; i++)
        if (l->reductions[i].step >= like->step) l->reductions[kept++] = l->reductions[i];
    l->reduction_count = kept;
    for (size_t i = 0; i < l->reduction_count; i++) {
        const cd_unit_reduction *r = &l->reductions[i];
        if (r->step != like->step || r->micro_step != like->micro_step || r->op != like->op ||
            r->replicas != like->replicas)
            continue;
        if (r->dtype != like->dtype || r->numel != like->numel) return false;
        *taken = *r;
        memmove(&l->reductions[i], &l->reductions[i + 1],
                (--l->reduction_count - i) * sizeof *l->reductions);
        return true;
    }
    return false;
}

size_t cd_unit_law_count_left(const cd_unit_law *l, uint32_t step, uint32_t micro_step)
{
    size_t count = 0;
    for (size_t i = 0; i < l->reduction_count; i++)
        count += l->reductions[i].step == step && l->reductions[i].micro_step == micro_step;
    return count;
}

cd_unit_place cd_unit_law_get_place(const cd_unit_law *l, size_t parameter)
{
    const unit *u = &l->run_units[l->run_unit_of[parameter]];
    return (cd_unit_place){.unit = l->run_unit_of[parameter],
                           .name = u->name,
                           .start = l->run_starts[parameter],
                           .share = u->share,
                           .part = l->run_parts[parameter],
                           .dtype = u->dtype,
                           .wire = u->wire,
                           .kept = u->kept};
}

/* ---- this rank's parts ---- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

void cd_unit_law_emit_parts(const cd_unit_law *l, struct cddp_tracer *tracer)
{
    const cd_module *module = l->replica->model->module;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cd_part *p = &l->parts[i];
        const int64_t numel = cddp_tensor_numel(&module->parameters[i].tensor);
        const int64_t place = p->period > 0 ? (int64_t)l->rank % p->period : (int64_t)l->rank;
        int64_t first = place * p->share - p->start;
        int64_t end = p->share > 0 ? least(first + p->share, numel) : numel;
        if (first < 0 || p->share == 0) first = 0;
        if (end < first) end = first;
        CD_EMIT(tracer, planned_part, module->parameters[i].name, .ordinal = (int64_t)i,
                .first = first, .count = end - first, .dtype = l->units[l->unit_of[i]].kept,
                .on_host = l->settings.fsdp.cpu_offload ? 1
                           : has_streams(l)             ? 0
                                                        : -1);
    }
}

/* ---- collectives and memory ---- */

typedef struct posting {
    cddp_op op;
    cddp_dtype dtype;
    int64_t numel;
    bool replicas;
} posting;

static void post(cd_unit_law *l, const unit *u, const posting *p)
{
    CD_EMIT(l->tracer, planned_collective, u->name, .at_step = l->place.step,
            .at_micro = l->place.micro_step, .position = l->position, .op = p->op,
            .dtype = p->dtype, .numel = p->numel, .passes = l->passes, .replicas = p->replicas);
    l->position++;
    if (!cd_op_is_reduction(p->op) || l->lacks_memory) return;
    if (!cd_arena_grow(&l->memory, (void **)&l->reductions, &l->reduction_capacity,
                       l->reduction_count + 1, sizeof *l->reductions)) {
        l->lacks_memory = true;
        return;
    }
    l->reductions[l->reduction_count++] = (cd_unit_reduction){
        l->place.step, l->place.micro_step, (uint32_t)(u - l->units), p->op, p->dtype,
        p->numel,      p->replicas};
}

/* L9; (mean, spread) of each channel and their count, or two sums of each channel. */
static void exchange_statistics(cd_unit_law *l, const touch *t)
{
    exchange *x = &l->exchanges[t->parameter];
    if (x->name == NULL || t->kind == TOUCH_GRADIENT) return;
    const bool is_again = x->backwards > x->forwards && x->exchanged % 2 == 0;
    const bool is_forward = t->kind == TOUCH_FORWARD || is_again;
    x->exchanged += t->kind == TOUCH_BACKWARD;
    CD_EMIT(l->tracer, planned_collective, x->name, .at_step = l->place.step,
            .at_micro = l->place.micro_step, .position = l->position, .op = CDDP_OP_ALLGATHER,
            .dtype = CDDP_F64, .numel = 2 * x->channels + is_forward, .passes = l->passes);
    l->position++;
}

/* L6; of the whole world where a unit is not cut. */
static void compare(cd_unit_law *l, const unit *u, bool reduces)
{
    const int64_t check = l->settings.fsdp.order_check;
    const bool is_first = reduces ? !l->has_ended_reductions : !l->has_ended_backward;
    const bool is_hybrid = l->mesh.shards > 1 && l->mesh.replicas > 1;
    if (check == CDDP_SHARDING_ORDER_CHECK_NONE) return;
    if (check == CDDP_SHARDING_ORDER_CHECK_FIRST && !is_first) return;
    if (l->mesh.shards * l->mesh.replicas > 1)
        post(l, u, &(posting){CDDP_OP_ALLGATHER, CDDP_I64, 1, false});
    if (is_hybrid) post(l, u, &(posting){CDDP_OP_ALLGATHER, CDDP_I64, 1, true});
}

static void move(cd_unit_law *l, unit *u, int64_t bytes)
{
    if (bytes == 0) return;
    CD_EMIT(l->tracer, planned_storage, u->name, .at_step = l->place.step,
            .at_micro = l->place.micro_step, .position = u->moves,
            .bytes = bytes < 0 ? -bytes : bytes, .released = bytes < 0, .passes = l->passes,
            .collectives = l->position);
    u->moves++;
    l->moves++;
    u->bytes += bytes;
    l->live += bytes;
    if (l->live > l->peak) l->peak = l->live;
    if (bytes < 0) l->pending -= bytes;
    if (bytes < 0) l->unseen -= bytes;
    if (l->live + l->pending > l->reserved) l->reserved = l->live + l->pending;
}

static void add_bytes(cd_unit_law *l, unit *u, int64_t elements)
{
    move(l, u, elements * (int64_t)cddp_dtype_bytes(u->dtype));
}

/* L8 */
static void limit(cd_unit_law *l)
{
    if (!has_streams(l) || !l->settings.fsdp.limit_all_gathers || l->free_count < 2) return;
    l->waits++;
    l->pending -= l->frees[0].bytes;
    l->free_count--;
    memmove(l->frees, l->frees + 1, l->free_count * sizeof *l->frees);
}

static void note_free(cd_unit_law *l)
{
    if (!cd_arena_grow(&l->memory, (void **)&l->frees, &l->free_capacity, l->free_count + 1,
                       sizeof *l->frees)) {
        l->lacks_memory = true;
        return;
    }
    l->frees[l->free_count++].bytes = l->unseen;
    l->unseen = 0;
}

/* L1 */
static void gather(cd_unit_law *l, unit *u)
{
    if (!is_cut(l) || u->whole == 0) return;
    limit(l);
    if (u->is_full || u->share == 0) return;
    compare(l, u, false);
    add_bytes(l, u, u->share * (int64_t)l->mesh.shards);
    post(l, u, &(posting){CDDP_OP_ALLGATHER, u->dtype, u->share, false});
    u->is_full = true;
    u->is_awaited = false;
    u->may_be_prefetched = false;
}

/* By rows: gathered shards are brought into order in a second buffer. */
static void await(cd_unit_law *l, unit *u)
{
    const bool moves = l->settings.fsdp.layout == CDDP_SHARDING_CUT_ROWS;
    if (!u->is_full || u->is_awaited) return;
    u->is_awaited = true;
    if (!moves) return;
    add_bytes(l, u, u->whole);
    add_bytes(l, u, -u->share * (int64_t)l->mesh.shards);
}

static void release(cd_unit_law *l, unit *u)
{
    const bool has_storage = u->bytes > 0;
    move(l, u, -u->bytes);
    if (has_storage) note_free(l);
    u->is_full = u->is_awaited = false;
}

/* ---- forward ---- */

static int64_t count_full(const cd_unit_law *l, const unit *u)
{
    return is_cut(l) ? u->share * (int64_t)l->mesh.shards : 0;
}

/* ZER-07 */
static bool exceeds(const cd_unit_law *l, const unit *target)
{
    const uint64_t most = l->plan->zero.stage == 3 ? l->plan->zero.stage3_max_live_parameters : 0;
    int64_t live = count_full(l, target);
    for (uint32_t k = 0; k < l->unit_count; k++)
        if (l->units[k].is_full) live += count_full(l, &l->units[k]);
    return most > 0 && live > (int64_t)most;
}

/* A look at the unit that is so many elements ahead; ahead grows by its own. False: it is the last
** one that is looked at (ZER-08). */
static bool look_at(cd_unit_law *l, unit *target, bool may_gather, int64_t *ahead)
{
    const int64_t bucket =
        l->plan->zero.stage == 3 ? (int64_t)l->plan->zero.stage3_prefetch_bucket_size : 0;
    const bool gathers = may_gather && !target->is_full && is_cut(l) && target->share > 0;
    if (gathers && exceeds(l, target)) return false;
    if (gathers) gather(l, target);
    *ahead += count_full(l, target);
    return *ahead < bucket;
}

/* L4; the order of the first iteration is known when its backward begins. */
static void prefetch_forward(cd_unit_law *l)
{
    const order *o = &l->forward;
    int64_t ahead = 0;
    if (!l->settings.fsdp.forward_prefetch || !o->is_recorded) return;
    for (size_t at = o->at; at < o->count; at++)
        if (!look_at(l, &l->units[o->units[at]], true, &ahead)) return;
}

static cddp_status pre_forward(cd_unit_law *l, uint32_t k, cddp_error *err)
{
    order *o = &l->forward;
    l->passes++;
    if (!o->is_recorded) {
        if (!cd_arena_grow(&l->memory, (void **)&o->units, &o->capacity, o->count + 1,
                           sizeof *o->units))
            return cd_fail_memory(err, "the order of units on rank %u", l->rank);
        o->units[o->count++] = k;
    }
    o->at++;
    gather(l, &l->units[k]);
    await(l, &l->units[k]);
    prefetch_forward(l);
    return CDDP_OK;
}

/* L2 */
static void post_forward(cd_unit_law *l, uint32_t k)
{
    unit *u = &l->units[k];
    l->passes++;
    l->needs_gradients = l->needs_gradients || u->trained > 0;
    u->may_go_back = u->may_go_back || l->needs_gradients;
    if (u->position < 0) {
        u->position = l->post_forward_count;
        l->post_forward[l->post_forward_count++] = k;
    }
    if (!(l->needs_gradients && (k == 0 || keeps(l)))) release(l, u);
    u->may_be_prefetched = u->may_go_back && !u->is_full;
}

static void leave(cd_unit_law *l, uint32_t *current)
{
    const uint32_t k = *current;
    uint32_t at = 0;
    if (k == NO_UNIT) return;
    *current = NO_UNIT;
    while (at < l->left_count && l->left[at] != k) at++;
    if (at == l->left_count) l->left[l->left_count++] = k;
    post_forward(l, k);
}

static cddp_status walk_forward(cd_unit_law *l, size_t *at, cddp_error *err)
{
    uint32_t current = NO_UNIT;
    CD_TRY(pre_forward(l, 0, err));
    for (; *at < l->touch_count && l->touches[*at].kind == TOUCH_FORWARD; (*at)++) {
        const uint32_t k = l->unit_of[l->touches[*at].parameter];
        if (k != 0 && k != current) {
            leave(l, &current);
            current = k;
            CD_TRY(pre_forward(l, k, err));
        }
        exchange_statistics(l, &l->touches[*at]);
    }
    leave(l, &current);
    post_forward(l, 0);
    return CDDP_OK;
}

/* ---- backward ---- */

static void prefetch_backward(cd_unit_law *l, const unit *u, int64_t when)
{
    int64_t ahead = 0;
    if (l->settings.fsdp.backward_prefetch != when) return;
    for (int64_t at = u->position - 1; at >= 0; at--) {
        unit *target = &l->units[l->post_forward[at]];
        if (!look_at(l, target, target->may_be_prefetched, &ahead)) return;
    }
}

static void pre_backward(cd_unit_law *l, unit *u)
{
    u->is_open = true;
    l->passes++;
    gather(l, u);
    await(l, u);
    prefetch_backward(l, u, CDDP_SHARDING_PREFETCH_PRE);
}

/* HSD-02: what was scattered goes on to the replicas before anything else is reduced. */
static void pass_on(cd_unit_law *l)
{
    const unit *u = l->scattered;
    l->scattered = NULL;
    if (u != NULL) post(l, u, &(posting){CDDP_OP_ALLREDUCE, u->wire, u->share, true});
}

/* L3, L4, L5 */
static void post_backward(cd_unit_law *l, unit *u)
{
    u->is_open = false;
    u->has_ended = true;
    l->passes++;
    if (u->trained > 0 && !(l->in_window && keeps(l))) release(l, u);
    prefetch_backward(l, u, CDDP_SHARDING_PREFETCH_POST);
    if (!u->has_gradient || l->in_window) return;
    u->has_gradient = false;
    if (u->whole == 0) return;
    pass_on(l);
    compare(l, u, true);
    if (is_cut(l) && u->share > 0) {
        const int64_t numel = u->share * (int64_t)l->mesh.shards;
        post(l, u, &(posting){CDDP_OP_REDUCE_SCATTER, u->wire, numel, false});
        l->scattered = l->mesh.replicas > 1 ? u : NULL;
    } else {
        const bool by_rows = l->settings.fsdp.layout == CDDP_SHARDING_CUT_ROWS;
        const int64_t numel = by_rows ? u->whole : u->numel;
        post(l, u, &(posting){CDDP_OP_ALLREDUCE, u->wire, numel, false});
    }
}

/* FSH-04: the root ends last. */
static void take_gradient(cd_unit_law *l, const touch *t)
{
    unit *u = &l->units[l->unit_of[t->parameter]];
    if (!u->is_open) return;
    u->has_gradient = u->has_gradient || t->is_defined;
    u->arrived++;
    if (u != l->units && u->arrived == u->trained) post_backward(l, u);
}

static void walk_backward(cd_unit_law *l, size_t at)
{
    if (l->units[0].may_go_back) pre_backward(l, &l->units[0]);
    for (; at < l->touch_count; at++) {
        const touch *t = &l->touches[at];
        unit *u = &l->units[l->unit_of[t->parameter]];
        if (t->kind == TOUCH_GRADIENT)
            take_gradient(l, t);
        else if (t->kind == TOUCH_BACKWARD && !u->is_open && !u->has_ended)
            pre_backward(l, u);
        exchange_statistics(l, t);
    }
    for (uint32_t i = l->left_count; i-- > 0;)
        if (l->units[l->left[i]].is_open) post_backward(l, &l->units[l->left[i]]);
    if (l->units[0].is_open) post_backward(l, &l->units[0]);
    pass_on(l);
    for (uint32_t k = 0; k < l->unit_count; k++) {
        unit *u = &l->units[k];
        if (!u->is_awaited || !(l->in_window && keeps(l))) release(l, u);
    }
    l->has_ended_backward = true;
    if (!l->in_window) l->has_ended_reductions = true;
    l->forward.is_recorded = true;
}

/* ---- a micro-step ---- */

static void begin(cd_unit_law *l, const cd_micro *micro, struct cddp_tracer *tracer)
{
    const cd_module *module = l->replica->model->module;
    cd_own_begin_step(l->replica, l->rank, micro->place.step);
    l->tracer = tracer;
    l->place = micro->place;
    l->position = l->passes = l->moves = 0;
    l->touch_count = l->forward.at = 0;
    l->post_forward_count = l->left_count = 0;
    l->needs_gradients = false;
    l->in_window = !micro->sync;
    l->peak = l->reserved = l->live;
    l->free_count = 0;
    l->pending = l->unseen = l->waits = 0; /* gathers come behind all of the iteration before */
    for (uint32_t k = 0; k < l->unit_count; k++) {
        unit *u = &l->units[k];
        u->may_go_back = u->may_be_prefetched = u->is_open = u->has_ended = false;
        u->trained = u->arrived = 0;
        u->moves = 0;
        u->position = -1;
        if (micro->place.micro_step == 0) u->has_gradient = false; /* dropped after the step */
    }
    for (size_t i = 0; i < module->parameter_count; i++)
        l->units[l->unit_of[i]].trained += module->parameters[i].requires_grad;
}

/* One forward and one backward, as those of the rank. */
static cddp_status run_pass(cd_unit_law *l, const cd_micro *micro, cddp_error *err)
{
    cd_micro_batch samples;
    cd_module *module = l->replica->model->module;
    CD_TRY(cd_samples_fill(l->samples, &l->settings, micro, &samples, err));
    cd_pass pass = {.micro = micro,
                    .samples = &samples,
                    .count = micro->samples,
                    .loss_scale = 1.0};
    cd_graph_begin(l->replica->graph);
    CD_TRY(cd_own_forward(l->replica, &l->settings, &pass, err));
    CD_TRY(cd_own_loss(l->replica, &pass, err));
    CD_TRY(cd_own_backward(l->replica, micro, pass.losses, pass.loss_count, false, err));
    return CD_PASS(cd_module_zero_grad(module, CD_ZERO_GRAD_TO_NONE, err));
}

/* False: which exchanges of backward are of a forward is unknown. A layer runs once, and perhaps
** once again in backward. */
static bool count_exchanges(cd_unit_law *l)
{
    bool is_derived = true;
    const size_t count = l->replica->model->module->parameter_count;
    for (size_t i = 0; i < count; i++)
        l->exchanges[i].forwards = l->exchanges[i].backwards = l->exchanges[i].exchanged = 0;
    for (size_t i = 0; i < l->touch_count; i++) {
        exchange *x = &l->exchanges[l->touches[i].parameter];
        x->forwards += l->touches[i].kind == TOUCH_FORWARD;
        x->backwards += l->touches[i].kind == TOUCH_BACKWARD;
    }
    for (size_t i = 0; i < count; i++) {
        const exchange *x = &l->exchanges[i];
        const bool is_twice = x->forwards == 1 && x->backwards == 2;
        is_derived &= x->name == NULL || x->backwards <= x->forwards || is_twice;
    }
    return is_derived;
}

/* Why nothing is derived; NULL: it is. */
static const char *find_gap(const cd_unit_law *l, const cd_micro *micro)
{
    if (micro->forwards != 1 || micro->backwards != 1 || micro->loss_each)
        return "the units of a micro-step with several forwards or backwards";
    for (size_t i = 0; i < l->plan->collective_count; i++)
        if (l->plan->collectives[i].place == CDDP_PLACE_BEFORE_BACKWARD)
            return "the units of a micro-step with a collective of the program inside";
    if (l->unit_count > 1 && l->replica->model->routes_by_values)
        return "units that run for the samples that chose them";
    return NULL;
}

cddp_status cd_unit_law_emit(cd_unit_law *l, const cd_micro *micro, struct cddp_tracer *tracer,
                             cddp_error *err)
{
    const char *gap = find_gap(l, micro);
    size_t at = 0;
    if (!cd_planned_contributes(micro)) return CDDP_OK;
    if (cd_planned_is_resumed(&l->settings, micro->place.step)) CD_TRY(begin_anew(l, err));
    if (gap != NULL) {
        cd_decisions_give_up(tracer, 1, gap);
        return CDDP_OK;
    }
    begin(l, micro, tracer);
    CD_TRY(run_pass(l, micro, err));
    if (!count_exchanges(l)) {
        cd_decisions_give_up(tracer, 1, "the exchanges of a batch norm that runs several times");
        return CDDP_OK;
    }
    CD_TRY(walk_forward(l, &at, err));
    walk_backward(l, at);
    if (l->lacks_memory) return cd_fail_memory(err, "the reductions of rank %u", l->rank);
    CD_EMIT(tracer, planned_units, NULL, .at_step = l->place.step, .at_micro = l->place.micro_step,
            .count = l->position, .peak = l->peak, .left = l->live, .moves = l->moves,
            .reserved = has_streams(l) ? l->reserved : 0, .waits = l->waits);
    return CDDP_OK;
}
