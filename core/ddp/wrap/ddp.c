/* SPDX-License-Identifier: Apache-2.0 */
/* The public face of DDP: construction, one iteration step by step, contexts, configuration.
**
** It owns the order of things inside forward (FWD-01, FWD-02); what happens to gradients is the
** reducer's. Every failure passes through `leave`, which records it for the logger and the trace
** before the caller sees it (LOG-03).
**
** Not here: what can be asked about a running DDP (inspect.c).
*/
#include "core/ddp/wrap/ddp.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/comm/hold.h"
#include "core/ddp/optimizers/optimizer_in_backward.h"
#include "core/ddp/reducer/rebuild.h"
#include "core/ddp/reducer/static_graph.h"
#include "core/ddp/wrap/observe.h"
#include "core/ddp/wrap/settings.h"
#include "core/ddp/wrap/verify.h"
#include "core/hooks/hook.h"
#include "core/trace/attach.h"
#include "core/trace/tracer.h"

#include <stddef.h>
#include <string.h>

static cddp_status note_error(cddp_ddp *d, cddp_status status, const cddp_error *err)
{
    if (err != &d->logger.error) cd_logger_set_error(&d->logger, err);
    d->logger.has_error = true;
    CD_EMIT(d->tracer, error, err->message, .status = status);
    return status;
}

/* Every public call that returns a status begins with `enter` and ends with `leave`. A caller may
** pass no error object; the logger's takes its place, so that texts are never lost. A hook or an
** optimizer that calls back is refused: the reducer is in the middle of a step. */
static cddp_status refuse_call(cddp_ddp *d, cddp_error *err)
{
    if (d == NULL) return cd_fail(err, CDDP_E_ARG, "the DDP object is NULL");
    return note_error(
        d,
        cd_fail(err, CDDP_E_STATE,
                "a comm hook, a buffer hook or an optimizer calls the DDP object that "
                "is calling it"),
        err);
}

static inline cddp_status enter(cddp_ddp *d, cddp_error **err)
{
    if (d != NULL && *err == NULL) *err = &d->logger.error;
    if (d == NULL || d->in_call) return refuse_call(d, *err);
    d->in_call = true;
    cd_tracer_select(d->tracer, d->wrapper);
    return CDDP_OK;
}

static inline cddp_status leave(cddp_ddp *d, cddp_status status, cddp_error *err)
{
    d->in_call = false;
    return CD_PASS(status == CDDP_OK ? CDDP_OK : note_error(d, status, err));
}

/* After a failure nothing but backward_end and update_process_group goes on. */
static cddp_status check_sound(cddp_ddp *d, cddp_error *err)
{
    if (d->reducer.phase != CD_REDUCER_FAILED) return CDDP_OK;
    return CD_PASS(cd_reducer_fail(&d->reducer, d->reducer.failure.status, err));
}

/* The first error is kept whatever part it came from. Where everything is delayed nothing is
** reduced, but there are a phase and a failure. */
static cddp_status keep(cddp_ddp *d, cddp_status status, cddp_error *err)
{
    if (status == CDDP_OK) return CDDP_OK;
    d->in_forward = false; /* what failed does not go on */
    return CD_PASS(cd_reducer_fail(&d->reducer, status, err));
}

/* Without a reducer; otherwise cd_reducer_abandon. */
static void forget_failure(cddp_ddp *d)
{
    d->reducer.phase = CD_REDUCER_IDLE;
    cd_error_reset(&d->reducer.failure);
}

static cddp_status check_member(const cddp_ddp *d, cddp_error *err)
{
    if (d->group == NULL)
        return cd_fail(err, CDDP_E_STATE,
                       "this rank is not a member of the process group any more");
    return CDDP_OK;
}

/* ---- construction ---- */

/* Places count parameters, then buffers, then extra tensors. */
typedef struct state_list {
    const cd_wrapped *module;
    const cddp_tensor *extra;
    const uint32_t *places;
} state_list;

static cddp_tensor get_state(const void *context, size_t i)
{
    const state_list *list = context;
    const cd_wrapped *m = list->module;
    size_t place = list->places[i];
    if (place < m->parameter_count) return cd_packed_tensor_get(&m->parameters[place].tensor);
    place -= m->parameter_count;
    return place < m->buffer_count ? m->buffers[place].tensor
                                   : list->extra[place - m->buffer_count];
}

