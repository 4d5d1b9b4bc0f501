/* SPDX-License-Identifier: Apache-2.0 */
/* Faults: what can break in a simulated cluster, when, and where. Data only; the world and the
** transport enact them.
**
** Lifetime   plain values; the array is borrowed until the world is destroyed.
*/
#pragma once
#include "cddp/keys.h"
#include "cddp/trace.h"

/* How many kinds there are: cddp_event_enum_fault_kind has their constants. */
enum {
    CD_FAULT_KIND_COUNT = 0
#define CD_FAULT(name, scope, summary) +1
#include "sim/faults.def"
#undef CD_FAULT
};

/* The target of a fault, which decides its fields: a rank, a link (rank → peer), the data of a
** collective, or the order between a collective and the stream of its tensors. */
typedef enum cd_fault_scope {
    CD_FAULT_ON_RANK,
    CD_FAULT_ON_LINK,
    CD_FAULT_ON_DATA,
    CD_FAULT_ON_STREAM
} cd_fault_scope;

typedef struct cd_fault {
    cddp_event_enum_fault_kind kind;
    /* TIME: `at` is ns of virtual time. BEFORE: the rank is about to post its at-th collective,
    ** counted over all its groups from 0. INSIDE: it posted it, and it cannot complete there yet.
    ** AFTER: it completed on the rank. BEFORE_JOIN: `joiner` is about to meet others for a group
    ** for the at-th time, from 0. INSIDE_JOIN: it has registered, and does not know the other
    ** members yet. AFTER_JOIN: it has met them. */
    cddp_plan_fault_when when;
    uint32_t rank; /* whom it strikes; the sender for links */
    uint32_t peer; /* links: the receiver; UINT32_MAX: every one */
    /* *_JOIN: whose joins `at` counts; it need not be the rank that is struck */
    uint32_t joiner;
    /* partition: (world_size) who is on the one side, borrowed; else NULL. rank: whose collective
    ** `at` counts; peer is not used */
    const bool *side;
    uint64_t at;          /* ns, or ordinal of the collective, or of the join */
    uint64_t duration_ns; /* hang, slow_rank, link_cut, link_delay: for how long; 0: for good */
    /* slow_rank: permille of normal time; link_delay, link_reorder: ns added; chunk_corrupt,
    ** bit_flip: number of the bit; nan: element */
    uint64_t amount;
    /* whether it strikes is a choice (CDDP_CHOICE_FAULT); fifo: it does not */
    bool optional;
} cd_fault;

const char *cd_fault_name(cddp_event_enum_fault_kind kind);
const char *cd_fault_summary(cddp_event_enum_fault_kind kind);
cd_fault_scope cd_fault_get_scope(cddp_event_enum_fault_kind kind);
int32_t cd_fault_find(const char *name); /* -1 when there is none */
/* Is the fault meaningful in a world of this size? */
cddp_status cd_fault_check(const cd_fault *fault, uint32_t world_size,
                           cddp_error *err) CDDP_MUST_CHECK;
/* Does the fault hold back what source sends to target? */
bool cd_fault_cuts(const cd_fault *fault, uint32_t source, uint32_t target);
/* "rank 2 dies before its collective 5"; always terminated. */
void cd_fault_print(const cd_fault *fault, char *text, size_t text_bytes);
