/* SPDX-License-Identifier: Apache-2.0 */
/* The broken hooks of card_hooks.c, for a test that links them. */
#pragma once
#include "cddp/plugin.h"

extern const cddp_hook *const card_hooks[]; /* ends with NULL */