cddp_status cd_ddp_broadcast_state(cddp_ddp *d, const cd_state_broadcast *what, cddp_error *err)
{
    const size_t first_buffer = d->module.parameter_count,
                 first_extra = first_buffer + d->module.buffer_count;
    size_t capacity = first_extra + what->extra_count, count = 0;
    cd_arena scratch;
    cd_arena_init(&scratch, d->allocator, 0);
    uint32_t *places = cd_arena_array(&scratch, capacity, sizeof *places);
    if (places == NULL) return cd_fail_memory(err, "a broadcast of %zu tensors", capacity);
    for (size_t i = 0; i < d->module.parameter_count; i++) {
        const cd_wrapped_parameter *p = &d->module.parameters[i];
        bool is_second_name = p->variable != CD_NOT_REDUCED && d->module.ordinals[p->variable] != i;
        if (!p->is_ignored && !is_second_name) places[count++] = (uint32_t)i;
    }
    for (size_t i = 0; d->config.broadcast_buffers && i < d->module.buffer_count; i++)
        if (!d->module.buffers[i].is_ignored) places[count++] = (uint32_t)(first_buffer + i);
    for (size_t i = 0; i < what->extra_count; i++) places[count++] = (uint32_t)(first_extra + i);
    const state_list list = {&d->module, what->extra, places};
    cd_broadcast_spec spec = {.allocator = d->allocator,
                              .tensors = {&list, get_state},
                              .tensor_count = count,
                              .limit_bytes = CD_BROADCAST_BYTES};
    cddp_status status = cd_broadcast_coalesced(&spec, d->group, what->root, err);
    cd_arena_fini(&scratch);
    return CD_PASS(status);
}

/* DDP does not own buffers and cannot change their dtype (a deviation from MIX-01). */
static cddp_status check_buffer_dtype(const cddp_ddp *d, cddp_error *err)
{
    cddp_dtype wanted = d->config.buffer_dtype;
    for (size_t i = 0; wanted != CDDP_DTYPE_COUNT && i < d->module.buffer_count; i++) {
        const cd_wrapped_buffer *b = &d->module.buffers[i];
        if (!b->is_ignored && cddp_dtype_is_float(b->tensor.dtype) && b->tensor.dtype != wanted)
            return cd_fail(
                err, CDDP_E_CONFIG,
                "buffer '%s' is %s, mixed_buffer_dtype is %s: convert it before wrapping", b->name,
                cddp_dtype_name(b->tensor.dtype), cddp_dtype_name(wanted));
    }
    return CDDP_OK;
}

static uint64_t shape_digest(const cddp_tensor *t)
{
    uint64_t h = t->dim_count;
    for (uint32_t i = 0; i < t->dim_count; i++) {
        h = cd_hash_mix(h, (uint64_t)t->sizes[i]);
        h = cd_hash_mix(h, (uint64_t)t->strides[i]);
    }
    return h;
}

/* The model that a hook's saved state belongs to; never 0. Strides are left out: a state holds flat
** slices. */
static uint64_t model_digest(const cd_wrapped *module)
{
    uint64_t h = module->variable_count;
    for (size_t v = 0; v < module->variable_count; v++) {
        const cddp_tensor *t = &cd_wrapped_variable(module, v)->tensor.form->like;
        h = cd_hash_mix(h, ((uint64_t)t->dtype << 32) + t->dim_count);
        for (uint32_t i = 0; i < t->dim_count; i++) h = cd_hash_mix(h, (uint64_t)t->sizes[i]);
    }
    return h != 0 ? h : 1;
}

static void emit_module(const cddp_ddp *d)
{
    if (d->tracer == NULL) return;
    for (size_t i = 0; i < d->module.parameter_count; i++) {
        const cd_wrapped_parameter *p = &d->module.parameters[i];
        const cd_tensor_form *form = p->tensor.form;
        CD_EMIT(d->tracer, param, p->name,
                .param = p->variable == CD_NOT_REDUCED ? -1 : (int64_t)p->variable,
                .ordinal = (int64_t)i, .numel = p->is_ignored ? -1 : form->numel,
                .dtype = form->like.dtype, .requires_grad = p->requires_grad,
                .ignored = p->is_ignored, .sparse = p->expect_sparse,
                .shape = p->is_ignored ? 0 : (int64_t)shape_digest(&form->like),
                .name = (int64_t)p->name_digest);
    }
    for (size_t i = 0; i < d->module.buffer_count; i++) {
        const cd_wrapped_buffer *b = &d->module.buffers[i];
        CD_EMIT(d->tracer, buffer, b->name, .buffer = (int64_t)i,
                .numel = cddp_tensor_numel(&b->tensor), .dtype = b->tensor.dtype,
                .ignored = b->is_ignored);
    }
}

static cddp_status synchronise(cddp_ddp *d, cddp_error *err)
{
    if (!d->config.init_sync) return CDDP_OK; /* INI-14 */
    const cd_state_broadcast what = {.root = 0};
    CD_TRY(cd_verify_across_ranks(&d->module, &d->config, d->group, err));
    CD_TRY(cd_ddp_broadcast_state(d, &what, err));
    if (d->config.broadcast_buffers && d->buffers.listed_count > 0)
        CD_EMIT(d->tracer, buffer_sync, NULL, .authority = 0, .location = CDDP_LOCATION_INIT);
    return CDDP_OK;
}

