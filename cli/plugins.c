/* SPDX-License-Identifier: Apache-2.0 */
/* Shared objects. A plugin is code of its author with all our rights: it is loaded only because its
** path stands on the command line, never because a scenario or a store says so. */
#define _POSIX_C_SOURCE 200809L
#include "cli/plugins.h"

#include "backends/table/builtin.h"
#include "cddp/composition.h"
#include "cli/leave.h"
#include "core/base/suggest.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/os_fault.h"
#include "core/base/os_ticker.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* No plugin takes longer to load, its libraries included. --plugin-limit says otherwise, or --limit
** where there is none. */
#define LOAD_LIMIT_NS UINT64_C(10000000000)
#define LOOK_NS UINT64_C(100000000) /* between two looks at one that is being loaded */

struct cd_plugins {
    uint64_t limit_ns; /* of what a plugin does in this process before there are ranks */
    void **handles;
    size_t handle_count, handle_capacity;
    /* backends that found nothing missing: asking again would cost a process each time */
    const cddp_backend **working;
    size_t working_count, working_capacity;
};

static const char *loader_words(void)
{
    const char *words = dlerror();
    return words != NULL ? words : "the loader gives no reason";
}

static void look(void *argument)
{
    const uint64_t *limit_ns = argument;
    cd_os_guest_look(*limit_ns);
}

/* From here on code of a plugin runs in this process. Where it crashes, leaves or does not return,
** the program ends, and says who it was. Both words are borrowed until leave_guest. A machine
** without a timer just waits for it. */
static void enter_guest(cd_plugins *plugins, const char *what, const char *name)
{
    if (cd_os_ticker_begin(LOOK_NS, look, &plugins->limit_ns, NULL) != CDDP_OK) cd_os_ticker_end();
    cd_os_guest_enter(what, name);
}

static void leave_guest(void)
{
    cd_os_guest_enter(NULL, NULL);
    cd_os_ticker_end();
}

/* Constructors of a plugin run in it. */
static void *open_plugin(cd_plugins *plugins, const char *path, const char *place, int flags)
{
    char name[300];
    snprintf(name, sizeof name, "'%.250s', while it was loaded,", path);
    enter_guest(plugins, "plugin ", name);
    void *handle = dlopen(place, flags);
    leave_guest();
    return handle;
}

/* Loads one object and adds what it lists. A guest is one that the command line names. */
static cddp_status load(cd_plugins *plugins, cddp_registry *registry, const char *path,
                        bool is_guest, cddp_error *err)
{
    /* Without a slash the loader would search its own folders. */
    char place[4096];
    snprintf(place, sizeof place, "%s%s", strchr(path, '/') == NULL ? "./" : "", path);
    if (!cd_vec_grow(NULL, (void **)&plugins->handles, &plugins->handle_capacity,
                     plugins->handle_count + 1, sizeof(void *)))
        return cd_fail_memory(err, "plugin '%s'", path);
    /* The loader would wait for the writer of a FIFO. */
    FILE *file = NULL;
    if (!cd_os_is_absent(place)) CD_TRY(cd_os_open_regular(place, &file, err));
    if (file != NULL) fclose(file);
    /* Never unmapped: MPI and CUDA leave functions behind that run when the process ends. */
    const int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    void *handle = is_guest ? open_plugin(plugins, path, place, flags) : dlopen(place, flags);
    if (handle == NULL) {
        /* The loader repeats the path in front of its reason. */
        const char *words = loader_words();
        size_t length = strlen(place);
        if (strncmp(words, place, length) == 0 && words[length] == ':')
            words += length + 1 + (words[length + 1] == ' ');
        return cd_fail(err, CDDP_E_ARG, "cannot load plugin '%.200s': %.250s", path, words);
    }
    plugins->handles[plugins->handle_count++] = handle;
    const cddp_plugin *plugin = dlsym(handle, CDDP_PLUGIN_SYMBOL);
    if (plugin == NULL)
        return cd_fail(err, CDDP_E_ARG, "'%s' is no cddp plugin: it does not export %s", path,
                       CDDP_PLUGIN_SYMBOL);
    CD_TRY(cddp_registry_add_plugin(registry, plugin, err));
    return CDDP_OK;
}

cddp_status cd_plugins_open(cd_cli *cli, cd_plugins **plugins, cddp_error *err)
{
    const char *path;
    uint64_t seconds = 0;
    cd_plugins *p = cd_allocate_zero(NULL, sizeof *p);
    if (p == NULL) return cd_fail_memory(err, "plugins");
    *plugins = p;
    CD_TRY(cd_args_budget(cli->args, CD_OPTION_limit, "seconds", &seconds, &p->limit_ns, err));
    if (p->limit_ns == 0) p->limit_ns = seconds * UINT64_C(1000000000);
    if (p->limit_ns == 0) p->limit_ns = LOAD_LIMIT_NS;
    CD_TRY(cd_args_time(cli->args, CD_OPTION_plugin_limit, &p->limit_ns, err));
    if (cd_args_value(cli->args, CD_OPTION_plugin, 0) != NULL)
        cd_os_guests_watch(cd_leave_without_verdict);
    for (size_t i = 0; (path = cd_args_value(cli->args, CD_OPTION_plugin, i)) != NULL; i++)
        CD_TRY(load(p, cli->registry, path, true, err));
    return CDDP_OK;
}

