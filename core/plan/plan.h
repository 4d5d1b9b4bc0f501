/* SPDX-License-Identifier: Apache-2.0 */
/* What a reader needs to fill a plan: elements of repeating tables, overrides, the text it came
** from. */
#pragma once
#include "cddp/backend.h"
#include "cddp/plan.h"
#include "core/plan/keys.h"

/* Of what a plan points to. */
struct cd_arena *cd_plan_get_arena(cddp_plan *plan);

size_t cd_plan_item_count(const cddp_plan *plan, cd_key_scope scope);
/* Appends an element with every default filled in. */
cddp_status cd_plan_add_item(cddp_plan *plan, cd_key_scope scope, cddp_error *err) CDDP_MUST_CHECK;
/* index: of the element, where the row belongs to a repeating table. */
cddp_status cd_plan_assign(cddp_plan *plan, const cd_key_row *row, size_t index,
                           const cd_key_value *value, cddp_error *err) CDDP_MUST_CHECK;
/* Whose setting it is: some ranks', and of a key of [[optimizer]] one of them, or -1: all; of one
** [[wrapper]], from 1, or 0: of every one. */
typedef struct cd_plan_owner {
    cddp_selector ranks;
    int64_t element;
    uint64_t wrapper;
} cd_plan_owner;
#define CD_PLAN_ALL_ELEMENTS (-1)
cddp_status cd_plan_add_override(cddp_plan *plan, const cd_plan_owner *owner, const cd_key_row *row,
                                 const cd_key_value *value, cddp_error *err) CDDP_MUST_CHECK;
/* The optimizers of a rank, each with the rank's own options. What is said of one optimizer counts
** more than what is said of all. A plan that lists none has one, which
** owns all parameters. */
size_t cd_plan_optimizer_count(const cddp_plan *plan);
cddp_plan_optimizer cd_plan_optimizer_of(const cddp_plan *plan, uint32_t rank, size_t index);
/* In which order a rank's wrappers take their turns in a step: positions into order, which has room
** for every one. */
void cd_plan_order_wrappers(const cddp_plan *plan, uint32_t rank, uint32_t step, size_t *order);
/* Its position; the number of wrappers: there is none of that name. */
size_t cd_plan_find_wrapper(const cddp_plan *plan, const char *name);
/* Where element `index` of a table in the plan of a wrapper stands in the whole plan. */
size_t cd_plan_place_of(const cddp_plan *plan, size_t wrapper, cd_key_scope scope, size_t index);
/* Copies both; for provenance. */
cddp_status cd_plan_set_text(cddp_plan *plan, const char *source, const char *text,
                             cddp_error *err) CDDP_MUST_CHECK;

/* Every contradiction of the plan, each reported with the key that a person would change. Returns
** how many. */
typedef void (*cd_contradiction_fn)(void *context, const char *key, const char *message);
size_t cd_plan_find_contradictions(const cddp_plan *plan, cd_contradiction_fn report,
                                   void *context);

/* A search through a plan that reports what it finds as contradictions, and returns how much; and
** the same through the plan of every wrapper. What several have in common is reported once. */
typedef size_t (*cd_plan_search_fn)(void *context, const cddp_plan *plan,
                                    cd_contradiction_fn report, void *report_context);
typedef struct cd_plan_search {
    cd_plan_search_fn search;
    void *context;
} cd_plan_search;
size_t cd_plan_search_wrappers(const cddp_plan *plan, const cd_plan_search *search,
                               cd_contradiction_fn report, void *context);

/* One level of a model averager: after so many steps, blocks of so many consecutive ranks; 0: all
** of them. */
typedef struct cd_plan_level {
    uint64_t period;
    uint32_t ranks;
} cd_plan_level;
#define CD_PLAN_LEVELS_MAX 8
/* averager.levels. Returns how many; 0: it is not of that form, or does not grow, or blocks do not
** nest. */
uint32_t cd_plan_read_levels(const char *text, cd_plan_level levels[CD_PLAN_LEVELS_MAX]);

/* "pattern=period" of averager.periods apart; false: it is not of that form. */
#define CD_PLAN_PATTERN_BYTES 256
bool cd_plan_read_period(const char *text, char pattern[CD_PLAN_PATTERN_BYTES], uint64_t *period);

/* What a [[collective]] posts. */
cddp_op cd_plan_op(const cddp_plan_collective *collective);
cddp_red_op cd_plan_reduction(const cddp_plan_collective *collective);

/* Does any rank queue its gradients on streams? */
bool cd_plan_has_streams(const cddp_plan *plan);
/* Continuations of hooks run on completion, on some rank. */
bool cd_plan_has_continuations(const cddp_plan *plan);
