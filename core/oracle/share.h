/* SPDX-License-Identifier: Apache-2.0 */
/* The references that the ranks of one thread share.
**
** Ranks that start a step from equal values need the same reference. So it is computed once per
** value, not once per rank. If all ranks start from different values, W references of W ranks are
** needed: W². After CD_FAILED_REFERENCES_MAX references of one reduction have failed, more of them
** show nothing new. The other ranks are then reported as not compared.
**
** Lifetime   one per run; an oracle without one makes its own.
** Errors     memory and the engine's.
*/
#pragma once
#include "core/oracle/window.h"

#define CD_FAILED_REFERENCES_MAX 16

/* The windows of one parity of steps: ranks of one thread are at most a step apart. */
typedef struct cd_shelf {
    cd_window *windows; /* (count) */
    size_t count;
    cd_window *latest;                              /* the last one that was asked for, or NULL */
    bool rounds;                                    /* see cd_window */
    uint32_t step, micro_first, micro_step, failed; /* windows of this reduction that have failed */
    /* (wrong_count) starts whose statistics were found wrong in wrong_step */
    uint64_t wrong[CD_FAILED_REFERENCES_MAX];
    uint32_t wrong_count, wrong_step;
} cd_shelf;

struct cd_oracle_share {
    const cddp_allocator *allocator;
    cd_shelf shelves[2];
    bool is_single; /* for one rank: one window */
    uint64_t clock, computed;
};

void cd_share_init(cd_oracle_share *share, const cddp_allocator *allocator, bool is_single);
void cd_share_fini(cd_oracle_share *share);
/* The window of a reduction from this start; NULL when enough others of it have failed. */
cddp_status cd_share_find(cd_oracle_share *share, const cd_start *start,
                          const cd_oracle_reduction *reduction, cd_window **window,
                          cddp_error *err);
/* The last window used in this step, or NULL. */
const cd_window *cd_share_latest(const cd_oracle_share *share, uint32_t step);
/* A window of the step before this one's, or NULL; a rank that shares nothing has none. */
const cd_window *cd_share_previous(const cd_oracle_share *share, const cd_window *window);
/* False when statistics of this step from enough other starts were wrong: then this start is not
** judged. */
bool cd_share_judges_statistics(const cd_oracle_share *share, uint32_t step, uint64_t digest);
void cd_share_note_wrong_statistics(cd_oracle_share *share, uint32_t step, uint64_t digest);
void cd_share_note_failed(cd_oracle_share *share, cd_window *window);
/* Gathers a window's locals, unless there are too many. */
cddp_status cd_share_gather(cd_oracle_share *share, cd_window *window, const cd_start *start,
                            const cd_oracle_reduction *reduction, cddp_error *err);
