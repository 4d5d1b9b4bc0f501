/* SPDX-License-Identifier: Apache-2.0 */
/* Is what a reduction delivered the mean of what the ranks recorded? Judged from projections, which
** a recording has of gradients before and after.
**
** Note [Projections of a mean]
** Weights w lie in [1, 2), rounded. p_r = Σ w·g_r is the projection of rank r before the reduction,
** q = Σ w·m that of the result m. Let u be the unit roundoff and η the smallest subnormal of the
** coarsest dtype on the way: of the gradients, of the bucket, and of what a comm hook casts to.
** Let d be the divisor. Every m_i is within γ_{W+2}·Σ_r|g_r,i|/d + W·η of the mean, whatever the
** order of the sum, and whether it divides before or after. (A cast is one more rounding per
** gradient, and so is the division; W - 1 additions follow.) So q is within
** (γ_{W+2} + 8·n·2⁻⁵³)·Σ_r Σ_i|w·g_r,i|/d + 2·n·W·η of Σ_r p_r/d; twice the last part after a
** cast. The term with n covers the rounding of the projections, which are in f64.
**
** The divisor   W, the ranks of the group. Under join, without divide_by_initial_world_size and
**               without a hook: the ranks that gave something. With average_contributions: the
**               backwards of all ranks. For a hook that is declared to sum: 1.
** Power         in a wide bound another divisor would pass as well: d + 1 is off by 1/(d + 1) of
**               the mean. What cannot tell the two apart shows nothing, unless whoever recorded
**               stated a law for the bucket (hook_law, which I-HOOK judges).
** Explanations  what is not the mean is the sum divided by something else, a sum without one rank,
**               one with a rank counted twice, minus the mean, or the mean of the step before.
**               Where every wrong reduction has the same explanation, the program does that. A
**               hook that compresses has none: then somebody has to say what it promises.
**
** Lifetime   init → push every event → end → read → fini.
** Errors     without memory nothing is shown.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"

/* One reduction of a parameter, until all ranks of its group have shown it. */
typedef struct cd_means_entry {
    double sum, magnitude, reduced, tiny, roundoff;
    double *parts; /* (rank_count) what each rank gave */
    int64_t numel, promise;
    uint64_t contributions;
    uint32_t ranks, joined, stated, step;
    bool is_short;   /* a rank showed only a part of it */
    bool is_unused;  /* by all ranks: nothing was reduced */
    bool is_wrapped; /* by a reducer of ours, which divides */
    bool is_cast, has_hook, counts_contributions, divides_by_active;
    bool is_apart; /* ranks need not get the same: not judged */
} cd_means_entry;

typedef struct cd_means_series {
    cd_means_entry *entries; /* (count) from reduction number `base` on */
    size_t count, capacity;
    uint64_t base;
    double before; /* the mean of the last one */
    uint64_t seen, blind;
} cd_means_series;

typedef struct cd_means_group {
    int64_t id, members;
    cd_means_series *series; /* (count) by variable */
    size_t count, capacity;
} cd_means_group;

/* A variable on a rank. */
typedef struct cd_means_variable {
    double sum, magnitude; /* of its gradient before the next reduction */
    int64_t bucket, bucket_dtype, dtype;
    uint64_t reductions, contributions;
    uint32_t step; /* of the last one */
    bool is_open;  /* reduced, and the result was not shown yet */
} cd_means_variable;

typedef struct cd_means_rank {
    cd_means_variable *variables; /* (count) */
    size_t count, capacity;
    uint64_t *stated; /* (stated_count) by bucket: laws since its hook was called */
    size_t stated_count, stated_capacity;
    int64_t group;
    int64_t promise, promise_dtype; /* of the hook, with the one that it runs inside */
    bool has_group, has_hook;
    uint32_t apart; /* + 1: the step in which it need not get what other ranks get; 0: none */
    bool accumulates, counts_contributions, divides_by_active;
} cd_means_rank;

/* What explains a reduction that is not the mean. */
typedef enum cd_means_cause {
    CD_MEANS_UNEXPLAINED,
    CD_MEANS_DIVISOR, /* number: what the sum was divided by instead */
    CD_MEANS_MISSING, /* number: the rank that is not in it */
    CD_MEANS_TWICE,   /* number: the rank that is in it twice */
    CD_MEANS_NEGATED, /* the sum, divided rightly, with the other sign */
    CD_MEANS_STALE    /* that of the reduction before */
} cd_means_cause;

typedef struct cd_means_explanation {
    cd_means_cause cause;
    int64_t number;
} cd_means_explanation;

typedef struct cd_means_wrong {
    int64_t variable;
    uint32_t step;
    double expected, actual, bound;
    uint64_t divisor; /* that it should have */
} cd_means_wrong;

typedef struct cd_means {
    const cddp_allocator *allocator;
    cd_means_rank *ranks; /* (rank_count) */
    uint32_t rank_count;
    cd_means_group *groups; /* (group_count) */
    size_t group_count, group_capacity;
    /* reductions. sums: of programs that reduce themselves; casts: means as a low precision rounds
    ** them; stated: not the mean, and held to the laws that were stated; blind: of variables of
    ** which no reduction could tell the divisor; apart: in blocks of ranks that go on by
    ** themselves */
    uint64_t means, sums, casts, stated, others, unshown, blind, apart;
    cd_means_wrong wrong;               /* the first of `others` */
    cd_means_explanation *explanations; /* (explanation_count) that all of them have */
    size_t explanation_count, explanation_capacity;
    bool is_promised;    /* a hook that promised the mean, or the sum, made one of them */
    bool is_hooked;      /* all of them were made under a hook */
    bool has_summing;    /* a hook was declared to sum */
    bool has_views;      /* gradients are views of their buckets */
    bool is_accumulated; /* in a hook: what entered is the program's own statement */
    char hook[64];       /* its name, "" without one */
    bool is_out_of_memory;
} cd_means;

cddp_status cd_means_init(cd_means *means, uint32_t rank_count, const cddp_allocator *allocator,
                          cddp_error *err) CDDP_MUST_CHECK;
void cd_means_fini(cd_means *means); /* accepts a zeroed one */
/* event->rank is below rank_count. */
void cd_means_push(cd_means *means, const cddp_event *event);
/* The unit roundoff and the smallest subnormal of a dtype; those of a coarser one stay. */
void cd_means_coarsen(int64_t dtype, double *roundoff, double *tiny);
/* Once, after the last event: what not all ranks have shown is counted. */
void cd_means_end(cd_means *means);
