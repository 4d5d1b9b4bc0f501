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

/* How many places of a row count. */
static size_t count_classes(const cd_field *field, size_t width, cd_prng *prng)
{
    const bool is_ragged = field->kind == CD_FIELD_CLASS && field->ragged;
    return is_ragged ? 1 + (size_t)cd_prng_below(prng, width) : width;
}

void cd_sample_numbers_draw(const cd_sample_source *source, int64_t id, size_t width,
                            double *values)
{
    cd_prng prng = generator_of(source, id);
    const cd_field *field = source->field;
    const int64_t quarters = 8, fine = INT64_C(1) << 23;
    const size_t counting = count_classes(field, width, &prng);
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

uint64_t cd_sample_tokens_count(const cd_model *model, uint64_t seed, int64_t id)
{
    const cd_prng root = cd_prng_seed(seed);
    const cd_prng data = cd_prng_split(&root, "data");
    uint64_t count = 0;
    bool has_classes = false;
    for (uint32_t k = 0; k < model->output_count; k++) {
        const cd_sample_source source = {.field = &model->targets[k],
                                         .prng = &data,
                                         .is_target = true};
        size_t width = 1;
        if (source.field->kind != CD_FIELD_CLASS) continue;
        for (uint32_t d = 0; d < source.field->dim_count; d++)
            width *= (size_t)source.field->sizes[d];
        cd_prng prng = generator_of(&source, id);
        count += count_classes(source.field, width, &prng);
        has_classes = true;
    }
    return has_classes ? count : 1;
}