/* With views a gradient is made in its bucket: storage of the caller would be left behind. */
static cddp_status check_gradient_storage(const cddp_ddp *d, cddp_error *err)
{
    if (!d->config.strict || !d->config.gradient_as_bucket_view) return CDDP_OK;
    for (size_t v = 0; v < d->module.variable_count; v++) {
        const cd_wrapped_parameter *p = cd_wrapped_variable(&d->module, v);
        const cddp_grad *g = p->grad;
        const bool is_outside =
            g->kind == CDDP_GRAD_DENSE && g->value.storage != g->backing.storage;
        if (!p->expect_sparse && (g->backing_is_borrowed || is_outside))
            return cd_fail(err, CDDP_E_CONFIG,
                           "gradient_as_bucket_view: the gradient of '%s' lies in the caller's "
                           "storage, and would move into its bucket. Start with an undefined "
                           "gradient and make it with cddp_grad_define, or wrap without views",
                           p->name);
    }
    return CDDP_OK;
}

static cddp_status keep_first_sizes(cddp_ddp *d, cddp_error *err)
{
    const cd_bucket_set *set = &d->reducer.buckets;
    d->first_sizes = cd_arena_array(&d->arena, set->bucket_count, sizeof *d->first_sizes);
    CD_TRY(cd_arena_check(&d->arena, err, "the sizes of %zu buckets", set->bucket_count));
    d->first_size_count = set->bucket_count;
    for (size_t b = 0; b < set->bucket_count; b++)
        d->first_sizes[b] = cd_bucket_bytes(&set->buckets[b]);
    return CDDP_OK;
}

/* INI-02, in its order. */
static cddp_status construct(cddp_ddp *d, const cddp_ddp_options *o, cddp_error *err)
{
    cd_logger_init(&d->logger, o->sample_rate, d->allocator);
    CD_TRY(cd_ddp_config_init(&d->config, o, &d->arena, err));
    CD_TRY(cd_wrapped_init(&d->module, o, d->allocator, err));
    CD_TRY(check_buffer_dtype(d, err));
    CD_TRY(check_gradient_storage(d, err));
    CD_TRY(cd_buffers_init(&d->buffers, &d->module, &d->config, &d->arena, err));
    CD_TRY(cd_delayed_init(&d->delayed, &d->module, o, err));
    emit_module(d);
    CD_TRY(synchronise(d, err));
    CD_TRY(cd_delayed_broadcast(&d->delayed, d->group, err));
    CD_TRY(cd_mixed_init(&d->mixed, &d->module, &d->config, &d->arena, err));
    d->has_reducer = d->module.variable_count > 0;
    if (d->has_reducer) {
        cd_reducer_spec spec = {.group = d->group,
                                .tracer = d->tracer,
                                .module = &d->module,
                                .config = &d->config,
                                .logger = &d->logger,
                                .mixed = &d->mixed,
                                .join = &d->join,
                                .allocator = d->allocator};
        CD_TRY(cd_reducer_init(&d->reducer, &spec, err));
        CD_TRY(keep_first_sizes(d, err));
        cd_reducer_emit_layout(&d->reducer);
    }
    CD_EMIT(d->tracer, wrap, NULL, .params = (int64_t)d->module.variable_count,
            .buffers = (int64_t)d->buffers.listed_count, .group = cddp_group_id(d->group),
            .init_sync = d->config.init_sync);
    return CDDP_OK;
}

/* A recorder looks at parameters between the steps. */
static void show_storage(const cddp_ddp *d)
{
    const cd_tracer_watch *watch = d->tracer != NULL ? d->tracer->watch : NULL;
    for (size_t v = 0; watch != NULL && v < d->module.variable_count; v++) {
        const cd_variable *variable = cd_wrapped_variable(&d->module, v);
        const cddp_tensor tensor = cd_packed_tensor_get(&variable->tensor);
        watch->kept(d->tracer, d->module.ordinals[v], &tensor, variable->grad);
    }
    for (size_t i = 0; watch != NULL && i < d->module.parameter_count; i++) {
        const cd_wrapped_parameter *p = &d->module.parameters[i];
        const cddp_tensor tensor = cd_packed_tensor_get(&p->tensor);
        if (!p->requires_grad && !p->is_ignored) watch->kept(d->tracer, i, &tensor, NULL);
    }
}

cddp_status cddp_ddp_create(const cddp_ddp_options *options, cddp_ddp **ddp, cddp_error *err)
{
    if (options == NULL || ddp == NULL)
        return cd_fail(err, CDDP_E_ARG, "cddp_ddp_create: %s is NULL",
                       options == NULL ? "options" : "ddp");
    if (options->size < offsetof(cddp_ddp_options, group) + sizeof options->group)
        return cd_fail(err, CDDP_E_ARG,
                       "options.size is %u, too small for a group: begin with "
                       "cddp_ddp_options_default()",
                       options->size);
    cddp_ddp_options o = cd_ddp_options_complete(options);
    if (o.group == NULL)
        return cd_fail(err, CDDP_E_CONFIG, "options.group is NULL: DDP needs a process group");
    const cddp_allocator *allocator =
        o.allocator != NULL ? o.allocator : cddp_group_world_rank(o.group)->allocator;
    cd_arena arena;
    cd_arena_init(&arena, allocator, 0);
    cddp_ddp *d = cd_arena_push(&arena, sizeof *d);
    if (d == NULL) return cd_fail_memory(err, "a DDP object");
    d->arena = arena;
    d->allocator = allocator;
    d->group = o.group;
    cd_group_hold(d->held = o.group);
    d->tracer = cd_tracer_attach(cddp_group_world_rank(o.group), o.tracer);
    d->wrapper = cd_tracer_take_wrapper(d->tracer);
    cd_tracer_select(d->tracer, d->wrapper);
    cddp_error local = CDDP_ERROR_INIT;
    if (err == NULL) err = &local;
    cddp_status status = construct(d, &o, err);
    /* A recording has no plan that says so. */
    d->says_settings = o.tracer == NULL && d->tracer != NULL;
    if (status == CDDP_OK && d->says_settings) cd_ddp_settings_emit(&o, d->tracer);
    if (status == CDDP_OK) show_storage(d);
    if (status != CDDP_OK) {
        note_error(d, status, err);
        cddp_ddp_destroy(d);
        return status;
    }
    *ddp = d;
    return CDDP_OK;
}

