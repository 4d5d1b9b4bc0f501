/* SPDX-License-Identifier: Apache-2.0 */
/* The compare events that belong to one check, gathered into few findings: one per shape of error,
** with the earliest and most specific comparison as its witness and all others counted.
**
** Specific means nearer to the source: precision before reduction before mathematics before
** updates, since a wrong local gradient makes everything after it wrong.
*/
#pragma once
#include "core/check/writer.h"
#include "core/trace/codes.h"

typedef struct cd_tally_entry {
    cddp_event witness; /* without text */
    char words[160];
    uint64_t count;
    cd_rank_set who;
    uint32_t rank_count, last_step;
} cd_tally_entry;

/* How often a rank was compared with nothing: its reduced gradients, or what its own forwards and
** backwards left, too. */
typedef struct cd_tally_apart {
    uint64_t reduced, own;
} cd_tally_apart;

typedef struct cd_tally {
    cd_table entries; /* (shape, layer of statistics + 1) → cd_tally_entry */
    cd_table ranks;   /* (shape, rank, layer) → 1 */
    cd_ranks judged;  /* rank → comparisons that this check reads */
    cd_ranks apart;   /* rank → cd_tally_apart */
    uint64_t compared;
    cd_arena memory; /* of sets of ranks */
} cd_tally;

void cd_tally_init(cd_tally *tally, const cddp_allocator *allocator);
void cd_tally_fini(cd_tally *tally);
/* Takes a compare event; counts it, and keeps it when it failed. */
void cd_tally_push(cd_tally *tally, const cddp_event *event);
/* Takes an uncompared event: findings that need a reference then say how many ranks they do not
** speak of. */
void cd_tally_push_uncompared(cd_tally *tally, const cddp_event *event);
/* The i-th entry as a finding, wording included; false past the end. */
bool cd_tally_get(const cd_tally *tally, cd_writer *writer, size_t index, cddp_finding *finding);
/* A tensor that is no variable is named at the head of its comparison's text, "out.weight: 56 of 64
** …": fills in the name, returns the rest. */
const char *cd_compare_split_name(const char *words, char *name, size_t name_bytes);
const char *cd_link_words(int64_t link); /* "single-process gradient" */
