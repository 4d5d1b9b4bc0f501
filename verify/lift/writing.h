/* SPDX-License-Identifier: Apache-2.0 */
/* A scenario that is being written.
**
**   write.c              the file, the training loop, and how ranks ended
**   write_model.c        what all ranks have
**   write_passes.c       what differs from pass to pass
**   write_collectives.c  what the program communicates by itself
*/
#pragma once
#include "verify/lift/lift.h"

/* A place of the loop in which something differs, and what it is: equal words share a table. */
typedef struct cd_writing_place {
    uint32_t rank, step;
    int64_t micro_step; /* -1: of the whole step */
    const char *words;  /* lines of the table */
} cd_writing_place;

typedef struct cd_writing {
    cd_lift *l;
    cd_text *out;
    int64_t scale; /* sizes are divided by it */
    bool has_gradients;
    uint32_t steps, micro_steps, epochs; /* epochs: of join, at most of a rank */
    cd_writing_place *places;            /* (place_count) */
    size_t place_count, place_capacity;
    size_t when_count;
} cd_writing;

#define CD_WRITING_NOTE(w, ...) cd_lift_note((w)->l, cd_arena_printf(&(w)->l->arena, __VA_ARGS__))

/* ---- write_model.c ---- */

void cd_writing_put_quoted(cd_text *text, const char *words);
void cd_writing_put_real(cd_text *text, double value);
/* "0-2,5" of the marked ones; *is_all when every one is. */
const char *cd_writing_print_selection(cd_arena *arena, const bool *marks, uint32_t count,
                                       bool *is_all);
const char *cd_writing_name_of(const cd_lift *lift, int64_t variable); /* "?": it has none */
void cd_writing_choose_scale(cd_writing *writing);
bool cd_writing_has_gradients(cd_writing *writing);
void cd_writing_caps(cd_writing *writing);
cddp_status cd_writing_model(cd_writing *writing, cddp_error *err) CDDP_MUST_CHECK;
void cd_writing_settings(cd_writing *writing);
void cd_writing_rank_settings(cd_writing *writing);
void cd_writing_hook(cd_writing *writing);
void cd_writing_optimizer(cd_writing *writing);

/* ---- write_passes.c ---- */

/* A line of the marked ones, unless all are. */
void cd_writing_put_selection(cd_writing *writing, const char *key, const bool *marks,
                              uint32_t count);
/* Of all passes that say it; -1: they differ. */
int64_t cd_writing_common_samples(const cd_lift *lift);
void cd_writing_count_loop(cd_writing *writing);
void cd_writing_passes(cd_writing *writing, int64_t samples);

/* ---- write_collectives.c ---- */

/* Rank `a` in `step` and rank `b` in step `other` post the same at this place. */
bool cd_writing_posts_alike(const cd_lift *lift, uint32_t a, uint32_t step, uint32_t b,
                            uint32_t other, cd_lift_place at);
void cd_writing_groups(cd_writing *writing);
void cd_writing_collectives(cd_writing *writing);
