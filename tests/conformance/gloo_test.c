/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo over real processes: the battery, its guard, its time-outs, the death of a peer, abort. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "tests/conformance/two_groups.h"
#include "tests/support/test.h"

#include "cddp/comm.h"
#include "cddp/composition.h"
#include "cddp/plugin.h"
#include "cddp/process.h"
#include "cddp/rendezvous.h"
#include "core/base/os.h"
#include "core/comm/conformance.h"
#include "core/comm/group.h"

#include <dlfcn.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct job {
    const cddp_backend *module; /* the module's table, unbound */
    char url[64];
    const char *options;
    const char *spec; /* a composition; NULL: gloo alone */
    uint64_t timeout_ns;
    cddp_status (*body)(cddp_group *group, cddp_error *err); /* NULL: that of two groups */
    uint32_t world_size;
    cddp_rank_result results[8];
} job;

static const cddp_backend *module_load(void)
{
    void *library = dlopen(CDDP_GLOO_MODULE, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail_msg("%s", dlerror());
    const cddp_plugin *plugin = dlsym(library, CDDP_PLUGIN_SYMBOL);
    assert_non_null(plugin);
    return plugin->backends[0];
}

static cddp_status find_bound(void *context, const char *name, const cddp_backend **backend,
                              cddp_error *err)
{
    if (strcmp(name, "gloo") != 0)
        return cddp_error_set(err, CDDP_E_ARG, "unknown backend '%s'", name);
    *backend = context;
    return CDDP_OK;
}

static cddp_status rank_main(cddp_rank *rank, void *argument, cddp_error *err)
{
    job *j = argument;
    cddp_rendezvous *rendezvous = NULL;
    cddp_rendezvous_options options = {.size = sizeof options,
                                       .url = j->url,
                                       .timeout_ns = UINT64_C(20000000000)};
    cddp_status status = cddp_rendezvous_open(&options, &rendezvous, err);
    if (status != CDDP_OK) return status;
    cddp_backend bound = *j->module;
    bound.self = rendezvous;
    uint32_t members[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    cddp_group *group = NULL;
    cddp_composition *composition = NULL;
    const cddp_composition_options parts = {.size = sizeof parts,
                                            .spec = j->spec != NULL ? j->spec : "gloo",
                                            .find = find_bound,
                                            .context = &bound,
                                            .own_process = true};
    status = cddp_composition_open(&parts, &composition, err);
    if (status != CDDP_OK) goto out;
    cddp_group_options o = {.size = sizeof o,
                            .backend = cddp_composition_backend(composition),
                            .rank = rank,
                            .spec = {.size = sizeof o.spec,
                                     .name = "world",
                                     .group_rank = rank->rank,
                                     .group_size = rank->world_size,
                                     .members = members,
                                     .timeout_ns = j->timeout_ns,
                                     .options = j->options}};
    if (j->body == NULL) {
        status = two_groups_run(o.backend, rank, err);
        goto out;
    }
    status = cddp_group_create(&o, &group, err);
    if (status == CDDP_OK) status = j->body(group, err);
    cddp_group_destroy(group);
out:
    cddp_composition_close(composition);
    cddp_rendezvous_close(rendezvous);
    return status;
}

static void run_job(job *j)
{
    char directory[] = "/tmp/cddp-gloo-XXXXXX";
    assert_non_null(mkdtemp(directory));
    snprintf(j->url, sizeof j->url, "file://%s", directory);
    j->module = module_load();
    cddp_process_options options = {.size = sizeof options,
                                    .world_size = j->world_size,
                                    .deadline_ns = UINT64_C(180000000000),
                                    .grace_ns = UINT64_C(8000000000)};
    cddp_process_world *world = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_process_world_open(&options, &world, &err), &err);
    for (int i = 0; i < 8; i++) j->results[i].size = sizeof j->results[i];
    assert_ok(cddp_process_world_ops()->launch(world, rank_main, j, j->results, &err), &err);
    cddp_process_world_close(world);
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

/* The battery over some dtypes: thousands of small operations cost a wake-up of a thread each. */
static cddp_status battery(cddp_group *group, uint32_t dtypes, cddp_error *err)
{
    tally t = {0};
    cd_conformance_options o = {.device = cddp_device_cpu(),
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

static cddp_status battery_of_all(cddp_group *group, cddp_error *err)
{
    return battery(group, 0, err);
}

static cddp_status battery_of_three(cddp_group *group, cddp_error *err)
{
    return battery(group,
                   CDDP_DTYPE_BIT(CDDP_F32) | CDDP_DTYPE_BIT(CDDP_BF16) | CDDP_DTYPE_BIT(CDDP_I64),
                   err);
}

static cddp_status battery_of_one(cddp_group *group, cddp_error *err)
{
    return battery(group, CDDP_DTYPE_BIT(CDDP_F32), err);
}

/* TI-L-01, TI-L-02: sums, broadcasts, barriers, messages and exchanges of unequal shares over as
** many as four ranks, against results that the battery computes by itself. */
TEST(gloo, passes_the_battery_with_its_own_algorithms)
{
    static const struct {
        uint32_t ranks;
        cddp_status (*body)(cddp_group *group, cddp_error *err);
    } cases[] = {{1, battery_of_all},
                 {2, battery_of_three},
                 {3, battery_of_three},
                 {4, battery_of_one}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j = {.world_size = cases[i].ranks,
                 .body = cases[i].body,
                 .timeout_ns = UINT64_C(60000000000)};
        run_job(&j);
        assert_all_returned(&j);
    }
}

TEST(gloo, passes_the_battery_with_our_ring_and_guard)
{
    job j = {.world_size = 3,
             .body = battery_of_one,
             .timeout_ns = UINT64_C(60000000000),
             .options = "algorithm=ring,guard=1"};
    run_job(&j);
    assert_all_returned(&j);
}

TEST(gloo, composed_passes_the_battery)
{
    static const char *const specs[] = {"check:gloo", "check:after:rr:2:hier:per=2:gloo"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        job j = {.world_size = 3,
                 .body = battery_of_one,
                 .timeout_ns = UINT64_C(60000000000),
                 .spec = specs[i]};
        cd_test_row("%s", specs[i]);
        run_job(&j);
        assert_all_returned(&j);
    }
}

TEST(gloo, ranks_wait_for_two_groups_in_opposite_order)
{
    static const char *const specs[] = {"gloo", "check:gloo", "hier:per=1:gloo"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        job j = {.world_size = 2, .spec = specs[i]};
        cd_test_row("%s", specs[i]);
        run_job(&j);
        assert_all_returned(&j);
    }
}

static cddp_status sizes_differ(cddp_group *group, cddp_error *err)
{
    float data[64] = {0};
    int64_t n = cddp_group_rank(group) == 1 ? 40 : 64;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

/* The guard is on without being asked for. */
TEST(gloo, guard_names_both_sides_of_a_size_mismatch_on_every_rank)
{
    job j = {.world_size = 3, .body = sizes_differ, .timeout_ns = UINT64_C(5000000000)};
    run_job(&j);
    for (uint32_t r = 0; r < 3; r++) {
        cd_test_row("rank %u: %s", r, j.results[r].error.message);
        assert_int_equal(j.results[r].end, CDDP_RANK_RETURNED);
        assert_int_equal(j.results[r].status, CDDP_E_MISMATCH);
        assert_non_null(strstr(j.results[r].error.message, "rank 1 issues"));
        assert_non_null(strstr(j.results[r].error.message, "40 × f32"));
    }
}

/* Gloo would end the receiver's process. */
static cddp_status messages_differ(cddp_group *group, cddp_error *err)
{
    float data[64] = {0};
    const uint32_t me = cddp_group_rank(group);
    const int64_t n = me == 0 ? 64 : 40;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_collective c = {.op = me == 0 ? CDDP_OP_SEND : CDDP_OP_RECV,
                         .root = 1 - me,
                         .tag = 7,
                         .input = t,
                         .output = t};
    cddp_work *work = NULL;
    cddp_status status = cddp_group_post(group, &c, &work, err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

TEST(gloo, a_message_of_another_size_is_named_and_ends_no_process)
{
    job j = {.world_size = 2, .body = messages_differ, .timeout_ns = UINT64_C(1000000000)};
    run_job(&j);
    bool is_named = false;
    for (uint32_t r = 0; r < 2; r++) {
        cd_test_row("rank %u: %s", r, j.results[r].error.message);
        assert_int_equal(j.results[r].end, CDDP_RANK_RETURNED);
        assert_int_not_equal(j.results[r].status, CDDP_OK);
        is_named = is_named || strstr(j.results[r].error.message, "bytes with tag 7") != NULL;
    }
    assert_true(is_named);
}

static cddp_status two_come_late(cddp_group *group, cddp_error *err)
{
    float data[4] = {0};
    const int64_t n = 4;
    if (cddp_group_rank(group) % 2 == 1) {
        cd_os_sleep_ns(UINT64_C(2500000000));
        return CDDP_OK;
    }
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

TEST(gloo, a_time_out_names_all_missing_ranks_and_the_operation)
{
    job j = {.world_size = 4, .body = two_come_late, .timeout_ns = UINT64_C(1000000000)};
    run_job(&j);
    for (uint32_t r = 0; r < 4; r += 2) {
        cd_test_row("rank %u: %s", r, j.results[r].error.message);
        assert_int_equal(j.results[r].status, CDDP_E_TIMEOUT);
        assert_non_null(
            strstr(j.results[r].error.message, "allreduce #0 of group 'world' on rank"));
        assert_non_null(
            strstr(j.results[r].error.message, "lost ranks 1 and 3: they did not come within 1 s"));
    }
}

TEST(gloo, checked_names_both_sides_of_a_size_mismatch_on_every_rank)
{
    job j = {.world_size = 3,
             .body = sizes_differ,
             .timeout_ns = UINT64_C(5000000000),
             .spec = "check:gloo"};
    run_job(&j);
    for (uint32_t r = 0; r < 3; r++) {
        cd_test_row("rank %u: %s", r, j.results[r].error.message);
        assert_int_equal(j.results[r].end, CDDP_RANK_RETURNED);
        assert_int_equal(j.results[r].status, CDDP_E_MISMATCH);
        assert_non_null(strstr(j.results[r].error.message,
                               "rank 1 calls allreduce(sum, 40 x f32) where rank 0 "
                               "calls allreduce(sum, 64 x f32) (collective 0)"));
    }
}

TEST(gloo, a_planted_death_is_a_killed_process)
{
    job j = {.world_size = 2,
             .body = sizes_differ,
             .timeout_ns = UINT64_C(1000000000),
             .spec = "fault:die=1@0:gloo"};
    run_job(&j);
    assert_int_equal(j.results[1].end, CDDP_RANK_KILLED);
    assert_int_equal(j.results[1].detail, SIGKILL);
    cd_test_row("%s", j.results[0].error.message);
    assert_int_not_equal(j.results[0].status, CDDP_OK);
}

static cddp_status roots_differ(cddp_group *group, cddp_error *err)
{
    float data[4] = {0};
    int64_t n = 4;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    cddp_status status =
        cddp_group_broadcast(group, &t, cddp_group_rank(group) == 0 ? 0 : 1, &work, err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

TEST(gloo, guard_sees_roots_that_differ)
{
    job j = {.world_size = 2,
             .body = roots_differ,
             .timeout_ns = UINT64_C(5000000000),
             .options = "guard=1"};
    run_job(&j);
    for (uint32_t r = 0; r < 2; r++) assert_int_equal(j.results[r].status, CDDP_E_MISMATCH);
}

static cddp_status one_stays_away(cddp_group *group, cddp_error *err)
{
    float data[64] = {0};
    int64_t n = 64;
    if (cddp_group_rank(group) == 2) {
        cd_os_sleep_ns(UINT64_C(2500000000));
        return CDDP_OK;
    }
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

TEST(gloo, a_missing_rank_is_named_at_the_time_out)
{
    const char *options[] = {"guard=1", "algorithm=ring"};
    for (int i = 0; i < 2; i++) {
        job j = {.world_size = 3,
                 .body = one_stays_away,
                 .timeout_ns = UINT64_C(1000000000),
                 .options = options[i]};
        run_job(&j);
        bool named = false;
        for (uint32_t r = 0; r < 2; r++) {
            cd_test_row("%s, rank %u: %s", options[i], r, j.results[r].error.message);
            assert_int_not_equal(j.results[r].status, CDDP_OK);
            named = named || strstr(j.results[r].error.message, "lost rank 2: it did not") != NULL;
        }
        assert_true(named);
    }
}

static cddp_status one_dies(cddp_group *group, cddp_error *err)
{
    static float data[1 << 20];
    int64_t n = 1 << 20;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    for (int i = 0; i < 50; i++) {
        if (cddp_group_rank(group) == 1 && i == 7) kill(getpid(), SIGKILL);
        cddp_work *work = NULL;
        cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
        if (status != CDDP_OK) return status;
    }
    return CDDP_OK;
}

TEST(gloo, a_dead_peer_is_named_within_the_time_out)
{
    job j = {.world_size = 3,
             .body = one_dies,
             .timeout_ns = UINT64_C(2000000000),
             .options = "algorithm=ring,guard=1"};
    uint64_t before = cd_os_now_ns();
    run_job(&j);
    assert_true(cd_os_now_ns() - before < UINT64_C(6000000000));
    assert_int_equal(j.results[1].end, CDDP_RANK_KILLED);
    assert_int_equal(j.results[1].detail, SIGKILL);
    bool named = false;
    for (uint32_t r = 0; r < 3; r += 2) {
        cd_test_row("rank %u: %s", r, j.results[r].error.message);
        assert_int_not_equal(j.results[r].status, CDDP_OK);
        named = named || strstr(j.results[r].error.message, "lost rank 1") != NULL;
    }
    assert_true(named);
}

static cddp_status abort_own_wait(cddp_group *group, cddp_error *err)
{
    float data[64] = {0};
    int64_t n = 64;
    if (cddp_group_rank(group) == 1) {
        cd_os_sleep_ns(UINT64_C(1500000000));
        return CDDP_OK;
    }
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    if (status != CDDP_OK) return status;
    cd_os_sleep_ns(UINT64_C(200000000));
    uint64_t before = cd_os_now_ns();
    status = cddp_group_abort(group, "the user changed their mind", err);
    if (status != CDDP_OK) return status;
    status = cddp_work_wait(work, 0, err);
    if (cd_os_now_ns() - before > UINT64_C(500000000))
        return cddp_error_set(err, CDDP_E_TIMEOUT, "abort did not wake the wait");
    return status;
}

TEST(gloo, abort_wakes_an_operation_of_our_ring)
{
    job j = {.world_size = 2,
             .body = abort_own_wait,
             .timeout_ns = UINT64_C(10000000000),
             .options = "algorithm=ring"};
    run_job(&j);
    cd_test_row("%s", j.results[0].error.message);
    assert_int_equal(j.results[0].status, CDDP_E_ABORTED);
    assert_non_null(strstr(j.results[0].error.message, "changed their mind"));
    assert_int_equal(j.results[1].status, CDDP_OK);
}

/* No rank leaves before all have ended their wait: only aborts can end it. */
static cddp_status first_rank_aborts(cddp_group *group, cddp_error *err)
{
    float data[64] = {0};
    int64_t n = 64;
    if (cddp_group_rank(group) == 0) {
        cd_os_sleep_ns(UINT64_C(300000000));
        const cddp_status status = cddp_group_abort(group, "the user changed their mind", err);
        cd_os_sleep_ns(UINT64_C(2200000000));
        return status;
    }
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    const uint64_t before = cd_os_now_ns();
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    const uint64_t waited = cd_os_now_ns() - before;
    if (waited > UINT64_C(1500000000))
        return cddp_error_set(err, CDDP_E_TIMEOUT, "the abort did not wake the wait");
    cd_os_sleep_ns(UINT64_C(2500000000) - waited);
    return status;
}

/* Ranks of the other node know rank 0 only by their leader. */
TEST(gloo, an_abort_ends_the_ranks_of_every_node)
{
    job j = {.world_size = 4,
             .body = first_rank_aborts,
             .timeout_ns = UINT64_C(20000000000),
             .options = "algorithm=ring,guard=0",
             .spec = "hier:per=2:gloo"};
    run_job(&j);
    assert_int_equal(j.results[0].status, CDDP_OK);
    for (uint32_t r = 1; r < 4; r++) {
        cd_test_row("rank %u: %s", r, j.results[r].error.message);
        assert_int_equal(j.results[r].end, CDDP_RANK_RETURNED);
        assert_int_not_equal(j.results[r].status, CDDP_OK);
        assert_int_not_equal(j.results[r].status, CDDP_E_TIMEOUT);
        assert_non_null(strstr(j.results[r].error.message, "lost rank"));
    }
}

/* Rank 1 dies while rank 0 is about to send to rank 2, which asks for the data only when rank 0 has
** given its memory back. */
static cddp_status memory_goes(cddp_group *group, cddp_error *err)
{
    const int64_t n = 1 << 20;
    const size_t bytes = (size_t)n * sizeof(float);
    const uint32_t me = cddp_group_rank(group);
    if (me == 1) {
        cd_os_sleep_ns(UINT64_C(200000000));
        kill(getpid(), SIGKILL);
    }
    if (me == 2) cd_os_sleep_ns(UINT64_C(600000000));
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return cddp_error_set(err, CDDP_E_NOMEM, "no memory");
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    munmap(data, bytes);
    if (me != 0 || status == CDDP_OK) return status;
    /* The group is still open. Its event loop neither touches what is gone, nor asks for ever what
    ** became of it. */
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    cd_os_sleep_ns(UINT64_C(1000000000));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    const long long spent_ms =
        (after.tv_sec - before.tv_sec) * 1000LL + (after.tv_nsec - before.tv_nsec) / 1000000;
    if (spent_ms > 300)
        return cddp_error_set(err, CDDP_E_STATE, "%lld ms of processor time for nothing", spent_ms);
    return status;
}

TEST(gloo, memory_of_a_failed_operation_is_the_callers_again)
{
    const char *options[] = {"algorithm=ring", "algorithm=native"};
    for (int i = 0; i < 2; i++) {
        job j = {.world_size = 3,
                 .body = memory_goes,
                 .timeout_ns = UINT64_C(4000000000),
                 .options = options[i]};
        run_job(&j);
        for (uint32_t r = 0; r < 3; r += 2) {
            cd_test_row("%s, rank %u: %s", options[i], r, j.results[r].error.message);
            assert_int_equal(j.results[r].end, CDDP_RANK_RETURNED);
            assert_true(j.results[r].status == CDDP_E_BACKEND ||
                        j.results[r].status == CDDP_E_TIMEOUT);
        }
    }
}

/* A message that nobody sends, an operation that nobody joins, and another behind it. */
static cddp_status three_works_and_an_abort(cddp_group *group, cddp_error *err)
{
    float data[4] = {0};
    int64_t n = 4;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    const uint32_t me = cddp_group_rank(group);
    if (me == 1) {
        cd_os_sleep_ns(UINT64_C(1500000000));
        return CDDP_OK;
    }
    cddp_work *message = NULL, *sum = NULL, *more = NULL;
    cddp_collective receive = {.op = CDDP_OP_RECV, .root = 1, .tag = 7, .output = t};
    cddp_status status = cddp_group_post(group, &receive, &message, err);
    if (status != CDDP_OK) return status;
    status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &sum, err);
    if (status == CDDP_OK) status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &more, err);
    if (status != CDDP_OK) return status;
    const uint64_t before = cd_os_now_ns();
    cd_os_sleep_ns(UINT64_C(200000000));
    status = cddp_group_abort(group, "enough", err);
    if (status != CDDP_OK) return status;
    cddp_work *const works[] = {message, sum, more};
    for (int i = 0; i < 3; i++)
        if (cddp_work_wait(works[i], 0, err) != CDDP_E_ABORTED ||
            strstr(err->message, "enough") == NULL)
            return cddp_error_set(err, CDDP_E_STATE, "work %d was not aborted: %s", i,
                                  err->message);
    return cd_os_now_ns() - before < UINT64_C(1000000000)
               ? CDDP_OK
               : cddp_error_set(err, CDDP_E_TIMEOUT, "too late");
}

TEST(gloo, abort_ends_everything_that_is_outstanding)
{
    const char *options[] = {"algorithm=ring", "algorithm=native"};
    for (int i = 0; i < 2; i++) {
        job j = {.world_size = 2,
                 .body = three_works_and_an_abort,
                 .timeout_ns = UINT64_C(10000000000),
                 .options = options[i]};
        run_job(&j);
        cd_test_row("%s", options[i]);
        assert_all_returned(&j);
    }
}

static cddp_status nothing(cddp_group *group, cddp_error *err)
{
    (void)group;
    (void)err;
    return CDDP_OK;
}

TEST(gloo, refuses_options_it_does_not_know)
{
    job j = {.world_size = 1, .body = nothing, .options = "algoritm=ring"};
    run_job(&j);
    assert_int_equal(j.results[0].status, CDDP_E_CONFIG);
    assert_non_null(strstr(j.results[0].error.message, "algoritm=ring"));
}

/* ---- a rank that stands still in the middle of an operation ---- */

static sem_t *others_ended; /* shared by the ranks */
static bool stands_still;   /* this process */

/* The operation's own reductions call it: the fingerprints were exchanged long ago. */
static cddp_status stand_still(cddp_red_op op, const cddp_tensor *dst, const cddp_tensor *src,
                               cddp_stream *stream, cddp_error *err)
{
    for (int i = 0; stands_still && i < 2; i++) sem_wait(others_ended);
    stands_still = false;
    return cddp_device_cpu()->reduce(op, dst, src, stream, err);
}

static cddp_status third_stands_still(cddp_group *group, cddp_error *err)
{
    enum { COUNT = 100000 };
    const int64_t count = COUNT;
    static float data[COUNT];
    cddp_device device = *cddp_device_cpu();
    device.reduce = stand_still;
    stands_still = cddp_group_rank(group) == 2;
    const cddp_tensor t = cddp_tensor_of(&device, data, 0, CDDP_F32, &count, 1);
    cddp_work *work = NULL;
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    if (cddp_group_rank(group) != 2) sem_post(others_ended);
    return status;
}

/* Gloo says nothing of whom it waited for, and a ring waits for neighbours. */
TEST(gloo, a_rank_that_stands_still_in_an_operation_is_named_by_all_others)
{
    static const char *const algorithms[] = {"algorithm=native", "algorithm=ring"};
    for (int i = 0; i < 2; i++) {
        job j = {.world_size = 3,
                 .timeout_ns = UINT64_C(1000000000),
                 .options = algorithms[i],
                 .body = third_stands_still};
        others_ended = mmap(NULL, sizeof *others_ended, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(others_ended != MAP_FAILED);
        assert_int_equal(sem_init(others_ended, 1, 0), 0);
        run_job(&j);
        for (uint32_t r = 0; r < 2; r++) {
            cd_test_row("rank %u, %s: %s", r, algorithms[i], j.results[r].error.message);
            assert_int_equal(j.results[r].status, CDDP_E_TIMEOUT);
            assert_non_null(
                strstr(j.results[r].error.message, "lost rank 2: no part was taken in it in time"));
        }
        munmap(others_ended, sizeof *others_ended);
    }
}

/* ---- a program that writes while an operation computes ---- */

static float *meddles_with; /* in this process; NULL: nothing, or done */

/* The operation's own reductions call it, so it is in the middle of one. */
static cddp_status reduce_and_meddle(cddp_red_op op, const cddp_tensor *dst, const cddp_tensor *src,
                                     cddp_stream *stream, cddp_error *err)
{
    if (meddles_with != NULL) *meddles_with = 7.0f;
    meddles_with = NULL;
    return cddp_device_cpu()->reduce(op, dst, src, stream, err);
}

static cddp_status write_meanwhile(cddp_group *group, cddp_error *err)
{
    enum { COUNT = 1000 };
    const int64_t count = COUNT;
    const uint32_t me = cddp_group_rank(group);
    static float data[COUNT];
    cddp_device device = *cddp_device_cpu();
    device.reduce = reduce_and_meddle;
    for (int i = 0; i < COUNT; i++) data[i] = 1.0f;
    const cddp_tensor t = cddp_tensor_of(&device, data, 0, CDDP_F32, &count, 1);
    meddles_with = me == 1 ? &data[COUNT - 1] : NULL;
    cddp_collective c = {.size = sizeof c,
                         .op = CDDP_OP_ALLREDUCE,
                         .reduce_op = CDDP_RED_SUM,
                         .input = t,
                         .output = t,
                         .sequence = 900,
                         .is_watched = true};
    const cddp_backend *b = &group->table;
    uint64_t given = 0, got = 0;
    void *work = NULL;
    cddp_status status = device.digest(&t, &given, err);
    if (status == CDDP_OK) status = b->post(group->backend_group, &c, &work, err);
    if (status == CDDP_OK) status = b->wait(group->backend_group, work, 0, err);
    if (status == CDDP_OK) status = device.digest(&t, &got, err);
    if (status != CDDP_OK) return status;
    const bool was_read = b->digest_read(group->backend_group, work) == (int64_t)given,
               is_reported = b->digest_written(group->backend_group, work) != (int64_t)got;
    b->release(group->backend_group, work);
    for (int i = 0; i < COUNT; i++)
        if (data[i] != 2.0f)
            return cddp_error_set(err, CDDP_E_MISMATCH, "element %d is %g", i, (double)data[i]);
    if (!was_read || is_reported != (me == 1))
        return cddp_error_set(err, CDDP_E_STATE, "read %d, reported %d", was_read, is_reported);
    return CDDP_OK;
}

TEST(gloo, a_write_while_an_operation_computes_in_place_is_reported_and_changes_no_sum)
{
    job j = {.world_size = 2, .timeout_ns = UINT64_C(20000000000), .body = write_meanwhile};
    run_job(&j);
    assert_all_returned(&j);
    j.options = "algorithm=ring";
    run_job(&j);
    assert_all_returned(&j);
}

/* What processes share: who is at a monitored barrier, and when those who are not may leave. */
typedef struct roll_call {
    uint32_t away, dead; /* bits of ranks: who does not come, and who ends instead */
    sem_t is_here;       /* for rank 0: one more that comes */
    sem_t is_over[4];    /* for a rank that stays away: one more has its answer */
} roll_call;
static roll_call *roll;

static bool is_in(uint32_t ranks, uint32_t rank) { return (ranks >> rank & 1u) != 0; }

static cddp_status answer_the_roll(cddp_group *group, cddp_error *err)
{
    const uint32_t me = cddp_group_rank(group), size = cddp_group_size(group),
                   absent = roll->away | roll->dead;
    uint32_t comers = 0;
    for (uint32_t r = 0; r < size; r++) comers += !is_in(absent, r);
    if (is_in(roll->dead, me)) return CDDP_OK;
    if (is_in(roll->away, me)) {
        for (uint32_t i = 0; i < comers; i++) sem_wait(&roll->is_over[me]);
        return CDDP_OK;
    }
    for (uint32_t i = 1; me == 0 && i < comers; i++) sem_wait(&roll->is_here);
    if (me != 0) sem_post(&roll->is_here);
    const cddp_status status = cddp_barrier_monitored(group, UINT64_C(1000000000), err);
    for (uint32_t r = 0; r < size; r++)
        if (is_in(roll->away, r)) sem_post(&roll->is_over[r]);
    return status;
}

/* all: as the error of rank 0 lists them; lowest: as every error begins. */
static void call_the_roll(uint32_t away, uint32_t dead, const char *lowest, const char *all)
{
    job j = {.world_size = 4, .timeout_ns = UINT64_C(30000000000), .body = answer_the_roll};
    roll = mmap(NULL, sizeof *roll, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(roll != MAP_FAILED);
    roll->away = away;
    roll->dead = dead;
    assert_int_equal(sem_init(&roll->is_here, 1, 0), 0);
    for (int r = 0; r < 4; r++) assert_int_equal(sem_init(&roll->is_over[r], 1, 0), 0);
    run_job(&j);
    for (uint32_t r = 0; r < 4; r++) {
        const char *words = j.results[r].error.message;
        cd_test_row("rank %u: %s", r, words);
        assert_int_equal(j.results[r].end, CDDP_RANK_RETURNED);
        if (is_in(away | dead, r)) {
            assert_int_equal(j.results[r].status, CDDP_OK);
            continue;
        }
        assert_int_equal(j.results[r].status, CDDP_E_TIMEOUT);
        if (strncmp(words, lowest, strlen(lowest)) != 0) fail_msg("rank %u: %s", r, words);
        const size_t length = strlen(words), tail = strlen(all);
        if (r == 0 && (length < tail || strcmp(words + length - tail, all) != 0))
            fail_msg("rank 0: %s", words);
    }
    munmap(roll, sizeof *roll);
}

TEST(gloo, a_monitored_barrier_names_exactly_those_who_are_missing)
{
    call_the_roll(1u << 3, 0, "lost rank 3: it did not come", "; no message came from rank 3");
    call_the_roll(1u << 1 | 1u << 3, 0, "lost rank 1: it did not come",
                  "; no message came from ranks 1 and 3");
    call_the_roll(1u << 1 | 1u << 2 | 1u << 3, 0, "lost rank 1: it did not come",
                  "; no message came from ranks 1-3");
}

TEST(gloo, a_monitored_barrier_without_its_first_rank_names_that)
{
    call_the_roll(1u << 0, 0, "lost rank 0: it gave no answer", "");
}

/* The connection to a dead rank is closed, and the others go on. */
TEST(gloo, a_monitored_barrier_tells_the_dead_from_those_who_come_after_their_death)
{
    call_the_roll(1u << 2, 1u << 1, "lost rank 1: it did not come",
                  "; no message came from ranks 1 and 2");
}

TEST_MAIN()
