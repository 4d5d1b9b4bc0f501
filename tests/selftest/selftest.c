/* SPDX-License-Identifier: Apache-2.0 */
/* The self-test of the verifier: every operator at every point of the run, in every world.
**
**     selftest [--seed N] [--sample N] [--jobs N] [--world NAME] [--only PLACE] [--operator NAME]
**              [--ranks one|all|most] [--steps once|always] [--decisions] [--list] [--misses]
**              [--blame] [--stored] [--journal FILE] [--minutes N] [--table FILE] [--strict]
**     selftest --coverage              whether every field, decision and moment has a point
**     selftest --slack FILE [--renew]  the smallest ratios that are noticed, and those in the file
**
** --ranks most: all ranks but a drawn one, in worlds of three and more; it is no part of the whole.
** Each case runs in a process: what it breaks ends with it. A case that was struck and not caught
** is a miss, and so is a crash. Misses that misses.def lists do not fail the test. Of some cases
** (--world, --only, --decisions, …) each other miss fails it; with --strict each wrong blame, too.
** With a journal the whole may be measured in parts: cases that it has are not run again. The order
** of the cases follows from the seed, so that a part is a sample.
*/
#define _POSIX_C_SOURCE 200809L
#include "tests/selftest/coverage.h"
#include "tests/selftest/journal.h"
#include "tests/selftest/slack.h"
#include "tests/selftest/table.h"

#include "core/base/crew.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/pattern.h"
#include "core/base/prng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DEFAULT_SEED 17
#define CPU_SECONDS_MAX 20

typedef struct miss_row {
    const char *world, *place, *op;
    st_class kind; /* no argument excuses another one */
    const char *argument;
} miss_row;

/* An empty table has no rows that C could count: the last one is the end. */
static const miss_row misses[] = {
#define ST_MISS(world, place, op, kind, argument) {world, place, op, kind, argument},
#include "tests/selftest/misses.def"
#undef ST_MISS
    {NULL, NULL, NULL, ST_TRAINING, NULL}};

typedef struct selftest {
    uint64_t seed, sample, jobs, minutes;
    const char *world, *only, *op, *ranks, *steps, *table_path, *journal_path, *slack_path;
    bool lists, shows_misses, shows_blame, has_filter, reads_again, covers, renews, is_strict,
        decides;
    cddp_registry *registry;
    st_world *worlds; /* (st_world_count) those that are asked for are open */
    st_case *cases;   /* (case_count) */
    size_t case_count, case_capacity;
    /* case_count is less with a sample; of tasks: those that the journal does not have */
    size_t all_count, *tasks, task_count, done_count;
    bool *is_done; /* (case_count) */
    st_journal journal;
    st_table table;
    cd_text open; /* misses that are not listed, for the page */
    size_t miss_count, known_count, wrong_count, differing_count;
    size_t *listed, *listed_caught; /* by row of misses.def */
    uint64_t began_ns, shown_ns;
} selftest;

/* ---- cases ---- */

static bool is_wanted(const char *filter, const char *name)
{
    return filter == NULL || cd_pattern_matches(filter, name);
}

static void add_case(selftest *s, const st_case *c)
{
    if (s->case_count == s->case_capacity) {
        const size_t capacity = s->case_capacity * 2 + 256;
        st_case *cases = realloc(s->cases, capacity * sizeof *cases);
        if (cases == NULL) abort();
        s->cases = cases;
        s->case_capacity = capacity;
    }
    s->cases[s->case_count++] = *c;
}

static void add_variants(selftest *s, st_case c)
{
    const bool both = st_operators[c.op].breadth == ST_BOTH &&
                      (st_points[c.point].kind & (ST_TENSOR | ST_GRADIENT)) != 0;
    c.is_most = s->ranks != NULL && strcmp(s->ranks, "most") == 0;
    if (c.is_most && s->worlds[c.world].ranks < 3) return;
    for (int one = c.is_most; one < 2; one++) {
        for (int always = 0; always < 2; always++) {
            for (int everything = 0; everything <= both; everything++) {
                c.is_one_rank = one != 0;
                c.is_every_step = always != 0;
                c.everything = everything != 0;
                if ((c.is_most || is_wanted(s->ranks, one ? "one" : "all")) &&
                    is_wanted(s->steps, always ? "always" : "once"))
                    add_case(s, &c);
            }
        }
    }
}

