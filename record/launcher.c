/* SPDX-License-Identifier: Apache-2.0 */
#include "record/launcher.h"

#include "core/base/error.h"
#include "core/base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The variables of each kind of launcher, in the order in which they are believed: torchrun runs
** within batch jobs, whose own variables then say something else. */
static const struct {
    cd_launcher_kind kind;
    const char *needs; /* a variable that must be there, too; NULL: none */
    const char *rank, *world_size, *generation, *job;
} launchers[] = {
    {CD_LAUNCHER_TORCHRUN, NULL, "RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
     "TORCHELASTIC_RUN_ID"},
    {CD_LAUNCHER_MPI, NULL, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, "PMIX_NAMESPACE"},
    {CD_LAUNCHER_SLURM, "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
     "SLURM_RESTART_COUNT", "SLURM_JOB_ID"},
    {CD_LAUNCHER_MPI, NULL, "PMI_RANK", "PMI_SIZE", NULL, NULL},
};

const char *cd_launcher_variable(const char *name)
{
    const char *text = name != NULL ? getenv(name) : NULL;
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static cddp_status read_number(const char *name, uint32_t *number, cddp_error *err)
{
    const char *text = cd_launcher_variable(name);
    char *end = NULL;
    if (text == NULL) return CDDP_OK;
    const unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || value >= UINT32_MAX)
        return cd_fail(err, CDDP_E_CONFIG, "%s=%.60s is no number", name, text);
    *number = (uint32_t)value;
    return CDDP_OK;
}

/* The first host of "node[03-05,9],other". */
static void read_first_host(const char *list, char *host, size_t host_bytes)
{
    size_t used = 0;
    for (; *list != '\0' && *list != ',' && used + 1 < host_bytes; list++) {
        if (*list != '[') {
            host[used++] = *list;
            continue;
        }
        const size_t digits = strspn(list + 1, "0123456789");
        used += (size_t)snprintf(host + used, host_bytes - used, "%.*s", (int)digits, list + 1);
        break;
    }
    host[used < host_bytes ? used : host_bytes - 1] = '\0';
}

/* Where ranks meet, when they do not meet through their launcher. torchrun's agent may serve
** PyTorch's own store at its port; a step of Slurm has its own, below those that systems give
** out. */
static cddp_status read_meeting(cd_launcher *l, cddp_error *err)
{
    const char *host = cd_launcher_variable("MASTER_ADDR");
    const char *nodes = cd_launcher_variable("SLURM_STEP_NODELIST");
    const char *agent = cd_launcher_variable("TORCHELASTIC_USE_AGENT_STORE");
    uint32_t port = 0, job = 0, step = 0;
    if (host != NULL)
        snprintf(l->host, sizeof l->host, "%s", host);
    else if (l->kind == CD_LAUNCHER_SLURM && nodes != NULL)
        read_first_host(nodes, l->host, sizeof l->host);
    CD_TRY(read_number("MASTER_PORT", &port, err));
    if (port != 0 && agent != NULL && strcmp(agent, "True") == 0) port++;
    if (port == 0 && l->kind == CD_LAUNCHER_SLURM) {
        CD_TRY(read_number("SLURM_JOB_ID", &job, err));
        CD_TRY(read_number("SLURM_STEP_ID", &step, err));
        port = (uint32_t)(20000 + (job * UINT64_C(131) + step) % 10000);
    }
    if (port > UINT16_MAX) return cd_fail(err, CDDP_E_CONFIG, "MASTER_PORT=%u is no port", port);
    l->port = (uint16_t)port;
    l->secret = cd_launcher_variable("CDDP_STORE_SECRET");
    return CDDP_OK;
}

cddp_status cd_launcher_read(cd_launcher *launcher, cddp_error *err)
{
    cd_launcher l = {.kind = CD_LAUNCHER_NONE, .world_size = 1};
    size_t i = 0;
    const size_t count = sizeof launchers / sizeof launchers[0];
    while (i < count &&
           (cd_launcher_variable(launchers[i].rank) == NULL ||
            cd_launcher_variable(launchers[i].world_size) == NULL ||
            (launchers[i].needs != NULL && cd_launcher_variable(launchers[i].needs) == NULL)))
        i++;
    if (i < count) {
        const char *job = cd_launcher_variable(launchers[i].job);
        l.kind = launchers[i].kind;
        l.job = job != NULL ? cd_hash_text(job) : 0;
        CD_TRY(read_number(launchers[i].rank, &l.rank, err));
        CD_TRY(read_number(launchers[i].world_size, &l.world_size, err));
        CD_TRY(read_number(launchers[i].generation, &l.generation, err));
        if (l.rank >= l.world_size)
            return cd_fail(err, CDDP_E_CONFIG, "%s=%u: this rank does not exist, since %s=%u",
                           launchers[i].rank, l.rank, launchers[i].world_size, l.world_size);
        CD_TRY(read_meeting(&l, err));
    }
    *launcher = l;
    return CDDP_OK;
}

/* A batch script of Slurm is the first of as many tasks as it asked for, and trains alone. */
cddp_status cd_launcher_check(const cd_launcher *launcher, cddp_error *err)
{
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        uint32_t rank = 0, world_size = 1;
        const char *lacks = cd_launcher_variable(launchers[i].world_size) == NULL
                                ? launchers[i].world_size
                                : launchers[i].needs;
        if (launcher->kind != CD_LAUNCHER_NONE) return CDDP_OK;
        CD_TRY(read_number(launchers[i].rank, &rank, err));
        CD_TRY(read_number(launchers[i].world_size, &world_size, err));
        if (rank > 0)
            return cd_fail(err, CDDP_E_CONFIG,
                           "%s=%u is set, and %s is not: set both, or neither to train alone",
                           launchers[i].rank, rank, lacks);
        if (world_size > 1 && cd_launcher_variable(launchers[i].rank) == NULL &&
            launchers[i].kind != CD_LAUNCHER_SLURM)
            return cd_fail(err, CDDP_E_CONFIG,
                           "%s=%u is set, and %s is not: set both, or neither to train alone",
                           launchers[i].world_size, world_size, launchers[i].rank);
    }
    return CDDP_OK;
}
