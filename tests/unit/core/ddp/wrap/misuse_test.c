/* SPDX-License-Identifier: Apache-2.0 */
/* Every public call of cddp/ddp.h, in every phase, in every mode, in the wrong order and with wrong
** arguments: never an abort.
**
** Each case is (mode, phase, call). The program brings DDP into the phase, makes the call, goes on
** as an ordinary program does, and stops at the first error. Then:
**
**   1. when no call failed, gradients are averages, or the case is one of SEMANTICS' silent ones,
**      listed by tag in `silent`;
**   2. after backward_end (and update_process_group where a backward is half done) whole iterations
**      give the right averages.
**
** All ranks make the same mistake: what happens when one rank alone is wrong is for the peers'
** collectives to find out.
*/
#include "core/ddp/wrap/ddp.h"
#include "core/hooks/hook.h"
#include "tests/unit/core/ddp/fixture.h"

#include <string.h>

#define PARAMETERS 3

/* ---- modes ---- */

static double stepped[LAB_RANKS][PARAMETERS];

static cddp_status record_step(void *context, size_t variable, cddp_grad *grad, cddp_error *err)
{
    lane *l = context;
    (void)err;
    stepped[l->r][variable] = lane_first(l, &grad->value);
    return CDDP_OK;
}

static void attach(lane *l, cddp_optimizer_overlap overlap)
{
    const cddp_optimizer_in_backward o = {.size = sizeof o,
                                          .step = record_step,
                                          .context = l,
                                          .overlap = overlap};
    CHECK_OK(cddp_ddp_set_optimizer_in_backward(l->ddp, &o, &l->err));
}

static void use_unused(lane *l) { l->options.find_unused_parameters = true; }
static void use_static(lane *l) { l->options.static_graph = true; }
static void use_views(lane *l) { l->options.gradient_as_bucket_view = true; }
static void use_static_views(lane *l)
{
    use_static(l);
    use_views(l);
}
static void use_skip(lane *l)
{
    use_unused(l);
    l->options.skip_all_reduce_unused_params = true;
}
static void use_batched(lane *l) { l->options.batched_grad_copy = true; }
static void use_mixed(lane *l) { l->options.mixed_param_dtype = CDDP_F16; }
static void use_accumulation(lane *l) { l->options.accumulate_in_hook = true; }
static void use_buffers(lane *l)
{
    if (l->buffer_count == 0) lane_add_buffer(l, "buffer", CDDP_F32, 2, 1.0);
}
static void add_hook(lane *l, const char *name)
{
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find(name), NULL, NULL, &l->err));
}
static void add_allreduce(lane *l) { add_hook(l, "allreduce"); }
static void add_reproducible(lane *l) { add_hook(l, "reproducible"); }
static void add_apply(lane *l) { attach(l, CDDP_OVERLAP_APPLY_IN_BACKWARD); }
static void add_then(lane *l) { attach(l, CDDP_OVERLAP_HOOK_THEN_OPTIMIZER); }
static void add_zero(lane *l) { attach(l, CDDP_OVERLAP_HOOK_WITH_ZERO_STEP); }
static void add_interleaved(lane *l) { attach(l, CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED); }

typedef struct mode {
    const char *name;
    void (*options)(lane *l); /* before wrapping; may be NULL */
    void (*attach)(lane *l);  /* after it; may be NULL */
    bool strict;
} mode;
static const mode modes[] = {{"plain", NULL, NULL, false},
                             {"find_unused", use_unused, NULL, false},
                             {"static_graph", use_static, NULL, false},
                             {"views", use_views, NULL, false},
                             {"static_graph with views", use_static_views, NULL, false},
                             {"skip_unused", use_skip, NULL, false},
                             {"batched_grad_copy", use_batched, NULL, false},
                             {"mixed precision", use_mixed, NULL, false},
                             {"buffers", use_buffers, NULL, false},
                             {"hook", NULL, add_allreduce, false},
                             {"static_graph with a hook", use_static, add_allreduce, false},
                             {"accumulate_in_hook", use_accumulation, add_reproducible, false},
                             {"optimizer in backward", NULL, add_apply, false},
                             {"hook_then_optimizer", NULL, add_then, false},
                             {"zero step", NULL, add_zero, false},
                             {"interleaved zero step", use_views, add_interleaved, false}};

static void wrap(lane *l)
{
    const mode *m = l->lab->data;
    lane_wrap(l);
    if (m->attach != NULL) m->attach(l);
}

/* ---- an ordinary program, which stops at its first error ---- */

static cddp_status forward(lane *l)
{
    cddp_status status = cddp_ddp_forward_begin(l->ddp, true, &l->err);
    return status == CDDP_OK ? cddp_ddp_forward_end(l->ddp, l->reachable, &l->err) : status;
}

static void give(lane *l, size_t i)
{
    cddp_grad_drop(&l->grads[i]);
    lane_accumulate(l, i, 1.0 + l->r);
}

static cddp_status mark(lane *l, size_t first, size_t end) /* from the last to the first */
{
    cddp_status status = CDDP_OK;
    for (size_t i = end; i-- > first && status == CDDP_OK;) {
        give(l, i);
        status = lane_try_hook(l, i);
    }
    return status;
}

static cddp_status iterate(lane *l)
{
    lane_zero_grad(l, true);
    memset(stepped[l->r], 0, sizeof stepped[l->r]);
    cddp_status status = forward(l);
    if (status == CDDP_OK) status = mark(l, 0, PARAMETERS);
    return status == CDDP_OK ? cddp_ddp_backward_end(l->ddp, &l->err) : status;
}

static bool is_average(lane *l)
{
    const double mean = (1.0 + l->w) / 2.0;
    for (size_t i = 0; i < PARAMETERS; i++) {
        bool reduced = l->grads[i].kind == CDDP_GRAD_DENSE && lane_value(l, i) == mean;
        if (!reduced && stepped[l->r][i] != mean) return false;
    }
    return true;
}
/* Some of it may have been marked twice, which adds up in a window; a local value is no multiple of
** the mean. */
static bool is_reduced(lane *l)
{
    const double mean = (1.0 + l->w) / 2.0;
    for (size_t i = 0; i < PARAMETERS; i++) {
        double value = l->grads[i].kind == CDDP_GRAD_DENSE ? lane_value(l, i) : stepped[l->r][i];
        if (value != mean && value != 2 * mean && value != 3 * mean) return false;
    }
    return true;
}

/* ---- phases: what has happened, and what an ordinary program does next ---- */

enum next { NEXT_FORWARD, NEXT_FORWARD_END, NEXT_BACKWARD, NEXT_REST, NEXT_END };

static cddp_status phase_created(lane *l) { return (void)l, CDDP_OK; }
static cddp_status phase_forward_began(lane *l)
{
    return cddp_ddp_forward_begin(l->ddp, true, &l->err);
}
static cddp_status phase_armed(lane *l) { return forward(l); }
static cddp_status phase_half(lane *l)
{
    cddp_status status = forward(l);
    return status == CDDP_OK ? mark(l, 2, 3) : status;
}
static cddp_status phase_all_ready(lane *l)
{
    cddp_status status = forward(l);
    return status == CDDP_OK ? mark(l, 0, 3) : status;
}
static cddp_status phase_ended(lane *l) { return iterate(l); }
static void give_double(lane *l, size_t i, cddp_tensor *other)
{
    const int64_t two = 2;
    cddp_grad_drop(&l->grads[i]);
    *other = lane_tensor(l, CDDP_F64, &two, 1, 1.0);
    l->grads[i].kind = CDDP_GRAD_DENSE;
    l->grads[i].value = *other;
}
static cddp_status phase_failed(lane *l)
{
    cddp_tensor other;
    cddp_status status = phase_half(l);
    if (status != CDDP_OK) return status;
    give_double(l, 1, &other);
    bool fails =
        lane_try_hook(l, 1) != CDDP_OK || cddp_ddp_backward_end(l->ddp, &l->err) != CDDP_OK;
    cddp_grad_drop(&l->grads[1]);
    lane_release(l, &other);
    return fails ? CDDP_E_STATE : CDDP_OK;
}
static cddp_status phase_failed_and_ended(lane *l)
{
    if (phase_failed(l) != CDDP_OK) (void)!cddp_ddp_backward_end(l->ddp, &l->err);
    return CDDP_OK;
}
static cddp_status phase_left_early(lane *l) /* UPG-02 */
{
    cddp_status status = phase_half(l);
    if (status != CDDP_OK) return status;
    (void)!cddp_ddp_update_process_group(l->ddp, l->group, &l->err);
    return CDDP_OK;
}
static cddp_status phase_no_sync(lane *l)
{
    cddp_ddp_no_sync_begin(l->ddp);
    return forward(l);
}
static cddp_status phase_no_sync_half(lane *l)
{
    cddp_ddp_no_sync_begin(l->ddp);
    cddp_status status = forward(l);
    return status == CDDP_OK ? mark(l, 2, 3) : status;
}
static cddp_status phase_no_grad(lane *l)
{
    cddp_status status = cddp_ddp_forward_begin(l->ddp, false, &l->err);
    return status == CDDP_OK ? cddp_ddp_forward_end(l->ddp, NULL, &l->err) : status;
}
static cddp_status phase_join(lane *l)
{
    cddp_join_options o = cddp_join_options_default();
    o.divide_by_initial_world_size = false;
    cddp_status status = cddp_ddp_join_begin(l->ddp, &o, &l->err);
    return status == CDDP_OK ? forward(l) : status;
}
static cddp_status phase_no_member(lane *l)
{
    return cddp_ddp_update_process_group(l->ddp, NULL, &l->err);
}
static cddp_status phase_removed(lane *l)
{
    cddp_ddp_remove_autograd_hooks(l->ddp);
    return CDDP_OK;
}