/* STALE keeps memory that a proof would rewind. */
static bool is_possible(const selftest *s, const st_case *c)
{
    return (st_points[c->point].kind & st_operators[c->op].kinds) != 0 &&
           s->worlds[c->world].reached[c->point] > 0 &&
           cd_pattern_matches(st_worlds[c->world].places, st_points[c->point].place) &&
           (!s->decides || st_case_decides(c)) &&
           !(st_worlds[c->world].how == ST_PROVE && c->op == ST_OP_STALE);
}

static void add_cases(selftest *s, size_t world)
{
    for (size_t p = 0; p < st_point_count; p++) {
        for (size_t op = 0; op < ST_OPERATORS; op++) {
            const st_case c = {.world = world, .point = p, .op = (st_operator)op};
            if (is_wanted(s->only, st_points[p].place) && is_wanted(s->op, st_operators[op].name) &&
                is_possible(s, &c))
                add_variants(s, c);
        }
    }
}

/* The first N of a permutation that follows from the seed; 0: all of it. */
static void take_sample(selftest *s)
{
    cd_prng prng = cd_prng_seed(s->seed);
    s->all_count = s->case_count;
    const uint64_t wanted = s->sample == 0 || s->sample > s->case_count ? s->case_count : s->sample;
    for (size_t i = 0; i < wanted; i++) {
        const size_t other = i + (size_t)cd_prng_below(&prng, s->case_count - i);
        const st_case kept = s->cases[i];
        s->cases[i] = s->cases[other];
        s->cases[other] = kept;
    }
    s->case_count = (size_t)wanted;
}

/* ---- running ---- */

static cddp_status work(void *context, size_t task, cd_text *result, cddp_error *err)
{
    const selftest *s = context;
    st_outcome outcome;
    /* A case that never ends is a crash: SIGXCPU. */
    const struct rlimit limit = {CPU_SECONDS_MAX, CPU_SECONDS_MAX + 1};
    if (setrlimit(RLIMIT_CPU, &limit) != 0)
        return cd_fail(err, CDDP_E_IO, "a case's time cannot be limited");
    const st_case *c = &s->cases[s->tasks[task]];
    CD_TRY(st_case_run(&s->worlds[c->world], c, &(st_case_options){s->seed, s->reads_again},
                       &outcome, err));
    cd_text_push_bytes(result, (const char *)&outcome, sizeof outcome);
    return CDDP_OK;
}

static bool is_listed(selftest *s, const st_case *c, const st_outcome *o, bool is_miss)
{
    bool found = false;
    for (size_t i = 0; misses[i].world != NULL; i++) {
        if (!cd_pattern_matches(misses[i].world, st_worlds[c->world].name) ||
            !cd_pattern_matches(misses[i].place, st_points[c->point].place) ||
            !cd_pattern_matches(misses[i].op, st_operators[c->op].name) ||
            misses[i].kind != o->kind)
            continue;
        s->listed[i]++;
        s->listed_caught[i] += !is_miss;
        found = true;
    }
    return found;
}

static void print_case(const selftest *s, const char *end, const st_case *c, const st_outcome *o)
{
    printf("%s: --seed %llu --world %s --only %s --operator %s --ranks %s --steps %s%s\n", end,
           (unsigned long long)s->seed, st_worlds[c->world].name, st_points[c->point].place,
           st_operators[c->op].name,
           c->is_most       ? "most"
           : c->is_one_rank ? "one"
                            : "all",
           c->is_every_step ? "always" : "once", c->everything ? " (everything)" : "");
    printf("    %s, step %u, ranks %llx, %s; %s\n    exit %d: %s\n", st_class_names[o->kind],
           o->struck_step, (unsigned long long)o->struck_ranks, o->struck, o->wrong, o->exit_code,
           o->said);
    if (o->stored[0] != '\0') printf("    read again: %s\n", o->stored);
}

