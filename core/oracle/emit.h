/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a comparison into the trace. It is separate from the arithmetic, whose headers name the
** same helpers. */
#pragma once
#include "cddp/trace.h"
#include "core/oracle/compare.h"

typedef struct cd_comparison_place {
    struct cddp_tracer *tracer; /* may be NULL */
    cd_oracle_link link;
    int32_t variable; /* or the buffer */
    const char *name; /* written in the text when variable is -1 */
} cd_comparison_place;
void cd_comparison_emit(const cd_comparison_place *report, const cd_comparison *comparison);
/* snprintf without its result. */
void cd_text_format(char *text, size_t text_bytes, const char *format, ...) CDDP_PRINTF(3, 4);
