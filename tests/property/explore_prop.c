/* SPDX-License-Identifier: Apache-2.0 */
/* A reduced search finds what the full one finds: 200 small configurations, drawn at random, many
** of them broken in
*** ways
*** that only some orders show, are searched in full (every turn of every rank, every order of
**  gradients) and with each
*** reduction; the sets of outcomes must be the same.
***
*** The comparison sees an unsound reduction: a search that leaves the order of arrival out of its
**  states, although
*** buckets are rebuilt in it, misses outcomes.
*/
#include "verify/explore/prefix.h"
#include "verify/explore/run.h"
#include "verify/worlds/symmetry.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/trace/event.h"
#include "sim/fiber.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#ifndef CONFIGURATIONS
#define CONFIGURATIONS 20 /* quickly; 200 where there is time */
#endif
#define RUNS_MAX 400 /* of a full search; larger configurations are drawn again */
#define KEYS_MAX 24
#define RANKS_MAX 3

typedef struct key {
    const char *name, *value;
} key;

typedef struct draw {
    cd_prng *prng;
    key keys[KEYS_MAX];
    size_t count;
    char options[2][64];
} draw;

static bool chance(draw *d, uint32_t percent) { return cd_prng_below(d->prng, 100) < percent; }

static void set(draw *d, const char *name, const char *value)
{
    assert_true(d->count < KEYS_MAX);
    d->keys[d->count++] = (key){name, value};
}

#define PICK(d, ...)                            \
    pick(d, (const char *const[]){__VA_ARGS__}, \
         sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))
static const char *pick(draw *d, const char *const *values, size_t count)
{
    return values[cd_prng_below(d->prng, count)];
}

/* Settings that make ranks disagree, or the order of turns matter. */
static void draw_trouble(draw *d)
{
    if (chance(d, 20)) set(d, "model.init@1", "distinct");
    if (chance(d, 30)) {
        set(d, "ddp.init_sync", "false");
        if (chance(d, 60)) set(d, "model.options@1", d->options[1]);
        if (chance(d, 40)) set(d, "ddp.bucket_cap_mb@1", "0.00003");
    }
    if (chance(d, 15)) set(d, "world.in_flight_max", "1");
    if (chance(d, 10)) set(d, "ddp.find_unused_parameters@1", "true");
    if (chance(d, 30)) {
        if (chance(d, 50)) set(d, "when.0.ranks", "1");
        if (chance(d, 50))
            set(d, "when.0.sync", "false");
        else
            set(d, "when.0.abort_after", PICK(d, "1", "2"));
    }
    if (chance(d, 10)) set(d, "world.timeout_ms", "5");
}

static void draw_keys(draw *d)
{
    uint32_t world = chance(d, 85) ? 2 : 3, parameters = world == 3 || chance(d, 65) ? 2 : 3;
    snprintf(d->options[0], sizeof d->options[0], "count=%u,numel=5", parameters);
    snprintf(d->options[1], sizeof d->options[1],
             parameters == 2 ? "list=p1:5;p0:5" : "list=p2:5;p0:5;p1:5");
    set(d, "title", "drawn at random");
    set(d, "world.size", world == 2 ? "2" : "3");
    set(d, "model.name", "params");
    set(d, "model.options", d->options[0]);
    set(d, "model.device", PICK(d, "cpu", "cpu", "shape", "symbol"));
    set(d, "train.steps", world == 2 && parameters == 2 && chance(d, 80) ? "2" : "1");
    set(d, "ddp.bucket_cap_mb", PICK(d, "0.00001", "0.00003", "25"));
    set(d, "ddp.first_bucket_bytes", PICK(d, "1", "30", "1000"));
    set(d, "ddp.find_unused_parameters", PICK(d, "true", "false", "false"));
    set(d, "ddp.gradient_as_bucket_view", PICK(d, "true", "false"));
    set(d, "ddp.static_graph", PICK(d, "true", "false", "false", "false"));
    set(d, "network.completion", PICK(d, "at_once", "at_once", "choice"));
    set(d, "network.algorithm", PICK(d, "gloo_ring", "gloo_ring", "gloo_ring", "any_order"));
    if (chance(d, 50)) draw_trouble(d);
}

static char drawn[2048]; /* the keys of the configuration at hand, for messages */

