/* SPDX-License-Identifier: Apache-2.0 */
/* One entry of fsdp.unit_precision, "MODULE=PARAM/REDUCE WORD…": the dtypes and casts of a unit.
**
** Errors     none: what cannot be read is false.
*/
#pragma once
#include "cddp/tensor.h"

typedef struct cd_unit_precision {
    const char *module;               /* its first bytes are the name; borrowed from the text */
    size_t length;                    /* of the name; the root's is 0 */
    cddp_dtype param, reduce, output; /* CDDP_DTYPE_COUNT: not given */
    bool cast_forward_inputs, cast_root_forward_inputs, keep_low_precision_grads;
} cd_unit_precision;

bool cd_unit_precision_read(const char *text, cd_unit_precision *read);