void cddp_ddp_destroy(cddp_ddp *d)
{
    if (d == NULL) return;
    cd_tracer_select(d->tracer, d->wrapper);
    if (d->tracer != NULL && d->tracer->watch != NULL) d->tracer->watch->left(d->tracer);
    cd_shadow_leave(d);
    cd_join_fini(&d->join);
    cd_shadow_fini(&d->shadow);
    cd_delayed_fini(&d->delayed);
    cd_mixed_fini(&d->mixed);
    if (d->has_reducer) cd_reducer_fini(&d->reducer);
    cd_buffers_fini(&d->buffers);
    cd_wrapped_fini(&d->module);
    cd_logger_fini(&d->logger);
    cd_group_let_go(d->held);
    cd_tracer_leave_wrapper(d->tracer, d->wrapper);
    cd_arena_fini(&d->arena);
}

/* ---- forward ---- */

static cddp_status sync_buffers(cddp_ddp *d, uint32_t root, int64_t location, cddp_error *err)
{
    return CD_PASS(cd_buffers_sync(&d->buffers, d->group, d->tracer, root, location, err));
}

/* A peer may have done its part of what fails here, so all of it is kept. */
static cddp_status synchronise_forward(cddp_ddp *d, bool grad_mode, bool sync, cddp_error *err)
{
    cd_reducer *r = &d->reducer;
    bool rebuilt = false;
    uint32_t authority = 0;
    CD_TRY(cd_join_notify(&d->join, err));
    if (grad_mode) CD_TRY(cd_reducer_rebuild_buckets(r, &rebuilt, err));
    if (cd_buffers_will_sync(&d->buffers, false)) {
        CD_TRY(keep(d, cd_join_find_authority(&d->join, true, &authority, err), err));
        CD_TRY(keep(d, sync_buffers(d, authority, 0, err), err));
    }
    CD_TRY(keep(d, cd_join_vote(&d->join, sync, err), err));
    CD_TRY(keep(d, cd_mixed_begin(&d->mixed, err), err));
    return CDDP_OK;
}

/* Of post-local SGD: over which ranks this backward will reduce. */
static void show_agreement(const cddp_ddp *d)
{
    const cddp_hook *hook = d->reducer.hook;
    if (d->tracer == NULL || d->tracer->watch == NULL || hook == NULL || hook->agreement == NULL)
        return;
    d->tracer->watch->agreed(d->tracer, hook->agreement(d->reducer.hook_self));
}

static cddp_status begin_forward(cddp_ddp *d, bool grad_mode, cddp_error *err)
{
    const bool is_second = d->config.strict && d->in_forward;
    d->in_forward = false;
    CD_TRY(check_sound(d, err));
    CD_TRY(check_member(d, err));
    if (is_second)
        return CD_PASS(keep(d,
                            cd_fail(err, CDDP_E_STATE,
                                    "forward_begin again before forward_end: each forward has "
                                    "one of both"),
                            err));
    if (d->config.strict) CD_TRY(keep(d, cd_shadow_check_turn(d, err), err));
    d->grad_mode = grad_mode;
    if (!d->has_reducer) return CDDP_OK; /* DEL-06 */
    bool sync = grad_mode && d->no_sync_depth == 0;
    d->forward_is_sync = sync;
    if (sync) cd_logger_begin_iteration(&d->logger, ++d->reducer.iteration);
    if (sync && d->logger.is_sampling) d->logger.forward_begin_ns = cd_reducer_now(&d->reducer);
    if (grad_mode) d->reducer.is_after_finalize = false;
    CD_EMIT(d->tracer, forward_begin, NULL, .iteration = (int64_t)d->reducer.iteration,
            .sync = sync, .grad_mode = grad_mode);
    if (sync) show_agreement(d);
    CD_TRY(synchronise_forward(d, grad_mode, sync, err));
    d->in_forward = true;
    return CDDP_OK;
}

cddp_status cddp_ddp_forward_begin(cddp_ddp *d, bool grad_mode, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, begin_forward(d, grad_mode, err), err));
}

bool cddp_ddp_wants_graph_search(const cddp_ddp *d)
{
    return d != NULL && d->has_reducer && d->in_forward && d->forward_is_sync &&
           cd_reducer_is_dynamic(&d->reducer);
}

