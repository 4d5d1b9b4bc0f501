/* SPDX-License-Identifier: Apache-2.0 */
/* From a launcher's variables to the group of all ranks; and ranks that this process starts. */
#define _POSIX_C_SOURCE 200809L
#include "cddp/init.h"

#include "cddp/composition.h"
#include "cddp/process.h"
#include "cddp/record.h"
#include "cddp/registry.h"
#include "cddp/rendezvous.h"
#include "cddp/self.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/os.h"
#include "core/base/os_folder.h"
#include "record/launcher.h"
#include "record/module.h"
#include "record/recording.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cddp_context {
    cddp_backend backend;
    cddp_registry *parts; /* of a composition; NULL: the backend is none */
    cddp_composition *composition;
    cddp_rendezvous_server *server; /* of rank 0; NULL: none is needed */
    cddp_rendezvous *rendezvous;
    cddp_solo_world *world; /* NULL: the rank is another world's */
    cddp_rank *rank;
    cddp_group *group;
    uint64_t timeout_ns;
};

/* ---- the group of all ranks ---- */

static cddp_status make_group(cddp_context *c, cddp_error *err)
{
    const uint32_t count = c->rank->world_size;
    uint32_t *members = cd_allocate_array(NULL, count, sizeof *members);
    if (members == NULL) return cd_fail_memory(err, "a group of %u ranks", count);
    for (uint32_t i = 0; i < count; i++) members[i] = i;
    const cddp_group_options options = {.size = sizeof options,
                                        .backend = &c->backend,
                                        .rank = c->rank,
                                        .spec = {.size = sizeof options.spec,
                                                 .name = "world",
                                                 .group_rank = c->rank->rank,
                                                 .group_size = count,
                                                 .members = members,
                                                 .timeout_ns = c->timeout_ns}};
    const cddp_status status = cddp_group_create(&options, &c->group, err);
    cd_release(NULL, members, count * sizeof *members);
    return CD_PASS(status);
}

static cddp_status meet(cddp_context *c, const char *url, const char *secret, cddp_error *err)
{
    const cddp_rendezvous_options options = {.size = sizeof options,
                                             .url = url,
                                             .secret = secret,
                                             .timeout_ns = c->timeout_ns};
    CD_TRY(cddp_rendezvous_open(&options, &c->rendezvous, err));
    c->backend.self = c->rendezvous;
    return CDDP_OK;
}

/* ---- a rank that somebody started ---- */

static cddp_status meet_by_launcher(cddp_context *c, const cd_launcher *l, cddp_error *err)
{
    char url[300];
    /* one alone meets itself */
    const bool is_said = l->host[0] != '\0' && l->port != 0, is_alone = l->world_size == 1;
    const char *host = is_said || !is_alone ? l->host : "127.0.0.1";
    uint16_t port = is_said ? l->port : 0;
    if (!is_said && !is_alone)
        return cd_fail(err, CDDP_E_CONFIG,
                       "where do the %u ranks meet? set MASTER_ADDR and MASTER_PORT",
                       l->world_size);
    const cddp_rendezvous_server_options serve = {.size = sizeof serve,
                                                  .host = host,
                                                  .port = port,
                                                  .secret = l->secret};
    if (l->rank == 0) CD_TRY(cddp_rendezvous_server_open(&serve, &c->server, err));
    if (port == 0) port = cddp_rendezvous_server_port(c->server);
    snprintf(url, sizeof url, strchr(host, ':') != NULL ? "tcp://[%s]:%u" : "tcp://%s:%u", host,
             port);
    return CD_PASS(meet(c, url, l->secret, err));
}

/* ---- a backend that is made of others ---- */