typedef struct phase {
    const char *name;
    cddp_status (*enter)(lane *l);
    enum next next;
} phase;
static const phase phases[] = {{"created", phase_created, NEXT_FORWARD},
                               {"forward began", phase_forward_began, NEXT_FORWARD_END},
                               {"forward ended", phase_armed, NEXT_BACKWARD},
                               {"half a backward", phase_half, NEXT_REST},
                               {"all ready", phase_all_ready, NEXT_END},
                               {"backward ended", phase_ended, NEXT_FORWARD},
                               {"failed", phase_failed, NEXT_REST},
                               {"failed and ended", phase_failed_and_ended, NEXT_FORWARD},
                               {"left early", phase_left_early, NEXT_FORWARD},
                               {"no_sync", phase_no_sync, NEXT_BACKWARD},
                               {"half a backward in no_sync", phase_no_sync_half, NEXT_REST},
                               {"no_grad", phase_no_grad, NEXT_BACKWARD},
                               {"join", phase_join, NEXT_BACKWARD},
                               {"no member", phase_no_member, NEXT_FORWARD},
                               {"hooks removed", phase_removed, NEXT_FORWARD}};

static cddp_status go_on(lane *l, enum next next)
{
    cddp_status status = CDDP_OK;
    if (next == NEXT_FORWARD) status = forward(l);
    if (next == NEXT_FORWARD_END) status = cddp_ddp_forward_end(l->ddp, l->reachable, &l->err);
    if (status == CDDP_OK && next != NEXT_END)
        status = mark(l, 0, next == NEXT_REST ? PARAMETERS - 1 : PARAMETERS);
    if (status == CDDP_OK) status = cddp_ddp_backward_end(l->ddp, &l->err);
    return status;
}

/* ---- calls ---- */

#define CALL(name, expression) \
    static cddp_status call_##name(lane *l) { return expression; }
/* Calls that answer nothing. */
#define NOTE(name, statement)               \
    static cddp_status call_##name(lane *l) \
    {                                       \
        statement;                          \
        return CDDP_OK;                     \
    }

CALL(forward_begin, cddp_ddp_forward_begin(l->ddp, true, &l->err))
CALL(forward_begin_no_grad, cddp_ddp_forward_begin(l->ddp, false, &l->err))
CALL(forward_begin_without_error, cddp_ddp_forward_begin(l->ddp, true, NULL))
CALL(forward_end, cddp_ddp_forward_end(l->ddp, l->reachable, &l->err))
CALL(forward_end_without_flags, cddp_ddp_forward_end(l->ddp, NULL, &l->err))
CALL(mark_last, (give(l, 2), cddp_ddp_mark_variable_ready(l->ddp, 2, &l->err)))
CALL(mark_first, (give(l, 0), cddp_ddp_mark_parameter_ready(l->ddp, 0, &l->err)))
CALL(mark_twice, (give(l, 1), (void)!cddp_ddp_mark_variable_ready(l->ddp, 1, &l->err),
                  cddp_ddp_mark_variable_ready(l->ddp, 1, &l->err)))
CALL(mark_nothing, (cddp_grad_drop(&l->grads[1]), cddp_ddp_mark_variable_ready(l->ddp, 1, &l->err)))
CALL(mark_beyond, cddp_ddp_mark_variable_ready(l->ddp, PARAMETERS, &l->err))
CALL(mark_far_beyond, cddp_ddp_mark_variable_ready(l->ddp, SIZE_MAX, &l->err))
CALL(mark_parameter_beyond, cddp_ddp_mark_parameter_ready(l->ddp, SIZE_MAX, &l->err))
CALL(backward_end, cddp_ddp_backward_end(l->ddp, &l->err))
CALL(backward_end_without_error, cddp_ddp_backward_end(l->ddp, NULL))
NOTE(no_sync, (cddp_ddp_no_sync_begin(l->ddp), cddp_ddp_no_sync_end(l->ddp)))
NOTE(no_sync_begin, cddp_ddp_no_sync_begin(l->ddp))
NOTE(no_sync_end, cddp_ddp_no_sync_end(l->ddp))
CALL(join_begin, cddp_ddp_join_begin(l->ddp, NULL, &l->err))
CALL(join_end, cddp_ddp_join_end(l->ddp, &l->err))
CALL(register_hook,
     cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("allreduce"), NULL, NULL, &l->err))
CALL(register_no_hook, cddp_ddp_register_comm_hook(l->ddp, NULL, NULL, NULL, &l->err))
CALL(register_wrapper, cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("fp16_compress_wrapper"),
                                                   cd_hook_find("allreduce"), NULL, &l->err))
CALL(set_static_graph, cddp_ddp_set_static_graph(l->ddp, &l->err))
CALL(sparse_metadata, cddp_ddp_set_sparse_metadata(l->ddp, 0, NULL, 3, &l->err))
CALL(sparse_metadata_beyond,
     cddp_ddp_set_sparse_metadata(l->ddp, (size_t)1 << 32, (const int64_t[1]){0}, 1, &l->err))
CALL(buffer_hook, cddp_ddp_register_buffer_hook(l->ddp, NULL, NULL, false, &l->err))
CALL(async_buffer_hook, cddp_ddp_register_async_buffer_hook(l->ddp, NULL, NULL, false, &l->err))
CALL(set_buffer, cddp_ddp_set_buffer(l->ddp, "none", &l->ones[0], &l->err))
CALL(set_no_buffer, cddp_ddp_set_buffer(l->ddp, NULL, NULL, &l->err))
CALL(set_empty_buffer,
     cddp_ddp_set_buffer(l->ddp, "buffer", &(cddp_tensor){.device = NULL}, &l->err))
CALL(set_no_optimizer, cddp_ddp_set_optimizer_in_backward(l->ddp, NULL, &l->err))
CALL(set_optimizer, cddp_ddp_set_optimizer_in_backward(
                        l->ddp,
                        &(cddp_optimizer_in_backward){.size = sizeof(cddp_optimizer_in_backward),
                                                      .step = record_step,
                                                      .context = l},
                        &l->err))
CALL(update_group, cddp_ddp_update_process_group(l->ddp, l->group, &l->err))
CALL(leave_group, cddp_ddp_update_process_group(l->ddp, NULL, &l->err))
CALL(check_finalized, cddp_ddp_check_reducer_finalized(l->ddp, &l->err))
NOTE(hook_state, cddp_ddp_comm_hook_state(l->ddp))
NOTE(inspect, (cddp_ddp_variable_index(l->ddp, NULL), cddp_ddp_variable_count(l->ddp),
               cddp_ddp_forward_copy(l->ddp, SIZE_MAX), cddp_ddp_optimizer_owner(l->ddp, SIZE_MAX),
               cddp_ddp_local_used_map(l->ddp, NULL), cddp_ddp_wants_graph_search(l->ddp)))
