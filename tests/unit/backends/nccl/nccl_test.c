/* SPDX-License-Identifier: Apache-2.0 */
/* The NCCL backend over forked ranks: the battery with tensors on the host and on the GPU, streams,
** guard, time-outs, asynchronous errors, abort, split.
**
** One source, two programs: nccl_logic over fake_cuda and fake_nccl (1 to 4 ranks anywhere), and
** nccl_gpu over CUDA and NCCL, skipped with the reason where there is no GPU.
*/
#define _POSIX_C_SOURCE 200809L
#include "tests/support/test.h"

#include "cddp/comm.h"
#include "cddp/ddp.h"
#include "cddp/plugin.h"
#include "cddp/process.h"
#include "cddp/rendezvous.h"
#include "core/base/alloc.h"
#include "core/base/os.h"
#include "core/base/prng.h"
#include "core/check/check.h"
#include "core/comm/conformance.h"
#include "core/hooks/hook.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef CDDP_NCCL_MODULE
#include <dlfcn.h>
#else
#include "backends/nccl/nccl_group.h"
#include "tests/unit/backends/nccl/fake_cuda.h"
#include "tests/unit/backends/nccl/fake_nccl.h"
extern const cddp_plugin cddp_plugin_v1;
#endif

#define SECOND UINT64_C(1000000000)

typedef struct job {
    const cddp_backend *module;
    char url[64];
    const char *options;
    uint64_t timeout_ns;
    cddp_status (*body)(const struct job *job, cddp_rank *rank, cddp_group *group, cddp_error *err);
    uint32_t world_size;
    const cddp_backend *bound; /* in the rank */
    cddp_tracer *tracer;       /* of groups that are opened from now on */
    cddp_rank_result results[8];
} job;

static const cddp_backend *module_load(void)
{
#ifdef CDDP_NCCL_MODULE
    void *library = dlopen(CDDP_NCCL_MODULE, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) cd_test_skip_all(dlerror());
    const cddp_plugin *plugin = dlsym(library, CDDP_PLUGIN_SYMBOL);
    assert_non_null(plugin);
    return plugin->backends[0];
#else
    return cddp_plugin_v1.backends[0];
#endif
}

static cddp_status group_open(const job *j, cddp_rank *rank, const char *name, const char *options,
                              cddp_group **group, cddp_error *err)
{
    static const uint32_t members[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    cddp_group_options o = {.size = sizeof o,
                            .backend = j->bound,
                            .rank = rank,
                            .tracer = j->tracer,
                            .spec = {.size = sizeof o.spec,
                                     .name = name,
                                     .group_rank = rank->rank,
                                     .group_size = rank->world_size,
                                     .members = members,
                                     .timeout_ns = j->timeout_ns,
                                     .options = options}};
    return cddp_group_create(&o, group, err);
}

static cddp_status rank_main(cddp_rank *rank, void *argument, cddp_error *err)
{
    job *j = argument;
    cddp_rendezvous *rendezvous = NULL;
    cddp_rendezvous_options options = {.size = sizeof options,
                                       .url = j->url,
                                       .timeout_ns = 20 * SECOND};
    cddp_status status = cddp_rendezvous_open(&options, &rendezvous, err);
    if (status != CDDP_OK) return status;
    cddp_backend bound = *j->module;
    bound.self = rendezvous;
    j->bound = &bound;
    cddp_group *group = NULL;
    status = group_open(j, rank, "world", j->options, &group, err);
    if (status == CDDP_OK) status = j->body(j, rank, group, err);
    cddp_group_destroy(group);
    cddp_rendezvous_close(rendezvous);
    return status;
}

static void run_job(job *j)
{
    char directory[] = "/tmp/cddp-nccl-XXXXXX";
    assert_non_null(mkdtemp(directory));
    snprintf(j->url, sizeof j->url, "file://%s", directory);
    j->module = module_load();
#ifndef CDDP_NCCL_MODULE
    fake_nccl_share();
#endif
    cddp_process_options options = {.size = sizeof options,
                                    .world_size = j->world_size,
                                    .deadline_ns = 180 * SECOND,
                                    .grace_ns = 8 * SECOND};
    cddp_process_world *world = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_process_world_open(&options, &world, &err), &err);
    for (int i = 0; i < 8; i++) j->results[i].size = sizeof j->results[i];
    assert_ok(cddp_process_world_ops()->launch(world, rank_main, j, j->results, &err), &err);
    cddp_process_world_close(world);
#ifdef CDDP_NCCL_MODULE /* a GPU is seldom at hand: whatever it says is kept */
    for (uint32_t r = 0; r < j->world_size; r++)
        if (j->results[r].end != CDDP_RANK_RETURNED || j->results[r].status != CDDP_OK)
            print_message("rank %u of %u: end %d, status %d: %s\n", r, j->world_size,
                          (int)j->results[r].end, (int)j->results[r].status,
                          j->results[r].error.message);
#endif
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    assert_int_equal(system(command), 0);
}

static void assert_all_returned(const job *j)
{
    for (uint32_t r = 0; r < j->world_size; r++) {
        cd_test_row("rank %u of %u: %s", r, j->world_size, j->results[r].error.message);
        assert_int_equal(j->results[r].end, CDDP_RANK_RETURNED);
        assert_int_equal(j->results[r].status, CDDP_OK);
    }
}

/* ---- the battery ---- */

typedef struct tally {
    uint32_t rows, failed;
    char first[300];
} tally;

static void count_row(void *context, const cd_conformance_row *row)
{
    tally *t = context;
    t->rows++;
    if (row->failed_count == 0) return;
    if (t->failed++ == 0)
        snprintf(t->first, sizeof t->first, "%s %s %s: %s", cddp_op_name(row->op),
                 cddp_dtype_name(row->dtype), cddp_red_op_name(row->reduce_op), row->first_failure);
}

static cddp_status battery(cddp_group *group, const cddp_device *device, uint32_t dtypes,
                           cddp_error *err)
{
    tally t = {0};
    cd_conformance_options o = {.device = device,
                                .dtypes = dtypes,
                                .context = &t,
                                .row = count_row};
    cddp_status status = cd_conformance_run(group, &o, err);
    if (status == CDDP_OK && t.failed > 0)
        return cddp_error_set(err, CDDP_E_MISMATCH, "%u rows failed; %s", t.failed, t.first);
    if (status == CDDP_OK && t.rows < 20)
        return cddp_error_set(err, CDDP_E_STATE, "only %u rows ran", t.rows);
    return status;
}

#define SOME_DTYPES \
    (CDDP_DTYPE_BIT(CDDP_F32) | CDDP_DTYPE_BIT(CDDP_BF16) | CDDP_DTYPE_BIT(CDDP_I64))

static cddp_status battery_on_host(const job *j, cddp_rank *rank, cddp_group *group,
                                   cddp_error *err)
{
    (void)j;
    return battery(group, cddp_device_cpu(), rank->world_size == 1 ? 0 : SOME_DTYPES, err);
}

static cddp_status battery_on_gpu(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    return battery(group, j->bound->device, rank->world_size == 1 ? 0 : SOME_DTYPES, err);
}

static const uint32_t world_sizes[] = {
#ifdef CDDP_NCCL_MODULE
    1, 2
#else
    1, 2, 3, 4
#endif
};
#define WORLD_SIZES (sizeof world_sizes / sizeof world_sizes[0])

