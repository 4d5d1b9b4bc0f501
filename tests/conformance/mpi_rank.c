/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of the battery over MPI (TI-L-05); mpirun starts it. Exit 0: every row passed and the
** guard saw a planted size mismatch on every rank.
**
** mpi_rank late [OPTIONS]: rank 1 does not come to an all-reduce until long after its time is over;
** rank 0 says so, gives its memory back and leaves (mpi_late.sh).
**
** mpi_rank roll RANKS: these ranks, as letters ("bd": 1 and 3), do not come to a monitored barrier.
** They wait until the launcher ends them (mpi_roll.sh).
**
** mpi_rank still: rank 2 stops in the middle of an all-reduce; the others name it. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "cddp/comm.h"
#include "cddp/plugin.h"
#include "cddp/process.h"
#include "core/base/os.h"
#include "core/comm/conformance.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct tally {
    uint32_t rows, failed;
} tally;

static void count_row(void *context, const cd_conformance_row *row)
{
    tally *t = context;
    t->rows++;
    if (row->failed_count == 0) return;
    t->failed++;
    fprintf(stderr, "%s %s %s: %s\n", cddp_op_name(row->op), cddp_dtype_name(row->dtype),
            cddp_red_op_name(row->reduce_op), row->first_failure);
}

static const cddp_backend *module_load(void)
{
    void *library = dlopen(CDDP_MPI_MODULE, RTLD_NOW | RTLD_LOCAL);
    const cddp_plugin *plugin = library != NULL ? dlsym(library, CDDP_PLUGIN_SYMBOL) : NULL;
    if (plugin == NULL) fprintf(stderr, "%s\n", dlerror());
    return plugin != NULL ? plugin->backends[0] : NULL;
}

#define SECOND UINT64_C(1000000000)

typedef struct job {
    const cddp_backend *backend;
    const char *options; /* of the group */
} job;

static cddp_status group_open(const cddp_backend *backend, cddp_rank *rank, uint64_t timeout_ns,
                              const char *options, cddp_group **group, cddp_error *err)
{
    static const uint32_t members[] = {0, 1, 2, 3, 4, 5, 6, 7};
    cddp_group_options o = {.size = sizeof o,
                            .backend = backend,
                            .rank = rank,
                            .spec = {.size = sizeof o.spec,
                                     .name = "world",
                                     .group_rank = rank->rank,
                                     .group_size = rank->world_size,
                                     .members = members,
                                     .timeout_ns = timeout_ns,
                                     .options = options}};
    return cddp_group_create(&o, group, err);
}

static cddp_status mismatch(cddp_group *group, cddp_error *err)
{
    float data[64] = {0};
    int64_t n = cddp_group_rank(group) == 0 ? 40 : 64;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    if (cddp_group_size(group) == 1) return status;
    if (status == CDDP_E_MISMATCH && strstr(err->message, "40 × f32") != NULL) return CDDP_OK;
    return cddp_error_set(err, CDDP_E_STATE, "the guard said nothing about a size mismatch");
}

/* Messages whose ends disagree on their size, shorter and longer than expected, eager and not. */
static cddp_status messages_disagree(cddp_group *group, cddp_error *err)
{
    static const int64_t sizes[][2] = {{3, 5}, {5, 3}, {40000, 100000}, {100000, 40000}};
    static float data[100000];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const uint32_t me = cddp_group_rank(group);
        if (cddp_group_size(group) == 1 || me > 1) return CDDP_OK;
        const cddp_tensor t =
            cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &sizes[i][me], 1);
        cddp_collective c = {.op = me == 0 ? CDDP_OP_SEND : CDDP_OP_RECV,
                             .root = 1 - me,
                             .tag = i,
                             .input = t,
                             .output = t};
        cddp_work *work = NULL;
        cddp_status status = cddp_group_post(group, &c, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
        const bool is_right =
            me == 0 ? status == CDDP_OK || status == CDDP_E_MISMATCH : status == CDDP_E_MISMATCH;
        if (!is_right)
            return cddp_error_set(err, CDDP_E_STATE, "message %zu ended with status %d", i,
                                  (int)status);
    }
    return CDDP_OK;
}

static cddp_status program(cddp_rank *rank, void *argument, cddp_error *err)
{
    const cddp_backend *backend = ((const job *)argument)->backend;
    cddp_group *group = NULL;
    tally t = {0};
    cd_conformance_options o = {.device = cddp_device_cpu(), .context = &t, .row = count_row};
    cddp_status status = group_open(backend, rank, 20 * SECOND, NULL, &group, err);
    if (status == CDDP_OK) status = cd_conformance_run(group, &o, err);
    cddp_group_destroy(group);
    group = NULL;
    if (status == CDDP_OK && (t.failed > 0 || t.rows < 100))
        return cddp_error_set(err, CDDP_E_MISMATCH, "%u of %u rows failed", t.failed, t.rows);
    if (status == CDDP_OK) status = group_open(backend, rank, 20 * SECOND, NULL, &group, err);
    if (status == CDDP_OK) status = mismatch(group, err);
    if (status == CDDP_OK) status = messages_disagree(group, err);
    cddp_group_destroy(group);
    return status;
}

