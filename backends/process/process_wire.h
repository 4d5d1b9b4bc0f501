/* SPDX-License-Identifier: Apache-2.0 */
/* The messages from a rank to its launcher, over pipes or sockets: records on the first, lines on
** the other two.
**
** A record is a header and its bytes; a result is one fixed record in which error frames carry
** their texts, because a pointer of the child means nothing here when a module was loaded after the
** fork.
**
** Lifetime   an inbox is initialised, fed and finished; it grows with the largest record.
** Threads    one thread.
*/
#pragma once
#include "cddp/world.h"
#include "core/base/arena.h"

#define CD_PROCESS_RECORD_BYTES_MAX (UINT32_C(1) << 30)

typedef enum cd_process_record_kind {
    CD_PROCESS_MESSAGE = 1,
    CD_PROCESS_RESULT = 2,
    CD_PROCESS_NOTE = 3
} cd_process_record_kind;

/* Writes one record; blocks while the pipe is full. */
cddp_status cd_process_record_write(int fd, cd_process_record_kind kind, const void *bytes,
                                    size_t byte_count, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_process_result_write(int fd, cddp_status status, const cddp_error *error,
                                    cddp_error *err) CDDP_MUST_CHECK;

/* Bytes that arrived and are not a whole record yet. */
typedef struct cd_process_inbox {
    const cddp_allocator *allocator;
    unsigned char *bytes; /* (used) of capacity */
    size_t used, capacity;
    size_t taken; /* of used: records already handed out */
} cd_process_inbox;

typedef struct cd_process_record {
    cd_process_record_kind kind;
    const void *bytes; /* (byte_count) borrowed until the next push */
    size_t byte_count;
} cd_process_record;

void cd_process_inbox_init(cd_process_inbox *inbox, const cddp_allocator *allocator);
void cd_process_inbox_fini(cd_process_inbox *inbox);
cddp_status cd_process_inbox_push(cd_process_inbox *inbox, const void *bytes, size_t byte_count,
                                  cddp_error *err) CDDP_MUST_CHECK;
/* The next whole record, if there is one. A header that no rank of ours writes is
** CDDP_E_CORRUPT. */
cddp_status cd_process_inbox_take(cd_process_inbox *inbox, cd_process_record *record, bool *found,
                                  cddp_error *err) CDDP_MUST_CHECK;
/* Fills status and error of result; texts come from the arena. */
cddp_status cd_process_result_read(const cd_process_record *record, cd_arena *texts,
                                   cddp_rank_result *result, cddp_error *err) CDDP_MUST_CHECK;

/* Cuts a stream into lines. A line longer than the buffer is handed over in pieces. */
typedef struct cd_process_lines {
    char text[2048];
    size_t used;
} cd_process_lines;
typedef void (*cd_process_line_fn)(void *context, const char *line, size_t length);
void cd_process_lines_push(cd_process_lines *lines, const char *text, size_t length,
                           cd_process_line_fn line, void *context);
/* an unfinished line */
void cd_process_lines_end(cd_process_lines *lines, cd_process_line_fn line, void *context);