TEST(nccl, passes_the_battery_with_tensors_in_host_memory)
{
    for (size_t i = 0; i < WORLD_SIZES; i++) {
        job j = {.world_size = world_sizes[i], .body = battery_on_host, .timeout_ns = 60 * SECOND};
        run_job(&j);
        assert_all_returned(&j);
    }
}

TEST(nccl, passes_the_battery_with_tensors_on_the_gpu)
{
    for (size_t i = 0; i < WORLD_SIZES; i++) {
        job j = {.world_size = world_sizes[i], .body = battery_on_gpu, .timeout_ns = 60 * SECOND};
        run_job(&j);
        assert_all_returned(&j);
    }
}

TEST(nccl, passes_the_battery_with_guard)
{
    job j = {.world_size = 2,
             .body = battery_on_gpu,
             .timeout_ns = 60 * SECOND,
             .options = "guard=1"};
    run_job(&j);
    assert_all_returned(&j);
}

/* ---- streams ---- */

typedef struct vector {
    const cddp_device *device;
    cddp_tensor t;
} vector;

static cddp_status vector_make(vector *v, const cddp_device *device, cddp_dtype dtype,
                               int64_t numel, double value, cddp_error *err)
{
    void *storage = NULL;
    cddp_status status = device->allocate(device, dtype, numel, &storage, err);
    if (status != CDDP_OK) return status;
    *v = (vector){device, cddp_tensor_of(device, storage, 0, dtype, &numel, 1)};
    return device->fill(&v->t, value, NULL, err);
}

static void vector_drop(vector *v)
{
    if (v->device != NULL)
        v->device->release(v->device, v->t.dtype, cddp_tensor_numel(&v->t), v->t.storage);
}

static cddp_status expect(const vector *v, float wanted, cddp_error *err)
{
    float numbers[4096];
    int64_t numel = cddp_tensor_numel(&v->t);
    cddp_status status = v->device->read(&v->t, numbers, (size_t)numel * sizeof *numbers, err);
    for (int64_t i = 0; i < numel && status == CDDP_OK; i++)
        if (numbers[i] != wanted)
            return cddp_error_set(err, CDDP_E_MISMATCH, "element %lld is %g, not %g", (long long)i,
                                  (double)numbers[i], (double)wanted);
    return status;
}

/* Three buckets in flight; each is filled, reduced and used without the host waiting for
** anything. */
static cddp_status overlapping_buckets(const job *j, cddp_rank *rank, cddp_group *group,
                                       cddp_error *err)
{
    const cddp_device *d = j->bound->device;
    vector v[3] = {{0}}, sum = {0};
    cddp_work *works[3] = {NULL};
    cddp_status status = vector_make(&sum, d, CDDP_F32, 1021, 0, err);
    for (int i = 0; i < 3 && status == CDDP_OK; i++)
        status = vector_make(&v[i], d, CDDP_F32, 1021, 0, err);
    for (int round = 0; round < 5 && status == CDDP_OK; round++) {
#ifndef CDDP_NCCL_MODULE
        uint64_t blocked = fake_cuda.synchronizations, asked = cd_cuda_here.memory.source_calls,
                 events = fake_cuda.live_events;
#endif
        for (int i = 0; i < 3 && status == CDDP_OK; i++) {
            status = d->fill(&v[i].t, rank->rank + 1.0 + i, NULL, err);
            if (status == CDDP_OK)
                status = cddp_group_allreduce(group, &v[i].t, CDDP_RED_SUM, &works[i], err);
        }
        for (int i = 0; i < 3 && status == CDDP_OK; i++) {
            status = cddp_work_wait(works[i], 0, err);
            if (status == CDDP_OK) status = d->reduce(CDDP_RED_SUM, &sum.t, &v[i].t, NULL, err);
        }
#ifndef CDDP_NCCL_MODULE
        if (status == CDDP_OK && fake_cuda.synchronizations != blocked)
            return cddp_error_set(err, CDDP_E_STATE, "the host waited");
        if (status == CDDP_OK && round > 0 &&
            (cd_cuda_here.memory.source_calls != asked || fake_cuda.live_events != events))
            return cddp_error_set(err, CDDP_E_STATE, "a steady iteration made something");
#endif
        /* Round k adds the three sums 1 … 3 buckets: Σ_i Σ_r (r + 1 + i). */
        uint32_t w = rank->world_size;
        float each = (float)(3 * w * (w + 1) / 2 + 3 * w);
        if (status == CDDP_OK) status = expect(&sum, each * (float)(round + 1), err);
    }
    for (int i = 0; i < 3; i++) vector_drop(&v[i]);
    vector_drop(&sum);
    return status;
}

TEST(nccl, buckets_are_ordered_by_events_and_the_host_never_waits)
{
    for (size_t i = 0; i < WORLD_SIZES; i++) {
        job j = {.world_size = world_sizes[i],
                 .body = overlapping_buckets,
                 .timeout_ns = 30 * SECOND};
        run_job(&j);
        assert_all_returned(&j);
    }
}

