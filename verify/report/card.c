/* SPDX-License-Identifier: Apache-2.0 */
/* Judgements that are not of one run alone. */
#include "verify/report/card.h"

#include "core/base/alloc.h"

#include <string.h>

static const char *copy(cd_card *card, const char *text)
{
    const size_t bytes = text != NULL ? strlen(text) + 1 : 1;
    char *clean = bytes > 1 ? cd_arena_push(&card->arena, bytes) : NULL;
    if (bytes > 1 && clean == NULL) card->failed = true;
    if (clean == NULL) return "";
    memcpy(clean, text, bytes);
    cd_text_clean(clean);
    return clean;
}

void cd_card_init(cd_card *card, const char *command, const char *subject, bool is_file)
{
    *card = (cd_card){.command = command, .is_file = is_file, .verdict = "", .text = ""};
    cd_arena_init(&card->arena, NULL, 16384);
    card->subject = copy(card, subject);
}

void cd_card_fini(cd_card *card)
{
    cd_release(NULL, card->lines, card->line_capacity * sizeof *card->lines);
    cd_release(NULL, card->facts, card->fact_capacity * sizeof *card->facts);
    cd_arena_fini(&card->arena);
    *card = (cd_card){.command = NULL};
}

void cd_card_end(cd_card *card, const char *verdict, int exit_code, const char *text)
{
    card->verdict = copy(card, verdict);
    card->exit_code = exit_code;
    card->text = copy(card, text);
}

static const cd_card_fact *copy_facts(cd_card *card, const cd_card_fact *facts, size_t count)
{
    if (count == 0) return NULL;
    cd_card_fact *copies = cd_arena_array(&card->arena, count, sizeof *copies);
    if (copies == NULL) {
        card->failed = true;
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        copies[i] = facts[i];
        copies[i].name = copy(card, facts[i].name);
        if (facts[i].text != NULL) copies[i].text = copy(card, facts[i].text);
    }
    return copies;
}

void cd_card_add_line(cd_card *card, const cd_card_line *line)
{
    if (!cd_vec_grow(NULL, (void **)&card->lines, &card->line_capacity, card->line_count + 1,
                     sizeof *card->lines)) {
        card->failed = true;
        return;
    }
    cd_card_line *l = &card->lines[card->line_count++];
    *l = *line;
    l->name = copy(card, line->name);
    l->title = copy(card, line->title);
    l->message = copy(card, line->message);
    l->facts = copy_facts(card, line->facts, line->fact_count);
    if (l->facts == NULL) l->fact_count = 0;
}

static void add_fact(cd_card *card, const cd_card_fact *fact)
{
    if (cd_vec_grow(NULL, (void **)&card->facts, &card->fact_capacity, card->fact_count + 1,
                    sizeof *card->facts))
        card->facts[card->fact_count++] = *fact;
    else
        card->failed = true;
}

void cd_card_add_text(cd_card *card, const char *name, const char *text)
{
    add_fact(card, &(cd_card_fact){.name = name, .text = copy(card, text)});
}

void cd_card_add_number(cd_card *card, const char *name, double number)
{
    add_fact(card, &(cd_card_fact){.name = name, .number = number});
}

const char *cd_card_state_name(cd_card_state state)
{
    static const char *const names[] = {[CD_CARD_PASSED] = "passed",
                                        [CD_CARD_FAILED] = "failed",
                                        [CD_CARD_OPEN] = "open",
                                        [CD_CARD_SKIPPED] = "skipped"};
    return names[state];
}
