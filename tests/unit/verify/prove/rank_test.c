/* SPDX-License-Identifier: Apache-2.0 */
/* The search over one rank, against brute force: every order of small windows, one by one. */
#include "verify/prove/walk.h"

#include "cddp/device.h"
#include "verify/worlds/compose.h"
#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "sim/fiber.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

typedef struct setting {
    const char *key, *value;
} setting;

typedef struct plan_case {
    const char *name;
    setting settings[10];
} plan_case;

#define SMALL \
    {"model.name", "chain"}, {"ddp.first_bucket_bytes", "16"}, { "ddp.bucket_cap_mb", "0.00008" }
static const plan_case cases[] = {
    {"plain", {SMALL, {"model.options", "depth=2,width=4"}, {"train.steps", "2"}}},
    {"find unused",
     {SMALL,
      /* clang-format off */
      {"model.options", "depth=2,width=4"},
      {"train.steps", "2"},
      {"ddp.find_unused_parameters", "true"},
      {"when.0.ranks", "1"},
      {"when.0.uses", "layers.0=0"}}},
    {"static graph", {SMALL, {"model.options", "depth=2,width=4"}, {"train.steps", "3"}, {"ddp.static_graph", "true"}}},
    /* clang-format on */
    {"views",
     {SMALL,
      /* clang-format off */
      {"model.options", "depth=2,width=4"},
      {"train.steps", "2"},
      {"ddp.gradient_as_bucket_view", "true"},
      {"train.zero_grad", "zero"}}},
    {"accumulation", {SMALL, {"model.options", "depth=1,width=4"}, {"train.steps", "2"}, {"train.micro_steps", "3"}}},
    /* clang-format on */
    {"join",
     {SMALL,
      {"model.options", "depth=2,width=4"},
      {"train.steps", "3"},
      {"join.enable", "true"},
      {"data.inputs@0", "2"}}},
    {"batched copy",
     {SMALL,
      {"model.options", "depth=2,width=4"},
      {"train.steps", "2"},
      {"ddp.batched_grad_copy", "true"}}},
    {"six gradients", {SMALL, {"model.options", "depth=3,width=4"}, {"train.steps", "1"}}},
};
#define CASES (sizeof cases / sizeof cases[0])

static void make_plan(const plan_case *c, const char *device, cddp_plan **plan)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_plan_create(cddp_allocator_default(), plan, &err), &err);
    for (size_t i = 0; i < 10 && c->settings[i].key != NULL; i++)
        assert_ok(cddp_plan_set(*plan, c->settings[i].key, c->settings[i].value, &err), &err);
    assert_ok(cddp_plan_set(*plan, "title", c->name, &err), &err);
    assert_ok(cddp_plan_set(*plan, "model.device", device, &err), &err);
    assert_ok(cddp_plan_set(*plan, "schedule.ready", "chosen", &err), &err);
    assert_ok(cddp_plan_check(*plan, &err), &err);
}

/* One run in the engine's order. */
static void record(const cddp_plan *plan, cd_call_tap *tap)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_compose *compose = NULL;
    cddp_verdict *verdict = NULL;
    cddp_registry *registry = NULL;
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    const cd_compose_options composing = {.plan = plan, .level = CDDP_TRACE_DIGEST};
    assert_ok(cd_compose_open(&composing, &compose, &err), &err);
    cddp_run_options running = cddp_run_options_default();
    cd_compose_fill(compose, &running);
    assert_ok(cd_call_tap_init(tap, running.backend, (uint32_t)plan->world.size, &err), &err);
    running.backend = &tap->table;
    running.registry = registry;
    assert_ok(cddp_run(&running, &verdict, &err), &err);
    assert_int_equal(verdict->outcome, CDDP_OUTCOME_VERIFIED);
    cddp_verdict_destroy(verdict);
    cd_compose_close(compose);
    cddp_registry_destroy(registry);
}

static cd_rank_proof proved(const cddp_plan *plan, const cd_call_tap *tap, uint32_t rank,
                            bool snapshots)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_rank_proof proof;
    const cd_prove_rank_options options = {.plan = plan,
                                           .rank = rank,
                                           .results = &tap->results,
                                           .calls = &tap->sequences[rank],
                                           .snapshots = snapshots};
    assert_ok(cd_prove_rank(&options, &proof, &err), &err);
    return proof;
}

