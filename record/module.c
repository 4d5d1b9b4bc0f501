/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* dladdr, dl_iterate_phdr, dlinfo */
#include "record/module.h"

#include "backends/table/builtin.h"
#include "cddp/plugin.h"
#include "cddp/self.h"
#include "core/base/error.h"
#include "record/launcher.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096

/* The folder of a file, or "." */
static void cut_name(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash != NULL)
        *slash = '\0';
    else
        snprintf(path, PATH_BYTES, ".");
}

/* Modules use the library's symbols, which a program that loaded it for itself alone (ctypes) has
** hidden from them. In a namespace of dlmopen there is nothing to uncover: glibc 2.36 crashes when
** it is asked to, and its first object is seen by all others. */
static void uncover(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    Lmid_t space = LM_ID_BASE;
    if (library == NULL || dlinfo(library, RTLD_DI_LMID, &space) != 0 || space != LM_ID_BASE)
        return;
    (void)dlopen(path, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

/* The file that this code is in: libcddp.so, or the program. */
static bool find_library(char path[PATH_BYTES])
{
    Dl_info info;
    if (dladdr(&cd_backend_module_dir, &info) == 0 || info.dli_fname == NULL) return false;
    if (strlen(info.dli_fname) >= PATH_BYTES) return false;
    memcpy(path, info.dli_fname, strlen(info.dli_fname) + 1);
    uncover(path);
    return true;
}

/* The i-th folder in which modules may be; false past the last. */
static bool find_folder(size_t i, char path[PATH_BYTES])
{
    const char *said = cd_launcher_variable("CDDP_BACKEND_DIR");
    ssize_t length = 0;
    path[0] = '\0';
    switch (i) {
    case 0:
        snprintf(path, PATH_BYTES, "%s", said != NULL ? said : "");
        return true;
    case 1:
        if (!find_library(path)) return true;
        cut_name(path);
        strncat(path, "/cddp", PATH_BYTES - strlen(path) - 1);
        return true;
    case 2:
        length = readlink("/proc/self/exe", path, PATH_BYTES - 1);
        path[length > 0 ? length : 0] = '\0';
        cut_name(path);
        strncat(path, "/", PATH_BYTES - strlen(path) - 1);
        strncat(path, cd_backend_module_dir, PATH_BYTES - strlen(path) - 1);
        return true;
    case 3:
        snprintf(path, PATH_BYTES, "%s", CDDP_INSTALLED_MODULES);
        return true;
    default:
        return false;
    }
}

/* A static program is the only object, and asks for no loader. In a namespace of dlmopen there are
** others, and the program is none of them. */
static int find_loader(struct dl_phdr_info *object, size_t bytes, void *has_loader)
{
    (void)bytes;
    for (size_t i = 0; i < object->dlpi_phnum; i++)
        *(bool *)has_loader |= object->dlpi_phdr[i].p_type == PT_INTERP;
    return 0;
}

static cddp_status load(const char *path, cddp_backend *backend, cddp_error *err)
{
    bool has_loader = false;
    dl_iterate_phdr(find_loader, &has_loader);
    if (!has_loader)
        return cd_fail(err, CDDP_E_BACKEND,
                       "cannot load %.250s: this program is linked with -static, and glibc cannot "
                       "load modules into such a program. Link libcddp.a without -static",
                       path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char *words = dlerror();
        return cd_fail(err, CDDP_E_BACKEND,
                       "cannot load %.120s: %.250s (a static program must contain all of libcddp.a "
                       "and export its symbols; libcddp.so does both)",
                       path, words != NULL ? words : "");
    }
    const cddp_plugin *plugin = dlsym(library, CDDP_PLUGIN_SYMBOL);
    if (plugin == NULL || plugin->backends == NULL || plugin->backends[0] == NULL)
        return cd_fail(err, CDDP_E_BACKEND, "%.250s has no backend in it", path);
    *backend = *plugin->backends[0];
    return CDDP_OK;
}

static cddp_status load_row(const cd_backend_row *row, cddp_backend *backend, cddp_error *err)
{
    char path[PATH_BYTES];
    if (row->absent[0] != '\0')
        return cd_fail(err, CDDP_E_BACKEND, "this build has no backend %s: %s", row->name,
                       row->absent);
    for (size_t i = 0; find_folder(i, path); i++) {
        if (path[0] == '\0') continue;
        strncat(path, "/", sizeof path - strlen(path) - 1);
        strncat(path, row->module, sizeof path - strlen(path) - 1);
        if (access(path, R_OK) == 0) return CD_PASS(load(path, backend, err));
    }
    return cd_fail(err, CDDP_E_BACKEND,
                   "%s was not found: set CDDP_BACKEND_DIR to the folder that has it", row->module);
}

static bool is_set(const char *variable) { return cd_launcher_variable(variable) != NULL; }

cddp_status cd_module_find(const char *name, cddp_backend *backend, cddp_error *err)
{
    if (strchr(name, '/') != NULL) return CD_PASS(load(name, backend, err));
    const cd_backend_row *row = cd_backend_row_find(name);
    if (row == NULL) row = cd_backend_row_of_alias(name, is_set);
    if (row == NULL)
        return cd_fail(err, CDDP_E_ARG,
                       "unknown backend '%.60s'; \"cddp-verify list backends\" "
                       "names them",
                       name);
    if (strcmp(row->name, "self") == 0) {
        *backend = *cddp_backend_self();
        return CDDP_OK;
    }
    if (row->module[0] == '\0' && row->absent[0] == '\0')
        return cd_fail(err, CDDP_E_ARG, "backend %s does not run programs, only scenarios",
                       row->name);
    return CD_PASS(load_row(row, backend, err));
}
