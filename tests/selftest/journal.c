/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing journals. */
#include "tests/selftest/journal.h"

#include "core/base/error.h"
#include "core/base/hash.h"

#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 4096

/* This program itself: another build measures another verifier. */
static uint64_t build_of(void)
{
    static unsigned char bytes[1 << 16];
    uint64_t digest = 0;
    FILE *file = fopen("/proc/self/exe", "rb");
    if (file == NULL) return 0;
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, file)) > 0;)
        digest = cd_hash64(bytes, n, digest);
    fclose(file);
    return digest;
}

static void push_text(FILE *file, const char *text)
{
    fputc('\t', file);
    for (; *text != '\0'; text++) fputc(*text == '\t' || *text == '\n' ? ' ' : *text, file);
}

static void take_text(char **line, char *text, size_t bytes)
{
    char *field = *line != NULL ? *line : "";
    char *end = strchr(field, '\t');
    if (end != NULL) *end = '\0';
    snprintf(text, bytes, "%s", field);
    *line = end != NULL ? end + 1 : NULL;
}

/* false: the line is cut off, as where the writer was killed. */
static bool read_line(char *line, size_t *index, st_outcome *o)
{
    int end, kind, exit_code;
    unsigned step;
    unsigned long long number, ranks;
    char *at = strchr(line, '\t');
    *o = (st_outcome){.end = ST_END_SILENT};
    if (at == NULL || line[strlen(line) - 1] != '\n') return false;
    line[strlen(line) - 1] = '\0';
    if (sscanf(line, "%llu\t%d %d %d %u %llx", &number, &end, &kind, &exit_code, &step, &ranks) !=
        6)
        return false;
    o->end = (st_end)end;
    o->kind = (st_class)kind;
    o->exit_code = exit_code;
    o->struck_step = step;
    o->struck_ranks = ranks;
    *index = (size_t)number;
    at = strchr(at + 1, '\t');
    at = at != NULL ? at + 1 : NULL;
    take_text(&at, o->struck, sizeof o->struck);
    take_text(&at, o->said, sizeof o->said);
    take_text(&at, o->wrong, sizeof o->wrong);
    take_text(&at, o->stored, sizeof o->stored);
    return end >= 0 && end < ST_ENDS && kind >= 0 && kind < ST_CLASSES;
}

cddp_status st_journal_open(st_journal *journal, const char *path, const st_journal_head *head,
                            void (*take)(void *context, size_t index, const st_outcome *outcome),
                            void *context, cddp_error *err)
{
    char wanted[160], line[LINE_BYTES];
    snprintf(wanted, sizeof wanted, "selftest journal 1: seed %llu, %llu cases, build %016llx\n",
             (unsigned long long)head->seed, (unsigned long long)head->cases,
             (unsigned long long)build_of());
    journal->file = fopen(path, "a+");
    if (journal->file == NULL) return cd_fail(err, CDDP_E_IO, "cannot open %s", path);
    rewind(journal->file);
    if (fgets(line, sizeof line, journal->file) == NULL) {
        fputs(wanted, journal->file);
    } else if (strcmp(line, wanted) != 0) {
        return cd_fail(err, CDDP_E_ARG,
                       "%s is of another build, seed or list of cases; begin a new journal", path);
    }
    while (fgets(line, sizeof line, journal->file) != NULL) {
        st_outcome outcome;
        size_t index;
        if (read_line(line, &index, &outcome) && index < head->cases)
            take(context, index, &outcome);
    }
    fseek(journal->file, 0, SEEK_END);
    return CDDP_OK;
}

cddp_status st_journal_add(st_journal *journal, size_t index, const st_outcome *o, cddp_error *err)
{
    fprintf(journal->file, "%zu\t%d %d %d %u %llx", index, (int)o->end, (int)o->kind, o->exit_code,
            o->struck_step, (unsigned long long)o->struck_ranks);
    push_text(journal->file, o->struck);
    push_text(journal->file, o->said);
    push_text(journal->file, o->wrong);
    push_text(journal->file, o->stored);
    return fputc('\n', journal->file) != EOF
               ? CDDP_OK
               : cd_fail(err, CDDP_E_IO, "the journal cannot be written");
}

void st_journal_close(st_journal *journal)
{
    if (journal->file != NULL) fclose(journal->file);
    journal->file = NULL;
}
