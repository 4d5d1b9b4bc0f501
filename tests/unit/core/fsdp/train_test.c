/* SPDX-License-Identifier: Apache-2.0 */
/* Values: what W ranks with shards train is, bit for bit, what one process trains on exact sums. */
#include "core/base/error.h"
#include "tests/unit/core/fsdp/fixture.h"

#define STEPS 4

typedef struct mode {
    cddp_fsdp_strategy strategy;
    cddp_fsdp_layout layout;
    cddp_fsdp_prefetch prefetch;
    bool forward_prefetch, use_orig_params;
    cddp_fsdp_order_check order;
} mode;

static void set(toy *t, const mode *m)
{
    t->options.strategy = m->strategy;
    t->options.layout = m->layout;
    t->options.backward_prefetch = m->prefetch;
    t->options.forward_prefetch = m->forward_prefetch;
    t->options.use_orig_params = m->use_orig_params;
    t->options.order_check = m->order;
}

static void trains(lane *l)
{
    toy t;
    toy_init(&t, l);
    set(&t, l->lab->data);
    t.skips_one = true;
    toy_wrap(&t);
    for (int step = 0; step < STEPS; step++) {
        toy_iterate(&t, step);
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
        toy_check_padding(&t);
    }
    cddp_fsdp_counts counts = {.size = sizeof counts};
    CHECK_OK(cddp_fsdp_get_counts(t.fsdp, &counts, &l->err));
    CHECK(counts.full_bytes == 0); /* F1 */
    toy_fini(&t);
}

static void for_all_modes(void (*body)(lane *l))
{
    for (uint32_t world = 1; world <= 5; world++) {
        for (int i = 0; i < 3 * 2 * 3 * 2; i++) {
            mode m = {.strategy = (cddp_fsdp_strategy)(i % 3),
                      .layout = (cddp_fsdp_layout)(i / 3 % 2),
                      .prefetch = (cddp_fsdp_prefetch)(i / 6 % 3),
                      .forward_prefetch = i / 18 != 0,
                      .order = (cddp_fsdp_order_check)(i / 6 % 3)};
            m.use_orig_params = m.forward_prefetch && m.layout == CDDP_FSDP_FLAT;
            cd_test_row("W %u: strategy %d, layout %d, prefetch %d, forward prefetch %d", world,
                        (int)m.strategy, (int)m.layout, (int)m.prefetch, m.forward_prefetch);
            lab_of(world, body, &m);
        }
    }
}

TEST(train, is_bitwise_that_of_one_process) { for_all_modes(trains); }

/* ---- accumulation ---- */

static void accumulates(lane *l)
{
    /* windows of FSY-05: micro-steps without and with synchronisation, in any order */
    static const bool syncs[][5] = {{false, false, true, false, false},
                                    {true, false, true, false, false},
                                    {false, false, false, true, false},
                                    {true, true, false, true, false}};
    static const size_t counts[] = {3, 3, 4, 4};
    toy t;
    toy_init(&t, l);
    set(&t, l->lab->data);
    toy_wrap(&t);
    for (int window = 0, step = 0; window < 4; window++) {
        int steps[5];
        for (size_t m = 0; m < counts[window]; m++, step++) {
            if (!syncs[window][m]) CHECK_OK(cddp_fsdp_no_sync_begin(t.fsdp, &l->err));
            toy_iterate(&t, step);
            if (!syncs[window][m]) {
                CHECK_FAILS(cddp_fsdp_check_step(t.fsdp, &l->err), CDDP_E_STATE, "FSY-07");
                CHECK_OK(cddp_fsdp_no_sync_end(t.fsdp, &l->err));
            }
            steps[m] = step;
        }
        if (l->w == 2 || l->w == 4 || l->w == 1) { /* reductions in between round, for others */
            toy_step(&t);
            toy_step_alone(&t, l->w, steps, counts[window]);
            toy_check_padding(&t);
        } else {
            CHECK_OK(cddp_fsdp_zero_grad(t.fsdp, window % 2 == 0, &l->err));
        }
    }
    toy_fini(&t);
}

TEST(no_sync, adds_up_before_one_reduction) { for_all_modes(accumulates); } /* FSY-02…06 */