/* ---- brute force ---- */

typedef struct fact {
    uint64_t key, rest; /* the state, and the order of what is still to come */
    uint64_t future;    /* what followed */
} fact;

typedef struct facts {
    fact items[20000];
    size_t count;
    size_t states; /* distinct (set, key) of this window */
    struct {
        uint64_t set, key;
    } seen[4096];
} facts;

static facts all; /* too large for the stack */

static void note_state(uint64_t set, uint64_t key)
{
    for (size_t i = 0; i < all.states; i++)
        if (all.seen[i].set == set && all.seen[i].key == key) return;
    assert_true(all.states < 4096);
    all.seen[all.states].set = set;
    all.seen[all.states++].key = key;
}

static void note_fact(const fact *f)
{
    for (size_t i = 0; i < all.count; i++)
        if (all.items[i].key == f->key && all.items[i].rest == f->rest) {
            assert_int_equal(all.items[i].future, f->future); /* equal keys, equal future */
            return;
        }
    assert_true(all.count < 20000);
    all.items[all.count++] = *f;
}

/* Walks one order of one window to the end of the program. */
static void walk_order(const cd_prove_rank_options *options, cd_calls *calls,
                       const cd_window_choice *choice)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_rank_walk w;
    uint64_t keys[CD_PROVE_EVENTS_MAX], rests[CD_PROVE_EVENTS_MAX];
    size_t said[CD_PROVE_EVENTS_MAX];
    uint32_t order[CD_PROVE_EVENTS_MAX], n = choice->digit_count;
    cd_rank_walk_init(&w, options, cddp_allocator_default(), calls);
    assert_ok(cd_rank_walk_begin(&w, &err), &err);
    while (w.window < choice->window) assert_ok(cd_rank_walk_choose(&w, NULL, &err), &err);
    assert_int_equal(w.firing_count, n);
    const uint64_t everything = w.left;
    uint64_t left = w.left;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t digit = choice->digits[k], e = 0;
        while ((left >> e & 1) == 0 || digit-- > 0) e++;
        order[k] = e;
        left &= ~(UINT64_C(1) << e);
    }
    for (uint32_t k = 0; k < n; k++) {
        assert_ok(cd_rank_walk_fire(&w, order[k], &err), &err);
        keys[k] = cd_rank_walk_key(&w);
        said[k] = w.call_count;
        note_state(everything & ~w.left, keys[k]);
        rests[k] = cd_hash64(order + k + 1, (n - k - 1) * sizeof *order, choice->window);
    }
    assert_ok(cd_rank_walk_next_window(&w, &err), &err);
    const uint64_t end = cd_rank_walk_key(&w);
    assert_ok(cd_rank_walk_to_the_end(&w, &err), &err); /* and issues what is expected, or fails */
    for (uint32_t k = 0; k < n; k++)
        note_fact(&(fact){keys[k], rests[k], cd_hash_mix(end, w.call_count - said[k])});
    cd_rank_walk_fini(&w);
}

static bool next_order(cd_window_choice *c)
{
    for (uint32_t k = c->digit_count; k-- > 0;) {
        if (c->digits[k] + 1 < c->digit_count - k) {
            c->digits[k]++;
            return true;
        }
        c->digits[k] = 0;
    }
    return false;
}

static void compare_with_brute_force(const cddp_plan *plan, const cd_call_tap *tap, uint32_t rank)
{
    cd_rank_proof proof = proved(plan, tap, rank, true);
    const cd_prove_rank_options options = {.plan = plan,
                                           .rank = rank,
                                           .results = &tap->results,
                                           .calls = &tap->sequences[rank]};
    uint64_t states = 0, steps = 0;
    assert_false(proof.is_refuted);
    assert_true(proof.is_complete);
    assert_true(proof.window_count > 0);
    for (uint32_t w = 0; w < proof.window_count; w++) {
        cd_window_choice choice = {.window = w, .digit_count = proof.windows[w]};
        all.count = all.states = 0;
        do walk_order(&options, &proof.calls, &choice);
        while (next_order(&choice));
        states += all.states + 1; /* and the one before the first gradient */
        steps += (uint64_t)proof.windows[w] << (proof.windows[w] - 1);
    }
    assert_int_equal(proof.states, states);
    assert_int_equal(proof.events, steps);
    assert_int_equal(proof.roots, proof.window_count);
    cd_rank_proof_fini(&proof);
}

