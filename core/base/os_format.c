/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "core/base/format.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

int cd_vformat(char *text, size_t text_bytes, const char *format, va_list args)
{
    /* mostly so, and then nothing needs to be changed */
    if (strcmp(nl_langinfo(RADIXCHAR), ".") == 0) return vsnprintf(text, text_bytes, format, args);
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) return vsnprintf(text, text_bytes, format, args);
    const locale_t before = uselocale(plain);
    const int length = vsnprintf(text, text_bytes, format, args);
    uselocale(before);
    freelocale(plain);
    return length;
}

int cd_real_format(char *text, size_t text_bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int length = cd_vformat(text, text_bytes, format, args);
    va_end(args);
    return length;
}

cd_ratio_text cd_ratio_print(double ratio)
{
    cd_ratio_text t;
    const bool is_near_one = ratio > 0.9999 && ratio < 1.0001;
    cd_real_format(t.text, sizeof t.text, is_near_one ? "%.9g" : "%.6g", ratio);
    return t;
}