/* Two forwards, then one backward of both: gathered in each, reduced once, and added up. */
static void goes_forward_twice(lane *l)
{
    static const int steps[] = {0, 1};
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    lane_mark(l);
    toy_forward(&t);
    toy_forward(&t);
    CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_B, &l->err));
    CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_ROOT, &l->err));
    for (uint32_t k = TOY_UNITS; k-- > 0;) {
        if (k == TOY_A) CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, k, &l->err));
        for (int i = 0; i < 2; i++) toy_gradients_of(&t, k, steps[i]);
        CHECK_OK(cddp_fsdp_post_backward(t.fsdp, k, &l->err));
    }
    CHECK_OK(cddp_fsdp_backward_end(t.fsdp, &l->err));
    CHECK_SEQUENCE(&t, "AG R, AG a, AG b, AG a, AG b, AG b, AG a, RS b, RS a, RS R");
    toy_step(&t);
    toy_step_alone(&t, l->w, steps, 2);
    toy_check_padding(&t);
    toy_fini(&t);
}
TEST(train, of_two_forwards_has_one_reduction) { lab_of(2, goes_forward_twice, NULL); } /* FSH-18 */

static cddp_status count_entry(void *context, const cddp_fsdp_entry *entry, cddp_error *err)
{
    const toy *t = context;
    (void)err;
    for (int64_t e = 0; e < toy_numel(entry->ordinal); e++)
        if (((const float *)entry->tensor.storage)[entry->tensor.offset + e] !=
            t->values[entry->ordinal][e])
            return CDDP_E_CORRUPT;
    return CDDP_OK;
}

/* A state that is saved inside of a window has the parameters, and leaves the window's gradients.
** Gradients that were set to zero are added to. */
static void saves_in_a_window(lane *l)
{
    static const int steps[] = {0, 1};
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    const cddp_fsdp_sink sink = {.size = sizeof sink, .entry = count_entry, .context = &t};
    toy_iterate(&t, 5);
    CHECK_OK(cddp_fsdp_zero_grad(t.fsdp, false, &l->err));
    CHECK_OK(cddp_fsdp_no_sync_begin(t.fsdp, &l->err));
    toy_iterate(&t, 0);
    CHECK_OK(cddp_fsdp_full_state(t.fsdp, &sink, &l->err));
    CHECK_OK(cddp_fsdp_no_sync_end(t.fsdp, &l->err));
    CHECK_OK(cddp_fsdp_full_state(t.fsdp, &sink, &l->err));
    toy_iterate(&t, 1);
    toy_step(&t);
    toy_step_alone(&t, l->w, steps, 2);
    toy_check_padding(&t);
    toy_fini(&t);
}
TEST(no_sync, may_be_saved_in) { lab_of(2, saves_in_a_window, NULL); } /* FST-06, FSY-10 */

/* ---- hybrid ---- */

typedef struct hybrid {
    uint32_t shards;
    cddp_fsdp_strategy strategy;
    cddp_fsdp_layout layout;
} hybrid;

static void trains_hybrid(lane *l)
{
    const hybrid *h = l->lab->data;
    toy t;
    uint32_t own[LAB_RANKS], same[LAB_RANKS];
    char name[2][32];
    cddp_group *groups[2] = {NULL, NULL};
    toy_init(&t, l);
    const uint32_t node = l->r / h->shards, place = l->r % h->shards;
    for (uint32_t i = 0; i < h->shards; i++) own[i] = node * h->shards + i;
    for (uint32_t i = 0; i < l->w / h->shards; i++) same[i] = i * h->shards + place;
    snprintf(name[0], sizeof name[0], "shards of %u", node);
    snprintf(name[1], sizeof name[1], "replicas of %u", place);
    const cddp_group_subset subsets[] = {{sizeof(cddp_group_subset), name[0], h->shards, own},
                                         {sizeof(cddp_group_subset), name[1], l->w / h->shards,
                                          same}};
    for (int i = 0; i < 2; i++)
        CHECK_OK(cddp_group_create_subset(l->group, &subsets[i], &groups[i], &l->err));
    t.options.group = groups[0];
    t.options.replicate_group = groups[1];
    t.options.strategy = h->strategy;
    t.options.layout = h->layout;
    t.options.sync_module_states = true;
    for (size_t i = 0; i < l->count && l->r != 0; i++) /* HSD-04 */
        CHECK_OK(l->device->fill(&l->parameters[i].tensor, (double)l->r, NULL, &l->err));
    toy_wrap(&t);
    for (int step = 0; step < STEPS; step++) {
        lane_mark(l);
        toy_iterate(&t, step);
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
        toy_check_padding(&t);
    }
    const bool has_shards = h->shards > 1;
    CHECK(lane_posts(l, CDDP_OP_REDUCE_SCATTER) == (has_shards ? 3 : 0)); /* one per unit */
    CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) == 3);
    toy_fini(&t);
    cddp_group_destroy(groups[1]);
    cddp_group_destroy(groups[0]);
}

