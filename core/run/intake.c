/* SPDX-License-Identifier: Apache-2.0 */
/* From what a trainer shows to what the judge observes. Nothing is decided here: each function
** copies its values, fills the struct of its moment, and calls the referee.
*/
#include "core/run/intake.h"

#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/reference/optimized.h"
#include "core/reference/optimizer_bytes.h"
#include "core/run/reductions.h"
#include "core/trace/points.h"

#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 12)

/* The copies of one moment, which the referee borrows until that moment comes again. */
typedef struct copies {
    cd_tensor_copies parameters, buffers, slots;
    cd_tensor_copies optimized; /* slots, parameter by parameter */
    cd_gradient_copies gradients;
} copies;

struct cd_intake {
    cd_arena memory; /* of the intake itself and its arrays */
    cd_intake_options options;
    const cddp_allocator *allocator;
    cd_watcher watcher;
    cd_recall_rank recall; /* its referee is NULL until the trainer opens */
    bool is_open;          /* the trainer has opened */
    bool is_plain;         /* the model's device copies and hashes at once, and in no time */
    size_t parameter_count, buffer_count, slot_count;
    copies look, begin, evaluated, forward, reduced, clips, before, updated, finish;
    cd_gradient_copies local;    /* (parameter_count) */
    cd_tensor_copies output;     /* of a collective */
    cd_tensor_copies bucket;     /* on its way through a hook */
    cd_tensor_copies travelling; /* of an all-reduce of a hook */
    cd_numbers numbers;          /* of the result of a reduction */
    double *operands;            /* (operand_room) of all its members */
    size_t operand_room;
    cd_blob optimizer_state;        /* before an update */
    cddp_tensor *slots;             /* (slot_count) the run's, to be copied */
    int32_t *slot_parameters;       /* (slot_count) */
    cd_oracle_optimized *optimized; /* (optimized_count) scratch, and then what is observed */
    size_t optimized_count;
};

/* ---- copies ---- */

static void init_copies(const cd_intake *n, copies *c)
{
    c->parameters.allocator = c->buffers.allocator = c->slots.allocator = c->optimized.allocator =
        n->allocator;
    c->gradients = (cd_gradient_copies){.allocator = n->allocator, .count = n->parameter_count};
}

static void fini_copies(copies *c)
{
    cd_tensor_copies_fini(&c->parameters);
    cd_tensor_copies_fini(&c->buffers);
    cd_tensor_copies_fini(&c->slots);
    cd_tensor_copies_fini(&c->optimized);
    cd_gradient_copies_fini(&c->gradients);
}

/* Where nobody judges, what is observed is digested before the run goes on, and needs no copy. */
static bool is_borrowing(const cd_intake *n)
{
    return n->is_plain && n->options.recall != NULL && cd_recall_looks(n->options.recall);
}

static cddp_status copy_tensors(const cd_intake *n, cd_tensor_copies *into,
                                const cddp_tensor *theirs, cd_observed_tensors *observed,
                                cddp_error *err)
{
    const size_t count = observed->count;
    if (!is_borrowing(n)) CD_TRY(cd_tensor_copies_take(into, theirs, count, err));
    observed->items = is_borrowing(n) ? theirs : into->items;
    return CDDP_OK;
}

static cddp_status copy_parameters(const cd_intake *n, copies *c, const cddp_tensor *parameters,
                                   cd_observed_tensors *observed, cddp_error *err)
{
    observed->count = n->parameter_count;
    return CD_PASS(copy_tensors(n, &c->parameters, parameters, observed, err));
}

static cddp_status copy_buffers(const cd_intake *n, copies *c, const cddp_tensor *buffers,
                                cd_observed_tensors *observed, cddp_error *err)
{
    observed->count = n->buffer_count;
    return CD_PASS(copy_tensors(n, &c->buffers, buffers, observed, err));
}

static cddp_status copy_gradients(const cd_intake *n, copies *c, const cddp_grad *gradients,
                                  cd_observed_gradients *observed, cddp_error *err)
{
    *observed = (cd_observed_gradients){gradients, c->gradients.count};
    if (is_borrowing(n)) return CDDP_OK;
    for (size_t i = 0; i < c->gradients.count; i++)
        CD_TRY(cd_gradient_copies_take(&c->gradients, i, &gradients[i], err));
    observed->items = c->gradients.items;
    return CDDP_OK;
}

