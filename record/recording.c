/* SPDX-License-Identifier: Apache-2.0 */
/* Attaches a tracer with a shard behind it to the groups and wrappers of this process.
**
** It looks at the environment once, when the first group is made or the program says something, and
** at nothing in a process that has no recording. docs/decisions/0008-record.md says why there is a
** state of the process.
*/
#if defined(__linux__)
#define _DEFAULT_SOURCE /* on_exit */
#endif
#define _POSIX_C_SOURCE 200809L
#include "record/recording.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/trace/setting.h"
#include "record/launcher.h"
#include "record/pass.h"
#include "record/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cd_recording recording;

/* ---- events ---- */

static uint64_t read_clock(cddp_rank *rank)
{
    (void)rank;
    return cd_os_now_ns();
}

static const cddp_world_ops clock_ops = {.size = sizeof clock_ops,
                                         .abi = CDDP_WORLD_ABI,
                                         .name = "recorder",
                                         .now_ns = read_clock};

/* A program that does not say where a step begins: a step ends with a backward that was reduced,
** and the next forward begins another one. Every forward before that is a micro-step. */
static void follow_steps(cd_recording *r, const cddp_event *event)
{
    if (event->kind == CDDP_EV_backward_end) {
        r->is_finalized |= event->as.backward_end.finalized != 0;
    } else if (event->kind == CDDP_EV_forward_begin && event->as.forward_begin.grad_mode) {
        if (r->is_finalized)
            cddp_tracer_set_step(&r->tracer, r->tracer.step + 1, 0);
        else if (r->has_forward)
            cddp_tracer_set_step(&r->tracer, r->tracer.step, r->tracer.micro_step + 1);
        r->has_forward = true;
        r->is_finalized = false;
    }
}

/* The dtype that it rounds a mean in, or that it hands to a hook inside which makes one. */
static void learn_hook(cd_recording *r, const cddp_event_hook_in_force *h)
{
    const bool is_mean = h->promise == CDDP_PROMISE_MEAN;
    cd_recorded_hook *hook = &cd_recording_here(r)->hook;
    if (h->level == 0) *hook = (cd_recorded_hook){.cast = h->cast - 1, .is_whole = true};
    if (!is_mean && (h->level > 0 || h->promise != CDDP_PROMISE_STATED)) hook->cast = -1;
}

/* By its number among the reduced ones: no position lies before that. */
static cd_recorded_parameter *find_variable(cd_recording *r, int64_t variable)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    for (size_t i = variable > 0 ? (size_t)variable : 0; i < w->parameter_count; i++)
        if (w->parameters[i].variable == variable) return &w->parameters[i];
    return NULL;
}

static void learn_final(cd_recording *r, const cddp_event_grad_final *g)
{
    cd_recorded_parameter *p = find_variable(r, g->param);
    if (p != NULL) p->reduced = g->digest;
}

static void learn(cd_recording *r, const cddp_event *event)
{
    if (event->kind == CDDP_EV_grad_final) learn_final(r, &event->as.grad_final);
    if (event->kind == CDDP_EV_hook_in_force) learn_hook(r, &event->as.hook_in_force);
    if (event->kind == CDDP_EV_join_notify) cd_recording_here(r)->has_join = true;
    if (event->kind == CDDP_EV_option &&
        event->as.option.key == cd_setting_id(CDDP_KEY_ddp_accumulate_in_hook))
        cd_recording_here(r)->adds_in_hook = event->as.option.value != 0;
    if (event->kind == CDDP_EV_param && event->as.param.ordinal >= 0) {
        cd_recorded_parameter *p = cd_recording_find(r, (size_t)event->as.param.ordinal);
        if (p == NULL) return;
        p->variable = event->as.param.param;
        p->is_known = true;
        p->is_frozen = !event->as.param.requires_grad && !event->as.param.ignored;
    } else if (event->kind == CDDP_EV_group && event->as.group.members == r->rank.world_size) {
        if (r->group < 0) r->group = event->as.group.group;
    } else if (event->kind == CDDP_EV_wrap) {
        cd_recording_here(r)->has_wrapper = true;
    } else if (event->kind == CDDP_EV_bucket_layout) {
        cd_recording_here(r)->has_reducer = true;
    }
}

uint64_t cd_recording_bit(const cd_recording *r)
{
    return UINT64_C(1) << (r->tracer.wrapper > 0 ? r->tracer.wrapper : 0);
}