static cddp_status forward_end(cddp_ddp *d, const bool *reachable, cddp_error *err)
{
    if (!d->in_forward) return cd_fail(err, CDDP_E_STATE, "forward_end without forward_begin");
    bool searches = cddp_ddp_wants_graph_search(d);
    if (searches && reachable == NULL)
        return cd_fail(
            err, CDDP_E_ARG,
            "find_unused_parameters needs the reachable flags of %zu parameters; got NULL",
            d->module.variable_count);
    if (cd_buffers_will_sync(&d->buffers, true)) CD_TRY(keep(d, sync_buffers(d, 0, 1, err), err));
    d->buffers.require_forward_param_sync = d->forward_is_sync;
    if (d->forward_is_sync) CD_TRY(cd_reducer_prepare_for_backward(&d->reducer, reachable, err));
    if (d->forward_is_sync && d->logger.is_sampling)
        d->logger.backward_begin_ns = cd_reducer_now(&d->reducer);
    CD_EMIT(d->tracer, forward_end, NULL,
            .unused = searches ? (int64_t)d->reducer.unused_count : -1,
            .prepared = d->forward_is_sync);
    d->in_forward = false;
    return CDDP_OK;
}

static cddp_status end_forward(cddp_ddp *d, const bool *reachable, cddp_error *err)
{
    CD_TRY(check_sound(d, err));
    if (d->has_reducer) CD_TRY(forward_end(d, reachable, err));
    CD_TRY(keep(d, cd_delayed_point_grads(&d->delayed, err), err));
    if (d->grad_mode) d->awaits_backward = true;
    return CDDP_OK;
}

cddp_status cddp_ddp_forward_end(cddp_ddp *d, const bool *reachable, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, end_forward(d, reachable, err), err));
}

const cddp_tensor *cddp_ddp_forward_copy(const cddp_ddp *d, size_t ordinal)
{
    return d != NULL && ordinal < d->module.parameter_count ? cd_mixed_get_copy(&d->mixed, ordinal)
                                                            : NULL;
}

/* ---- backward ---- */

/* A gradient that becomes ready without a forward stays local, and replicas differ from then on.
** PyTorch says nothing (FWD-07, FWD-09). */
static cddp_status check_forward(cddp_ddp *d, const char *name, cddp_error *err)
{
    if (!d->config.strict || d->hooks_removed || (d->awaits_backward && !d->in_forward))
        return CDDP_OK;
    const char *call = name != NULL ? "' was marked ready" : "backward_end was called";
    return CD_PASS(
        keep(d,
             cd_fail(err, CDDP_E_STATE, "%s%s%s %s", name != NULL ? "'" : "",
                     name != NULL ? name : "", call,
                     d->in_forward ? "before forward_end: a backward begins when the forward "
                                     "has ended"
                                   : "without a forward, so that nothing is reduced: call "
                                     "cddp_ddp_forward_begin and cddp_ddp_forward_end around the "
                                     "model's forward, once before each backward"),
             err));
}

/* DEL-05: the sum of the delayed ones is under way, and this gradient was added into its memory. */
static cddp_status check_delayed(cddp_ddp *d, size_t ordinal, cddp_error *err)
{
    const cd_wrapped_parameter *p = &d->module.parameters[ordinal];
    if (!p->is_delayed || d->delayed.work == NULL || ordinal == d->delayed.trigger) return CDDP_OK;
    CD_EMIT(d->tracer, mark, CD_TRACER_DELAYED_LATE, .value = (int64_t)ordinal);
    if (!d->config.strict) return CDDP_OK;
    return CD_PASS(keep(d,
                        cd_fail(err, CDDP_E_STATE,
                                "'%s' was marked ready after the delayed all-reduce had begun with "
                                "'%s': param_to_hook_all_reduce must be the parameter whose "
                                "gradient comes last",
                                p->name, d->module.parameters[d->delayed.trigger].name),
                        err));
}

static cddp_status parameter_ready(cddp_ddp *d, size_t ordinal, cddp_error *err)
{
    const cd_wrapped_parameter *p = &d->module.parameters[ordinal];
    CD_TRY(check_sound(d, err)); /* also of a parameter that is not reduced */
    if (d->hooks_removed) return CDDP_OK;
    if (p->variable != CD_NOT_REDUCED || p->is_delayed) CD_TRY(check_forward(d, p->name, err));
    CD_TRY(check_delayed(d, ordinal, err));
    if (p->variable != CD_NOT_REDUCED)
        CD_TRY(cd_reducer_autograd_hook(&d->reducer, p->variable, err));
    if (d->delayed.is_active && d->delayed.trigger == ordinal && d->group != NULL)
        CD_TRY(keep(d, cd_delayed_trigger(&d->delayed, d->group, err), err));
    return CDDP_OK;
}