/* Every optimizer's state of every parameter that it has here. */
static cddp_status copy_optimized(cd_intake *n, copies *c, const cd_replica *replica,
                                  cd_observed_optimized *observed, cddp_error *err)
{
    const size_t slots = CD_FORMULA_SLOTS_MAX;
    const cd_arena_mark mark = cd_arena_get_mark(&n->memory);
    cddp_tensor *theirs =
        cd_arena_array(&n->memory, n->optimized_count * slots + 1, sizeof *theirs);
    CD_TRY(cd_arena_check(&n->memory, err, "the state of %zu parameters", n->optimized_count));
    cd_optimized_collect(replica, n->optimized);
    *observed = (cd_observed_optimized){n->optimized, n->optimized_count};
    if (is_borrowing(n)) {
        cd_arena_rewind(&n->memory, mark);
        return CDDP_OK;
    }
    for (size_t i = 0; i < n->optimized_count; i++)
        for (size_t s = 0; s < slots; s++) theirs[i * slots + s] = n->optimized[i].slots[s];
    CD_TRY(cd_tensor_copies_take(&c->optimized, theirs, n->optimized_count * slots, err));
    cd_arena_rewind(&n->memory, mark);
    for (size_t i = 0; i < n->optimized_count; i++)
        for (size_t s = 0; s < slots; s++)
            n->optimized[i].slots[s] = c->optimized.items[i * slots + s];
    return CDDP_OK;
}

/* ---- opening ---- */

static cddp_status make_room(cd_intake *n, const cd_watched_model *model, cddp_error *err)
{
    const cd_module *module = model->replica->model->module;
    n->parameter_count = module->parameter_count;
    n->buffer_count = module->buffer_count;
    n->slot_count = cd_replica_slot_count(model->replica);
    n->slots = cd_arena_array(&n->memory, n->slot_count + 1, sizeof *n->slots);
    n->slot_parameters = cd_arena_array(&n->memory, n->slot_count + 1, sizeof *n->slot_parameters);
    n->optimized_count = cd_optimized_count(model->replica);
    n->optimized = cd_arena_array(&n->memory, n->optimized_count + 1, sizeof *n->optimized);
    n->recall =
        (cd_recall_rank){.recall = n->options.recall,
                         .tracer = n->options.tracer,
                         .rank = n->options.rank->rank,
                         .before = n->options.rank->rank | (uint64_t)n->options.wrapper << 32,
                         .parameter_count = n->parameter_count};
    n->recall.arrivals =
        cd_arena_array(&n->memory, n->parameter_count + 1, sizeof *n->recall.arrivals);
    CD_TRY(cd_arena_check(&n->memory, err, "the intake of rank %u", n->options.rank->rank));
    CD_TRY(cd_recall_reads_init(&n->recall.reads, &n->memory,
                                2 * n->parameter_count + n->buffer_count, err));
    if (n->options.recall != NULL && !CD_POINTS_STRIKE) n->watcher.reader = &n->recall.reads.reader;
    copies *const all[] = {&n->look,  &n->begin,  &n->evaluated, &n->forward, &n->reduced,
                           &n->clips, &n->before, &n->updated,   &n->finish};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) init_copies(n, all[i]);
    n->local = (cd_gradient_copies){.allocator = n->allocator, .count = n->parameter_count};
    return CDDP_OK;
}

static cddp_status intake_open(void *self, const cd_watched_model *model, cddp_error *err)
{
    cd_intake *n = self;
    const cd_referee_options options = {.plan = n->options.plan,
                                        .whole = n->options.whole,
                                        .wrapper = n->options.wrapper,
                                        .rank = n->options.rank->rank,
                                        .device = model->device,
                                        .allocator = n->allocator,
                                        .tracer = n->options.tracer,
                                        .sums = n->options.sums,
                                        .share = n->options.share,
                                        .reference_share = n->options.reference_share};
    n->is_plain = model->device->digest == cddp_device_cpu()->digest;
    CD_TRY(make_room(n, model, err));
    if (cd_recall_judges(n->options.recall))
        CD_TRY(cd_referee_create(&options, &n->recall.referee, err));
    cd_observed_open observed = {.variables = {model->variables, n->parameter_count},
                                 .device_flags = model->device->flags};
    CD_POINT_TRACED(COUNT, "observed.open.device_flags", n->options.tracer, observed.device_flags);
    CD_POINT_TRACED(COUNT, "observed.open.variables", n->options.tracer,
                    *(int32_t *)observed.variables.items);
    CD_TRY(cd_recalled_open(&n->recall, &observed, err));
    n->is_open = true;
    return CDDP_OK;
}

/* ---- moments ---- */

