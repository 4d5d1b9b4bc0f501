/* SPDX-License-Identifier: Apache-2.0 */
/* Tolerance: both sides compute in f64, in different orders. The largest sums here have fewer than
** 200 terms of size
** below 100, so γ_200·Σ|terms| stays under 1e-12·(1 + the value's own scale); a dropped term, a
** wrong sign or a wrong factor is at least 1e-3.
*/
#include "tests/golden/pytorch/golden.h"

#include "core/model/op.h"
#include "core/tensor/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *golden_text(const char *path, const char *key)
{
    static char line[1 << 16];
    size_t key_bytes = strlen(key);
    FILE *file = fopen(path, "r");
    if (file == NULL) fail_msg("cannot read %s", path);
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        assert_true(strlen(line) + 1 < sizeof line);
        found = strncmp(line, key, key_bytes) == 0 && line[key_bytes] == ' ';
    }
    fclose(file);
    line[strcspn(line, "\n")] = 0;
    return found ? line + key_bytes + 1 : NULL;
}

static void *element(const cddp_tensor *t, int64_t i)
{
    return (unsigned char *)cd_tensor_data(t) + (size_t)i * cddp_dtype_bytes(t->dtype);
}

void assert_golden(const char *path, const char *key, const cddp_tensor *t)
{
    const char *text = golden_text(path, key);
    if (text == NULL) fail_msg("%s has no line %s", path, key);
    for (int64_t i = 0; i < cddp_tensor_numel(t); i++) {
        char *end = NULL;
        double wanted = strtod(text, &end), got = cd_element_get(t->dtype, element(t, i));
        if (end == text)
            fail_msg("%s: PyTorch has %lld numbers, we have %lld", key, (long long)i,
                     (long long)cddp_tensor_numel(t));
        if (!(fabs(got - wanted) <= 1e-12 * (1 + fabs(wanted))))
            fail_msg("%s element %lld: PyTorch %.17g, here %.17g", key, (long long)i, wanted, got);
        text = end;
    }
    while (*text == ' ') text++;
    if (*text != 0)
        fail_msg("%s: PyTorch has more than our %lld numbers", key,
                 (long long)cddp_tensor_numel(t));
}

double pattern(int64_t index, int64_t salt)
{
    return (double)((index * 37 + salt * 101) % 64 - 31) / 16;
}

void fill_pattern(const cddp_tensor *t, int64_t salt, double divisor)
{
    for (int64_t i = 0; i < cddp_tensor_numel(t); i++)
        cd_element_set(t->dtype, element(t, i), pattern(i, salt) / divisor);
}

void fill_classes(const cddp_tensor *t, int64_t count, int64_t factor, int64_t start)
{
    for (int64_t i = 0; i < cddp_tensor_numel(t); i++)
        ((int64_t *)cd_tensor_data(t))[i] = (i * factor + start) % count;
}
