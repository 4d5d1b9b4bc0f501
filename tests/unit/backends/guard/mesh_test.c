/* SPDX-License-Identifier: Apache-2.0 */
/* The guard's connections: whoever does not come, dies or gives up is named on every member. */
#define _XOPEN_SOURCE 700
#include "backends/guard/mesh.h"
#include "core/base/os.h"
#include "tests/support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 4
#define MS UINT64_C(1000000)

static const uint32_t members[RANKS] = {10, 20, 30, 40}; /* world ranks */

typedef struct member member;
typedef cddp_status (*body_fn)(member *m, cddp_error *err);

struct member {
    const char *url;
    uint32_t rank;
    body_fn body;
    cd_mesh *mesh;
    cd_call_fingerprint all[RANKS];
    cddp_error err;
    cddp_status status;
    pthread_t thread;
};

static cd_call_fingerprint fingerprint_of(const member *m, uint64_t sequence)
{
    return (cd_call_fingerprint){.magic = CD_CALL_FINGERPRINT_MAGIC,
                                 .sequence = sequence,
                                 .numel = (int64_t)(100 * sequence + m->rank)};
}

static cddp_status exchange_as(member *m, uint64_t sequence, bool is_announced, uint64_t timeout_ns,
                               cddp_error *err)
{
    m->all[m->rank] = fingerprint_of(m, sequence);
    const cd_mesh_round round = {m->all, cd_os_now_ns() + timeout_ns, timeout_ns, is_announced};
    return cd_mesh_exchange(m->mesh, &round, err);
}

static cddp_status exchange(member *m, uint64_t sequence, uint64_t timeout_ns, cddp_error *err)
{
    return exchange_as(m, sequence, false, timeout_ns, err);
}

static bool announce(member *m, uint64_t sequence)
{
    const cd_call_fingerprint f = fingerprint_of(m, sequence);
    return cd_mesh_announce(m->mesh, &f, cd_os_now_ns() + 1000 * MS);
}

static void *member_main(void *argument)
{
    member *m = argument;
    cddp_rendezvous *store = NULL;
    const cddp_rendezvous_options o = {.size = sizeof o, .url = m->url, .timeout_ns = 5000 * MS};
    m->err = (cddp_error)CDDP_ERROR_INIT;
    m->status = cddp_rendezvous_open(&o, &store, &m->err);
    const cd_mesh_options options = {.rank = m->rank,
                                     .size = RANKS,
                                     .members = members,
                                     .rendezvous = store,
                                     .prefix = "test/",
                                     .timeout_ns = 3000 * MS};
    if (m->status == CDDP_OK) m->status = cd_mesh_open(&options, &m->mesh, &m->err);
    if (m->status == CDDP_OK) m->status = m->body(m, &m->err);
    cd_mesh_close(m->mesh);
    cddp_rendezvous_close(store);
    return NULL;
}