/* The memory of what failed is given back, and what comes after the failure fails too: MPI would go
** on with the first. */
static cddp_status late(cddp_rank *rank, void *argument, cddp_error *err)
{
    const job *j = argument;
    const int64_t n = 1 << 20;
    const size_t bytes = (size_t)n * sizeof(float);
    cddp_group *started = NULL, *group = NULL, *other = NULL;
    /* a busy machine may take longer to start MPI than the time-out that is tried */
    cddp_status status = group_open(j->backend, rank, 20 * SECOND, j->options, &started, err);
    if (status == CDDP_OK)
        status = group_open(j->backend, rank, SECOND / 2, j->options, &group, err);
    if (status != CDDP_OK) return status;
    if (rank->rank == 1) cd_os_sleep_ns(60 * SECOND);
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return cddp_error_set(err, CDDP_E_NOMEM, "no memory");
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_work *first = NULL, *second = NULL;
    status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &first, err);
    if (status == CDDP_OK) status = cddp_work_wait(first, 0, err);
    cddp_error more = CDDP_ERROR_INIT;
    cddp_status then = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &second, &more);
    if (then == CDDP_OK) then = cddp_work_wait(second, 0, &more);
    munmap(data, bytes);
    cddp_group_destroy(group);
    cddp_group_destroy(started);
    if (status != CDDP_E_TIMEOUT)
        return cddp_error_set(err, CDDP_E_STATE, "the first all-reduce ended with status %d",
                              (int)status);
    if (then != CDDP_E_BACKEND)
        return cddp_error_set(err, CDDP_E_STATE, "the second all-reduce ended with status %d",
                              (int)then);
    fprintf(stderr, "then: %s\n", more.message);
    more = (cddp_error)CDDP_ERROR_INIT;
    if (group_open(j->backend, rank, SECOND, NULL, &other, &more) == CDDP_OK)
        return cddp_error_set(err, CDDP_E_STATE, "another group was opened");
    fprintf(stderr, "another group: %s\n", more.message);
    return status;
}

/* They meet first, so that nobody comes long after rank 0. */
static cddp_status answer_the_roll(cddp_rank *rank, void *argument, cddp_error *err)
{
    const job *j = argument;
    cddp_group *group = NULL;
    cddp_status status = group_open(j->backend, rank, 20 * SECOND, NULL, &group, err);
    if (status == CDDP_OK) status = cddp_group_barrier(group, err);
    if (status != CDDP_OK) return status;
    const bool is_away = strchr(j->options, (int)('a' + rank->rank)) != NULL;
    if (!is_away) status = cddp_barrier_monitored(group, SECOND, err);
    /* the launcher ends all when rank 0 has failed, and not before */
    if (rank->rank != 0)
        for (;;) pause();
    cddp_group_destroy(group);
    return status;
}

/* Rank 2 stops when it has posted: its fingerprint is on its way, and it takes no part. */
static cddp_status stands_still(cddp_rank *rank, void *argument, cddp_error *err)
{
    const job *j = argument;
    const int64_t n = 1 << 20;
    cddp_group *group = NULL, *patient = NULL;
    cddp_work *work = NULL;
    cddp_status status = group_open(j->backend, rank, 20 * SECOND, NULL, &patient, err);
    if (status == CDDP_OK) status = group_open(j->backend, rank, SECOND, NULL, &group, err);
    if (status == CDDP_OK) status = cddp_group_barrier(patient, err);
    if (status != CDDP_OK) return status;
    float *data = calloc((size_t)n, sizeof *data);
    if (data == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "no memory");
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    if (rank->rank == 2) raise(SIGSTOP);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    fprintf(stderr, "rank %u says: %s\n", rank->rank, err->message);
    /* the launcher ends all when rank 0 has failed */
    if (rank->rank != 0)
        for (;;) pause();
    cddp_group_destroy(group);
    cddp_group_destroy(patient);
    free(data);
    return status;
}

/* Rank 1 does not come to MPI_Init. */
static cddp_status jammed(cddp_rank *rank, void *argument, cddp_error *err)
{
    cddp_group *group = NULL;
    if (rank->rank == 1) cd_os_sleep_ns(60 * SECOND);
    return group_open(((const job *)argument)->backend, rank, SECOND / 2, NULL, &group, err);
}

static uint32_t number(const char *open_mpi, const char *mpich, uint32_t otherwise)
{
    const char *text = getenv(open_mpi) != NULL ? getenv(open_mpi) : getenv(mpich);
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    cddp_solo_options o = {.size = sizeof o,
                           .rank = number("OMPI_COMM_WORLD_RANK", "PMI_RANK", 0),
                           .world_size = number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", 1)};
    cddp_solo_world *world = NULL;
    cddp_rank_result results[8];
    cddp_error err = CDDP_ERROR_INIT;
    job j = {.backend = module_load(), .options = argc > 2 ? argv[2] : NULL};
    const char *mode = argc > 1 ? argv[1] : "";
    const bool is_late = strcmp(mode, "late") == 0, is_jammed = strcmp(mode, "jammed") == 0,
               is_roll = strcmp(mode, "roll") == 0 && argc > 2,
               is_still = strcmp(mode, "still") == 0;
    if (j.backend == NULL || cddp_solo_world_open(&o, &world, &err) != CDDP_OK) return 2;
    for (int i = 0; i < 8; i++) results[i] = (cddp_rank_result){.size = sizeof results[i]};
    if (cddp_solo_world_ops()->launch(world,
                                      is_late     ? late
                                      : is_jammed ? jammed
                                      : is_roll   ? answer_the_roll
                                      : is_still  ? stands_still
                                                  : program,
                                      &j, results, &err) != CDDP_OK)
        return 2;
    const cddp_rank_result *mine = &results[o.rank];
    if (mine->status != CDDP_OK) fprintf(stderr, "rank %u: %s\n", o.rank, mine->error.message);
    cddp_solo_world_close(world);
    return mine->status == CDDP_OK ? 0 : 1;
}
