/* SPDX-License-Identifier: Apache-2.0 */
/* From what a trainer shows to what the judge observes. Nothing is decided here: each function
** copies its values, fills the struct of its moment, and calls the referee.
*/
#include "core/run/relay.h"

#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/error.h"

#define MEMORY_BLOCK_BYTES ((size_t)1 << 12)

/* The copies of one moment, which the referee borrows until that moment comes again. */
typedef struct copies {
    cd_tensor_copies parameters, buffers, slots;
    cd_gradient_copies gradients;
} copies;

struct cd_relay {
    cd_arena memory; /* of the relay itself and its arrays */
    cd_relay_options options;
    const cddp_allocator *allocator;
    cd_watcher watcher;
    cd_referee *referee; /* NULL until the trainer opens */
    size_t parameter_count, buffer_count, slot_count;
    copies begin, forward, reduced, clips, before, updated, finish;
    cd_gradient_copies local; /* (parameter_count) */
    cd_tensor_copies output;  /* of a collective */
    cd_blob optimizer_state;  /* before an update */
    cddp_tensor *slots;       /* (slot_count) the run's, to be copied */
    int32_t *slot_parameters; /* (slot_count) */
};

/* ---- copies ---- */

static cddp_status init_copies(const cd_relay *r, copies *c, cddp_error *err)
{
    c->parameters.allocator = c->buffers.allocator = c->slots.allocator = r->allocator;
    CD_TRY(cd_gradient_copies_init(&c->gradients, r->allocator, r->parameter_count, err));
    return CDDP_OK;
}

static void fini_copies(copies *c)
{
    cd_tensor_copies_fini(&c->parameters);
    cd_tensor_copies_fini(&c->buffers);
    cd_tensor_copies_fini(&c->slots);
    cd_gradient_copies_fini(&c->gradients);
}

static cddp_status copy_parameters(const cd_relay *r, copies *c, const cddp_tensor *parameters,
                                   cd_observed_tensors *observed, cddp_error *err)
{
    CD_TRY(cd_tensor_copies_take(&c->parameters, parameters, r->parameter_count, err));
    *observed = (cd_observed_tensors){c->parameters.items, c->parameters.count};
    return CDDP_OK;
}

static cddp_status copy_buffers(const cd_relay *r, copies *c, const cddp_tensor *buffers,
                                cd_observed_tensors *observed, cddp_error *err)
{
    CD_TRY(cd_tensor_copies_take(&c->buffers, buffers, r->buffer_count, err));
    *observed = (cd_observed_tensors){c->buffers.items, c->buffers.count};
    return CDDP_OK;
}

static cddp_status copy_gradients(copies *c, const cddp_grad *gradients,
                                  cd_observed_gradients *observed, cddp_error *err)
{
    for (size_t i = 0; i < c->gradients.count; i++)
        CD_TRY(cd_gradient_copies_take(&c->gradients, i, &gradients[i], err));
    *observed = (cd_observed_gradients){c->gradients.items, c->gradients.count};
    return CDDP_OK;
}

/* ---- opening ---- */

static cddp_status make_room(cd_relay *r, const cd_watched_model *model, cddp_error *err)
{
    const cd_module *module = model->replica->model->module;
    r->parameter_count = module->parameter_count;
    r->buffer_count = module->buffer_count;
    r->slot_count = cd_replica_slot_count(model->replica);
    r->slots = cd_arena_array(&r->memory, r->slot_count + 1, sizeof *r->slots);
    r->slot_parameters = cd_arena_array(&r->memory, r->slot_count + 1, sizeof *r->slot_parameters);
    CD_TRY(cd_arena_check(&r->memory, err, "the relay of rank %u", r->options.rank->rank));
    copies *const all[] = {&r->begin,  &r->forward, &r->reduced, &r->clips,
                           &r->before, &r->updated, &r->finish};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) CD_TRY(init_copies(r, all[i], err));
    CD_TRY(cd_gradient_copies_init(&r->local, r->allocator, r->parameter_count, err));
    return CDDP_OK;
}

static cddp_status relay_open(void *self, const cd_watched_model *model, cddp_error *err)
{
    cd_relay *r = self;
    const cd_referee_options options = {.plan = r->options.plan,
                                        .rank = r->options.rank->rank,
                                        .device = model->device,
                                        .allocator = r->allocator,
                                        .tracer = r->options.tracer,
                                        .share = r->options.share,
                                        .reference_share = r->options.reference_share};
    CD_TRY(make_room(r, model, err));
    CD_TRY(cd_referee_create(&options, &r->referee, err));
    const cd_observed_open observed = {.variables = {model->variables, r->parameter_count},
                                       .loss_scale = model->loss_scale};
    CD_TRY(cd_referee_open(r->referee, &observed, err));
    return CDDP_OK;
}

/* ---- moments ---- */

