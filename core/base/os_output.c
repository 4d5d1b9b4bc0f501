/* SPDX-License-Identifier: Apache-2.0 */
/* Writing files that the program leaves behind. See output.h. */
#define _POSIX_C_SOURCE 200809L
#include "core/base/output.h"

#include "core/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4200

static cddp_status refuse(const char *path, int problem, cddp_error *err)
{
    return cd_fail(err, cd_error_of_errno(problem), "cannot write '%s': %s", path,
                   strerror(problem));
}

cddp_status cd_output_check(const char *path, cddp_error *err)
{
    struct stat there;
    char folder[PATH_BYTES];
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder - 8)
        return CD_PASS(refuse(path, ENAMETOOLONG, err));
    if (stat(path, &there) == 0) {
        if (S_ISDIR(there.st_mode)) return CD_PASS(refuse(path, EISDIR, err));
        return CD_PASS(access(path, W_OK) == 0 ? CDDP_OK : refuse(path, errno, err));
    }
    if (errno != ENOENT) return CD_PASS(refuse(path, errno, err));
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        snprintf(folder, sizeof folder, ".");
    else
        slash[slash == folder ? 1 : 0] = '\0';
    return CD_PASS(access(folder, W_OK | X_OK) == 0 ? CDDP_OK : refuse(path, errno, err));
}

cddp_status cd_output_check_input(const char *path, const char *input, cddp_error *err)
{
    struct stat there, read;
    if (stat(path, &there) != 0 || stat(input, &read) != 0 || !S_ISREG(there.st_mode))
        return CDDP_OK;
    if (there.st_dev != read.st_dev || there.st_ino != read.st_ino) return CDDP_OK;
    return cd_fail(err, CDDP_E_ARG, "'%s' is read: what is written there would replace it", path);
}

/* 0, or the errno of what went wrong; so do the others. */
static int fill(FILE *file, const cd_text *text)
{
    const bool written = fwrite(cd_text_get(text), 1, text->length, file) == text->length;
    int problem = written ? 0 : errno;
    if (fclose(file) != 0 && problem == 0) problem = errno;
    return problem;
}

/* A FIFO that nobody reads is an error at once: opening it would wait for a reader. */
static int write_in_place(const char *path, const cd_text *text)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);
    FILE *file = fd >= 0 && fcntl(fd, F_SETFL, 0) == 0 ? fdopen(fd, "wb") : NULL;
    if (file != NULL) return fill(file, text);
    const int problem = errno;
    if (fd >= 0) close(fd);
    return problem;
}

/* there: what has the name now; NULL: nothing. */
static int write_beside(const char *path, const struct stat *there, const cd_text *text)
{
    char beside[PATH_BYTES];
    if (snprintf(beside, sizeof beside, "%s.new", path) >= (int)sizeof beside) return ENAMETOOLONG;
    FILE *file = fopen(beside, "wb");
    if (file == NULL) return errno;
    int problem = fill(file, text);
    if (problem == 0 && there != NULL && chmod(beside, there->st_mode & 07777) != 0)
        problem = errno;
    if (problem == 0 && rename(beside, path) != 0) problem = errno;
    if (problem != 0) remove(beside);
    return problem;
}

cddp_status cd_output_write(const char *path, const cd_text *text, cddp_error *err)
{
    struct stat there;
    if (text->failed) return cd_fail_memory(err, "what belongs into '%s'", path);
    const bool is_there = lstat(path, &there) == 0, is_plain = !is_there || S_ISREG(there.st_mode);
    int problem =
        is_plain ? write_beside(path, is_there ? &there : NULL, text) : write_in_place(path, text);
    /* A file that may be written in a folder where nothing may be made. */
    if (is_plain && is_there && (problem == EACCES || problem == EROFS))
        problem = write_in_place(path, text);
    return CD_PASS(problem == 0 ? CDDP_OK : refuse(path, problem, err));
}