static cddp_status take_begin(cd_intake *n, uint32_t step, const cd_watched_values *values,
                              cddp_error *err)
{
    cd_observed_begin observed = {.step = step};
    CD_TRY(copy_parameters(n, &n->begin, values->parameters, &observed.parameters, err));
    CD_TRY(copy_gradients(n, &n->begin, values->gradients, &observed.gradients, err));
    CD_POINT_TRACED(COUNT, "observed.begin.step", n->options.tracer, observed.step);
    CD_POINT_TRACED(TENSORS, "observed.begin.parameters", n->options.tracer,
                    observed.parameters.items, sizeof observed.parameters.items[0],
                    observed.parameters.count);
    CD_POINT_TRACED(GRADIENTS, "observed.begin.gradients", n->options.tracer,
                    (void *)observed.gradients.items, sizeof observed.gradients.items[0],
                    observed.gradients.count);
    CD_TRY(cd_recalled_begin(&n->recall, &observed, err));
    return CDDP_OK;
}

static cddp_status take_before_update(cd_intake *n, const cd_watched_moment *moment,
                                      cddp_error *err)
{
    cd_observed_before_update observed = {.optimizer_state = {&n->optimizer_state}};
    CD_TRY(copy_parameters(n, &n->before, moment->values.parameters, &observed.parameters, err));
    cd_blob_clear(&n->optimizer_state);
    if (!cd_replica_is_sharded(moment->replica)) /* else no reference could start from it */
        CD_TRY(cd_optimizer_bytes_push(moment->replica, &n->optimizer_state, err));
    CD_TRY(copy_optimized(n, &n->before, moment->replica, &observed.optimized, err));
    CD_POINT_TRACED(TENSORS, "observed.before_update.parameters", n->options.tracer,
                    observed.parameters.items, sizeof observed.parameters.items[0],
                    observed.parameters.count);
    if (n->optimizer_state.used > 0)
        CD_POINT_TRACED(COUNT, "observed.before_update.optimizer_state", n->options.tracer,
                        *((unsigned char *)observed.optimizer_state.blob->bytes +
                          observed.optimizer_state.blob->used - 1));
    CD_POINT_TRACED(TENSORS, "observed.before_update.optimized", n->options.tracer,
                    &observed.optimized.items->slots[0], sizeof *observed.optimized.items,
                    observed.optimized.count);
    CD_TRY(cd_recalled_before_update(&n->recall, &observed, err));
    return CDDP_OK;
}

static cddp_status take_forward(cd_intake *n, uint32_t micro_step, const cd_watched_values *values,
                                cddp_error *err)
{
    cd_observed_enter_forward observed = {.micro_step = micro_step};
    CD_TRY(copy_buffers(n, &n->forward, values->buffers, &observed.buffers, err));
    CD_POINT_TRACED(COUNT, "observed.enter_forward.micro_step", n->options.tracer,
                    observed.micro_step);
    CD_POINT_TRACED(TENSORS, "observed.enter_forward.buffers", n->options.tracer,
                    observed.buffers.items, sizeof observed.buffers.items[0],
                    observed.buffers.count);
    CD_TRY(cd_recalled_enter_forward(&n->recall, &observed, err));
    return CDDP_OK;
}

/* What the oracle judges from is what the trace shows of this moment. A reduction in the middle of
** a step begins another window. */
static cddp_status intake_look(void *self, const cd_watched_moment *moment, cddp_error *err)
{
    cd_intake *n = self;
    const int64_t at = moment->moment;
    const uint32_t micro_step = moment->micro != NULL ? moment->micro->place.micro_step : 0;
    cd_observed_look observed = {.moment = at,
                                 .step = moment->step,
                                 .micro_step = micro_step,
                                 .accumulates = moment->accumulates};
    if (moment->shown & CD_WATCHED_PARAMETERS)
        CD_TRY(copy_parameters(n, &n->look, moment->values.parameters, &observed.parameters, err));
    if (moment->shown & CD_WATCHED_GRADIENTS)
        CD_TRY(copy_gradients(n, &n->look, moment->values.gradients, &observed.gradients, err));
    if (moment->shown & CD_WATCHED_BUFFERS)
        CD_TRY(copy_buffers(n, &n->look, moment->values.buffers, &observed.buffers, err));
    CD_POINT_TRACED(COUNT, "observed.look.moment", n->options.tracer, observed.moment);
    CD_POINT_TRACED(COUNT, "observed.look.step", n->options.tracer, observed.step);
    CD_POINT_TRACED(COUNT, "observed.look.micro_step", n->options.tracer, observed.micro_step);
    CD_POINT_TRACED(FLAG, "observed.look.accumulates", n->options.tracer, observed.accumulates);
    CD_POINT_TRACED(TENSORS, "observed.look.parameters", n->options.tracer,
                    observed.parameters.items, sizeof observed.parameters.items[0],
                    observed.parameters.count);
    CD_POINT_TRACED(GRADIENTS, "observed.look.gradients", n->options.tracer,
                    (void *)observed.gradients.items, sizeof observed.gradients.items[0],
                    observed.gradients.count);
    CD_POINT_TRACED(TENSORS, "observed.look.buffers", n->options.tracer, observed.buffers.items,
                    sizeof observed.buffers.items[0], observed.buffers.count);
    CD_TRY(cd_recalled_look(&n->recall, &observed, err));
    if (at == CDDP_MOMENT_BEGIN || moment->begins_window)
        CD_TRY(take_begin(n, moment->step, &moment->values, err));
    if (at == CDDP_MOMENT_FORWARD) CD_TRY(take_forward(n, micro_step, &moment->values, err));
    if (at == CDDP_MOMENT_BEFORE_STEP) CD_TRY(take_before_update(n, moment, err));
    return CDDP_OK;
}

