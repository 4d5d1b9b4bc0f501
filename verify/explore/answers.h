/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of a run behind the moment that was kept, so that the same schedule runs again.
**
** Lifetime   zeroed → (listen, a run, repeat, a run)* → fini. The choosers borrow the answers.
** Errors     without memory for them a run cannot be repeated; has_failed says so.
*/
#pragma once
#include "sim/chooser.h"

typedef struct cd_answers {
    const cd_chooser *inner; /* gives them */
    uint32_t *items;         /* (count) */
    size_t count, capacity, next;
    bool has_failed;
} cd_answers;

void cd_answers_fini(cd_answers *answers);
/* Asks inner, and writes down what it says. Borrows it until the run has ended. */
cd_chooser cd_answers_listen(cd_answers *answers, const cd_chooser *inner);
/* What was said so far belongs to the beginning. */
void cd_answers_forget(cd_answers *answers);
cd_chooser cd_answers_repeat(cd_answers *answers);
