/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a comparison into the trace. Apart from the arithmetic, whose headers name the same
** helpers. */
#pragma once
#include "cddp/trace.h"
#include "core/oracle/compare.h"

typedef struct cd_tell {
    struct cddp_tracer *tracer; /* may be NULL */
    cd_oracle_link link;
    int32_t variable; /* or the buffer */
    const char *name; /* said in the text when variable is -1 */
} cd_tell;
void cd_tell_comparison(const cd_tell *tell, const cd_comparison *comparison);
/* snprintf whose result nobody reads. */
void cd_tell_print(char *text, size_t text_bytes, const char *format, ...) CDDP_PRINTF(3, 4);
