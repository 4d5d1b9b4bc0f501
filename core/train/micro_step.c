/* SPDX-License-Identifier: Apache-2.0 */
/* One micro-step: forward, loss, backward, with the calls that the wrapper wants in between.
**
**     no_sync ─┐ forward_begin → model → graph search → forward_end → loss
**              │ backward → mark_ready … → backward_end
**              └─ as the plan says, forward and backward by themselves (FWD-03)
**
** The wrong programs of the zoo differ here in single flags: a forward that bypasses the wrapper, a
** backward that is run twice, one that is left in the middle.
*/
#include "core/train/trainer.h"

#include "core/base/error.h"
#include "core/train/points.h"
#include "core/model/accumulate.h"
#include "core/model/layers/shapes.h"
#include "core/model/optim/clip.h"

#include <string.h>

static cddp_status pass_time(cd_trainer *t, uint64_t duration_ns, const char *what, cddp_error *err)
{
    if (duration_ns > 0 && t->program.settings.train.offloaded)
        CD_TRY(t->rank->ops->sleep_ns(t->rank, duration_ns, err));
    else if (duration_ns > 0)
        CD_TRY(t->rank->ops->compute(t->rank, duration_ns, what, err));
    return CDDP_OK;
}

/* Of the backward of one gradient. */
static uint64_t backward_ns(const cd_trainer *t, uint32_t parameter)
{
    const uint64_t given_ns = t->program.settings.train.backward_us * 1000u;
    if (t->program.settings.train.backward_split == CDDP_BACKWARD_SPLIT_EACH ||
        t->backward_weights == 0)
        return given_ns;
    const double share =
        (double)cd_trainer_backward_weight(t, parameter) / (double)t->backward_weights;
    return (uint64_t)((double)given_ns * share + 0.5);
}

static cddp_status touch_buffers(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->buffer_count; i++)
        CD_TRY(cd_tensor_add_number(&module->buffers[i].tensor, t->rank->rank + 1.0, err));
    return CDDP_OK;
}

/* BUF-01: the module has other tensors from now on; the wrapper looks at what the module has. */
static cddp_status replace_buffers(cd_trainer *t, cddp_error *err)
{
    cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->buffer_count; i++) {
        CD_TRY(cd_module_replace_buffer(module, (uint32_t)i, err));
        const cddp_tensor buffer = cd_streams_queued(&t->streams, &module->buffers[i].tensor);
        CD_TRY(cddp_ddp_set_buffer(t->ddp, module->buffers[i].name, &buffer, err));
    }
    return CDDP_OK;
}

/* ---- forward ---- */

/* FWD-02: gives the wrapper which variables the outputs can reach, when it wants to know. */
cddp_status cd_trainer_end_forward(cd_trainer *t, cd_pass *pass, bool searches, cddp_error *err)
{
    if (t->sharding != NULL) return CD_PASS(cd_sharding_end_forward(t, &pass->outputs, err));
    if (!searches || !cddp_ddp_wants_graph_search(t->ddp)) {
        CD_TRY(cddp_ddp_forward_end(t->ddp, NULL, err));
        return CDDP_OK;
    }
    cd_value *produced[CD_MODEL_OUTPUTS_MAX];
    uint32_t places[CD_MODEL_OUTPUTS_MAX], count = 0;
    for (uint32_t i = 0; i < pass->outputs.count; i++) {
        if (pass->outputs.values[i] != NULL) {
            places[count] = i;
            produced[count++] = pass->outputs.values[i];
        }
    }
    CD_TRY(cd_graph_reachable(t->replica->graph, produced, count, t->search.reachable, err));
    const size_t parameter_count = cd_trainer_module(t)->parameter_count;
    for (size_t i = 0; i < parameter_count; i++) {
        if (t->parameters[i].variable != CD_NO_VARIABLE) {
            t->search.variables[t->parameters[i].variable] =
                t->search.reachable[i] && !t->replica->parameters[i].is_replaced;
        }
    }
    CD_TRY(cddp_ddp_forward_end(t->ddp, t->search.variables, err));
    CD_TRY(cd_sink(t->replica->graph, produced, count, err));
    for (uint32_t i = 0; i < count; i++) pass->outputs.values[places[i]] = produced[i];
    return CDDP_OK;
}

