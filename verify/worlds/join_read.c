/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank of which job this process is, from the variables of whoever started it.
**
** The variables are torchrun's; under srun its own stand in for them. torchrun's agent serves
** PyTorch's store at MASTER_PORT when TORCHELASTIC_USE_AGENT_STORE says so; ours, which speaks
** another protocol, then takes the port above it.
*/
#define _POSIX_C_SOURCE 200809L
#include "verify/worlds/join.h"

#include "backends/table/builtin.h"
#include "core/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cddp_status read_number(cddp_environment_fn environment, const char *variable,
                               uint32_t *number, cddp_error *err)
{
    const char *text = environment(variable);
    char *end = NULL;
    unsigned long value = text != NULL ? strtoul(text, &end, 10) : 0;
    if (text == NULL || end == text || *end != '\0' || text[0] < '0' || text[0] > '9' ||
        value > UINT32_MAX)
        return cd_fail(err, CDDP_E_CONFIG, "%s=%.60s is no number", variable,
                       text != NULL ? text : "");
    *number = (uint32_t)value;
    return CDDP_OK;
}

static const char *either(cddp_environment_fn environment, const char *first, const char *second)
{
    return environment(first) != NULL ? first : second;
}

/* The first host of "node[03-05,9],other"; false when it has no name. */
static bool first_host(const char *list, char *host, size_t host_bytes)
{
    size_t used = 0;
    for (const char *at = list; *at != '\0' && *at != ',' && used + 1 < host_bytes; at++) {
        if (*at != '[') {
            host[used++] = *at;
            continue;
        }
        size_t digits = strspn(at + 1, "0123456789");
        for (size_t i = 0; i < digits && used + 1 < host_bytes; i++) host[used++] = at[1 + i];
        at = strchr(at, ']');
        if (at == NULL) return false;
    }
    host[used] = '\0';
    return used > 0;
}

static cddp_status take_host(cd_join *j, const char *host, size_t length, cddp_error *err)
{
    if (length == 0 || length >= sizeof j->host)
        return cd_fail(err, CDDP_E_CONFIG, "the host of rank 0 has no name, or too long a one");
    snprintf(j->host, sizeof j->host, "%.*s", (int)length, host);
    return CDDP_OK;
}

static cddp_status take_port(cd_join *j, const char *whose, const char *text, uint32_t above,
                             cddp_error *err)
{
    char *end = NULL;
    unsigned long port = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || port == 0 || port + above > UINT16_MAX)
        return cd_fail(err, CDDP_E_CONFIG, "%s=%.60s is no port", whose, text);
    j->port = (uint16_t)(port + above);
    return CDDP_OK;
}