static cddp_status intake_evaluated(void *self, const cd_watched_evaluation *watched,
                                    cddp_error *err)
{
    cd_intake *n = self;
    cd_observed_evaluated observed = {.step = watched->step,
                                      .micro_step = watched->micro_step,
                                      .loss = watched->loss};
    CD_TRY(
        copy_parameters(n, &n->evaluated, watched->values.parameters, &observed.parameters, err));
    CD_TRY(copy_buffers(n, &n->evaluated, watched->values.buffers, &observed.buffers, err));
    CD_POINT_TRACED(COUNT, "observed.evaluated.step", n->options.tracer, observed.step);
    CD_POINT_TRACED(COUNT, "observed.evaluated.micro_step", n->options.tracer, observed.micro_step);
    CD_POINT_TRACED(TENSORS, "observed.evaluated.parameters", n->options.tracer,
                    observed.parameters.items, sizeof observed.parameters.items[0],
                    observed.parameters.count);
    CD_POINT_TRACED(TENSORS, "observed.evaluated.buffers", n->options.tracer,
                    observed.buffers.items, sizeof observed.buffers.items[0],
                    observed.buffers.count);
    CD_POINT_TRACED(NUMBER, "observed.evaluated.loss", n->options.tracer, observed.loss);
    CD_TRY(cd_recalled_evaluated(&n->recall, &observed, err));
    return CDDP_OK;
}

/* The layer computed these numbers for the call alone: nobody can write them meanwhile. */
static cddp_status intake_normalised(void *self, const cd_watched_statistics *used, cddp_error *err)
{
    cd_intake *n = self;
    cd_observed_normalised observed = {.step = used->step,
                                       .micro_step = used->micro_step,
                                       .exchange = used->exchange,
                                       .buffer = used->buffer,
                                       .mean = {used->mean, used->channels},
                                       .spread = {used->spread, used->channels}};
    CD_POINT_TRACED(COUNT, "observed.normalised.step", n->options.tracer, observed.step);
    CD_POINT_TRACED(COUNT, "observed.normalised.micro_step", n->options.tracer,
                    observed.micro_step);
    CD_POINT_TRACED(COUNT, "observed.normalised.exchange", n->options.tracer, observed.exchange);
    CD_POINT_TRACED(COUNT, "observed.normalised.buffer", n->options.tracer, observed.buffer);
    CD_POINT_TRACED(NUMBER, "observed.normalised.mean", n->options.tracer,
                    *(double *)observed.mean.items);
    CD_POINT_TRACED(NUMBER, "observed.normalised.spread", n->options.tracer,
                    *(double *)observed.spread.items);
    CD_TRY(cd_recalled_normalised(&n->recall, &observed, err));
    return CDDP_OK;
}

static cddp_status intake_accumulated(void *self, size_t parameter, const cddp_grad *gradient,
                                      cddp_error *err)
{
    cd_intake *n = self;
    if (!is_borrowing(n)) CD_TRY(cd_gradient_copies_take(&n->local, parameter, gradient, err));
    cd_observed_accumulated observed = {.parameter = parameter,
                                        .gradient = {is_borrowing(n) ? *gradient
                                                                     : n->local.items[parameter]}};
    CD_POINT_TRACED(COUNT, "observed.accumulated.parameter", n->options.tracer, observed.parameter);
    CD_POINT_TRACED(TENSOR, "observed.accumulated.gradient", n->options.tracer, parameter,
                    &observed.gradient.copy.value);
    n->recall.parameter = observed.parameter;
    CD_TRY(cd_recalled_accumulated(&n->recall, &observed, err));
    return CDDP_OK;
}

static cd_observed_hook observe_hook(const cddp_hook *hook)
{
    return (cd_observed_hook){hook != NULL, hook != NULL ? hook->flags : 0};
}