void cd_plugins_close(cd_plugins *plugins)
{
    if (plugins == NULL) return;
    while (plugins->handle_count > 0) dlclose(plugins->handles[--plugins->handle_count]);
    cd_release(NULL, plugins->handles, plugins->handle_capacity * sizeof(void *));
    cd_release(NULL, plugins->working, plugins->working_capacity * sizeof(void *));
    cd_release(NULL, plugins, sizeof *plugins);
}

/* Modules lie in a folder beside the program: <program>/../lib/cddp/cddp-gloo.so. */
static void module_path(const char *module, char *path, size_t bytes)
{
    char program[2048];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL) *slash = '\0';
    snprintf(path, bytes, "%s/%s/%s", slash != NULL ? program : ".", cd_backend_module_dir, module);
}

static bool is_set(const char *variable) { return getenv(variable) != NULL; }

const char *cd_plugins_backend_name(const cd_cli *cli, const char *name)
{
    const cd_backend_row *row = cddp_registry_find_backend(cli->registry, name) == NULL
                                    ? cd_backend_row_of_alias(name, is_set)
                                    : NULL;
    return row != NULL ? row->name : name;
}

/* The backends whose names begin alike, between commas: those of a family are few. */
static void family_of(const char *prefix, char *names, size_t bytes)
{
    size_t length = 0;
    names[0] = '\0';
    for (const cd_backend_row *row = cd_backend_rows; row->name != NULL; row++)
        if (strncmp(row->name, prefix, strlen(prefix)) == 0 && length < bytes)
            length += (size_t)snprintf(names + length, bytes - length, "%s%s",
                                       length > 0 ? " or " : "", row->name);
}

static cddp_status unknown_backend(const char *name, cddp_error *err)
{
    static const char torch[] = "torch-";
    char groups[128];
    cd_suggestion s;
    cd_suggest_begin(&s, name);
    for (const cd_backend_row *row = cd_backend_rows; row->name != NULL; row++)
        cd_suggest_offer(&s, row->name);
    if (s.best != NULL)
        return cd_fail(err, CDDP_E_ARG, "unknown backend '%.60s'; did you mean '%s'?", name,
                       s.best);
    family_of(torch, groups, sizeof groups);
    if (strncmp(name, torch, sizeof torch - 1) == 0 && groups[0] != '\0')
        return cd_fail(err, CDDP_E_ARG, "unknown backend '%.60s'; a process group of PyTorch is %s",
                       name, groups);
    return cd_fail(err, CDDP_E_ARG,
                   "unknown backend '%.60s'; \"cddp-verify list backends\" names them", name);
}

static cddp_status need_part(void *context, const char *name, cddp_error *err)
{
    CD_TRY(cd_plugins_need_backend(context, name, err));
    return CDDP_OK;
}

static cddp_status ask(cd_plugins *plugins, const cddp_backend *backend, cddp_error *err)
{
    char name[300];
    if (cd_backend_row_find(backend->name) != NULL) return CD_PASS(backend->probe(backend, err));
    snprintf(name, sizeof name, "%.250s, in probe,", backend->name);
    enter_guest(plugins, "backend ", name);
    const cddp_status status = backend->probe(backend, err);
    leave_guest();
    return CD_PASS(status);
}

/* Asks a backend what this machine lacks for it, until it is nothing. */
static cddp_status probe(cd_plugins *plugins, const cddp_backend *backend, cddp_error *err)
{
    cddp_error reason = CDDP_ERROR_INIT;
    for (size_t i = 0; i < plugins->working_count; i++)
        if (plugins->working[i] == backend) return CDDP_OK;
    if (ask(plugins, backend, &reason) != CDDP_OK)
        return cd_fail(err, CDDP_E_BACKEND, "backend %s does not work here: %.400s", backend->name,
                       reason.message);
    if (!cd_vec_grow(NULL, (void **)&plugins->working, &plugins->working_capacity,
                     plugins->working_count + 1, sizeof(void *)))
        return cd_fail_memory(err, "backend '%s'", backend->name);
    plugins->working[plugins->working_count++] = backend;
    return CDDP_OK;
}

cddp_status cd_plugins_need_backend(cd_cli *cli, const char *name, cddp_error *err)
{
    char path[4096];
    if (cddp_composition_is_named(name)) {
        CD_TRY(cddp_composition_each(name, need_part, cli, err));
        return CDDP_OK;
    }
    cddp_error reason = CDDP_ERROR_INIT;
    name = cd_plugins_backend_name(cli, name);
    const cd_backend_row *row = cd_backend_row_find(name);
    const cddp_backend *backend = cddp_registry_find_backend(cli->registry, name);
    if (backend != NULL) return CD_PASS(probe(cli->plugins, backend, err));
    if (row == NULL) return CD_PASS(unknown_backend(name, err));
    if (row->absent[0] != '\0')
        return cd_fail(err, CDDP_E_BACKEND, "backend %s is not in this build: %s", name,
                       row->absent);
    if (row->module[0] == '\0') return CDDP_OK; /* compiled in */
    module_path(row->module, path, sizeof path);
    if (load(cli->plugins, cli->registry, path, false, &reason) != CDDP_OK)
        return cd_fail(err, CDDP_E_BACKEND, "backend %s does not work here: %.400s", name,
                       reason.message);
    backend = cddp_registry_find_backend(cli->registry, name);
    if (backend == NULL)
        return cd_fail(err, CDDP_E_BACKEND, "'%.300s' does not bring the backend %s", path, name);
    return CD_PASS(probe(cli->plugins, backend, err));
}