TEST(prove_rank, equal_keys_have_equal_futures_and_no_order_is_missed)
{
    static const char *const devices[] = {"symbol", "shape"};
    for (size_t i = 0; i < CASES; i++)
        for (size_t d = 0; d < 2; d++) {
            cddp_plan *plan = NULL;
            cd_call_tap tap;
            make_plan(&cases[i], devices[d], &plan);
            record(plan, &tap);
            for (uint32_t r = 0; r < plan->world.size; r++) {
                cd_test_row("%s on %s, rank %u", cases[i].name, devices[d], r);
                compare_with_brute_force(plan, &tap, r);
            }
            cd_call_tap_fini(&tap);
            cddp_plan_destroy(plan);
        }
}

TEST(prove_rank, going_back_by_snapshot_visits_what_going_there_again_visits)
{
    if (cd_fiber_has_shadow()) {
        print_message("skipped: a sanitizer build has no snapshots\n");
        return;
    }
    for (size_t i = 0; i < CASES; i++) {
        cddp_plan *plan = NULL;
        cd_call_tap tap;
        make_plan(&cases[i], "shape", &plan);
        record(plan, &tap);
        for (uint32_t r = 0; r < plan->world.size; r++) {
            cd_test_row("%s, rank %u", cases[i].name, r);
            cd_rank_proof again = proved(plan, &tap, r, false),
                          snapshot = proved(plan, &tap, r, true);
            assert_false(again.is_refuted || snapshot.is_refuted);
            assert_true(again.is_complete && snapshot.is_complete);
            assert_int_equal(again.states, snapshot.states);
            assert_int_equal(again.events, snapshot.events);
            assert_int_equal(again.proposing, snapshot.proposing);
            assert_int_equal(cd_calls_digest(&again.calls), cd_calls_digest(&snapshot.calls));
            assert_true(snapshot.runs < again.runs);
            cd_rank_proof_fini(&again);
            cd_rank_proof_fini(&snapshot);
        }
        cd_call_tap_fini(&tap);
        cddp_plan_destroy(plan);
    }
}

TEST(prove_rank, the_window_that_decides_the_layout_is_found)
{
    static const struct {
        size_t plan;
        int32_t window;
    } expected[] = {{0, 0}, {1, -1}, {2, 1}, {4, 2}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        cddp_plan *plan = NULL;
        cd_call_tap tap;
        make_plan(&cases[expected[i].plan], "symbol", &plan);
        record(plan, &tap);
        cd_test_row("%s", cases[expected[i].plan].name);
        cd_rank_proof proof = proved(plan, &tap, 0, false);
        assert_int_equal(proof.proposing, expected[i].window);
        cd_rank_proof_fini(&proof);
        cd_call_tap_fini(&tap);
        cddp_plan_destroy(plan);
    }
}

/* A changed call of the record: every kind of change is noticed, at the call that was changed. */
TEST(prove_rank, a_record_with_any_call_changed_is_no_longer_the_rank_s)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cd_call_tap tap;
    make_plan(&cases[0], "symbol", &plan);
    record(plan, &tap);
    cd_calls *calls = &tap.sequences[1];
    assert_true(calls->count > 5);
    for (size_t i = 0; i < calls->count; i++)
        for (int kind = 0; kind < 6; kind++) {
            const cd_call kept = calls->items[i];
            cd_call *l = &calls->items[i];
            if (kind == 0) l->group ^= 1;
            if (kind == 1) l->op ^= 1;
            if (kind == 2) l->numel += 1;
            if (kind == 3) l->dtype ^= 1;
            if (kind == 4) l->label += 1;
            if (kind == 5) l->digest ^= 1;
            cd_rank_proof proof;
            const cd_prove_rank_options options = {.plan = plan,
                                                   .rank = 1,
                                                   .results = &tap.results,
                                                   .calls = calls};
            char place[64];
            snprintf(place, sizeof place, "from collective %zu on", i);
            cd_test_row("call %zu, kind %d", i, kind);
            assert_fails(cd_prove_rank(&options, &proof, &err), CDDP_E_MISMATCH, &err, place);
            err = (cddp_error)CDDP_ERROR_INIT;
            *l = kept;
        }
    cd_call_tap_fini(&tap);
    cddp_plan_destroy(plan);
}

