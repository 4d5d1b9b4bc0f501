/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/folder.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define FILES_MAX (1u << 16)

bool cd_folder_is(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static cddp_status add(cd_folder *f, const char *path, cddp_error *err)
{
    if (!cd_vec_grow(NULL, (void **)&f->paths, &f->capacity, f->count + 1, sizeof *f->paths))
        return cd_fail_memory(err, "%zu files", f->count + 1);
    f->paths[f->count] = cd_strdup(NULL, path);
    if (f->paths[f->count] == NULL) return cd_fail_memory(err, "%s", path);
    f->count++;
    return CDDP_OK;
}

/* Folders give names in any order; a recording has one file per rank. */
static void sort(char **paths, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        char *moving = paths[i];
        size_t at = i;
        for (; at > 0 && strcmp(moving, paths[at - 1]) < 0; at--) paths[at] = paths[at - 1];
        paths[at] = moving;
    }
}

static cddp_status read_one(cd_folder *f, const char *folder, cd_folder_fn is_wanted,
                            cddp_error *err)
{
    const size_t first = f->count;
    cddp_status status = CDDP_OK;
    DIR *d = opendir(folder);
    if (d == NULL) return cd_fail(err, CDDP_E_IO, "cannot read %s: %s", folder, strerror(errno));
    for (struct dirent *e; status == CDDP_OK && (e = readdir(d)) != NULL;) {
        char path[4096];
        const size_t length = strlen(folder);
        const char *slash = length > 0 && folder[length - 1] == '/' ? "" : "/";
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s%s%s", folder, slash, e->d_name);
        if (!cd_folder_is(path) && is_wanted(path)) status = add(f, path, err);
        if (f->count > FILES_MAX)
            status = cd_fail(err, CDDP_E_LIMIT, "%s has more than %u files", folder, FILES_MAX);
    }
    closedir(d);
    if (status == CDDP_OK && f->count == first)
        return cd_fail(err, CDDP_E_ARG, "%s is a folder without a recording", folder);
    if (status == CDDP_OK) sort(f->paths + first, f->count - first);
    return status;
}

cddp_status cd_folder_read(cd_folder *folder, const char *const *operands, size_t count,
                           cd_folder_fn is_wanted, cddp_error *err)
{
    *folder = (cd_folder){.count = 0};
    for (size_t i = 0; i < count; i++) {
        const cddp_status status = cd_folder_is(operands[i])
                                       ? read_one(folder, operands[i], is_wanted, err)
                                       : add(folder, operands[i], err);
        if (status != CDDP_OK) {
            cd_folder_fini(folder);
            return CD_PASS(status);
        }
    }
    return CDDP_OK;
}

void cd_folder_fini(cd_folder *f)
{
    for (size_t i = 0; i < f->count; i++) cd_strfree(NULL, f->paths[i]);
    cd_release(NULL, f->paths, f->capacity * sizeof *f->paths);
    *f = (cd_folder){.count = 0};
}
