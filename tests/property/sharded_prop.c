/* SPDX-License-Identifier: Apache-2.0 */
/* Every strategy of a sharded model with every prefetch, layout and precision: clean it is
** verified, and with a mistake of sharded_mistakes.h that matters there it is not.
**
** A mistake matters where it struck and a rank's own events differ from those of the clean run.
** Each cell of the product is given mistakes in turn, until one matters. Prefetch changes no bit of
** a gradient, and where it is to change the order of events it does (FSH-23). What no cell can have
** is refused, and the refusal names it.
*/
#include "core/trace/event.h"
#include "scenarios/reader/reader.h"
#include "tests/property/sharded_mistakes.h"
#include "tests/support/test.h"
#include "verify/worlds/compose.h"

#include <stdio.h>
#include <string.h>

#define RANKS_MAX 8
#define SETS_MAX 8
#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

static const char *const strategies[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                         "_HYBRID_SHARD_ZERO2"};
static const char *const prefetches[] = {"none", "BACKWARD_PRE", "BACKWARD_POST"};
static const char *const layouts[] = {"flat", "rows"};

static const struct {
    const char *name;
    const char *sets[SETS_MAX];
} precisions[] = {
    {"f32", {NULL}},
    {"f64", {"model.dtype=f64"}},
    {"bf16", {"mixed_precision.param_dtype=bf16"}},
    {"bf16/f32", {"mixed_precision.param_dtype=bf16", "mixed_precision.reduce_dtype=f32"}},
    {"f32/bf16", {"mixed_precision.reduce_dtype=bf16"}},
    {"f16/f32", {"mixed_precision.param_dtype=f16", "mixed_precision.reduce_dtype=f32"}},
    {"bf16, casts",
     {"mixed_precision.param_dtype=bf16", "mixed_precision.reduce_dtype=f32",
      "fsdp.cast_forward_inputs=true", "fsdp.output_dtype=bf16",
      "fsdp.keep_low_precision_grads=true"}},
    {"units", {"fsdp.unit_precision=layers.1=bf16/f32,out=f16 output_dtype=f16"}},
    {"f32, two micro-steps", {"train.micro_steps=2"}},
};

typedef struct cell {
    size_t strategy, prefetch, layout, precision;
    bool forward_prefetch;
} cell;

static bool is_hybrid(const cell *c) { return c->strategy >= 3; }

static cddp_plan *plan_of(const cell *c)
{
    static const char text[] = "schema = 1\ntitle = \"a cell of the product\"\n"
                               "[world]\nsize = 3\n[model]\nname = \"mlp\"\n"
                               "options = \"widths=4:6:5:3\"\nexact = false\n[train]\nsteps = 2\n"
                               "[fsdp]\nenable = true\nauto_wrap_policy = \"always\"\n";
    char own[6][64];
    const char *sets[6 + SETS_MAX];
    size_t count = 0;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    snprintf(own[0], sizeof own[0], "fsdp.sharding_strategy=%s", strategies[c->strategy]);
    snprintf(own[1], sizeof own[1], "fsdp.backward_prefetch=%s", prefetches[c->prefetch]);
    snprintf(own[2], sizeof own[2], "fsdp.layout=%s", layouts[c->layout]);
    snprintf(own[3], sizeof own[3], "fsdp.forward_prefetch=%s",
             c->forward_prefetch ? "true" : "false");
    snprintf(own[4], sizeof own[4], "world.size=%d", is_hybrid(c) ? 4 : 3);
    snprintf(own[5], sizeof own[5], "fsdp.shard_group_size=%d", is_hybrid(c) ? 2 : 0);
    for (; count < 6; count++) sets[count] = own[count];
    for (size_t i = 0; i < SETS_MAX && precisions[c->precision].sets[i] != NULL; i++)
        sets[count++] = precisions[c->precision].sets[i];
    const cd_reader_options options = {.sets = sets, .set_count = count};
    assert_ok(cd_reader_read_text(&options, "cell", text, &plan, &err), &err);
    return plan;
}

/* ---- a run ---- */

typedef struct ended {
    uint64_t events[RANKS_MAX]; /* what each rank did */
    bool has_begun[RANKS_MAX];  /* what came before compared settings */
    uint64_t gradients;         /* the bits of all reduced ones */
    bool is_verified, has_finding;
    char said[256];
} ended;