TEST(prove_rank, a_window_that_is_too_large_is_sampled_and_the_proof_is_not_complete)
{
    static const plan_case large = {
        "large", {SMALL, {"model.options", "depth=7,width=2"}, {"train.steps", "1"}}};
    cddp_plan *plan = NULL;
    cd_call_tap tap;
    make_plan(&large, "symbol", &plan);
    record(plan, &tap);
    cd_rank_proof proof = proved(plan, &tap, 0, false);
    assert_false(proof.is_complete);
    assert_false(proof.is_refuted);
    assert_int_equal(proof.windows[0], 14);
    cd_rank_proof_fini(&proof);
    cd_call_tap_fini(&tap);
    cddp_plan_destroy(plan);
}

/* See Note [Ranks that are one] */
TEST(prove_rank, without_its_own_content_or_settings_a_rank_is_searched_as_any_other)
{
    for (size_t i = 0; i < CASES; i++) {
        /* tell ranks apart */
        if (cases[i].settings[6].key != NULL || strcmp(cases[i].name, "join") == 0) continue;
        cddp_plan *plan = NULL;
        cd_call_tap tap;
        cd_test_row("%s", cases[i].name);
        make_plan(&cases[i], "shape", &plan);
        record(plan, &tap);
        cd_rank_proof proofs[2] = {proved(plan, &tap, 0, false), proved(plan, &tap, 1, false)};
        assert_true(proofs[0].is_complete && proofs[1].is_complete);
        assert_int_equal(proofs[0].states, proofs[1].states);
        assert_int_equal(proofs[0].events, proofs[1].events);
        assert_int_equal(proofs[0].window_count, proofs[1].window_count);
        assert_memory_equal(proofs[0].windows, proofs[1].windows,
                            proofs[0].window_count * sizeof *proofs[0].windows);
        assert_int_equal(proofs[0].calls.count, proofs[1].calls.count);
        for (size_t k = 0; k < proofs[0].calls.count; k++)
            assert_true(cd_call_fits(&proofs[0].calls.items[k], &proofs[1].calls.items[k]));
        for (int r = 0; r < 2; r++) cd_rank_proof_fini(&proofs[r]);
        cd_call_tap_fini(&tap);
        cddp_plan_destroy(plan);
    }
}

/* Every rank of the record from `first` on, and a further one that does as the model. They receive
** every number of the kind that was recorded. */
static void repeat_in_large_world(const cddp_plan *plan, const cd_call_tap *tap, uint32_t first,
                                  uint32_t model, bool expected)
{
    const uint32_t recorded = tap->rank_count;
    uint32_t models[1000];
    for (uint32_t rank = 0; rank < 1000; rank++) models[rank] = rank < recorded ? rank : model;
    for (uint32_t rank = first; rank <= recorded; rank++)
        for (uint32_t turn = 0; turn < CD_PROJECTION_TURNS; turn++) {
            cddp_error err = CDDP_ERROR_INIT;
            cd_text how;
            bool repeats = !expected, has_choice = false;
            const uint32_t as = models[rank];
            const cd_projection projection = {.rank = as,
                                              .models = models,
                                              .turn = turn,
                                              .has_choice = &has_choice};
            const cd_prove_rank_options options = {.plan = plan,
                                                   .rank = rank < recorded
                                                               ? rank
                                                               : (uint32_t)plan->world.size - 1,
                                                   .results = &tap->results,
                                                   .calls = &tap->sequences[as],
                                                   .projection = &projection};
            cd_text_init(&how, false);
            assert_ok(cd_prove_rank_repeats(&options, &repeats, &how, &err), &err);
            assert_true(repeats == expected);
            assert_true((cd_text_get(&how)[0] == '\0') == expected);
            cd_text_fini(&how);
            if (!has_choice) break;
        }
}