/* From a forward that will be reduced to the end of its backward. */
static void learn_backward(cd_recording *r, const cddp_event *event)
{
    const uint64_t bit = cd_recording_bit(r);
    if (event->kind == CDDP_EV_forward_begin && event->as.forward_begin.grad_mode)
        r->reduces = event->as.forward_begin.sync ? r->reduces | bit : r->reduces & ~bit;
    if (event->kind == CDDP_EV_backward_end) r->reduces &= ~bit;
    r->is_sharded |= event->kind == CDDP_EV_unit_part;
}

/* What lies in memory, at the moments that a wrapper shows. */
static void look(cd_recording *r, const cddp_event *event)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    if (event->kind == CDDP_EV_forward_begin)
        w->is_in_pass = event->as.forward_begin.grad_mode != 0;
    if (event->kind == CDDP_EV_backward_end) cd_pass_end_backward(r);
    if (event->kind == CDDP_EV_forward_begin && w->is_in_pass) {
        cd_storage_look_at_begin(r);
        cd_storage_look_at_accumulated(r);
        cd_storage_look_at_gradients(r);
    } else if (event->kind == CDDP_EV_forward_end) {
        if (w->is_in_pass) cd_pass_look(r); /* an evaluation has its own parameters by right */
        cd_storage_look_at_gradients(r);
    } else if (event->kind == CDDP_EV_mark_ready) {
        cd_storage_begin_backward(r);
    } else if (event->kind == CDDP_EV_backward_end && event->as.backward_end.finalized) {
        cd_storage_end_backward(r);
    } else if (event->kind == CDDP_EV_backward_end) {
        cd_storage_keep_accumulated(r);
    } else if (event->kind == CDDP_EV_join_end) {
        cd_storage_accept(r);
    }
}

static cddp_status close_now(cd_recording *r, cddp_error *err);

/* Of a process that does not know yet which rank it is. */
static void keep_event(cd_recording *r, const cddp_event *event)
{
    if (!cd_vec_grow(NULL, (void **)&r->kept, &r->kept_capacity, r->kept_count + 1,
                     sizeof *r->kept)) {
        r->is_out_of_memory = true;
        return;
    }
    r->kept[r->kept_count] = *event;
    if (event->text != NULL) {
        r->kept[r->kept_count].text = cd_strdup(NULL, event->text);
        r->is_out_of_memory |= r->kept[r->kept_count].text == NULL;
    }
    r->kept_count++;
}

static void release_kept(cd_recording *r)
{
    for (size_t i = 0; i < r->kept_count; i++) cd_strfree(NULL, (char *)(uintptr_t)r->kept[i].text);
    cd_release(NULL, r->kept, r->kept_capacity * sizeof *r->kept);
    r->kept = NULL;
    r->kept_count = r->kept_capacity = 0;
}

static void take_event(void *self, const cddp_event *event)
{
    cd_recording *r = self;
    cddp_event stamped = *event;
    learn(r, event);
    learn_backward(r, event);
    if (!r->says_steps) follow_steps(r, event);
    stamped.step = r->tracer.step;
    stamped.micro_step = r->tracer.micro_step;
    if (r->state == CD_RECORDING_WAITS)
        keep_event(r, &stamped);
    else
        cddp_shard_emit(r->shard, &stamped);
    look(r, event);
    if (event->kind == CDDP_EV_group) r->groups++;
    if (event->kind == CDDP_EV_group_close && r->groups > 0) r->groups--;
    if (r->is_closing && r->groups == 0) {
        const cddp_status closed = close_now(r, NULL);
        (void)closed; /* what went wrong is in the shard */
    }
}

cd_recorded_wrapper *cd_recording_here(cd_recording *r)
{
    return &r->wrappers[r->tracer.wrapper > 0 ? r->tracer.wrapper : 0];
}

cd_recorded_parameter *cd_recording_find(cd_recording *r, size_t parameter)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    if (parameter >= CD_RECORDED_PARAMETERS_MAX) return NULL;
    if (!cd_vec_grow(NULL, (void **)&w->parameters, &w->parameter_capacity, parameter + 1,
                     sizeof *w->parameters)) {
        r->is_out_of_memory = true;
        return NULL;
    }
    for (; w->parameter_count <= parameter; w->parameter_count++)
        w->parameters[w->parameter_count] =
            (cd_recorded_parameter){.variable = (int64_t)w->parameter_count};
    return &w->parameters[parameter];
}