static cddp_status find_part(void *context, const char *name, const cddp_backend **backend,
                             cddp_error *err)
{
    const cddp_context *c = context;
    *backend = cddp_registry_find_backend(c->parts, name);
    if (*backend != NULL) return CDDP_OK;
    cddp_backend part;
    CD_TRY(cd_module_find(name, &part, err));
    if (part.launcher != NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "backend %s starts its ranks itself: it is no part of a composition", name);
    part.self = c->rendezvous;
    CD_TRY(cddp_registry_add_backend(c->parts, &part, err));
    *backend = cddp_registry_find_backend(c->parts, name);
    return CDDP_OK;
}

static cddp_status open_composition(cddp_context *c, const char *spec, cddp_error *err)
{
    const cddp_composition_options options = {
        .size = sizeof options, .spec = spec, .find = find_part, .context = c, .own_process = true};
    CD_TRY(cddp_registry_create(NULL, &c->parts, err));
    return CD_PASS(cddp_composition_open(&options, &c->composition, err));
}

static void close_composition(cddp_context *c)
{
    cddp_composition_close(c->composition);
    cddp_registry_destroy(c->parts);
    c->composition = NULL;
    c->parts = NULL;
}

/* Opened once before the ranks meet: a wrong text fails at once, on every rank. */
static cddp_status compose(cddp_context *c, const char *spec, const cd_launcher *l, cddp_error *err)
{
    CD_TRY(open_composition(c, spec, err));
    close_composition(c);
    CD_TRY(meet_by_launcher(c, l, err));
    CD_TRY(open_composition(c, spec, err));
    c->backend = *cddp_composition_backend(c->composition);
    return CDDP_OK;
}

static const char *choose_backend(const cddp_init_options *o, const cd_launcher *l)
{
    const char *said = cd_launcher_variable("CDDP_BACKEND");
    if (o->backend != NULL) return o->backend;
    if (said != NULL) return said;
    if (l->world_size == 1) return "self";
    return l->kind == CD_LAUNCHER_MPI ? "mpi" : "gloo";
}

static cddp_status start(cddp_context *c, const cddp_init_options *o, cddp_error *err)
{
    cd_launcher launcher;
    CD_TRY(cd_launcher_read(&launcher, err));
    CD_TRY(cd_launcher_check(&launcher, err));
    const char *name = choose_backend(o, &launcher);
    const bool is_composed = cddp_composition_is_named(name);
    if (!is_composed) CD_TRY(cd_module_find(name, &c->backend, err));
    const cddp_solo_options solo = {.size = sizeof solo,
                                    .rank = launcher.rank,
                                    .world_size = launcher.world_size};
    CD_TRY(cddp_solo_world_open(&solo, &c->world, err));
    c->rank = cddp_solo_world_rank(c->world);
    if (is_composed) {
        CD_TRY(compose(c, name, &launcher, err));
        return CD_PASS(make_group(c, err));
    }
    /* Ranks of an MPI meet through it; one alone meets nobody. */
    if (c->backend.launcher == NULL && c->backend.open != cddp_backend_self()->open)
        CD_TRY(meet_by_launcher(c, &launcher, err));
    return CD_PASS(make_group(c, err));
}

static cddp_status check_options(const cddp_init_options *o, cddp_error *err)
{
    if (o != NULL && o->size < sizeof *o)
        return cd_fail(err, CDDP_E_ARG, "cddp_init_options begin with their size");
    return CDDP_OK;
}

