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

static cddp_status exchange(member *m, uint64_t sequence, uint64_t timeout_ns, cddp_error *err)
{
    m->all[m->rank] = (cd_call_fingerprint){.magic = CD_CALL_FINGERPRINT_MAGIC,
                                            .sequence = sequence,
                                            .numel = (int64_t)(100 * sequence + m->rank)};
    const cd_mesh_round round = {m->all, cd_os_now_ns() + timeout_ns, timeout_ns, false};
    return cd_mesh_exchange(m->mesh, &round, err);
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

static cddp_status a_thousand(member *m, cddp_error *err)
{
    for (uint64_t i = 0; i < 1000; i++) {
        cddp_status status = exchange(m, i, 5000 * MS, err);
        if (status != CDDP_OK) return status;
        for (uint32_t r = 0; r < RANKS; r++)
            if (m->all[r].numel != (int64_t)(100 * i + r) || m->all[r].sequence != i)
                return cddp_error_set(err, CDDP_E_CORRUPT, "round %llu", (unsigned long long)i);
    }
    return CDDP_OK;
}

TEST(mesh, everybody_has_everybodys_fingerprint_of_the_round)
{
    member all[RANKS];
    run(all, a_thousand);
    for (uint32_t r = 0; r < RANKS; r++) assert_ok(all[r].status, &all[r].err);
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