static bool has_gradients(const cd_trainer *t)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->parameter_count; i++)
        if (module->parameters[i].grad.kind != CDDP_GRAD_UNDEFINED) return true;
    return false;
}

static cddp_status read_generation(const cd_trainer *t, uint32_t *generation, cddp_error *err)
{
    cddp_bucket_info info = {.size = sizeof info};
    if (cddp_ddp_bucket_count(t->ddp) > 0) CD_TRY(cddp_ddp_bucket(t->ddp, 0, &info, err));
    *generation = info.generation;
    return CDDP_OK;
}

/* A rebuild moves the gradients that are there (REB-08). Mixed precision casts them, too: what they
** were then says nothing of what they must be. */
static cddp_status enter_wrapper(cd_trainer *t, const cd_micro *micro, cddp_error *err)
{
    const bool was_there = has_gradients(t) &&
                           t->program.settings.mixed_precision.param_dtype == CDDP_PARAM_DTYPE_NONE;
    uint32_t before = 0, after = 0;
    CD_TRY(read_generation(t, &before, err));
    CD_TRY(cddp_ddp_forward_begin(t->ddp, micro->grad_mode, err));
    CD_TRY(cd_streams_settle(&t->streams, err)); /* buffers were broadcast */
    CD_TRY(read_generation(t, &after, err));
    t->now.has_moved = was_there && after != before;
    if (t->now.has_moved) CD_POINT_GRADIENTS("rebuilt.gradient", t);
    return CDDP_OK;
}

static cddp_status run_forward(cd_trainer *t, cd_pass *pass, cddp_error *err)
{
    const cd_micro *micro = pass->micro;
    if (t->sharding != NULL)
        CD_TRY(cd_sharding_begin_forward(t, micro->grad_mode, err));
    else if (!micro->bypass)
        CD_TRY(enter_wrapper(t, micro, err));
    CD_POINT_BUFFERS("forward.buffer", t);
    CD_TRY(cd_trainer_show(t, CDDP_MOMENT_FORWARD, err));
    t->now.has_moved = false;
    cd_trainer_emit_samples(t, pass);
    CD_POINT_SAMPLES("data_shown", t, pass->samples);
    CD_TRY(pass_time(t, t->program.settings.train.forward_us * 1000u, "forward", err));
    t->replica->graph->grad_enabled = micro->grad_mode;
    CD_POINT_PARAMETERS("forward.parameter", t);
    CD_POINT_BUFFERS("forward_shown.buffer", t);
    pass->input_dtype = cd_sharding_input_dtype(t);
    t->now.is_in_forward = cd_micro_contributes(micro); /* else the reference does not run it */
    const cddp_status status = cd_replica_forward(t->replica, pass, err);
    t->now.is_in_forward = false;
    CD_TRY(status);
    CD_POINT_BUFFERS("after_forward.buffer", t);
    CD_TRY(cd_trainer_show(t, CDDP_MOMENT_AFTER_FORWARD, err));
    if (!micro->bypass) CD_TRY(cd_trainer_end_forward(t, pass, micro->grad_mode, err));
    if (micro->grad_mode) {
        CD_TRY(cd_replica_loss(t->replica, pass, err));
        CD_TRY(cd_trainer_emit_loss(t, pass, err));
    }
    cd_trainer_emit_consumed(t, pass);
    return CDDP_OK;
}

/* ---- backward ---- */

