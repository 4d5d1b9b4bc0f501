/* SPDX-License-Identifier: Apache-2.0 */
/* docs/howto/vary.md against the language: every key, plant and scenario that it names exists, and
** each scenario of a row, or one of them, says what the row's keys say.
*/
#include "backends/compose/plant.h"
#include "core/plan/keys.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GATHERED_BYTES (1u << 22)

static char *read_text(const char *path)
{
    char whole[1024];
    snprintf(whole, sizeof whole, "%s/%s", CDDP_ROOT, path);
    FILE *file = fopen(whole, "rb");
    char *text = calloc(1, 1u << 20);
    assert_non_null(text);
    if (file == NULL) fail_msg("%s is not there", path);
    assert_true(fread(text, 1, (1u << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

/* Does the text have a line "field = …", "[table]\nfield = …" or "….field = …"? */
static bool says(const char *text, const char *field)
{
    const size_t length = strlen(field);
    for (const char *at = text; (at = strstr(at, field)) != NULL; at += length) {
        const bool begins = at == text || at[-1] == '\n' || at[-1] == '.';
        if (begins && (strncmp(at + length, " =", 2) == 0)) return true;
    }
    return false;
}

static bool is_plant(const char *word)
{
    for (int i = CD_PLANT_NONE + 1; i < CD_PLANT_COUNT; i++) {
        if (strcmp(cd_plant_word((cd_plant)i), word) == 0) return true;
    }
    return false;
}

/* What the scenario has to contain for `word`, a key or a value; asserts that there is such a
** thing. */
static bool row_says(const char *scenarios, const char *word)
{
    char table[64] = "";
    const char *dot = strrchr(word, '.');
    if (strncmp(word, "fault:plant=", 12) == 0) {
        assert_true(is_plant(word + 12));
        return strstr(scenarios, word + 6) != NULL;
    }
    if (dot == NULL) {
        return strstr(scenarios, word) != NULL; /* a hook's name */
    }
    snprintf(table, sizeof table, "%.*s", (int)(dot - word), word);
    if (strcmp(word, "rank.ranks") != 0 && cd_key_find(table, dot + 1) == NULL)
        fail_msg("there is no key %s", word);
    return says(scenarios, dot + 1);
}

/* All scenarios that a row links to, one behind the other. */
static char *gather(const char *row)
{
    size_t used = 0;
    char *all = calloc(1, GATHERED_BYTES);
    assert_non_null(all);
    for (const char *at = row; (at = strstr(at, "](../../")) != NULL; at += 8) {
        char path[256];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(at + 8, ")"), at + 8);
        char *text = read_text(path);
        used += (size_t)snprintf(all + used, GATHERED_BYTES - used, "\n%s", text);
        assert_true(used < GATHERED_BYTES);
        free(text);
    }
    return all;
}

static size_t check_row(const char *row)
{
    size_t words = 0;
    char *scenarios = gather(row);
    if (scenarios[0] == '\0') fail_msg("no scenario in: %s", row);
    for (const char *at = strchr(row, '`'); at != NULL; at = strchr(at, '`')) {
        char word[96];
        const size_t length = strcspn(at + 1, "`");
        snprintf(word, sizeof word, "%.*s", (int)length, at + 1);
        if (!row_says(scenarios, word)) fail_msg("no scenario of the row says %s: %s", word, row);
        words++;
        at += length + 2;
    }
    free(scenarios);
    return words;
}

TEST(vary, every_row_of_the_page_names_keys_that_its_scenarios_use)
{
    (void)state;
    char *page = read_text("docs/howto/vary.md");
    size_t rows = 0;
    for (char *line = page, *next; *line != '\0'; line = next) {
        const size_t length = strcspn(line, "\n");
        next = line + length + (line[length] == '\n');
        line[length] = '\0';
        if (strncmp(line, "| ", 2) != 0 || strncmp(line, "| to say", 8) == 0) continue;
        assert_true(check_row(line) > 0);
        rows++;
    }
    assert_true(rows > 60);
    free(page);
}

TEST(vary, every_plant_of_a_backend_has_a_row)
{
    (void)state;
    char *page = read_text("docs/howto/vary.md");
    for (int i = CD_PLANT_NONE + 1; i < CD_PLANT_COUNT; i++) {
        char word[64];
        snprintf(word, sizeof word, "`fault:plant=%s`", cd_plant_word((cd_plant)i));
        cd_test_row("%s", word);
        assert_non_null(strstr(page, word));
    }
    free(page);
}

TEST_MAIN()