cddp_status cddp_ddp_mark_variable_ready(cddp_ddp *d, size_t variable, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    const size_t count = d->module.variable_count;
    return leave(d,
                 variable < count
                     ? parameter_ready(d, d->module.ordinals[variable], err)
                     : cd_fail(err, CDDP_E_ARG, "variable %zu of %zu", variable, count),
                 err);
}

cddp_status cddp_ddp_mark_parameter_ready(cddp_ddp *d, size_t ordinal, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    const size_t count = d->module.parameter_count;
    return leave(d,
                 ordinal < count ? parameter_ready(d, ordinal, err)
                                 : cd_fail(err, CDDP_E_ARG, "parameter %zu of %zu", ordinal, count),
                 err);
}

/* All four parts end, whatever becomes of the first: gradients get their full precision back, and
** no sum stays under way. The first error is the one that is reported. */
static cddp_status backward_end(cddp_ddp *d, cddp_error *err)
{
    bool finalized = false;
    cddp_error later = CDDP_ERROR_INIT;
    cddp_status status = CDDP_OK;
    if (d->reducer.phase != CD_REDUCER_FAILED)
        (void)!check_forward(d, NULL, err); /* kept, and answered below */
    d->awaits_backward = d->in_forward = false;
    if (d->has_reducer && (!d->hooks_removed || d->reducer.phase == CD_REDUCER_FAILED))
        status = cd_reducer_backward_end(&d->reducer, &finalized, err);
    else
        status = check_sound(d, err);
    if (!d->has_reducer) forget_failure(d);
    const cddp_status restored = cd_mixed_end(&d->mixed, status == CDDP_OK ? err : &later);
    if (status == CDDP_OK) status = restored;
    if (status == CDDP_OK) status = cd_delayed_await(&d->delayed, err);
    if (status == CDDP_OK && finalized) status = cd_buffers_await(&d->buffers, err);
    if (status == CDDP_OK) return CDDP_OK;
    cd_delayed_abandon(&d->delayed);
    cd_buffers_abandon(&d->buffers);
    cd_error_frame(err, __FILE__, __func__, __LINE__);
    return status;
}

cddp_status cddp_ddp_backward_end(cddp_ddp *d, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, backward_end(d, err), err));
}

/* ---- contexts ---- */

void cddp_ddp_no_sync_begin(cddp_ddp *d)
{
    if (d == NULL) return;
    d->no_sync_depth++;
    cd_tracer_select(d->tracer, d->wrapper);
    CD_EMIT(d->tracer, no_sync, NULL, .entered = 1, .depth = d->no_sync_depth);
}

void cddp_ddp_no_sync_end(cddp_ddp *d)
{
    if (d == NULL) return;
    cd_tracer_select(d->tracer, d->wrapper);
    if (d->no_sync_depth == 0 && d->config.strict) /* it has no status: the next call answers */
        (void)!keep(d,
                    note_error(d,
                               cd_fail(&d->logger.error, CDDP_E_STATE,
                                       "no_sync_end without no_sync_begin"),
                               &d->logger.error),
                    &d->logger.error);
    if (d->no_sync_depth > 0) d->no_sync_depth--;
    CD_EMIT(d->tracer, no_sync, NULL, .entered = 0, .depth = d->no_sync_depth);
}

static cddp_status begin_join(cddp_ddp *d, const cddp_join_options *options, cddp_error *err)
{
    cddp_join_options o = cddp_join_options_default();
    if (options != NULL && options->size < offsetof(cddp_join_options, enable) + sizeof o.enable)
        return cd_fail(err, CDDP_E_ARG,
                       "the join options' size is %u: begin with cddp_join_options_default()",
                       options->size);
    if (options != NULL) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    if (o.optimizer_state_count > 0 && o.optimizer_state == NULL)
        return cd_fail(err, CDDP_E_ARG, "optimizer_state is NULL but its count is %zu",
                       o.optimizer_state_count);
    CD_TRY(check_sound(d, err));
    CD_TRY(check_member(d, err));
    CD_TRY(cd_shadow_begin_join(d, &o, err));
    return CDDP_OK;
}

cddp_status cddp_ddp_join_begin(cddp_ddp *d, const cddp_join_options *options, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, begin_join(d, options, err), err));
}

static cddp_status end_join(cddp_ddp *d, cddp_error *err)
{
    CD_TRY(check_sound(d, err));
    for (cddp_ddp *at = d->shadow.next; at != NULL; at = at->shadow.next)
        CD_TRY(check_sound(at, err));
    CD_TRY(cd_shadow_end_join(d, err));
    return CDDP_OK;
}

cddp_status cddp_ddp_join_end(cddp_ddp *d, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, end_join(d, err), err));
}

/* ---- configuration ---- */