static cddp_status gradient_is_ready(void *context, uint32_t parameter, cddp_grad *grad,
                                     cddp_error *err)
{
    cd_trainer *t = context;
    const char *name = cd_trainer_module(t)->parameters[parameter].name;
    CD_TRY(pass_time(t, backward_ns(t, parameter), name, err));
    if (t->now.micro->await_producers && grad->kind == CDDP_GRAD_DENSE)
        CD_TRY(cd_streams_await(&t->streams, parameter, err));
    CD_TRY(cd_replica_make_ready(t->replica, t->now.micro, parameter, grad, err));
    if (t->program.settings.clip.place == CDDP_CLIP_BEFORE_REDUCTION &&
        grad->kind == CDDP_GRAD_DENSE)
        CD_TRY(cd_clip_grad_norm(&grad, 1, t->program.settings.clip.max_norm, NULL, err));
    if (grad->kind == CDDP_GRAD_DENSE)
        CD_INJECT_TENSOR("ready.gradient", t->rank->rank, t->now.step, parameter, &grad->value);
    t->now.gradient_count++;
    t->parameters[parameter].contributions += grad->kind != CDDP_GRAD_UNDEFINED;
    CD_TRY(cd_trainer_emit_gradient(t, parameter, grad, err));
    /* also of what the wrapper does not reduce, which has no digest here */
    if (t->view.watcher != NULL || cd_tracer_wants_digest(t->tracer))
        CD_TRY(cd_streams_look(&t->streams, err));
    if (t->view.watcher != NULL && !CD_POINT_SKIPS("shown.gradient", t)) {
        cddp_grad local;
        cd_streams_plain_grad(&t->streams, grad, &local);
        CD_TRY(t->view.watcher->ops->accumulated(t->view.watcher->self, parameter, &local, err));
    }
    if (grad->kind == CDDP_GRAD_DENSE)
        CD_INJECT_TENSOR("contributed.gradient", t->rank->rank, t->now.step, parameter,
                         &grad->value);
    if (t->sharding != NULL)
        CD_TRY(cd_sharding_ready(t, parameter, err));
    else if (!t->replica->parameters[parameter].is_replaced)
        CD_TRY(cddp_ddp_mark_parameter_ready(t->ddp, parameter, err));
    if (t->now.gradient_count == t->now.leaves_after) {
        return cd_fail(err, CDDP_E_ABORTED, "the plan leaves this backward after %u gradients",
                       t->now.gradient_count);
    }
    return CDDP_OK;
}

static uint32_t choose_ready(void *context, const uint64_t *options, uint32_t count)
{
    cd_trainer *t = context;
    cd_replica_offer(t->replica, (uint32_t)options[0]);
    const cddp_choice choice = {.size = sizeof choice,
                                .kind = CDDP_CHOICE_READY,
                                .rank = t->rank->rank,
                                .option_count = count,
                                .options = options,
                                .name = "ready"};
    return t->rank->ops->choose(t->rank, &choice);
}

static cddp_status fresh_gradient(void *context, uint32_t parameter, const cddp_tensor *dst,
                                  cddp_error *err)
{
    const cd_trainer *t = context;
    CD_TRY(cd_replica_write_atoms(t->now.micro, parameter, dst, err));
    return CDDP_OK;
}

static const cddp_tensor *forward_parameter(void *context, uint32_t parameter)
{
    const cd_trainer *t = context;
    const cddp_tensor *gathered = t->sharding != NULL ? cd_sharding_parameter(t, parameter) : NULL;
    if (gathered != NULL) return gathered;
    /* With streams the wrapper's tensor is the queued face of the same memory. */
    const bool asks_wrapper = t->ddp != NULL && t->streams.device == NULL;
    const cddp_tensor *copy = asks_wrapper ? cddp_ddp_forward_copy(t->ddp, parameter) : NULL;
    return copy != NULL ? copy : &cd_trainer_module(t)->parameters[parameter].tensor;
}

/* ---- synchronised batch norm ---- */

