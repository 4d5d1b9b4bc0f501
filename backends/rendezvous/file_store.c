/* SPDX-License-Identifier: Apache-2.0 */
/* A rendezvous in a shared directory: one file per key. A value is written to another file and
** renamed, so that a reader sees a whole value or none. A lock file guards read-modify-write. In
** file names each byte of a key is hex-coded unless it is alphanumeric, '-' or '_'.
**
** Limitation: readers poll, at first every millisecond, later every ten milliseconds.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/rendezvous/client.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/os_shortage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct file_store {
    cddp_rendezvous table;
    const cddp_allocator *allocator;
    char directory[1024];
    char prefix[128];
    uint64_t generation, timeout_ns;
    uint32_t writes; /* makes the names of half-written files unique within the process */
} file_store;

static cddp_status path_of(const file_store *s, const char *key, char *path, size_t path_bytes,
                           cddp_error *err)
{
    int head = snprintf(path, path_bytes, "%s/g%" PRIx64 "-", s->directory, s->generation);
    size_t used = head < 0 ? path_bytes : (size_t)head;
    for (int part = 0; part < 2; part++) {
        for (const char *c = part == 0 ? s->prefix : key; *c != '\0' && used + 4 < path_bytes;
             c++) {
            bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                         (*c >= '0' && *c <= '9') || *c == '-' || *c == '_';
            int n = snprintf(path + used, path_bytes - used, plain ? "%c" : "%%%02x",
                             (unsigned char)*c);
            used += n < 0 ? path_bytes : (size_t)n;
        }
    }
    if (used + 32 >= path_bytes)
        return cd_fail(err, CDDP_E_LIMIT, "rendezvous key '%s%s' is too long for a file name",
                       s->prefix, key);
    return CDDP_OK;
}

static cddp_status file_set(void *self, const char *key, const void *value, size_t value_bytes,
                            cddp_error *err)
{
    file_store *s = self;
    char path[1600], aside[1700];
    CD_TRY(path_of(s, key, path, sizeof path, err));
    snprintf(aside, sizeof aside, "%s.%" PRIu32 ".%" PRIu32 ".new", path, cd_os_process_id(),
             s->writes++);
    int fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return cd_fail(err, cd_errno_status(errno, CDDP_E_IO),
                       "cannot write rendezvous file '%s': %s", aside, strerror(errno));
    cddp_status status = cd_os_write_all(fd, value, value_bytes, err);
    close(fd);
    if (status == CDDP_OK && rename(aside, path) != 0)
        status = cd_fail(err, cd_errno_status(errno, CDDP_E_IO),
                         "cannot rename rendezvous file '%s': %s", aside, strerror(errno));
    if (status != CDDP_OK) unlink(aside);
    return status;
}

/* *found false when the key is absent. */
static cddp_status file_read(const char *path, void *value, size_t *value_bytes, bool *found,
                             cddp_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *found = fd >= 0;
    if (fd < 0 && errno == ENOENT) return CDDP_OK;
    if (fd < 0)
        return cd_fail(err, cd_errno_status(errno, CDDP_E_IO),
                       "cannot read rendezvous file '%s': %s", path, strerror(errno));
    size_t used = 0;
    ssize_t n = 1;
    while (used < *value_bytes && (n = read(fd, (char *)value + used, *value_bytes - used)) > 0)
        used += (size_t)n;
    char more;
    bool too_long = n > 0 && read(fd, &more, 1) == 1;
    close(fd);
    if (n < 0)
        return cd_fail(err, cd_errno_status(errno, CDDP_E_IO),
                       "cannot read rendezvous file '%s': %s", path, strerror(errno));
    if (too_long)
        return cd_fail(err, CDDP_E_LIMIT, "rendezvous file '%s' is longer than %zu bytes", path,
                       *value_bytes);
    *value_bytes = used;
    return CDDP_OK;
}

static cddp_status file_get(void *self, const char *key, uint64_t timeout_ns, void *value,
                            size_t *value_bytes, cddp_error *err)
{
    file_store *s = self;
    char path[1600];
    CD_TRY(path_of(s, key, path, sizeof path, err));
    if (timeout_ns == 0) timeout_ns = s->timeout_ns;
    uint64_t start = cd_os_now_ns();
    for (uint64_t pause = 1000000;; pause = pause < 10000000 ? pause * 2 : pause) {
        size_t bytes = *value_bytes;
        bool found;
        CD_TRY(file_read(path, value, &bytes, &found, err));
        if (found) {
            *value_bytes = bytes;
            return CDDP_OK;
        }
        if (cd_os_now_ns() - start > timeout_ns)
            return cd_fail(err, CDDP_E_TIMEOUT,
                           "rendezvous key '%s%s' did not appear within %" PRIu64 " ms", s->prefix,
                           key, timeout_ns / 1000000);
        cd_os_sleep_ns(pause);
    }
}

