/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as the list of what it sets: to be changed line by line, and written as a scenario file.
**
** A plan knows values; a draft knows which of them somebody chose. Taking a plan apart, putting a
** draft together and writing it all go through the key table, so that what is written is what the
** reader reads.
**
** Lifetime   init → take or copy → change → make, print … → fini. Everything in a draft lives in
**            its arena.
** Threads    one thread.
** Errors     CDDP_E_NOMEM; `make` also reports what a plan refuses.
*/
#pragma once
#include "core/plan/plan.h"

typedef struct cd_draft_setting {
    const cd_key_row *row;
    /* which [[table]], where the row belongs to one that repeats; -1: all, for some ranks */
    int64_t element;
    const char *ranks; /* a [[rank]] setting for these ranks, as a selection; NULL: for everybody */
    uint64_t wrapper;  /* a setting of one [[wrapper]], from 1; 0: of every one. It has ranks */
    const char **items;
    size_t item_count;
} cd_draft_setting;

typedef struct cd_draft {
    cd_arena arena;
    cd_draft_setting *settings; /* (count) in the order of the key table, then of the plan */
    size_t count, capacity;
    size_t element_count[CD_SCOPE_COUNT]; /* of the tables that repeat */
} cd_draft;

void cd_draft_init(cd_draft *draft);
void cd_draft_fini(cd_draft *draft); /* accepts a zeroed one */

/* What differs from the defaults. The draft is empty before. */
cddp_status cd_draft_take(cd_draft *draft, const cddp_plan *plan, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_draft_copy(cd_draft *draft, const cd_draft *from, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_draft_make(const cd_draft *draft, cddp_plan **plan, cddp_error *err) CDDP_MUST_CHECK;

/* The setting of a key for everybody ("train.steps"); NULL when it is at its default. Not for
** tables that repeat. */
cd_draft_setting *cd_draft_find(cd_draft *draft, const char *path);
/* Sets such a key to one item. */
cddp_status cd_draft_set(cd_draft *draft, const char *path, const char *item,
                         cddp_error *err) CDDP_MUST_CHECK;
/* A setting as it stands: the draft borrows its texts. */
cddp_status cd_draft_push(cd_draft *draft, const cd_draft_setting *setting,
                          cddp_error *err) CDDP_MUST_CHECK;
void cd_draft_remove(cd_draft *draft, size_t index);
void cd_draft_remove_element(cd_draft *draft, cd_key_scope scope, size_t element);

/* As TOML, from `schema = 1` on. Settings at their default are left out. */
void cd_draft_print(const cd_draft *draft, void (*write)(void *context, const char *text),
                    void *context);