static cddp_status call_get_logging(lane *l)
{
    cddp_ddp_logging logging = {.size = sizeof logging};
    CHECK(cddp_ddp_get_logging(l->ddp, NULL, &l->err) == CDDP_E_ARG);
    return cddp_ddp_get_logging(l->ddp, &logging, &l->err);
}
static cddp_status call_bucket(lane *l)
{
    cddp_bucket_info info = {.size = sizeof info};
    CHECK(cddp_ddp_bucket(l->ddp, 0, NULL, &l->err) == CDDP_E_ARG);
    CHECK(cddp_ddp_bucket(l->ddp, UINT32_MAX, &info, &l->err) == CDDP_E_ARG);
    return CDDP_OK;
}
static cddp_status call_destroy(lane *l)
{
    cddp_ddp_destroy(NULL);
    lane_unwrap(l);
    wrap(l);
    return CDDP_OK;
}
static cddp_status call_drop_slot(lane *l) /* the caller takes the memory of a gradient away */
{
    const mode *m = l->lab->data;
    if (m->options == use_mixed) return CDDP_OK; /* see cddp_ddp_forward_copy: it is borrowed */
    cddp_grad_fini(&l->grads[1]);
    return CDDP_OK;
}

/* What may lie in a gradient's slot when it is marked ready. */
static cddp_status mark_wrong(lane *l, size_t i)
{
    cddp_status status = lane_try_hook(l, i);
    if (status == CDDP_OK) status = cddp_ddp_backward_end(l->ddp, &l->err);
    cddp_grad_drop(&l->grads[i]);
    return status;
}
static cddp_status call_mark_double(lane *l)
{
    cddp_tensor other;
    give_double(l, 0, &other);
    cddp_status status = mark_wrong(l, 0);
    lane_release(l, &other);
    return status;
}
static cddp_status call_mark_short(lane *l)
{
    const int64_t one = 1;
    give(l, 0);
    l->grads[0].value = cddp_tensor_of(l->device, l->grads[0].value.storage,
                                       l->grads[0].value.offset, l->grads[0].value.dtype, &one, 1);
    return mark_wrong(l, 0);
}
static cddp_status call_mark_without_device(lane *l)
{
    give(l, 0);
    l->grads[0].value.device = NULL;
    return mark_wrong(l, 0);
}
static cddp_status call_mark_many_dimensions(lane *l)
{
    give(l, 0);
    l->grads[0].value.dim_count = 200;
    return mark_wrong(l, 0);
}
static cddp_status call_mark_no_dtype(lane *l)
{
    give(l, 0);
    l->grads[0].value.dtype = CDDP_DTYPE_COUNT;
    return mark_wrong(l, 0);
}
static cddp_status call_mark_other_device(lane *l)
{
    cddp_device other = *l->device;
    other.name = "another";
    give(l, 0);
    l->grads[0].value.device = &other;
    return mark_wrong(l, 0);
}
static cddp_status call_mark_sparse(lane *l)
{
    give(l, 0);
    l->grads[0].kind = CDDP_GRAD_SPARSE;
    return mark_wrong(l, 0);
}

typedef struct call {
    const char *name;
    cddp_status (*make)(lane *l);
    bool answers_failure; /* in FAILED, with the first error */
} call;
#define ROW_OF(name)              \
    {                             \
#name, call_##name, false \
    }
#define ANSWERS(name)            \
    {                            \
#name, call_##name, true \
    }
static const call calls[] = {ANSWERS(forward_begin),
                             ANSWERS(forward_begin_no_grad),
                             ANSWERS(forward_begin_without_error),
                             ANSWERS(forward_end),
                             ANSWERS(forward_end_without_flags),
                             ANSWERS(mark_last),
                             ANSWERS(mark_first),
                             ANSWERS(mark_twice),
                             ANSWERS(mark_nothing),
                             ROW_OF(mark_beyond),
                             ROW_OF(mark_far_beyond),
                             ROW_OF(mark_parameter_beyond),
                             ANSWERS(backward_end),
                             ANSWERS(backward_end_without_error),
                             ROW_OF(no_sync),
                             ROW_OF(no_sync_begin),
                             ROW_OF(no_sync_end),
                             ANSWERS(join_begin),
                             ANSWERS(join_end),
                             ANSWERS(register_hook),
                             ANSWERS(register_no_hook),
                             ANSWERS(register_wrapper),
                             ANSWERS(set_static_graph),
                             ANSWERS(sparse_metadata),
                             ANSWERS(sparse_metadata_beyond),
                             ROW_OF(buffer_hook),
                             ROW_OF(async_buffer_hook),
                             ROW_OF(set_buffer),
                             ROW_OF(set_no_buffer),
                             ROW_OF(set_empty_buffer),
                             ANSWERS(set_no_optimizer),
                             ANSWERS(set_optimizer),
                             ROW_OF(update_group),
                             ROW_OF(leave_group),
                             ANSWERS(check_finalized),
                             ROW_OF(hook_state),
                             ROW_OF(inspect),
                             ROW_OF(get_logging),
                             ROW_OF(bucket),
                             ROW_OF(destroy),
                             ROW_OF(drop_slot),
                             ANSWERS(mark_double),
                             ANSWERS(mark_short),
                             ANSWERS(mark_without_device),
                             ANSWERS(mark_many_dimensions),
                             ANSWERS(mark_no_dtype),
                             ANSWERS(mark_other_device),
                             ANSWERS(mark_sparse)};

/* ---- gradients that stay local without an error ---- */

typedef struct silence {
    const char *phase, *call; /* NULL: any */
    const char *tag;
    bool strict; /* asked for by its name, so that `strict` has nothing against it */
} silence;
static const silence silent[] = {
    {"no_sync", NULL, "NSY-02", true},
    {"half a backward in no_sync", NULL, "NSY-02", true},
    {NULL, "no_sync_begin", "NSY-02", true},
    {"no_grad", NULL, "FWD-07", false},
    {NULL, "forward_begin_no_grad", "FWD-07", false},
    {"hooks removed", NULL, "UPG-03", true},
    {"no member", NULL, "UPG-01", false},
    {NULL, "leave_group", "UPG-01", false},
    {NULL, "update_group", "UPG-01", false},
    {NULL, "backward_end", "FWD-09", false},
    {NULL, "backward_end_without_error", "FWD-09", false},
    {NULL, "destroy", "FWD-03", true},
};

static const char *tag_of(const mode *m, const phase *p, const call *c)
{
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++) {
        const silence *s = &silent[i];
        if (m->strict && !s->strict) continue;
        if ((s->phase == NULL || strcmp(s->phase, p->name) == 0) &&
            (s->call == NULL || strcmp(s->call, c->name) == 0))
            return s->tag;
    }
    return NULL;
}

/* ---- the cases ---- */

#define REQUIRE(condition)                                                              \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr,                                                             \
                    "%s:%d: %s: in phase '%s' after %u iterations, call %s: not true: " \
                    "%s; last error: %s\n",                                             \
                    __FILE__, __LINE__, m->name, p->name, warm, c->name, #condition,    \
                    l->err.message);                                                    \
            abort();                                                                    \
        }                                                                               \
    } while (0)

/* As a program does that caught an error. A static graph whose first backward was not whole has
** recorded that one (STA-01), and is made to forget it. */
static void recover(lane *l, unsigned warm)
{
    for (int i = 0; i < 4; i++) cddp_ddp_no_sync_end(l->ddp);
    (void)!cddp_ddp_backward_end(l->ddp, &l->err);
    if (l->ddp->hooks_removed) {
        lane_unwrap(l);
        wrap(l);
    }
    if (l->ddp->group == NULL) CHECK_OK(cddp_ddp_update_process_group(l->ddp, l->group, &l->err));
    const bool recorded = warm == 0 && l->ddp->reducer.static_graph_recorded;
    if ((recorded || cddp_ddp_check_reducer_finalized(l->ddp, &l->err) != CDDP_OK) &&
        cddp_ddp_update_process_group(l->ddp, l->group, &l->err) != CDDP_OK) {
        (void)!mark(l, 0, PARAMETERS); /* a sharded optimizer keeps its group */
        (void)!cddp_ddp_backward_end(l->ddp, &l->err);
    }
    (void)!cddp_ddp_join_end(l->ddp, &l->err);
}

static void try(lane *l, const phase *p, const call *c, unsigned warm)
{
    const mode *m = l->lab->data;
    wrap(l);
    for (unsigned i = 0; i < warm; i++) {
        REQUIRE(iterate(l) == CDDP_OK);
        REQUIRE(is_average(l));
    }
    lane_zero_grad(l, true);
    memset(stepped[l->r], 0, sizeof stepped[l->r]);
    cddp_status status = p->enter(l);
    const bool failed = l->ddp->reducer.phase == CD_REDUCER_FAILED;
    char first[CDDP_ERROR_MESSAGE_BYTES];
    memcpy(first, l->ddp->reducer.failure.message, sizeof first);
    const cddp_status made = c->make(l);
    if (failed && c->answers_failure) {
        cddp_ddp_logging logging = {.size = sizeof logging};
        CHECK_OK(cddp_ddp_get_logging(l->ddp, &logging, NULL));
        REQUIRE(made == CDDP_E_STATE && strcmp(logging.error, first) == 0);
    }
    if (status == CDDP_OK) status = made;
    if (status == CDDP_OK) status = go_on(l, p->next);
    if (status == CDDP_OK && !is_reduced(l) && tag_of(m, p, c) == NULL)
        REQUIRE(cddp_ddp_check_reducer_finalized(l->ddp, &l->err) != CDDP_OK); /* RED-12 */
    recover(l, warm);
    for (int i = 0; i < 4; i++) {
        REQUIRE(iterate(l) == CDDP_OK);
        /* What a hook has added up nobody can drop: the first reduction takes it along. */
        const bool adds = i == 0 && m->options == use_accumulation;
        REQUIRE(adds ? is_reduced(l) : is_average(l));
    }
    lane_unwrap(l);
    lane_zero_grad(l, true);
}

