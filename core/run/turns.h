/* SPDX-License-Identifier: Apache-2.0 */
/* The training of a rank with several wrappers, which take turns. */
#pragma once
#include "core/run/rank.h"
#include "core/train/trainer.h"

/* options: without plan and watcher, which each wrapper has for itself. */
cddp_status cd_turns_train(const cd_rank_argument *argument, const cd_trainer_options *options,
                           cddp_error *err) CDDP_MUST_CHECK;
