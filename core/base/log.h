/* SPDX-License-Identifier: Apache-2.0 */
/* Text for a developer at a terminal. Not the trace: nothing reads the log.
**
** A logger is a value in its user's context. Without a write function it is silent. Columns are
** fixed: virtual time, rank, step, component, level, message (docs/formats/log.md). Never
** allocates.
*/
#pragma once
#include "cddp/status.h"

typedef enum cd_log_level { CD_LOG_ERROR, CD_LOG_WARN, CD_LOG_INFO, CD_LOG_DEBUG } cd_log_level;

typedef struct cd_log {
    void (*write)(void *context, const char *line, size_t length);
    void *context;
    cd_log_level level; /* messages above it are dropped */
    const char *component;
} cd_log;

typedef struct cd_log_place {
    uint64_t time_ns;
    int64_t rank; /* -1: none */
    int64_t step; /* -1: none */
} cd_log_place;

void cd_log_write(const cd_log *log, cd_log_level level, cd_log_place place, const char *format,
                  ...) CDDP_PRINTF(4, 5);
/* "ddp:debug,sim:info" → the level of one component; false when the text is malformed. */
bool cd_log_parse(const char *spec, const char *component, cd_log_level *level);