TEST(hybrid, is_bitwise_that_of_one_process) /* HSD-01…05, HSD-08, TI-N-07, TI-N-08 */
{
    static const uint32_t worlds[][2] = {{4, 2}, {8, 2}, {8, 4}, {4, 1}, {2, 2}};
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        for (int k = 0; k < 4; k++) {
            hybrid h = {worlds[i][1],
                        k % 2 == 0 ? CDDP_FSDP_HYBRID_SHARD : CDDP_FSDP_HYBRID_SHARD_ZERO2,
                        k / 2 == 0 ? CDDP_FSDP_FLAT : CDDP_FSDP_ROWS};
            cd_test_row("%u ranks in shards of %u, form %d", worlds[i][0], worlds[i][1], k);
            lab_of(worlds[i][0], trains_hybrid, &h);
        }
    }
}

/* ---- what is frozen, shared, ignored, and where values begin ---- */

static void trains_without_a(lane *l)
{
    toy t;
    toy_init(&t, l);
    for (size_t i = 2; i < 4; i++) l->parameters[i].requires_grad = false;
    t.trains_no_a = true;
    toy_wrap(&t);
    for (int step = 0; step < STEPS; step++) {
        lane_mark(l);
        toy_iterate(&t, step);
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
        toy_check_padding(&t);
    }
    CHECK_SEQUENCE(&t, "AG R, AG a, AG b, AG b, RS b, RS R");
    toy_fini(&t);
}
TEST(train, leaves_a_frozen_unit_alone) { lab_of(2, trains_without_a, NULL); } /* FSH-20 */

static void begins_as_mosaic(lane *l)
{
    toy t;
    toy_init(&t, l);
    for (size_t i = 0; i < l->count; i++)
        CHECK_OK(l->device->fill(&l->parameters[i].tensor, (double)l->r, NULL, &l->err));
    toy_wrap(&t);
    CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, TOY_A, false, &l->err));
    const float *full = cddp_fsdp_parameter(t.fsdp, 2)->storage;
    for (int e = 0; e < 20; e++) CHECK(full[e] == (float)(e / 10));
    CHECK_OK(cddp_fsdp_post_forward(t.fsdp, TOY_A, false, &l->err));
    CHECK(cddp_fsdp_parameter(t.fsdp, 2) == NULL);
    toy_fini(&t);
}
TEST(create, without_sync_each_rank_brings_its_slice) /* FSD-16 */
{
    lab_of(2, begins_as_mosaic, NULL);
}

/* "a.bias" is used by "b.bias", too, and "bias" is ignored. */
static void shares(lane *l)
{
    static const char *const ignored[] = {"bias"};
    static const char *const one[] = {"a"};
    toy t;
    toy_init(&t, l);
    lane_release(l, &l->parameters[3].tensor);
    const int64_t four = 4;
    l->parameters[3].tensor = l->parameters[5].tensor;
    l->parameters[3].grad = l->parameters[5].grad;
    t.options.ignored_parameters = ignored;
    t.options.ignored_count = 1;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "units 'a' and 'b' share parameter 'b.bias'");
    t.options.wrap.words = one;
    t.options.wrap.word_count = 1;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "units ");
    t.options.wrap = cddp_fsdp_wrap_policy_default();
    toy_wrap(&t);
    CHECK(cddp_fsdp_unit_count(t.fsdp) == 1);
    cddp_fsdp_unit_info u = {.size = sizeof u};
    CHECK_OK(cddp_fsdp_unit(t.fsdp, 0, &u, &l->err));
    CHECK(u.parameter_count == 4 && u.numel == 8 + 15 + 4 + 20);
    CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, 0, false, &l->err));
    CHECK(cddp_fsdp_parameter(t.fsdp, 3)->offset == cddp_fsdp_parameter(t.fsdp, 5)->offset);
    CHECK(cddp_fsdp_parameter(t.fsdp, 1)->storage == l->parameters[1].tensor.storage);
    CHECK_OK(cddp_fsdp_post_forward(t.fsdp, 0, false, &l->err));
    toy_fini(&t);
    l->parameters[3].tensor = lane_tensor(l, CDDP_F32, &four, 1, 0.0);
}
/* FPM-01, FPM-10, TI-N-15 */
TEST(create, knows_shared_and_ignored_parameters) { lab_of(2, shares, NULL); }

