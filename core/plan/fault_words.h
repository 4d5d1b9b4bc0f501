/* SPDX-License-Identifier: Apache-2.0 */
/* A [[fault]] of a plan in words: what it is, on whom, and when it is to strike. */
#pragma once
#include "cddp/plan.h"

#define CD_FAULT_WORDS_BYTES 192

/* "kill of rank 1 before its collective 40" */
void cd_plan_fault_print(const cddp_plan_fault *fault, char *text, size_t text_bytes);
