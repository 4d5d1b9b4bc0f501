/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "record/shard_file.h"

#include "cddp/shard.h"
#include "core/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static cddp_status fail_with(cddp_error *err, const char *what, const char *path, int number)
{
    return cd_fail(err, CDDP_E_IO, "%s %s: %s", what, path, strerror(number));
}

/* Beyond the limit the kernel would send SIGXFSZ, which ends the process. */
static int check_limit(uint64_t end)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
    return end > limit.rlim_cur ? EFBIG : 0;
}

static int reserve(int fd, uint64_t begin, uint64_t byte_count)
{
    int number = check_limit(begin + byte_count);
    if (number != 0) return number;
    do number = posix_fallocate(fd, (off_t)begin, (off_t)byte_count);
    while (number == EINTR);
    return number;
}

static void *map(int fd, uint64_t begin, uint64_t byte_count)
{
    void *bytes = mmap(NULL, byte_count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)begin);
    return bytes != MAP_FAILED ? bytes : NULL;
}

/* What is no shard is somebody's file. */
static cddp_status make_room(const char *path, cddp_error *err)
{
    uint64_t magic = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT) return CDDP_OK;
        return fail_with(err, "cannot replace", path, errno);
    }
    const ssize_t count = read(fd, &magic, sizeof magic);
    close(fd);
    if (count != 0 && magic != 0 && (count != sizeof magic || magic != CDDP_SHARD_MAGIC))
        return cd_fail(err, CDDP_E_ARG, "%s exists and is no shard; it is not overwritten", path);
    if (unlink(path) != 0 && errno != ENOENT) return fail_with(err, "cannot replace", path, errno);
    return CDDP_OK;
}

cddp_status cd_shard_file_open(cd_shard_file *file, const char *path, cddp_error *err)
{
    CD_TRY(make_room(path, err));
    *file = (cd_shard_file){.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666),
                            .step_begin = CDDP_SHARD_HEADER_BYTES};
    if (file->fd < 0) return fail_with(err, "cannot create", path, errno);
    int number = reserve(file->fd, 0, CDDP_SHARD_HEADER_BYTES);
    if (number == 0 && (file->head = map(file->fd, 0, CDDP_SHARD_HEADER_BYTES)) == NULL)
        number = errno;
    if (number == 0) return CDDP_OK;
    close(file->fd);
    unlink(path);
    return fail_with(err, "cannot write", path, number);
}

static int take_step(cd_shard_file *file, uint64_t begin, uint64_t byte_count)
{
    const int number = reserve(file->fd, begin, byte_count);
    if (number != 0) return number;
    void *step = map(file->fd, begin, byte_count);
    if (step == NULL) return errno;
    if (file->step != NULL) munmap(file->step, file->step_bytes);
    file->step = step;
    file->step_begin = begin;
    file->step_bytes = byte_count;
    file->used = 0;
    return 0;
}

/* Steps double up to a limit; when the disk has no room for the next one, the smallest will do. */
static cddp_status grow(cd_shard_file *file, cddp_error *err)
{
    const uint64_t begin = file->step_begin + file->step_bytes;
    uint64_t wanted = file->step_bytes * 2;
    if (wanted < CD_SHARD_STEP_FIRST) wanted = CD_SHARD_STEP_FIRST;
    if (wanted > CD_SHARD_STEP_MAX) wanted = CD_SHARD_STEP_MAX;
    int number = take_step(file, begin, wanted);
    if (number != 0 && wanted > CD_SHARD_STEP_FIRST)
        number = take_step(file, begin, CD_SHARD_STEP_FIRST);
    if (number == 0) return CDDP_OK;
    return cd_fail(err, CDDP_E_IO, "cannot extend the file beyond %llu bytes: %s",
                   (unsigned long long)begin, strerror(number));
}

cddp_status cd_shard_file_take(cd_shard_file *file, size_t byte_count, void **bytes,
                               cddp_error *err)
{
    if (file->used + byte_count > file->step_bytes) CD_TRY(grow(file, err));
    *bytes = file->step + file->used;
    file->used += byte_count;
    return CDDP_OK;
}

void cd_shard_file_forget(cd_shard_file *file)
{
    if (file->head != NULL) munmap(file->head, CDDP_SHARD_HEADER_BYTES);
    if (file->step != NULL) munmap(file->step, file->step_bytes);
    if (file->fd >= 0) close(file->fd);
    *file = (cd_shard_file){.fd = -1};
}

void cd_shard_file_close(cd_shard_file *file)
{
    /* A failure leaves zeros behind the last event, which end the shard as well. */
    const int cut = ftruncate(file->fd, (off_t)(file->step_begin + file->used));
    (void)cut;
    cd_shard_file_forget(file);
}