TEST(prove_rank, alone_in_a_large_world_it_issues_its_collectives_and_no_others)
{
    for (size_t i = 0; i < CASES; i++) {
        cddp_plan *plan = NULL;
        cd_call_tap tap;
        cd_test_row("%s", cases[i].name);
        make_plan(&cases[i], i % 2 == 0 ? "symbol" : "shape", &plan);
        record(plan, &tap);
        plan->world.size = i % 3 == 0 ? 1000 : 7;
        /* the others' rank 1 has no table */
        const uint32_t model = strcmp(cases[i].name, "find unused") == 0 ? 0 : 1;
        repeat_in_large_world(plan, &tap, 0, model, true);
        /* it uses more than rank 1, and says so */
        if (model == 0) repeat_in_large_world(plan, &tap, 2, 1, false);
        for (uint32_t r = 0; r < tap.rank_count; r++)
            tap.sequences[r].items[tap.sequences[r].count - 1].numel++;
        repeat_in_large_world(plan, &tap, 0, model, false);
        for (uint32_t r = 0; r < tap.rank_count; r++) {
            tap.sequences[r].items[tap.sequences[r].count - 1].numel--;
            tap.sequences[r].count--;
        }
        repeat_in_large_world(plan, &tap, 0, model, false);
        for (uint32_t r = 0; r < tap.rank_count; r++) tap.sequences[r].count++;
        cd_call_tap_fini(&tap);
        cddp_plan_destroy(plan);
    }
}

/* The claim about larger worlds, against worlds that are run. Their ranks issue the recorded
** collectives and receive numbers of the recorded kinds. A count of none where some were counted is
** noticed. */
TEST(prove_rank, worlds_of_three_to_five_receive_what_the_world_of_two_received)
{
    for (size_t i = 0; i < CASES; i++)
        for (uint32_t size = 3; size <= 5; size++) {
            cddp_plan *plan = NULL;
            cd_call_tap two, larger;
            size_t counts = 0;
            cd_test_row("%s, %u ranks", cases[i].name, size);
            make_plan(&cases[i], size == 4 ? "symbol" : "shape", &plan);
            record(plan, &two);
            plan->world.size = size;
            record(plan, &larger);
            for (uint32_t r = 0; r < size; r++) {
                const cd_calls *a = &two.sequences[r < 2 ? r : 0], *b = &larger.sequences[r];
                assert_int_equal(a->count, b->count);
                for (size_t k = 0; k < a->count; k++) {
                    cd_call x = a->items[k], y = b->items[k];
                    x.root = y.root;
                    assert_true(cd_call_fits(&x, &y));
                }
            }
            for (size_t k = 0; k < two.results.count; k++) {
                const cd_received *a = &two.results.items[k];
                const cd_received *b =
                    cd_results_find(&larger.results, a->rank, a->group, a->sequence);
                assert_non_null(b);
                assert_true(cd_received_find_kind(a) != CD_RECEIVED_UNKNOWN);
                assert_true(cd_received_is_alike(a, b));
                if (cd_received_find_kind(a) != CD_RECEIVED_COUNT) continue;
                counts++;
                memset(b->tensor.storage, 0,
                       (size_t)cddp_tensor_numel(&b->tensor) * cddp_dtype_bytes(b->tensor.dtype));
                uint64_t recorded = 0, nothing = 0;
                assert_ok(a->tensor.device->digest(&a->tensor, &recorded, NULL), NULL);
                assert_ok(b->tensor.device->digest(&b->tensor, &nothing, NULL), NULL);
                assert_true(cd_received_is_alike(a, b) == (recorded == nothing));
            }
            assert_true((counts > 0) == (strcmp(cases[i].name, "find unused") == 0 ||
                                         strcmp(cases[i].name, "join") == 0 ||
                                         strcmp(cases[i].name, "static graph") == 0));
            cd_call_tap_fini(&two);
            cd_call_tap_fini(&larger);
            cddp_plan_destroy(plan);
        }
}

