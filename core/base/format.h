/* SPDX-License-Identifier: Apache-2.0 */
/* snprintf in the "C" locale: a host program may have called setlocale, and a number in an error or
** a report has a point all the same.
**
** Threads    any; the locale of the calling thread is changed during the call only.
** Errors     those of snprintf. Where the C library has no "C" locale to give, the host's is used.
*/
#pragma once
#include "cddp/status.h"

#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Both return what snprintf does: the length of the whole text, also where it was cut. */
int cd_real_format(char *text, size_t text_bytes, const char *format, ...) CDDP_PRINTF(3, 4);
int cd_vformat(char *text, size_t text_bytes, const char *format, va_list args) CDDP_PRINTF(3, 0);

/* A ratio, as "%s" of a message: with as many digits as it takes not to read 1, where it is not. */
typedef struct cd_ratio_text {
    char text[32];
} cd_ratio_text;
cd_ratio_text cd_ratio_print(double ratio);

#ifdef __cplusplus
}
#endif
