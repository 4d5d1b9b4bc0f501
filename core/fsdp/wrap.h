/* SPDX-License-Identifier: Apache-2.0 */
/* Which modules are units, and which unit a module belongs to.
**
** Ownership  trees lie in the caller's arena and borrow names.
** Errors     a list that is no tree is refused by the name of the module.
*/
#pragma once
#include "cddp/fsdp.h"
#include "core/base/arena.h"

typedef struct cd_fsdp_tree {
    const cddp_fsdp_module *modules; /* (count) the root first, parents before children */
    size_t count;
} cd_fsdp_tree;

/* The program's modules, checked and copied; or, without any, those that the dots in the names of
** its parameters tell. */
cddp_status cd_fsdp_tree_init(cd_fsdp_tree *tree, const cddp_fsdp_options *options, cd_arena *arena,
                              cddp_error *err);

typedef struct cd_fsdp_sizes {
    const int64_t *numels; /* (parameter_count) elements; 0: ignored */
    size_t parameter_count;
} cd_fsdp_sizes;

/* cddp_fsdp_wrap of a tree that is known to be one. is_unit: (tree->count). */
cddp_status cd_fsdp_tree_wrap(const cd_fsdp_tree *tree, const cd_fsdp_sizes *sizes,
                              const cddp_fsdp_wrap_policy *policy, const cddp_allocator *allocator,
                              bool *is_unit, cddp_error *err);
