/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank of which job this process is: variables in, rank and address out. */
#include "verify/worlds/join.h"

#include "tests/support/test.h"

#include <string.h>

static const char *const *variables; /* name, value, …, NULL */

static const char *read_variable(const char *name)
{
    for (const char *const *v = variables; *v != NULL; v += 2)
        if (strcmp(*v, name) == 0) return v[1];
    return NULL;
}

#define VARIABLES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define TORCH "RANK", "1", "WORLD_SIZE", "4"
#define STEP                                                                                     \
    "SLURM_STEP_ID", "3", "SLURM_JOB_ID", "7", "SLURM_PROCID", "2", "SLURM_STEP_NUM_TASKS", "4", \
        "SLURM_NTASKS", "9"

static cddp_status read_job(const char *const *given, const char *url, cd_join *join, bool *found,
                            cddp_error *err)
{
    variables = given;
    return cd_join_read(read_variable, url, join, found, err);
}

TEST(join, says_which_rank_this_is_and_where_rank_0_is)
{
    const struct {
        const char *const *variables;
        const char *rendezvous, *url;
        uint32_t rank, world_size;
    } rows[] = {
        {VARIABLES(TORCH, "MASTER_ADDR", "10.0.0.1", "MASTER_PORT", "29500"), NULL,
         "tcp://10.0.0.1:29500", 1, 4},
        {VARIABLES(TORCH, "MASTER_ADDR", "::1", "MASTER_PORT", "29500"), "env://",
         "tcp://[::1]:29500", 1, 4},
        {VARIABLES(TORCH, "MASTER_ADDR", "n", "MASTER_PORT", "9", "TORCHELASTIC_USE_AGENT_STORE",
                   "True"),
         NULL, "tcp://n:10", 1, 4},
        {VARIABLES(TORCH, "MASTER_ADDR", "n", "MASTER_PORT", "9", "TORCHELASTIC_USE_AGENT_STORE",
                   "False"),
         NULL, "tcp://n:9", 1, 4},
        /* clang-format off */
        {VARIABLES(STEP, "SLURM_STEP_NODELIST", "node[03-05,9],x"), NULL, "tcp://node03:20920", 2, 4},
        {VARIABLES(STEP, "SLURM_JOB_NODELIST", "a-1,b[2-3]"), NULL, "tcp://a-1:20920", 2, 4},
        {VARIABLES(STEP, "SLURM_JOB_NODELIST", "gpu[7]-ib", "MASTER_PORT", "4"), NULL, "tcp://gpu7-ib:4", 2, 4},
        {VARIABLES(STEP, TORCH, "MASTER_ADDR", "n", "MASTER_PORT", "9"), NULL, "tcp://n:9", 1, 4},
        {VARIABLES(TORCH), "tcp://[fe80::1]:80", "tcp://[fe80::1]:80", 1, 4},
        {VARIABLES(STEP), "tcp://n:80", "tcp://n:80", 2, 4},
        {VARIABLES("RANK", "0", "WORLD_SIZE", "1"), "tcp://n:80", "tcp://n:80", 0, 1},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_join join;
        bool found = false;
        cd_test_row("%zu: %s", i, rows[i].url);
        assert_ok(read_job(rows[i].variables, rows[i].rendezvous, &join, &found, &err), &err);
        assert_true(found);
        assert_string_equal(join.url, rows[i].url);
        assert_int_equal(join.rank, rows[i].rank);
        assert_int_equal(join.world_size, rows[i].world_size);
    }
}

TEST(join, leaves_alone_whoever_nobody_started)
{
    const char *const *const rows[] = {
        VARIABLES("HOME", "/"),
        VARIABLES("RANK", "1"),
        /* a batch script, not a step */
        VARIABLES("SLURM_JOB_ID", "7", "SLURM_PROCID", "0", "SLURM_NTASKS", "4"),
        VARIABLES("RANK", "0", "WORLD_SIZE", "1", "MASTER_ADDR", "n", "MASTER_PORT", "9"),
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_join join;
        bool found = true;
        cd_test_row("%zu", i);
        assert_ok(read_job(rows[i], NULL, &join, &found, &err), &err);
        assert_false(found);
    }
}

TEST(join, refuses_what_cannot_be_meant)
{
    const struct {
        const char *const *variables;
        const char *rendezvous, *words;
    } rows[] = {
        /* clang-format off */
        {VARIABLES("RANK", "one", "WORLD_SIZE", "4"), NULL, "RANK=one is no number"},
        {VARIABLES("RANK", "-1", "WORLD_SIZE", "4"), NULL, "RANK=-1 is no number"},
        {VARIABLES("RANK", "1", "WORLD_SIZE", ""), NULL, "WORLD_SIZE= is no number"},
        {VARIABLES("RANK", "4", "WORLD_SIZE", "4"), NULL, "rank 4 does not exist"},
        {VARIABLES(TORCH), NULL, "MASTER_ADDR is not"},
        {VARIABLES(TORCH, "MASTER_ADDR", "n"), NULL, "MASTER_PORT is not"},
        {VARIABLES(TORCH, "MASTER_ADDR", "", "MASTER_PORT", "9"), NULL, "no name"},
        {VARIABLES(TORCH, "MASTER_ADDR", "n", "MASTER_PORT", "0"), NULL, "MASTER_PORT=0 is no port"},
        /* clang-format on */
        {VARIABLES(TORCH, "MASTER_ADDR", "n", "MASTER_PORT", "65535",
                   "TORCHELASTIC_USE_AGENT_STORE", "True"),
         NULL, "is no port"},
        {VARIABLES(STEP), NULL, "MASTER_ADDR is not"},
        {VARIABLES(STEP, "SLURM_STEP_NODELIST", "n[1"), NULL, "MASTER_ADDR is not"},
        {VARIABLES("HOME", "/"), "env://", "must say which rank"},
        {VARIABLES(TORCH), "tcp://n", "is not tcp://host:port"},
        {VARIABLES(TORCH), "tcp://:9", "no name"},
        {VARIABLES(TORCH), "tcp://n:9x", "is no port"},
        {VARIABLES(TORCH), "file://here", "is not file:///directory"},
        {VARIABLES(TORCH), "http://n:9", "is none of"},
        {VARIABLES(TORCH, "MASTER_ADDR", "n", "MASTER_PORT", "9", "CDDP_STORE_SECRET",
                   "0123456789012345678901234567890123456789012345678901234567890123456789012"),
         NULL, "longer than 71"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_join join;
        bool found = false;
        cd_test_row("%zu: %s", i, rows[i].words);
        assert_int_equal(read_job(rows[i].variables, rows[i].rendezvous, &join, &found, &err),
                         CDDP_E_CONFIG);
        assert_non_null(strstr(err.message, rows[i].words));
        assert_false(found);
    }
}

TEST_MAIN()