/* NULL: the plan refuses what was drawn. */
static cddp_plan *plan_of(const draw *d)
{
    size_t used = 0;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    for (size_t i = 0; i < d->count && used < sizeof drawn; i++)
        used += (size_t)snprintf(drawn + used, sizeof drawn - used, " %s=%s", d->keys[i].name,
                                 d->keys[i].value);
    for (size_t i = 0; i < d->count; i++)
        if (cddp_plan_set(plan, d->keys[i].name, d->keys[i].value, &err) != CDDP_OK) {
            cd_test_row("%s = %s", d->keys[i].name, d->keys[i].value);
            assert_ok(err.status, &err);
        }
    if (cddp_plan_check(plan, &err) == CDDP_OK) return plan;
    cddp_plan_destroy(plan);
    return NULL;
}

typedef struct search {
    bool reduce, merge, symmetry;
    bool without_rebuild; /* a lie where buckets are rebuilt */
} search;

/* The outcome of a run is its verdict, the operations of every rank and the layout of its buckets,
** in order. */
typedef struct operations {
    cddp_trace_sink sink;
    uint64_t ranks[RANKS_MAX];
} operations;

static void read_operation(void *self, const cddp_event *event)
{
    operations *w = self;
    cddp_event operation = *event;
    if (event->rank >= RANKS_MAX) return;
    if (event->kind != CDDP_EV_collective_post && event->kind != CDDP_EV_bucket_layout &&
        event->kind != CDDP_EV_error)
        return;
    operation.rank = 0;
    w->ranks[event->rank] = cd_event_digest(w->ranks[event->rank], &operation, true);
}

static uint64_t digest_of(const operations *w, uint64_t outcome, bool anonymous)
{
    uint64_t digest = 0;
    for (uint64_t r = 0; r < RANKS_MAX; r++)
        digest += cd_hash_mix(w->ranks[r], anonymous && r > 0 ? 1 : r);
    return cd_hash_mix(outcome, digest);
}

/* Runs a search to its end; false when it is too large. The explorer is left for its outcomes. */
static bool run_search(cd_explore_subject *subject, const search *s, cd_explorer *e)
{
    static cd_explored explored;
    operations w = {.sink = {.size = sizeof w.sink,
                             .abi = CDDP_TRACE_ABI,
                             .self = &w,
                             .event = read_operation}};
    cddp_error err = CDDP_ERROR_INIT;
    cd_explore_options options = {.strategy = CD_STRATEGY_EXHAUSTIVE,
                                  .reduce = s->reduce,
                                  .merge = s->merge,
                                  .symmetry = s->symmetry,
                                  .without_rebuild = s->without_rebuild,
                                  .world_size = (uint32_t)subject->plan->world.size,
                                  .runs_max = RUNS_MAX,
                                  .without_coverage = true};
    subject->watcher = &w.sink;
    assert_ok(cd_explorer_init(e, &options, &err), &err);
    for (const cd_chooser *chooser; (chooser = cd_explorer_next(e)) != NULL;) {
        memset(w.ranks, 0, sizeof w.ranks);
        assert_ok(cd_explore_run(subject, e, chooser, &explored, &err), &err);
        assert_ok(cd_explorer_done(e, digest_of(&w, explored.outcome, subject->anonymous), &err),
                  &err);
    }
    subject->watcher = NULL;
    return e->exhausted;
}

static bool is_equal(const cd_digest_set *a, const cd_digest_set *b)
{
    bool equal = a->count == b->count;
    for (size_t i = 0; equal && i < a->capacity; i++)
        equal = a->items[i] == 0 || cd_digest_set_has(b, a->items[i]);
    return equal;
}

static uint64_t runs_of(cd_explore_subject *subject, search s, const cd_digest_set *wanted,
                        bool *equal)
{
    cd_explorer e;
    *equal = run_search(subject, &s, &e) && is_equal(&e.outcomes, wanted);
    uint64_t runs = e.runs;
    cd_explorer_fini(&e);
    return runs;
}

typedef struct tally {
    uint64_t full, reduced, merged, symmetric;
    uint32_t configurations, several_outcomes, with_races, interchangeable;
} tally;

