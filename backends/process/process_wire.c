/* SPDX-License-Identifier: Apache-2.0 */
/* Records and lines; nothing here knows of processes. */
#include "backends/process/process_wire.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <stdio.h>
#include <string.h>

typedef struct record_header {
    uint32_t kind;
    uint32_t byte_count;
} record_header;

typedef struct result_record {
    int32_t status;
    uint32_t frame_count;
    char message[CDDP_ERROR_MESSAGE_BYTES];
    struct {
        int32_t line;
        char file[108];
        char function[80];
    } frames[CDDP_ERROR_FRAMES_MAX];
} result_record;

cddp_status cd_process_record_write(int fd, cd_process_record_kind kind, const void *bytes,
                                    size_t byte_count, cddp_error *err)
{
    if (byte_count > CD_PROCESS_RECORD_BYTES_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "a rank may send at most %u bytes at once, not %zu",
                       CD_PROCESS_RECORD_BYTES_MAX, byte_count);
    record_header header = {(uint32_t)kind, (uint32_t)byte_count};
    CD_TRY(cd_os_write_all(fd, &header, sizeof header, err));
    CD_TRY(cd_os_write_all(fd, bytes, byte_count, err));
    return CDDP_OK;
}

cddp_status cd_process_result_write(int fd, cddp_status status, const cddp_error *error,
                                    cddp_error *err)
{
    result_record r;
    memset(&r, 0, sizeof r); /* padding travels too */
    r.status = (int32_t)status;
    snprintf(r.message, sizeof r.message, "%s", error->message);
    r.frame_count =
        error->frame_count < CDDP_ERROR_FRAMES_MAX ? error->frame_count : CDDP_ERROR_FRAMES_MAX;
    for (uint32_t i = 0; i < r.frame_count; i++) {
        const cddp_error_frame *f = &error->frames[i];
        r.frames[i].line = f->line;
        snprintf(r.frames[i].file, sizeof r.frames[i].file, "%s", f->file != NULL ? f->file : "?");
        snprintf(r.frames[i].function, sizeof r.frames[i].function, "%s",
                 f->function != NULL ? f->function : "?");
    }
    CD_TRY(cd_process_record_write(fd, CD_PROCESS_RESULT, &r, sizeof r, err));
    return CDDP_OK;
}

void cd_process_inbox_init(cd_process_inbox *inbox, const cddp_allocator *allocator)
{
    *inbox = (cd_process_inbox){.allocator = allocator};
}

void cd_process_inbox_fini(cd_process_inbox *inbox)
{
    cd_release(inbox->allocator, inbox->bytes, inbox->capacity);
    cd_process_inbox_init(inbox, inbox->allocator);
}

cddp_status cd_process_inbox_push(cd_process_inbox *inbox, const void *bytes, size_t byte_count,
                                  cddp_error *err)
{
    if (byte_count == 0) return CDDP_OK;
    if (inbox->taken > 0)
        memmove(inbox->bytes, inbox->bytes + inbox->taken, inbox->used - inbox->taken);
    inbox->used -= inbox->taken;
    inbox->taken = 0;
    size_t needed = inbox->used + byte_count;
    if (!cd_vec_grow(inbox->allocator, (void **)&inbox->bytes, &inbox->capacity, needed, 1))
        return cd_fail_memory(err, "%zu bytes that a rank sent", needed);
    memcpy(inbox->bytes + inbox->used, bytes, byte_count);
    inbox->used = needed;
    return CDDP_OK;
}

cddp_status cd_process_inbox_take(cd_process_inbox *inbox, cd_process_record *record, bool *found,
                                  cddp_error *err)
{
    size_t waiting = inbox->used - inbox->taken;
    record_header header;
    *found = false;
    if (waiting < sizeof header) return CDDP_OK;
    memcpy(&header, inbox->bytes + inbox->taken, sizeof header);
    bool known = header.kind == CD_PROCESS_MESSAGE || header.kind == CD_PROCESS_RESULT ||
                 header.kind == CD_PROCESS_NOTE;
    if (!known || header.byte_count > CD_PROCESS_RECORD_BYTES_MAX)
        return cd_fail(err, CDDP_E_CORRUPT, "a rank wrote a record of kind %u and %u bytes",
                       header.kind, header.byte_count);
    if (waiting - sizeof header < header.byte_count) return CDDP_OK;
    *record = (cd_process_record){(cd_process_record_kind)header.kind,
                                  inbox->bytes + inbox->taken + sizeof header, header.byte_count};
    inbox->taken += sizeof header + header.byte_count;
    *found = true;
    return CDDP_OK;
}

/* Texts of a record end where their arrays end, whatever a broken child wrote. */
static const char *copy_text(cd_arena *texts, const char *text, size_t bytes)
{
    const char *end = memchr(text, '\0', bytes);
    return cd_arena_printf(texts, "%.*s", (int)(end != NULL ? end - text : (ptrdiff_t)bytes), text);
}

cddp_status cd_process_result_read(const cd_process_record *record, cd_arena *texts,
                                   cddp_rank_result *result, cddp_error *err)
{
    result_record r;
    if (record->byte_count != sizeof r)
        return cd_fail(err, CDDP_E_CORRUPT, "a rank's result has %zu bytes instead of %zu",
                       record->byte_count, sizeof r);
    memcpy(&r, record->bytes, sizeof r);
    if (r.status < 0 || r.status >= CDDP_STATUS_COUNT || r.frame_count > CDDP_ERROR_FRAMES_MAX)
        return cd_fail(err, CDDP_E_CORRUPT, "a rank's result has status %d and %u frames", r.status,
                       r.frame_count);
    cddp_error error = {.status = (cddp_status)r.status, .frame_count = r.frame_count};
    snprintf(error.message, sizeof error.message, "%.*s", (int)sizeof r.message - 1, r.message);
    for (uint32_t i = 0; i < r.frame_count; i++) {
        const char *file = copy_text(texts, r.frames[i].file, sizeof r.frames[i].file);
        const char *function = copy_text(texts, r.frames[i].function, sizeof r.frames[i].function);
        if (file == NULL || function == NULL) return cd_fail_memory(err, "a rank's error");
        error.frames[i] = (cddp_error_frame){file, function, r.frames[i].line};
    }
    result->status = error.status;
    result->error = error;
    return CDDP_OK;
}

void cd_process_lines_push(cd_process_lines *lines, const char *text, size_t length,
                           cd_process_line_fn line, void *context)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] != '\n') lines->text[lines->used++] = text[i];
        if (text[i] == '\n' || lines->used == sizeof lines->text) {
            line(context, lines->text, lines->used);
            lines->used = 0;
        }
    }
}

void cd_process_lines_end(cd_process_lines *lines, cd_process_line_fn line, void *context)
{
    if (lines->used > 0) line(context, lines->text, lines->used);
    lines->used = 0;
}