static void list_open(selftest *s, const st_case *c, const st_outcome *o)
{
    char text[256];
    st_case_print(c, text, sizeof text);
    cd_text_printf(&s->open, "* %s: `%s`%s\n", st_class_names[o->kind], text,
                   o->end == ST_END_CRASHED ? " (crashed)" : "");
}

static void count(selftest *s, const st_case *c, const st_outcome *o)
{
    const bool is_miss = o->end == ST_END_MISSED || o->end == ST_END_CRASHED;
    const bool is_known = o->end != ST_END_SILENT && is_listed(s, c, o, is_miss) && is_miss &&
                          o->end != ST_END_CRASHED;
    st_table_add(&s->table, c, o, is_known);
    s->done_count++;
    if (o->end == ST_END_SILENT) return;
    s->miss_count += is_miss;
    s->known_count += is_known;
    s->wrong_count += o->end == ST_END_CAUGHT;
    s->differing_count += o->stored[0] != '\0';
    if (is_miss && !is_known) list_open(s, c, o);
    if (is_miss && (s->shows_misses || !is_known))
        print_case(s,
                   is_known                  ? "known miss"
                   : o->end == ST_END_MISSED ? "MISSED"
                                             : "CRASHED",
                   c, o);
    if (o->end == ST_END_CAUGHT && s->shows_blame) print_case(s, "blame", c, o);
    if (o->stored[0] != '\0') print_case(s, "DIFFERS", c, o);
}

static void take_noted(void *context, size_t index, const st_outcome *outcome)
{
    selftest *s = context;
    if (s->is_done[index]) return;
    s->is_done[index] = true;
    count(s, &s->cases[index], outcome);
}

static bool is_time_over(const selftest *s)
{
    return s->minutes > 0 && cd_os_now_ns() - s->began_ns > s->minutes * 60 * UINT64_C(1000000000);
}

static cddp_status take(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err)
{
    selftest *s = context;
    const size_t index = s->tasks[end->task];
    st_outcome o = {.end = ST_END_CRASHED};
    if (!end->is_whole) {
        snprintf(o.said, sizeof o.said, "the process died: exit code %d, signal %d", end->exit_code,
                 end->signal_number);
    } else if (end->status != CDDP_OK) {
        return cd_fail(err, end->status, "case %zu: %s", index, end->message);
    } else {
        memcpy(&o, end->bytes, sizeof o);
    }
    if (s->journal.file != NULL) CD_TRY(st_journal_add(&s->journal, index, &o, err));
    count(s, &s->cases[index], &o);
    *is_last = is_time_over(s);
    return CDDP_OK;
}

/* Once a second on a terminal, once a minute in a file. */
static void show_progress(void *context, size_t taken)
{
    selftest *s = context;
    const uint64_t now_ns = cd_os_now_ns();
    const bool is_terminal = isatty(STDERR_FILENO);
    const double spent = (double)(now_ns - s->began_ns) * 1e-9;
    if (now_ns - s->shown_ns < (is_terminal ? UINT64_C(1000000000) : UINT64_C(60000000000))) return;
    if (taken == 0) return;
    s->shown_ns = now_ns;
    fprintf(stderr,
            "%s%zu of %zu cases, %zu missed (%zu argued), %zu with the wrong blame, %.0f s, "
            "%.1f/s, about %.0f s left%s",
            is_terminal ? "\r" : "", s->done_count, s->case_count, s->miss_count, s->known_count,
            s->wrong_count, spent, (double)taken / spent,
            spent / (double)taken * (double)(s->task_count - taken), is_terminal ? " " : "\n");
}

