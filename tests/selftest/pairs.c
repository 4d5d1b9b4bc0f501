/* SPDX-License-Identifier: Apache-2.0 */
/* Every valid pair of features meets in some drawn training, which is clean; and with a mistake it
** is not.
**
**     selftest_pairs [--seed N] [--count N] [--jobs N] [--training N] [--verbose]
**
** Half of the trainings are drawn freely, then one for every pair of levels that has not met yet,
** until there are `count`. A pair that no draw can have excludes each other. A smaller count is a
** sample. Each training is run clean, then with one mistake of plants.def at a point that the clean
** run reached, on a drawn rank or on all, in a drawn step or in all. Of the mistakes that struck
** all must be caught, and 95 % blamed right; half must strike. In a sample fewer may be blamed
** right or strike by chance: three standard deviations are allowed.
*/
#define _POSIX_C_SOURCE 200809L
#include "tests/property/features.h"
#include "tests/selftest/outcome.h"

#include "core/base/crew.h"
#include "core/base/error.h"
#include "core/base/prng.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define DEFAULT_SEED 23
#define DEFAULT_COUNT 2000
#define CPU_SECONDS_MAX 60
#define TRIES 60

static const struct {
    const char *place;
    st_operator op;
} plants[] = {
#define ST_PLANT(place, op) {place, ST_OP_##op},
#include "tests/selftest/plants.def"
#undef ST_PLANT
};
#define PLANTS (sizeof plants / sizeof plants[0])

typedef struct result {
    st_case planted;
    st_outcome outcome;
} result;

typedef struct pairs {
    uint64_t seed, count, jobs, training; /* UINT64_MAX: all */
    bool is_verbose;
    cddp_registry *registry;
    feature_draw *draws; /* (count) */
    size_t drawn;
    size_t met, excluded;
    size_t unclean, silent, struck, missed, wrong, crashed;
    size_t by_plant[PLANTS][2]; /* struck, blamed */
} pairs;

static bool has_met[FEATURES][LEVELS_MAX][FEATURES][LEVELS_MAX];

/* ---- drawing ---- */

static void note_pairs(pairs *p, const feature_draw *d)
{
    for (size_t a = 0; a < FEATURES; a++)
        for (size_t b = a + 1; b < FEATURES; b++) {
            bool *met = &has_met[a][d->level[a]][b][d->level[b]];
            p->met += !*met;
            *met = true;
        }
}

static void keep(pairs *p, const feature_draw *d)
{
    p->draws[p->drawn++] = *d;
    note_pairs(p, d);
}

static void draw_for(pairs *p, cd_prng *prng, const feature_pair *pair)
{
    feature_draw d;
    if (has_met[pair->a][pair->i][pair->b][pair->j]) return;
    if (feature_draw_pair(prng, pair, TRIES, &d))
        keep(p, &d);
    else
        p->excluded++;
}

/* Half are drawn freely: they meet most pairs; then every pair that is left has one for itself. */
static void draw_all(pairs *p)
{
    cd_prng prng = cd_prng_seed(p->seed);
    while (p->drawn < p->count / 2) {
        feature_draw d;
        feature_draw_any(&prng, &d);
        cddp_plan *plan = feature_plan(&d);
        if (plan != NULL) keep(p, &d);
        cddp_plan_destroy(plan);
    }
    for (size_t a = 0; a < FEATURES; a++)
        for (size_t b = a + 1; b < FEATURES; b++)
            for (uint32_t i = 0; i < feature_level_count(&features[a]); i++)
                for (uint32_t j = 0; j < feature_level_count(&features[b]); j++)
                    if (p->drawn < p->count) draw_for(p, &prng, &(feature_pair){a, b, i, j});
    while (p->drawn < p->count) {
        feature_draw d;
        const feature_pair any = {WORLD, MODEL, (uint32_t)cd_prng_below(&prng, 5),
                                  (uint32_t)cd_prng_below(&prng, 8)};
        if (feature_draw_pair(&prng, &any, TRIES, &d)) keep(p, &d);
    }
}

/* ---- one training ---- */

