/* SPDX-License-Identifier: Apache-2.0 */
/* Frontiers: writing and reading. One line per fact: a word, then numbers in hexadecimal or one
** text. */
#include "verify/explore/frontier.h"

#include "core/base/output.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/os.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLAGS 7

/* ---- what both directions agree on ---- */

static uint64_t search_digest(const cd_frontier *f)
{
    const cd_explore_options *o = &f->explorer->options;
    const uint64_t parts[] = {f->plan,      o->strategy,    o->seed,
                              o->depth,     o->choices_max, o->reduce,
                              o->merge,     o->symmetry,    o->without_rebuild,
                              o->world_size};
    uint64_t digest = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        digest = cd_hash_mix(digest, parts[i]);
    return digest;
}

static void flags_of(cd_explorer *e, bool *flags[FLAGS])
{
    bool *const all[FLAGS] = {&e->exhausted, &e->bounded,           &e->races,   &e->uneven,
                              &e->turns,     &e->covering.deviated, &e->is_tried};
    memcpy(flags, all, sizeof all);
}

#define NUMBERS 10
static void numbers_of(const cd_frontier *f, uint64_t *numbers[NUMBERS])
{
    cd_explorer *e = f->explorer;
    uint64_t *const all[NUMBERS] = {
        &e->runs,   &e->choices_longest, &e->choices_expected, &e->contenders_max,
        &e->merged, &e->alternatives,    &f->failures->count,  &f->failures->first_at,
        &e->probes, &f->failures->struck};
    memcpy(numbers, all, sizeof all);
}

#define SETS 5
static void sets_of(cd_explorer *e, cd_digest_set *sets[SETS])
{
    cd_digest_set *const all[SETS] = {&e->outcomes, &e->states, &e->offered, &e->taken, &e->probed};
    memcpy(sets, all, sizeof all);
}

void cd_failures_add_kind(cd_failures *failures, uint64_t outcome, uint64_t at,
                          const char *schedule)
{
    for (uint32_t i = 0; i < failures->kind_count; i++)
        if (failures->kinds[i].outcome == outcome) return;
    if (failures->kind_count == CD_FAILURE_KINDS) return;
    cd_failure_kind *kind = &failures->kinds[failures->kind_count++];
    const size_t length = strlen(schedule), kept = length < sizeof kind->schedule ? length : 0;
    kind->outcome = outcome;
    kind->at = at;
    memcpy(kind->schedule, schedule, kept);
    kind->schedule[kept] = '\0';
}

/* ---- writing ---- */

static void print_text(cd_text *text, const char *word, const char *line)
{
    cd_text_printf(text, "%s ", word);
    for (const char *c = line; *c != '\0'; c++) cd_text_push_bytes(text, *c == '\n' ? " " : c, 1);
    cd_text_push(text, "\n");
}

static void print_set(cd_text *text, const cd_digest_set *set)
{
    cd_text_printf(text, "set %zx\n", set->count);
    for (size_t i = 0; i < set->capacity; i++)
        if (set->items[i] != 0) cd_text_printf(text, "%" PRIx64 "\n", set->items[i]);
}

void cd_frontier_print(const cd_frontier *f, cd_text *text)
{
    cd_explorer *e = f->explorer;
    bool *flags[FLAGS];
    uint64_t *numbers[NUMBERS];
    cd_digest_set *sets[SETS];
    flags_of(e, flags);
    numbers_of(f, numbers);
    sets_of(e, sets);
    cd_text_printf(text, "cddp-frontier 4\nsearch %" PRIx64 "\n", search_digest(f));
    for (int i = 0; i < NUMBERS; i++) cd_text_printf(text, "number %" PRIx64 "\n", *numbers[i]);
    for (int i = 0; i < FLAGS; i++) cd_text_printf(text, "flag %x\n", *flags[i] ? 1u : 0u);
    cd_text_printf(text, "outcome %" PRIx64 "\n", f->failures->first.outcome);
    print_text(text, "culprit", f->failures->first.culprit);
    print_text(text, "schedule", f->failures->first.schedule);
    cd_text_printf(text, "kinds %x\n", (unsigned)f->failures->kind_count);
    for (uint32_t i = 0; i < f->failures->kind_count; i++) {
        const cd_failure_kind *kind = &f->failures->kinds[i];
        cd_text_printf(text, "%" PRIx64 " %" PRIx64 "\n", kind->outcome, kind->at);
        print_text(text, "schedule", kind->schedule);
    }
    cd_text_printf(text, "answers %zx\n", e->answer_count);
    for (size_t i = 0; i < e->answer_count; i++)
        cd_text_printf(text, "%x %x\n", (unsigned)e->answers[i].value,
                       (unsigned)e->answers[i].options);
    cd_text_printf(text, "events %x\n", (unsigned)e->covering.event_count);
    for (uint32_t i = 0; i < e->covering.event_count; i++)
        cd_text_printf(text, "%" PRIx64 "\n", e->covering.events[i]);
    for (int i = 0; i < SETS; i++) print_set(text, sets[i]);
    cd_text_printf(text, "digest %" PRIx64 "\n", cd_hash_text(cd_text_get(text)));
}