cddp_status cddp_init_with(const cddp_init_options *options, cddp_context **context,
                           cddp_error *err)
{
    const cddp_init_options none = {.size = sizeof none};
    CD_TRY(check_options(options, err));
    CD_TRY(cd_os_hold_standard_streams(err));
    if (context == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_init: context is NULL");
    const cddp_init_options *o = options != NULL ? options : &none;
    cddp_context *c = cd_allocate_zero(NULL, sizeof *c);
    if (c == NULL) return cd_fail_memory(err, "a context");
    c->timeout_ns = o->timeout_ns;
    const cddp_status status = start(c, o, err);
    if (status == CDDP_OK)
        *context = c;
    else
        cddp_fini(c);
    return CD_PASS(status);
}

cddp_status cddp_init(cddp_context **context, cddp_error *err)
{
    return CD_PASS(cddp_init_with(NULL, context, err));
}

void cddp_fini(cddp_context *context)
{
    if (context == NULL) return;
    cddp_group_destroy(context->group);
    close_composition(context);
    cddp_rendezvous_close(context->rendezvous);
    cddp_rendezvous_server_close(context->server);
    cddp_solo_world_close(context->world);
    cd_release(NULL, context, sizeof *context);
}

cddp_group *cddp_context_group(const cddp_context *context)
{
    return context != NULL ? context->group : NULL;
}

cddp_rank *cddp_context_rank(const cddp_context *context)
{
    return context != NULL ? context->rank : NULL;
}

/* ---- ranks that this process starts ---- */

typedef struct ranks {
    cddp_backend backend;
    cddp_ranks_fn program;
    void *argument;
    uint64_t timeout_ns;
    bool prints_plain;
    cd_os_folder folder;
    char url[sizeof(cd_os_folder) + 8];
} ranks;

static cddp_status run_program(const ranks *r, cddp_rank *rank, cddp_error *err)
{
    cd_recording_begin_run(cd_hash_text(r->url)); /* the folder's name is drawn */
    cddp_context *c = cd_allocate_zero(NULL, sizeof *c);
    if (c == NULL) return cd_fail_memory(err, "a context");
    c->backend = r->backend;
    c->rank = rank;
    c->timeout_ns = r->timeout_ns;
    cddp_status status =
        c->backend.open != cddp_backend_self()->open ? meet(c, r->url, NULL, err) : CDDP_OK;
    if (status == CDDP_OK) status = make_group(c, err);
    if (status == CDDP_OK) status = r->program(c, r->argument, err);
    if (status != CDDP_OK && cd_recording_is_closing()) cd_recording_end_with(status, err->message);
    cddp_fini(c);
    return CD_PASS(status);
}

static cddp_status run_rank(cddp_rank *rank, void *argument, cddp_error *err)
{
    cddp_error own = CDDP_ERROR_INIT;
    if (err == NULL) err = &own;
    const cddp_status status = run_program(argument, rank, err);
    const cddp_status kept =
        cddp_record_close(status, err->message, status == CDDP_OK ? err : NULL);
    return status != CDDP_OK ? CD_PASS(status) : CD_PASS(kept);
}

/* How near a failure is to the cause. A rank whose process died comes first, then one that failed
** by itself. Those that lost such a one, or waited for it, say whom; one that we ended says least.
*/
static int nearness_of(const cddp_rank_result *r)
{
    const bool has_died = r->end == CDDP_RANK_KILLED || r->end == CDDP_RANK_CRASHED;
    const bool is_second =
        r->status == CDDP_E_BACKEND || r->status == CDDP_E_TIMEOUT || r->status == CDDP_E_ABORTED;
    if (r->status == CDDP_OK && r->end == CDDP_RANK_RETURNED) return 0;
    return has_died ? 4 : r->end != CDDP_RANK_RETURNED ? 1 : is_second ? 2 : 3;
}

static cddp_status first_failure(const cddp_rank_result *results, uint32_t count, cddp_error *err)
{
    const cddp_rank_result *first = NULL;
    char name[24], before[24];
    for (uint32_t i = 0; i < count; i++)
        if (nearness_of(&results[i]) > (first != NULL ? nearness_of(first) : 0))
            first = &results[i];
    if (first == NULL) return CDDP_OK;
    const int length = snprintf(name, sizeof name, "rank %u ", (unsigned)(first - results));
    snprintf(before, sizeof before, "rank %u: ", (unsigned)(first - results));
    const bool has_name = strncmp(first->error.message, name, (size_t)length) == 0;
    const char *words = first->error.message;
    if (words[0] == '\0') words = cddp_status_text(first->status); /* the program found none */
    return cd_fail(err, first->status != CDDP_OK ? first->status : CDDP_E_ABORTED, "%s%s",
                   has_name ? "" : before, words);
}

/* Signals that a process gets for what it does itself. */
static bool is_crash(int32_t number)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP};
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
        if (crashes[i] == number) return true;
    return false;
}