static void misuse_body(lane *l)
{
    const mode *m = l->lab->data;
    static const char *const names[PARAMETERS] = {"a", "b", "c"};
    for (size_t i = 0; i < PARAMETERS; i++) lane_add(l, names[i], CDDP_F32, 2);
    l->options.bucket_cap_mb = 8.0 / 1048576; /* a bucket per parameter, where there is a choice */
    l->options.tracer = NULL;
    l->options.strict = m->strict;
    if (m->options != NULL) m->options(l);
    for (unsigned warm = 0; warm < 4; warm += 3)
        for (size_t p = 0; p < sizeof phases / sizeof phases[0]; p++)
            for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++)
                try(l, &phases[p], &calls[c], warm);
}

TEST(misuse, never_aborts_and_the_next_iteration_is_whole)
{
    for (size_t i = 0; i < 2 * (sizeof modes / sizeof modes[0]); i++) {
        mode m = modes[i / 2];
        m.strict = i % 2 != 0;
        cd_test_row("%s%s", m.name, m.strict ? ", strict" : "");
        lab_of(2, misuse_body, &m);
    }
}

/* ---- strict: what PyTorch does silently ---- */

static void wrap_two(lane *l)
{
    l->options.strict = true;
    lane_add(l, "a", CDDP_F32, 2);
    lane_add(l, "b", CDDP_F32, 2);
    lane_wrap(l);
}

/* After the error backward_end leaves, and the next iteration is whole. */
static void check_whole(lane *l)
{
    (void)!cddp_ddp_backward_end(l->ddp, &l->err);
    lane_zero_grad(l, true);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 1.5 && lane_value(l, 1) == 1.5);
}

LAB(strict, a_gradient_without_a_forward_is_refused, 2) /* FWD-09 */
{
    wrap_two(l);
    lane_accumulate(l, 0, 1.0);
    CHECK_FAILS(cddp_ddp_mark_variable_ready(l->ddp, 0, &l->err), CDDP_E_STATE,
                "'a' was marked ready without a forward");
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE, "'a' was marked ready");
    check_whole(l);
    CHECK_FAILS(cddp_ddp_mark_variable_ready(l->ddp, 0, &l->err), CDDP_E_STATE,
                "call cddp_ddp_forward_begin");
    check_whole(l);
    CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
    CHECK_FAILS(cddp_ddp_mark_variable_ready(l->ddp, 0, &l->err), CDDP_E_STATE,
                "'a' was marked ready before forward_end");
    check_whole(l);
    CHECK_OK(cddp_ddp_forward_begin(l->ddp, false, &l->err)); /* FWD-07 */
    CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
    CHECK_FAILS(cddp_ddp_mark_variable_ready(l->ddp, 0, &l->err), CDDP_E_STATE,
                "without a forward");
    check_whole(l);
}

LAB(strict, begin_and_end_come_in_pairs, 2)
{
    wrap_two(l);
    CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                "forward_begin again before forward_end");
    check_whole(l);
    CHECK_FAILS(cddp_ddp_forward_end(l->ddp, NULL, &l->err), CDDP_E_STATE,
                "forward_end without forward_begin");
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE,
                "backward_end was called without a forward");
    check_whole(l);
    cddp_ddp_no_sync_end(l->ddp);
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                "no_sync_end without no_sync_begin");
    check_whole(l);
}

LAB(strict, a_backward_that_ends_with_gradients_missing_names_them, 2) /* RED-11 */
{
    wrap_two(l);
    lane_forward(l);
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE,
                "none of 2 parameters was marked ready");
    check_whole(l);
    lane_zero_grad(l, true);
    lane_forward(l);
    lane_grad(l, 1, 1.0);
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE,
                "1 of 2 parameters received no gradient ('a')");
    check_whole(l);
    lane_zero_grad(l, true);
    lane_forward(l);
    CHECK_FAILS(cddp_ddp_mark_variable_ready(l->ddp, 1, &l->err), CDDP_E_STATE,
                "'b' was marked ready before its gradient was accumulated");
    check_whole(l);
}

LAB(strict, views_take_no_gradient_that_lies_elsewhere, 2) /* FIN-04 */
{
    float mine[2] = {0.0f, 0.0f};
    const int64_t two = 2;
    const cddp_tensor borrowed = cddp_tensor_of(cddp_device_cpu(), mine, 0, CDDP_F32, &two, 1);
    l->options.strict = l->options.gradient_as_bucket_view = true;
    lane_add(l, "a", CDDP_F32, 2);
    lane_add(l, "b", CDDP_F32, 2);
    l->grads[0].kind = CDDP_GRAD_DENSE;
    l->grads[0].value = borrowed;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG,
                "the gradient of 'a' lies in the caller's storage");
    l->grads[0] = (cddp_grad){.backing = cddp_backing_of(&borrowed), .backing_is_borrowed = true};
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG,
                "the gradient of 'a' lies in the caller's storage");
    l->grads[0] = (cddp_grad){.kind = CDDP_GRAD_UNDEFINED};
    lane_wrap(l);
    lane_iterate(l, 1.0 + l->r);
    lane_forward(l);
    l->grads[1].value = borrowed;
    CHECK_FAILS(cddp_ddp_mark_variable_ready(l->ddp, 1, &l->err), CDDP_E_STATE,
                "the gradient of 'b' lies in the caller's storage");
    check_whole(l);
}

/* A rebuild would move it, and the caller would go on writing to where it was. */
LAB(strict, views_do_not_move_a_gradient_out_of_the_callers_storage, 2) /* REB-08 */
{
    float mine[2] = {0.0f, 0.0f};
    const int64_t two = 2;
    l->options.strict = l->options.gradient_as_bucket_view = true;
    lane_add(l, "a", CDDP_F32, 2);
    lane_add(l, "b", CDDP_F32, 2);
    lane_wrap(l);
    lane_iterate(l, 1.0 + l->r);
    l->grads[1].value = cddp_tensor_of(cddp_device_cpu(), mine, 0, CDDP_F32, &two, 1);
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                "the gradient of 'b' lies in the caller's storage");
    check_whole(l);
}

LAB(strict, a_gradient_has_its_own_memory, 2)
{
    float mine[3] = {0.0f, 0.0f, 0.0f};
    const int64_t two = 2;
    wrap_two(l);
    lane_forward(l);
    for (size_t i = 2; i-- > 0;) { /* they have the middle one in common */
        l->grads[i].kind = CDDP_GRAD_DENSE;
        l->grads[i].value = cddp_tensor_of(cddp_device_cpu(), mine, (int64_t)i, CDDP_F32, &two, 1);
        lane_hook(l, i);
    }
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE,
                "the gradients of 'a' and 'b' share memory");
    check_whole(l);
}

static void give_at(lane *l, size_t i, float *at)
{
    const int64_t two = 2;
    l->grads[i].kind = CDDP_GRAD_DENSE;
    l->grads[i].value = cddp_tensor_of(cddp_device_cpu(), at, 0, CDDP_F32, &two, 1);
}

/* Five gradients in one storage, in every order of their addresses. Two of them that lie side by
** side have an element in common, or one lies where a parameter does. */
#define PLACES 5
typedef struct places {
    size_t of[PLACES];     /* of each variable */
    size_t one, two;       /* variables that overlap; PLACES: they do not */
    size_t in, in_storage; /* a gradient in the storage of that parameter; PLACES: none */
} places;