static void print_draw(const pairs *p, const feature_draw *d)
{
    (void)p;
    printf("    seed %" PRIu64 ":", d->seed % 1000000);
    for (size_t f = 0; f < FEATURES; f++)
        if (d->level[f] != 0) printf(" --set %s=%s", features[f].key, feature_value(d, f));
    printf("\n");
}

/* A plant whose point the clean run reached. */
static void choose(const st_world *w, cd_prng *prng, st_case *c)
{
    *c = (st_case){.point = SIZE_MAX};
    for (int tries = 0; tries < 200 && c->point == SIZE_MAX; tries++) {
        const size_t plant = (size_t)cd_prng_below(prng, PLANTS);
        const size_t point = st_point_find(plants[plant].place);
        if (point == SIZE_MAX || w->reached[point] == 0) continue;
        c->point = point;
        c->op = plants[plant].op;
    }
    c->is_one_rank = cd_prng_chance(prng, 1, 2);
    c->is_every_step = cd_prng_chance(prng, 1, 2);
}

static cddp_status work(void *context, size_t task, cd_text *text, cddp_error *err)
{
    const pairs *p = context;
    const struct rlimit limit = {CPU_SECONDS_MAX, CPU_SECONDS_MAX + 1};
    cddp_status status = CDDP_OK;
    st_world world;
    result r = {.outcome = {.end = ST_END_SILENT}};
    const feature_draw *d = &p->draws[task];
    cd_prng prng = cd_prng_seed(d->seed);
    if (setrlimit(RLIMIT_CPU, &limit) != 0)
        return cd_fail(err, CDDP_E_IO, "a training's time cannot be limited");
    CD_TRY(st_world_open_plan(feature_plan(d), p->registry, &world, err));
    choose(&world, &prng, &r.planted);
    CD_TRY_OUT(
        st_case_run(&world, &r.planted, &(st_case_options){.seed = d->seed}, &r.outcome, err));
    cd_text_push_bytes(text, (const char *)&r, sizeof r);
out:
    st_world_close(&world);
    return status;
}

/* ---- counting ---- */

static void complain(const pairs *p, const char *what, size_t task, const result *r)
{
    const st_case *c = &r->planted;
    printf("%s: training %zu: %s %s %s %s\n", what, task, st_points[c->point].place,
           st_operators[c->op].name, c->is_one_rank ? "one rank" : "all ranks",
           c->is_every_step ? "always" : "once");
    printf("    %s, step %u, ranks %" PRIx64 ", %s; %s\n    exit %d: %s\n",
           st_class_names[r->outcome.kind], r->outcome.struck_step, r->outcome.struck_ranks,
           r->outcome.struck, r->outcome.wrong, r->outcome.exit_code, r->outcome.said);
    print_draw(p, &p->draws[task]);
}

static void count(pairs *p, size_t task, const result *r)
{
    const st_outcome *o = &r->outcome;
    p->silent += o->end == ST_END_SILENT;
    if (o->end == ST_END_SILENT) return;
    p->struck++;
    for (size_t i = 0; i < PLANTS; i++)
        if (st_point_find(plants[i].place) == r->planted.point) {
            p->by_plant[i][0]++;
            p->by_plant[i][1] += o->end == ST_END_BLAMED;
        }
    if (o->end == ST_END_MISSED) {
        p->missed++;
        complain(p, "MISSED", task, r);
    } else if (o->end == ST_END_CAUGHT) {
        p->wrong++;
        if (p->is_verbose) complain(p, "blame", task, r);
    }
}

static cddp_status take(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err)
{
    pairs *p = context;
    result r;
    (void)is_last, (void)err;
    if (!end->is_whole) {
        p->crashed++;
        printf("CRASHED: training %zu: exit code %d, signal %d\n", end->task, end->exit_code,
               end->signal_number);
        print_draw(p, &p->draws[end->task]);
    } else if (end->status != CDDP_OK) {
        p->unclean++;
        printf("NOT CLEAN: training %zu: %s\n", end->task, end->message);
        print_draw(p, &p->draws[end->task]);
    } else {
        memcpy(&r, end->bytes, sizeof r);
        count(p, end->task, &r);
    }
    return CDDP_OK;
}

