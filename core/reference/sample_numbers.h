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