/* What the journal has is counted; the rest are tasks. */
static cddp_status plan_tasks(selftest *s, cddp_error *err)
{
    s->is_done = calloc(s->case_count + 1, sizeof *s->is_done);
    s->tasks = calloc(s->case_count + 1, sizeof *s->tasks);
    if (s->is_done == NULL || s->tasks == NULL) return cd_fail_memory(err, "the cases");
    if (s->journal_path != NULL)
        CD_TRY(st_journal_open(&s->journal, s->journal_path,
                               &(st_journal_head){s->seed, s->case_count}, take_noted, s, err));
    for (size_t i = 0; i < s->case_count; i++) {
        if (!s->is_done[i]) s->tasks[s->task_count++] = i;
    }
    return CDDP_OK;
}

static cddp_status run_cases(selftest *s, cddp_error *err)
{
    CD_TRY(plan_tasks(s, err));
    const cd_crew_options options = {.task_count = s->task_count,
                                     .worker_count = (uint32_t)s->jobs,
                                     .context = s,
                                     .work = work,
                                     .take = take,
                                     .progress = show_progress};
    cd_crew_count count;
    s->began_ns = s->shown_ns = cd_os_now_ns();
    CD_TRY(cd_crew_run(&options, &count, err));
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
    return CDDP_OK;
}

/* ---- the report ---- */

static void list_argued(const selftest *s, cd_text *text)
{
    if (misses[0].world == NULL) cd_text_push(text, "None.\n");
    for (size_t i = 0; misses[i].world != NULL; i++) {
        cd_text_printf(text, "* %s: `%s` `%s` `%s`: %s (%zu of %zu)\n",
                       st_class_names[misses[i].kind], misses[i].world, misses[i].place,
                       misses[i].op, misses[i].argument, s->listed[i] - s->listed_caught[i],
                       s->listed[i]);
    }
}

static cddp_status write_page(const selftest *s, cddp_error *err)
{
    cd_text argued = {NULL}, slack = {NULL}, page = {NULL};
    list_argued(s, &argued);
    st_slack_page(&slack);
    st_table_page(&s->table, &(st_measured){s->seed, s->done_count, s->all_count},
                  &(st_lists){.argued = cd_text_get(&argued),
                              .open = s->open.length > 0 ? cd_text_get(&s->open) : "None.\n",
                              .slack = cd_text_get(&slack)},
                  &page);
    FILE *file = fopen(s->table_path, "w");
    const bool ok = file != NULL && fwrite(page.bytes, 1, page.length, file) == page.length;
    const bool is_closed = file == NULL || fclose(file) == 0;
    cd_text_fini(&argued);
    cd_text_fini(&slack);
    cd_text_fini(&page);
    return ok && is_closed ? CDDP_OK : cd_fail(err, CDDP_E_IO, "cannot write %s", s->table_path);
}

static bool is_part(const selftest *s) { return s->done_count < s->all_count; }

typedef struct portion {
    size_t part, whole;
} portion;

/* A sample of n differs from the whole by chance: three standard deviations are allowed, and one
** case. */
static bool keeps_floor(const selftest *s, const char *what, portion measured, double floor)
{
    const double n = (double)measured.whole, share = (double)measured.part / n;
    const double chance = is_part(s) ? 3.0 * sqrt(floor * (1.0 - floor) / n) + 1.0 / n : 0.0;
    if (share < floor - chance) {
        printf("FAIL %s: %.4f is below the floor of %.4f (tests/selftest/floors.def)\n", what,
               share, floor);
    } else if (!is_part(s) && share >= floor + 0.0001) {
        printf("%s: %.4f, raise the floor in tests/selftest/floors.def\n", what, share);
    }
    return share >= floor - chance;
}