static cddp_status relay_rescaled(void *self, double loss_scale, cddp_error *err)
{
    const cd_relay *r = self;
    const cd_observed_rescaled observed = {.loss_scale = loss_scale};
    CD_TRY(cd_referee_rescaled(r->referee, &observed, err));
    return CDDP_OK;
}

static cddp_status relay_begin(void *self, uint32_t step, const cd_watched_values *values,
                               cddp_error *err)
{
    cd_relay *r = self;
    cd_observed_begin observed = {.step = step};
    CD_TRY(copy_parameters(r, &r->begin, values->parameters, &observed.parameters, err));
    CD_TRY(copy_gradients(&r->begin, values->gradients, &observed.gradients, err));
    CD_TRY(cd_referee_begin(r->referee, &observed, err));
    return CDDP_OK;
}

static cddp_status relay_before_update(void *self, const cd_replica *replica, cddp_error *err)
{
    cd_relay *r = self;
    const cd_module *module = replica->model->module;
    cd_observed_before_update observed = {.optimizer_state = {&r->optimizer_state}};
    const cd_arena_mark mark = cd_arena_get_mark(&r->memory);
    cddp_tensor *parameters =
        cd_arena_array(&r->memory, r->parameter_count + 1, sizeof *parameters);
    CD_TRY(cd_arena_check(&r->memory, err, "%zu parameters", r->parameter_count));
    for (size_t i = 0; i < r->parameter_count; i++) parameters[i] = module->parameters[i].tensor;
    CD_TRY(copy_parameters(r, &r->before, parameters, &observed.parameters, err));
    cd_arena_rewind(&r->memory, mark);
    cd_blob_clear(&r->optimizer_state);
    CD_TRY(cd_replica_save_optimizers(replica, &r->optimizer_state, err));
    CD_TRY(cd_referee_before_update(r->referee, &observed, err));
    return CDDP_OK;
}

static cddp_status relay_enter_forward(void *self, uint32_t micro_step,
                                       const cd_watched_values *values, cddp_error *err)
{
    cd_relay *r = self;
    cd_observed_enter_forward observed = {.micro_step = micro_step};
    CD_TRY(copy_buffers(r, &r->forward, values->buffers, &observed.buffers, err));
    CD_TRY(cd_referee_enter_forward(r->referee, &observed, err));
    return CDDP_OK;
}

/* The layer computed these numbers for the call alone: nobody can write them meanwhile. */
static cddp_status relay_normalised(void *self, const cd_watched_statistics *used, cddp_error *err)
{
    const cd_relay *r = self;
    const cd_observed_normalised observed = {.step = used->step,
                                             .micro_step = used->micro_step,
                                             .exchange = used->exchange,
                                             .buffer = used->buffer,
                                             .mean = {used->mean, used->channels},
                                             .spread = {used->spread, used->channels}};
    CD_TRY(cd_referee_normalised(r->referee, &observed, err));
    return CDDP_OK;
}

static cddp_status relay_accumulated(void *self, size_t parameter, const cddp_grad *gradient,
                                     cddp_error *err)
{
    cd_relay *r = self;
    CD_TRY(cd_gradient_copies_take(&r->local, parameter, gradient, err));
    const cd_observed_accumulated observed = {.parameter = parameter,
                                              .gradient = {r->local.items[parameter]}};
    CD_TRY(cd_referee_accumulated(r->referee, &observed, err));
    return CDDP_OK;
}

static cd_observed_hook observe_hook(const cddp_hook *hook)
{
    return (cd_observed_hook){hook != NULL, hook != NULL ? hook->flags : 0};
}

static cddp_status relay_reduced(void *self, const cd_watched_reduction *watched, cddp_error *err)
{
    cd_relay *r = self;
    cd_observed_reduced observed = {.step = watched->micro->place.step,
                                    .micro_step = watched->micro->place.micro_step,
                                    .window_first = watched->window_first,
                                    .hook = observe_hook(watched->hook),
                                    .inner_hook = observe_hook(watched->inner_hook),
                                    .divides_after = watched->divides_after,
                                    .is_before_start = watched->is_before_start,
                                    .wire = watched->wire,
                                    .block_first = watched->block_first,
                                    .block_count = watched->block_count};
    CD_TRY(copy_gradients(&r->reduced, watched->values.gradients, &observed.gradients, err));
    CD_TRY(copy_buffers(r, &r->reduced, watched->values.buffers, &observed.buffers, err));
    CD_TRY(cd_referee_reduced(r->referee, &observed, err));
    return CDDP_OK;
}

static cddp_status relay_clips(void *self, const cd_watched_norm *watched, cddp_error *err)
{
    cd_relay *r = self;
    cd_observed_clips observed = {.norm = watched->norm,
                                  .ranks = {watched->ranks, watched->rank_count}};
    CD_TRY(copy_gradients(&r->clips, watched->values.gradients, &observed.gradients, err));
    CD_TRY(cd_referee_clips(r->referee, &observed, err));
    return CDDP_OK;
}