static cddp_status lock_begin(const file_store *s, int *fd, cddp_error *err)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/.lock", s->directory);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (*fd < 0 || fcntl(*fd, F_SETLKW, &lock) != 0) {
        int reason = errno;
        if (*fd >= 0) close(*fd);
        return cd_fail(err, cd_errno_status(reason, CDDP_E_IO),
                       "cannot lock rendezvous directory '%s': %s", s->directory, strerror(reason));
    }
    return CDDP_OK;
}

static cddp_status file_compare_and_set(void *self, const char *key, const char *expected,
                                        const char *desired, bool *swapped, cddp_error *err)
{
    file_store *s = self;
    char path[1600], value[1024];
    size_t bytes = sizeof value;
    bool found = false, equal = false;
    int lock = -1;
    cddp_status status = CDDP_OK;
    CD_TRY(path_of(s, key, path, sizeof path, err));
    CD_TRY(lock_begin(s, &lock, err));
    CD_TRY_OUT(file_read(path, value, &bytes, &found, err));
    equal = expected == NULL
                ? !found
                : found && strlen(expected) == bytes && memcmp(expected, value, bytes) == 0;
    if (equal) CD_TRY_OUT(file_set(s, key, desired, strlen(desired), err));
    *swapped = equal;
out:
    close(lock); /* releases the lock */
    return status;
}

static cddp_status file_add(void *self, const char *key, int64_t amount, int64_t *sum,
                            cddp_error *err)
{
    file_store *s = self;
    char path[1600], text[64] = "";
    size_t bytes = sizeof text - 1;
    bool found = false;
    int lock = -1;
    cddp_status status = CDDP_OK;
    CD_TRY(path_of(s, key, path, sizeof path, err));
    CD_TRY(lock_begin(s, &lock, err));
    CD_TRY_OUT(file_read(path, text, &bytes, &found, err));
    text[found ? bytes : 0] = '\0';
    char *end = NULL;
    int64_t old = found ? strtoll(text, &end, 10) : 0;
    if (found && (bytes == 0 || end != text + bytes)) {
        status = cd_fail(err, CDDP_E_MISMATCH, "rendezvous key '%s' is not a number", key);
        goto out;
    }
    int64_t total = (int64_t)((uint64_t)old + (uint64_t)amount);
    snprintf(text, sizeof text, "%" PRId64, total);
    CD_TRY_OUT(file_set(s, key, text, strlen(text), err));
    *sum = total;
out:
    close(lock);
    return status;
}

static cddp_status file_remove(void *self, const char *key, cddp_error *err)
{
    file_store *s = self;
    char path[1600];
    CD_TRY(path_of(s, key, path, sizeof path, err));
    if (unlink(path) != 0 && errno != ENOENT)
        return cd_fail(err, CDDP_E_IO, "cannot remove rendezvous file '%s': %s", path,
                       strerror(errno));
    return CDDP_OK;
}

cddp_status cd_file_store_open(const cddp_rendezvous_options *o, const char *directory,
                               cddp_rendezvous **rendezvous, cddp_error *err)
{
    if (directory[0] != '/')
        return cd_fail(err, CDDP_E_CONFIG, "rendezvous 'file://%s' needs an absolute directory",
                       directory);
    if (strlen(directory) >= 1000)
        return cd_fail(err, CDDP_E_LIMIT, "rendezvous directory '%s' is too long", directory);
    if (mkdir(directory, 0700) != 0 && errno != EEXIST)
        return cd_fail(err, CDDP_E_IO, "cannot make rendezvous directory '%s': %s", directory,
                       strerror(errno));
    file_store *s = cd_allocate_zero(o->allocator, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "a rendezvous store");
    s->allocator = o->allocator;
    s->generation = o->generation;
    s->timeout_ns = o->timeout_ns != 0 ? o->timeout_ns : UINT64_C(30000000000);
    snprintf(s->directory, sizeof s->directory, "%s", directory);
    snprintf(s->prefix, sizeof s->prefix, "%s", o->prefix != NULL ? o->prefix : "");
    s->table = (cddp_rendezvous){.size = sizeof s->table,
                                 .self = s,
                                 .set = file_set,
                                 .get = file_get,
                                 .compare_and_set = file_compare_and_set,
                                 .add = file_add,
                                 .remove = file_remove,
                                 .timeout_ns = s->timeout_ns,
                                 .bind_host = "127.0.0.1"};
    *rendezvous = &s->table;
    return CDDP_OK;
}

void cd_file_store_close(cddp_rendezvous *rendezvous)
{
    file_store *s = rendezvous->self;
    cd_release(s->allocator, s, sizeof *s);
}