static bool keeps_floors(const selftest *s)
{
    const st_count *all = &s->table.all, *trainings = &s->table.kinds[ST_TRAINING];
    const size_t struck = st_count_struck(all), wrong = st_count_struck(trainings),
                 argued = s->table.argued[ST_TRAINING];
    /* as in floors.def */
    const portion shares[] = {{st_count_caught(all) + s->known_count, struck},
                              {all->ends[ST_END_BLAMED], struck},
                              {st_count_caught(trainings) + argued, wrong},
                              {trainings->ends[ST_END_BLAMED], wrong}};
    static const struct {
        const char *name;
        double floor;
    } floors[] = {
#define ST_FLOOR(name, floor) {#name, floor},
#include "tests/selftest/floors.def"
#undef ST_FLOOR
    };
    bool good = true;
    for (size_t i = 0; !s->has_filter && i < sizeof floors / sizeof floors[0]; i++) {
        if (shares[i].whole > 0) good &= keeps_floor(s, floors[i].name, shares[i], floors[i].floor);
    }
    return good;
}

static bool report(const selftest *s)
{
    cd_text text = {NULL};
    const st_count *all = &s->table.all;
    const size_t struck = st_count_struck(all), caught = st_count_caught(all);
    const double share = struck > 0 ? (double)all->ends[ST_END_BLAMED] / (double)struck : 1.0;
    bool good = s->differing_count == 0;
    st_table_print(&s->table, &text);
    fputs(cd_text_get(&text), stdout);
    cd_text_fini(&text);
    text = (cd_text){NULL};
    st_table_first(&s->table, &text);
    printf("\nseed %llu: %s", (unsigned long long)s->seed, cd_text_get(&text));
    cd_text_fini(&text);
    if (s->reads_again)
        printf("%zu cases ended otherwise when their trace was read again\n", s->differing_count);
    printf("%zu of %zu cases, %zu struck, %zu caught (%.2f%%), %zu blamed right (%.2f%%), "
           "%zu crashed, %zu misses, %zu of them argued\n",
           s->done_count, s->all_count, struck, caught,
           struck > 0 ? (double)(10000 * caught / struck) / 100.0 : 100.0, all->ends[ST_END_BLAMED],
           100.0 * share, all->ends[ST_END_CRASHED], s->miss_count, s->known_count);
    for (size_t i = 0; misses[i].world != NULL && !s->has_filter && !is_part(s); i++) {
        if (s->listed[i] > 0 && s->listed[i] == s->listed_caught[i]) {
            printf("FAIL misses.def: %s %s %s is caught now: delete the row\n", misses[i].world,
                   misses[i].place, misses[i].op);
            good = false;
        }
    }
    if (s->has_filter && s->miss_count > s->known_count) {
        printf("FAIL %zu of these cases are missed, and misses.def has no argument for it\n",
               s->miss_count - s->known_count);
        good = false;
    }
    if (s->is_strict && s->wrong_count > 0) {
        printf("FAIL %zu of these cases are blamed on something else\n", s->wrong_count);
        good = false;
    }
    return good && keeps_floors(s);
}

/* A point that no world reaches proves nothing. */
static bool check_reached(const selftest *s)
{
    bool good = true;
    for (size_t p = 0; p < st_point_count; p++) {
        uint64_t reached = 0;
        for (size_t w = 0; w < st_world_count; w++) reached += s->worlds[w].reached[p];
        if (reached == 0) {
            printf("FAIL no world reaches the point '%s'\n", st_points[p].place);
            good = false;
        }
    }
    return good;
}

/* ---- the program ---- */

