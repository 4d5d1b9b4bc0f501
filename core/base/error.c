/* SPDX-License-Identifier: Apache-2.0 */
/* The error object: text of statuses, creation, frames, printing. Nothing here allocates. */
#include "core/base/error.h"
#include "core/base/format.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *cddp_status_text(cddp_status status)
{
    switch (status) {
#define STATUS_TEXT(name, words) \
    case name:                   \
        return words;
        CDDP_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    case CDDP_STATUS_COUNT:
        break;
    }
    return "unknown status";
}

void cd_error_reset(cddp_error *err)
{
    if (err == NULL) return;
    err->status = CDDP_OK;
    err->frame_count = 0;
    err->message[0] = '\0';
}

void cd_error_frame(cddp_error *err, const char *file, const char *function, int line)
{
    if (err == NULL || err->frame_count >= CDDP_ERROR_FRAMES_MAX) return;
    err->frames[err->frame_count++] = (cddp_error_frame){file, function, line};
}

static void fill(cddp_error *err, cddp_status status, const char *format, va_list args)
{
    /* The message may quote the error that it replaces, so it is formatted aside first. */
    char message[CDDP_ERROR_MESSAGE_BYTES];
    cd_vformat(message, sizeof message, format, args);
    err->status = status;
    err->frame_count = 0;
    memcpy(err->message, message, sizeof message);
}

cddp_status cd_error_fail(cddp_error *err, cddp_status status, const char *file,
                          const char *function, int line, const char *format, ...)
{
    if (err == NULL) return status;
    va_list args;
    va_start(args, format);
    fill(err, status, format, args);
    va_end(args);
    cd_error_frame(err, file, function, line);
    return status;
}

cddp_status cd_error_fail_memory(cddp_error *err, const char *file, const char *function, int line,
                                 const char *format, ...)
{
    char what[CDDP_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    cd_vformat(what, sizeof what, format, args);
    va_end(args);
    return cd_error_fail(err, CDDP_E_NOMEM, file, function, line, "no memory for %s", what);
}

cddp_status cd_error_of_errno(int number)
{
    const bool is_shortage = number == ENOMEM || number == EAGAIN || number == EMFILE ||
                             number == ENFILE || number == ENOSPC || number == EDQUOT ||
                             number == EFBIG;
    return is_shortage ? CDDP_E_NOMEM : CDDP_E_IO;
}

cddp_status cddp_error_set(cddp_error *err, cddp_status status, const char *format, ...)
{
    if (err == NULL) return status;
    va_list args;
    va_start(args, format);
    fill(err, status, format, args);
    va_end(args);
    return status;
}

void cd_error_print(const cddp_error *err, char *text, size_t text_bytes)
{
    if (text_bytes == 0) return;
    size_t used = 0;
    int n = snprintf(text, text_bytes, "%s",
                     err->message[0] ? err->message : cddp_status_text(err->status));
    used = n < 0 ? 0 : (size_t)n;
    for (uint32_t i = 0; i < err->frame_count && used < text_bytes; i++) {
        const cddp_error_frame *f = &err->frames[i];
        n = snprintf(text + used, text_bytes - used, "\n  at %s (%s:%d)", f->function, f->file,
                     f->line);
        used += n < 0 ? 0 : (size_t)n;
    }
}
