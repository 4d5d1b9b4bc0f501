/* SPDX-License-Identifier: Apache-2.0 */
/* What the plan has a rank do in a micro-step, read by the judge's own code.
**
** core/plan/micro.h says the same to the run. The two share types and nothing else: a table that
** one of them overlooks is a difference, and not the truth for both.
**
** Threads    pure functions of the plan.
** Errors     none.
*/
#pragma once
#include "core/plan/micro.h"

/* settings: those of the rank. */
void cd_planned_micro(const cddp_plan *plan, const cddp_plan_settings *settings,
                      cd_micro_place place, cd_micro *micro);
/* It runs a backward with samples, and gradients are wanted. */
bool cd_planned_contributes(const cd_micro *micro);
/* Inputs are left in the epoch, and no table has stopped the rank in it. */
bool cd_planned_has_step(const cddp_plan *plan, const cddp_plan_settings *settings, uint32_t rank,
                         uint32_t step);
/* The group of a rank's wrapper in a step, and how many ranks it averages over; 0: this rank is
** not among them. The latest [[when]] that names a group decides. */
const char *cd_planned_group_name(const cddp_plan *plan, uint32_t rank, uint32_t step);
uint32_t cd_planned_group_size(const cddp_plan *plan, uint32_t rank, uint32_t step);
/* The epoch of a step, and the step behind its last one: join.epochs cuts train.steps. */
uint32_t cd_planned_find_epoch(const cddp_plan_settings *settings, uint32_t step);
uint32_t cd_planned_get_epoch_end(const cddp_plan_settings *settings, uint32_t epoch);
/* Steps that the rank makes, over all epochs. */
uint32_t cd_planned_count_steps(const cddp_plan *plan, const cddp_plan_settings *settings,
                                uint32_t rank);

/* Does a parameter require gradients in this step, when it did so (or not) before the first one? */
bool cd_planned_requires_grad(const cddp_plan *plan, cd_micro_place place, const char *name,
                              bool before);
/* Some table makes a parameter of this name require gradients, on some rank. */
bool cd_planned_unfreezes(const cddp_plan *plan, const char *name);
bool cd_planned_lists(const cddp_text_list *patterns, const char *name);

/* Some rank may have other windows than the others. */
bool cd_planned_windows_differ(const cddp_plan *plan);
/* How many windows of the step end before this micro-step. */
uint32_t cd_planned_find_window(const cddp_plan *plan, const cddp_plan_settings *settings,
                                cd_micro_place place);
/* The window at a position; empty where the rank has no such one. place: rank and step. */
cd_micro_span cd_planned_get_window(const cddp_plan *plan, const cddp_plan_settings *settings,
                                    cd_micro_place place, uint32_t position);

/* The dtype of a key of [mixed_precision]; CDDP_DTYPE_COUNT: none. */
cddp_dtype cd_planned_dtype(int64_t key);
