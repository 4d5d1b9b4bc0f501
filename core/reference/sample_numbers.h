/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a sample, from the seed, the field and the sample's id: what docs/models.md says,
** written apart from core/model/batch.c. Only the generator is shared.
**
** Threads    no state.
*/
#pragma once
#include "core/base/prng.h"
#include "core/model/model.h"

typedef struct cd_sample_source {
    const cd_field *field;
    const cd_prng *prng; /* of the data */
    bool is_target;      /* targets do not repeat the inputs of the same name */
    bool is_exact;       /* multiples of 1/4 up to 2; else of 2^-23 below 1 */
} cd_sample_source;

/* values: (width) one row; classes as numbers, those that do not count as CD_IGNORE_CLASS. */
void cd_sample_numbers_draw(const cd_sample_source *source, int64_t id, size_t width,
                            double *values);
/* Targets of a sample that count: classes that are not ignored, over all outputs; 1 where there are
** no classes. */
uint64_t cd_sample_tokens_count(const cd_model *model, uint64_t seed, int64_t id);