static void places_body(lane *l)
{
    static const char *const names[PLACES] = {"a", "b", "c", "d", "e"};
    const places *p = l->lab->data;
    float mine[2 * PLACES] = {0.0f};
    char words[96] = "";
    l->options.strict = true;
    for (size_t i = 0; i < PLACES; i++) lane_add(l, names[i], CDDP_F32, 2);
    lane_wrap(l);
    lane_forward(l);
    for (size_t i = PLACES; i-- > 0;) {
        float *at = mine + 2 * p->of[i] + (i == p->one);
        give_at(l, i, i == p->in ? l->parameters[p->in_storage].tensor.storage : at);
        lane_hook(l, i);
    }
    if (p->one < PLACES)
        (void)snprintf(words, sizeof words, "the gradients of '%s' and '%s' share memory",
                       names[p->one < p->two ? p->one : p->two],
                       names[p->one < p->two ? p->two : p->one]);
    else if (p->in < PLACES && p->in != p->in_storage)
        (void)snprintf(words, sizeof words, "'%s' lies in the storage of the parameter '%s'",
                       names[p->in], names[p->in_storage]);
    else if (p->in < PLACES)
        (void)snprintf(words, sizeof words, "'%s' lies in the parameter's own storage",
                       names[p->in]);
    if (words[0] == '\0')
        CHECK_OK(cddp_ddp_backward_end(l->ddp, &l->err));
    else
        CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE, words);
    for (size_t i = 0; i < PLACES; i++) l->grads[i] = (cddp_grad){.kind = CDDP_GRAD_UNDEFINED};
}

TEST(strict, gradients_share_no_memory_in_any_order_of_their_addresses)
{
    for (size_t n = 0; n < 120; n++) { /* the n-th permutation */
        places p = {.one = PLACES, .two = PLACES, .in = PLACES};
        size_t free_places[PLACES] = {0, 1, 2, 3, 4}, at[PLACES], rest = n;
        for (size_t i = 0; i < PLACES; i++) {
            const size_t k = rest % (PLACES - i);
            rest /= PLACES - i;
            at[p.of[i] = free_places[k]] = i;
            free_places[k] = free_places[PLACES - 1 - i];
        }
        cd_test_row("permutation %zu", n);
        lab_of(1, places_body, &p);
        p.one = at[n % (PLACES - 1)];
        p.two = at[n % (PLACES - 1) + 1];
        lab_of(1, places_body, &p);
        p.one = p.two = PLACES;
        p.in = n % PLACES;
        p.in_storage = n / PLACES % PLACES;
        lab_of(1, places_body, &p);
    }
}

/* After many steps, and by a pointer into the other's storage. */
LAB(strict, a_gradient_that_moves_into_anothers_memory_is_seen_in_every_step, 2)
{
    float mine[6] = {0.0f};
    wrap_two(l);
    for (int step = 0; step < 3; step++) {
        lane_forward(l);
        for (size_t i = 2; i-- > 0;) {
            give_at(l, i, mine + 2 * i + (size_t)step % 2); /* apart, here and there */
            lane_hook(l, i);
        }
        CHECK_OK(cddp_ddp_backward_end(l->ddp, &l->err));
    }
    lane_forward(l);
    for (size_t i = 2; i-- > 0;) {
        give_at(l, i, mine + i);
        lane_hook(l, i);
    }
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE,
                "the gradients of 'a' and 'b' share memory");
    check_whole(l);
}

LAB(strict, a_gradient_is_no_other_parameter, 2)
{
    float mine[2] = {0.0f};
    wrap_two(l);
    lane_forward(l);
    give_at(l, 1, mine);
    l->grads[0].kind = CDDP_GRAD_DENSE;
    l->grads[0].value = l->parameters[1].tensor;
    for (size_t i = 2; i-- > 0;) lane_hook(l, i);
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE,
                "the gradient of 'a' lies in the storage of the parameter 'b'");
    check_whole(l);
}

/* Columns of one matrix: their elements alternate. */
LAB(strict, gradients_with_gaps_may_lie_in_each_others, 2)
{
    float mine[4] = {0.0f};
    wrap_two(l);
    lane_forward(l);
    for (size_t i = 2; i-- > 0;) {
        give_at(l, i, mine + i);
        l->grads[i].value.strides[0] = 2;
        lane_hook(l, i);
    }
    CHECK_OK(cddp_ddp_backward_end(l->ddp, &l->err));
}

LAB(strict, a_gradient_is_not_its_parameter, 2)
{
    wrap_two(l);
    lane_forward(l);
    l->grads[1].kind = CDDP_GRAD_DENSE;
    l->grads[1].value = l->parameters[1].tensor;
    lane_hook(l, 1);
    lane_grad(l, 0, 1.0);
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE,
                "the gradient of 'b' lies in the parameter's own storage");
    check_whole(l);
}

/* What a scenario refuses, a program is not given in silence. */
LAB(strict, settings_that_do_nothing_are_refused, 1)
{
    static const double caps[1] = {1};
    const cddp_ddp_options good = l->options;
    lane_add(l, "a", CDDP_F32, 2);
    l->options.strict = true;
    l->options.bucket_cap_mb = 2;
    l->options.bucket_cap_mb_list = caps;
    l->options.bucket_cap_mb_list_count = 1;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "bucket_cap_mb is 2, but bucket_cap_mb_list");
    l->options = good;
    l->options.strict = l->options.skip_all_reduce_unused_params = true;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG,
                "skip_all_reduce_unused_params needs find_unused_parameters");
    l->options.strict = false; /* as PyTorch has it */
    lane_wrap(l);
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("allreduce"), cd_hook_find("topk"),
                                            NULL, &l->err),
                CDDP_E_CONFIG, "comm hook allreduce does not wrap another hook; got topk");
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("topk"), cd_hook_find("noop"),
                                            "k=1", &l->err),
                CDDP_E_CONFIG, "comm hook topk does not wrap another hook; got noop");
}

LAB(strict, options_that_have_no_effect_are_refused, 1) /* BKT-12 */
{
    const cddp_ddp_options zeroed = {.size = sizeof zeroed, .group = l->group};
    lane_add(l, "a", CDDP_F32, 2);
    CHECK_FAILS(cddp_ddp_create(&zeroed, &l->ddp, &l->err), CDDP_E_CONFIG,
                "Begin with cddp_ddp_options_default()");
    CHECK_FAILS(cddp_ddp_bucket(NULL, 0, &(cddp_bucket_info){.size = 4}, &l->err), CDDP_E_ARG,
                "the size of cddp_bucket_info is 4; set it to sizeof(cddp_bucket_info)");
    CHECK_FAILS(cddp_group_create(NULL, &l->group, &l->err), CDDP_E_ARG,
                "cddp_group_options is NULL");
    CHECK_FAILS(cddp_group_create(&(cddp_group_options){.size = 0}, &l->group, &l->err), CDDP_E_ARG,
                "the size of cddp_group_options is 0");
    CHECK_FAILS(cddp_ddp_create(&(cddp_ddp_options){.size = 0}, &l->ddp, &l->err), CDDP_E_ARG,
                "begin with cddp_ddp_options_default()");
    l->options.strict = true;
    l->options.first_bucket_bytes = 4096;
    l->options.bucket_cap_mb = 1;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG,
                "first_bucket_bytes is 4096, but bucket_cap_mb gives");
    l->options.strict = false;
    lane_wrap(l);
}

/* What an older program knew of a struct is enough from its least size on, and not a byte less. */
LAB(misuse, structs_of_older_programs_are_taken_and_cut_ones_are_not, 1)
{
    const uint32_t group_end = offsetof(cddp_ddp_options, group) + sizeof(cddp_group *);
    const uint32_t enable_end = offsetof(cddp_join_options, enable) + sizeof(bool);
    const uint32_t offsets_end = sizeof(cddp_bucket_info);
    cddp_join_options join = cddp_join_options_default();
    cddp_bucket_info info = {.size = offsets_end - 1};
    cddp_ddp_logging log = {.size = offsetof(cddp_ddp_logging, rank) - 1, .rank = 77};
    lane_add(l, "a", CDDP_F32, 2);
    l->options.size = group_end - 1;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "too small for a group");
    l->options.size = group_end;
    lane_wrap(l);
    join.size = enable_end - 1;
    CHECK_FAILS(cddp_ddp_join_begin(l->ddp, &join, &l->err), CDDP_E_ARG, "the join options' size");
    join.size = enable_end;
    CHECK_OK(cddp_ddp_join_begin(l->ddp, &join, &l->err));
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
    CHECK_FAILS(cddp_ddp_bucket(l->ddp, 0, &info, &l->err), CDDP_E_ARG, "cddp_bucket_info");
    info.size = offsets_end;
    CHECK_OK(cddp_ddp_bucket(l->ddp, 0, &info, &l->err));
    CHECK(info.variable_count == 1 && info.numel == 2 && info.offsets[0] == 0);
    CHECK_FAILS(cddp_ddp_get_logging(l->ddp, &log, &l->err), CDDP_E_ARG, "cddp_ddp_logging");
    log.size++;
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(log.world_size == 1 && log.rank == 77); /* nothing behind its size is written */
    l->options = cddp_ddp_options_default();
}

