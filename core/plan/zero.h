/* SPDX-License-Identifier: Apache-2.0 */
/* [zero]: stages of ZeRO in DeepSpeed's words. Each word is another way to say what keys of [ddp],
** [[optimizer]] and [fsdp] say; the plan keeps the words, and readers ask here for what follows.
**
** Threads    any: pure functions of a plan.
** Errors     none.
*/
#pragma once
#include "core/plan/plan.h"

/* Changes settings of a rank as the stage has them. */
void cd_zero_resolve(const cddp_plan *plan, cddp_plan_settings *settings);
/* cddp_plan_optimizer_shard of an optimizer: its own, or that of stage 1. */
int64_t cd_zero_get_shard(const cddp_plan *plan, size_t optimizer);
/* Is the model fully sharded, by [fsdp] or by a stage? */
bool cd_zero_shards_model(const cddp_plan *plan);
/* Why a word of DeepSpeed's "zero_optimization" has no meaning here; NULL: it is no such word. */
const char *cd_zero_find_refusal(const char *table, const char *field);