static cddp_status intake_reduced(void *self, const cd_watched_reduction *watched, cddp_error *err)
{
    cd_intake *n = self;
    cd_observed_reduced observed = {.step = watched->micro->place.step,
                                    .micro_step = watched->micro->place.micro_step,
                                    .hook = observe_hook(watched->hook),
                                    .inner_hook = observe_hook(watched->inner_hook),
                                    .divides_after = watched->divides_after,
                                    .wire = watched->wire,
                                    .block_count = watched->block_count};
    CD_TRY(copy_gradients(n, &n->reduced, watched->values.gradients, &observed.gradients, err));
    CD_TRY(copy_buffers(n, &n->reduced, watched->values.buffers, &observed.buffers, err));
    CD_POINT_TRACED(COUNT, "observed.reduced.step", n->options.tracer, observed.step);
    CD_POINT_TRACED(COUNT, "observed.reduced.micro_step", n->options.tracer, observed.micro_step);
    CD_POINT_TRACED(FLAG, "observed.reduced.hook", n->options.tracer, observed.hook.is_present);
    CD_POINT_TRACED(FLAG, "observed.reduced.inner_hook", n->options.tracer,
                    observed.inner_hook.is_present);
    CD_POINT_TRACED(FLAG, "observed.reduced.divides_after", n->options.tracer,
                    observed.divides_after);
    CD_POINT_TRACED(COUNT, "observed.reduced.wire", n->options.tracer, observed.wire);
    CD_POINT_TRACED(COUNT, "observed.reduced.block_count", n->options.tracer, observed.block_count);
    CD_POINT_TRACED(GRADIENTS, "observed.reduced.gradients", n->options.tracer,
                    (void *)observed.gradients.items, sizeof observed.gradients.items[0],
                    observed.gradients.count);
    CD_POINT_TRACED(TENSORS, "observed.reduced.buffers", n->options.tracer, observed.buffers.items,
                    sizeof observed.buffers.items[0], observed.buffers.count);
    CD_TRY(cd_recalled_reduced(&n->recall, &observed, err));
    return CDDP_OK;
}

/* The layout cannot change during the call; the numbers are copied. */
static cddp_status intake_transferred(void *self, const cd_watched_transfer *watched,
                                      cddp_error *err)
{
    cd_intake *n = self;
    const cd_observed_places places = {watched->variables, watched->offsets, watched->lengths,
                                       watched->count};
    cd_observed_tensors flat = {NULL, 1};
    CD_TRY(copy_tensors(n, &n->bucket, watched->flat, &flat, err));
    cd_observed_leaves leaves = {.bucket = watched->bucket,
                                 .generation = watched->generation,
                                 .is_last = watched->is_last,
                                 .is_shadow = watched->is_shadow,
                                 .places = places,
                                 .hook = {true, watched->hook_flags},
                                 .wire = watched->wire,
                                 .flat = {flat.items[0]}};
    cd_observed_returns returns = {.bucket = watched->bucket,
                                   .generation = watched->generation,
                                   .is_shadow = watched->is_shadow,
                                   .places = places,
                                   .flat = {flat.items[0]}};
    if (watched->is_result) {
        CD_POINT_TRACED(COUNT, "observed.returns.bucket", n->options.tracer, returns.bucket);
        CD_POINT_TRACED(COUNT, "observed.returns.generation", n->options.tracer,
                        returns.generation);
        CD_POINT_TRACED(FLAG, "observed.returns.is_shadow", n->options.tracer, returns.is_shadow);
        if (CD_POINT_TRACED_SKIPS("observed.returns.places", n->options.tracer))
            returns.places.count = 0;
        CD_POINT_TRACED(TENSOR, "observed.returns.flat", n->options.tracer, returns.bucket,
                        &returns.flat.copy);
        return CD_PASS(cd_recalled_returns(&n->recall, &returns, err));
    }
    CD_POINT_TRACED(COUNT, "observed.leaves.bucket", n->options.tracer, leaves.bucket);
    CD_POINT_TRACED(COUNT, "observed.leaves.generation", n->options.tracer, leaves.generation);
    CD_POINT_TRACED(FLAG, "observed.leaves.is_last", n->options.tracer, leaves.is_last);
    CD_POINT_TRACED(FLAG, "observed.leaves.is_shadow", n->options.tracer, leaves.is_shadow);
    if (CD_POINT_TRACED_SKIPS("observed.leaves.places", n->options.tracer)) leaves.places.count = 0;
    CD_POINT_TRACED(FLAG, "observed.leaves.hook", n->options.tracer, leaves.hook.is_present);
    CD_POINT_TRACED(COUNT, "observed.leaves.wire", n->options.tracer, leaves.wire);
    CD_POINT_TRACED(TENSOR, "observed.leaves.flat", n->options.tracer, leaves.bucket,
                    &leaves.flat.copy);
    return CD_PASS(cd_recalled_leaves(&n->recall, &leaves, err));
}

