/* SPDX-License-Identifier: Apache-2.0 */
/* What the files behind declared.h share: declared.c takes events in, owed.c says what is missing,
** accused.c what is wrong, unjudged.c what was proven and what was not. */
#pragma once
#include "verify/import/declared.h"

/* Something is missing here. */
void cd_declared_note(cd_declared *declared, cd_declared_gap gap, const cddp_event *at,
                      int64_t variable);
/* A step of the rank is over, and what it did not say of a parameter it never will. */
void cd_declared_end_step(cd_declared *declared, cd_declared_rank *rank, uint32_t number);
/* All ranks came to their end, and so often they waited in groups of ours on the way. */
bool cd_declared_have_ended(const cd_declared *declared, uint64_t *waits);
/* A program of cddp/record.h that communicates by itself: its collectives are not seen. */
bool cd_declared_has_own_means(const cd_declared *declared);