static void release_parameters(cd_recording *r)
{
    for (size_t i = 0; i < CD_TRACER_WRAPPERS_MAX; i++) {
        cd_recorded_wrapper *w = &r->wrappers[i];
        cd_release(NULL, w->parameters, w->parameter_capacity * sizeof *w->parameters);
        cd_roundings_fini(&w->hook.roundings);
    }
}

/* Note [A tracer outlives its recording]
** Groups and wrappers keep the tracer that they were given: one that is still there when the
** recording has ended, or in a child process, posts on. What it says then is nobody's. */
static void ignore_event(void *self, const cddp_event *event) { (void)self, (void)event; }

static const cddp_trace_sink ignored = {sizeof ignored, CDDP_TRACE_ABI, NULL, ignore_event, NULL};

static void forget(cd_recording *r, cd_recording_state state)
{
    release_parameters(r);
    release_kept(r);
    *r = (cd_recording){.state = state, .unseen = r->unseen};
    r->rank = (cddp_rank){&clock_ops, NULL, 0, 1, NULL};
    r->tracer = (struct cddp_tracer){.sink = &ignored, .rank = &r->rank};
}

/* ---- the shard ---- */

/* The program left without saying how it ended: its exit code does. */
#ifdef __GLIBC__
static void leave(int code, void *unused)
{
    (void)unused;
    cd_recording *r = &recording;
    if (r->state != CD_RECORDING_ON || r->process != cd_os_process_id()) return;
    const bool has_said = r->is_closing && code == 0;
    if (code == 0 && !has_said) CD_EMIT(&r->tracer, mark, CD_TRACER_LEFT_BY_EXIT, .value = 0);
    CD_EMIT(&r->tracer, rank_end, has_said && r->why[0] != '\0' ? r->why : NULL,
            .status = has_said    ? r->ended
                      : code == 0 ? CDDP_OK
                                  : CDDP_E_ABORTED,
            .end = code == 0 ? CDDP_RANK_RETURNED : CDDP_RANK_CRASHED, .detail = code);
    const cddp_status closed = cddp_shard_close(r->shard, NULL);
    (void)closed; /* what went wrong is in the shard */
    forget(r, CD_RECORDING_OFF);
}
static void watch_exit(void)
{
    const int failed = on_exit(leave, NULL);
    (void)failed; /* then the recording has no end, and says so */
}
#else
static void watch_exit(void) {}
#endif

/* Files that an older job left: of restarts that this one has not had, and of ranks that it does
** not have. */
static void remove_older(const cd_recording *r)
{
    char path[sizeof r->path + 64];
    cddp_shard_reader *old = NULL;
    if (r->options.generation != 0) return;
    for (uint32_t generation = 1;; generation++) {
        snprintf(path, sizeof path, "%s.%u.%u", r->path, r->rank.rank, generation);
        if (cddp_shard_reader_open(path, &old, NULL) != CDDP_OK) break;
        cddp_shard_reader_close(old);
        remove(path);
    }
    for (uint32_t rank = r->rank.world_size; r->rank.rank == 0; rank++) {
        snprintf(path, sizeof path, "%s.%u", r->path, rank);
        if (cddp_shard_reader_open(path, &old, NULL) != CDDP_OK) break;
        cddp_shard_reader_close(old);
        remove(path);
    }
}

static void prepare(cd_recording *r, uint32_t rank, uint32_t world_size)
{
    r->rank = (cddp_rank){&clock_ops, NULL, rank, world_size, NULL};
    r->process = cd_os_process_id();
    r->sink = (cddp_trace_sink){sizeof r->sink, CDDP_TRACE_ABI, r, take_event, NULL};
    r->tracer = (struct cddp_tracer){.sink = &r->sink,
                                     .rank = &r->rank,
                                     .level = r->options.level,
                                     .watch = &cd_recording_watch};
    for (size_t i = 0; i < CD_TRACER_WRAPPERS_MAX; i++) r->wrappers[i].hook.cast = -1;
    r->group = -1;
}

static cddp_status open_file(cd_recording *r, uint32_t rank, uint32_t world_size, cddp_error *err)
{
    char path[sizeof r->path + 64];
    cd_launcher launcher = {.kind = CD_LAUNCHER_NONE};
    CD_TRY(cd_launcher_read(&launcher, err));
    if (r->options.generation == 0) r->options.generation = launcher.generation;
    snprintf(path, sizeof path, r->options.generation > 0 ? "%s.%u.%u" : "%s.%u", r->path, rank,
             r->options.generation);
    const cddp_shard_options options = {.size = sizeof options,
                                        .path = path,
                                        .rank = rank,
                                        .world_size = world_size,
                                        .generation = r->options.generation,
                                        .level = r->options.level,
                                        .job = r->run != 0 ? CDDP_SHARD_RUN << 48 | r->run >> 16
                                                           : launcher.job};
    return CD_PASS(cddp_shard_open(&options, &r->shard, err));
}