static cddp_status read_options(selftest *s, int argc, char **argv, cddp_error *err)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        const struct {
            const char *name;
            bool *flag;
        } flags[] = {{"--list", &s->lists},        {"--misses", &s->shows_misses},
                     {"--blame", &s->shows_blame}, {"--stored", &s->reads_again},
                     {"--coverage", &s->covers},   {"--renew", &s->renews},
                     {"--strict", &s->is_strict},  {"--decisions", &s->decides}};
        const struct {
            const char *name, **text;
        } texts[] = {{"--world", &s->world},          {"--only", &s->only},
                     {"--operator", &s->op},          {"--ranks", &s->ranks},
                     {"--steps", &s->steps},          {"--table", &s->table_path},
                     {"--journal", &s->journal_path}, {"--slack", &s->slack_path}};
        const struct {
            const char *name;
            uint64_t *number;
        } numbers[] = {{"--seed", &s->seed},
                       {"--sample", &s->sample},
                       {"--jobs", &s->jobs},
                       {"--minutes", &s->minutes}};
        bool found = false;
        for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++) {
            if (strcmp(name, flags[k].name) == 0) found = *flags[k].flag = true;
        }
        for (size_t k = 0; !found && value != NULL && k < sizeof texts / sizeof texts[0]; k++) {
            if (strcmp(name, texts[k].name) != 0) continue;
            *texts[k].text = value;
            found = ++i > 0;
        }
        for (size_t k = 0; !found && value != NULL && k < sizeof numbers / sizeof numbers[0]; k++) {
            if (strcmp(name, numbers[k].name) != 0) continue;
            *numbers[k].number = strtoull(value, NULL, 10);
            found = ++i > 0;
        }
        if (!found) return cd_fail(err, CDDP_E_ARG, "unknown or incomplete option '%s'", name);
    }
    s->has_filter = s->world != NULL || s->only != NULL || s->op != NULL || s->ranks != NULL ||
                    s->steps != NULL || s->decides;
    return CDDP_OK;
}

static cddp_status open_worlds(selftest *s, cddp_error *err)
{
    size_t rows = 1;
    while (misses[rows - 1].world != NULL) rows++;
    s->worlds = calloc(st_world_count, sizeof *s->worlds);
    s->listed = calloc(rows, sizeof *s->listed);
    s->listed_caught = calloc(rows, sizeof *s->listed_caught);
    if (s->worlds == NULL || s->listed == NULL || s->listed_caught == NULL)
        return cd_fail_memory(err, "the worlds");
    CD_TRY(st_table_open(&s->table, err));
    CD_TRY(cddp_registry_create(NULL, &s->registry, err));
    for (size_t i = 0; i < st_world_count; i++) {
        if (!is_wanted(s->world, st_worlds[i].name)) continue;
        CD_TRY(st_world_open(&st_worlds[i], s->registry, &s->worlds[i], err));
        add_cases(s, i);
    }
    return CDDP_OK;
}

static void close_worlds(selftest *s)
{
    for (size_t i = 0; s->worlds != NULL && i < st_world_count; i++) st_world_close(&s->worlds[i]);
    cddp_registry_destroy(s->registry);
    st_table_close(&s->table);
    st_journal_close(&s->journal);
    cd_text_fini(&s->open);
    free(s->is_done);
    free(s->tasks);
    free(s->worlds);
    free(s->cases);
    free(s->listed);
    free(s->listed_caught);
}

static void list_cases(const selftest *s)
{
    char text[256];
    for (size_t i = 0; i < s->case_count; i++) {
        st_case_print(&s->cases[i], text, sizeof text);
        puts(text);
    }
}

static cddp_status run(selftest *s, int argc, char **argv, bool *good, cddp_error *err)
{
    CD_TRY(read_options(s, argc, argv, err));
    if (s->covers) {
        *good = st_coverage_check(st_points, st_point_count) && st_coverage_plant();
        return CDDP_OK;
    }
    if (s->slack_path != NULL) return CD_PASS(st_slack_run(s->slack_path, s->renews, good, err));
    CD_TRY(open_worlds(s, err));
    take_sample(s);
    if (s->lists) {
        list_cases(s);
        *good = true;
        return CDDP_OK;
    }
    printf("seed %llu, %zu cases\n", (unsigned long long)s->seed, s->case_count);
    fflush(stdout);
    CD_TRY(run_cases(s, err));
    *good = report(s);
    if (s->world == NULL) *good &= check_reached(s);
    if (s->table_path != NULL) CD_TRY(write_page(s, err));
    return CDDP_OK;
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    selftest s = {.seed = DEFAULT_SEED, .jobs = cd_os_core_count()};
    bool good = false;
    if (run(&s, argc, argv, &good, &err) != CDDP_OK) {
        char text[2048];
        cd_error_print(&err, text, sizeof text);
        fprintf(stderr, "selftest: %s\n", text);
    }
    close_worlds(&s);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