static cddp_status gather(const cd_trainer *t, const cddp_tensor *mine, const cddp_tensor *all,
                          cddp_error *err)
{
    cddp_work *work = NULL;
    CD_TRY(cddp_group_allgather(t->groups.world, mine, all, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    return CDDP_OK;
}

/* The planted defects: the exchange took place, and its result is not what is used. */
static cddp_status spoil_statistics(const cd_trainer *t, const cddp_tensor *mine,
                                    const cddp_tensor *all, cddp_error *err)
{
    const size_t width = (size_t)cddp_tensor_numel(mine), world = cddp_group_size(t->groups.world);
    double total = 0;
    cddp_tensor here;
    CD_TRY(
        cd_graph_host_tensor(t->replica->graph, CDDP_F64, all->sizes, all->dim_count, &here, err));
    double *rows = here.storage; /* (world, width) */
    const double *own = rows + t->rank->rank * width;
    CD_TRY(all->device->read(all, rows, world * width * sizeof *rows, err));
    for (size_t r = 0; r < world; r++) total += rows[r * width + width - 1];
    for (size_t r = 0; r < world; r++) {
        if (t->now.micro->statistics == CDDP_STATISTICS_OWN)
            memmove(rows + r * width, own, width * sizeof *rows);
        else
            rows[r * width + width - 1] = total / (double)world;
    }
    CD_TRY(all->device->write(all, rows, world * width * sizeof *rows, err));
    return CDDP_OK;
}

static cddp_status gather_statistics(void *context, const cddp_tensor *mine, const cddp_tensor *all,
                                     cddp_error *err)
{
    const cd_trainer *t = context;
    CD_TRY(gather(t, mine, all, err));
    if (t->now.micro->statistics != CDDP_STATISTICS_EXCHANGED)
        CD_TRY(spoil_statistics(t, mine, all, err));
    return CDDP_OK;
}

static cddp_status show_statistics(void *context, uint32_t buffer, const double *mean,
                                   const double *spread, int64_t channels, cddp_error *err)
{
    cd_trainer *t = context;
    const cd_watched_statistics used = {.step = t->now.step,
                                        .micro_step = t->now.micro->place.micro_step,
                                        .exchange = t->now.exchange_count++,
                                        .buffer = buffer,
                                        .mean = mean,
                                        .spread = spread,
                                        .channels = (size_t)channels};
    /* a checkpoint runs layers again in the backward */
    if (t->view.watcher != NULL && t->now.is_in_forward)
        CD_TRY(t->view.watcher->ops->normalised(t->view.watcher->self, &used, err));
    return CDDP_OK;
}

/* Every rank adds the others' sums itself, in rank order: the bits do not depend on how a backend
** would reduce. */
static cddp_status sum_statistics(void *context, const cddp_tensor *sums, cddp_error *err)
{
    const cd_trainer *t = context;
    const uint32_t world = cddp_group_size(t->groups.world);
    const int64_t width = cddp_tensor_numel(sums);
    cddp_tensor all;
    CD_TRY(cd_graph_tensor(t->replica->graph, CDDP_F64, (const int64_t[2]){world, width}, 2, &all,
                           err));
    CD_TRY(gather(t, sums, &all, err));
    if (t->now.micro->statistics == CDDP_STATISTICS_OWN) {
        CD_TRY(sums->device->scale(sums, sums, world, NULL, err));
        return CDDP_OK;
    }
    CD_TRY(sums->device->fill(sums, 0, NULL, err));
    for (uint32_t r = 0; r < world; r++) {
        const cddp_tensor row =
            cddp_tensor_of(all.device, all.storage, all.offset + r * width, CDDP_F64, &width, 1);
        CD_TRY(sums->device->reduce(CDDP_RED_SUM, sums, &row, NULL, err));
    }
    return CDDP_OK;
}

static cddp_status use_parameter(void *context, uint32_t parameter, bool in_backward,
                                 cddp_error *err)
{
    return CD_PASS(cd_sharding_use(context, parameter, in_backward, err));
}

static cddp_status cross_unit(void *context, cd_value *value, cd_value **read, cddp_error *err)
{
    return CD_PASS(cd_sharding_cross(context, value, read, err));
}

static cddp_stream *producer_of(void *context, uint32_t parameter)
{
    return cd_streams_producer(&((const cd_trainer *)context)->streams, parameter);
}

void cd_trainer_set_callbacks(cd_trainer *t)
{
    const cddp_plan_fsdp *f = &t->program.settings.fsdp;
    const bool is_sharded = f->enable;
    const bool may_cast = f->cast_forward_inputs || f->unit_precision.count > 0 ||
                          f->output_dtype != CDDP_SHARDING_OUTPUT_NONE;
    const cd_graph_callbacks callbacks = {.context = t,
                                          .rank_count = cddp_group_size(t->groups.world),
                                          .allgather = gather_statistics,
                                          .allreduce = sum_statistics,
                                          .combined =
                                              t->options.watcher != NULL ? show_statistics : NULL,
                                          .stream = producer_of,
                                          .ready = gradient_is_ready,
                                          .choose = choose_ready,
                                          .fresh = fresh_gradient,
                                          .forward_parameter = forward_parameter,
                                          .use = is_sharded ? use_parameter : NULL,
                                          .cross = is_sharded && may_cast ? cross_unit : NULL};
    cd_graph_set_callbacks(t->replica->graph, &callbacks);
}

static cddp_status end_backward(cd_trainer *t, const cd_micro *micro, cddp_error *err)
{
    if (micro->early_step) {
        CD_TRY(cd_trainer_update(t, micro, err));
        t->now.has_stepped = true;
    }
    CD_TRY(t->sharding != NULL ? cd_sharding_end_backward(t, err)
                               : cddp_ddp_backward_end(t->ddp, err));
    CD_TRY(cd_streams_settle(&t->streams, err));
    CD_TRY(cd_streams_settle_producers(&t->streams, err));
    return CDDP_OK;
}

static cddp_status run_backwards(cd_trainer *t, const cd_micro *micro,
                                 const cd_replica_losses *losses, cddp_error *err)
{
    for (uint32_t round = 0; round < micro->backwards; round++) {
        const bool retain = round + 1 < micro->backwards;
        for (uint32_t i = 0; i < losses->count; i += losses->together) {
            const bool is_last = i + losses->together >= losses->count;
            t->now.gradient_count = 0;
            CD_TRY(cd_streams_begin_backward(&t->streams, err));
            if (t->sharding != NULL) CD_TRY(cd_sharding_begin_backward(t, err));
            CD_TRY(cd_replica_backward(t->replica, micro, &losses->items[i], losses->together,
                                       retain || !is_last, err));
            CD_TRY(end_backward(t, micro, err));
        }
    }
    return CDDP_OK;
}

/* An exception in the middle of a backward that the program catches: it forgets the half-done
** reduction on every rank (UPG-02), drops what was accumulated and goes on with the next step. */
static cddp_status leave_backward(cd_trainer *t, cddp_error *err)
{
    cd_trainer_emit_mark(t, "backward_left_early", t->now.gradient_count);
    CD_TRY(cd_streams_settle_producers(&t->streams, err));
    CD_TRY(cddp_ddp_update_process_group(t->ddp, t->groups.wrapped, err));
    t->now.has_stepped = true; /* nothing to step with */
    t->now.was_left = true;
    return CDDP_OK;
}

static cddp_status run_backward(cd_trainer *t, const cd_micro *micro,
                                const cd_replica_losses *losses, cddp_error *err)
{
    if (!cd_micro_contributes(micro)) return CDDP_OK;
    CD_TRY(cd_trainer_emit_entry(t, err));
    const cddp_status status = run_backwards(t, micro, losses, err);
    if (status == CDDP_E_ABORTED && t->now.leaves_after > 0 &&
        t->now.gradient_count == t->now.leaves_after) {
        cd_error_reset(err);
        CD_TRY(leave_backward(t, err));
        return CDDP_OK;
    }
    return status;
}

/* ---- the whole ---- */

static cddp_status run_forwards(cd_trainer *t, const cd_micro *micro, const cd_micro_batch *samples,
                                cd_replica_losses *losses, cddp_error *err)
{
    cd_graph_begin(t->replica->graph);
    *losses = (cd_replica_losses){.count = 0};
    t->now.exchange_count = 0;
    for (uint32_t f = 0; f < micro->forwards; f++) {
        cd_pass pass = {.micro = micro,
                        .samples = samples,
                        .first = f * micro->samples,
                        .count = micro->samples,
                        .loss_scale = t->scaling.scale};
        CD_TRY(cd_loss_divisor_find(&t->divisor, &pass, err));
        CD_POINT_NUMBER("forward.divisor", t, pass.divisor);
        if (pass.has_terms) {
            CD_POINT_NUMBER("forward.output_divisor", t, pass.terms[0].divisor);
            CD_POINT_NUMBER("forward.output_weight", t, pass.terms[0].weight);
        }
        CD_POINT_NUMBER("forward.loss_scale", t, pass.loss_scale);
        CD_TRY(run_forward(t, &pass, err));
        cd_replica_add_losses(&pass, losses);
    }
    return CDDP_OK;
}

static bool is_last_micro(const cd_trainer *t, const cd_micro *micro)
{
    return micro->place.micro_step + 1 == t->program.settings.train.micro_steps;
}

/* The inner contexts are left at once: the outer one then counts as if they had not been
** (NSY-01). */
static void enter_no_sync(cd_trainer *t, uint32_t depth)
{
    for (uint32_t i = 0; i < depth; i++) cddp_ddp_no_sync_begin(t->ddp);
    for (uint32_t i = 1; i < depth; i++) cddp_ddp_no_sync_end(t->ddp);
}

/* Everything before the backward. */
static cddp_status begin_micro(cd_trainer *t, const cd_micro *micro, cd_replica_losses *losses,
                               cddp_error *err)
{
    cd_micro_batch samples;
    const bool is_last = is_last_micro(t, micro);
    CD_TRY(cd_sampler_get(t->program.sampler, micro, &samples, err));
    CD_POINT_SAMPLES("data", t, &samples);
    CD_TRY(pass_time(t, micro->compute_us * 1000u, "extra", err));
    if (micro->touch_buffers) CD_TRY(touch_buffers(t, err));
    if (micro->replace_buffers) CD_TRY(replace_buffers(t, err));
    CD_TRY(cd_trainer_evaluate(t, micro, &samples, err));
    if (is_last) CD_TRY(cd_trainer_run_collectives(t, CDDP_PLACE_BEFORE_FORWARD, err));
    if (!micro->sync && t->sharding != NULL)
        CD_TRY(cd_sharding_enter_no_sync(t, err));
    else if (!micro->sync)
        enter_no_sync(t, micro->no_sync_depth);
    CD_TRY(run_forwards(t, micro, &samples, losses, err));
    if (!micro->sync && micro->sync_backward)
        cddp_ddp_no_sync_end(t->ddp);
    else if (micro->sync && !micro->sync_backward)
        cddp_ddp_no_sync_begin(t->ddp);
    if (is_last) CD_TRY(cd_trainer_run_collectives(t, CDDP_PLACE_BEFORE_BACKWARD, err));
    return CDDP_OK;
}

/* A layer that runs again in the backward moves buffers there. */
static cddp_status show_accumulation(cd_trainer *t, cddp_error *err)
{
    t->now.accumulates = true;
    const cddp_status status = cd_trainer_show(t, CDDP_MOMENT_AFTER_BACKWARD, err);
    t->now.accumulates = false;
    return CD_PASS(status);
}

/* Everything behind it. */
static cddp_status end_micro(cd_trainer *t, const cd_micro *micro, cddp_error *err)
{
    if (!micro->sync_backward && t->sharding != NULL)
        CD_TRY(cd_sharding_leave_no_sync(t, err));
    else if (!micro->sync_backward)
        cddp_ddp_no_sync_end(t->ddp);
    if (is_last_micro(t, micro))
        CD_TRY(cd_trainer_run_collectives(t, CDDP_PLACE_AFTER_BACKWARD, err));
    else if (micro->sync && cd_micro_contributes(micro) && !t->now.was_left)
        CD_TRY(cd_trainer_close_window(t, micro, err));
    else if (cd_trainer_module(t)->buffer_count > 0)
        CD_TRY(show_accumulation(t, err));
    return CDDP_OK;
}

cddp_status cd_trainer_run_micro(cd_trainer *t, const cd_micro *micro, cddp_error *err)
{
    cd_replica_losses losses;
    t->now.micro = micro;
    t->now.gradient_count = 0;
    t->now.leaves_after = micro->abort_after;
    CD_POINT_COUNT("micro.leaves_after", t, t->now.leaves_after);
    t->now.was_left = false;
    if (micro->skip == CDDP_SKIP_ALL) {
        cd_trainer_emit_mark(t, "micro_step_skipped", 1);
        return CDDP_OK;
    }
    CD_TRY(begin_micro(t, micro, &losses, err));
    if (!CD_POINT_SKIPS("micro.backward", t)) CD_TRY(run_backward(t, micro, &losses, err));
    CD_POINT_PARAMETERS("after_backward.parameter", t);
    CD_TRY(end_micro(t, micro, err));
    return CDDP_OK;
}

/* ---- in pieces ---- */

typedef struct collection {
    cd_firing *firings; /* (capacity) */
    size_t count, capacity;
} collection;

static cddp_status collect_firing(void *context, uint32_t parameter, const cd_gradient *arrived,
                                  cddp_error *err)
{
    collection *c = ((const cd_trainer *)context)->now.collection;
    if (c->count == c->capacity)
        return cd_fail(err, CDDP_E_LIMIT, "a backward fires more than %zu times", c->capacity);
    if (c->count == 0) cd_replica_offer(((const cd_trainer *)context)->replica, parameter);
    c->firings[c->count++] = (cd_firing){.parameter = parameter, .kind = arrived->kind};
    return CDDP_OK;
}

cddp_status cd_trainer_open_micro(cd_trainer *t, const cd_micro *micro, cd_firing *firings,
                                  size_t capacity, size_t *count, cddp_error *err)
{
    cd_replica_losses losses;
    collection c = {.firings = firings, .capacity = capacity};
    *count = 0;
    t->now.micro = micro;
    t->now.gradient_count = 0;
    if (micro->backward_each || micro->loss_each || micro->backwards > 1 ||
        micro->abort_after > 0) {
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "step %u micro-step %u does not run exactly one whole backward, and cannot "
                       "be cut in pieces",
                       micro->place.step, micro->place.micro_step);
    }
    if (micro->skip == CDDP_SKIP_ALL) return CDDP_OK;
    CD_TRY(begin_micro(t, micro, &losses, err));
    if (!cd_micro_contributes(micro)) return CDDP_OK;
    /* Units are gathered in the middle of it, and reduced in its order: it has one piece. */
    if (t->sharding != NULL) return CD_PASS(run_backward(t, micro, &losses, err));
    cd_graph_callbacks collecting = t->replica->graph->callbacks;
    collecting.collect = collect_firing;
    t->now.collection = &c;
    cd_graph_set_callbacks(t->replica->graph, &collecting);
    const cddp_status status =
        cd_replica_backward(t->replica, micro, losses.items, losses.count, false, err);
    cd_trainer_set_callbacks(t);
    t->now.collection = NULL;
    *count = c.count;
    return status;
}

cddp_status cd_trainer_fire(cd_trainer *t, const cd_firing *firing, cddp_error *err)
{
    cddp_grad *grad = &cd_trainer_module(t)->parameters[firing->parameter].grad;
    const cd_gradient arrived = {.kind = firing->kind};
    if (firing->kind == CDDP_GRAD_SPARSE || cd_graph_computes(t->replica->graph)) {
        return cd_fail(
            err, CDDP_E_UNSUPPORTED,
            "only gradients without numbers can fire later: model.device symbol or shape");
    }
    if (firing->kind == CDDP_GRAD_DENSE)
        CD_TRY(cd_grad_accumulate(t->replica->graph, firing->parameter, &arrived, err));
    CD_TRY(gradient_is_ready(t, firing->parameter, grad, err));
    return CDDP_OK;
}

cddp_status cd_trainer_close_micro(cd_trainer *t, const cd_micro *micro, cddp_error *err)
{
    if (micro->skip == CDDP_SKIP_ALL) return CDDP_OK;
    if (cd_micro_contributes(micro) && t->sharding == NULL) CD_TRY(end_backward(t, micro, err));
    CD_TRY(end_micro(t, micro, err));
    return CDDP_OK;
}