static void compare_anonymous(cd_explore_subject *subject, tally *t)
{
    cd_explorer full;
    bool equal = false;
    subject->anonymous = true;
    assert_true(run_search(subject, &(search){0}, &full));
    t->symmetric +=
        runs_of(subject,
                (search){.reduce = true,
                         .merge = true,
                         .symmetry = true,
                         .without_rebuild = cd_explore_is_without_rebuild(subject->plan)},
                &full.outcomes, &equal);
    assert_true(equal);
    t->interchangeable++;
    cd_explorer_fini(&full);
}

static void compare(cd_explore_subject *subject, tally *t)
{
    cd_explorer full;
    bool equal = false, without_rebuild = cd_explore_is_without_rebuild(subject->plan);
    if (run_search(subject, &(search){0}, &full)) {
        const cd_digest_set *wanted = &full.outcomes;
        cd_test_row("configuration %u: %zu outcomes in %llu runs;%s", t->configurations,
                    wanted->count, (unsigned long long)full.runs, drawn);
        t->full += full.runs;
        t->several_outcomes += wanted->count > 1;
        t->with_races += full.races;
        t->reduced += runs_of(subject, (search){.reduce = true}, wanted, &equal);
        assert_true(equal);
        (void)runs_of(subject, (search){.merge = true, .without_rebuild = without_rebuild}, wanted,
                      &equal);
        t->merged +=
            runs_of(subject,
                    (search){.reduce = true, .merge = true, .without_rebuild = without_rebuild},
                    wanted, &equal);
        assert_true(equal);
        if (cd_world_find_asymmetry(subject->plan) == NULL) compare_anonymous(subject, t);
        t->configurations++;
    }
    cd_explorer_fini(&full);
}

TEST(explore, reduced_searches_find_what_the_full_one_finds)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    tally t = {0};
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    while (t.configurations < CONFIGURATIONS) {
        cd_text overrides;
        draw d = {.prng = &prng};
        draw_keys(&d);
        cd_explore_subject subject = {.plan = plan_of(&d), .registry = registry};
        if (subject.plan == NULL) continue;
        cd_text_init(&overrides, false);
        assert_ok(cd_explore_prepare(subject.plan, true, &overrides, &err), &err);
        compare(&subject, &t);
        cd_text_fini(&overrides);
        cd_explore_fini(&subject);
        cddp_plan_destroy(subject.plan);
    }
    cddp_registry_destroy(registry);
    print_message("%u configurations, %u with several outcomes, %u with races; schedules: %llu in "
                  "full, %llu reduced, "
                  "%llu merged too; "
                  "%u with interchangeable ranks: %llu\n",
                  t.configurations, t.several_outcomes, t.with_races, (unsigned long long)t.full,
                  (unsigned long long)t.reduced, (unsigned long long)t.merged, t.interchangeable,
                  (unsigned long long)t.symmetric);
    assert_true(t.several_outcomes >= CONFIGURATIONS / 20 &&
                t.interchangeable >= CONFIGURATIONS / 20);
    assert_true(t.reduced < t.full && t.merged < t.reduced);
    if (CONFIGURATIONS >= 200) assert_true(t.with_races > 0);
}

/* One rank, four gradients, then a step whose buckets lie as they came: 24 layouts. */
TEST(explore, states_without_the_order_of_arrival_would_lose_outcomes)
{
    (void)state;
    static const key keys[] = {
        {"title", "rebuilt as they came"}, {"world.size", "1"},          {"model.name", "params"},
        {"model.options", "count=4"},      {"model.device", "shape"},    {"train.steps", "2"},
        {"ddp.bucket_cap_mb", "0.00001"},  {"schedule.ready", "chosen"}, {"when.0.steps", "1"},
        {"when.0.ready", "engine"}};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    draw d = {.count = sizeof keys / sizeof keys[0]};
    memcpy(d.keys, keys, sizeof keys);
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    cd_explore_subject subject = {.plan = plan_of(&d), .registry = registry};
    cd_explorer full;
    bool equal = false;
    assert_non_null(subject.plan);
    assert_true(run_search(&subject, &(search){0}, &full));
    assert_int_equal(full.outcomes.count, 24);
    assert_false(cd_explore_is_without_rebuild(subject.plan));
    (void)runs_of(&subject, (search){.reduce = true, .merge = true}, &full.outcomes, &equal);
    assert_true(equal);
    /* what is lost, the schedules that draw everything meet: the search begins again */
    const uint64_t runs =
        runs_of(&subject, (search){.reduce = true, .merge = true, .without_rebuild = true},
                &full.outcomes, &equal);
    assert_true(equal && runs > 24);
    cd_explorer_fini(&full);
    cd_explore_fini(&subject);
    cddp_plan_destroy(subject.plan);
    cddp_registry_destroy(registry);
}

