/* SPDX-License-Identifier: Apache-2.0 */
/* Is what a reduction delivered the mean of what the ranks recorded? Judged from projections, which
** a recording has of gradients before and after.
**
** Note [Projections of a mean]
** Weights w lie in [1, 2). p_r = Σ w·g_r is the projection of rank r before the reduction,
** q = Σ w·m that of the result m, in a dtype of unit roundoff u. Every m_i is within
** γ_{W+1}·Σ_r|g_r,i|/W + W·η of the mean, whatever the order of the sum, and whether it
** divides before or after. (η is the smallest subnormal.) So q is within
** (γ_{W+2} + 8·n·2⁻⁵³)·Σ_r Σ_i|w·g_r,i|/W + 2·n·W·η of Σ_r p_r/W. The term with n covers
** the rounding of the projections, which are in f64. A sum without division is within W
** times that of Σ_r p_r.
**
** Lifetime   init → push every event → read → fini.
** Errors     without memory nothing is shown.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"

/* One reduction of a parameter, until all ranks of its group have shown it. */
typedef struct cd_means_entry {
    double sum, magnitude, reduced;
    int64_t numel, dtype;
    uint32_t ranks, step;
    bool is_short;   /* a rank showed only a part of it */
    bool is_wrapped; /* by a reducer of ours, which divides */
} cd_means_entry;

typedef struct cd_means_series {
    cd_means_entry *entries; /* (count) from reduction number `base` on */
    size_t count, capacity;
    uint64_t base;
} cd_means_series;

typedef struct cd_means_group {
    int64_t id, members;
    cd_means_series *series; /* (count) by variable */
    size_t count, capacity;
} cd_means_group;

/* A variable on a rank. */
typedef struct cd_means_variable {
    double sum, magnitude; /* of its gradient before the next reduction */
    int64_t bucket;
    uint64_t reductions;
    bool is_open; /* reduced, and the result was not shown yet */
} cd_means_variable;

typedef struct cd_means_rank {
    cd_means_variable *variables; /* (count) */
    size_t count, capacity;
    int64_t group;
    bool has_group;
} cd_means_rank;

typedef struct cd_means {
    const cddp_allocator *allocator;
    cd_means_rank *ranks; /* (rank_count) */
    uint32_t rank_count;
    cd_means_group *groups; /* (group_count) */
    size_t group_count, group_capacity;
    uint64_t means, sums, others, unshown; /* reductions */
    uint32_t other_step;                   /* of the first that is neither */
    int64_t other_variable;
    bool has_hook, has_join; /* then it need not be the mean */
    bool is_out_of_memory;
} cd_means;

cddp_status cd_means_init(cd_means *means, uint32_t rank_count, const cddp_allocator *allocator,
                          cddp_error *err) CDDP_MUST_CHECK;
void cd_means_fini(cd_means *means); /* accepts a zeroed one */
/* event->rank is below rank_count. */
void cd_means_push(cd_means *means, const cddp_event *event);