static cddp_status on_its_own_stream(const job *j, cddp_rank *rank, cddp_group *group,
                                     cddp_error *err)
{
    const cddp_device *d = j->bound->device;
    vector v = {0};
    cddp_stream *stream = NULL;
    cddp_mark *mark = NULL;
    cddp_work *work = NULL;
    cddp_status status = vector_make(&v, d, CDDP_F32, 1021, 0, err);
    if (status == CDDP_OK) status = d->stream_create(d, &stream, err);
    if (status == CDDP_OK) status = d->mark_create(d, &mark, err);
    if (status == CDDP_OK) status = d->mark_record(d, mark, NULL, err);
    if (status == CDDP_OK) status = d->mark_wait(d, mark, stream, err);
    if (status == CDDP_OK) status = d->fill(&v.t, rank->rank + 1.0, stream, err);
    cddp_collective c = {.size = sizeof c,
                         .op = CDDP_OP_ALLREDUCE,
                         .reduce_op = CDDP_RED_SUM,
                         .input = v.t,
                         .output = v.t,
                         .stream = stream};
    if (status == CDDP_OK) status = cddp_group_post(group, &c, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    if (status == CDDP_OK) status = d->mark_record(d, mark, stream, err);
    if (status == CDDP_OK) status = d->mark_wait(d, mark, NULL, err);
    if (status == CDDP_OK)
        status = expect(&v, (float)(rank->world_size * (rank->world_size + 1) / 2), err);
    d->mark_destroy(d, mark);
    d->stream_destroy(d, stream);
    vector_drop(&v);
    return status;
}

TEST(nccl, a_collective_follows_the_callers_stream)
{
    job j = {.world_size = 2, .body = on_its_own_stream, .timeout_ns = 30 * SECOND};
    run_job(&j);
    assert_all_returned(&j);
}

/* ---- what the trace says of it (I-HB) ---- */

/* Events of one rank, and what the check makes of them; `without` leaves out the order of that
** number, from 1. */
static cddp_status judge(const cd_memory_sink *trace, size_t without, char *title,
                         size_t title_bytes, uint64_t *exercised, cddp_error *err)
{
    const cddp_check *check = cd_check_find("I-HB");
    const cd_judge_options options = {.checks = &check, .check_count = 1};
    cd_judge *judge = NULL;
    cddp_status status = cd_judge_create(&options, &judge, err);
    if (status != CDDP_OK) return status;
    const cddp_trace_sink *sink = cd_judge_get_sink(judge);
    for (size_t i = 0; i < trace->count; i++) {
        const cddp_event *e = &trace->events[i];
        if (e->kind == CDDP_EV_order && e->as.order.waits && without > 0 && --without == 0)
            continue;
        sink->event(sink->self, e);
    }
    status = cd_judge_end(judge, err);
    title[0] = '\0';
    if (status == CDDP_OK && cd_judge_finding_count(judge) > 0)
        snprintf(title, title_bytes, "%s", cd_judge_get_finding(judge, 0)->title);
    *exercised = cd_judge_get_exercise(judge, 0)->count;
    cd_judge_destroy(judge);
    return status;
}

static bool is_about_gpu(const cddp_event *e)
{
    return e->kind == CDDP_EV_touch || e->kind == CDDP_EV_order || e->kind == CDDP_EV_memory;
}

/* Runs the body in a group whose tracer keeps everything. A finding in a clean run is an
** error. */
typedef struct witness {
    cd_memory_sink trace;
    cddp_tracer *tracer;
    cddp_group *group;
} witness;

static cddp_status witness_begin(witness *w, const job *j, cddp_rank *rank, cddp_error *err)
{
    job listening = *j;
    cd_memory_sink_init(&w->trace, NULL);
    cddp_status status =
        cddp_tracer_create(rank, &w->trace.sink, CDDP_TRACE_ORDER, &w->tracer, err);
    listening.tracer = w->tracer;
    return status == CDDP_OK ? group_open(&listening, rank, "witness", j->options, &w->group, err)
                             : status;
}

static void witness_end(witness *w)
{
    cddp_group_destroy(w->group);
    cddp_tracer_destroy(w->tracer);
    cd_memory_sink_fini(&w->trace);
}

/* The trace is clean and says something; without any one of its waits that matters it is not. */
static cddp_status expect_discipline(const cd_memory_sink *trace, uint32_t found_min,
                                     cddp_error *err)
{
    char title[200];
    uint64_t exercised = 0;
    size_t waits = 0;
    uint32_t found = 0;
    cddp_status status = judge(trace, 0, title, sizeof title, &exercised, err);
    if (status == CDDP_OK && title[0] != '\0')
        return cddp_error_set(err, CDDP_E_MISMATCH, "a clean run: %s", title);
    if (status == CDDP_OK && exercised == 0)
        return cddp_error_set(err, CDDP_E_STATE, "nothing to judge");
    for (size_t i = 0; i < trace->count; i++)
        waits += trace->events[i].kind == CDDP_EV_order && trace->events[i].as.order.waits;
    for (size_t i = 1; i <= waits && status == CDDP_OK; i++) {
        status = judge(trace, i, title, sizeof title, &exercised, err);
        if (title[0] == '\0') continue;
        found++;
        if (status == CDDP_OK && strstr(title, "without waiting for") == NULL)
            return cddp_error_set(err, CDDP_E_MISMATCH, "without wait %zu: %s", i, title);
    }
    if (status == CDDP_OK && found < found_min)
        return cddp_error_set(err, CDDP_E_MISMATCH, "of %zu waits only %u are missed", waits,
                              found);
    return status;
}

static cddp_status buckets_witnessed(const job *j, cddp_rank *rank, cddp_group *group,
                                     cddp_error *err)
{
    witness w = {0};
    (void)group;
    cddp_status status = witness_begin(&w, j, rank, err);
    if (status == CDDP_OK) status = overlapping_buckets(j, rank, w.group, err);
    if (status == CDDP_OK) status = on_its_own_stream(j, rank, w.group, err);
    /* Five rounds of three buckets, each with a wait of either stream for the other. */
    if (status == CDDP_OK) status = expect_discipline(&w.trace, 15, err);
    witness_end(&w);
    return status;
}

TEST(nccl, stream_discipline_is_judged_from_the_trace)
{
    for (size_t i = 0; i < 2; i++) {
        job j = {.world_size = world_sizes[i],
                 .body = buckets_witnessed,
                 .timeout_ns = 60 * SECOND};
        run_job(&j);
        assert_all_returned(&j);
    }
}

typedef enum fault { PRODUCER_NOT_AWAITED, CONSUMER_TOO_EARLY, RELEASED_TOO_EARLY } fault;

/* The program makes one mistake with its streams. The test ignores the result; the trace alone
** must show it. */
static cddp_status mistaken(const job *j, cddp_rank *rank, fault what, cddp_error *err)
{
    static const char *const words[] = {
        /* the group's stream has the next number */
        "is read on stream 2 without waiting for the write on stream 1",
        "is read on stream 0 without waiting for the write on stream 1",
        "is written on stream 0 without waiting for the read on stream 1",
    };
    const cddp_device *d = j->bound->device;
    witness w = {0};
    vector v = {0};
    cddp_stream *stream = NULL;
    cddp_work *work = NULL;
    char title[200];
    uint64_t exercised = 0;
    cddp_status status = witness_begin(&w, j, rank, err);
    if (status == CDDP_OK) status = vector_make(&v, d, CDDP_F32, 1021, 0, err);
    if (status == CDDP_OK && what == PRODUCER_NOT_AWAITED) {
        status = d->stream_create(d, &stream, err);
        if (status == CDDP_OK) status = d->stream_synchronize(d, NULL, err);
        if (status == CDDP_OK) status = d->fill(&v.t, 1, stream, err);
    }
    if (status == CDDP_OK) status = cddp_group_allreduce(w.group, &v.t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK && what == CONSUMER_TOO_EARLY) {
        vector other = {0};
        status = vector_make(&other, d, CDDP_F32, 1021, 0, err);
        if (status == CDDP_OK) status = d->reduce(CDDP_RED_SUM, &other.t, &v.t, NULL, err);
        vector_drop(&other);
    }
    if (status == CDDP_OK && what == RELEASED_TOO_EARLY) {
        vector_drop(&v);
        status = vector_make(&v, d, CDDP_F32, 1021, 0, err);
    }
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    if (status == CDDP_OK) status = d->stream_synchronize(d, NULL, err);
    if (status == CDDP_OK) status = judge(&w.trace, 0, title, sizeof title, &exercised, err);
    if (status == CDDP_OK && strstr(title, words[what]) == NULL)
        status = cddp_error_set(err, CDDP_E_MISMATCH, "mistake %d: '%s'", (int)what, title);
    if (stream != NULL) d->stream_destroy(d, stream);
    vector_drop(&v);
    witness_end(&w);
    return status;
}

static cddp_status all_mistakes(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    (void)group;
    for (int what = 0; what <= RELEASED_TOO_EARLY && status == CDDP_OK; what++)
        status = mistaken(j, rank, (fault)what, err);
    return status;
}

TEST(nccl, a_stream_that_does_not_wait_is_found_in_the_trace)
{
    job j = {.world_size = 1, .body = all_mistakes, .timeout_ns = 60 * SECOND};
    run_job(&j);
    assert_all_returned(&j);
}

/* A group without a tracer reports nothing, and a group that closes removes its tracer. */
static cddp_status reported_to_nobody(const job *j, cddp_rank *rank, cddp_group *group,
                                      cddp_error *err)
{
    witness w = {0}, later = {0};
    size_t about = 0;
    cddp_status status = witness_begin(&w, j, rank, err);
    cddp_group_destroy(w.group);
    w.group = NULL;
    size_t reported = w.trace.count;
    if (status == CDDP_OK) status = overlapping_buckets(j, rank, group, err);
    if (status == CDDP_OK && w.trace.count != reported)
        status = cddp_error_set(err, CDDP_E_STATE, "reported after the close");
    if (status == CDDP_OK) status = witness_begin(&later, j, rank, err);
    /* the device is the process's */
    if (status == CDDP_OK) status = overlapping_buckets(j, rank, group, err);
    for (size_t i = 0; i < later.trace.count; i++) about += is_about_gpu(&later.trace.events[i]);
    if (status == CDDP_OK && about == 0)
        status = cddp_error_set(err, CDDP_E_STATE, "the second tracer gets nothing");
    witness_end(&later);
    witness_end(&w);
    return status;
}

TEST(nccl, a_tracer_hears_of_the_device_while_its_group_is_open)
{
    job j = {.world_size = 1, .body = reported_to_nobody, .timeout_ns = 60 * SECOND};
    run_job(&j);
    assert_all_returned(&j);
}

/* ---- the reducer on the GPU ---- */

#define PARAMETERS 40

typedef struct model {
    cddp_parameter parameters[PARAMETERS];
    cddp_grad grads[PARAMETERS];
    char names[PARAMETERS][16];
    cddp_ddp *ddp;
} model;

static int64_t numel_of(size_t i) { return 1 + (int64_t)(i * 37 % 101) * 5; }

static cddp_status model_make(model *m, const cddp_device *d, cddp_group *group, bool views,
                              bool find_unused, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (size_t i = 0; i < PARAMETERS && status == CDDP_OK; i++) {
        void *storage = NULL;
        int64_t numel = numel_of(i);
        status = d->allocate(d, CDDP_F32, numel, &storage, err);
        snprintf(m->names[i], sizeof m->names[i], "p%zu", i);
        m->parameters[i] =
            (cddp_parameter){.name = m->names[i],
                             .tensor = cddp_tensor_of(d, storage, 0, CDDP_F32, &numel, 1),
                             .grad = &m->grads[i],
                             .requires_grad = true};
        if (status == CDDP_OK)
            status = d->fill(&m->parameters[i].tensor, 1 + cddp_group_rank(group), NULL, err);
    }
    cddp_ddp_options o = cddp_ddp_options_default();
    o.parameters = m->parameters;
    o.parameter_count = PARAMETERS;
    o.group = group;
    o.gradient_as_bucket_view = views;
    o.find_unused_parameters = find_unused;
    o.bucket_cap_mb = 0.01;
    return status == CDDP_OK ? cddp_ddp_create(&o, &m->ddp, err) : status;
}

static void model_drop(model *m, const cddp_device *d)
{
    cddp_ddp_destroy(m->ddp);
    for (size_t i = 0; i < PARAMETERS; i++) {
        cddp_grad_fini(&m->grads[i]);
        if (m->parameters[i].tensor.device != NULL)
            d->release(d, CDDP_F32, numel_of(i), m->parameters[i].tensor.storage);
    }
}

/* Parameter 7 is used by rank 0 alone, parameter 9 by nobody. */
static bool is_used(size_t i, uint32_t rank, bool find_unused)
{
    return !find_unused || (i != 9 && (i != 7 || rank == 0));
}

static cddp_status backward(model *m, const cddp_device *d, uint32_t rank, int round,
                            bool find_unused, cddp_error *err)
{
    bool reachable[PARAMETERS];
    for (size_t i = 0; i < PARAMETERS; i++) reachable[i] = is_used(i, rank, find_unused);
    for (size_t i = 0; i < PARAMETERS; i++) cddp_grad_drop(&m->grads[i]); /* zero_grad */
    cddp_status status = cddp_ddp_forward_begin(m->ddp, true, err);
    if (status == CDDP_OK)
        status = cddp_ddp_forward_end(m->ddp, find_unused ? reachable : NULL, err);
    for (size_t i = PARAMETERS; i-- > 0 && status == CDDP_OK;) {
        if (!is_used(i, rank, find_unused)) continue;
        status = cddp_grad_define(&m->grads[i], &m->parameters[i].tensor, err);
        if (status == CDDP_OK)
            status = d->fill(&m->grads[i].value, (double)((int64_t)i + 8 * (int64_t)rank + round),
                             NULL, err);
        if (status == CDDP_OK) status = cddp_ddp_mark_variable_ready(m->ddp, i, err);
    }
    return status == CDDP_OK ? cddp_ddp_backward_end(m->ddp, err) : status;
}

static cddp_status check_gradients(const model *m, const cddp_device *d, uint32_t world, int round,
                                   bool find_unused, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (size_t i = 0; i < PARAMETERS && status == CDDP_OK; i++) {
        double sum = 0;
        for (uint32_t r = 0; r < world; r++)
            if (is_used(i, r, find_unused)) sum += (double)((int64_t)i + 8 * (int64_t)r + round);
        if (find_unused && i == 9) { /* nobody's: left as it was, undefined */
            if (m->grads[i].kind != CDDP_GRAD_UNDEFINED)
                return cddp_error_set(err, CDDP_E_MISMATCH, "an unused parameter got a gradient");
            continue;
        }
        vector v = {d, m->grads[i].value};
        status = expect(&v, (float)(sum / world), err);
    }
    return status;
}

static cddp_status train(const job *j, cddp_group *group, bool views, bool find_unused,
                         cddp_error *err)
{
    static model m;
    const cddp_device *d = j->bound->device;
    uint32_t rank = cddp_group_rank(group), world = cddp_group_size(group);
    memset(&m, 0, sizeof m);
    cddp_status status = model_make(&m, d, group, views, find_unused, err);
    if (status == CDDP_OK) { /* rank 0's parameters everywhere */
        vector v = {d, m.parameters[3].tensor};
        status = expect(&v, 1, err);
    }
    for (int round = 0; round < 4 && status == CDDP_OK; round++) {
#ifndef CDDP_NCCL_MODULE
        uint64_t blocked = fake_cuda.synchronizations, launches = fake_cuda.launches;
#endif
        status = backward(&m, d, rank, round, find_unused, err);
#ifndef CDDP_NCCL_MODULE
        /* One fill per gradient, which is the backward; the rest goes by buckets. */
        if (status == CDDP_OK && !views && fake_cuda.launches - launches >= 2 * PARAMETERS)
            status = cddp_error_set(err, CDDP_E_STATE, "%d launches for %d gradients",
                                    (int)(fake_cuda.launches - launches), PARAMETERS);
        /* Buckets are rebuilt in the second iteration, and the map of used parameters is read by
        ** the host. */
        if (status == CDDP_OK && round > 1 && !find_unused && fake_cuda.synchronizations != blocked)
            status = cddp_error_set(err, CDDP_E_STATE, "the host waited %d times",
                                    (int)(fake_cuda.synchronizations - blocked));
#endif
        if (status == CDDP_OK) status = check_gradients(&m, d, world, round, find_unused, err);
    }
    model_drop(&m, d);
    return status;
}

static cddp_status train_all(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    (void)rank;
    for (int which = 0; which < 4 && status == CDDP_OK; which++)
        status = train(j, group, which & 1, which & 2, err);
    return status;
}

/* Buckets that travel while others are filled: the steps of the reducer, its rebuild and its map of
** used parameters. */
static cddp_status train_witnessed(const job *j, cddp_rank *rank, cddp_group *group,
                                   cddp_error *err)
{
    witness w = {0};
    (void)group;
    cddp_status status = witness_begin(&w, j, rank, err);
    if (status == CDDP_OK) status = train(j, w.group, true, true, err);
    if (status == CDDP_OK) status = expect_discipline(&w.trace, 8, err);
    witness_end(&w);
    return status;
}

TEST(nccl, the_reducers_streams_are_judged_from_the_trace)
{
    job j = {.world_size = 2, .body = train_witnessed, .timeout_ns = 60 * SECOND};
    run_job(&j);
    assert_all_returned(&j);
}

static cddp_status drop_early(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    static model m;
    const cddp_device *d = j->bound->device;
    (void)rank;
    memset(&m, 0, sizeof m);
    cddp_status status = model_make(&m, d, group, false, false, err);
    if (status == CDDP_OK) status = cddp_ddp_forward_begin(m.ddp, true, err);
    if (status == CDDP_OK) status = cddp_ddp_forward_end(m.ddp, NULL, err);
    for (size_t i = PARAMETERS; i-- > 0 && status == CDDP_OK;) {
        status = cddp_grad_define(&m.grads[i], &m.parameters[i].tensor, err);
        if (status == CDDP_OK) status = d->fill(&m.grads[i].value, 1, NULL, err);
        if (status == CDDP_OK) status = cddp_ddp_mark_variable_ready(m.ddp, i, err);
        if (i == PARAMETERS - 1) cddp_grad_drop(&m.grads[i]);
    }
    model_drop(&m, d);
    return status;
}

/* The copies of a bucket start together, when it is complete. */
TEST(nccl, a_gradient_that_is_dropped_before_its_bucket_is_complete_is_an_error)
{
    job j = {.world_size = 1, .body = drop_early, .timeout_ns = 30 * SECOND};
    run_job(&j);
    cd_test_row("%s", j.results[0].error.message);
    assert_int_equal(j.results[0].status, CDDP_E_STATE);
    assert_non_null(strstr(j.results[0].error.message, "'p39' was dropped after it was ready"));
}

TEST(nccl, the_reducer_averages_gradients_that_live_on_the_gpu)
{
    static const uint32_t sizes[] = {1, 2}; /* divisions that are exact */
    for (size_t i = 0; i < 2; i++) {
        job j = {.world_size = sizes[i], .body = train_all, .timeout_ns = 30 * SECOND};
        run_job(&j);
        assert_all_returned(&j);
    }
}

#ifndef CDDP_NCCL_MODULE
/* ---- hooks that look at numbers ---- */

#define SHAPES 7
static const int64_t shapes[SHAPES][2] = {{24, 17}, {1, 13}, {33, 8}, {300, 5},
                                          {1, 300}, {7, 7},  {16, 16}};
#define NUMBERS_MAX 1500
#define ROUNDS 6
#define RESUMED 4 /* the round that begins with a state that was saved and loaded */

typedef struct hooked {
    cddp_parameter parameters[SHAPES];
    cddp_grad grads[SHAPES];
    cddp_ddp *ddp;
    const cddp_device *device;
} hooked;

static cddp_tensor shape_of(const cddp_device *d, void *storage, size_t i, cddp_dtype dtype)
{
    return shapes[i][0] == 1 ? cddp_tensor_of(d, storage, 0, dtype, &shapes[i][1], 1)
                             : cddp_tensor_of(d, storage, 0, dtype, shapes[i], 2);
}

typedef struct hook_case {
    const char *name, *options;
    bool waits; /* as docs/hooks.md says */
} hook_case;

static const hook_case hook_cases[] = {
    /* clang-format off */
    {"powersgd", "matrix_approximation_rank=2,start_powerSGD_iter=2,min_compression_rate=0.5", false},
    {"powersgd", "matrix_approximation_rank=3,start_powerSGD_iter=2,min_compression_rate=1,warm_start=false", false},
    {"batched_powersgd", "matrix_approximation_rank=2,start_powerSGD_iter=2", false},
    {"topk", "ratio=0.1", false},
    {"topk", "k=7,error_feedback=false", false},
    {"quantize_per_tensor", NULL, false},
    {"quantize_per_channel", "bucket_size=100", false},
    {"reproducible", NULL, true},
    {"fp16_compress", NULL, false},
    {"allreduce", NULL, false},
    /* clang-format on */
};

static cddp_status hooked_make(hooked *m, const cddp_device *d, cddp_group *group,
                               const hook_case *c, cddp_error *err)
{
    static const char *const names[SHAPES] = {"a", "b", "c", "d", "e", "f", "g"};
    cddp_status status = CDDP_OK;
    m->device = d;
    for (size_t i = 0; i < SHAPES && status == CDDP_OK; i++) {
        void *storage = NULL;
        status = d->allocate(d, CDDP_F32, shapes[i][0] * shapes[i][1], &storage, err);
        m->parameters[i] = (cddp_parameter){.name = names[i],
                                            .tensor = shape_of(d, storage, i, CDDP_F32),
                                            .grad = &m->grads[i],
                                            .requires_grad = true};
        if (status == CDDP_OK) status = d->fill(&m->parameters[i].tensor, 1, NULL, err);
    }
    cddp_ddp_options o = cddp_ddp_options_default();
    o.parameters = m->parameters;
    o.parameter_count = SHAPES;
    o.group = group;
    o.bucket_cap_mb = 0.005;
    if (status == CDDP_OK) status = cddp_ddp_create(&o, &m->ddp, err);
    return status == CDDP_OK
               ? cddp_ddp_register_comm_hook(m->ddp, cd_hook_find(c->name), NULL, c->options, err)
               : status;
}

static void hooked_drop(hooked *m)
{
    cddp_ddp_destroy(m->ddp);
    for (size_t i = 0; i < SHAPES; i++) {
        cddp_grad_fini(&m->grads[i]);
        const cddp_tensor *t = &m->parameters[i].tensor;
        if (t->device != NULL)
            t->device->release(t->device, t->dtype, cddp_tensor_numel(t), t->storage);
    }
    memset(m, 0, sizeof *m);
}

/* Gradients that differ by rank, round and place; the last round brings an infinity, which must go
** where it goes on the host. */
static void hooked_numbers(float *numbers, size_t i, uint32_t rank, int round)
{
    cd_prng prng = cd_prng_seed(1000 * (uint64_t)round + 100 * rank + i);
    for (int64_t k = 0; k < shapes[i][0] * shapes[i][1]; k++)
        numbers[k] = (float)((int64_t)(cd_prng_next(&prng) % 4001) - 2000) * 0x1p-11f;
    if (round == ROUNDS - 1 && i == 4 && rank == 0) numbers[11] = (float)1e300;
}

static cddp_status hooked_round(hooked *m, uint32_t rank, int round, cddp_error *err)
{
    static float numbers[NUMBERS_MAX];
    for (size_t i = 0; i < SHAPES; i++) cddp_grad_drop(&m->grads[i]);
    cddp_status status = cddp_ddp_forward_begin(m->ddp, true, err);
    if (status == CDDP_OK) status = cddp_ddp_forward_end(m->ddp, NULL, err);
    for (size_t i = SHAPES; i-- > 0 && status == CDDP_OK;) {
        hooked_numbers(numbers, i, rank, round);
        status = cddp_grad_define(&m->grads[i], &m->parameters[i].tensor, err);
        if (status == CDDP_OK)
            status = m->device->write(&m->grads[i].value, numbers,
                                      (size_t)(shapes[i][0] * shapes[i][1]) * sizeof *numbers, err);
        if (status == CDDP_OK) status = cddp_ddp_mark_variable_ready(m->ddp, i, err);
    }
    return status == CDDP_OK ? cddp_ddp_backward_end(m->ddp, err) : status;
}

/* NaN equals NaN: a GPU gives its own payload. */
static cddp_status hooked_compare(const hooked *host, const hooked *gpu, const hook_case *c,
                                  int round, cddp_error *err)
{
    static float a[NUMBERS_MAX], b[NUMBERS_MAX];
    cddp_status status = CDDP_OK;
    for (size_t i = 0; i < SHAPES && status == CDDP_OK; i++) {
        const int64_t numel = shapes[i][0] * shapes[i][1];
        status = host->device->read(&host->grads[i].value, a, (size_t)numel * sizeof *a, err);
        if (status == CDDP_OK)
            status = gpu->device->read(&gpu->grads[i].value, b, (size_t)numel * sizeof *b, err);
        for (int64_t k = 0; k < numel && status == CDDP_OK; k++)
            if (memcmp(&a[k], &b[k], sizeof a[k]) != 0 && !(a[k] != a[k] && b[k] != b[k]))
                status = cddp_error_set(
                    err, CDDP_E_MISMATCH,
                    "%s, round %d, parameter %zu, element %lld: %a on the host, %a on the GPU",
                    c->name, round, i, (long long)k, (double)a[k], (double)b[k]);
    }
    return status;
}

typedef struct saved {
    unsigned char bytes[1 << 16];
    size_t used, read;
} saved;

static bool saved_write(void *context, const void *bytes, size_t count)
{
    saved *to = context;
    if (count > sizeof to->bytes - to->used) return false;
    memcpy(to->bytes + to->used, bytes, count);
    to->used += count;
    return true;
}

static bool saved_read(void *context, void *bytes, size_t count)
{
    saved *from = context;
    if (count > from->used - from->read) return false;
    memcpy(bytes, from->bytes + from->read, count);
    from->read += count;
    return true;
}

/* The loaded state is in host memory, and the next bucket copies it to the device. */
static cddp_status hooked_resume(const hooked *m, const hook_case *c, cddp_error *err)
{
    static saved state;
    const cddp_hook *hook = cd_hook_find(c->name);
    const cddp_state_writer writer = {.context = &state, .write = saved_write};
    const cddp_state_reader reader = {.context = &state, .read = saved_read};
    if (hook->save == NULL) return CDDP_OK;
    state.used = state.read = 0;
    cddp_status status = hook->save(cddp_ddp_comm_hook_state(m->ddp), &writer, err);
    return status == CDDP_OK ? hook->load(cddp_ddp_comm_hook_state(m->ddp), &reader, err) : status;
}

static cddp_status hook_case_run(const job *j, cddp_rank *rank, cddp_group *group,
                                 const hook_case *c, cddp_error *err)
{
    static hooked host, gpu;
    cddp_status status = hooked_make(&host, cddp_device_cpu(), group, c, err);
    if (status == CDDP_OK) status = hooked_make(&gpu, j->bound->device, group, c, err);
    for (int round = 0; round < ROUNDS && status == CDDP_OK; round++) {
        if (round == RESUMED) status = hooked_resume(&gpu, c, err);
        if (status == CDDP_OK) status = hooked_round(&host, rank->rank, round, err);
        uint64_t blocked = fake_cuda.synchronizations, asked = cd_cuda_here.memory.source_calls;
        if (status == CDDP_OK) status = hooked_round(&gpu, rank->rank, round, err);
        /* Buckets are rebuilt in the second round, and compression begins in the third. */
        bool waited = fake_cuda.synchronizations != blocked,
             allocated = cd_cuda_here.memory.source_calls != asked;
        if (status == CDDP_OK && round > 2 && round != RESUMED && (waited != c->waits || allocated))
            status = cddp_error_set(err, CDDP_E_STATE, "%s, round %d: the host waited %d times%s",
                                    c->name, round, (int)(fake_cuda.synchronizations - blocked),
                                    allocated ? " and memory was asked for" : "");
        if (status == CDDP_OK) status = hooked_compare(&host, &gpu, c, round, err);
    }
    hooked_drop(&gpu);
    hooked_drop(&host);
    return status;
}

static cddp_status hooks_on_gpu(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (size_t i = 0; i < sizeof hook_cases / sizeof hook_cases[0] && status == CDDP_OK; i++)
        status = hook_case_run(j, rank, group, &hook_cases[i], err);
    return status;
}

/* Over the fakes also with three ranks: on GPUs an association of NCCL's own, and cuBLAS, would
** leave nothing to compare. */
TEST(nccl, hooks_give_the_bits_of_the_host_and_do_not_wait)
{
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        job j = {.world_size = ranks, .body = hooks_on_gpu, .timeout_ns = 60 * SECOND};
        run_job(&j);
        assert_all_returned(&j);
    }
}

