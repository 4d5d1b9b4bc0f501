/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/sample_numbers.h"

#include "core/model/layers/loss.h"

/* A generator for each sample, so that neither the batch nor the place in it matters. */
static cd_prng generator_of(const cd_sample_source *source, int64_t id)
{
    const cd_prng targets = cd_prng_split(source->prng, "targets");
    return cd_prng_split_index(source->is_target ? &targets : source->prng, source->field->name,
                               (uint64_t)id);
}

void cd_sample_numbers_draw(const cd_sample_source *source, int64_t id, size_t width,
                            double *values)
{
    cd_prng prng = generator_of(source, id);
    const cd_field *field = source->field;
    const int64_t quarters = 8, fine = INT64_C(1) << 23;
    size_t counting = width;
    if (field->kind == CD_FIELD_CLASS && field->ragged)
        counting = 1 + (size_t)cd_prng_below(&prng, width);
    for (size_t i = 0; i < width; i++) {
        if (field->kind == CD_FIELD_CLASS) {
            const uint64_t drawn = cd_prng_below(&prng, (uint64_t)field->class_count);
            values[i] = i < counting ? (double)drawn : (double)CD_IGNORE_CLASS;
        } else if (source->is_exact) {
            values[i] = (double)cd_prng_between(&prng, -quarters, quarters) * 0.25;
        } else {
            values[i] = (double)cd_prng_between(&prng, -fine, fine - 1) * 0x1p-23;
        }
    }
}
