/* SPDX-License-Identifier: Apache-2.0 */
/* Was the judge shown the reduction that took place? Where a sum seems wrong, the judge reports a
** digest of all that it judged by: the operation, what every member posted, and the result. It is
** compared here with what the members and the rank reported themselves. A difference is one of the
** judge's copy: nobody added wrongly. Of a collective of the program it reports a digest of the
** result alone; of an all-gather that seems right, what it is.
**
** Judged from   group, collective_post, collective_done, and the marks CD_TRACER_SHOWN_SUM,
**               CD_TRACER_SHOWN_OUTPUT and CD_TRACER_SHOWN_FORM.
** Limits        the 64 latest operations of a rank in a group. Where a digest is missing nothing is
**               known, and the sum is wrong.
*/
#pragma once
#include "core/check/table.h"
#include "cddp/trace.h"

/* What the judge said of one operation on one rank. */
typedef struct cd_look {
    cddp_event event; /* the mark, without its text */
    int64_t op;       /* that was posted */
    int64_t result;   /* as the rank reported it */
    uint64_t seen;    /* what the digest must be */
    bool is_known;    /* every member's digest is there */
    bool is_output;   /* of a result alone */
    bool is_form;     /* of what the operation is, and no numbers */
    bool is_lost;     /* its operation is none of the latest any more */
} cd_look;

typedef struct cd_sights {
    cd_table recent;  /* (group, rank) → the latest posts */
    cd_table places;  /* (group, place) → rank + 1 */
    cd_ranks dones;   /* rank → the operation that it completed last */
    cd_table looks;   /* (group, sequence, rank) → cd_look */
    size_t settled;   /* so many of the first looks are not tried any more */
    bool takes_forms; /* marks CD_TRACER_SHOWN_FORM, too */
} cd_sights;

void cd_sights_init(cd_sights *sights, const cddp_allocator *allocator);
void cd_sights_fini(cd_sights *sights);
void cd_sights_push(cd_sights *sights, const cddp_event *event); /* ignores other kinds */
/* NULL: the judge was shown what took place, or nothing is known. */
const cd_look *cd_sights_find_wrong(const cd_sights *sights, const cd_key *operation);
/* The position-th wrong one, NULL past the last; *key: its operation and rank. */
const cd_look *cd_sights_get_wrong(const cd_sights *sights, size_t position, const cd_key **key);
