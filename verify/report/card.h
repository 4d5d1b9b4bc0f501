/* SPDX-License-Identifier: Apache-2.0 */
/* A judgement that is not of one run alone: a search, a proof, a battery of laws, a comparison.
**
** A card has a line for everything that was asked, facts that say how far the answer reaches, and
** the report as a terminal shows it. All formats but text are made from it.
**
** Lifetime   init → add… → fini. Texts are copied clean.
** Errors     exhausted memory is recorded in `failed`; the reports of such a card fail too.
*/
#pragma once
#include "core/base/arena.h"
#include "core/base/text.h"

typedef enum cd_card_state {
    CD_CARD_PASSED,
    CD_CARD_FAILED,
    CD_CARD_OPEN,   /* it was not decided */
    CD_CARD_SKIPPED /* it does not apply, or was not run */
} cd_card_state;

typedef struct cd_card_fact {
    const char *name; /* a key of JSON: "schedules" */
    const char *text; /* NULL: a number */
    double number;
} cd_card_fact;

typedef struct cd_card_line {
    cd_card_state state;
    const char *name;    /* "replicas", "allreduce f32": stable, without numbers of this run */
    const char *title;   /* what was asked */
    const char *message; /* what was found, or why it was not run; "" */
    uint64_t case_count; /* 0: not counted */
    /* (fact_count) what was set and measured for this line */
    const cd_card_fact *facts;
    size_t fact_count;
} cd_card_line;

typedef struct cd_card {
    cd_arena arena;
    const char *command; /* "explore" */
    const char *subject; /* a scenario, a hook, a backend, a recording */
    bool is_file;        /* the subject is a path */
    const char *verdict; /* "proved", "conforms" */
    int exit_code;
    cd_card_line *lines; /* (line_count) */
    size_t line_count, line_capacity;
    cd_card_fact *facts; /* (fact_count) */
    size_t fact_count, fact_capacity;
    const char *text;
    bool failed;
} cd_card;

void cd_card_init(cd_card *card, const char *command, const char *subject, bool is_file);
void cd_card_fini(cd_card *card); /* accepts a zeroed one */
void cd_card_end(cd_card *card, const char *verdict, int exit_code, const char *text);

void cd_card_add_line(cd_card *card, const cd_card_line *line);
void cd_card_add_text(cd_card *card, const char *name, const char *text);
void cd_card_add_number(cd_card *card, const char *name, double number);

const char *cd_card_state_name(cd_card_state state); /* "passed" */
