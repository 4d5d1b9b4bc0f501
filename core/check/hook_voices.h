/* SPDX-License-Identifier: Apache-2.0 */
/* Which laws each rank states of each bucket, call by call: a part of I-HOOK.
**
** All ranks run one hook, so they state one law alike often; one that cannot says so by an infinite
** bound (cddp_law). What a rank leaves out is not judged there. Of the library's own hooks the plan
** says how many laws a rank owes: then nobody is asked here.
**
** Lifetime   init → take … → report → fini. Borrows the check's writer.
** Limits     ranks are compared that completed equally many calls for a bucket. Where a number is
**            not finite hooks may be silent, and nobody is asked. What no rank states in a call is
**            nobody's fault, and what at least half of the ranks never state may be the others'
**            alone. Of a bucket sixteen laws are known.
*/
#pragma once
#include "core/check/writer.h"

typedef struct cd_hook_voices {
    cd_writer *writer;
    cd_table voices; /* (rank, bucket) → what is stated, and in which call */
    cd_table names;  /* (hash) → the law's name */
    bool is_owed;    /* the plan says how many laws are owed */
    bool is_silent;  /* some number was not finite */
} cd_hook_voices;

void cd_hook_voices_init(cd_hook_voices *voices, cd_writer *writer,
                         const cddp_allocator *allocator);
void cd_hook_voices_fini(cd_hook_voices *voices);
/* hook_call, hook_done, hook_law, owed, grad_local, grad_final; ignores other kinds. */
void cd_hook_voices_take(cd_hook_voices *voices, const cddp_event *event, int64_t group);
/* What the rank has called and not completed is called no more. */
void cd_hook_voices_drop(cd_hook_voices *voices, uint32_t rank);
void cd_hook_voices_report(cd_hook_voices *voices);