/* ---- arguments that are not there ---- */

LAB(misuse, no_object_is_an_error_and_not_a_crash, 1)
{
    CHECK(l->ddp == NULL);
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        if (strncmp(calls[c].name, "mark_", 5) == 0 || calls[c].make == call_destroy ||
            calls[c].make == call_bucket || calls[c].make == call_drop_slot)
            continue;
        const cddp_status status = calls[c].make(l);
        CHECK(status == CDDP_E_ARG || (status == CDDP_OK && !calls[c].answers_failure));
    }
    CHECK(cddp_grad_define(NULL, NULL, NULL) == CDDP_E_ARG);
    CHECK(cddp_grad_define(&l->grads[0], NULL, NULL) == CDDP_E_ARG);
    CHECK(cddp_grad_define(&l->grads[0], &(cddp_tensor){.device = NULL}, NULL) == CDDP_E_ARG);
    cddp_grad_drop(NULL);
    cddp_grad_fini(NULL);
    CHECK(cddp_ddp_mark_variable_ready(NULL, 0, NULL) == CDDP_E_ARG);
    CHECK(cddp_ddp_mark_parameter_ready(NULL, 0, NULL) == CDDP_E_ARG);
    CHECK(cddp_ddp_create(NULL, &l->ddp, NULL) == CDDP_E_ARG);
    CHECK(cddp_ddp_create(&l->options, NULL, &l->err) == CDDP_E_ARG);
}

LAB(misuse, options_that_point_nowhere_are_refused, 1)
{
    static const char *const nothing[1] = {NULL};
    const cddp_ddp_options good = l->options;
    lane_add(l, "a", CDDP_F32, 2);
    l->options.bucket_cap_mb_list_count = 2;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "bucket_cap_mb_list is NULL");
    l->options = good;
    l->options.delay_all_reduce_count = 1;
    l->options.param_to_hook_all_reduce = "a";
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "delay_all_reduce_named_params is NULL");
    l->options = good;
    l->options.parameters_and_buffers_to_ignore = nothing;
    l->options.ignore_count = 1;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "name 0 of the ignore list is NULL");
    l->options = good;
    l->options.mixed_reduce_dtype = (cddp_dtype)99;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "mixed_reduce_dtype is 99");
    l->options = good;
    l->parameters[0].tensor.dim_count = 100;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "'a' has 100 dimensions");
    l->parameters[0].tensor.dim_count = 1;
    l->parameters[0].tensor.dtype = (cddp_dtype)77;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "'a' has dtype 77");
    l->parameters[0].tensor.dtype = CDDP_F32;
    l->parameters[0].tensor.offset = -3;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "'a' begins at element -3 of its storage");
    l->parameters[0].tensor.offset = 0;
    void *storage = l->parameters[0].tensor.storage;
    l->parameters[0].tensor.storage = NULL;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "parameter 'a' has no storage"); /* INI-03 */
    l->parameters[0].tensor.storage = storage;
    use_buffers(l);
    storage = l->buffers[0].tensor.storage;
    l->buffers[0].tensor.storage = NULL;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "buffer 'buffer' has no storage");
    l->buffers[0].tensor.storage = storage;
    l->options.size = 0;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "options.size is 0, too small");
    l->options = good;
    lane_wrap(l);
    const cddp_join_options none = {.enable = true};
    CHECK_FAILS(cddp_ddp_join_begin(l->ddp, &none, &l->err), CDDP_E_ARG,
                "the join options' size is 0");
}

/* ---- hooks that misbehave ---- */

static cddp_status write_behind(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    (void)self, (void)group;
    const int64_t more = bucket->buffer.sizes[0] + 1;
    const cddp_tensor *b = &bucket->buffer;
    const cddp_tensor wide = cddp_tensor_of(b->device, b->storage, b->offset, b->dtype, &more, 1);
    future->result = *b;
    return wide.device->fill(&wide, 3.0, NULL, err);
}
static cddp_status name_many_works(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                   cddp_future *future, cddp_error *err)
{
    (void)self, (void)group, (void)err;
    future->result = bucket->buffer;
    future->work_count = 1000;
    return CDDP_OK;
}
static cddp_status fail_without_words(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                      cddp_future *future, cddp_error *err)
{
    (void)self, (void)group, (void)err, (void)bucket, (void)future;
    return CDDP_E_IO;
}
static cddp_status fail_in_a_stage(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                   cddp_error *err)
{
    (void)self, (void)bucket, (void)future;
    return cddp_error_set(err, CDDP_E_IO, "the stage failed");
}
static cddp_status post_and_fail_later(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                       cddp_future *future, cddp_error *err)
{
    (void)self;
    future->next = fail_in_a_stage;
    return cd_future_add_allreduce(future, bucket, &bucket->buffer, group, err);
}
static cddp_status go_on_for_ever(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                  cddp_error *err)
{
    (void)self, (void)bucket, (void)err;
    future->next = go_on_for_ever;
    return CDDP_OK;
}
static cddp_status never_end(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    (void)self, (void)group, (void)err;
    future->result = bucket->buffer;
    future->next = go_on_for_ever;
    return CDDP_OK;
}
static cddp_status call_back(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    (void)group, (void)bucket, (void)future;
    return cddp_ddp_update_process_group(*(cddp_ddp **)self, NULL, err);
}
static cddp_ddp *called[LAB_RANKS];
static cddp_status make_call_back(const cddp_hook_context *context, void **self, cddp_error *err)
{
    (void)err;
    *self = &called[cddp_group_rank(context->group)];
    return CDDP_OK;
}

static void bad_hook_body(lane *l)
{
    static const struct {
        cddp_status (*run)(void *, cddp_grad_bucket *, cddp_group *, cddp_future *, cddp_error *);
        cddp_status status;
        const char *words;
    } rows[] = {{write_behind, CDDP_E_CORRUPT, "behind the end of bucket 0 was overwritten"},
                {name_many_works, CDDP_E_STATE, "posted 1000 works for bucket 0"},
                {fail_without_words, CDDP_E_IO, "input/output error"},
                {never_end, CDDP_E_STATE, "comm hook bad: 1001 stages in a row of bucket 0"},
                {post_and_fail_later, CDDP_E_IO, "the stage failed"},
                {call_back, CDDP_E_STATE, "calls the DDP object that is calling it"}};
    const bool *modes_of = l->lab->data; /* static graph, views */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const cddp_hook bad = {.size = sizeof bad,
                               .abi = CDDP_HOOK_ABI,
                               .name = "bad",
                               .create = rows[i].run == call_back ? make_call_back : NULL,
                               .run = rows[i].run};
        l->options.static_graph = modes_of[0];
        l->options.gradient_as_bucket_view = modes_of[1];
        lane_wrap(l);
        called[l->r] = l->ddp;
        CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &bad, NULL, NULL, &l->err));
        for (int again = 0; again < 3; again++) {
            lane_zero_grad(l, true);
            CHECK_OK(forward(l));
            cddp_status status = mark(l, 0, PARAMETERS);
            cddp_status end = cddp_ddp_backward_end(l->ddp, &l->err); /* as programs do */
            CHECK(end == rows[i].status && (status == CDDP_OK || status == end));
            CHECK(strstr(l->err.message, rows[i].words) != NULL);
        }
        lane_unwrap(l);
        lane_zero_grad(l, true);
    }
}
static void bad_hooks(lane *l)
{
    static const char *const names[PARAMETERS] = {"a", "b", "c"};
    for (size_t i = 0; i < PARAMETERS; i++) lane_add(l, names[i], CDDP_F32, 2);
    bad_hook_body(l);
}
TEST(misuse, a_hook_that_misbehaves_is_an_error_of_its_backward)
{
    for (int k = 0; k < 4; k++) {
        bool m[2] = {k % 2 == 1, k / 2 == 1};
        cd_test_row("static graph %d, views %d", m[0], m[1]);
        lab_of(2, bad_hooks, m);
    }
}

/* ---- a gradient that was refused lies in its slot still ---- */

enum wrong { WRONG_SIZE, WRONG_DEVICE, WRONG_STORAGE, WRONG_KIND, WRONG_COUNT };
static const char *const wrong_words[WRONG_COUNT] = {"has 1 elements, the parameter has 2",
                                                     "is on another, the parameter on cpu",
                                                     "has no storage",
                                                     "received a sparse gradient"};

