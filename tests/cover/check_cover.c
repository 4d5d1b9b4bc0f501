/* SPDX-License-Identifier: Apache-2.0 */
/* check_cover FILE: is this certificate what it claims? Shares nothing with the program that wrote
** it, not even a header.
**
** A certificate of strength t over n events lists orders of all n events. It is valid when every
** sequence of t different events occurs in at least one of them, in that order, not necessarily
** adjacent. Docs: docs/formats/cover.md. Exit 0 and one line when it is valid; 1 and one line
** when it is not; 2 when there is no such file.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_MAX 128
#define STRENGTH_MAX 4

static unsigned strength, events, orders, ranks, shift;
static unsigned char *covered; /* (events ^ strength) */

static int refuse(const char *why, unsigned number)
{
    printf("refused: %s (%u)\n", why, number);
    return 1;
}

static int read_number(FILE *file, const char *name, unsigned *value)
{
    char word[16];
    return fscanf(file, "%15s %u", word, value) == 2 && strcmp(word, name) == 0;
}

/* Marks every way to go on from `depth` chosen events, the last of them at place `from` - 1. */
static void mark(const unsigned *order, unsigned from, unsigned depth, size_t index)
{
    if (depth == strength) {
        covered[index] = 1;
        return;
    }
    for (unsigned i = from; i < events; i++)
        mark(order, i + 1, depth + 1, index * events + order[i]);
}

/* How many sequences of different events were not marked. */
static size_t count_missing(unsigned *chosen, unsigned depth, size_t index)
{
    if (depth == strength) return !covered[index];
    size_t missing = 0;
    for (unsigned e = 0; e < events; e++) {
        int is_used = 0;
        for (unsigned i = 0; i < depth; i++) is_used |= chosen[i] == e;
        chosen[depth] = e;
        if (!is_used) missing += count_missing(chosen, depth + 1, index * events + e);
    }
    return missing;
}

static int read_order(FILE *file, unsigned *order)
{
    char word[16], seen[EVENTS_MAX] = {0};
    if (fscanf(file, "%15s", word) != 1 || strcmp(word, "order") != 0) return 0;
    for (unsigned i = 0; i < events; i++) {
        if (fscanf(file, "%u", &order[i]) != 1 || order[i] >= events || seen[order[i]]) return 0;
        seen[order[i]] = 1;
    }
    return 1;
}

static int check(FILE *file)
{
    char word[24];
    unsigned version = 0, order[EVENTS_MAX], chosen[STRENGTH_MAX], id = 0, previous = 0;
    if (!read_number(file, "cddp-cover", &version) || version != 1)
        return refuse("not a certificate of version", 1);
    if (fscanf(file, " plan %23[0-9a-f]", word) != 1 || strlen(word) != 16)
        return refuse("the plan's digest has other than so many digits", 16);
    if (!read_number(file, "strength", &strength) || strength < 2 || strength > STRENGTH_MAX)
        return refuse("strength", strength);
    if (!read_number(file, "events", &events) || events < strength || events > EVENTS_MAX)
        return refuse("events", events);
    if (!read_number(file, "orders", &orders) || orders == 0) return refuse("orders", orders);
    if (!read_number(file, "ranks", &ranks) || ranks == 0) return refuse("ranks", ranks);
    if (!read_number(file, "shift", &shift)) return refuse("shift", shift);
    for (unsigned i = 0; i < events; previous = id, i++)
        if (!read_number(file, "event", &id) || (i > 0 && id <= previous))
            return refuse("events are not listed in ascending order", i);
    size_t tuples = 1;
    for (unsigned i = 0; i < strength; i++) tuples *= events;
    covered = calloc(tuples, 1);
    if (covered == NULL) return refuse("no memory for so many events", events);
    for (unsigned i = 0; i < orders; i++) {
        if (!read_order(file, order))
            return refuse("this order is no permutation of the events", i);
        mark(order, 0, 0, 0);
    }
    if (fscanf(file, "%15s", word) != 1 || strcmp(word, "end") != 0 ||
        fscanf(file, "%15s", word) == 1)
        return refuse("it does not end after its orders", orders);
    size_t missing = count_missing(chosen, 0, 0);
    if (missing > 0) return refuse("sequences of events that are in no order", (unsigned)missing);
    printf("covered: every %u of %u events occur in every order in one of %u orders, which each of "
           "%u ranks plays\n",
           strength, events, orders, ranks);
    return 0;
}

int main(int argc, char **argv)
{
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (file == NULL) return fprintf(stderr, "usage: check_cover FILE\n"), 2;
    int result = check(file);
    fclose(file);
    free(covered);
    return result;
}