static void emit_begin(cd_recording *r, uint32_t world_size)
{
    CD_EMIT(&r->tracer, rank_begin, NULL, .world_size = world_size);
    CD_EMIT(&r->tracer, mark, CD_TRACER_RECORDED, .value = 0);
}

static cddp_status open_shard(cd_recording *r, uint32_t rank, uint32_t world_size, cddp_error *err)
{
    CD_TRY(open_file(r, rank, world_size, err));
    prepare(r, rank, world_size);
    remove_older(r);
    r->state = CD_RECORDING_ON;
    watch_exit();
    emit_begin(r, world_size);
    return CDDP_OK;
}

static void fail_to_begin(cd_recording *r, const cddp_error *err)
{
    forget(r, CD_RECORDING_OFF);
    r->failure = *err;
}

/* A failure is the recording's, never the program's: it is kept for close. */
static void begin(cd_recording *r, uint32_t rank, uint32_t world_size)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (open_shard(r, rank, world_size, &err) != CDDP_OK) fail_to_begin(r, &err);
}

/* What a parent recorded is the parent's; and what was said before the rank was known. */
static void begin_again(cd_recording *r)
{
    cd_recording armed = {.options = r->options, .run = r->run, .starts_ranks = r->starts_ranks};
    memcpy(armed.path, r->path, sizeof armed.path);
    const cddp_status closed = cddp_shard_close(r->shard, NULL); /* forgets, and writes nothing */
    (void)closed;
    forget(r, CD_RECORDING_ARMED);
    r->options = armed.options;
    r->run = armed.run;
    r->starts_ranks = armed.starts_ranks;
    memcpy(r->path, armed.path, sizeof r->path);
}

static void read_environment(cd_recording *r)
{
    const char *path = cd_launcher_variable("CDDP_RECORD");
    r->state = CD_RECORDING_OFF;
    if (path == NULL || strlen(path) >= sizeof r->path) return;
    snprintf(r->path, sizeof r->path, "%s", path);
    r->options = cddp_record_options_default();
    r->state = CD_RECORDING_ARMED;
}

/* Note [A program without groups]
** A process that says something before its first group may be a rank of many, or train alone. What
** it says is kept in memory. The first group tells, and then only what follows is recorded, as it
** is where nothing was said before. An optimizer that steps without a group tells too, and so does
** the end: it is the rank that a launcher started, or the only one. */
static cd_recording *await_rank(cd_recording *r)
{
    cd_launcher launcher = {.kind = CD_LAUNCHER_NONE};
    if (r->state == CD_RECORDING_UNREAD) read_environment(r);
    if (r->state == CD_RECORDING_WAITS && r->process != cd_os_process_id()) begin_again(r);
    if (r->state != CD_RECORDING_ARMED) return r->state == CD_RECORDING_WAITS ? r : NULL;
    if (r->starts_ranks || cd_launcher_read(&launcher, NULL) != CDDP_OK) return NULL;
    const bool is_alone = launcher.kind == CD_LAUNCHER_NONE;
    prepare(r, is_alone ? 0 : launcher.rank, is_alone ? 1 : launcher.world_size);
    r->is_alone = is_alone;
    r->state = CD_RECORDING_WAITS;
    emit_begin(r, r->rank.world_size);
    return r;
}

void cd_recording_settle_rank(cd_recording *r)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (r->state != CD_RECORDING_WAITS) return;
    if (open_file(r, r->rank.rank, r->rank.world_size, &err) != CDDP_OK) {
        fail_to_begin(r, &err);
        return;
    }
    remove_older(r);
    r->state = CD_RECORDING_ON;
    watch_exit();
    for (size_t i = 0; i < r->kept_count; i++) cddp_shard_emit(r->shard, &r->kept[i]);
    release_kept(r);
}

/* It was no rank alone: what it recorded as one is not judged, since it has no end. */
static void give_up(cd_recording *r, uint32_t world_size)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_status closed = cddp_shard_close(r->shard, NULL);
    (void)closed;
    (void)cd_fail(&err, CDDP_E_STATE,
                  "an optimizer stepped before the first group, of %u ranks, was made: make the "
                  "group first, or name rank and world_size in cddp_record_open",
                  world_size);
    fail_to_begin(r, &err);
}