/* ---- results for a larger world ---- */

static cd_received received_of(cddp_op op, cddp_red_op reduce_op, void *numbers, cddp_dtype dtype,
                               int64_t numel)
{
    return (cd_received){.op = op,
                         .reduce_op = reduce_op,
                         .group_size = 3,
                         .tensor = cddp_tensor_of(cddp_device_cpu(), numbers, 0, dtype, &numel, 1)};
}

TEST(prove_projection, a_number_is_received_as_every_other_one_of_its_kind_and_of_no_other)
{
    int32_t counts[] = {0, 1, 3}, ranks[] = {-1, 2}, no_count[] = {1, 4}, out[3];
    int64_t digests[] = {INT64_C(-4035225266123964416), 4035225266123964415}, smallest[2];
    float votes[] = {0, 2, 3}, half[] = {0.5f}, got[3];
    const uint32_t models[7] = {0, 1, 2, 1, 1, 1, 1};
    uint32_t seen = 0, seen_ranks = 0;
    for (uint32_t turn = 0; turn < CD_PROJECTION_TURNS; turn++) {
        cddp_error err = CDDP_ERROR_INIT;
        bool has_choice = false;
        const cd_projection r = {.models = models, .turn = turn, .has_choice = &has_choice};
        cd_received received = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_SUM, counts, CDDP_I32, 3);
        cddp_collective c = {
            .op = CDDP_OP_ALLREDUCE,
            .output = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_SUM, out, CDDP_I32, 3).tensor};
        cd_test_row("turn %u", turn);
        assert_int_equal(cd_received_find_kind(&received), CD_RECEIVED_COUNT);
        assert_ok(cd_project_received(&r, &received, &c, 7, &err), &err);
        assert_int_equal(out[0], 0);
        assert_true(out[1] >= 1 && out[1] <= 6);
        assert_int_equal(out[2], 7);
        assert_true(has_choice);
        seen |= 1u << out[1];
        received = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_SUM, votes, CDDP_F32, 3);
        c.output = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_SUM, got, CDDP_F32, 3).tensor;
        assert_ok(cd_project_received(&r, &received, &c, 7, &err), &err);
        assert_true(got[0] == 0 && got[1] >= 1 && got[1] <= 6 && got[2] == 7);
        received = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_MAX, ranks, CDDP_I32, 2);
        c.output = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_MAX, out, CDDP_I32, 2).tensor;
        assert_int_equal(cd_received_find_kind(&received), CD_RECEIVED_RANK);
        assert_ok(cd_project_received(&r, &received, &c, 7, &err), &err);
        assert_int_equal(out[0], -1);
        assert_true(out[1] >= 0 && out[1] <= 6);
        seen_ranks |= 1u << out[1];
        /* In a group that lists its members nothing is another number. */
        assert_ok(cd_project_received(&r, &received, &c, 3, &err), &err);
        assert_int_equal(out[1], 2);
        received = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_MIN, digests, CDDP_I64, 2);
        c.output = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_MIN, smallest, CDDP_I64, 2).tensor;
        assert_int_equal(cd_received_find_kind(&received), CD_RECEIVED_SAME);
        assert_ok(cd_project_received(&r, &received, &c, 7, &err), &err);
        assert_memory_equal(smallest, digests, sizeof digests);
        c.output = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_SUM, out, CDDP_I32, 2).tensor;
        received = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_SUM, no_count, CDDP_I32, 2);
        assert_fails(cd_project_received(&r, &received, &c, 7, &err), CDDP_E_UNSUPPORTED, &err,
                     "neither counts ranks nor names one");
        err = (cddp_error)CDDP_ERROR_INIT;
        received = received_of(CDDP_OP_ALLREDUCE, CDDP_RED_SUM, half, CDDP_F32, 1);
        assert_int_equal(cd_received_find_kind(&received), CD_RECEIVED_UNKNOWN);
    }
    assert_true((seen & 0x4e) == 0x4e);       /* 1, 2, 3 and 6 at least */
    assert_true((seen_ranks & 0x45) == 0x45); /* the first, the recorded and the last */
}

