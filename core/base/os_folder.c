/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of runs, and what killed runs left. See os_folder.h. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE /* flock */
#include "core/base/os_folder.h"

#include "core/base/error.h"
#include "core/base/os_shortage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOCK_NAME "/.owner"
#define LOCK_NEW "/.owner.new"
#define OPEN_AT_ONCE 16

static int remove_one(const char *path, const struct stat *what, int kind, struct FTW *where)
{
    (void)what, (void)where;
    return kind == FTW_DP || kind == FTW_D ? rmdir(path) : unlink(path);
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_one, OPEN_AT_ONCE, FTW_DEPTH | FTW_PHYS);
}

/* Note [Makers of folders]
** A folder has no owner from mkdtemp until its lock has its name, and when its remover was killed
** on the way. Whoever makes one has a shared lock on the folder above in that time. Who gets the
** exclusive one knows that nobody makes any: a folder without an owner is a leftover then. A lock
** that is refused for long is done without: leftovers stay, and a folder that was removed under its
** maker is made again. */
#define LOCK_TRIES 100
#define LOCK_WAIT_NS 10000000
#define MAKE_TRIES 10

/* -1: not to be had. */
static int parent_lock(const char *where, int kind, int tries)
{
    const int fd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -1;
    for (int i = 0; i < tries; i++) {
        if (flock(fd, kind | LOCK_NB) == 0) return fd;
        if (i + 1 < tries) nanosleep(&(struct timespec){0, LOCK_WAIT_NS}, NULL);
    }
    close(fd);
    return -1;
}

/* Nobody has its lock: whoever made it is gone. is_quiet: nobody makes a folder now. */
static void remove_leftover(const char *path, bool is_quiet)
{
    char file[600];
    struct stat seen;
    if (lstat(path, &seen) != 0 || !S_ISDIR(seen.st_mode) || seen.st_uid != geteuid()) return;
    snprintf(file, sizeof file, "%.511s" LOCK_NAME, path);
    const int fd = open(file, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT && is_quiet) remove_tree(path);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) remove_tree(path);
    close(fd);
}

static void remove_leftovers(const char *where, const char *prefix)
{
    DIR *all = opendir(where);
    char path[600];
    const size_t length = strlen(prefix);
    if (all == NULL) return;
    const int quiet = parent_lock(where, LOCK_EX, 1);
    for (struct dirent *e; (e = readdir(all)) != NULL;) {
        if (strncmp(e->d_name, prefix, length) != 0 || e->d_name[length] != '-') continue;
        if (snprintf(path, sizeof path, "%s/%s", where, e->d_name) < 512)
            remove_leftover(path, quiet >= 0);
    }
    if (quiet >= 0) close(quiet);
    closedir(all);
}

/* The file gets its name when it is locked. See Note [Makers of folders]. */
static int lock_make(const char *path)
{
    char file[600], named[600];
    snprintf(file, sizeof file, "%.511s" LOCK_NEW, path);
    snprintf(named, sizeof named, "%.511s" LOCK_NAME, path);
    const int fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && rename(file, named) == 0) return fd;
    close(fd);
    return -1;
}

static cddp_status fail_system(cddp_error *err, const char *where)
{
    const int code = errno;
    return cd_fail(err, cd_errno_status(code, CDDP_E_IO), "cannot make a folder in %.150s: %s",
                   where, strerror(code));
}

/* Leaves errno as it was where it failed. */
static cddp_status make_locked(cd_os_folder *made, const char *absolute, const char *prefix,
                               cddp_error *err)
{
    const int length = snprintf(made->path, sizeof made->path, "%s/%s-XXXXXX", absolute, prefix);
    errno = ENAMETOOLONG;
    if (length >= (int)sizeof made->path || mkdtemp(made->path) == NULL)
        return CD_PASS(fail_system(err, absolute));
    made->lock = lock_make(made->path);
    if (made->lock >= 0) return CDDP_OK;
    const int code = errno;
    const cddp_status status = fail_system(err, made->path);
    remove_tree(made->path);
    errno = code;
    return status;
}

cddp_status cd_os_folder_open(cd_os_folder *folder, const char *where, const char *prefix,
                              cddp_error *err)
{
    cd_os_folder made = {.lock = -1};
    char absolute[PATH_MAX];
    if (realpath(where, absolute) == NULL) return CD_PASS(fail_system(err, where));
    remove_leftovers(absolute, prefix);
    const int making = parent_lock(absolute, LOCK_SH, LOCK_TRIES);
    cddp_status status = make_locked(&made, absolute, prefix, err);
    for (int i = 1; status != CDDP_OK && errno == ENOENT && i < MAKE_TRIES; i++)
        status = make_locked(&made, absolute, prefix, err);
    if (making >= 0) close(making);
    if (status == CDDP_OK) *folder = made;
    return status;
}

void cd_os_folder_close(cd_os_folder *folder)
{
    if (folder->path[0] == '\0') return;
    remove_tree(folder->path);
    close(folder->lock);
    folder->path[0] = '\0';
}
