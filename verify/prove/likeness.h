/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts that differ only in which of several like parameters stands where.
**
** Note [Layouts that are alike] Every order of rank 0 in the backward that decides the rebuilt
** layout makes another layout: n gradients make n! of them. Behind each, every rank has to be
** searched. Two layouts have one form when, slot by slot, their parameters have the same sizes and
** dtype: then an exchange of like parameters turns one into the other. If all parameters fire once
** in every backward, dense, and no setting names one, the same exchange turns the orders behind
** the one layout into the orders behind the other. So one search serves for both, provided that
** the runtime treats like parameters alike. That is an assumption, and the report lists it. It is
** not taken on trust alone:
**
**   * every order of rank 0 is recorded and judged in a whole world;
**   * every rank then walks, given those results, through an order that is drawn for this layout,
**     and must issue what was recorded;
**   * one layout of each form is searched in every order.
**
** So a mistake that shows in one arrival order of rank 0 alone is met. One that needs a certain
** parameter in a certain slot and a certain order of a later backward may be missed.
**
** Note [Orders of one form] Eight gradients arrive in 40,320 orders, twelve in 479 million: too
** many to record each. Two orders have one form when like parameters arrive at the same places.
** Their layouts then have one form too, and the same exchange of like parameters turns the one run
** into the other. With four weights of one size and four biases there are 70 forms. Of each form
** one order is recorded, judged and searched behind on every rank. The assumption is the one
** above, now also for the arrival: the runtime treats like parameters alike. Of the other orders,
** some that are drawn are recorded and walked, and each has to give a form that was searched.
** Where one order is not uniform, or its form is a new one, all orders are tried.
*/
#pragma once
#include "verify/prove/rank.h"

typedef struct cd_likeness {
    uint64_t digest; /* of the layout in the last backward */
    bool is_uniform; /* all parameters fired once in every backward, dense */
    bool repeats;    /* the walk issued what was recorded */
} cd_likeness;

/* Why the plan tells parameters apart, or its layouts are no whole story; NULL: it does not. */
const char *cd_likeness_find_obstacle(const cddp_plan *plan);
/* classes: (CD_PROVE_EVENTS_MAX) for each gradient of that window of the rank, in the engine's
** order. Gradients of like parameters have the same number. *count: how many; 0: their parameters
** are not all known to the reducer. */
cddp_status cd_likeness_classify(const cd_prove_rank_options *options, uint32_t window,
                                 uint32_t *classes, uint32_t *count,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* Walks one rank: windows up to `chosen` as there, later ones in an order that is drawn. */
cddp_status cd_likeness_walk(const cd_prove_rank_options *options, uint64_t seed,
                             cd_likeness *found, cddp_error *err) CDDP_MUST_CHECK;
