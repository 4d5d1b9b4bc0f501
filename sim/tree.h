/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of trees, cut into pieces that follow each other: binomial, double binary, two-level.
**
** Lifetime   plain functions over a cd_program. Errors: none.
*/
#pragma once
#include "sim/algorithm.h"

/* The index-th entry of an all-reduce, a reduce or a broadcast over trees; false behind the
** last. */
bool cd_tree_get(const cd_program *program, uint32_t index, cd_action *action);
