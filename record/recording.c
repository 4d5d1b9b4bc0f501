/* SPDX-License-Identifier: Apache-2.0 */
/* Attaches a tracer with a shard behind it to the groups and wrappers of this process.
**
** It looks at the environment once, when the first group is made, and at nothing in a process
** that has no recording. docs/decisions/0008-record.md says why there is a state of the process.
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

static void learn(cd_recording *r, const cddp_event *event)
{
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

/* What lies in memory, at the moments that a wrapper shows. */
static void look(cd_recording *r, const cddp_event *event)
{
    if (event->kind == CDDP_EV_forward_begin && event->as.forward_begin.grad_mode) {
        cd_storage_look_at_begin(r);
        cd_storage_look_at_accumulated(r);
        cd_storage_look_at_gradients(r);
    } else if (event->kind == CDDP_EV_forward_end) {
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

static void take_event(void *self, const cddp_event *event)
{
    cd_recording *r = self;
    cddp_event stamped = *event;
    learn(r, event);
    if (!r->says_steps) follow_steps(r, event);
    stamped.step = r->tracer.step;
    stamped.micro_step = r->tracer.micro_step;
    cddp_shard_emit(r->shard, &stamped);
    look(r, event);
}

cd_recorded_wrapper *cd_recording_here(cd_recording *r)
{
    return &r->wrappers[r->tracer.wrapper > 0 ? r->tracer.wrapper : 0];
}

cd_recorded_parameter *cd_recording_find(cd_recording *r, size_t parameter)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
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

/* ---- the shard ---- */

/* The program left without saying how it ended: its exit code does. */
#ifdef __GLIBC__
static void leave(int code, void *unused)
{
    (void)unused;
    cd_recording *r = cd_recording_get();
    if (r == NULL || r->process != cd_os_process_id()) return;
    CD_EMIT(&r->tracer, rank_end, NULL, .status = code == 0 ? CDDP_OK : CDDP_E_ABORTED,
            .end = code == 0 ? CDDP_RANK_RETURNED : CDDP_RANK_CRASHED, .detail = code);
    const cddp_status closed = cddp_shard_close(r->shard, NULL);
    (void)closed; /* what went wrong is in the shard */
    r->state = CD_RECORDING_OFF;
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

static cddp_status open_shard(cd_recording *r, uint32_t rank, uint32_t world_size, cddp_error *err)
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
    CD_TRY(cddp_shard_open(&options, &r->shard, err));
    r->rank = (cddp_rank){&clock_ops, NULL, rank, world_size, NULL};
    remove_older(r);
    r->process = cd_os_process_id();
    r->sink = (cddp_trace_sink){sizeof r->sink, CDDP_TRACE_ABI, r, take_event, NULL};
    r->tracer = (struct cddp_tracer){.sink = &r->sink,
                                     .rank = &r->rank,
                                     .level = r->options.level,
                                     .watch = &cd_recording_watch};
    for (size_t i = 0; i < CD_TRACER_WRAPPERS_MAX; i++) r->wrappers[i].hook.cast = -1;
    r->group = -1;
    r->state = CD_RECORDING_ON;
    watch_exit();
    CD_EMIT(&r->tracer, rank_begin, NULL, .world_size = world_size);
    return CDDP_OK;
}

/* A failure is the recording's, never the program's: it is kept for close. */
static void begin(cd_recording *r, uint32_t rank, uint32_t world_size)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (open_shard(r, rank, world_size, &err) == CDDP_OK) return;
    r->failure = err;
    r->state = CD_RECORDING_OFF;
}

/* What a parent recorded is the parent's. */
static void leave_parent(cd_recording *r)
{
    const cddp_status closed = cddp_shard_close(r->shard, NULL); /* forgets, and writes nothing */
    (void)closed;
    release_parameters(r);
    cd_recording armed = {.state = CD_RECORDING_ARMED, .options = r->options};
    memcpy(armed.path, r->path, sizeof armed.path);
    *r = armed;
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

struct cddp_tracer *cd_record_attach(cddp_rank *rank, struct cddp_tracer *own)
{
    cd_recording *r = &recording;
    if (own != NULL) return own;
    if (r->state == CD_RECORDING_UNREAD) read_environment(r);
    if (r->state == CD_RECORDING_ON && r->process != cd_os_process_id()) leave_parent(r);
    if (r->state == CD_RECORDING_ARMED) begin(r, rank->rank, rank->world_size);
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
    if (r->state == CD_RECORDING_ON && r->process == cd_os_process_id())
        return cd_fail(err, CDDP_E_STATE, "this process records %s already", r->path);
    cd_launcher launcher = {.kind = CD_LAUNCHER_NONE};
    CD_TRY(cd_launcher_read(&launcher, err));
    if (r->state == CD_RECORDING_ON) leave_parent(r);
    *r = (cd_recording){.state = CD_RECORDING_ARMED, .options = o, .run = r->run};
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

cddp_status cddp_record_close(cddp_status ended, const char *why, cddp_error *err)
{
    cd_recording *r = &recording;
    if (r->state == CD_RECORDING_ON && r->process != cd_os_process_id()) leave_parent(r);
    if (r->state == CD_RECORDING_ON)
        CD_EMIT(&r->tracer, rank_end, ended != CDDP_OK ? why : NULL, .status = ended,
                .end = CDDP_RANK_RETURNED);
    const cddp_status status = finish(r, err);
    release_parameters(r);
    *r = (cd_recording){.state = CD_RECORDING_OFF};
    return status;
}

cd_recording *cd_recording_get(void)
{
    return recording.state == CD_RECORDING_ON ? &recording : NULL;
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

bool cddp_record_is_on(void) { return cd_recording_get() != NULL; }

cddp_tracer *cddp_record_tracer(void)
{
    cd_recording *r = cd_recording_get();
    return r != NULL ? &r->tracer : NULL;
}
