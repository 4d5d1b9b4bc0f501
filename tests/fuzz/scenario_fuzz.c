/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a scenario file: a plan, or mistakes with places inside the text; never anything
** else. A plan resolves for its ranks, and what a draft of it prints is read as the same plan.
**
** Lines "#--set KEY=VALUE" are what the command line sets over the file. */
#include "core/base/arena.h"
#include "core/plan/draft.h"
#include "scenarios/reader/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);

#define SETS_MAX 8

typedef struct places {
    uint32_t lines, complaints;
} places;

static void check_place(void *context, const cd_complaint *complaint)
{
    places *p = context;
    char text[512];
    p->complaints++;
    if (complaint->message == NULL || complaint->line > p->lines + 1) abort();
    (void)cd_complaint_print(complaint, text, sizeof text);
}

/* ---- text ---- */

typedef struct growing {
    char *text;
    size_t used, capacity;
} growing;

static void grow(void *context, const char *text)
{
    growing *g = context;
    size_t length = strlen(text);
    if (g->used + length + 1 > g->capacity) {
        g->capacity = 2 * (g->used + length + 1);
        g->text = realloc(g->text, g->capacity);
        if (g->text == NULL) abort();
    }
    memcpy(g->text + g->used, text, length + 1);
    g->used += length;
}

/* Takes the lines "#--set …" out of the text as sets, which lie in it. */
static size_t find_sets(const char *text, char *copy, const char *sets[SETS_MAX])
{
    static const char mark[] = "#--set ";
    size_t count = 0;
    for (const char *at = strstr(text, mark); at != NULL && count < SETS_MAX;
         at = strstr(at, mark)) {
        at += sizeof mark - 1;
        size_t length = strcspn(at, "\n");
        sets[count++] = copy;
        memcpy(copy, at, length);
        copy[length] = '\0';
        copy += length + 1;
        at += length;
    }
    return count;
}

/* ---- what a plan must bear ---- */

static char *write_plan(const cddp_plan *plan)
{
    cddp_error err = CDDP_ERROR_INIT;
    growing g = {0};
    cd_draft draft;
    cd_draft_init(&draft);
    if (cd_draft_take(&draft, plan, &err) != CDDP_OK) abort();
    cd_draft_print(&draft, grow, &g);
    cd_draft_fini(&draft);
    return g.text;
}

/* The settings of a rank, as a draft without overrides would print them. */
static void write_rank(const cddp_plan *plan, uint32_t rank, growing *g)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan_settings settings;
    cd_arena arena;
    cd_arena_init(&arena, NULL, 8192);
    if (cddp_plan_rank_settings(plan, rank, &settings, &err) != CDDP_OK) abort();
    for (size_t i = 0; i < cd_key_count(); i++) {
        const cd_key_row *row = cd_key_row_get(i);
        cd_key_value value;
        if (row->scope != CD_SCOPE_RANK) continue;
        if (cd_key_print(row, (const char *)&settings + row->offset, &arena, &value, &err) !=
            CDDP_OK)
            abort();
        grow(g, row->field);
        for (size_t k = 0; k < value.count; k++) {
            grow(g, "|");
            grow(g, value.items[k]);
        }
    }
    cd_arena_fini(&arena);
}

static void check_same_rank(const cddp_plan *plan, const cddp_plan *again, uint32_t rank)
{
    growing one = {0}, other = {0};
    write_rank(plan, rank, &one);
    write_rank(again, rank, &other);
    if (strcmp(one.text, other.text) != 0) {
        fprintf(stderr, "rank %u:\n%s\n%s\n", rank, one.text, other.text);
        abort();
    }
    free(one.text);
    free(other.text);
}

/* A written plan reads as the same plan. */
static void check_draft(const cddp_plan *plan)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *again = NULL;
    char *text = write_plan(plan);
    if (cd_reader_read_text(&(cd_reader_options){0}, "draft.toml", text, &again, &err) != CDDP_OK) {
        fprintf(stderr, "%s\n%s", err.message, text);
        abort();
    }
    /* An override may be spelled otherwise, and overrides of one table stand in another order. */
    if (plan->override_count != again->override_count ||
        (plan->override_count == 0 && cddp_plan_digest(plan) != cddp_plan_digest(again))) {
        fprintf(stderr, "not the same plan:\n%s", text);
        abort();
    }
    for (uint32_t i = 0; i < 3 && i < plan->world.size; i++)
        check_same_rank(plan, again, i < 2 ? i : (uint32_t)plan->world.size - 1);
    cddp_plan_destroy(again);
    free(text);
}

static void check_plan(const cddp_plan *plan)
{
    cddp_error err = CDDP_ERROR_INIT;
    uint64_t digest = cddp_plan_digest(plan);
    if (plan->world.size == 0 || plan->world.size > UINT32_MAX) abort();
    cddp_status checked = cddp_plan_check(plan, &err);
    if (checked != CDDP_OK && err.message[0] == '\0') abort();
    /* the reader asked the same */
    if (checked != CDDP_OK && plan->expect.verdict != CDDP_EXPECT_ERROR) abort();
    check_draft(plan);
    if (cddp_plan_digest(plan) != digest) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    char *text = malloc(byte_count + 1), *copy = malloc(byte_count + SETS_MAX + 1);
    const char *sets[SETS_MAX];
    if (text == NULL || copy == NULL) abort();
    places p = {1, 0};
    if (byte_count > 0) memcpy(text, bytes, byte_count);
    text[byte_count] = '\0';
    for (const char *c = text; *c != '\0'; c++) p.lines += *c == '\n';
    cd_reader_options options = {.complain = check_place,
                                 .context = &p,
                                 .sets = sets,
                                 .set_count = find_sets(text, copy, sets)};
    cddp_plan *plan = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_status status = cd_reader_read_text(&options, "fuzz.toml", text, &plan, &err);
    if ((status == CDDP_OK) != (plan != NULL)) abort();
    if (status == CDDP_OK)
        check_plan(plan);
    else if (err.message[0] == '\0' || (status == CDDP_E_CONFIG && p.complaints == 0))
        abort();
    cddp_plan_destroy(plan);
    free(copy);
    free(text);
    return 0;
}