/* ---- runs that share their beginning ---- */

#define SHARED_RUNS 40

typedef struct shared_run {
    uint64_t outcome;
    bool is_verified;
    char culprit[sizeof((cd_explored *)0)->culprit];
    uint64_t schedule;
} shared_run;

/* The outcomes of the first runs of a strategy; returns their number. */
static size_t take_runs(cd_explore_subject *subject, cd_strategy strategy, shared_run *runs)
{
    static cd_explored explored;
    cd_explorer e;
    cddp_error err = CDDP_ERROR_INIT;
    size_t count = 0;
    const cd_explore_options options = {.strategy = strategy,
                                        .reduce = true,
                                        .depth = 2,
                                        .seed = 5,
                                        .world_size = (uint32_t)subject->plan->world.size,
                                        .runs_max = SHARED_RUNS};
    assert_ok(cd_explorer_init(&e, &options, &err), &err);
    for (const cd_chooser *chooser; (chooser = cd_explorer_next(&e)) != NULL; count++) {
        assert_ok(cd_explore_run(subject, &e, chooser, &explored, &err), &err);
        runs[count] = (shared_run){.outcome = explored.outcome,
                                   .is_verified = explored.is_verified,
                                   .schedule = cd_hash_text(explored.schedule)};
        snprintf(runs[count].culprit, sizeof runs[count].culprit, "%s", explored.culprit);
        assert_ok(cd_explorer_done(&e, explored.outcome, &err), &err);
    }
    cd_explorer_fini(&e);
    return count;
}

/* Both on one subject, so that each finds what the others left of the world. */
TEST(explore, runs_that_share_their_beginning_come_to_what_they_come_to_by_themselves)
{
    (void)state;
    static shared_run alone[SHARED_RUNS], shared[SHARED_RUNS];
    cd_prng prng = cd_prng_seed(cd_test_seed() + 1);
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    uint32_t sharing = 0, failing = 0, looking = 0;
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    for (uint32_t configuration = 0; configuration < CONFIGURATIONS;) {
        cd_text overrides;
        draw d = {.prng = &prng};
        draw_keys(&d);
        cd_explore_subject subject = {.plan = plan_of(&d), .registry = registry}, other = subject;
        if (subject.plan == NULL) continue;
        cd_text_init(&overrides, false);
        assert_ok(cd_explore_prepare(subject.plan, false, &overrides, &err), &err);
        other.from_scratch = true;
        for (int s = 0; s < CD_STRATEGY_COUNT; s++) {
            size_t count = take_runs(&other, (cd_strategy)s, alone);
            assert_int_equal(take_runs(&subject, (cd_strategy)s, shared), count);
            for (size_t i = 0; i < count; i++) {
                cd_test_row("configuration %u, %s, run %zu;%s", configuration,
                            cd_strategy_name((cd_strategy)s), i, drawn);
                assert_true(alone[i].outcome == shared[i].outcome &&
                            alone[i].is_verified == shared[i].is_verified);
                assert_string_equal(shared[i].culprit, alone[i].culprit);
                assert_true(shared[i].schedule == alone[i].schedule);
                failing += !alone[i].is_verified;
            }
            for (size_t w = 0; w < CD_EXPLORE_WORLDS; w++) {
                const cd_explore_prefix *prefix = subject.worlds[w].prefix;
                const bool shares = prefix != NULL && cd_explore_prefix_is_kept(prefix);
                sharing += shares;
                looking += shares && w / 2 == CD_RECALL_LOOKS;
            }
        }
        cd_text_fini(&overrides);
        cd_explore_fini(&subject);
        cd_explore_fini(&other);
        cddp_plan_destroy(subject.plan);
        configuration++;
    }
    cddp_registry_destroy(registry);
    print_message("%u searches shared a beginning, %u of them without a judge, "
                  "%u runs were not verified\n",
                  sharing, looking, failing);
    assert_true(failing > CONFIGURATIONS);
    assert_true(cd_fiber_has_shadow() ? sharing == 0 : sharing > CONFIGURATIONS);
}

TEST_MAIN()