/* A signal that ends jobs says nothing of the rank that it reached, nor one that several got. A
** crash is each rank's own: all of them may run into the same mistake. */
static bool died_by_itself(const cddp_rank_result *results, uint32_t count, uint32_t rank)
{
    const int32_t number = results[rank].detail;
    uint32_t alike = 0;
    if (results[rank].end != CDDP_RANK_KILLED || is_crash(number)) return true;
    for (uint32_t i = 0; i < count; i++)
        alike += results[i].end == CDDP_RANK_KILLED && results[i].detail == number;
    return alike == 1 && number != SIGINT && number != SIGTERM && number != SIGHUP;
}

static void pass_on(void *context, uint32_t rank, bool is_error, const char *line, size_t length)
{
    (void)context, (void)rank;
    FILE *to = is_error ? stderr : stdout;
    fwrite(line, 1, length, to);
    putc('\n', to);
}

static cddp_status launch(ranks *r, uint32_t count, cddp_error *err)
{
    cddp_process_world *world = NULL;
    const cddp_process_options options = {.size = sizeof options,
                                          .world_size = count,
                                          .output = r->prints_plain ? pass_on : NULL};
    cddp_rank_result *results = cd_allocate_array(NULL, count, sizeof *results);
    if (results == NULL) return cd_fail_memory(err, "the results of %u ranks", count);
    cd_recording_leave_to_ranks();
    cddp_status status = cddp_process_world_open(&options, &world, err);
    if (status == CDDP_OK)
        status = cddp_process_world_ops()->launch(world, run_rank, r, results, err);
    for (uint32_t i = 0; status == CDDP_OK && i < count; i++)
        if (died_by_itself(results, count, i)) cd_recording_note(i, &results[i]);
    if (status == CDDP_OK) status = first_failure(results, count, err);
    cddp_process_world_close(world);
    cd_release(NULL, results, count * sizeof *results);
    return CD_PASS(status);
}

/* Ranks that are forked meet in a folder. */
static cddp_status make_folder(ranks *r, cddp_error *err)
{
    const char *temporary = cd_launcher_variable("TMPDIR");
    if (temporary == NULL || temporary[0] == '\0') temporary = "/tmp";
    CD_TRY(cd_os_folder_open(&r->folder, temporary, "cddp-ranks", err));
    snprintf(r->url, sizeof r->url, "file://%s", r->folder.path);
    return CDDP_OK;
}

cddp_status cddp_run_ranks(uint32_t count, const cddp_init_options *options, cddp_ranks_fn program,
                           void *argument, cddp_error *err)
{
    const char *said = cd_launcher_variable("CDDP_BACKEND");
    CD_TRY(check_options(options, err));
    if (count == 0 || program == NULL)
        return cd_fail(err, CDDP_E_ARG, "cddp_run_ranks: at least one rank, and a program");
    CD_TRY(cd_os_hold_standard_streams(err));
    ranks r = {.program = program,
               .argument = argument,
               .timeout_ns = options != NULL ? options->timeout_ns : 0,
               .prints_plain = options != NULL && options->prints_plain};
    const char *name = options != NULL && options->backend != NULL ? options->backend
                       : said != NULL                              ? said
                       : count == 1                                ? "self"
                                                                   : "gloo";
    CD_TRY(cd_module_find(name, &r.backend, err));
    if (r.backend.launcher != NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "ranks of backend %s are started by its launcher: use %s, and cddp_init",
                       r.backend.name, r.backend.launcher->name);
    CD_TRY(make_folder(&r, err));
    const cddp_status status = launch(&r, count, err);
    cd_os_folder_close(&r.folder);
    return CD_PASS(status);
}