struct cddp_tracer *cd_record_attach(cddp_rank *rank, struct cddp_tracer *own)
{
    cd_recording *r = &recording;
    const bool is_begun = r->state == CD_RECORDING_ON || r->state == CD_RECORDING_WAITS;
    if (own != NULL) return own;
    if (r->state == CD_RECORDING_UNREAD) read_environment(r);
    if (is_begun && r->process != cd_os_process_id()) begin_again(r);
    if (r->state == CD_RECORDING_WAITS) begin_again(r);
    if (r->state == CD_RECORDING_ON && r->is_alone && rank->world_size > 1)
        give_up(r, rank->world_size);
    if (r->state == CD_RECORDING_ARMED) begin(r, rank->rank, rank->world_size);
    if (r->state == CD_RECORDING_OFF && rank->world_size > 1) r->unseen = cd_os_process_id();
    return r->state == CD_RECORDING_ON && r->rank.rank == rank->rank ? &r->tracer : NULL;
}

/* ---- how a rank that this process started died ---- */

/* Its recording cannot say so. The format is that of verify/import/notes.h. */
void cd_recording_note(uint32_t rank, const cddp_rank_result *result)
{
    cd_recording *r = &recording;
    const bool is_killed = result->end == CDDP_RANK_KILLED && result->detail > 0;
    const bool is_stopped = result->end == CDDP_RANK_HUNG; /* by us, when others had failed */
    char path[sizeof r->path + 64], words[64];
    cd_launcher launcher = {.kind = CD_LAUNCHER_NONE};
    if (r->state == CD_RECORDING_UNREAD) read_environment(r);
    const bool has_left = result->end == CDDP_RANK_CRASHED; /* with 0 too: by _exit */
    if (r->state == CD_RECORDING_OFF || !(is_killed || is_stopped || has_left)) return;
    if (cd_launcher_read(&launcher, NULL) != CDDP_OK) return;
    const uint32_t generation =
        r->options.generation != 0 ? r->options.generation : launcher.generation;
    snprintf(path, sizeof path, generation > 0 ? "%s.%u.%u.exit" : "%s.%u.exit", r->path, rank,
             generation);
    FILE *file = fopen(path, "w");
    if (file == NULL) return; /* then check says that it was killed, or crashed */
    const int length =
        is_stopped ? snprintf(words, sizeof words, "cddp exit note 1\nsignal 9\nstopped 1\n")
                   : snprintf(words, sizeof words, "cddp exit note 1\n%s %d\n",
                              is_killed ? "signal" : "code", (int)result->detail);
    (void)fwrite(words, 1, (size_t)length, file);
    fclose(file);
}

/* ---- the public face ---- */

cddp_record_options cddp_record_options_default(void)
{
    return (cddp_record_options){.size = sizeof(cddp_record_options), .level = CDDP_TRACE_DIGEST};
}

cddp_status cddp_record_open(const char *path, const cddp_record_options *options, cddp_error *err)
{
    cd_recording *r = &recording;
    const cddp_record_options o = options != NULL ? *options : cddp_record_options_default();
    if (path == NULL || path[0] == '\0' || strlen(path) >= sizeof r->path)
        return cd_fail(err, CDDP_E_ARG, "cddp_record_open: a path of at most %zu characters",
                       sizeof r->path - 1);
    if (o.size < sizeof o || o.level > CDDP_TRACE_PAYLOAD)
        return cd_fail(err, CDDP_E_ARG,
                       "cddp_record_open: begin with cddp_record_options_default()");
    if (r->state == CD_RECORDING_ON && r->process == cd_os_process_id() && r->is_closing)
        CD_TRY(close_now(r, err));
    if (r->state == CD_RECORDING_ON && r->process == cd_os_process_id())
        return cd_fail(err, CDDP_E_STATE, "this process records %s already", r->path);
    if (r->unseen == cd_os_process_id())
        return cd_fail(err, CDDP_E_STATE,
                       "cddp_record_open comes too late: this process has made a group of several "
                       "ranks already, and what goes through it would be missing. Open the "
                       "recording first, before cddp_init; or set CDDP_RECORD");
    cd_launcher launcher = {.kind = CD_LAUNCHER_NONE};
    CD_TRY(cd_launcher_read(&launcher, err));
    const uint64_t run = r->run;
    if (r->state == CD_RECORDING_ON) begin_again(r); /* a parent's */
    forget(r, CD_RECORDING_ARMED);
    r->options = o;
    r->run = run;
    snprintf(r->path, sizeof r->path, "%s", path);
    const bool is_said = o.world_size > 0, is_launched = launcher.kind != CD_LAUNCHER_NONE;
    if (!is_said && !is_launched) return CDDP_OK;
    const cddp_status status = open_shard(r, is_said ? o.rank : launcher.rank,
                                          is_said ? o.world_size : launcher.world_size, err);
    if (status != CDDP_OK) r->state = CD_RECORDING_OFF;
    return CD_PASS(status);
}