#endif

/* ---- what goes wrong ---- */

static cddp_status sizes_differ(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    vector v = {0};
    cddp_work *work = NULL;
    cddp_status status =
        vector_make(&v, j->bound->device, CDDP_F32, rank->rank == 1 ? 40 : 64, 0, err);
    if (status == CDDP_OK) status = cddp_group_allreduce(group, &v.t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    vector_drop(&v);
    return status;
}

TEST(nccl, guard_names_both_sides_of_a_size_mismatch_on_every_rank)
{
    job j = {.world_size = 2,
             .body = sizes_differ,
             .timeout_ns = 10 * SECOND,
             .options = "guard=1"};
    run_job(&j);
    for (uint32_t r = 0; r < j.world_size; r++) {
        cd_test_row("rank %u: %s", r, j.results[r].error.message);
        assert_int_equal(j.results[r].status, CDDP_E_MISMATCH);
        assert_non_null(strstr(j.results[r].error.message, "rank 1 issues"));
        assert_non_null(strstr(j.results[r].error.message, "40 × f32"));
    }
}

static cddp_status one_stays_away(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    float data[64] = {0};
    int64_t n = 64;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    (void)j;
    if (rank->rank == 1) {
        cd_os_sleep_ns(2 * SECOND);
        return CDDP_OK;
    }
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

TEST(nccl, a_time_out_names_rank_collective_and_sequence_number)
{
    const char *options[] = {NULL, "guard=1"};
    for (int i = 0; i < 2; i++) {
        job j = {.world_size = 2,
                 .body = one_stays_away,
                 .timeout_ns = SECOND,
                 .options = options[i]};
        run_job(&j);
        cd_test_row("%s: %s", options[i] != NULL ? options[i] : "no guard",
                    j.results[0].error.message);
        assert_int_equal(j.results[0].status, CDDP_E_TIMEOUT);
        assert_non_null(strstr(j.results[0].error.message, "rank 0"));
        assert_non_null(strstr(j.results[0].error.message, "allreduce #0"));
    }
}

static cddp_status abort_own_wait(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    float data[64] = {0};
    int64_t n = 64;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    (void)j;
    if (rank->rank == 1) {
        cd_os_sleep_ns(SECOND);
        return CDDP_OK;
    }
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_group_abort(group, "the user changed their mind", err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

TEST(nccl, abort_ends_what_is_in_flight)
{
    job j = {.world_size = 2, .body = abort_own_wait, .timeout_ns = 20 * SECOND};
    run_job(&j);
    cd_test_row("%s", j.results[0].error.message);
    assert_int_equal(j.results[0].status, CDDP_E_ABORTED);
    assert_non_null(strstr(j.results[0].error.message, "changed their mind"));
}

/* The output of an aborted collective looks as if it were done. */
static cddp_status reads_what_was_aborted(const job *j, cddp_rank *rank, cddp_group *group,
                                          cddp_error *err)
{
    const cddp_device *d = j->bound->device;
    cddp_error lost = CDDP_ERROR_INIT;
    vector v = {0}, own = {0};
    cddp_work *work = NULL;
    cddp_group *second = NULL;
    cddp_status status = group_open(j, rank, "second", NULL, &second, err);
    if (rank->rank == 1) {
        cd_os_sleep_ns(SECOND);
        cddp_group_destroy(second);
        return status;
    }
    if (status == CDDP_OK) status = vector_make(&v, d, CDDP_F32, 1021, 1, err);
    if (status == CDDP_OK) status = vector_make(&own, d, CDDP_F32, 1021, 3, err);
    if (status == CDDP_OK) status = cddp_group_allreduce(second, &v.t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    if (status == CDDP_OK) status = cddp_group_abort(second, "enough", err);
    if (status == CDDP_OK && expect(&own, 3, &lost) != CDDP_E_ABORTED)
        status = cddp_error_set(err, CDDP_E_STATE, "what was aborted can be read");
    if (status == CDDP_OK && strstr(lost.message, "group 'second' was aborted") == NULL)
        status = cddp_error_set(err, CDDP_E_STATE, "it says '%s'", lost.message);
    cddp_group_destroy(second);
    if (status == CDDP_OK) status = expect(&own, 3, err);
    vector_drop(&v);
    vector_drop(&own);
    (void)group;
    return status;
}

TEST(nccl, what_an_aborted_collective_wrote_cannot_be_read)
{
    job j = {.world_size = 2, .body = reads_what_was_aborted, .timeout_ns = 20 * SECOND};
    run_job(&j);
    assert_all_returned(&j);
}

static cddp_status split_and_sum(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    cddp_group *second = NULL;
    (void)group;
    cddp_status status = group_open(j, rank, "second", "split=world", &second, err);
    if (status == CDDP_OK) status = overlapping_buckets(j, rank, second, err);
    cddp_group_destroy(second);
    return status;
}

TEST(nccl, a_group_is_split_from_another)
{
    job j = {.world_size = 2, .body = split_and_sum, .timeout_ns = 30 * SECOND};
    run_job(&j);
    assert_all_returned(&j);
}

static cddp_status nothing(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    (void)j;
    (void)rank;
    (void)group;
    (void)err;
    return CDDP_OK;
}

TEST(nccl, refuses_options_it_does_not_know_and_parents_that_are_not_there)
{
    static const struct {
        const char *options, *words;
    } cases[] = {{"gard=1", "gard=1"},
                 {"guard=2", "guard=2"},
                 {"guard", "not key=value"},
                 {"split=nobody", "no open group 'nobody'"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j = {.world_size = 1, .body = nothing, .options = cases[i].options};
        run_job(&j);
        cd_test_row("%s: %s", cases[i].options, j.results[0].error.message);
        assert_int_equal(j.results[0].status, CDDP_E_CONFIG);
        assert_non_null(strstr(j.results[0].error.message, cases[i].words));
    }
}

#ifdef CDDP_NCCL_MODULE /* ---- failures that only a GPU has ---- */

static cddp_status sum_of_ones(const job *j, cddp_group *group, cddp_error *err)
{
    vector v = {0};
    cddp_work *work = NULL;
    cddp_status status = vector_make(&v, j->bound->device, CDDP_F32, 1021, 1, err);
    if (status == CDDP_OK) status = cddp_group_allreduce(group, &v.t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    if (status == CDDP_OK)
        status = v.device->stream_synchronize(v.device, NULL, err); /* its wait is the stream's */
    if (status == CDDP_OK) status = expect(&v, (float)cddp_group_size(group), err);
    vector_drop(&v);
    return status;
}

static cddp_status one_is_killed(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    cddp_status status = sum_of_ones(j, group, err);
    if (status == CDDP_OK && rank->rank == 1) (void)raise(SIGKILL);
    return status == CDDP_OK ? sum_of_ones(j, group, err) : status;
}

TEST(nccl, a_peer_that_was_killed_ends_the_wait_for_it)
{
    job j = {.world_size = 2, .body = one_is_killed, .timeout_ns = 5 * SECOND};
    run_job(&j);
    cd_test_row("%s", j.results[0].error.message);
    assert_int_not_equal(j.results[1].end, CDDP_RANK_RETURNED);
    assert_int_equal(j.results[0].end, CDDP_RANK_RETURNED);
    assert_int_not_equal(j.results[0].status, CDDP_OK);
    assert_non_null(strstr(j.results[0].error.message, "rank 0, group 'world'"));
}

static cddp_status too_much_memory(const job *j, cddp_rank *rank, cddp_group *group,
                                   cddp_error *err)
{
    void *storage = NULL;
    (void)rank;
    cddp_status status =
        j->bound->device->allocate(j->bound->device, CDDP_F32, INT64_C(1) << 38, &storage, err);
    if (status != CDDP_E_NOMEM)
        return cddp_error_set(err, CDDP_E_STATE, "status %d for 1 TiB", (int)status);
    return sum_of_ones(j, group, err);
}

TEST(nccl, memory_that_runs_out_is_an_error_and_the_group_goes_on)
{
    job j = {.world_size = 2, .body = too_much_memory, .timeout_ns = 30 * SECOND};
    run_job(&j);
    assert_all_returned(&j);
}

static cddp_status reads_where_nothing_is(const job *j, cddp_rank *rank, cddp_group *group,
                                          cddp_error *err)
{
    const cddp_device *d = j->bound->device;
    vector v = {0};
    int64_t n = 1021;
    cddp_status status = vector_make(&v, d, CDDP_F32, n, 1, err);
    cddp_tensor nowhere = cddp_tensor_of(d, (void *)(uintptr_t)4096, 0, CDDP_F32, &n, 1);
    if (status == CDDP_OK && rank->rank == 0) status = d->copy(&v.t, &nowhere, NULL, err);
    if (status == CDDP_OK) status = sum_of_ones(j, group, err);
    return status;
}

TEST(nccl, a_kernel_that_fails_is_named_and_the_peer_ends_in_time)
{
    job j = {.world_size = 2, .body = reads_where_nothing_is, .timeout_ns = 5 * SECOND};
    run_job(&j);
    cd_test_row("%s", j.results[0].error.message);
    assert_int_equal(j.results[0].status, CDDP_E_BACKEND);
    assert_non_null(strstr(j.results[0].error.message, "illegal memory access"));
    assert_int_not_equal(j.results[1].status, CDDP_OK);
}
#endif

#ifndef CDDP_NCCL_MODULE

static cddp_status breaks(const job *j, cddp_rank *rank, cddp_group *group, cddp_error *err)
{
    (void)j;
    if (rank->rank == 0) fake_nccl_break();
    cd_os_sleep_ns(SECOND / 5);
    float data[4] = {0};
    int64_t n = 4;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    if (rank->rank == 1) return CDDP_OK;
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

TEST(nccl, an_asynchronous_error_is_reported_by_the_next_operation)
{
    job j = {.world_size = 2, .body = breaks, .timeout_ns = 20 * SECOND};
    run_job(&j);
    cd_test_row("%s", j.results[0].error.message);
    assert_int_equal(j.results[0].status, CDDP_E_BACKEND);
    assert_non_null(strstr(j.results[0].error.message, "NCCL reports remote process exited"));
}

/* A group, a device tensor and one operation, from the beginning to the end. */
static cddp_status one_life(const job *j, cddp_rank *rank, uint64_t number, cddp_error *err)
{
    const cddp_device *d = j->bound->device;
    cddp_group *group = NULL;
    cddp_stream *stream = NULL;
    cddp_mark *mark = NULL;
    cddp_work *work = NULL;
    vector v = {0};
    char name[40];
    snprintf(name, sizeof name, "life %llu", (unsigned long long)number);
    cddp_status status = group_open(j, rank, name, "guard=1", &group, err);
    if (status == CDDP_OK) status = d->stream_create(d, &stream, err);
    if (status == CDDP_OK) status = d->mark_create(d, &mark, err);
    if (status == CDDP_OK) status = vector_make(&v, d, CDDP_F32, 5000, rank->rank + 1.0, err);
    if (status == CDDP_OK) status = cddp_group_allreduce(group, &v.t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    vector_drop(&v);
    if (mark != NULL) d->mark_destroy(d, mark);
    if (stream != NULL) d->stream_destroy(d, stream);
    cddp_group_destroy(group);
    return status;
}

/* Every allocation of the host's fails once, then every one of the GPU's, streams and events
** included. */
static cddp_status memory_runs_out(const job *j, cddp_rank *rank, cddp_group *group,
                                   cddp_error *err)
{
    const cddp_allocator *whole = rank->allocator;
    uint64_t reported[2] = {0, 0}, number = 0;
    (void)group;
    for (int what = 0; what < 2; what++) {
        for (uint64_t n = 1;; n++) {
            cd_watch_allocator watch;
            cddp_error why = CDDP_ERROR_INIT;
            cd_pool_trim(&cd_cuda_here.memory);
            cd_pool_trim(&cd_cuda_here.pinned);
            const fake_cuda_counts before = fake_cuda;
            cd_watch_allocator_init(&watch, whole);
            watch.fail_at = what == 0 ? n : 0;
            fake_cuda_fail_malloc_at = what == 0 ? 0 : n;
            fake_cuda_fails_on = true; /* a pool tries twice */
            rank->allocator = &watch.table;
            cddp_status status = one_life(j, rank, number++, &why);
            rank->allocator = whole;
            fake_cuda_fail_malloc_at = 0;
            fake_cuda_fails_on = false;
            if (watch.live_count != 0 || fake_cuda.live_events != before.live_events ||
                fake_cuda.live_streams != before.live_streams)
                return cddp_error_set(err, CDDP_E_STATE,
                                      "allocation %llu of %d failed: something is left behind",
                                      (unsigned long long)n, what);
            if (status == CDDP_OK) break;
            if (status != CDDP_E_NOMEM || why.message[0] == '\0')
                return cddp_error_set(err, CDDP_E_MISMATCH, "allocation %llu of %d failed: %s",
                                      (unsigned long long)n, what, why.message);
            reported[what]++;
        }
    }
    /* Group, members, works, the operation and its counts; stream, buffers, events, tensor. */
    if (reported[0] < 6 || reported[1] < 8)
        return cddp_error_set(err, CDDP_E_STATE, "only %llu and %llu allocations",
                              (unsigned long long)reported[0], (unsigned long long)reported[1]);
    return CDDP_OK;
}

TEST(nccl, every_failing_allocation_is_reported_and_leaves_nothing_behind)
{
    job j = {.world_size = 1, .body = memory_runs_out, .timeout_ns = 30 * SECOND};
    run_job(&j);
    assert_all_returned(&j);
}

TEST(nccl, types_and_operations_are_what_the_capabilities_say)
{
    ncclDataType_t type;
    ncclRedOp_t op;
    for (int d = 0; d < CDDP_DTYPE_COUNT; d++)
        assert_int_equal(cd_nccl_type((cddp_dtype)d, &type),
                         (CD_NCCL_DTYPES & CDDP_DTYPE_BIT(d)) != 0);
    for (int r = 0; r < CDDP_RED_COUNT; r++)
        assert_int_equal(cd_nccl_red_op((cddp_red_op)r, &op), (CD_NCCL_RED_OPS >> r & 1u) != 0);
    assert_true(cd_nccl_type(CDDP_BF16, &type) && type == ncclBfloat16);
    assert_true(cd_nccl_red_op(CDDP_RED_AVG, &op) && op == ncclSum);
    assert_true(cd_nccl_factor_of(CDDP_F32, 0.1).f32 == 0.1f);
    assert_int_equal(cd_nccl_factor_of(CDDP_BF16, 1.5).bits16, 0x3fc0);
    assert_int_equal(cd_nccl_factor_of(CDDP_I64, -3).i64, -3);
}

TEST(nccl, ranks_take_the_gpus_that_they_see_in_turn)
{
    static const struct {
        const char *hosts[5];
        uint32_t size, rank, local_rank, local_count;
        bool one_host, shared;
    } cases[] = {{{"a/0 8", "a/0 8"}, 2, 1, 1, 2, true, false},
                 /* clang-format off */
                 {{"a/0 1", "a/0 1"}, 2, 1, 1, 2, true, true},
                 {{"a/0 1", "a/1 1"}, 2, 1, 0, 1, true, false}, /* each was given its own */
                 {{"a/0 2", "b/0 2", "a/0 2", "b/0 2"}, 4, 3, 1, 2, false, false},
                 /* all ranks are informed */
                 {{"a/0 2", "b/0 1", "a/0 2", "b/0 1"}, 4, 0, 0, 2, false, true},
                 {{"node/0 1", "node1/0 1"}, 2, 1, 0, 1, false, false},
                 {{"node1/0 1", "node/0 1"}, 2, 1, 0, 1, false, false},
                 /* clang-format on */
                 {{"a/0 4"}, 1, 0, 0, 1, true, false}};
    cddp_error err = CDDP_ERROR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_nccl_place p;
        cd_test_row("case %zu", i);
        assert_ok(cd_nccl_place_of(cases[i].hosts, cases[i].size, cases[i].rank, &p, &err), &err);
        assert_int_equal(p.local_rank, cases[i].local_rank);
        assert_int_equal(p.local_count, cases[i].local_count);
        assert_int_equal(p.one_host, cases[i].one_host);
        assert_int_equal(p.shared, cases[i].shared);
    }
    cd_nccl_place p;
    const char *const blind[] = {"a/0 1", "b/ 0"};
    assert_fails(cd_nccl_place_of(blind, 2, 0, &p, &err), CDDP_E_BACKEND, &err,
                 "rank 1 sees no GPU on host 'b/'");
}
#endif

int main(int argc, char **argv)
{
#ifdef CDDP_NCCL_MODULE
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_backend *module = module_load();
    if (module->probe(module, &err) != CDDP_OK) cd_test_skip_all(err.message);
#endif
    return cd_test_main(argc, argv, __FILE__);
}
