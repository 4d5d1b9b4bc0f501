/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank ended that did not return, in words: from its rank_end. */
#pragma once
#include "cddp/world.h"

/* The detail of a rank that was killed because it stood still: SIGSTOP, as Linux numbers it. */
#define CD_RANK_STOPPED 19

/* A mark of the world itself (value: the first such rank): it ended ranks that went on without
** end. */
#define CD_RANK_ENDLESS "goes_on_without_end"

/* After "rank 1 ": "was killed", "left with exit code 0", "stood still (SIGSTOP)". "died" where
** nobody saw how its process ended. text: that of rank_end, or the message of the rank's result;
** NULL or "": none. Returns borrowed: static. */
const char *cd_rank_end_words(int64_t end, int64_t detail, const char *text);
/* The same, with the number of its signal or its exit code: "was killed (signal 9)". */
void cd_rank_end_print(const cddp_rank_result *result, char *text, size_t text_bytes);
/* Somebody ended or stopped the process of the rank, or its launcher, or the system did for want of
** memory: that is no defect of what the rank did. */
bool cd_rank_end_is_from_outside(const cddp_rank_result *result);
