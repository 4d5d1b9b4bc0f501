/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank this is, by the variables of each launcher; and nonsense, which is named. */
#define _POSIX_C_SOURCE 200809L
#include "record/launcher.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything that a launcher of the machine may have set. */
static void forget_all(void)
{
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "SLURM_STEP_ID",
                                        "SLURM_PROCID",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_NODELIST",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "PMIX_NAMESPACE",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "SLURM_RESTART_COUNT",
                                        "CDDP_STORE_SECRET"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
}

/* "A=1 B=2" */
static void set_all(const char *words)
{
    char text[400];
    snprintf(text, sizeof text, "%s", words);
    for (char *at = text; *at != '\0';) {
        char *end = at + strcspn(at, " "), *equals = strchr(at, '=');
        const bool is_last = *end == '\0';
        *end = *equals = '\0';
        setenv(at, equals + 1, 1);
        at = is_last ? end : end + 1;
    }
}

TEST(launcher, its_variables_say_which_rank_this_is)
{
    static const struct {
        const char *words;
        cd_launcher_kind kind;
        uint32_t rank, world_size, generation;
        const char *host;
        uint16_t port;
    } rows[] = {
        {"", CD_LAUNCHER_NONE, 0, 1, 0, "", 0},
        {"RANK=2 WORLD_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=29500", CD_LAUNCHER_TORCHRUN, 2, 4, 0,
         "node1", 29500},
        {"RANK=2 WORLD_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=29500 TORCHELASTIC_RESTART_COUNT=3 "
         "TORCHELASTIC_USE_AGENT_STORE=True",
         CD_LAUNCHER_TORCHRUN, 2, 4, 3, "node1", 29501},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", CD_LAUNCHER_MPI, 1, 2, 0, "", 0},
        {"PMI_RANK=1 PMI_SIZE=2", CD_LAUNCHER_MPI, 1, 2, 0, "", 0},
        {"SLURM_STEP_ID=1 SLURM_JOB_ID=7 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 "
         "SLURM_STEP_NODELIST=gpu[03-05,9],other",
         CD_LAUNCHER_SLURM, 3, 8, 0, "gpu03", 20918},
        /* a batch script, which srun has not started */
        {"SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=8", CD_LAUNCHER_NONE, 0, 1, 0, "", 0},
        /* torchrun within a step of Slurm */
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=5 SLURM_STEP_ID=1 SLURM_PROCID=3 "
         "SLURM_STEP_NUM_TASKS=8",
         CD_LAUNCHER_TORCHRUN, 0, 2, 0, "a", 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_launcher l;
        cd_test_row("%s", rows[i].words);
        forget_all();
        set_all(rows[i].words);
        assert_int_equal(cd_launcher_read(&l, &err), CDDP_OK);
        assert_int_equal(l.kind, rows[i].kind);
        assert_int_equal(l.rank, rows[i].rank);
        assert_int_equal(l.world_size, rows[i].world_size);
        assert_int_equal(l.generation, rows[i].generation);
        assert_string_equal(l.host, rows[i].host);
        assert_int_equal(l.port, rows[i].port);
    }
    forget_all();
}

TEST(launcher, what_makes_no_sense_is_named)
{
    static const struct {
        const char *words, *message;
    } rows[] = {{"RANK=x WORLD_SIZE=4", "RANK=x is no number"},
                {"RANK=4 WORLD_SIZE=4", "this rank does not exist"},
                {"RANK=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=70000", "is no port"},
                {"PMI_RANK=-1 PMI_SIZE=2", "PMI_RANK=-1 is no number"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_launcher l;
        cd_test_row("%s", rows[i].words);
        forget_all();
        set_all(rows[i].words);
        assert_int_equal(cd_launcher_read(&l, &err), CDDP_E_CONFIG);
        assert_non_null(strstr(err.message, rows[i].message));
    }
    forget_all();
}

/* Half of what a launcher sets: such a rank would train alone, without a word. */
TEST(launcher, half_an_environment_is_an_error)
{
    static const struct {
        const char *words, *message; /* NULL: none */
    } rows[] = {{"", NULL},
                {"RANK=0", NULL},
                {"WORLD_SIZE=1", NULL},
                {"RANK=1", "RANK=1 is set, and WORLD_SIZE is not"},
                {"WORLD_SIZE=2", "WORLD_SIZE=2 is set, and RANK is not"},
                {"OMPI_COMM_WORLD_RANK=1", "and OMPI_COMM_WORLD_SIZE is not"},
                {"PMI_SIZE=2", "PMI_SIZE=2 is set, and PMI_RANK is not"},
                {"SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=8", NULL},
                {"SLURM_JOB_ID=7 SLURM_STEP_NUM_TASKS=8", NULL},
                {"SLURM_STEP_ID=1 SLURM_PROCID=1", "and SLURM_STEP_NUM_TASKS is not"},
                {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", "and SLURM_STEP_ID is not"},
                {"RANK=1 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_launcher l;
        cd_test_row("%s", rows[i].words);
        forget_all();
        set_all(rows[i].words);
        assert_int_equal(cd_launcher_read(&l, &err), CDDP_OK);
        const cddp_status status = cd_launcher_check(&l, &err);
        assert_int_equal(status, rows[i].message != NULL ? CDDP_E_CONFIG : CDDP_OK);
        if (rows[i].message != NULL) assert_non_null(strstr(err.message, rows[i].message));
    }
    forget_all();
}

TEST_MAIN()