static bool is_of_the_rank(const cddp_event *event)
{
    switch (event->kind) {
    case CDDP_EV_collective_post:
    case CDDP_EV_unit_pass:
    case CDDP_EV_unit_storage:
    case CDDP_EV_unit_read:
    case CDDP_EV_grad_final:
    case CDDP_EV_grad_local:
        return true;
    default:
        return false;
    }
}

static void watch(void *self, const cddp_event *event)
{
    ended *e = self;
    const size_t rank = event->rank % RANKS_MAX;
    uint64_t *own = &e->events[rank];
    sharded_mistake_event(event);
    e->has_begun[rank] = e->has_begun[rank] || event->kind == CDDP_EV_unit_pass;
    if (e->has_begun[rank] && is_of_the_rank(event)) *own = cd_event_digest(*own, event, false);
    if (event->kind == CDDP_EV_grad_final)
        e->gradients += (uint64_t)event->as.grad_final.digest * (uint64_t)(event->rank + 1);
}

static ended run(const cell *c, const cddp_registry *registry, sharded_mistake mistake)
{
    cddp_error err = CDDP_ERROR_INIT;
    ended e = {.gradients = 0};
    cd_compose *compose = NULL;
    cddp_plan *plan = plan_of(c);
    cddp_verdict *verdict = NULL;
    const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &e, watch, NULL};
    const cddp_trace_sink *sinks[] = {&sink};
    const cd_compose_options options = {.plan = plan,
                                        .registry = registry,
                                        .level = CDDP_TRACE_DIGEST};
    cddp_run_options how = cddp_run_options_default();
    sharded_mistake_begin(mistake);
    assert_ok(cd_compose_open(&options, &compose, &err), &err);
    cd_compose_fill(compose, &how);
    how.registry = registry;
    how.judge = how.oracle = true;
    how.sinks = sinks;
    how.sink_count = 1;
    assert_ok(cddp_run(&how, &verdict, &err), &err);
    cd_compose_close(compose);
    cddp_plan_destroy(plan);
    e.is_verified = verdict->outcome == CDDP_OUTCOME_VERIFIED;
    e.has_finding = verdict->finding_count > 0;
    snprintf(e.said, sizeof e.said, "%s", verdict->summary);
    if (e.has_finding)
        snprintf(e.said, sizeof e.said, "%s: %s", verdict->findings[0].check,
                 verdict->findings[0].title);
    for (size_t i = 0; i < verdict->rank_count; i++)
        e.is_verified = e.is_verified && verdict->ranks[i].result.status == CDDP_OK;
    cddp_verdict_destroy(verdict);
    return e;
}

static void complain(const cell *c, const char *what, const char *said)
{
    print_error("%s, backward_prefetch %s, forward_prefetch %d, %s, %s: %s: %s\n",
                strategies[c->strategy], prefetches[c->prefetch], c->forward_prefetch,
                layouts[c->layout], precisions[c->precision].name, what, said);
}

/* ---- the product ---- */

typedef struct tally {
    size_t cells, failed, planted[SHARDED_MISTAKES];
} tally;

/* From one mistake on, in turn. */
static void plant(const cell *c, const cddp_registry *registry, const ended *clean, tally *t)
{
    for (size_t n = 0; n + 1 < SHARDED_MISTAKES; n++) {
        const sharded_mistake mistake =
            (sharded_mistake)(1 + (t->cells + n) % (SHARDED_MISTAKES - 1));
        const ended wrong = run(c, registry, mistake);
        const bool matters = sharded_mistake_fired() &&
                             memcmp(wrong.events, clean->events, sizeof clean->events) != 0;
        if (!matters) continue;
        t->planted[mistake]++;
        if (!wrong.is_verified) return;
        complain(c, sharded_mistake_name(mistake), wrong.said);
        t->failed++;
        return;
    }
    complain(c, "no mistake matters", "");
    t->failed++;
}