/* ---- reading ---- */

typedef struct reader {
    const char *at;
    bool failed;
} reader;

/* The next line must begin with this word. */
static void expect(reader *r, const char *word)
{
    size_t n = strlen(word);
    r->failed = r->failed || strncmp(r->at, word, n) != 0;
    if (!r->failed) r->at += n;
}

static uint64_t read_number(reader *r, uint64_t most)
{
    char *end = NULL;
    if (r->failed) return 0;
    bool is_digit = (*r->at >= '0' && *r->at <= '9') || (*r->at >= 'a' && *r->at <= 'f');
    uint64_t value = is_digit ? strtoull(r->at, &end, 16) : 0;
    r->failed = !is_digit || value > most || (*end != '\n' && *end != ' ');
    if (!r->failed) r->at = end + 1;
    return r->failed ? 0 : value;
}

static void read_text(reader *r, const char *word, char *line, size_t bytes)
{
    expect(r, word);
    size_t length = r->failed ? 0 : strcspn(r->at, "\n");
    r->failed = r->failed || length >= bytes || r->at[length] != '\n';
    if (r->failed) return;
    memcpy(line, r->at, length);
    line[length] = '\0';
    r->at += length + 1;
}

static void read_kinds(reader *r, cd_failures *failures)
{
    expect(r, "kinds ");
    failures->kind_count = (uint32_t)read_number(r, CD_FAILURE_KINDS);
    for (uint32_t i = 0; i < failures->kind_count; i++) {
        cd_failure_kind *kind = &failures->kinds[i];
        kind->outcome = read_number(r, UINT64_MAX);
        kind->at = read_number(r, UINT64_MAX);
        read_text(r, "schedule ", kind->schedule, sizeof kind->schedule);
    }
}

static bool read_set(reader *r, cd_digest_set *set)
{
    expect(r, "set ");
    uint64_t count = read_number(r, UINT64_MAX);
    for (uint64_t i = 0; i < count && !r->failed; i++)
        if (cd_digest_set_add(set, read_number(r, UINT64_MAX)) == CD_DIGEST_NO_MEMORY) return false;
    return true;
}

static bool read_answers(reader *r, cd_explorer *e)
{
    expect(r, "answers ");
    size_t count = (size_t)read_number(r, UINT32_MAX);
    for (size_t i = 0; i < count && !r->failed; i++) {
        uint64_t value = read_number(r, UINT32_MAX),
                 options = read_number(r, CDDP_CHOICE_OPTIONS_MAX);
        r->failed = r->failed || value >= options;
        if (!cd_vec_grow(e->options.allocator, (void **)&e->answers, &e->answer_capacity, i + 1,
                         sizeof *e->answers))
            return false;
        e->answers[i] = (cd_answer){(uint32_t)value, (uint32_t)options};
        e->answer_count = i + 1;
    }
    return true;
}

static void read_events(reader *r, cd_cover_chooser *c)
{
    expect(r, "events ");
    c->event_count = (uint32_t)read_number(r, CD_COVER_EVENTS_MAX);
    for (uint32_t i = 0; i < c->event_count; i++) c->events[i] = read_number(r, UINT64_MAX);
}

