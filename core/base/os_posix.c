/* SPDX-License-Identifier: Apache-2.0 */
/* Clock, ids, writing and shared memory on POSIX. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "core/base/os.h"

#include "core/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#define NS_PER_S UINT64_C(1000000000)

uint64_t cd_os_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

void cd_os_sleep_ns(uint64_t duration_ns)
{
    struct timespec t = {(time_t)(duration_ns / NS_PER_S), (long)(duration_ns % NS_PER_S)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

void cd_os_sleep_punctually(void)
{
#if defined(__linux__)
    prctl(PR_SET_TIMERSLACK, 1UL);
#endif
}

uint32_t cd_os_process_id(void) { return (uint32_t)getpid(); }

/* msync writes nothing of memory that is no file's, and fails where there is none. */
bool cd_os_is_mapped(const void *bytes, size_t byte_count)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)bytes;
    const uintptr_t first = at - at % page;
    return msync((void *)first, (size_t)(at - first) + byte_count, MS_ASYNC) == 0;
}

uint32_t cd_os_core_count(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

cddp_status cd_os_random(void *bytes, size_t byte_count, cddp_error *err)
{
    if (getentropy(bytes, byte_count) == 0) return CDDP_OK;
    return cd_fail(err, CDDP_E_IO, "no random bytes: %s", strerror(errno));
}

const char *cd_os_signal_text(int signal_number)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {{SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
                 {SIGHUP, "SIGHUP"},   {SIGILL, "SIGILL"},   {SIGINT, "SIGINT"},
                 {SIGKILL, "SIGKILL"}, {SIGPIPE, "SIGPIPE"}, {SIGQUIT, "SIGQUIT"},
                 {SIGSEGV, "SIGSEGV"}, {SIGTERM, "SIGTERM"}, {SIGXCPU, "SIGXCPU"},
                 {SIGXFSZ, "SIGXFSZ"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].number == signal_number) return names[i].name;
    const char *text = strsignal(signal_number);
    return text != NULL ? text : "unknown signal";
}

bool cd_os_signal_is_from_outside(int signal_number)
{
    return signal_number == SIGKILL || signal_number == SIGTERM || signal_number == SIGINT ||
           signal_number == SIGHUP || signal_number == SIGXCPU;
}

uint64_t cd_os_file_bytes_max(void)
{
    struct rlimit limit;
    const bool is_known = getrlimit(RLIMIT_FSIZE, &limit) == 0;
    return is_known && limit.rlim_cur != RLIM_INFINITY ? (uint64_t)limit.rlim_cur : UINT64_MAX;
}

cddp_status cd_os_write_all(int fd, const void *bytes, size_t byte_count, cddp_error *err)
{
    const char *at = bytes;
    while (byte_count > 0) {
        ssize_t n = write(fd, at, byte_count);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            const bool is_full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
            return cd_fail(err, is_full ? CDDP_E_NOMEM : cd_error_of_errno(errno),
                           "cannot write: %s", strerror(errno));
        }
        at += n;
        byte_count -= (size_t)n;
    }
    return CDDP_OK;
}

bool cd_os_is_absent(const char *path) { return access(path, F_OK) != 0 && errno == ENOENT; }

static cddp_status refuse_to_open(const char *path, const struct stat *facts, cddp_error *err)
{
    if (S_ISDIR(facts->st_mode))
        return cd_fail(err, CDDP_E_IO, "cannot read '%s': %s", path, strerror(EISDIR));
    return cd_fail(err, CDDP_E_IO, "cannot read '%s': it is %s, not a file", path,
                   S_ISFIFO(facts->st_mode)   ? "a FIFO"
                   : S_ISSOCK(facts->st_mode) ? "a socket"
                                              : "a device");
}

cddp_status cd_os_open_regular(const char *path, FILE **file, cddp_error *err)
{
    struct stat facts;
    cddp_status status = CDDP_OK;
    /* without O_NONBLOCK a FIFO would wait for a writer */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return cd_fail(err, cd_error_of_errno(errno), "cannot read '%s': %s", path,
                       strerror(errno));
    if (fstat(fd, &facts) != 0)
        status = cd_fail(err, CDDP_E_IO, "cannot read '%s': %s", path, strerror(errno));
    else if (!S_ISREG(facts.st_mode))
        status = refuse_to_open(path, &facts, err);
    FILE *opened = status == CDDP_OK ? fdopen(fd, "rb") : NULL;
    if (status == CDDP_OK && opened == NULL)
        status =
            cd_fail(err, cd_error_of_errno(errno), "cannot read '%s': %s", path, strerror(errno));
    if (status == CDDP_OK)
        *file = opened;
    else
        close(fd);
    return status;
}

cddp_status cd_os_hold_standard_streams(cddp_error *err)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        while (fcntl(fd, F_GETFD) < 0)
            if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
                return cd_fail(err, CDDP_E_IO,
                               "a standard stream is closed, and /dev/null cannot be opened: %s",
                               strerror(errno));
    return CDDP_OK;
}

uint64_t cd_os_memory_limit(void)
{
    struct rlimit limit;
    const bool is_known = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return is_known ? (uint64_t)limit.rlim_cur : UINT64_MAX;
}

bool cd_os_is_locked(const char *path, int64_t offset)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool is_locked = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    close(fd);
    return is_locked;
}

cddp_status cd_os_shared_open(size_t byte_count, void **bytes, cddp_error *err)
{
    void *memory =
        mmap(NULL, byte_count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return cd_fail(err, CDDP_E_NOMEM, "no %zu bytes of shared memory: %s", byte_count,
                       strerror(errno));
    *bytes = memory;
    return CDDP_OK;
}

cddp_status cd_os_shared_file_open(const char *path, size_t byte_count, void **bytes,
                                   cddp_error *err)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return cd_fail(err, cd_error_of_errno(errno), "cannot open '%s': %s", path,
                       strerror(errno));
    const int code = posix_fallocate(fd, 0, (off_t)byte_count);
    void *memory =
        code == 0 ? mmap(NULL, byte_count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    const int why = code != 0 ? code : errno;
    close(fd);
    if (memory == MAP_FAILED)
        return cd_fail(err, CDDP_E_NOMEM, "no %zu bytes of shared memory in '%s': %s", byte_count,
                       path, strerror(why));
    *bytes = memory;
    return CDDP_OK;
}

void cd_os_shared_close(void *bytes, size_t byte_count)
{
    if (bytes != NULL) munmap(bytes, byte_count);
}