/* Of a sample, as often as chance allows. */
static bool is_share(const pairs *p, size_t part, size_t whole, double floor)
{
    const double n = (double)whole;
    const double chance = p->count < DEFAULT_COUNT ? 3.0 * sqrt(floor * (1.0 - floor) * n) : 0.0;
    return (double)part >= floor * n - chance;
}

static bool report(const pairs *p)
{
    const size_t caught = p->struck - p->missed, blamed = caught - p->wrong;
    printf("seed %" PRIu64 ": %zu trainings, %zu pairs of levels met, %zu exclude each other\n",
           p->seed, p->drawn, p->met, p->excluded);
    printf(
        "struck %zu, silent %zu; caught %zu, blamed right %zu (%.1f %%); missed %zu, crashed %zu, "
        "not clean %zu\n",
        p->struck, p->silent, caught, blamed,
        p->struck > 0 ? 100.0 * (double)blamed / (double)p->struck : 0.0, p->missed, p->crashed,
        p->unclean);
    for (size_t i = 0; p->is_verbose && i < PLANTS; i++)
        printf("  %-26s %-9s struck %3zu, blamed right %3zu\n", plants[i].place,
               st_operators[plants[i].op].name, p->by_plant[i][0], p->by_plant[i][1]);
    return p->missed + p->crashed + p->unclean == 0 && is_share(p, blamed, p->struck, 0.95) &&
           is_share(p, p->struck, p->drawn, 0.5);
}

static bool read_options(int argc, char **argv, pairs *p)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        uint64_t *number = strcmp(argv[i], "--seed") == 0       ? &p->seed
                           : strcmp(argv[i], "--count") == 0    ? &p->count
                           : strcmp(argv[i], "--jobs") == 0     ? &p->jobs
                           : strcmp(argv[i], "--training") == 0 ? &p->training
                                                                : NULL;
        if (strcmp(argv[i], "--verbose") == 0) {
            p->is_verbose = true;
        } else if (number != NULL && value != NULL) {
            *number = strtoull(value, NULL, 10);
            i++;
        } else {
            fprintf(stderr, "selftest_pairs [--seed N] [--count N] [--jobs N] [--training N] "
                            "[--verbose]\n");
            return false;
        }
    }
    return true;
}

/* One training in this process, for a debugger. */
static cddp_status run_alone(pairs *p, cddp_error *err)
{
    cd_text text = {NULL};
    bool is_last = false;
    const cddp_status status = work(p, (size_t)p->training, &text, err);
    const cd_crew_end end = {.task = (size_t)p->training,
                             .is_whole = true,
                             .status = status,
                             .message = status != CDDP_OK ? err->message : "",
                             .bytes = text.bytes,
                             .byte_count = text.length};
    p->is_verbose = true;
    const cddp_status taken = take(p, &end, &is_last, err);
    cd_text_fini(&text);
    return taken;
}

int main(int argc, char **argv)
{
    pairs p = {.seed = DEFAULT_SEED, .count = DEFAULT_COUNT, .jobs = 2, .training = UINT64_MAX};
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count done;
    if (!read_options(argc, argv, &p)) return 2;
    p.draws = calloc(p.count + 1, sizeof *p.draws);
    if (p.draws == NULL || cddp_registry_create(NULL, &p.registry, &err) != CDDP_OK) return 2;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    draw_all(&p);
    const cd_crew_options options = {.task_count = p.drawn,
                                     .worker_count = (uint32_t)p.jobs,
                                     .context = &p,
                                     .work = work,
                                     .take = take};
    const cddp_status status =
        p.training < p.drawn ? run_alone(&p, &err) : cd_crew_run(&options, &done, &err);
    if (status != CDDP_OK) fprintf(stderr, "%s\n", err.message);
    const bool is_good = status == CDDP_OK && report(&p);
    cddp_registry_destroy(p.registry);
    free(p.draws);
    return is_good ? 0 : 1;
}
