/* SPDX-License-Identifier: Apache-2.0 */
/* Is what an optimizer consumed what its reduction delivered, times what the program said? Judged
** from projections, which a recording has of gradients after their reduction, and again as an
** optimizer takes them where they are others by then.
**
** Note [Projections of what is consumed]
** Let R = Σ w·g and M = Σ |w·g| be of the reduced gradient, C and D the same of the consumed one,
** f the factor that was said: clip / loss scale, or what clip_grad_norm_ multiplied with. Let u be
** the unit roundoff and η the smallest subnormal of the coarser of both dtypes. Whoever computes f
** rounds at most five times: its two parts, as they are converted to the dtype, a sum and a
** quotient, the result as it is converted. It may be applied in two multiplications. So
** every element is within γ₇(u)·|f·g| + η·(1 + a) of f·g, where a = max(1, clip, 1 / loss scale)
** is what a part of f may make of an underflow. Weights are below 2, and a projection is itself
** computed in f64, so |C - f·R| and |D - |f|·M| are both within
** (γ₇(u) + 8·n·2⁻⁵³)·|f|·M + 2·n·η·(1 + a). D cancels nothing: it sees a wrong size in any dtype.
** In 16 bits C may cancel to less than its bound; then another sign or order of the same elements
** is not seen.
**
** One factor    what changed and nobody explains may still be one factor f for all gradients of a
**               step. f is Σ D / Σ M, so its relative error ρ is at most the largest of the
**               gradients' own; they are held to (own + ρ) / (1 - ρ). Two gradients at least must
**               not be zero: a single one is always a multiple of something. f is
**               positive: whoever turns gradients round may mean it or not, and nobody
**               knows. Nor why some steps alone have one above 1.
** Parts         clip_grad_norm_ over some parameters of a wrapper: a recording says how many, and
**               not which. Each gradient may have that factor or not.
**
** Reduced twice: a program that sums gradients which DDP has averaged already multiplies them by
** the size n of the group. Two things show it. After the reduction the program itself posted an
** all-reduce, either of just this gradient (its digest is that of what was reduced) or of as many
** elements as the step consumes. And n times one of the factors explains what was consumed. A
** factor n alone is no such thing: some programs turn a mean into a sum on purpose.
**
** Lifetime   init → push every event → end → read → fini.
** Errors     without memory nothing is shown.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"

/* A variable on a rank. */
typedef struct cd_consumed_variable {
    double reduced, reduced_magnitude, consumed, consumed_magnitude;
    int64_t digest, numel, dtype, consumed_dtype;
    int64_t again;    /* ranks over which the program summed the reduced one; 0: it did not */
    bool is_reducing; /* reduced, and the result was not shown yet */
    bool has_reduced; /* it was */
    bool is_due;      /* reduced to a value that no step met yet */
    bool is_taken;    /* by an optimizer, in the step at hand */
    bool is_changed, is_shown;
} cd_consumed_variable;

#define CD_CONSUMED_FACTORS_MAX 16

typedef struct cd_consumed_rank {
    cd_consumed_variable *variables; /* (count) */
    size_t count, capacity;
    uint64_t parameters;                     /* that are reduced */
    uint64_t taken;                          /* in the step at hand */
    double factors[CD_CONSUMED_FACTORS_MAX]; /* (factor_count) a gradient is multiplied with one */
    uint32_t factor_count;
    double clip, loss_scale; /* of the step at hand, as the program said */
    uint32_t step;
    size_t found;        /* where the last of the program's own all-reduces found its gradient */
    int64_t again;       /* ranks of these, after the last reduction; 0: there were none */
    int64_t again_numel; /* and their elements */
    bool is_own;         /* the next one is the program's own */
    bool is_unknown;     /* somebody changed gradients by a factor that nobody knows */
    bool is_by_itself;   /* the program did so, in the step at hand */
} cd_consumed_rank;

/* Where something else was consumed first: by step, and then by rank. */
typedef struct cd_consumed_place {
    uint64_t count; /* gradients in all; 0: none */
    uint32_t rank, step;
    int64_t variable;
    double clip, loss_scale, expected, actual, bound;
    double ratio; /* of the magnitudes; NaN where the reduced one has none */
} cd_consumed_place;

typedef struct cd_consumed_group {
    int64_t id, members;
} cd_consumed_group;

typedef struct cd_consumed {
    const cddp_allocator *allocator;
    cd_consumed_rank *ranks; /* (rank_count) */
    uint32_t rank_count;
    cd_consumed_group *groups; /* (group_count) */
    size_t group_count, group_capacity;
    bool is_of_torch; /* whose recorder sees rewrites; other programs say them with their step */
    /* gradients: that are what was said; that are others than reduced, of which nothing is known */
    uint64_t held, unjudged;
    cd_consumed_place twice;       /* summed once more after their reduction */
    cd_consumed_place wrong;       /* not what the program said */
    cd_consumed_place unexplained; /* it said nothing, and no one factor explains it */
    cd_consumed_place enlarged;    /* all gradients of a step times a factor above 1 */
    uint64_t steps;                /* of ranks, in which an optimizer took reduced gradients */
    double scale;                  /* by which the program scaled all gradients of a step itself */
    uint64_t dropped;              /* reduced gradients that were gone when their optimizer came */
    uint64_t scalings;             /* steps of ranks in which it did */
    bool has_scales;               /* with several factors */
    bool is_out_of_memory;
} cd_consumed;

cddp_status cd_consumed_init(cd_consumed *consumed, uint32_t rank_count,
                             const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
void cd_consumed_fini(cd_consumed *consumed); /* accepts a zeroed one */
/* event->rank is below rank_count. */
void cd_consumed_push(cd_consumed *consumed, const cddp_event *event);
/* The last step of every rank is over. */
void cd_consumed_end(cd_consumed *consumed);
