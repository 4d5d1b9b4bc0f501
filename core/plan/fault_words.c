/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/fault_words.h"

#include "core/base/text.h"

#include <inttypes.h>
#include <stdio.h>

static void print_whom(const cddp_plan_fault *f, char *text, size_t text_bytes)
{
    text[0] = '\0';
    if (f->side.term_count == 0 && f->rank != CDDP_PLAN_UNSET && f->peer != CDDP_PLAN_UNSET)
        snprintf(text, text_bytes, " from rank %" PRId64 " to rank %" PRId64, f->rank, f->peer);
    else if (f->side.term_count == 0 && f->rank != CDDP_PLAN_UNSET)
        snprintf(text, text_bytes, " of rank %" PRId64, f->rank);
}

static void print_when(const cddp_plan_fault *f, char *text, size_t text_bytes)
{
    static const char *const words[] = {
        [CDDP_FAULT_BEFORE] = "before",      [CDDP_FAULT_INSIDE] = "inside",
        [CDDP_FAULT_AFTER] = "after",        [CDDP_FAULT_BEFORE_JOIN] = "before",
        [CDDP_FAULT_INSIDE_JOIN] = "inside", [CDDP_FAULT_AFTER_JOIN] = "after"};
    const bool is_own = f->side.term_count == 0 && f->peer == CDDP_PLAN_UNSET;
    char at[CD_DURATION_BYTES];
    cd_duration_print(f->at, at, sizeof at);
    if (f->when == CDDP_FAULT_TIME)
        snprintf(text, text_bytes, "after %s", at);
    else if (f->when < CDDP_FAULT_BEFORE_JOIN && is_own)
        snprintf(text, text_bytes, "%s its collective %" PRIu64, words[f->when], f->at);
    else if (f->when < CDDP_FAULT_BEFORE_JOIN)
        snprintf(text, text_bytes, "%s collective %" PRIu64 " of rank %" PRId64, words[f->when],
                 f->at, f->rank);
    else
        snprintf(text, text_bytes, "%s join %" PRIu64 " of rank %" PRId64, words[f->when], f->at,
                 f->joiner != CDDP_PLAN_UNSET ? f->joiner : f->rank);
}

void cd_plan_fault_print(const cddp_plan_fault *fault, char *text, size_t text_bytes)
{
    char whom[64], when[96];
    print_whom(fault, whom, sizeof whom);
    print_when(fault, when, sizeof when);
    snprintf(text, text_bytes, "%s%s %s", fault->kind != NULL ? fault->kind : "?", whom, when);
}
