/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks add up before each reduction: the backwards of a window (no_sync).
**
** Ranks whose windows have other lengths make a mean of other sums, whatever each divides by.
** Gradients that a backward leaves unreduced, and that zero_grad drops, never reach a reduction. A
** rank may have them for itself, to adapt its parameters for the next forward.
** Where a program has several modules that may be meant: a generator's backward leaves gradients
** in the discriminator. So it may with reduced gradients that no optimizer takes: a step that an
** overflow skips.
**
** A program without a wrapper says by cddp_record_micro_step or cddp_record_samples where a further
** backward begins; there the recorder looks at what the last one left. Where each gradient is shown
** twice and nothing was said in between, nor before the reduction, nobody looked. A weight that is
** used twice may be shown twice in one backward, so some gradients prove nothing.
**
** Lifetime   init → push every event → end → read → fini.
** Errors     without memory nothing is shown.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"

typedef struct cd_windows_length {
    uint32_t backwards, step;
} cd_windows_length;

typedef struct cd_windows_rank {
    cd_windows_length *lengths; /* (count) of each window that was reduced */
    size_t count, capacity;
    uint32_t backwards;     /* of the window at hand */
    uint32_t own_backwards; /* of a program without a wrapper; 0: it has shown no gradient since the
                               last reduction */
    /* of such a program, since it said where a backward begins: gradients that were shown, and
    ** shown once more; and how many backwards they had before */
    uint32_t shown, again;
    int64_t before;
    uint32_t micro_step; /* of the last one */
    int64_t group;       /* of its wrapper */
    bool has_wrapper, has_join;
    bool is_recorded;   /* by what the program says (cddp/record.h) */
    bool has_unreduced; /* gradients of the window at hand */
    bool has_dropped;   /* such gradients, and has shown no other since */
    bool has_forward;   /* of the wrapper, in the window at hand; has_forwards: ever */
    bool has_forwards;
    bool is_untaken;   /* reduced, and no optimizer has stepped since */
    uint64_t untaken;  /* such reductions that zero_grad dropped */
    int64_t optimizer; /* that stepped last, */
    uint32_t taken;    /* + 1: in this step; 0: none did */
    uint32_t step;     /* of the rank's last backward */
} cd_windows_rank;

/* The first place: by step, and then by rank. */
typedef struct cd_windows_place {
    uint64_t count; /* 0: none */
    uint32_t rank, step;
} cd_windows_place;

typedef struct cd_windows {
    const cddp_allocator *allocator;
    cd_windows_rank *ranks; /* (rank_count) */
    uint32_t rank_count;
    cd_windows_place
        uneven; /* windows in which a rank adds up another number than the first of its group */
    cd_windows_place dropped;     /* windows, or their begins, that no reduction ever saw */
    cd_windows_place unnumbered;  /* an optimizer's step with the number of its last one, behind
                                    another reduction */
    cd_windows_place unannounced; /* backwards that add to gradients at which nobody looked */
    uint64_t
        untaken; /* reductions that were dropped before a step, of the rank with most of them */
    bool is_out_of_memory;
} cd_windows;

cddp_status cd_windows_init(cd_windows *windows, uint32_t rank_count,
                            const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
void cd_windows_fini(cd_windows *windows); /* accepts a zeroed one */
/* event->rank is below rank_count. */
void cd_windows_push(cd_windows *windows, const cddp_event *event);
/* After the last event: compares the ranks. */
void cd_windows_end(cd_windows *windows);