static cddp_status intake_travelled(void *self, const cd_watched_travel *watched, cddp_error *err)
{
    cd_intake *n = self;
    cd_observed_tensors numbers = {NULL, 1};
    CD_TRY(copy_tensors(n, &n->travelling, watched->numbers, &numbers, err));
    cd_observed_travels travels = {watched->bucket, watched->is_result, {numbers.items[0]}};
    CD_POINT_TRACED(COUNT, "observed.travels.bucket", n->options.tracer, travels.bucket);
    CD_POINT_TRACED(FLAG, "observed.travels.is_result", n->options.tracer, travels.is_result);
    CD_POINT_TRACED(TENSOR, "observed.travels.numbers", n->options.tracer, travels.bucket,
                    &travels.numbers.copy);
    return CD_PASS(cd_recalled_travels(&n->recall, &travels, err));
}

/* A sum whose operands nobody here knows. In a half type its bound is wide, and of few ranks the
** reference has the operands where gradients are summed; in f32 the bound is narrow. */
static void report_unknown(const cd_intake *n, const cd_tracer_reduction *r)
{
    const cddp_dtype dtype = r->numbers != NULL ? r->numbers->dtype : CDDP_DTYPE_COUNT;
    const bool is_half = dtype == CDDP_F16 || dtype == CDDP_BF16;
    if ((!is_half && dtype != CDDP_F32) || r->members < 2) return;
    if (is_half && r->members > CD_ANY_ORDER_ADDENDS_MAX)
        CD_EMIT(n->options.tracer, unjudged,
                "of a sum in a half type the other ranks' operands are not known here: its bound",
                .link = CDDP_LINK_SUM, .count = 1);
    else if (is_half)
        CD_EMIT(n->options.tracer, unjudged,
                CD_TRACER_SUM_UNKNOWN "a half type of few ranks: only as the ends of every order",
                .link = CDDP_LINK_NONE, .count = 1);
    else
        CD_EMIT(n->options.tracer, unjudged,
                CD_TRACER_SUM_UNKNOWN "f32 whose operands are not known here: only its bound",
                .link = CDDP_LINK_NONE, .count = 1);
}

/* See cd_reductions. The operands live there until the last member leaves. */
static cddp_status end_sum(cd_intake *n, const cd_tracer_reduction *r, cddp_error *err)
{
    cd_reduction_operands all;
    /* what is gathered is equal on all members (I-COLL, C1): one of them is enough */
    if (r->gathers && r->member != r->sequence % r->members) return CDDP_OK;
    if (r->numbers == NULL) return CDDP_OK;
    CD_TRY(cd_reductions_find(n->options.reductions, r, &all, err));
    if (all.operands == NULL) {
        if (!r->gathers) report_unknown(n, r);
        return CDDP_OK;
    }
    const size_t count = all.count * r->members;
    CD_TRY(cd_numbers_read(&n->numbers, r->numbers, err));
    if (!cd_vec_grow(n->allocator, (void **)&n->operands, &n->operand_room, count + 1,
                     sizeof *n->operands))
        return cd_fail_memory(err, "the operands of a reduction of %u ranks", r->members);
    memcpy(n->operands, all.operands, count * sizeof *n->operands);
    cd_observed_summed summed = {.averages = r->op == CDDP_RED_AVG,
                                 .scatters = r->scatters,
                                 .gathers = r->gathers,
                                 .member = r->member,
                                 .members = r->members,
                                 .dtype = all.dtype,
                                 .stride = all.stride,
                                 .operands = {n->operands, count},
                                 .result = {n->numbers.values, n->numbers.count}};
    CD_POINT_TRACED(FLAG, "observed.summed.averages", n->options.tracer, summed.averages);
    CD_POINT_TRACED(FLAG, "observed.summed.scatters", n->options.tracer, summed.scatters);
    CD_POINT_TRACED(FLAG, "observed.summed.gathers", n->options.tracer, summed.gathers);
    CD_POINT_TRACED(COUNT, "observed.summed.member", n->options.tracer, summed.member);
    CD_POINT_TRACED(COUNT, "observed.summed.members", n->options.tracer, summed.members);
    CD_POINT_TRACED(COUNT, "observed.summed.dtype", n->options.tracer, summed.dtype);
    CD_POINT_TRACED(COUNT, "observed.summed.stride", n->options.tracer, summed.stride);
    CD_POINT_TRACED(NUMBER, "observed.summed.operands", n->options.tracer,
                    *(double *)summed.operands.items);
    CD_POINT_TRACED(NUMBER, "observed.summed.result", n->options.tracer,
                    *(double *)summed.result.items);
    return CD_PASS(cd_recalled_summed(&n->recall, &summed, err));
}