static void leave_wrong(lane *l, enum wrong wrong, cddp_device *other, const cddp_tensor *own)
{
    const int64_t one = 1;
    cddp_grad *g = &l->grads[1];
    give(l, 1);
    g->value.storage = own->storage;
    g->value.offset = 0;
    if (wrong == WRONG_SIZE)
        g->value = cddp_tensor_of(l->device, own->storage, 0, g->value.dtype, &one, 1);
    *other = *l->device;
    other->name = "another";
    if (wrong == WRONG_DEVICE) g->value.device = other;
    if (wrong == WRONG_STORAGE) g->value.storage = NULL;
    if (wrong == WRONG_KIND) g->kind = CDDP_GRAD_SPARSE;
}

static void wrong_gradient_body(lane *l)
{
    const mode *m = l->lab->data;
    static const char *const names[PARAMETERS] = {"a", "b", "c"};
    static const uint32_t members[LAB_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int64_t two = 2;
    cddp_device other;
    cddp_group *groups[2 * WRONG_COUNT];
    size_t group_count = 0;
    cddp_tensor own = lane_tensor(l, CDDP_F32, &two, 1, 9.0);
    for (size_t i = 0; i < PARAMETERS; i++) lane_add(l, names[i], CDDP_F32, 2);
    l->options.bucket_cap_mb = 8.0 / 1048576;
    l->options.tracer = NULL;
    if (m->options != NULL) m->options(l);
    wrap(l);
    for (int i = 0; i < 3; i++) CHECK_OK(iterate(l));
    for (int k = 0; k < 2 * WRONG_COUNT; k++) {
        const enum wrong wrong = (enum wrong)(k / 2);
        const bool swaps = k % 2 == 0 && l->ddp->reducer.zero == NULL;
        lane_zero_grad(l, true);
        CHECK_OK(forward(l));
        CHECK_OK(mark(l, 2, 3));
        leave_wrong(l, wrong, &other, &own);
        cddp_status status = lane_try_hook(l, 1); /* a batched copy looks at the end of a bucket */
        CHECK(status == CDDP_E_STATE);
        CHECK(strstr(l->err.message, "'b'") != NULL);
        CHECK(strstr(l->err.message, wrong_words[wrong]) != NULL);
        CHECK(cddp_ddp_backward_end(l->ddp, &l->err) == CDDP_E_STATE);
        if (swaps) {
            char name[32];
            snprintf(name, sizeof name, "other %d", k);
            cddp_group_options o = {.size = sizeof o, .backend = &l->lab->backend, .rank = l->rank};
            o.spec = (cddp_group_spec){.size = sizeof o.spec,
                                       .name = name,
                                       .group_rank = l->r,
                                       .group_size = l->w,
                                       .members = members};
            CHECK_OK(cddp_group_create(&o, &groups[group_count], &l->err));
            CHECK_OK(cddp_ddp_update_process_group(l->ddp, groups[group_count++], &l->err));
        }
        CHECK_OK(forward(l)); /* it is in the way of nobody as long as nobody marks it */
        CHECK_OK(mark(l, 0, PARAMETERS));
        CHECK_OK(cddp_ddp_backward_end(l->ddp, &l->err));
        for (int i = 0; i < 3; i++) {
            CHECK_OK(iterate(l));
            if (l->ddp->reducer.zero == NULL) CHECK(is_average(l));
        }
    }
    lane_unwrap(l);
    lane_zero_grad(l, true);
    lane_release(l, &own);
    while (group_count > 0) cddp_group_destroy(groups[--group_count]);
}

TEST(misuse, a_refused_gradient_is_named_and_in_the_way_of_no_swap_and_no_forward)
{
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        mode m = modes[i];
        cd_test_row("%s", m.name);
        lab_of(2, wrong_gradient_body, &m);
    }
}

/* ---- the first error is kept, whatever part it came from ---- */

/* Every entry that goes on answers it; so does backward_end, which leaves it. */
static void check_kept(lane *l, cddp_status status, const char *words)
{
    const size_t variables = cddp_ddp_variable_count(l->ddp);
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), status, words);
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, false, &l->err), status, words);
    CHECK_FAILS(cddp_ddp_forward_end(l->ddp, l->reachable, &l->err), status, words);
    for (size_t i = 0; i < l->count; i++) CHECK_FAILS(lane_try_hook(l, i), status, words);
    if (variables > 0) CHECK_FAILS(cddp_ddp_mark_variable_ready(l->ddp, 0, &l->err), status, words);
    CHECK_FAILS(cddp_ddp_check_reducer_finalized(l->ddp, &l->err), status, words);
    CHECK_FAILS(cddp_ddp_join_begin(l->ddp, NULL, &l->err), status, words);
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), status, words);
    CHECK_OK(cddp_ddp_check_reducer_finalized(l->ddp, &l->err));
}

#define DELAYED_NUMEL 5
static struct {
    void *group; /* one per rank */
    int sums;    /* of the delayed buffer */
} posted[LAB_RANKS];
static cddp_backend unrefused;

/* The second delayed sum of a group is refused. */
static cddp_status refuse_second(void *group, const cddp_collective *c, void **work,
                                 cddp_error *err)
{
    size_t i = 0;
    while (posted[i].group != NULL && posted[i].group != group) i++;
    posted[i].group = group;
    const bool is_delayed =
        c->op == CDDP_OP_ALLREDUCE && cddp_tensor_numel(&c->input) == DELAYED_NUMEL;
    if (is_delayed && ++posted[i].sums == 2)
        return cddp_error_set(err, CDDP_E_BACKEND, "this post is refused");
    return unrefused.post(group, c, work, err);
}

static void delayed_body(lane *l)
{
    static const uint32_t members[LAB_RANKS] = {0, 1};
    static const char *const delayed[1] = {"late"};
    const char *trigger = l->lab->data;
    cddp_backend refusing = l->lab->backend;
    refusing.post = refuse_second;
    unrefused = l->lab->backend;
    memset(posted, 0, sizeof posted);
    cddp_group_options o = {.size = sizeof o, .backend = &refusing, .rank = l->rank};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = "refusing",
                               .group_rank = l->r,
                               .group_size = l->w,
                               .members = members};
    cddp_group *group = NULL;
    CHECK_OK(cddp_group_create(&o, &group, &l->err));
    if (strcmp(trigger, "late") != 0) lane_add(l, "first", CDDP_F32, 2);
    const size_t late = l->count;
    lane_add(l, "late", CDDP_F32, DELAYED_NUMEL);
    l->options.group = group;
    l->options.tracer = NULL;
    l->options.delay_all_reduce_named_params = delayed;
    l->options.delay_all_reduce_count = 1;
    l->options.param_to_hook_all_reduce = trigger;
    lane_wrap(l);
    for (int i = 0; i < 4; i++) {
        const double value = 1.0 + l->r;
        lane_zero_grad(l, true);
        lane_forward(l);
        lane_accumulate(l, late, value);
        if (late > 0) {
            CHECK_OK(lane_try_hook(l, late)); /* not the trigger: nothing happens */
            lane_accumulate(l, 0, value);
        }
        const cddp_status status = lane_try_hook(l, 0);
        if (i == 1) {
            CHECK(status == CDDP_E_BACKEND);
            check_kept(l, CDDP_E_BACKEND, "this post is refused");
            continue;
        }
        CHECK_OK(status);
        CHECK_OK(cddp_ddp_backward_end(l->ddp, &l->err));
        for (size_t p = 0; p < l->count; p++) CHECK(lane_value(l, p) == 1.5);
    }
    lane_unwrap(l);
    cddp_group_destroy(group);
}

TEST(misuse, a_refused_delayed_sum_is_kept_as_any_failure)
{
    static const char *const triggers[] = {"first", "late"}; /* with a reducer, and without */
    for (size_t i = 0; i < 2; i++) {
        cd_test_row("the trigger is %s", triggers[i]);
        lab_of(2, delayed_body, (void *)(uintptr_t)triggers[i]);
    }
}

static bool fails_buffers[LAB_RANKS];
static cddp_status fail_when_asked(void *context, cddp_group *group, const cddp_buffer *buffers,
                                   size_t buffer_count, cddp_error *err)
{
    (void)context, (void)buffers, (void)buffer_count;
    return fails_buffers[cddp_group_rank(group)]
               ? cddp_error_set(err, CDDP_E_IO, "the buffer hook failed")
               : CDDP_OK;
}

