/* SPDX-License-Identifier: Apache-2.0 */
/* One event per comparison; it has text only where something is wrong. */
#include "core/oracle/emit.h"

#include "core/base/format.h"
#include "core/trace/tracer.h"

#include <stdarg.h>
#include <stdio.h>

void cd_comparison_emit(const cd_comparison_place *report, const cd_comparison *comparison)
{
    const cd_comparison *c = comparison;
    char text[256];
    const char *words = c->bad > 0 ? c->words : NULL;
    if (words != NULL && report->variable < 0) {
        snprintf(text, sizeof text, "%s: %s", report->name, c->words);
        words = text;
    }
    CD_EMIT(report->tracer, compare, words, .link = report->link, .param = report->variable,
            .element = c->element, .expected = cd_f64_bits(c->expected),
            .actual = cd_f64_bits(c->actual), .ulps = (int64_t)c->ulps,
            .bound = cd_f64_bits(c->bound), .bad = (int64_t)c->bad, .shape = c->shape,
            .exact = c->exact, .ratio = cd_f64_bits(c->ratio));
}

void cd_text_format(char *text, size_t text_bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    cd_vformat(text, text_bytes, format, args);
    va_end(args);
}
