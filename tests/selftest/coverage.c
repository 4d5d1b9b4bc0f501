/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the points of points.def cover what they must. */
#include "tests/selftest/coverage.h"

#include "core/reference/observed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words of one enum, each with a zero behind it. */
typedef struct enum_row {
    const char *name, *words;
} enum_row;

static const enum_row enums[] = {
#define CDDP_WORD(constant, word) word "\0"
#define CDDP_EVENT_ENUM(name, words) {#name, words ""},
#include "cddp/events.def"
#undef CDDP_WORD
};

typedef struct cover {
    const st_point *points;
    size_t count;
    bool is_silent;
    size_t asked, missing;
} cover;

static bool covers(const char *list, const char *wanted)
{
    const size_t length = strlen(wanted);
    for (const char *at = list; (at = strstr(at, wanted)) != NULL; at++) {
        const bool is_begin = at == list || at[-1] == ';';
        if (is_begin && (at[length] == '\0' || at[length] == ';')) return true;
    }
    return false;
}

static void ask(cover *c, const char *kind, const char *word)
{
    char wanted[160];
    snprintf(wanted, sizeof wanted, "%s: %s", kind, word);
    c->asked++;
    for (size_t p = 0; p < c->count; p++) {
        if (covers(c->points[p].covers, wanted)) return;
    }
    c->missing++;
    if (!c->is_silent) fprintf(stderr, "tests/selftest/points.def: no point covers '%s'\n", wanted);
}

/* Recordings alone have them: the run of a plan ends with its group, and has one set of parameters.
*/
static bool is_of_recordings(const char *word)
{
    return strcmp(word, "exit") == 0 || strcmp(word, "adapted") == 0;
}

static void ask_all(cover *c)
{
    for (size_t i = 0; i < sizeof enums / sizeof enums[0]; i++) {
        if (strcmp(enums[i].name, "moment") != 0 && strcmp(enums[i].name, "decision") != 0)
            continue;
        for (const char *word = enums[i].words; *word != '\0'; word += strlen(word) + 1)
            if (!is_of_recordings(word)) ask(c, enums[i].name, word);
    }
    /* which members meet is in no field and no moment */
    ask(c, "group", "of a wrapper");
    ask(c, "group", "of a collective");
    const char *moment = "";
    for (size_t i = 0; i < cd_observed_count(); i++) {
        const cd_observed_row *row = cd_observed_get(i);
        char field[128];
        if (row->moment != NULL) moment = row->moment; /* the row of the moment itself */
        snprintf(field, sizeof field, "%s.%s", moment, row->field != NULL ? row->field : "");
        if (row->field != NULL) ask(c, "observed", field);
    }
}

bool st_coverage_check(const st_point *points, size_t count)
{
    cover c = {.points = points, .count = count};
    ask_all(&c);
    return c.missing == 0;
}

/* How many answers are missing when no point says `word`. */
static size_t missing_without(const char *word)
{
    st_point *left = calloc(st_point_count, sizeof *left);
    cover c = {.points = left, .is_silent = true};
    if (left == NULL) abort();
    for (size_t i = 0; i < st_point_count; i++) {
        if (!covers(st_points[i].covers, word)) left[c.count++] = st_points[i];
    }
    ask_all(&c);
    free(left);
    return c.missing;
}

bool st_coverage_plant(void)
{
    static const char *const planted[] = {"moment: begin of step", "decision: hook option",
                                          "observed: reduced.gradients", "group: of a wrapper"};
    bool good = true;
    for (size_t i = 0; i < sizeof planted / sizeof planted[0]; i++) {
        if (missing_without(planted[i]) > 0) continue;
        fprintf(stderr, "without a point for '%s' the rule is silent\n", planted[i]);
        good = false;
    }
    return good;
}
