/* SPDX-License-Identifier: Apache-2.0 */
/* Which scenario files the operands of a command mean. */
#define _POSIX_C_SOURCE 200809L
#include "cli/scenarios.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/suggest.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH_MAX 16

static cddp_status add_path(cd_file_list *list, const char *path, bool found, cddp_error *err)
{
    if (!cd_vec_grow(NULL, (void **)&list->paths, &list->capacity, list->count + 1,
                     sizeof *list->paths) ||
        !cd_vec_grow(NULL, (void **)&list->found, &list->found_capacity, list->count + 1,
                     sizeof *list->found) ||
        (list->paths[list->count] = cd_strdup(NULL, path)) == NULL)
        return cd_fail_memory(err, "a list of %zu scenarios", list->count + 1);
    list->found[list->count++] = found;
    return CDDP_OK;
}

void cd_file_list_fini(cd_file_list *list)
{
    for (size_t i = 0; i < list->count; i++) cd_strfree(NULL, list->paths[i]);
    cd_release(NULL, list->paths, list->capacity * sizeof *list->paths);
    cd_release(NULL, list->found, list->found_capacity * sizeof *list->found);
    *list = (cd_file_list){.paths = NULL};
}

static bool is_scenario(const char *name)
{
    size_t length = strlen(name);
    return length > 5 && name[0] != '.' && strcmp(name + length - 5, ".toml") == 0;
}

static cddp_status add_folder(cd_file_list *list, const char *folder, int depth, cddp_error *err);

/* Takes over the names that scandir made. */
static cddp_status add_entries(cd_file_list *list, const char *folder, struct dirent **entries,
                               int count, int depth, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (int i = 0; i < count; i++) {
        char path[4096];
        struct stat info;
        const char *name = entries[i]->d_name;
        int length = snprintf(path, sizeof path, "%s%s%s", folder,
                              folder[strlen(folder) - 1] == '/' ? "" : "/", name);
        if (status == CDDP_OK && name[0] != '.') {
            if (length >= (int)sizeof path)
                status = cd_fail(err, CDDP_E_LIMIT, "a path in '%.100s…' is too long", folder);
            else if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
                status = add_folder(list, path, depth + 1, err);
            else if (is_scenario(name))
                status = add_path(list, path, true, err); /* reading it says what is wrong */
        }
        free(entries[i]);
    }
    return status;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static cddp_status add_folder(cd_file_list *list, const char *folder, int depth, cddp_error *err)
{
    struct dirent **entries = NULL;
    if (depth > DEPTH_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "'%s' is nested more than %d folders deep", folder,
                       DEPTH_MAX);
    int count = scandir(folder, &entries, NULL, by_name);
    if (count < 0)
        return cd_fail(err, cd_error_of_errno(errno), "cannot read folder '%s': %s", folder,
                       strerror(errno));
    cddp_status status = add_entries(list, folder, entries, count, depth, err);
    free(entries);
    return status;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static cddp_status add_glob(cd_file_list *list, const char *pattern, cddp_error *err)
{
    glob_t matches;
    cddp_status status = CDDP_OK;
    size_t before = list->count;
    int result = glob(pattern, GLOB_NOSORT, NULL, &matches);
    if (result == GLOB_NOMATCH) return cd_fail(err, CDDP_E_ARG, "no file matches '%s'", pattern);
    if (result != 0) return cd_fail(err, CDDP_E_IO, "cannot read the folders of '%s'", pattern);
    /* glob sorts by locale; scenarios are sorted by bytes everywhere. */
    qsort(matches.gl_pathv, matches.gl_pathc, sizeof matches.gl_pathv[0], by_bytes);
    for (size_t i = 0; i < matches.gl_pathc && status == CDDP_OK; i++)
        status = cd_file_list_add(list, matches.gl_pathv[i], err);
    for (size_t i = before; i < list->count; i++) list->found[i] = true;
    globfree(&matches);
    return status;
}

/* There is no such file: perhaps one beside it has nearly that name. */
static cddp_status fail_missing(const char *operand, cddp_error *err)
{
    const char *slash = strrchr(operand, '/');
    const int folder_length = slash != NULL ? (int)(slash - operand) + 1 : 0;
    const int reason = errno;
    char folder[4096];
    cd_suggestion s;
    cd_suggest_begin(&s, operand + folder_length);
    snprintf(folder, sizeof folder, "%.*s", folder_length, operand);
    struct dirent **entries = NULL;
    const int count = scandir(slash != NULL ? folder : ".", &entries, NULL, by_name);
    for (int i = 0; i < count; i++)
        if (is_scenario(entries[i]->d_name) || strchr(entries[i]->d_name, '.') == NULL)
            cd_suggest_offer(&s, entries[i]->d_name);
    const bool is_near = s.best != NULL;
    const cddp_status status =
        cd_fail(err, cd_error_of_errno(reason), "cannot read '%s': %s%s%s%s%s", operand,
                strerror(reason), is_near ? "; did you mean '" : "", is_near ? folder : "",
                is_near ? s.best : "", is_near ? "'?" : "");
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
    return status;
}

cddp_status cd_file_list_add(cd_file_list *list, const char *operand, cddp_error *err)
{
    struct stat info;
    size_t before = list->count;
    if (stat(operand, &info) != 0) {
        if (strpbrk(operand, "*?[") != NULL) return CD_PASS(add_glob(list, operand, err));
        return CD_PASS(fail_missing(operand, err));
    }
    if (!S_ISDIR(info.st_mode)) return CD_PASS(add_path(list, operand, false, err));
    CD_TRY(add_folder(list, operand, 0, err));
    if (list->count == before)
        return cd_fail(err, CDDP_E_ARG, "there is no scenario (*.toml) in '%s'", operand);
    return CDDP_OK;
}