static void buffers_body(lane *l)
{
    const bool is_after_forward = *(const bool *)l->lab->data;
    static const char *const names[PARAMETERS] = {"a", "b", "c"};
    for (size_t i = 0; i < PARAMETERS; i++) lane_add(l, names[i], CDDP_F32, 2);
    use_buffers(l);
    l->options.tracer = NULL;
    lane_wrap(l);
    CHECK_OK(
        cddp_ddp_register_buffer_hook(l->ddp, fail_when_asked, NULL, is_after_forward, &l->err));
    for (int i = 0; i < 3; i++) {
        fails_buffers[l->r] = false;
        CHECK_OK(iterate(l));
        CHECK(is_average(l));
        fails_buffers[l->r] = true;
        lane_zero_grad(l, true);
        cddp_status status = cddp_ddp_forward_begin(l->ddp, true, &l->err);
        CHECK((status == CDDP_OK) == is_after_forward);
        if (is_after_forward) status = cddp_ddp_forward_end(l->ddp, l->reachable, &l->err);
        CHECK_FAILS(status, CDDP_E_IO, "the buffer hook failed");
        check_kept(l, CDDP_E_IO, "the buffer hook failed");
    }
    lane_unwrap(l);
}

TEST(misuse, a_failure_of_the_forward_is_kept_as_any_failure)
{
    for (int i = 0; i < 2; i++) {
        bool is_after_forward = i == 1;
        cd_test_row("after the forward: %d", i);
        lab_of(2, buffers_body, &is_after_forward);
    }
}

/* A failure comes before the membership: it is what happened first. */
LAB(misuse, a_failure_outside_of_the_group_is_answered_by_every_call, 1)
{
    lane_add(l, "a", CDDP_F32, 2);
    l->options.tracer = NULL;
    lane_wrap(l);
    add_then(l);
    CHECK_OK(cddp_ddp_update_process_group(l->ddp, NULL, &l->err));
    give(l, 0);
    CHECK_FAILS(lane_try_hook(l, 0), CDDP_E_STATE, "'a' received a gradient");
    check_kept(l, CDDP_E_STATE, "'a' received a gradient");
}

/* RED-11: half a backward on every rank alike, left without a group swap. */
static void half_body(lane *l)
{
    const mode *m = l->lab->data;
    static const char *const names[PARAMETERS] = {"a", "b", "c"};
    for (size_t i = 0; i < PARAMETERS; i++) lane_add(l, names[i], CDDP_F32, 2);
    l->options.bucket_cap_mb = 8.0 / 1048576;
    l->options.tracer = NULL;
    if (m->options != NULL) m->options(l);
    wrap(l);
    for (int round = 0; round < 4; round++) {
        const bool is_missing_one = round % 2 == 1;
        for (int i = 0; i < 3; i++) {
            CHECK_OK(iterate(l));
            const bool adds = i == 0 && round > 0 && m->options == use_accumulation;
            CHECK(adds ? is_reduced(l) : is_average(l));
        }
        lane_zero_grad(l, true);
        CHECK_OK(forward(l));
        CHECK_OK(mark(l, 2, 3));
        if (is_missing_one) CHECK_OK(mark(l, 0, 1));
        if (round < 2) CHECK_OK(cddp_ddp_backward_end(l->ddp, &l->err));
        CHECK_FAILS(cddp_ddp_check_reducer_finalized(l->ddp, &l->err), CDDP_E_STATE,
                    is_missing_one ? "received no gradient ('b')"
                                   : "received no gradient ('a', 'b')");
        CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                    "received no gradient");
        check_kept(l, CDDP_E_STATE, "received no gradient");
    }
    CHECK_OK(iterate(l));
    /* All of it is there and only the end was forgotten: it can still be said. */
    lane_zero_grad(l, true);
    CHECK_OK(forward(l));
    CHECK_OK(mark(l, 0, PARAMETERS));
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                "backward_end was not called");
    CHECK_OK(cddp_ddp_backward_end(l->ddp, &l->err));
    CHECK(is_average(l));
    lane_unwrap(l);
    lane_zero_grad(l, true);
}

TEST(misuse, half_a_backward_is_said_by_the_next_forward_and_left_by_its_end)
{
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        mode m = modes[i];
        cd_test_row("%s", m.name);
        lab_of(2, half_body, &m);
    }
}

/* ---- UPG-01, UPG-02 with a static graph ---- */

/* The hook of hook_then_optimizer is DDP's own, not one that the program registered. */
static void own_hook_body(lane *l)
{
    static const uint32_t own[2][1] = {{0}, {1}};
    static const char *const names[PARAMETERS] = {"a", "b", "c"};
    for (size_t i = 0; i < PARAMETERS; i++) lane_add(l, names[i], CDDP_F32, 2);
    wrap(l);
    CHECK_OK(iterate(l));
    CHECK(is_average(l));
    cddp_group_options o = {.size = sizeof o, .backend = &l->lab->backend, .rank = l->rank};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = l->r == 0 ? "solo 0" : "solo 1",
                               .group_size = 1,
                               .members = own[l->r]};
    cddp_group *solo = NULL;
    CHECK_OK(cddp_group_create(&o, &solo, &l->err));
    CHECK_OK(cddp_ddp_update_process_group(l->ddp, solo, &l->err));
    CHECK_OK(iterate(l));
    for (size_t i = 0; i < PARAMETERS; i++) CHECK(stepped[l->r][i] == 1.0 + l->r);
    lane_unwrap(l);
    cddp_group_destroy(solo);
}

TEST(misuse, hooks_that_ddp_brings_follow_to_another_group)
{
    mode rows[] = {{"optimizer in backward", NULL, add_apply, true},
                   {"hook_then_optimizer", NULL, add_then, true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_test_row("%s", rows[i].name);
        lab_of(2, own_hook_body, &rows[i]);
    }
}

/* The commonest wrong order at the end of a program. */
LAB(misuse, a_group_that_was_destroyed_is_an_error_in_words, 2)
{
    static const uint32_t own[2][1] = {{0}, {1}};
    static const char *const names[PARAMETERS] = {"a", "b", "c"};
    for (size_t i = 0; i < PARAMETERS; i++) lane_add(l, names[i], CDDP_F32, 2);
    lane_wrap(l);
    cddp_group_options o = {.size = sizeof o, .backend = &l->lab->backend, .rank = l->rank};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = l->r == 0 ? "solo 0" : "solo 1",
                               .group_size = 1,
                               .members = own[l->r]};
    cddp_group *solo = NULL;
    CHECK_OK(cddp_group_create(&o, &solo, &l->err));
    CHECK_OK(cddp_ddp_update_process_group(l->ddp, solo, &l->err));
    CHECK_OK(iterate(l));
    cddp_group_destroy(solo);
    lane_zero_grad(l, true);
    CHECK(iterate(l) == CDDP_E_STATE);
    CHECK(strstr(l->err.message, "was destroyed") != NULL);
    CHECK_OK(cddp_ddp_update_process_group(l->ddp, l->group, &l->err));
    CHECK_OK(iterate(l));
    lane_unwrap(l);
}

/* Who used what is a fact of a group: after a swap the first pass is made again. */
LAB(misuse, a_static_graph_begins_anew_in_another_group, 2)
{
    static const uint32_t own[2][1] = {{0}, {1}};
    static const char *const names[PARAMETERS] = {"a", "b", "c"};
    for (size_t i = 0; i < PARAMETERS; i++) lane_add(l, names[i], CDDP_F32, 2);
    l->options.static_graph = true;
    lane_wrap(l);
    cddp_group_options o = {.size = sizeof o, .backend = &l->lab->backend, .rank = l->rank};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = l->r == 0 ? "solo 0" : "solo 1",
                               .group_size = 1,
                               .members = own[l->r]};
    cddp_group *solo = NULL;
    CHECK_OK(cddp_group_create(&o, &solo, &l->err));
    for (int round = 0; round < 3; round++) {
        /* Parameter 2 is used on rank 1 alone. */
        cddp_group *group = round == 1 ? solo : l->group;
        CHECK_OK(cddp_ddp_update_process_group(l->ddp, group, &l->err));
        for (int i = 0; i < 4; i++) {
            lane_zero_grad(l, true);
            CHECK_OK(forward(l));
            CHECK_OK(mark(l, 0, l->r == 1 ? 3 : 2));
            CHECK_OK(cddp_ddp_backward_end(l->ddp, &l->err));
            CHECK(lane_value(l, 0) == (round == 1 ? 1.0 + l->r : 1.5));
            if (round == 1)
                CHECK(lane_has(l, 2) == (l->r == 1));
            else
                CHECK(lane_value(l, 2) == 1.0);
        }
    }
    lane_unwrap(l);
    cddp_group_destroy(solo);
}

TEST_MAIN()