static cddp_status intake_summed(void *self, const cd_tracer_reduction *reduction, cddp_error *err)
{
    cd_intake *n = self;
    if (!n->is_open) return CDDP_OK;
    if (n->options.reductions == NULL) {
        if (reduction->is_result) report_unknown(n, reduction);
        return CDDP_OK;
    }
    if (!reduction->is_result)
        return CD_PASS(cd_reductions_post(n->options.reductions, reduction, err));
    const cddp_status status = end_sum(n, reduction, err);
    cd_reductions_leave(n->options.reductions, reduction);
    return status;
}

static cddp_status intake_clips(void *self, const cd_watched_norm *watched, cddp_error *err)
{
    cd_intake *n = self;
    cd_observed_clips observed = {.norm = watched->norm,
                                  .ranks = {watched->ranks, watched->rank_count}};
    CD_TRY(copy_gradients(n, &n->clips, watched->values.gradients, &observed.gradients, err));
    CD_POINT_TRACED(GRADIENTS, "observed.clips.gradients", n->options.tracer,
                    (void *)observed.gradients.items, sizeof observed.gradients.items[0],
                    observed.gradients.count);
    CD_POINT_TRACED(NUMBER, "observed.clips.norm", n->options.tracer, observed.norm);
    CD_POINT_TRACED(COUNT, "observed.clips.ranks", n->options.tracer,
                    *(uint32_t *)observed.ranks.items);
    CD_TRY(cd_recalled_clips(&n->recall, &observed, err));
    return CDDP_OK;
}

static cddp_status intake_assigned(void *self, const cd_watched_bucket *watched, size_t count,
                                   cddp_error *err)
{
    cd_intake *n = self;
    const cd_arena_mark mark = cd_arena_get_mark(&n->memory);
    cd_observed_bucket *buckets = cd_arena_array(&n->memory, count + 1, sizeof *buckets);
    CD_TRY(cd_arena_check(&n->memory, err, "%zu buckets", count));
    for (size_t b = 0; b < count; b++)
        buckets[b] = (cd_observed_bucket){watched[b].parameters, watched[b].count};
    cd_observed_assigned observed = {.buckets = {buckets, count}};
    CD_POINT_TRACED(COUNT, "observed.assigned.buckets", n->options.tracer,
                    *(uint32_t *)observed.buckets.items[0].parameters);
    CD_TRY(cd_recalled_assigned(&n->recall, &observed, err));
    cd_arena_rewind(&n->memory, mark);
    return CDDP_OK;
}

static cddp_status intake_updated(void *self, const cd_watched_update *watched, cddp_error *err)
{
    cd_intake *n = self;
    cd_observed_updated observed = {.step = watched->step,
                                    .slot_parameters = {n->slot_parameters, n->slot_count}};
    cd_replica_get_slots(watched->replica, n->slots, n->slot_parameters);
    CD_TRY(copy_parameters(n, &n->updated, watched->values.parameters, &observed.parameters, err));
    CD_TRY(copy_gradients(n, &n->updated, watched->values.gradients, &observed.gradients, err));
    observed.slots.count = n->slot_count;
    CD_TRY(copy_tensors(n, &n->updated.slots, n->slots, &observed.slots, err));
    CD_TRY(copy_optimized(n, &n->updated, watched->replica, &observed.optimized, err));
    CD_POINT_TRACED(COUNT, "observed.updated.step", n->options.tracer, observed.step);
    CD_POINT_TRACED(TENSORS, "observed.updated.parameters", n->options.tracer,
                    observed.parameters.items, sizeof observed.parameters.items[0],
                    observed.parameters.count);
    CD_POINT_TRACED(GRADIENTS, "observed.updated.gradients", n->options.tracer,
                    (void *)observed.gradients.items, sizeof observed.gradients.items[0],
                    observed.gradients.count);
    CD_POINT_TRACED(TENSORS, "observed.updated.slots", n->options.tracer, observed.slots.items,
                    sizeof observed.slots.items[0], observed.slots.count);
    CD_POINT_TRACED(COUNT, "observed.updated.slot_parameters", n->options.tracer,
                    *(int32_t *)observed.slot_parameters.items);
    CD_POINT_TRACED(TENSORS, "observed.updated.optimized", n->options.tracer,
                    &observed.optimized.items->slots[0], sizeof *observed.optimized.items,
                    observed.optimized.count);
    CD_TRY(cd_recalled_updated(&n->recall, &observed, err));
    return CDDP_OK;
}

