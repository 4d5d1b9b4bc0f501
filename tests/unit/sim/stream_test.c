/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: order within one, none between two, marks, collectives that wait for their producers,
** reuse of memory. */
#include "sim/stream.h"
#include "core/base/error.h"
#include "core/tensor/cpu.h"
#include "tests/unit/sim/fixture.h"

#include <math.h>
#include <string.h>

#define N 8

typedef struct job {
    bool with_marks, late_free;
    uint64_t seed;
    float result[2][N];
    uint32_t reused, host_blocked;
} job;

typedef struct bucket {
    cddp_device memory; /* cpu, with storage from the world's memory */
    const cddp_device *device;
    cddp_stream *streams[3]; /* two producers, communication */
    cddp_mark *marks[2];
    cddp_tensor all, halves[2];
} bucket;

static cddp_status make(bucket *b, cddp_rank *rank, cddp_error *err)
{
    int64_t n = N;
    void *storage = NULL;
    b->memory = cd_device_with_allocator(cddp_device_cpu(), rank->allocator);
    cd_stream_device_config config = {.inner = &b->memory, .op_ns = 100};
    CD_TRY(cd_stream_device_create(rank, &config, &b->device, err));
    for (int i = 0; i < 3; i++) CD_TRY(b->device->stream_create(b->device, &b->streams[i], err));
    for (int i = 0; i < 2; i++) CD_TRY(b->device->mark_create(b->device, &b->marks[i], err));
    CD_TRY(b->device->allocate(b->device, CDDP_F32, N, &storage, err));
    b->all = cddp_tensor_of(b->device, storage, 0, CDDP_F32, &n, 1);
    for (int i = 0; i < 2; i++) b->halves[i] = cddp_tensor_slice(&b->all, i * N / 2, N / 2);
    return CDDP_OK;
}

/* Two producers fill a bucket, the reduction runs on a third stream. */
static cddp_status produce(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    job *j = f->data;
    bucket b;
    cddp_group *g = NULL;
    cddp_work *work = NULL;
    float zero[N] = {0};
    CD_TRY(make(&b, rank, err));
    CD_TRY(fixture_group(f, rank, "world", &g, err));
    CD_TRY(b.device->write(&b.all, zero, sizeof zero, err));
    for (int i = 0; i < 2; i++) {
        CD_TRY(b.device->fill(&b.halves[i], 1.0, b.streams[i], err));
        CD_TRY(b.device->scale(&b.halves[i], &b.halves[i], (double)(i + 1 + 10 * (int)rank->rank),
                               b.streams[i], err));
        CD_TRY(b.device->mark_record(b.device, b.marks[i], b.streams[i], err));
        if (j->with_marks) CD_TRY(b.device->mark_wait(b.device, b.marks[i], b.streams[2], err));
    }
    cddp_collective c = {.op = CDDP_OP_ALLREDUCE,
                         .reduce_op = CDDP_RED_SUM,
                         .input = b.all,
                         .output = b.all,
                         .stream = b.streams[2]};
    CD_TRY(cddp_group_post(g, &c, &work, err));
    uint64_t before = rank->ops->now_ns(rank);
    CD_TRY(cddp_work_wait(work, 0, err));
    j->host_blocked += rank->ops->now_ns(rank) != before;
    CD_TRY(b.device->stream_synchronize(b.device, b.streams[2], err));
    for (int i = 0; i < 2; i++) CD_TRY(b.device->stream_synchronize(b.device, b.streams[i], err));
    CD_TRY(b.device->read(&b.all, j->result[rank->rank], sizeof zero, err));
    b.device->release(b.device, CDDP_F32, N, b.all.storage);
    cddp_group_destroy(g);
    cd_stream_device_destroy(b.device);
    return CDDP_OK;
}

static bool is_right(const job *j)
{
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < N; i++)
            if (j->result[r][i] != (i < N / 2 ? 1.0f + 11.0f : 2.0f + 12.0f)) return false;
    return true;
}

static void run(job *j, cddp_rank_fn program, int transport)
{
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = j};
    f.config.world_size = 2;
    f.config.transport = (cd_sim_transport)transport;
    f.config.completion = CD_SIM_COMPLETE_CHOICE;
    f.chooser = cd_chooser_random(&f.random, j->seed);
    f.config.chooser = &f.chooser;
    fixture_run(&f, program);
    fixture_destroy(&f);
}

TEST(stream, a_reduction_that_waits_for_its_producers_is_right_under_any_schedule)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        job j = {.with_marks = true, .seed = seed};
        run(&j, produce, (int)(seed % 3));
        assert_true(is_right(&j));
        assert_int_equal(j.host_blocked, 0);
    }
}

