/* SPDX-License-Identifier: Apache-2.0 */
/* Does a run of W ranks train what a run of one process trains, on the same samples?
**
** Note [What is compared]
** Exact: where both runs give each micro-step to the comm hook `reproducible`
** (accumulate_in_hook), every reduced gradient and every parameter after a step must have equal
** bits.
** Otherwise, three things.
**   reduction   q, the projection of what was reduced, is the mean of the p_r that the ranks
**               recorded, within the bound of Note [Projections of a mean] in verify/import.
**   local       where both runs began a step with equal bits in every parameter, the mean of the
**               p_r is within rtol · Σ_r Σ_i|w·g_r,i|/W of the single process's p. Its user
**               states rtol; without it the distance is shown.
**   distance    in later steps rounding has made the parameters different, and no bound follows.
**               |q - p| / Σ_i|w·g_i| is shown for each, and by how much it grew.
** As long as every gradient had equal bits, every parameter must have equal bits, too: the
** optimizer is one function of them.
**
** Note [The first jump]
** Rounding grows by little from one step to the next. Where a distance within rtol (if it is given)
** becomes more than 1000 times as large in one step, and at least 1000 roundoffs, something that
** steps hand on differs: gradients that were not dropped, moments, a rate. Chaos may do the same,
** so it is shown, and no verdict.
**
** Lifetime   cd_compare → read → fini. Texts lie in its arena.
** Errors     what keeps two runs from being compared is a list, no error.
*/
#pragma once
#include "core/base/arena.h"
#include "verify/compare/traced.h"

typedef enum cd_comparison_what {
    CD_COMPARISON_NOTHING,
    CD_COMPARISON_RATE,      /* the optimizer's rate, or whether it stepped */
    CD_COMPARISON_GRADIENT,  /* bits of a reduced gradient */
    CD_COMPARISON_PARAMETER, /* bits of a parameter after a step */
    CD_COMPARISON_REDUCTION, /* not the mean of what the ranks recorded */
    CD_COMPARISON_LOCAL,     /* the mean of the local gradients, against the single process */
    CD_COMPARISON_PRESENCE,  /* one of the runs has no such gradient */
    CD_COMPARISON_SPLIT      /* the ranks differ among each other */
} cd_comparison_what;

typedef struct cd_comparison_difference {
    cd_comparison_what what;
    uint32_t step;
    const char *tensor;     /* "": none */
    const char *one, *many; /* both sides, in words */
    const char *hint;       /* "" */
} cd_comparison_difference;

typedef struct cd_comparison_step {
    uint32_t number;
    bool began_equal;    /* every parameter, bit for bit */
    bool is_begin_shown; /* else nobody knows */
    bool has_equal_bits; /* every gradient */
    bool has_local;      /* a tensor's local gradients were recorded in both; began_equal alone */
    bool has_distance;   /* else no tensor's reduced gradient was recorded in both */
    double distance;     /* the largest of a tensor's reduced gradient */
    double local;        /* the largest of the mean of the local gradients; began_equal alone */
    const char *tensor, *local_tensor; /* whose */
} cd_comparison_step;

typedef struct cd_comparison_options {
    const char *one, *many; /* the runs' names, borrowed */
    double rtol;            /* below 0: not given */
} cd_comparison_options;

typedef struct cd_comparison {
    cd_arena arena;
    const char **mismatches; /* (mismatch_count) why they are not the same training */
    size_t mismatch_count, mismatch_capacity;
    const char **gaps; /* (gap_count) what was not recorded */
    size_t gap_count, gap_capacity;
    cd_comparison_difference *differences; /* (difference_count) in order; the first is the cause */
    size_t difference_count, difference_capacity;
    cd_comparison_step *steps; /* (step_count) that both have */
    size_t step_count;
    const cd_comparison_step *jump; /* NULL: none */
    bool is_exact;                  /* bits were owed */
    uint32_t first_bits_step;
    const char *first_bits; /* where bits differ first; "": nowhere */
    const char *unheld;     /* why reductions were not held to their bound; "" */
    size_t tensor_count;
    uint64_t samples, equal_gradients, gradients, equal_parameters, parameters;
    uint64_t held, reductions; /* to the bound of a mean */
    uint64_t locals;           /* tensors within rtol */
} cd_comparison;

cddp_status cd_compare(const cd_traced *one, const cd_traced *many,
                       const cd_comparison_options *options, cd_comparison *comparison,
                       cddp_error *err) CDDP_MUST_CHECK;
void cd_comparison_fini(cd_comparison *comparison);
/* 0: what was owed is so. 1: a difference. 4: not the same training, not enough was recorded, or a
** distance that jumped, of which nobody can say why. */
int cd_comparison_exit_code(const cd_comparison *comparison, const cd_comparison_options *options);
