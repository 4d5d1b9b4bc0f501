/* SPDX-License-Identifier: Apache-2.0 */
/* A program of scalar operations, recorded while it runs in f64: its derivative along a direction,
** and how far the same program in a narrower dtype may be from it.
**
** There are leaves, sums of products, and functions of one scalar; nothing else. The derivative
** runs forward, number by number. The model engine runs backward, tensor by tensor: the two share
** no code and no order. Decisions (a ReLU that cuts, an expert that is chosen) are taken once, as
** the engine takes them; then the program has no kinks.
**
** Lifetime   init → leaf, dot, apply … → differentiate → (clear → …) → fini
** Errors     memory that runs out is remembered: cd_scalars_check reports it.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A scalar of the program. */
typedef uint32_t cd_scalar;

typedef enum cd_scalar_kind {
    CD_SCALAR_LEAF,
    CD_SCALAR_DOT,
    CD_SCALAR_RELU,
    CD_SCALAR_TANH,
    CD_SCALAR_SIGMOID,
    CD_SCALAR_GELU,
    CD_SCALAR_EXP,
    CD_SCALAR_LOG,
    CD_SCALAR_SOFTPLUS,     /* log(1 + exp(x)) */
    CD_SCALAR_RECIPROCAL,   /* 1 / x */
    CD_SCALAR_INVERSE_ROOT, /* 1 / √x */
} cd_scalar_kind;

typedef struct cd_scalar_node {
    double value, error;  /* error: what the narrower dtype may add to the value */
    double adjoint;       /* derivative of the result by this scalar */
    double adjoint_error; /* how far the engine's may be from it, to first order */
    double tangent;       /* derivative of this scalar along the direction */
    double sensitivity;   /* derivative of the result's tangent by this scalar */
    /* terms; of a function: that of its argument, and one more than the place of its curve */
    uint32_t first, count;
    uint32_t uses; /* terms in which it stands */
    uint8_t kind;
    bool is_parameter;
} cd_scalar_node;

typedef struct cd_scalar_term {
    cd_scalar a, b;
} cd_scalar_term;

/* A function at its argument, with its first and second derivative. They are taken once: every
** pass, and every direction of each parameter, needs them again. */
typedef struct cd_scalar_curve {
    double value, slope, bend;
} cd_scalar_curve;

typedef struct cd_scalars {
    const cddp_allocator *allocator;
    cd_scalar_node *nodes;   /* (node_count) */
    cd_scalar_term *terms;   /* (term_count) */
    cd_scalar_curve *curves; /* (curve_count) of functions, in the order of their nodes */
    size_t node_count, node_capacity, term_count, term_capacity, curve_count, curve_capacity;
    cd_scalar one, minus_one, zero; /* leaves that are always there */
    double roundoff;                /* u of the dtype that the engine computes in */
    bool has_failed;                /* memory ran out */
    bool has_rounded;               /* some scalar may round in the engine's dtype */
    bool is_ambiguous;              /* a decision lies within the error of what it is taken from */
} cd_scalars;

void cd_scalars_init(cd_scalars *s, const cddp_allocator *allocator);
void cd_scalars_fini(cd_scalars *s);
/* Begins a program. roundoff: of the engine's dtype. */
void cd_scalars_clear(cd_scalars *s, double roundoff);
cddp_status cd_scalars_check(const cd_scalars *s, cddp_error *err) CDDP_MUST_CHECK;

cd_scalar cd_scalars_leaf(cd_scalars *s, double value);
cd_scalar cd_scalars_parameter(cd_scalars *s, double value);
/* Σ a·b over the terms between begin and end. No other operation may stand between them. */
void cd_scalars_begin_dot(cd_scalars *s);
void cd_scalars_add_term(cd_scalars *s, cd_scalar a, cd_scalar b);
cd_scalar cd_scalars_end_dot(cd_scalars *s);
cd_scalar cd_scalars_apply(cd_scalars *s, cd_scalar_kind function, cd_scalar x);

cd_scalar cd_scalars_add(cd_scalars *s, cd_scalar a, cd_scalar b);
cd_scalar cd_scalars_subtract(cd_scalars *s, cd_scalar a, cd_scalar b);
cd_scalar cd_scalars_multiply(cd_scalars *s, cd_scalar a, cd_scalar b);
double cd_scalars_get(const cd_scalars *s, cd_scalar x);
/* How far the engine's scalar may be from it. */
double cd_scalars_get_error(const cd_scalars *s, cd_scalar x);
/* Is a > b? Marks the program as ambiguous where the narrower dtype may say otherwise. */
bool cd_scalars_is_larger(cd_scalars *s, cd_scalar a, cd_scalar b);

/* The derivatives of the result by every scalar: once, before the directions. */
void cd_scalars_find_adjoints(cd_scalars *s, cd_scalar result);
/* How far the engine's derivative by x may be from it: see Note [Bound of an adjoint]. Once, after
** the derivatives were found. */
void cd_scalars_find_adjoint_errors(cd_scalars *s, cd_scalar result);
double cd_scalars_get_adjoint_error(const cd_scalars *s, cd_scalar x);

/* The result's derivative along a direction of the leaves. */
typedef struct cd_scalar_slope {
    double value;
    bool is_exact; /* no operation along the direction rounded in f64 */
} cd_scalar_slope;

/* A direction of some parameters; all other leaves stay. */
typedef struct cd_scalar_direction {
    const cd_scalar *leaves; /* (count) */
    const double *steps;     /* (count) */
    size_t count;
    /* u of the dtype in which the gradient of these leaves is added up; the program's where wider
    ** */
    double roundoff;
} cd_scalar_direction;
cd_scalar_slope cd_scalars_differentiate(cd_scalars *s, cd_scalar result,
                                         const cd_scalar_direction *direction);
/* How far the engine's ⟨gradient, direction⟩ may be from the slope along the latest direction. It
** takes longer than the slope itself, and where nothing rounds nobody needs it. */
double cd_scalars_bound_slope(cd_scalars *s, cd_scalar result,
                              const cd_scalar_direction *direction);
/* The result at the parameters moved by h times the direction, decisions as they were taken. The
** values stay as they are. For tests. */
double cd_scalars_evaluate(cd_scalars *s, cd_scalar result, const cd_scalar_direction *direction,
                           double h);