/* FSH-23, against the cell without any prefetch. */
static void compare_prefetch(const cell *c, const ended *plain, const ended *clean, tally *t)
{
    const bool gathers_again = c->strategy == 0 || c->strategy == 3;
    const bool may_move =
        (gathers_again && c->prefetch > 0) || (c->strategy != 2 && c->forward_prefetch);
    const bool moved = memcmp(plain->events, clean->events, sizeof clean->events) != 0;
    if (plain->gradients != clean->gradients) {
        complain(c, "prefetch", "gradients have other bits than without it");
        t->failed++;
    }
    if (moved != may_move) {
        complain(c, "prefetch", moved ? "it changes what it cannot" : "it changes nothing");
        t->failed++;
    }
}

static void run_cells(cell *c, const cddp_registry *registry, tally *t)
{
    ended plain = {.gradients = 0};
    for (size_t p = 0; p < 2 * 3; p++) {
        c->prefetch = p % 3;
        c->forward_prefetch = p >= 3;
        const ended clean = run(c, registry, SHARDED_NO_MISTAKE);
        if (!clean.is_verified) {
            complain(c, "clean", clean.said);
            t->failed++;
        }
        if (p == 0) plain = clean;
        compare_prefetch(c, &plain, &clean, t);
        plant(c, registry, &clean, t);
        t->cells++;
    }
}

TEST(sharded, every_cell_of_the_product_is_verified_and_a_mistake_in_it_is_found)
{
    (void)state;
    tally t = {.cells = 0};
    cell c = {.strategy = 0};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    for (c.precision = 0; c.precision < COUNT_OF(precisions); c.precision++)
        for (c.strategy = 0; c.strategy < COUNT_OF(strategies); c.strategy++)
            for (c.layout = 0; c.layout < COUNT_OF(layouts); c.layout++)
                run_cells(&c, registry, &t);
    cddp_registry_destroy(registry);
    print_message("%zu cells; planted:\n", t.cells);
    for (size_t m = 1; m < SHARDED_MISTAKES; m++) {
        print_message("  %-18s %zu\n", sharded_mistake_name((sharded_mistake)m), t.planted[m]);
        assert_true(t.planted[m] > 0);
    }
    assert_int_equal(t.failed, 0);
}

/* ---- what no cell can have ---- */

TEST(sharded, what_is_not_judged_is_refused_by_name)
{
    (void)state;
    static const struct {
        const char *sets[3], *words;
    } refused[] = {
        {{"amp.enable=true"}, "amp.enable with fsdp.enable"},
        {{"hook.name=allreduce"}, "hook.name with fsdp.enable"},
        {{"model.dtype=bf16"}, "model.dtype with fsdp.enable"},
        {{"model.dtype=f64", "mixed_precision.param_dtype=bf16"}, "f64"},
        {{"fsdp.sharding_strategy=HYBRID_SHARD", "fsdp.shard_group_size=2"}, "HSD-01"},
        {{"fsdp.shard_group_size=3"}, "without a hybrid"},
        {{"fsdp.cast_forward_inputs=true"}, "no effect without mixed_precision.param_dtype"},
        {{"fsdp.cast_root_forward_inputs=false"}, "no effect without mixed_precision.param_dtype"},
        {{"fsdp.keep_low_precision_grads=true"}, "no effect without mixed_precision.param_dtype"},
        {{"fsdp.unit_precision=out=none cast_forward_inputs"},
         "param_dtype of a unit that has none"},
        {{"fsdp.unit_precision=out=bf16 casts"}, "Words behind that"},
        {{"clip.max_norm=1", "fsdp.unit_precision=out=bf16 keep_low_precision_grads"},
         "clip.max_norm with keep_low_precision_grads"},
    };
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        size_t count = 0;
        while (count < 3 && refused[i].sets[count] != NULL) count++;
        const cd_reader_options options = {.sets = refused[i].sets, .set_count = count};
        const cddp_status status = cd_reader_read_text(
            &options, "cell",
            "schema = 1\ntitle = \"refused\"\n[world]\nsize = 3\n[fsdp]\nenable = true\n", &plan,
            &err);
        if (status == CDDP_OK || strstr(err.message, refused[i].words) == NULL)
            print_error("%s: %s\n", refused[i].sets[0], status == CDDP_OK ? "taken" : err.message);
        assert_int_not_equal(status, CDDP_OK);
        assert_non_null(strstr(err.message, refused[i].words));
        cddp_plan_destroy(plan);
    }
}

TEST_MAIN()