static void run(member all[RANKS], body_fn body)
{
    char directory[] = "/tmp/cddp-mesh-XXXXXX", url[64], command[64];
    assert_non_null(mkdtemp(directory));
    snprintf(url, sizeof url, "file://%s", directory);
    memset(all, 0, RANKS * sizeof *all);
    for (uint32_t r = 0; r < RANKS; r++) {
        all[r].url = url;
        all[r].rank = r;
        all[r].body = body;
        assert_int_equal(pthread_create(&all[r].thread, NULL, member_main, &all[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(all[r].thread, NULL);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    assert_int_equal(system(command), 0);
}

static void assert_says(const member *m, cddp_status status, const char *words)
{
    cd_test_row("member %u: %s", m->rank, m->err.message);
    assert_int_equal(m->status, status);
    assert_non_null(strstr(m->err.message, words));
}

static cddp_status check_round(const member *m, uint64_t i, cddp_error *err)
{
    for (uint32_t r = 0; r < RANKS; r++)
        if (m->all[r].numel != (int64_t)(100 * i + r) || m->all[r].sequence != i)
            return cddp_error_set(err, CDDP_E_CORRUPT, "round %llu", (unsigned long long)i);
    return CDDP_OK;
}

static cddp_status a_thousand(member *m, cddp_error *err)
{
    for (uint64_t i = 0; i < 1000; i++) {
        cddp_status status = exchange(m, i, 5000 * MS, err);
        if (status != CDDP_OK) return status;
        status = check_round(m, i, err);
        if (status != CDDP_OK) return status;
    }
    return CDDP_OK;
}

TEST(mesh, everybody_has_everybodys_fingerprint_of_the_round)
{
    member all[RANKS];
    run(all, a_thousand);
    for (uint32_t r = 0; r < RANKS; r++) assert_ok(all[r].status, &all[r].err);
}

static pthread_barrier_t meeting;

/* Member 0 announces three rounds, and begins the first of them when the others have ended all. */
static cddp_status one_announces(member *m, cddp_error *err)
{
    cddp_status status = exchange(m, 0, 5000 * MS, err);
    for (uint64_t i = 1; i <= 3 && m->rank == 0; i++)
        if (!announce(m, i)) return cddp_error_set(err, CDDP_E_STATE, "refused");
    if (m->rank == 0) pthread_barrier_wait(&meeting);
    for (uint64_t i = 1; i <= 3 && status == CDDP_OK; i++) {
        status = exchange_as(m, i, m->rank == 0, 5000 * MS, err);
        if (status == CDDP_OK) status = check_round(m, i, err);
    }
    if (m->rank != 0) pthread_barrier_wait(&meeting);
    return status;
}

TEST(mesh, rounds_that_were_announced_wait_for_nobody)
{
    member all[RANKS];
    assert_int_equal(pthread_barrier_init(&meeting, NULL, RANKS), 0);
    run(all, one_announces);
    for (uint32_t r = 0; r < RANKS; r++) assert_ok(all[r].status, &all[r].err);
    pthread_barrier_destroy(&meeting);
}

/* Each member as far ahead as it may be, or less: the order is that of rounds. */
static cddp_status all_announce(member *m, cddp_error *err)
{
    enum { ROUNDS = 500, WINDOW = 2 * CD_MESH_AHEAD_MAX };
    bool announced[WINDOW] = {false};
    uint64_t next = 0;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        for (; next < ROUNDS && next < i + 3 + 4 * m->rank; next++)
            announced[next % WINDOW] = announce(m, next);
        cddp_status status = exchange_as(m, i, announced[i % WINDOW], 5000 * MS, err);
        if (status == CDDP_OK) status = check_round(m, i, err);
        if (status != CDDP_OK) return status;
    }
    return CDDP_OK;
}

TEST(mesh, members_announce_as_far_ahead_as_they_may)
{
    member all[RANKS];
    run(all, all_announce);
    for (uint32_t r = 0; r < RANKS; r++) assert_ok(all[r].status, &all[r].err);
}

/* Member 0 announces a round, and gives up in the one before. */
static cddp_status one_announces_and_leaves(member *m, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    if (m->rank == 0 && !(announce(m, 0) && announce(m, 1)))
        return cddp_error_set(err, CDDP_E_STATE, "refused");
    status = exchange_as(m, 0, m->rank == 0, 5000 * MS, err);
    if (m->rank == 0) cd_mesh_leave(m->mesh, 40);
    pthread_barrier_wait(&meeting);
    if (status == CDDP_OK && m->rank != 0) status = exchange(m, 1, 5000 * MS, err);
    pthread_barrier_wait(&meeting);
    return status;
}

TEST(mesh, who_gave_up_takes_part_in_nothing_that_it_had_announced)
{
    member all[RANKS];
    assert_int_equal(pthread_barrier_init(&meeting, NULL, RANKS), 0);
    run(all, one_announces_and_leaves);
    for (uint32_t r = 1; r < 3; r++)
        assert_says(&all[r], CDDP_E_BACKEND, "lost rank 40, as rank 10 says");
    pthread_barrier_destroy(&meeting);
}

static cddp_status two_stay_away(member *m, cddp_error *err)
{
    cddp_status status = exchange(m, 0, 5000 * MS, err);
    if (status == CDDP_OK && m->rank % 2 == 1) cd_os_sleep_ns(800 * MS);
    return status == CDDP_OK && m->rank % 2 == 0 ? exchange(m, 1, 300 * MS, err) : status;
}

TEST(mesh, a_time_out_names_all_who_did_not_come)
{
    member all[RANKS];
    run(all, two_stay_away);
    for (uint32_t r = 0; r < RANKS; r += 2)
        assert_says(&all[r], CDDP_E_TIMEOUT,
                    "lost ranks 20 and 40: they did not come within 0.3 s");
}

static cddp_status one_leaves(member *m, cddp_error *err)
{
    cddp_status status = exchange(m, 0, 5000 * MS, err);
    return status == CDDP_OK && m->rank != 2 ? exchange(m, 1, 2000 * MS, err) : status;
}

TEST(mesh, a_member_that_is_gone_is_named_at_once)
{
    member all[RANKS];
    const uint64_t before = cd_os_now_ns();
    run(all, one_leaves);
    assert_true(cd_os_now_ns() - before < 1900 * MS);
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != 2) assert_says(&all[r], CDDP_E_BACKEND, "lost rank 30");
}

/* Member 0 misses world rank 40 elsewhere and says so; the others wait for it in a round. */
static cddp_status one_says_why(member *m, cddp_error *err)
{
    cddp_status status = exchange(m, 0, 5000 * MS, err);
    if (m->rank == 0) {
        cd_mesh_leave(m->mesh, 40);
        cd_os_sleep_ns(300 * MS);
        return status;
    }
    return status == CDDP_OK ? exchange(m, 1, 2000 * MS, err) : status;
}

/* Member 0 leaves at once; the others begin the next round when all they will ever get is there. */
static cddp_status one_has_left_before(member *m, cddp_error *err)
{
    cddp_status status = exchange(m, 0, 5000 * MS, err);
    if (m->rank == 0) cd_mesh_leave(m->mesh, 40);
    if (m->rank != 1) {
        if (status == CDDP_OK && m->rank != 0) status = exchange(m, 1, 2000 * MS, err);
        cd_os_sleep_ns(600 * MS);
        return status;
    }
    cd_os_sleep_ns(300 * MS);
    return status == CDDP_OK ? exchange(m, 1, 2000 * MS, err) : status;
}

TEST(mesh, a_farewell_that_was_read_in_the_round_before_counts)
{
    for (int i = 0; i < 3; i++) {
        member all[RANKS];
        run(all, one_has_left_before);
        assert_says(&all[1], CDDP_E_BACKEND, "lost rank 40, as rank 10 says");
    }
}

TEST(mesh, a_farewell_names_who_was_missed)
{
    member all[RANKS];
    run(all, one_says_why);
    for (uint32_t r = 1; r < 3; r++)
        assert_says(&all[r], CDDP_E_BACKEND, "lost rank 40, as rank 10 says");
    assert_says(&all[3], CDDP_E_BACKEND, "lost rank 10: it gave up waiting for this rank");
}

static void *leave_soon(void *argument)
{
    cd_os_sleep_ns(100 * MS);
    cd_mesh_leave(argument, CD_MESH_NOBODY);
    return NULL;
}

static cddp_status one_is_aborted(member *m, cddp_error *err)
{
    pthread_t thread;
    if (m->rank != 1) {
        cd_os_sleep_ns(600 * MS);
        return CDDP_OK;
    }
    assert_int_equal(pthread_create(&thread, NULL, leave_soon, m->mesh), 0);
    cddp_status status = exchange(m, 0, 5000 * MS, err);
    pthread_join(thread, NULL);
    return status;
}

TEST(mesh, an_abort_wakes_a_round)
{
    member all[RANKS];
    run(all, one_is_aborted);
    assert_says(&all[1], CDDP_E_ABORTED, "aborted");
}

TEST_MAIN()