static cddp_status intake_exchanged(void *self, const cd_watched_collective *watched,
                                    cddp_error *err)
{
    cd_intake *n = self;
    cd_observed_tensors output = {NULL, 1};
    CD_TRY(copy_tensors(n, &n->output, watched->output, &output, err));
    cd_observed_exchanged observed = {.collective =
                                          (size_t)(watched->planned - n->options.plan->collectives),
                                      .member = watched->me,
                                      .output = {output.items[0]}};
    CD_POINT_TRACED(COUNT, "observed.exchanged.collective", n->options.tracer, observed.collective);
    CD_POINT_TRACED(COUNT, "observed.exchanged.member", n->options.tracer, observed.member);
    CD_POINT_TRACED(TENSOR, "observed.exchanged.output", n->options.tracer, 0,
                    &observed.output.copy);
    CD_TRY(cd_recalled_exchanged(&n->recall, &observed, err));
    return CDDP_OK;
}

static cddp_status intake_finish(void *self, const cd_watched_values *values, cddp_error *err)
{
    cd_intake *n = self;
    cd_observed_finish observed = {.parameters = {NULL, 0}};
    CD_TRY(copy_parameters(n, &n->finish, values->parameters, &observed.parameters, err));
    CD_POINT_TRACED(TENSORS, "observed.finish.parameters", n->options.tracer,
                    observed.parameters.items, sizeof observed.parameters.items[0],
                    observed.parameters.count);
    CD_TRY(cd_recalled_finish(&n->recall, &observed, err));
    return CDDP_OK;
}

static void intake_close(void *self)
{
    cd_intake *n = self;
    copies *const all[] = {&n->look,  &n->begin,  &n->evaluated, &n->forward, &n->reduced,
                           &n->clips, &n->before, &n->updated,   &n->finish};
    cd_recall_end(&n->recall);
    n->recall.recall = NULL;
    cd_referee_destroy(n->recall.referee);
    n->recall.referee = NULL;
    for (size_t i = 0; !is_borrowing(n) && i < sizeof all / sizeof all[0]; i++) fini_copies(all[i]);
    cd_gradient_copies_fini(&n->local);
    cd_tensor_copies_fini(&n->output);
    cd_tensor_copies_fini(&n->bucket);
    cd_tensor_copies_fini(&n->travelling);
    n->output.allocator = n->bucket.allocator = n->travelling.allocator = n->allocator;
    cd_blob_fini(&n->optimizer_state);
    cd_numbers_fini(&n->numbers);
    cd_release(n->allocator, n->operands, n->operand_room * sizeof *n->operands);
    n->operands = NULL;
    n->operand_room = 0;
}

static const cd_watcher_ops intake_ops = {.open = intake_open,
                                          .look = intake_look,
                                          .evaluated = intake_evaluated,
                                          .normalised = intake_normalised,
                                          .accumulated = intake_accumulated,
                                          .reduced = intake_reduced,
                                          .transferred = intake_transferred,
                                          .travelled = intake_travelled,
                                          .summed = intake_summed,
                                          .clips = intake_clips,
                                          .assigned = intake_assigned,
                                          .updated = intake_updated,
                                          .exchanged = intake_exchanged,
                                          .finish = intake_finish,
                                          .close = intake_close};

/* ---- life ---- */

cddp_status cd_intake_create(const cd_intake_options *options, cd_intake **intake, cddp_error *err)
{
    const cddp_allocator *allocator = options->rank->allocator;
    cd_arena memory;
    cd_arena_init(&memory, allocator, MEMORY_BLOCK_BYTES);
    cd_intake *n = cd_arena_push(&memory, sizeof *n);
    CD_TRY(cd_arena_check(&memory, err, "the intake of rank %u", options->rank->rank));
    n->memory = memory;
    n->options = *options;
    n->numbers.allocator = allocator;
    n->allocator = n->output.allocator = n->bucket.allocator = n->travelling.allocator =
        n->optimizer_state.allocator = allocator;
    n->watcher = (cd_watcher){&intake_ops, n, NULL};
    *intake = n;
    return CDDP_OK;
}

void cd_intake_destroy(cd_intake *n)
{
    if (n == NULL) return;
    intake_close(n);
    cd_arena_fini(&n->memory);
}

const cd_watcher *cd_intake_get_watcher(const cd_intake *intake) { return &intake->watcher; }
