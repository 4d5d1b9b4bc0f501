/* SPDX-License-Identifier: Apache-2.0 */
/* The nearest of several names, by edit distance with transpositions. */
#include "core/base/suggest.h"

#include <stdbool.h>
#include <string.h>

#define NAME_MAX_LENGTH 48

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours cost one
** each. */
static size_t distance(const char *a, const char *b)
{
    size_t rows[3][NAME_MAX_LENGTH + 1];
    size_t n = strlen(a), m = strlen(b);
    if (n > NAME_MAX_LENGTH || m > NAME_MAX_LENGTH) return NAME_MAX_LENGTH;
    for (size_t j = 0; j <= m; j++) rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = rows[i % 3], *above = rows[(i - 1) % 3], *second = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            row[j] =
                least(least(above[j] + 1, row[j - 1] + 1), above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], second[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

void cd_suggest_begin(cd_suggestion *suggestion, const char *wanted)
{
    /* A third of the characters may be wrong: at least one, at most three. */
    size_t allowed = strlen(wanted) / 3;
    *suggestion = (cd_suggestion){wanted, NULL, allowed < 1 ? 2 : allowed > 3 ? 4 : allowed + 1};
}

void cd_suggest_offer(cd_suggestion *suggestion, const char *name)
{
    size_t typed = strlen(suggestion->wanted), d = distance(suggestion->wanted, name);
    /* A name that begins with the typed text, or that the typed text begins with, is near enough,
    ** unless another is nearer. */
    const size_t common = least(typed, strlen(name)), enough = typed <= strlen(name) ? 3 : 4;
    bool continues = common >= enough && strncmp(name, suggestion->wanted, common) == 0 &&
                     suggestion->best == NULL;
    if (continues && d >= suggestion->distance) d = suggestion->distance - 1;
    if (d >= suggestion->distance) return;
    suggestion->distance = d;
    suggestion->best = name;
}
