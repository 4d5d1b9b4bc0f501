/* SPDX-License-Identifier: Apache-2.0 */
/* Making and passing on errors.
**
** The function that detects an error writes the message, with the values. A function that passes it
** on adds a frame: with CD_TRY or CD_TRY_OUT, the only macros of the tree that hide a jump, or with
** CD_PASS, which has none.
*/
#pragma once
#include "cddp/status.h"

/* Creates an error and returns its status: `return cd_fail(err, CDDP_E_ARG, "…", …);` */
#define cd_fail(err, status, ...) \
    cd_error_fail((err), (status), __FILE__, __func__, __LINE__, __VA_ARGS__)

cddp_status cd_error_fail(cddp_error *err, cddp_status status, const char *file,
                          const char *function, int line, const char *format, ...)
    CDDP_PRINTF(6, 7);
/* The only wording of exhausted memory: "no memory for …" with CDDP_E_NOMEM. The rest of the
** message is what was asked for, and how much: `return cd_fail_memory(err, "%zu buckets",
** count);` */
#define cd_fail_memory(err, ...) \
    cd_error_fail_memory((err), __FILE__, __func__, __LINE__, __VA_ARGS__)
cddp_status cd_error_fail_memory(cddp_error *err, const char *file, const char *function, int line,
                                 const char *format, ...) CDDP_PRINTF(5, 6);
/* The status of a system call that failed with this errno: no memory, process or descriptor left,
** or no room for a file, is CDDP_E_NOMEM, all else CDDP_E_IO. */
cddp_status cd_error_of_errno(int number);
/* Adds a frame to an error that is passed on. */
void cd_error_frame(cddp_error *err, const char *file, const char *function, int line);
void cd_error_reset(cddp_error *err); /* accepts NULL */
/* "message\n  at function (file:line)\n…"; always terminated. */
void cd_error_print(const cddp_error *err, char *text, size_t text_bytes);

/* Returns from the function when call fails. Expects a parameter named err. */
#define CD_TRY(call)                                           \
    do {                                                       \
        cddp_status cd_try_status = (call);                    \
        if (cd_try_status != CDDP_OK) {                        \
            cd_error_frame(err, __FILE__, __func__, __LINE__); \
            return cd_try_status;                              \
        }                                                      \
    } while (0)

/* Sets `status` and goes to `out` when call fails. Expects locals named status and err. */
#define CD_TRY_OUT(call)                                       \
    do {                                                       \
        status = (call);                                       \
        if (status != CDDP_OK) {                               \
            cd_error_frame(err, __FILE__, __func__, __LINE__); \
            goto out;                                          \
        }                                                      \
    } while (0)

/* A tail call with its frame: `return CD_PASS(call);` has the value of call, and adds a frame when
** that is no success. Expects a parameter named err. */
#define CD_PASS(call) cd_error_pass((call), err, __FILE__, __func__, __LINE__)
static inline cddp_status cd_error_pass(cddp_status status, cddp_error *err, const char *file,
                                        const char *function, int line)
{
    if (status != CDDP_OK) cd_error_frame(err, file, function, line);
    return status;
}