TEST(prove_projection, shares_of_further_ranks_are_those_of_their_models)
{
    cddp_error err = CDDP_ERROR_INIT;
    bool has_choice = false;
    int32_t rows[] = {10, 20, 21, 30}, out[8];
    const int64_t counts[] = {1, 2, 1, 2, 1}, one = 1, uneven[] = {1, 2, 2, 2, 1};
    const uint32_t models[5] = {0, 1, 2, 1, 0};
    const cd_projection r = {.models = models, .has_choice = &has_choice};
    const cd_received received = received_of(CDDP_OP_ALLGATHER, CDDP_RED_SUM, rows, CDDP_I32, 4);
    cddp_collective c = {.op = CDDP_OP_ALLGATHER,
                         .counts = counts,
                         .output =
                             received_of(CDDP_OP_ALLGATHER, CDDP_RED_SUM, out, CDDP_I32, 7).tensor};
    static const int32_t wanted[] = {10, 20, 21, 30, 20, 21, 10},
                         even_wanted[] = {10, 20, 21, 20, 10};
    assert_int_equal(cd_received_find_kind(&received), CD_RECEIVED_SHARES);
    assert_ok(cd_project_received(&r, &received, &c, 5, &err), &err);
    assert_memory_equal(out, wanted, sizeof wanted);
    c.counts = uneven;
    assert_fails(cd_project_received(&r, &received, &c, 5, &err), CDDP_E_UNSUPPORTED, &err,
                 "shares of collective");
    err = (cddp_error)CDDP_ERROR_INIT;
    const cd_received even = received_of(CDDP_OP_ALLGATHER, CDDP_RED_SUM, rows, CDDP_I32, 3);
    c.counts = NULL;
    c.input = cddp_tensor_of(cddp_device_cpu(), rows, 0, CDDP_I32, &one, 1);
    c.output = received_of(CDDP_OP_ALLGATHER, CDDP_RED_SUM, out, CDDP_I32, 5).tensor;
    assert_ok(cd_project_received(&r, &even, &c, 5, &err), &err);
    assert_memory_equal(out, even_wanted, sizeof even_wanted);
    assert_false(has_choice);
}

/* "a1 b2": groups by name, lengths by digit. */
static cd_calls spelled(const char *text)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_calls calls = {0};
    for (; *text != '\0'; text += text[2] == ' ' ? 3 : 2) {
        const cd_call call = {.group = (uint64_t)text[0], .numel = text[1] - '0'};
        assert_ok(cd_calls_push(&calls, calls.count, &call, &err), &err);
    }
    return calls;
}

TEST(prove_calls_only, ranks_part_by_group_and_wait_across_groups)
{
    static const struct {
        const char *sequences[3];
        cd_calls_end end;
        uint32_t ranks[2];
    } rows[] = {
        {{"a1 b2 a3", "a1 b2 a3", "a1 b2 a3"}, CD_CALLS_FIT, {0, 0}},
        {{"a1 b2", "a1", "b2"}, CD_CALLS_FIT, {0, 0}},
        {{"a1 a2", "a1 a3", "a1 a2"}, CD_CALLS_PART, {0, 1}},
        {{"a1 a2", "a1 a2", "a1"}, CD_CALLS_PART, {0, 2}},
        {{"a1 b2", "b2 a1", "a1 b2"}, CD_CALLS_WAIT, {0, 1}},
        {{"a1 b1", "b1 c1", "c1 a1"}, CD_CALLS_WAIT, {0, 2}},
        {{"a1 b1", "b1 c1", "a1 c1"}, CD_CALLS_FIT, {0, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_calls_conflict conflict;
        cd_calls sequences[3];
        cd_test_row("%zu", i);
        for (int r = 0; r < 3; r++) sequences[r] = spelled(rows[i].sequences[r]);
        assert_ok(cd_calls_compare(sequences, 3, &conflict, &err), &err);
        assert_int_equal(conflict.end, rows[i].end);
        assert_int_equal(conflict.ranks[0], rows[i].ranks[0]);
        assert_int_equal(conflict.ranks[1], rows[i].ranks[1]);
        for (int r = 0; r < 3; r++) cd_calls_fini(&sequences[r]);
    }
}

TEST_MAIN()
