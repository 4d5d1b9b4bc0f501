/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/unit_precision.h"

#include <string.h>

#define ROOT "(root)"

static bool read_dtype(const char *word, size_t length, cddp_dtype *dtype)
{
    static const struct {
        const char *word;
        cddp_dtype dtype;
    } words[] = {{"none", CDDP_DTYPE_COUNT},
                 {"f16", CDDP_F16},
                 {"bf16", CDDP_BF16},
                 {"f32", CDDP_F32}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strlen(words[i].word) != length || memcmp(words[i].word, word, length) != 0) continue;
        *dtype = words[i].dtype;
        return true;
    }
    return false;
}

bool cd_unit_precision_read(const char *text, cd_unit_precision *read)
{
    const char *sign = strrchr(text, '=');
    if (sign == NULL || sign == text) return false;
    const char *slash = strchr(sign, '/');
    const size_t length = (size_t)(sign - text);
    const bool is_root = length == sizeof ROOT - 1 && memcmp(text, ROOT, length) == 0;
    cd_unit_precision own = {text, is_root ? 0 : length, CDDP_DTYPE_COUNT, CDDP_DTYPE_COUNT};
    const size_t first = slash != NULL ? (size_t)(slash - sign - 1) : strlen(sign + 1);
    if (!read_dtype(sign + 1, first, &own.param)) return false;
    if (slash != NULL && !read_dtype(slash + 1, strlen(slash + 1), &own.reduce)) return false;
    *read = own;
    return true;
}
