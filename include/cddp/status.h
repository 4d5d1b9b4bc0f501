/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes and the error object that every fallible cddp function reports through.
**
** Lifetime   a cddp_error is a plain value owned by the caller; nothing in it is allocated.
** Threads    an error object belongs to one caller at a time. It is deliberately not thread-local:
**            in the simulator many ranks take turns on one thread.
** Errors     out-parameters of any cddp function are written only when it returns CDDP_OK.
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One row per status: the enum constant, and its text for readers. */
#define CDDP_STATUS_LIST(X)                       \
    X(CDDP_OK, "ok")                              \
    X(CDDP_E_ARG, "invalid argument")             \
    X(CDDP_E_CONFIG, "invalid configuration")     \
    X(CDDP_E_STATE, "called at the wrong moment") \
    X(CDDP_E_NOMEM, "out of memory")              \
    X(CDDP_E_IO, "input/output error")            \
    X(CDDP_E_BACKEND, "backend failure")          \
    X(CDDP_E_TIMEOUT, "timed out")                \
    X(CDDP_E_UNSUPPORTED, "not supported")        \
    X(CDDP_E_MISMATCH, "ranks disagree")          \
    X(CDDP_E_CORRUPT, "corrupt data")             \
    X(CDDP_E_LIMIT, "limit exceeded")             \
    X(CDDP_E_ABORTED, "aborted")

typedef enum cddp_status {
#define CDDP_STATUS_ENUM(name, words) name,
    CDDP_STATUS_LIST(CDDP_STATUS_ENUM)
#undef CDDP_STATUS_ENUM
        CDDP_STATUS_COUNT
} cddp_status;

#define CDDP_ERROR_FRAMES_MAX 8
#define CDDP_ERROR_MESSAGE_BYTES 512

typedef struct cddp_error_frame {
    const char *file;     /* static storage */
    const char *function; /* static storage */
    int line;
} cddp_error_frame;

/* Filled by whoever decides which error it is; each caller that passes it on adds a frame. */
typedef struct cddp_error {
    cddp_status status;
    uint32_t frame_count;
    cddp_error_frame frames[CDDP_ERROR_FRAMES_MAX];
    char message[CDDP_ERROR_MESSAGE_BYTES];
} cddp_error;

#define CDDP_ERROR_INIT                \
    {                                  \
        CDDP_OK, 0, {{0, 0, 0}}, { 0 } \
    }

#if defined(__GNUC__)
#define CDDP_MUST_CHECK __attribute__((warn_unused_result))
#define CDDP_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define CDDP_API __attribute__((visibility("default")))
#else
#define CDDP_MUST_CHECK
#define CDDP_PRINTF(fmt, first)
#define CDDP_API
#endif

/* The text of a status; never NULL. Returns borrowed static text. */
CDDP_API const char *cddp_status_text(cddp_status status);

/* For implementers of ports (backends, hooks, checks): fill *err (which may be NULL) and return
** status, so that a failing branch reads `return cddp_error_set(err, CDDP_E_IO, "…", …);`. */
CDDP_API cddp_status cddp_error_set(cddp_error *err, cddp_status status, const char *format, ...)
    CDDP_PRINTF(3, 4) CDDP_MUST_CHECK;

#ifdef __cplusplus
}
#endif