static cddp_status check_hook_fits(const cddp_ddp *d, const cddp_hook *hook, cddp_error *err)
{
    if (!d->has_reducer)
        return cd_fail(err, CDDP_E_STATE, "no parameter is reduced: comm hook %s has nothing to do",
                       hook->name);
    if (d->reducer.hook != NULL) /* HOOK-03 */
        return cd_fail(err, CDDP_E_STATE,
                       "comm hook %s: %s is registered already, and only one hook can be",
                       hook->name, d->reducer.hook->name);
    if (d->config.accumulate_in_hook && hook->accumulate == NULL)
        return cd_fail(err, CDDP_E_CONFIG,
                       "accumulate_in_hook needs a comm hook that adds gradients up "
                       "(reproducible); %s does not",
                       hook->name);
    if (d->reducer.phase == CD_REDUCER_REDUCING)
        return cd_fail(err, CDDP_E_STATE,
                       "comm hook %s: a backward is half done, and its gradients are scaled for "
                       "the plain all-reduce; register hooks between iterations",
                       hook->name);
    const cddp_device *device = cd_module_device(&d->module);
    if ((device->flags & CDDP_DEVICE_EXACT) != 0 && (hook->flags & CDDP_HOOK_LINEAR) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "comm hook %s is not linear; device %s proves linear reductions only",
                       hook->name, device->name);
    return CDDP_OK;
}

/* By its flags. Laws that a hook states are believed of one that is compiled in. */
static cddp_event_enum_promise promise_of(const cddp_hook *hook)
{
    const uint32_t mean = CDDP_HOOK_EXACT | CDDP_HOOK_ROUNDED_ONCE | CDDP_HOOK_CASTS_FIRST;
    if ((hook->flags & CDDP_HOOK_NO_COMM) != 0) return CDDP_PROMISE_LOCAL;
    if ((hook->flags & mean) != 0) return CDDP_PROMISE_MEAN;
    if (cd_hook_find(hook->name) == hook) return CDDP_PROMISE_STATED;
    return (hook->flags & CDDP_HOOK_LOSSY) != 0 ? CDDP_PROMISE_OWN : CDDP_PROMISE_UNKNOWN;
}

static void emit_hook(const cddp_ddp *d, const cddp_hook *hook, int64_t level)
{
    int64_t cast = 0;
    for (int64_t dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++)
        if (hook->wire_dtype == CDDP_DTYPE_BIT(dtype)) cast = dtype + 1;
    CD_EMIT(d->tracer, hook_in_force, hook->name, .level = level, .promise = promise_of(hook),
            .cast = cast);
}

static cddp_status register_hook(cddp_ddp *d, const cddp_hook *hook, const cddp_hook *inner,
                                 const char *options, cddp_error *err)
{
    CD_TRY(check_sound(d, err));
    CD_TRY(check_member(d, err));
    CD_TRY(cd_hook_check(hook, err));
    if (inner != NULL) CD_TRY(cd_hook_check(inner, err));
    CD_TRY(check_hook_fits(d, hook, err));
    cddp_hook_context context = {.size = sizeof context,
                                 .group = d->group,
                                 .allocator = d->allocator,
                                 .tracer = d->tracer,
                                 .options = options,
                                 .inner = inner,
                                 .divide_factor = cddp_group_size(d->group),
                                 .accumulates = d->config.accumulate_in_hook,
                                 .averages_contributions = d->config.average_contributions,
                                 .model_digest = model_digest(&d->module),
                                 .parameter_count = d->module.variable_count};
    void *self = NULL;
    cd_tracer_call(d->tracer, hook->name, "create");
    cddp_status status = hook->create != NULL ? hook->create(&context, &self, err)
                                              : cd_hook_refuse_options(&context, hook->name, err);
    cd_tracer_call(d->tracer, NULL, NULL);
    CD_TRY(status);
    status = cd_reducer_take_hook(&d->reducer, hook, self, err);
    if (status != CDDP_OK && hook->destroy != NULL) hook->destroy(self);
    if (status == CDDP_OK) emit_hook(d, hook, 0);
    if (status == CDDP_OK && inner != NULL) emit_hook(d, inner, 1);
    return status;
}

cddp_status cddp_ddp_register_comm_hook(cddp_ddp *d, const cddp_hook *hook, const cddp_hook *inner,
                                        const char *options, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, register_hook(d, hook, inner, options, err), err));
}

void cd_ddp_set_observer(cddp_ddp *d, const cd_bucket_observer *observer)
{
    d->reducer.observer = observer;
}

void cd_ddp_set_continuations(cddp_ddp *d, const cd_continuation_chooser *chooser)
{
    d->reducer.continuations = chooser;
}

void *cddp_ddp_comm_hook_state(cddp_ddp *d)
{
    return d != NULL && d->has_reducer ? d->reducer.hook_self : NULL;
}

static cddp_status set_static_graph(cddp_ddp *d, cddp_error *err)
{
    CD_TRY(check_sound(d, err));
    CD_TRY(check_member(d, err));
    if (d->has_reducer) CD_TRY(cd_static_graph_set(&d->reducer, err));
    return CDDP_OK;
}

cddp_status cddp_ddp_set_static_graph(cddp_ddp *d, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, set_static_graph(d, err), err));
}

