/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to make a scenario smaller: every single change that leaves less of it.
**
** An edit takes one thing away: ranks, steps or micro-steps (everything that names the later ones
** is renumbered), a parameter, a table, one setting, one item of a list, or makes one size smaller.
** None adds anything, with one exception: a model may be replaced, once, by a list of at most four
** parameters. So shrinking ends.
**
** Lifetime   an edit list is valid for the draft that it was made from.
** Errors     CDDP_E_NOMEM. An edit that cannot be made on this draft says so with *possible.
*/
#pragma once
#include "core/base/text.h"
#include "core/plan/draft.h"

typedef enum cd_edit_kind {
    CD_EDIT_RANKS, /* those from `first`, `count` of them */
    CD_EDIT_STEPS,
    CD_EDIT_MICRO_STEPS,
    CD_EDIT_ELEMENT,   /* [[table]] number `first` of scope `at` */
    CD_EDIT_SETTING,   /* setting `at` back to its default */
    CD_EDIT_ITEM,      /* item `first` of the list of setting `at` */
    CD_EDIT_TERM,      /* term `first` of the selection of setting `at` */
    CD_EDIT_MODEL,     /* the model becomes `count` parameters */
    CD_EDIT_PARAMETER, /* parameters of model params from `first`, `count` of them */
    CD_EDIT_SHAPE,     /* parameter `first` of model params gets `count` elements */
    CD_EDIT_OPTION,    /* option `first` of the model options in setting `at` back to its default */
    CD_EDIT_PIECE,     /* piece `count` of the list that is option `first` */
    CD_EDIT_SIZE,      /* model option number `first` of the model becomes `count` */
    CD_EDIT_NUMBER,    /* setting `at` becomes `count` */
    CD_EDIT_CAP        /* setting `at`, a bucket size, doubles: fewer buckets */
} cd_edit_kind;

typedef struct cd_edit {
    cd_edit_kind kind;
    size_t at, first, count;
} cd_edit;

typedef struct cd_edit_list {
    cd_edit *items; /* (count) the most that can go comes first */
    size_t count, capacity;
} cd_edit_list;

void cd_edit_list_fini(cd_edit_list *list);

/* Makes the sizes that every scenario has (ranks, steps, micro-steps, samples) visible to edits,
** and drops what says nothing about the run: story, tags, expectations, and who decides. */
cddp_status cd_edit_prepare(cd_draft *draft, cddp_error *err) CDDP_MUST_CHECK;
/* Orders that were drawn become orders that the chooser decides; *found: there were some. */
cddp_status cd_edit_unshuffle(cd_draft *draft, bool *found, cddp_error *err) CDDP_MUST_CHECK;
/* coarse: also edits that take several things at once. */
cddp_status cd_edit_list_make(cd_edit_list *list, cd_draft *draft, bool coarse,
                              cddp_error *err) CDDP_MUST_CHECK;
/* `to` is empty before. */
cddp_status cd_edit_apply(const cd_edit *edit, const cd_draft *from, cd_draft *to, bool *possible,
                          cddp_error *err) CDDP_MUST_CHECK;
/* "rank 2", "ddp.bucket_cap_mb": what the edit takes away, in words. */
void cd_edit_print(const cd_edit *edit, const cd_draft *from, cd_text *text);