static cddp_status finish(cd_recording *r, cddp_error *err)
{
    if (r->failure.status != CDDP_OK)
        return cd_fail(err, r->failure.status, "nothing was recorded: %s", r->failure.message);
    if (r->state != CD_RECORDING_ON) return CDDP_OK;
    const bool is_out_of_memory = r->is_out_of_memory;
    CD_TRY(cddp_shard_close(r->shard, err));
    return is_out_of_memory ? cd_fail_memory(err, "the recording: events are missing") : CDDP_OK;
}

static cddp_status close_now(cd_recording *r, cddp_error *err)
{
    r->is_closing = false;
    if (r->state == CD_RECORDING_ON)
        CD_EMIT(&r->tracer, rank_end, r->ended != CDDP_OK && r->why[0] != '\0' ? r->why : NULL,
                .status = r->ended, .end = CDDP_RANK_RETURNED);
    const cddp_status status = finish(r, err);
    forget(r, CD_RECORDING_OFF);
    return status;
}

void cd_recording_end_with(cddp_status ended, const char *why)
{
    cd_recording *r = &recording;
    if (r->ended != CDDP_OK) return; /* the first failure is the one */
    r->ended = ended;
    snprintf(r->why, sizeof r->why, "%s", ended != CDDP_OK && why != NULL ? why : "");
}

bool cd_recording_is_closing(void) { return recording.is_closing; }

/* What a group does until it is destroyed belongs to the recording, and one that cddp_init or
** cddp_run_ranks made is destroyed by the library, behind the program's last line. */
cddp_status cddp_record_close(cddp_status ended, const char *why, cddp_error *err)
{
    cd_recording *r = &recording;
    const bool is_begun = r->state == CD_RECORDING_ON || r->state == CD_RECORDING_WAITS;
    if (is_begun && r->process != cd_os_process_id()) begin_again(r);
    cd_recording_settle_rank(r);
    cd_recording_end_with(ended, why);
    if (r->state != CD_RECORDING_ON || r->groups == 0) return CD_PASS(close_now(r, err));
    r->is_closing = true;
    return CD_PASS(cddp_shard_flush(r->shard, err));
}

cd_recording *cd_recording_get(void)
{
    cd_recording *r = &recording;
    if (r->state == CD_RECORDING_ON) return r;
    return r->state != CD_RECORDING_OFF ? await_rank(r) : NULL;
}

/* The number of the only wrapper that there is, 0 before the first one; -1 where there are, or
** were, several. */
static int64_t only_wrapper(cd_recording *r)
{
    const uint64_t live = r->tracer.wrappers;
    const bool is_one = live != 0 && (live & (live - 1)) == 0;
    int64_t number = 0;
    r->had_several |= live != 0 && !is_one;
    if (!is_one) return r->had_several ? -1 : 0;
    while ((live >> number & 1) == 0) number++;
    return number;
}

cd_recording *cd_recording_get_wrapped(void)
{
    cd_recording *r = cd_recording_get();
    if (r == NULL) return NULL;
    cd_tracer_select(&r->tracer, r->said > 0 ? r->said - 1 : only_wrapper(r));
    return r;
}

void cddp_record_wrapper(size_t wrapper)
{
    cd_recording *r = cd_recording_get();
    if (r == NULL) return;
    r->said = wrapper < CD_TRACER_WRAPPERS_MAX ? (int64_t)wrapper + 1 : CD_TRACER_WRAPPERS_MAX;
}

void cd_recording_begin_run(uint64_t run) { recording.run = run; }

void cd_recording_leave_to_ranks(void)
{
    cd_recording *r = &recording;
    if (r->state == CD_RECORDING_UNREAD) read_environment(r);
    if (r->state == CD_RECORDING_WAITS) begin_again(r);
    r->starts_ranks = true;
}

bool cddp_record_is_on(void) { return cd_recording_get() != NULL; }

cddp_tracer *cddp_record_tracer(void)
{
    cd_recording *r = cd_recording_get();
    return r != NULL ? &r->tracer : NULL;
}
