/* SPDX-License-Identifier: Apache-2.0 */
/* An append-only mapped file that grows in steps, each reserved on the disk before it is written.
**
** A mapped page without a block behind it would end the process with SIGBUS when the disk is full,
** so a step is reserved (posix_fallocate) first. The first page and the newest step are mapped.
**
** Lifetime   open → take… → close.
** Threads    one at a time.
** Errors     a step that cannot be reserved is an error; what was taken before stays valid.
*/
#pragma once
#include "cddp/status.h"

#define CD_SHARD_STEP_FIRST (UINT64_C(64) << 10)
#define CD_SHARD_STEP_MAX (UINT64_C(8) << 20)

typedef struct cd_shard_file {
    int fd;
    void *head;                            /* the first page, CDDP_SHARD_HEADER_BYTES */
    char *step;                            /* NULL: none mapped yet */
    uint64_t step_begin, step_bytes, used; /* bytes of the file; used: of the step */
} cd_shard_file;

/* Creates the file; one that exists is unlinked, so that whoever still maps it keeps it. */
cddp_status cd_shard_file_open(cd_shard_file *file, const char *path,
                               cddp_error *err) CDDP_MUST_CHECK;
/* The next byte_count bytes of the file, zeroed; they lie in one step. */
cddp_status cd_shard_file_take(cd_shard_file *file, size_t byte_count, void **bytes,
                               cddp_error *err) CDDP_MUST_CHECK;
/* Cuts what was reserved and not taken. */
void cd_shard_file_close(cd_shard_file *file);
/* Lets go of the file in a child process, without changing it. */
void cd_shard_file_forget(cd_shard_file *file);
