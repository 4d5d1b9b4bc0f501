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

static bool is_word(const char *text, size_t length, const char *word)
{
    return strlen(word) == length && memcmp(text, word, length) == 0;
}

static bool read_word(const char *text, size_t length, cd_unit_precision *own)
{
    static const char output[] = "output_dtype=";
    if (length > strlen(output) && memcmp(text, output, strlen(output)) == 0)
        return read_dtype(text + strlen(output), length - strlen(output), &own->output);
    if (is_word(text, length, "cast_forward_inputs"))
        own->cast_forward_inputs = true;
    else if (is_word(text, length, "keep_low_precision_grads"))
        own->keep_low_precision_grads = true;
    else if (is_word(text, length, "cast_root_forward_inputs=false") && own->length == 0)
        own->cast_root_forward_inputs = false;
    else
        return false;
    return true;
}

bool cd_unit_precision_read(const char *text, cd_unit_precision *read)
{
    const char *sign = strchr(text, '=');
    if (sign == NULL || sign == text) return false;
    const size_t length = (size_t)(sign - text), dtypes = strcspn(sign + 1, " ");
    const char *end = sign + 1 + dtypes, *slash = memchr(sign, '/', dtypes + 1);
    cd_unit_precision own = {.module = text,
                             .length = is_word(text, length, ROOT) ? 0 : length,
                             .param = CDDP_DTYPE_COUNT,
                             .reduce = CDDP_DTYPE_COUNT,
                             .output = CDDP_DTYPE_COUNT,
                             .cast_root_forward_inputs = true};
    const size_t first = slash != NULL ? (size_t)(slash - sign - 1) : dtypes;
    if (!read_dtype(sign + 1, first, &own.param)) return false;
    if (slash != NULL && !read_dtype(slash + 1, (size_t)(end - slash - 1), &own.reduce))
        return false;
    while (*end != '\0') {
        const char *word = end + 1;
        const size_t letters = strcspn(word, " ");
        if (!read_word(word, letters, &own)) return false;
        end = word + letters;
    }
    *read = own;
    return true;
}