/* srun's variables stand in for those that are not set. A step has its own port, below those that
** systems give out. */
static cddp_status find_master(cddp_environment_fn environment, cd_join *j, cddp_error *err)
{
    const char *host = environment("MASTER_ADDR"), *port = environment("MASTER_PORT");
    const char *agent = environment("TORCHELASTIC_USE_AGENT_STORE");
    const char *nodes =
        environment(either(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"));
    uint32_t job = 0, step = 0;
    char first[sizeof j->host];
    bool is_step = environment("SLURM_STEP_ID") != NULL && environment("SLURM_JOB_ID") != NULL;
    if (host == NULL && is_step && nodes != NULL && first_host(nodes, first, sizeof first))
        host = first;
    if (host == NULL || (port == NULL && !is_step))
        return cd_fail(err, CDDP_E_CONFIG, "%s are set, but %s is not: where do ranks find rank 0?",
                       j->variables, host == NULL ? "MASTER_ADDR" : "MASTER_PORT");
    CD_TRY(take_host(j, host, strlen(host), err));
    if (port != NULL)
        return CD_PASS(
            take_port(j, "MASTER_PORT", port, agent != NULL && strcmp(agent, "True") == 0, err));
    CD_TRY(read_number(environment, "SLURM_JOB_ID", &job, err));
    CD_TRY(read_number(environment, "SLURM_STEP_ID", &step, err));
    j->port = (uint16_t)(20000 + (job * UINT64_C(131) + step) % 10000);
    return CDDP_OK;
}

static cddp_status parse_tcp(cd_join *j, const char *url, cddp_error *err)
{
    const char *rest = url + strlen("tcp://"), *colon = strrchr(rest, ':');
    if (colon == NULL)
        return cd_fail(err, CDDP_E_CONFIG, "--rendezvous: '%.100s' is not tcp://host:port", url);
    bool bracketed = rest[0] == '[' && colon[-1] == ']';
    CD_TRY(take_host(j, rest + bracketed, (size_t)(colon - rest) - 2u * bracketed, err));
    return CD_PASS(take_port(j, "--rendezvous: port", colon + 1, 0, err));
}

/* Ranks learn from the directory where rank 0 is: at a name that the others can reach. */
static cddp_status parse_file(cddp_environment_fn environment, cd_join *j, const char *url,
                              cddp_error *err)
{
    const char *directory = url + strlen("file://"), *host = environment("CDDP_HUB_HOST");
    if (directory[0] != '/' || strlen(directory) >= sizeof j->directory)
        return cd_fail(err, CDDP_E_CONFIG, "--rendezvous: '%.100s' is not file:///directory", url);
    snprintf(j->directory, sizeof j->directory, "%s", directory);
    if (host != NULL) return CD_PASS(take_host(j, host, strlen(host), err));
    if (gethostname(j->host, sizeof j->host) != 0 || memchr(j->host, '\0', sizeof j->host) == NULL)
        return cd_fail(
            err, CDDP_E_IO,
            "this host has no name: say in CDDP_HUB_HOST where the other ranks reach it");
    return CDDP_OK;
}

cddp_status cd_join_read(cddp_environment_fn environment, const char *url, cd_join *join,
                         bool *found, cddp_error *err)
{
    cd_join j = {.order = 0};
    const char *secret = environment("CDDP_STORE_SECRET");
    bool is_torch = environment("RANK") != NULL && environment("WORLD_SIZE") != NULL;
    bool is_slurm = environment("SLURM_STEP_ID") != NULL && environment("SLURM_PROCID") != NULL;
    const char *rank = is_torch ? "RANK" : "SLURM_PROCID";
    const char *size =
        is_torch ? "WORLD_SIZE" : either(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
    *found = false;
    if (!is_torch && !is_slurm && url == NULL) return CDDP_OK;
    if (!is_torch && !is_slurm)
        return cd_fail(err, CDDP_E_CONFIG,
                       "--rendezvous: RANK and WORLD_SIZE, or srun's variables, must say which "
                       "rank this process is");
    snprintf(j.variables, sizeof j.variables, "%s and %s", rank, size);
    CD_TRY(read_number(environment, rank, &j.rank, err));
    CD_TRY(read_number(environment, size, &j.world_size, err));
    if (j.rank >= j.world_size)
        return cd_fail(err, CDDP_E_CONFIG, "rank %u does not exist in a world of %u (%s)", j.rank,
                       j.world_size, j.variables);
    /* a process alone starts its ranks itself */
    if (j.world_size == 1 && url == NULL) return CDDP_OK;
    if (secret != NULL && strlen(secret) >= sizeof j.secret)
        return cd_fail(err, CDDP_E_CONFIG, "CDDP_STORE_SECRET is longer than %zu characters",
                       sizeof j.secret - 1);
    snprintf(j.secret, sizeof j.secret, "%s", secret != NULL ? secret : "");
    j.has_own_secret = j.secret[0] != '\0';
    if (url == NULL || strcmp(url, "env://") == 0)
        CD_TRY(find_master(environment, &j, err));
    else if (strncmp(url, "tcp://", 6) == 0)
        CD_TRY(parse_tcp(&j, url, err));
    else if (strncmp(url, "file://", 7) == 0)
        CD_TRY(parse_file(environment, &j, url, err));
    else
        return cd_fail(
            err, CDDP_E_CONFIG,
            "--rendezvous: '%.100s' is none of env://, tcp://host:port and file:///directory", url);
    if (j.directory[0] == '\0') cd_join_make_url(&j);
    *join = j;
    *found = true;
    return CDDP_OK;
}

cddp_status cd_join_refuse(cddp_environment_fn environment, const char *what, cddp_error *err)
{
    cddp_error unread = CDDP_ERROR_INIT;
    cd_join job;
    bool found = false;
    if (cd_join_read(environment, NULL, &job, &found, &unread) != CDDP_OK || !found) return CDDP_OK;
    return cd_fail(err, CDDP_E_UNSUPPORTED,
                   "%s make this one of %u processes that no MPI knows of, and each would %s: "
                   "start them with mpirun, with "
                   "srun --mpi=pmix or --mpi=pmi2, or start one alone",
                   job.variables, job.world_size, what);
}

const char *cd_join_find_launched(cddp_environment_fn environment)
{
    if (environment("CDDP_HUB") != NULL) return NULL; /* a rank of a run */
    for (const cd_backend_row *row = cd_backend_rows; row->name != NULL; row++)
        if (row->job[0] != '\0' && environment(row->job) != NULL) return environment(row->job);
    return environment("PMIX_RANK"); /* of launchers that start ranks of any MPI */
}