/* ---- modules that the program lists ---- */

/* Nothing of the list is read when the model has been made. */
LAB(train, takes_the_modules_of_a_list_and_copies_them, 2)
{
    toy t;
    static const char *const blocks[] = {"Block"};
    char names[2][8] = {"first", "second"}, type[8] = "Block";
    uint32_t own[TOY_PARAMETERS] = {0, 1, 2, 3, 4, 5};
    cddp_fsdp_module modules[] = {{"", NULL, -1, own, 2},
                                  {names[0], type, 0, own + 2, 2},
                                  {names[1], type, 0, own + 4, 2}};
    cddp_fsdp_unit_info info = {.size = sizeof info};
    toy_init(&t, l);
    t.options.wrap.kind = CDDP_FSDP_WRAP_TYPES;
    t.options.wrap.words = blocks;
    t.options.wrap.word_count = 1;
    t.options.modules = modules;
    t.options.module_count = 3;
    toy_wrap(&t);
    memset(names, 'x', sizeof names);
    memset(type, 'x', sizeof type);
    memset(own, 0xff, sizeof own);
    memset(modules, 0, sizeof modules);
    CHECK(cddp_fsdp_unit_count(t.fsdp) == TOY_UNITS);
    CHECK(cddp_fsdp_unit_of(t.fsdp, "first") == TOY_A);
    CHECK(cddp_fsdp_unit_of(t.fsdp, "second") == TOY_B);
    CHECK(cddp_fsdp_unit_of(t.fsdp, "a") == -1);
    CHECK_OK(cddp_fsdp_unit(t.fsdp, TOY_B, &info, &l->err));
    CHECK(strcmp(info.name, "second") == 0 && info.parameter_count == 2 && info.numel == 24);
    for (int step = 0; step < 2; step++) {
        toy_iterate(&t, step);
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
        toy_check_padding(&t);
    }
    toy_fini(&t);
}

/* ---- nothing ---- */

static cddp_status allocate_something(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                                      void **storage, cddp_error *err)
{
    (void)device;
    assert_true(numel > 0);
    CD_TRY(cddp_device_cpu()->allocate(cddp_device_cpu(), dtype, numel, storage, err));
    return CDDP_OK;
}
static void release_something(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                              void *storage)
{
    (void)device;
    assert_true(numel > 0);
    cddp_device_cpu()->release(cddp_device_cpu(), dtype, numel, storage);
}

/* A parameter and a buffer of no elements need no storage, and no device is asked for none. */
static void trains_with_nothing(lane *l)
{
    toy t;
    cddp_device picky = *cddp_device_cpu();
    picky.allocate = allocate_something;
    picky.release = release_something;
    l->device = &picky;
    toy_init(&t, l);
    set(&t, l->lab->data);
    lane_add(l, "b.none", CDDP_F32, 0);
    lane_add_buffer(l, "a.none", CDDP_F32, 0, 0.0);
    void *own[2] = {l->parameters[6].tensor.storage, l->buffers[0].tensor.storage};
    l->parameters[6].tensor.storage = l->buffers[0].tensor.storage = NULL;
    t.options.parameter_count = l->count;
    t.options.buffers = l->buffers;
    t.options.buffer_count = l->buffer_count;
    t.options.buffer_dtype = CDDP_BF16;
    CHECK_OK(toy_try_wrap(&t));
    for (int step = 0; step < 2; step++) {
        toy_iterate(&t, step);
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
        toy_check_padding(&t);
    }
    toy_fini(&t);
    l->parameters[6].tensor.storage = own[0];
    l->buffers[0].tensor.storage = own[1];
    l->device = cddp_device_cpu();
}

TEST(train, needs_no_storage_for_no_elements)
{
    for (uint32_t world = 1; world <= 3; world++)
        for (int layout = 0; layout < 2; layout++) {
            mode m = {.layout = (cddp_fsdp_layout)layout};
            cd_test_row("W %u, layout %d", world, layout);
            lab_of(world, trains_with_nothing, &m);
        }
}

TEST_MAIN()