static cddp_status set_sparse_metadata(cddp_ddp *d, size_t variable, const int64_t *rows,
                                       size_t row_count, cddp_error *err)
{
    CD_TRY(check_sound(d, err));
    if (variable >= d->module.variable_count)
        return cd_fail(err, CDDP_E_ARG, "variable %zu of %zu", variable, d->module.variable_count);
    if (rows == NULL && row_count > 0)
        return cd_fail(err, CDDP_E_ARG, "rows is NULL but row_count is %zu", row_count);
    CD_TRY(cd_sparse_set_metadata(&d->reducer.sparse, variable, rows, row_count, err));
    return CDDP_OK;
}

cddp_status cddp_ddp_set_sparse_metadata(cddp_ddp *d, size_t variable, const int64_t *rows,
                                         size_t row_count, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, set_sparse_metadata(d, variable, rows, row_count, err), err));
}

typedef struct buffer_hook {
    cddp_buffer_hook_fn hook; /* or */
    cddp_async_buffer_hook_fn async_hook;
    void *context;
    bool is_after_forward;
} buffer_hook;

static cddp_status register_buffer_hook(cddp_ddp *d, const buffer_hook *given, cddp_error *err)
{
    if (given->hook == NULL && given->async_hook == NULL)
        return cd_fail(err, CDDP_E_ARG, "the buffer hook is NULL");
    if (d->join.is_enabled)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "join cannot shadow a custom buffer hook");
    if (cd_buffers_has_hook(&d->buffers))
        return cd_fail(err, CDDP_E_STATE, "a buffer hook is registered already");
    d->buffers.hook = given->hook;
    d->buffers.async_hook = given->async_hook;
    d->buffers.hook_context = given->context;
    d->buffers.hook_after_forward = given->is_after_forward;
    return CDDP_OK;
}

cddp_status cddp_ddp_register_buffer_hook(cddp_ddp *d, cddp_buffer_hook_fn hook, void *context,
                                          bool after_forward, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    const buffer_hook given = {hook, NULL, context, after_forward};
    return CD_PASS(leave(d, register_buffer_hook(d, &given, err), err));
}

cddp_status cddp_ddp_register_async_buffer_hook(cddp_ddp *d, cddp_async_buffer_hook_fn hook,
                                                void *context, bool after_forward, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    const buffer_hook given = {NULL, hook, context, after_forward};
    return CD_PASS(leave(d, register_buffer_hook(d, &given, err), err));
}

cddp_status cddp_ddp_set_buffer(cddp_ddp *d, const char *name, const cddp_tensor *tensor,
                                cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, cd_buffers_replace(&d->buffers, name, tensor, err), err));
}

static cddp_status set_optimizer(cddp_ddp *d, const cddp_optimizer_in_backward *optimizer,
                                 cddp_error *err)
{
    CD_TRY(check_sound(d, err));
    CD_TRY(check_member(d, err));
    if (!d->has_reducer) return cd_fail(err, CDDP_E_STATE, "no parameter is reduced");
    if (d->join.is_enabled && optimizer != NULL &&
        optimizer->overlap >= CDDP_OVERLAP_HOOK_WITH_ZERO_STEP) /* ZRO-09 */
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "join cannot shadow hook_with_zero_step: attach it outside of join");
    CD_TRY(cd_optimizer_in_backward_set(&d->reducer, optimizer, err));
    return CDDP_OK;
}

cddp_status cddp_ddp_set_optimizer_in_backward(cddp_ddp *d,
                                               const cddp_optimizer_in_backward *optimizer,
                                               cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, set_optimizer(d, optimizer, err), err));
}

/* ---- groups ---- */

static cddp_status update_process_group(cddp_ddp *d, cddp_group *group, cddp_error *err)
{
    if (d->has_reducer && d->reducer.zero != NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "hook_with_zero_step: another group would assign the buckets anew, and part "
                       "their owners from the optimizer's state");
    if (group != d->group) {
        CD_EMIT(d->tracer, regroup, NULL,
                .group = group != NULL ? (int64_t)cddp_group_id(group) : -1);
    }
    cd_shadow_leave(d);
    cd_join_fini(&d->join);
    cd_shadow_fini(&d->shadow);
    cd_delayed_abandon(&d->delayed);
    cd_buffers_abandon(&d->buffers);
    d->in_forward = d->awaits_backward = false; /* it does not end in the new group */
    if (d->has_reducer) {
        cd_reducer_reset(&d->reducer);
        CD_TRY(cd_reducer_take_group(&d->reducer, group, err));
    } else {
        forget_failure(d);
    }
    cd_group_hold(group);
    cd_group_let_go(d->held);
    d->group = d->held = group;
    CD_TRY(cd_mixed_end(&d->mixed, err));
    return CDDP_OK;
}

cddp_status cddp_ddp_update_process_group(cddp_ddp *d, cddp_group *group, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(leave(d, update_process_group(d, group, err), err));
}

void cddp_ddp_remove_autograd_hooks(cddp_ddp *d)
{
    if (d != NULL) d->hooks_removed = true;
}

cddp_status cddp_ddp_check_reducer_finalized(cddp_ddp *d, cddp_error *err)
{
    CD_TRY(enter(d, &err));
    return CD_PASS(
        leave(d,
              d->has_reducer ? cd_reducer_check_finalized(&d->reducer, err) : check_sound(d, err),
              err));
}