/* The last line is a digest of all before it. */
static bool is_whole(const char *text)
{
    const char *last = NULL;
    for (const char *at = text; (at = strstr(at, "\ndigest ")) != NULL; at++) last = at + 1;
    if (last == NULL) return false;
    reader r = {.at = last};
    expect(&r, "digest ");
    uint64_t wanted = read_number(&r, UINT64_MAX), digest;
    char *copy = malloc((size_t)(last - text) + 1);
    if (copy == NULL) return false;
    memcpy(copy, text, (size_t)(last - text));
    copy[last - text] = '\0';
    digest = cd_hash_text(copy);
    free(copy);
    return !r.failed && *r.at == '\0' && digest == wanted;
}

static cddp_status read_rest(const cd_frontier *f, reader *r, cddp_error *err)
{
    cd_explorer *e = f->explorer;
    bool *flags[FLAGS], has_memory = true;
    uint64_t *numbers[NUMBERS];
    cd_digest_set *sets[SETS];
    flags_of(e, flags);
    numbers_of(f, numbers);
    sets_of(e, sets);
    for (int i = 0; i < NUMBERS; i++)
        expect(r, "number "), *numbers[i] = read_number(r, UINT64_MAX);
    for (int i = 0; i < FLAGS; i++) expect(r, "flag "), *flags[i] = read_number(r, 1) == 1;
    expect(r, "outcome ");
    f->failures->first.outcome = read_number(r, UINT64_MAX);
    read_text(r, "culprit ", f->failures->first.culprit, sizeof f->failures->first.culprit);
    read_text(r, "schedule ", f->failures->first.schedule, sizeof f->failures->first.schedule);
    read_kinds(r, f->failures);
    has_memory = read_answers(r, e);
    read_events(r, &e->covering);
    for (int i = 0; i < SETS && has_memory; i++) has_memory = read_set(r, sets[i]);
    if (!has_memory) return cd_fail_memory(err, "a frontier of %zu states", e->states.count);
    expect(r, "digest ");
    if (r->failed) return cd_fail(err, CDDP_E_CONFIG, "not a frontier that this version can read");
    return CDDP_OK;
}

cddp_status cd_frontier_read(const cd_frontier *f, const char *text, cddp_error *err)
{
    reader r = {.at = text};
    expect(&r, "cddp-frontier 4\n");
    if (r.failed) return cd_fail(err, CDDP_E_CONFIG, "this is not a frontier of this version");
    if (!is_whole(text))
        return cd_fail(err, CDDP_E_CONFIG, "the frontier is cut off or was changed");
    expect(&r, "search ");
    uint64_t search = read_number(&r, UINT64_MAX);
    if (!r.failed && search != search_digest(f))
        return cd_fail(err, CDDP_E_CONFIG,
                       "the frontier belongs to another search: another scenario, strategy, depth, "
                       "seed or reduction");
    CD_TRY(read_rest(f, &r, err));
    return CD_PASS(cd_explorer_resume(f->explorer, err));
}

/* ---- files ---- */

cddp_status cd_frontier_save(const cd_frontier *f, const char *path, cddp_error *err)
{
    cd_text text;
    cd_text_init(&text, false);
    cd_frontier_print(f, &text);
    cddp_status status = cd_output_write(path, &text, err);
    cd_text_fini(&text);
    return status;
}

static cddp_status slurp(FILE *file, cd_text *text, const char *path, cddp_error *err)
{
    char bytes[65536];
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, file)) > 0;) {
        if (memchr(bytes, 0, n) != NULL)
            return cd_fail(err, CDDP_E_CONFIG, "'%s' is not a frontier", path);
        cd_text_push_bytes(text, bytes, n);
    }
    if (ferror(file))
        return cd_fail(err, cd_error_of_errno(errno), "cannot read the frontier '%s': %s", path,
                       strerror(errno));
    if (text->failed) return cd_fail_memory(err, "the frontier '%s'", path);
    return CDDP_OK;
}

cddp_status cd_frontier_load(const cd_frontier *f, const char *path, bool *found, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_error why = CDDP_ERROR_INIT;
    cd_text text;
    FILE *file = NULL;
    *found = !cd_os_is_absent(path);
    if (!*found) return CDDP_OK;
    CD_TRY(cd_os_open_regular(path, &file, err));
    cd_text_init(&text, false);
    CD_TRY_OUT(slurp(file, &text, path, err));
    status = cd_frontier_read(f, cd_text_get(&text), &why);
    if (status != CDDP_OK) status = cd_fail(err, status, "'%s': %s", path, why.message);
out:
    cd_text_fini(&text);
    fclose(file);
    return status;
}
