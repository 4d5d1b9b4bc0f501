/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a run, and the same again. */
#include "verify/explore/answers.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

void cd_answers_fini(cd_answers *answers)
{
    cd_release(NULL, answers->items, answers->capacity * sizeof *answers->items);
    *answers = (cd_answers){0};
}

static uint32_t listen_to(void *self, const cddp_choice *choice, cd_place place)
{
    cd_answers *a = self;
    const uint32_t chosen = a->inner->choose(a->inner->self, choice, place);
    a->has_failed = a->has_failed || !cd_vec_grow(NULL, (void **)&a->items, &a->capacity,
                                                  a->count + 1, sizeof *a->items);
    if (!a->has_failed) a->items[a->count++] = chosen;
    return chosen;
}

static cddp_status finish_inner(void *self, cd_place end, cddp_error *err)
{
    const cd_answers *a = self;
    return a->inner->finish != NULL ? CD_PASS(a->inner->finish(a->inner->self, end, err)) : CDDP_OK;
}

cd_chooser cd_answers_listen(cd_answers *answers, const cd_chooser *inner)
{
    answers->inner = inner;
    answers->count = answers->next = 0;
    answers->has_failed = false;
    return (cd_chooser){.self = answers,
                        .name = inner->name,
                        .choose = listen_to,
                        .finish = finish_inner};
}

void cd_answers_forget(cd_answers *answers) { answers->count = 0; }

/* A run that is asked something else is another one; the caller compares what was observed. */
static uint32_t repeat(void *self, const cddp_choice *choice, cd_place place)
{
    cd_answers *a = self;
    (void)place;
    const uint32_t said = a->next < a->count ? a->items[a->next++] : 0;
    return said < choice->option_count ? said : 0;
}

cd_chooser cd_answers_repeat(cd_answers *answers)
{
    answers->next = 0;
    return (cd_chooser){.self = answers, .name = "again", .choose = repeat};
}
