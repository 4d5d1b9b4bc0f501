/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of tensors: bitwise or within a bound, the worst element named, and the shape of the error.
**
** Threads    no state.
** Errors     none; a comparison is a value.
*/
#pragma once
#include "cddp/tensor.h"
#include "core/trace/codes.h"