TEST(stream, a_missing_mark_is_a_race_that_some_schedules_lose)
{
    (void)state;
    uint32_t wrong = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        job j = {.with_marks = false, .seed = seed};
        run(&j, produce, (int)(seed % 3));
        wrong += !is_right(&j);
    }
    assert_in_range(wrong, 5, 60);
}

/* ZOO-85: the bucket is given back right after the launch, and somebody else gets it. */
static cddp_status reuse(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    job *j = f->data;
    bucket b;
    cddp_group *g = NULL;
    cddp_work *work = NULL;
    void *other = NULL;
    int64_t n = N;
    CD_TRY(make(&b, rank, err));
    CD_TRY(fixture_group(f, rank, "world", &g, err));
    CD_TRY(b.device->fill(&b.all, 1.0, b.streams[0], err));
    CD_TRY(b.device->stream_synchronize(b.device, b.streams[0], err));
    cddp_tensor out = b.all;
    void *kept = NULL;
    CD_TRY(b.device->allocate(b.device, CDDP_F32, N, &kept, err));
    out.storage = kept;
    cddp_collective c = {.op = CDDP_OP_ALLREDUCE,
                         .reduce_op = CDDP_RED_SUM,
                         .input = b.all,
                         .output = out,
                         .stream = b.streams[2]};
    CD_TRY(cddp_group_post(g, &c, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    if (j->late_free) CD_TRY(b.device->stream_synchronize(b.device, b.streams[2], err));
    b.device->release(b.device, CDDP_F32, N, b.all.storage);
    CD_TRY(b.device->allocate(b.device, CDDP_F32, N, &other, err));
    j->reused += other == b.all.storage;
    cddp_tensor fresh = cddp_tensor_of(b.device, other, 0, CDDP_F32, &n, 1);
    CD_TRY(b.device->fill(&fresh, 77.0, b.streams[0], err));
    CD_TRY(b.device->stream_synchronize(b.device, b.streams[0], err));
    CD_TRY(b.device->stream_synchronize(b.device, b.streams[2], err));
    CD_TRY(b.device->read(&out, j->result[rank->rank], sizeof j->result[0], err));
    b.device->release(b.device, CDDP_F32, N, other);
    b.device->release(b.device, CDDP_F32, N, kept);
    cddp_group_destroy(g);
    cd_stream_device_destroy(b.device);
    return CDDP_OK;
}

TEST(stream, memory_given_back_too_early_is_reused_at_once_and_spoils_the_reduction)
{
    (void)state;
    uint32_t wrong[2] = {0, 0};
    for (uint64_t seed = 0; seed < 60; seed++)
        for (int late = 0; late < 2; late++) {
            job j = {.late_free = late != 0, .seed = seed};
            run(&j, reuse, CD_SIM_DIRECT);
            assert_int_equal(j.reused, 2);
            for (int r = 0; r < 2; r++)
                for (int i = 0; i < N; i++) wrong[late] += j.result[r][i] != 2.0f;
        }
    assert_true(wrong[0] > 0);
    assert_int_equal(wrong[1], 0);
}

static cddp_status too_short(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    bucket b;
    CD_TRY(make(&b, rank, err));
    /* sizes differ: nobody knows yet */
    CD_TRY(b.device->copy(&b.all, &b.halves[0], b.streams[1], err));
    cddp_error later = CDDP_ERROR_INIT;
    assert_fails(b.device->stream_synchronize(b.device, b.streams[1], &later), CDDP_E_ARG, &later,
                 "queued earlier failed");
    b.device->release(b.device, CDDP_F32, N, b.all.storage);
    cd_stream_device_destroy(b.device);
    return CDDP_OK;
}

TEST(stream, an_operation_that_fails_is_reported_by_the_next_synchronisation)
{
    (void)state;
    job j = {.seed = 3};
    run(&j, too_short, CD_SIM_DIRECT);
}

/* What the host asks of a tensor is asked when the default stream is done. */
static cddp_status looks(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    bucket b;
    int64_t first = -1;
    CD_TRY(make(&b, rank, err));
    CD_TRY(b.device->fill(&b.all, 1.0, NULL, err));
    CD_TRY(b.device->fill(&b.halves[1], (double)INFINITY, NULL, err));
    CD_TRY(b.device->find_nonfinite(&b.all, &first, err));
    assert_int_equal(first, N / 2);
    b.device->release(b.device, CDDP_F32, N, b.all.storage);
    cd_stream_device_destroy(b.device);
    return CDDP_OK;
}

TEST(stream, the_host_sees_what_the_default_stream_was_given)
{
    (void)state;
    job j = {.seed = 3};
    run(&j, looks, CD_SIM_DIRECT);
}

TEST_MAIN()
