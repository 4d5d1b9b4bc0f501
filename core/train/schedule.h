/* SPDX-License-Identifier: Apache-2.0 */
/* Which optimizers step when, and at which rate: a function of the plan. */
#pragma once
#include "core/plan/replica/replica.h"

bool cd_schedule_is_due(const cd_replica *replica, size_t optimizer, uint32_t step);
/* The learning rate of a step: lr × lr_decay^step by repeated multiplication, so that a resumed run
** has its bits. */
double cd_schedule_lr(const cd_replica *replica, size_t optimizer, uint32_t step);
