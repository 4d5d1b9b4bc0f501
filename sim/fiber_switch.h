/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a fiber that differs by mechanism; implemented once per build by fiber_fcontext.c or
** fiber_ucontext.c. */
#pragma once
#include "sim/fiber.h"

extern const char *const cd_switch_name;

/* Prepares fiber->context so that the first entry calls body(fiber) on the fiber's stack. */
void cd_switch_init(cd_fiber *fiber, void (*body)(cd_fiber *fiber));
void cd_switch_enter(cd_fiber *fiber); /* caller → fiber; returns when the fiber leaves */
void cd_switch_leave(cd_fiber *fiber); /* fiber → caller */
/* The stack pointer of a fiber that is away, or NULL when the mechanism hides it. */
unsigned char *cd_switch_top(const cd_fiber *fiber);