static cddp_status relay_assigned(void *self, const cd_watched_bucket *watched, size_t count,
                                  cddp_error *err)
{
    cd_relay *r = self;
    const cd_arena_mark mark = cd_arena_get_mark(&r->memory);
    cd_observed_bucket *buckets = cd_arena_array(&r->memory, count + 1, sizeof *buckets);
    CD_TRY(cd_arena_check(&r->memory, err, "%zu buckets", count));
    for (size_t b = 0; b < count; b++)
        buckets[b] = (cd_observed_bucket){watched[b].parameters, watched[b].count};
    const cd_observed_assigned observed = {.buckets = {buckets, count}};
    CD_TRY(cd_referee_assigned(r->referee, &observed, err));
    cd_arena_rewind(&r->memory, mark);
    return CDDP_OK;
}

static cddp_status relay_updated(void *self, const cd_watched_update *watched, cddp_error *err)
{
    cd_relay *r = self;
    cd_observed_updated observed = {.step = watched->step,
                                    .stepped = {watched->stepped,
                                                watched->replica->optimizer_count},
                                    .slot_parameters = {r->slot_parameters, r->slot_count}};
    cd_replica_get_slots(watched->replica, r->slots, r->slot_parameters);
    CD_TRY(copy_parameters(r, &r->updated, watched->values.parameters, &observed.parameters, err));
    CD_TRY(copy_gradients(&r->updated, watched->values.gradients, &observed.gradients, err));
    CD_TRY(cd_tensor_copies_take(&r->updated.slots, r->slots, r->slot_count, err));
    observed.slots = (cd_observed_tensors){r->updated.slots.items, r->slot_count};
    CD_TRY(cd_referee_updated(r->referee, &observed, err));
    return CDDP_OK;
}

static cddp_status relay_exchanged(void *self, const cd_watched_collective *watched,
                                   cddp_error *err)
{
    cd_relay *r = self;
    CD_TRY(cd_tensor_copies_take(&r->output, watched->output, 1, err));
    const cd_observed_exchanged observed = {.collective = (size_t)(watched->planned -
                                                                   r->options.plan->collectives),
                                            .member = watched->me,
                                            .output = {r->output.items[0]}};
    CD_TRY(cd_referee_exchanged(r->referee, &observed, err));
    return CDDP_OK;
}

static cddp_status relay_finish(void *self, const cd_watched_values *values, cddp_error *err)
{
    cd_relay *r = self;
    cd_observed_finish observed = {.parameters = {NULL, 0}};
    CD_TRY(copy_parameters(r, &r->finish, values->parameters, &observed.parameters, err));
    CD_TRY(cd_referee_finish(r->referee, &observed, err));
    return CDDP_OK;
}

static void relay_close(void *self)
{
    cd_relay *r = self;
    copies *const all[] = {&r->begin,  &r->forward, &r->reduced, &r->clips,
                           &r->before, &r->updated, &r->finish};
    cd_referee_destroy(r->referee);
    r->referee = NULL;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) fini_copies(all[i]);
    cd_gradient_copies_fini(&r->local);
    cd_tensor_copies_fini(&r->output);
    r->output.allocator = r->allocator;
    cd_blob_fini(&r->optimizer_state);
}

static const cd_watcher_ops relay_ops = {.open = relay_open,
                                         .rescaled = relay_rescaled,
                                         .begin = relay_begin,
                                         .before_update = relay_before_update,
                                         .enter_forward = relay_enter_forward,
                                         .normalised = relay_normalised,
                                         .accumulated = relay_accumulated,
                                         .reduced = relay_reduced,
                                         .clips = relay_clips,
                                         .assigned = relay_assigned,
                                         .updated = relay_updated,
                                         .exchanged = relay_exchanged,
                                         .finish = relay_finish,
                                         .close = relay_close};

/* ---- life ---- */

cddp_status cd_relay_create(const cd_relay_options *options, cd_relay **relay, cddp_error *err)
{
    const cddp_allocator *allocator = options->rank->allocator;
    cd_arena memory;
    cd_arena_init(&memory, allocator, MEMORY_BLOCK_BYTES);
    cd_relay *r = cd_arena_push(&memory, sizeof *r);
    CD_TRY(cd_arena_check(&memory, err, "the relay of rank %u", options->rank->rank));
    r->memory = memory;
    r->options = *options;
    r->allocator = r->output.allocator = r->optimizer_state.allocator = allocator;
    r->watcher = (cd_watcher){&relay_ops, r};
    *relay = r;
    return CDDP_OK;
}

void cd_relay_destroy(cd_relay *r)
{
    if (r == NULL) return;
    relay_close(r);
    cd_arena_fini(&r->memory);
}

const cd_watcher *cd_relay_get_watcher(const cd_relay *relay) { return &relay->watcher; }
