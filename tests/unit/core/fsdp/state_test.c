/* SPDX-License-Identifier: Apache-2.0 */
/* State: written by one world and one strategy, read by another, bit for bit. Refused where names
** or shapes differ, before anything is changed. */
#include "tests/unit/core/fsdp/fixture.h"

typedef struct saved {
    float values[TOY_PARAMETERS][TOY_NUMEL_MAX];
    int64_t rows[TOY_PARAMETERS]; /* that are there */
    size_t entries;
} saved;

typedef struct form {
    uint32_t world;
    cddp_fsdp_strategy strategy;
    cddp_fsdp_layout layout;
    bool use_orig_params, one_unit;
} form;

typedef struct passage {
    form from, to;
    saved parameters, momentum; /* written by `from` */
    saved shards[LAB_RANKS];    /* rows that each rank wrote */
    float values[TOY_PARAMETERS][TOY_NUMEL_MAX], state[TOY_PARAMETERS][TOY_NUMEL_MAX];
    bool is_loading;
} passage;

static cddp_status save_entry(void *context, const cddp_fsdp_entry *entry, cddp_error *err)
{
    saved *s = context;
    const int64_t row = entry->dim_count > 1 ? entry->sizes[1] : 1;
    float *to = s->values[entry->ordinal] + entry->first_row * row;
    (void)err;
    if (strcmp(entry->name, toy_shapes[entry->ordinal].name) != 0) return CDDP_E_CORRUPT;
    memcpy(to, (const float *)entry->tensor.storage + entry->tensor.offset,
           (size_t)(entry->row_count * row) * sizeof(float));
    s->rows[entry->ordinal] += entry->row_count;
    s->entries++;
    return CDDP_OK;
}

static cddp_status read_entry(void *context, const char *name, int64_t first, const cddp_tensor *to,
                              cddp_error *err)
{
    const saved *s = context;
    (void)err;
    for (size_t i = 0; i < TOY_PARAMETERS; i++)
        if (strcmp(name, toy_shapes[i].name) == 0)
            memcpy((float *)to->storage + to->offset, s->values[i] + first,
                   (size_t)cddp_tensor_numel(to) * sizeof(float));
    return CDDP_OK;
}

static void describe(cddp_fsdp_stored *stored)
{
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        stored[i] = (cddp_fsdp_stored){.name = toy_shapes[i].name,
                                       .dim_count = toy_shapes[i].dims,
                                       .dtype = CDDP_F32};
        memcpy(stored[i].sizes, toy_shapes[i].sizes, sizeof toy_shapes[i].sizes);
    }
}

static void set(toy *t, const form *m)
{
    t->options.strategy = m->strategy;
    t->options.layout = m->layout;
    t->options.use_orig_params = m->use_orig_params;
    if (m->one_unit) t->options.wrap = cddp_fsdp_wrap_policy_default();
}

static void momentum_slots(toy *t, cddp_tensor *tensors)
{
    lane *l = t->l;
    for (uint32_t k = 0; k < cddp_fsdp_unit_count(t->fsdp); k++) {
        cddp_fsdp_unit_info u = {.size = sizeof u};
        CHECK_OK(cddp_fsdp_unit(t->fsdp, k, &u, &l->err));
        tensors[k] = cddp_tensor_of(l->device, t->momentum[k], 0, CDDP_F32, &u.share, 1);
    }
}

static void write_state(toy *t, passage *p)
{
    lane *l = t->l;
    saved own = {.entries = 0}, optimizer = {.entries = 0};
    cddp_tensor tensors[TOY_UNITS];
    cddp_fsdp_sink sink = {.size = sizeof sink,
                           .entry = save_entry,
                           .context = &own,
                           .rank0_only = true};
    lane_mark(l);
    CHECK_OK(cddp_fsdp_full_state(t->fsdp, &sink, &l->err));
    const bool is_cut = p->from.strategy != CDDP_FSDP_NO_SHARD && l->w > 1;
    CHECK(lane_posts(l, CDDP_OP_ALLGATHER) == (is_cut ? cddp_fsdp_unit_count(t->fsdp) : 0));
    CHECK(own.entries == (l->r == 0 ? TOY_PARAMETERS : 0)); /* FST-02 */
    if (l->r == 0) p->parameters = own;
    momentum_slots(t, tensors);
    const cddp_fsdp_slots slots = {.size = sizeof slots, .tensors = tensors, .slot_count = 1};
    sink.context = &optimizer;
    CHECK_OK(cddp_fsdp_optimizer_state(t->fsdp, &slots, &sink, &l->err));
    if (l->r == 0) p->momentum = optimizer;
    sink.rank0_only = false;
    sink.context = &p->shards[l->r];
    CHECK_OK(cddp_fsdp_sharded_state(t->fsdp, &sink, &l->err));
    sink.rank0_only = true;
    CHECK_FAILS(cddp_fsdp_sharded_state(t->fsdp, &sink, &l->err), CDDP_E_CONFIG, "its own rows");
}

/* FST-01: one unit is whole at a time; by rows its shards, too, while they are brought in order. */
static void check_peak(toy *t)
{
    lane *l = t->l;
    cddp_fsdp_counts counts = {.size = sizeof counts};
    uint64_t largest = 0;
    for (uint32_t k = 0; k < cddp_fsdp_unit_count(t->fsdp); k++) {
        cddp_fsdp_unit_info u = {.size = sizeof u};
        CHECK_OK(cddp_fsdp_unit(t->fsdp, k, &u, &l->err));
        const uint64_t bytes = (uint64_t)u.share * u.shard_count * sizeof(float);
        if (bytes > largest) largest = bytes;
    }
    CHECK_OK(cddp_fsdp_get_counts(t->fsdp, &counts, &l->err));
    CHECK(counts.full_bytes == 0 && counts.full_bytes_peak > 0);
    CHECK(counts.full_bytes_peak <= (t->options.layout == CDDP_FSDP_ROWS ? 2 : 1) * largest);
}

static void body(lane *l)
{
    passage *p = l->lab->data;
    toy t;
    toy_init(&t, l);
    set(&t, p->is_loading ? &p->to : &p->from);
    if (p->from.one_unit || p->to.one_unit) t.options.order_check = CDDP_FSDP_ORDER_NONE;
    toy_wrap(&t);
    if (!p->is_loading) {
        for (int step = 0; step < 2 && !p->from.one_unit; step++) {
            toy_iterate(&t, step);
            toy_step(&t);
            toy_step_alone(&t, l->w, &step, 1);
        }
        write_state(&t, p);
        if (l->r == 0) memcpy(p->values, t.values, sizeof p->values);
        if (l->r == 0) memcpy(p->state, t.state, sizeof p->state);
    } else {
        cddp_fsdp_stored stored[TOY_PARAMETERS + 1];
        describe(stored);
        const cddp_fsdp_source source = {.size = sizeof source,
                                         .stored = stored,
                                         .stored_count = TOY_PARAMETERS,
                                         .read = read_entry,
                                         .context = &p->parameters};
        CHECK_OK(cddp_fsdp_load(t.fsdp, &source, &l->err));
        memcpy(t.values, p->values, sizeof t.values);
        toy_check_padding(&t);
        saved again = {.entries = 0};
        const cddp_fsdp_sink sink = {.size = sizeof sink, .entry = save_entry, .context = &again};
        CHECK_OK(cddp_fsdp_full_state(t.fsdp, &sink, &l->err));
        CHECK(memcmp(again.values, p->parameters.values, sizeof again.values) == 0);
        check_peak(&t);
    }
    toy_fini(&t);
}

TEST(state, passes_between_worlds_strategies_and_layouts) /* FST-01, FST-05, FST-07, FST-09 */
{
    static const form forms[] = {
        {2, CDDP_FSDP_FULL_SHARD, CDDP_FSDP_FLAT, false, false},
        {3, CDDP_FSDP_SHARD_GRAD_OP, CDDP_FSDP_ROWS, false, false},
        {4, CDDP_FSDP_FULL_SHARD, CDDP_FSDP_FLAT, true, false},
        {1, CDDP_FSDP_NO_SHARD, CDDP_FSDP_FLAT, false, false},
        {5, CDDP_FSDP_FULL_SHARD, CDDP_FSDP_FLAT, false, true},
    };
    const size_t count = sizeof forms / sizeof forms[0];
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < count; k++) {
            passage p = {.from = forms[i], .to = forms[k]};
            cd_test_row("from form %zu to form %zu", i, k);
            lab_of(p.from.world, body, &p);
            for (size_t m = 0; m < TOY_PARAMETERS; m++) {
                int64_t rows = 0;
                const size_t bytes = (size_t)toy_numel(m) * sizeof(float);
                assert_memory_equal(p.parameters.values[m], p.values[m], bytes);
                assert_memory_equal(p.momentum.values[m], p.state[m], bytes);
                for (uint32_t r = 0; r < p.from.world; r++) rows += p.shards[r].rows[m];
                for (int64_t e = 0; e < toy_numel(m); e++) {
                    float sum = 0; /* the rows of other ranks are zero */
                    for (uint32_t r = 0; r < p.from.world; r++) sum += p.shards[r].values[m][e];
                    assert_true(sum == p.values[m][e]);
                }
                assert_int_equal(rows, toy_shapes[m].sizes[0]); /* tiled once */
            }
            p.is_loading = true;
            lab_of(p.to.world, body, &p);
        }
    }
}

static void refuses(lane *l)
{
    toy t;
    saved zeros = {.entries = 0};
    cddp_fsdp_stored stored[TOY_PARAMETERS + 1];
    toy_init(&t, l);
    toy_wrap(&t);
    describe(stored);
    cddp_fsdp_source source = {.size = sizeof source,
                               .stored = stored,
                               .stored_count = TOY_PARAMETERS - 1,
                               .read = read_entry,
                               .context = &zeros};
    CHECK_FAILS(cddp_fsdp_load(t.fsdp, &source, &l->err), CDDP_E_MISMATCH,
                "the stored state has no 'b.bias', which the model has");
    source.stored_count = TOY_PARAMETERS + 1;
    stored[TOY_PARAMETERS] = (cddp_fsdp_stored){.name = "c.bias", .dim_count = 1, .sizes = {4}};
    CHECK_FAILS(cddp_fsdp_load(t.fsdp, &source, &l->err), CDDP_E_MISMATCH,
                "has 'c.bias', which the model has not");
    source.stored_count = TOY_PARAMETERS;
    /* one rank alone sees the difference: the others load nothing either */
    if (l->r == 1) stored[2].sizes[0] = 6;
    CHECK_FAILS(cddp_fsdp_load(t.fsdp, &source, &l->err), CDDP_E_MISMATCH,
                l->r == 1 ? "'a.weight' is [6,3] in the stored state and [5,3] in the model"
                          : "another rank cannot load its part");
    toy_check_padding(&t);

    cddp_fsdp_local local = {.size = sizeof local};
    CHECK_OK(cddp_fsdp_get_local(t.fsdp, TOY_A, &local, &l->err));
    CHECK(local.world == 2 && local.rank == l->r && local.share == 10 && local.numel == 20);
    CHECK_OK(cddp_fsdp_load_local(t.fsdp, TOY_A, &local, NULL, &l->err));
    cddp_fsdp_local other = local;
    other.world = 3;
    CHECK_FAILS(cddp_fsdp_load_local(t.fsdp, TOY_A, &other, NULL, &l->err), CDDP_E_MISMATCH,
                "of 3 with 10 elements, this rank has");
    other = local;
    other.layout++;
    CHECK_FAILS(cddp_fsdp_load_local(t.fsdp, TOY_A, &other, NULL, &l->err), CDDP_E_MISMATCH,
                "was cut from other parameters");
    float mine[10];
    const int64_t share = 10;
    for (int64_t e = 0; e < share; e++) {
        mine[e] = (float)(10 * l->r) + (float)e;
        t.values[e + share * l->r >= 15 ? 3 : 2][(e + share * l->r) % 15] = mine[e];
    }
    for (int64_t e = 0; e < 20; e++) t.values[e >= 15 ? 3 : 2][e % 15] = (float)e;
    const cddp_tensor elements = cddp_tensor_of(l->device, mine, 0, CDDP_F32, &share, 1);
    CHECK_OK(cddp_fsdp_load_local(t.fsdp, TOY_A, &local, &elements, &l->err));
    toy_check_padding(&t);

    cddp_tensor tensors[TOY_UNITS];
    cddp_fsdp_sink sink = {.size = sizeof sink, .entry = save_entry, .context = &zeros};
    momentum_slots(&t, tensors);
    if (l->r == 0) tensors[TOY_B].device = NULL;
    const cddp_fsdp_slots slots = {.size = sizeof slots, .tensors = tensors, .slot_count = 1};
    CHECK_FAILS(cddp_fsdp_optimizer_state(t.fsdp, &slots, &sink, &l->err), CDDP_E_MISMATCH,
                "slot 0 of 'b' is there on some ranks and absent on others");
    momentum_slots(&t, tensors);
    if (l->r == 0) tensors[TOY_B].dtype = CDDP_I32; /* as many bytes */
    CHECK_FAILS(cddp_fsdp_optimizer_state(t.fsdp, &slots, &sink, &l->err), CDDP_E_MISMATCH,
                l->r == 0 ? "slot 0 of 'b' is f32 on some ranks and i32 on others; it is i32 here"
                          : "slot 0 of 'b' is f32 on some ranks and i32 on others; it is f32 here");
    toy_fini(&t);
}
TEST(state, is_refused_as_a_whole) { lab_of(2, refuses, NULL); } /* FST-04, FST-10 */

/* A reader whose state ends early. */
static cddp_status ends_early(void *context, const char *name, int64_t first, const cddp_tensor *to,
                              cddp_error *err)
{
    if (strcmp(name, "b.weight") != 0) return read_entry(context, name, first, to, err);
    return cddp_error_set(err, CDDP_E_IO, "'%s' ends %lld elements early", name,
                          (long long)cddp_tensor_numel(to));
}

typedef struct damage {
    const char *name;
    void (*strike)(cddp_fsdp_source *source, cddp_fsdp_stored *stored);
    cddp_status status;
    const char *words;
} damage;

static void lacks_a_member(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    stored[3] = stored[--s->stored_count];
}
static void lacks_a_unit(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    (void)stored;
    s->stored_count -= 2;
}
static void lacks_everything(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    (void)stored;
    s->stored_count = 0;
}
static void has_another_name(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    stored[s->stored_count++] =
        (cddp_fsdp_stored){.name = "c.weight", .dim_count = 1, .sizes = {4}};
}
static void has_no_name(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    stored[s->stored_count++] = (cddp_fsdp_stored){.name = NULL};
}
static void has_one_twice(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    stored[s->stored_count] = stored[2];
    stored[s->stored_count++].sizes[0] = 99;
}
static void has_fewer_rows(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    (void)s;
    stored[2].sizes[0] = 3; /* the part of a shard */
}
static void has_no_dimensions(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    (void)s;
    stored[2].dim_count = 0;
}
static void has_too_many_dimensions(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    (void)s;
    stored[2].dim_count = 4000000000u;
}
static void has_another_dtype(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    (void)s;
    stored[3].dtype = CDDP_BF16;
}
static void has_no_dtype(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    (void)s;
    stored[0].dtype = CDDP_DTYPE_COUNT;
}
static void is_short(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    (void)stored;
    s->read = ends_early;
}
static void cannot_be_read(cddp_fsdp_source *s, cddp_fsdp_stored *stored)
{
    (void)stored;
    s->read = NULL;
}

static const damage damages[] = {
    {"a member less", lacks_a_member, CDDP_E_MISMATCH, "has no 'a.bias', which the model has"},
    {"a unit less", lacks_a_unit, CDDP_E_MISMATCH, "has no 'b.weight', which the model has"},
    {"nothing", lacks_everything, CDDP_E_MISMATCH, "which the model has; nothing was loaded"},
    {"a name more", has_another_name, CDDP_E_MISMATCH, "has 'c.weight', which the model has not"},
    {"no name", has_no_name, CDDP_E_MISMATCH, "has '(no name)', which the model has not"},
    {"one twice", has_one_twice, CDDP_E_MISMATCH, "'a.weight' twice, and the model has it once"},
    {"fewer rows", has_fewer_rows, CDDP_E_MISMATCH,
     "'a.weight' is [3,3] in the stored state and [5,3] in the model"},
    {"no dimensions", has_no_dimensions, CDDP_E_MISMATCH, "'a.weight' is [] in the stored state"},
    {"too many dimensions", has_too_many_dimensions, CDDP_E_MISMATCH, "'a.weight' is [5,3,0,"},
    {"another dtype", has_another_dtype, CDDP_E_MISMATCH,
     "'a.bias' is bf16 in the stored state and f32 in the model; nothing was loaded"},
    {"no dtype", has_no_dtype, CDDP_E_MISMATCH, "in the stored state and f32 in the model"},
    {"short", is_short, CDDP_E_IO, "'b.weight' ends"},
    {"no reader", cannot_be_read, CDDP_E_ARG, "the source has no read"},
};
enum { DAMAGES = sizeof damages / sizeof damages[0] };

/* Rank 1 alone has a damaged state: rank 0 loads nothing either. Then both have. */
static void is_damaged(lane *l)
{
    const damage *d = l->lab->data;
    toy t;
    saved zeros = {.entries = 0};
    toy_init(&t, l);
    toy_wrap(&t);
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        cddp_fsdp_stored stored[TOY_PARAMETERS + 1];
        describe(stored);
        cddp_fsdp_source source = {.size = sizeof source,
                                   .stored = stored,
                                   .stored_count = TOY_PARAMETERS,
                                   .read = read_entry,
                                   .context = &zeros};
        const bool mine = ranks == 2 || l->r == 1;
        if (mine) d->strike(&source, stored);
        CHECK_FAILS(cddp_fsdp_load(t.fsdp, &source, &l->err), mine ? d->status : CDDP_E_MISMATCH,
                    mine ? d->words : "another rank cannot load its part");
        toy_check_padding(&t); /* the values that it began with */
    }
    toy_iterate(&t, 0); /* and it goes on */
    toy_fini(&t);
}
TEST(state, that_is_damaged_is_one_sentence_and_changes_nothing)
{
    for (size_t i = 0; i < DAMAGES; i++) {
        damage d = damages[i];
        cd_test_row("%s", d.name);
        lab_of(2, is_damaged, &d);
    }
}

/* A shard as it lies, and what is wrong with it. */
static void shard_is_damaged(lane *l)
{
    toy t;
    float mine[10] = {77};
    const int64_t share = 10;
    toy_init(&t, l);
    toy_wrap(&t);
    cddp_fsdp_local local = {.size = sizeof local};
    CHECK_OK(cddp_fsdp_get_local(t.fsdp, TOY_A, &local, &l->err));
    const cddp_tensor good = cddp_tensor_of(l->device, mine, 0, CDDP_F32, &share, 1);
    cddp_tensor elements = good;
    elements.sizes[0] = 9;
    CHECK_FAILS(cddp_fsdp_load_local(t.fsdp, TOY_A, &local, &elements, &l->err), CDDP_E_ARG,
                "the stored shard of 'a' is given as 9 elements of f32, not 10 of f32");
    elements = good;
    elements.dtype = CDDP_BF16;
    CHECK_FAILS(cddp_fsdp_load_local(t.fsdp, TOY_A, &local, &elements, &l->err), CDDP_E_ARG,
                "as 10 elements of bf16, not 10 of f32");
    elements = good;
    elements.storage = NULL;
    CHECK_FAILS(cddp_fsdp_load_local(t.fsdp, TOY_A, &local, &elements, &l->err), CDDP_E_ARG,
                "as no storage for 10 elements of f32, not 10 of f32");
    elements = (cddp_tensor){.device = NULL};
    CHECK_FAILS(cddp_fsdp_load_local(t.fsdp, TOY_A, &local, &elements, &l->err), CDDP_E_ARG,
                "as no storage for 1 elements of f64, not 10 of f32");
    CHECK_FAILS(cddp_fsdp_load_local(t.fsdp, TOY_UNITS, &local, &good, &l->err), CDDP_E_ARG,
                "unit 3 of 3");
    cddp_fsdp_local other = local;
    other.share = -1;
    CHECK_FAILS(cddp_fsdp_load_local(t.fsdp, TOY_A, &other, &good, &l->err), CDDP_E_MISMATCH,
                "of 2 with -1 elements, this rank has number");
    other = local;
    other.dtype = CDDP_F64;
    CHECK_FAILS(cddp_fsdp_load_local(t.fsdp, TOY_A, &other, &good, &l->err), CDDP_E_MISMATCH,
                "the stored shard of 'a' has elements of f64, and that of this rank of f32");
    other = local;
    other.rank = 1 - l->r;
    CHECK_FAILS(cddp_fsdp_load_local(t.fsdp, TOY_A, &other, &good, &l->err), CDDP_E_MISMATCH,
                "of 2 with 10 elements, this rank has number");
    toy_check_padding(&t);
    toy_fini(&t);
}
TEST(state, of_a_damaged_shard_is_one_sentence) { lab_of(2, shard_is_damaged, NULL); } /* FST-04 */

typedef struct full_disk {
    bool is_full, is_mute;
    size_t entries;
} full_disk;

static cddp_status write_to_disk(void *context, const cddp_fsdp_entry *entry, cddp_error *err)
{
    full_disk *d = context;
    if (++d->entries < 3 || !d->is_full) return CDDP_OK;
    if (d->is_mute) return CDDP_E_IO;
    return cddp_error_set(err, CDDP_E_IO, "no space left for '%s'", entry->name);
}

/* The sink of rank 0 alone fails: the others have their gathers all the same, and go on. */
static void sink_fails(lane *l)
{
    toy t;
    cddp_tensor tensors[TOY_UNITS];
    toy_init(&t, l);
    toy_wrap(&t);
    momentum_slots(&t, tensors);
    const cddp_fsdp_slots slots = {.size = sizeof slots, .tensors = tensors, .slot_count = 1};
    for (int i = 0; i < 3; i++) {
        full_disk disk = {.is_full = l->r == 0, .is_mute = i == 2};
        const cddp_fsdp_sink sink = {.size = sizeof sink, .entry = write_to_disk, .context = &disk};
        const cddp_status status = i == 1
                                       ? cddp_fsdp_optimizer_state(t.fsdp, &slots, &sink, &l->err)
                                       : cddp_fsdp_full_state(t.fsdp, &sink, &l->err);
        CHECK(status == (l->r == 0 ? CDDP_E_IO : CDDP_OK));
        CHECK(disk.entries == (l->r == 0 ? 3 : TOY_PARAMETERS));
        if (l->r == 0)
            CHECK(strstr(l->err.message, i == 2 ? "the sink refused a parameter of 'a'"
                                                : "no space left for 'a.weight'") != NULL);
    }
    toy_iterate(&t, 0);
    toy_fini(&t);
}
TEST(state, that_one_rank_cannot_write_leaves_no_rank_behind) { lab_of(3, sink_fails, NULL); }

/* "mean" has 2.1, "count" 9; the rest is zero. */
static cddp_status read_with_buffers(void *context, const char *name, int64_t first,
                                     const cddp_tensor *to, cddp_error *err)
{
    if (strcmp(name, "mean") == 0) return to->device->fill(to, 2.1, NULL, err);
    if (strcmp(name, "count") == 0) return to->device->fill(to, 9, NULL, err);
    return read_entry(context, name, first, to, err);
}

static void loads_buffers(lane *l)
{
    toy t;
    saved zeros = {.entries = 0};
    cddp_fsdp_stored stored[TOY_PARAMETERS + 2];
    lane_add_buffer(l, "mean", CDDP_F32, 3, 0.1);
    lane_add_buffer(l, "count", CDDP_I64, 1, 7);
    toy_init(&t, l);
    t.options.buffers = l->buffers;
    t.options.buffer_count = 2;
    t.options.buffer_dtype = CDDP_BF16;
    toy_wrap(&t);
    toy_iterate(&t, 0);
    describe(stored);
    stored[TOY_PARAMETERS] =
        (cddp_fsdp_stored){.name = "mean", .dim_count = 1, .sizes = {4}, .dtype = CDDP_F32};
    stored[TOY_PARAMETERS + 1] =
        (cddp_fsdp_stored){.name = "count", .dim_count = 1, .sizes = {1}, .dtype = CDDP_I64};
    const cddp_fsdp_source source = {.size = sizeof source,
                                     .stored = stored,
                                     .stored_count = TOY_PARAMETERS + 2,
                                     .read = read_with_buffers,
                                     .context = &zeros};
    CHECK_FAILS(cddp_fsdp_load(t.fsdp, &source, &l->err), CDDP_E_MISMATCH,
                "'mean' is [4] in the stored state and [3] in the model");
    CHECK(toy_get(l, &l->buffers[1].tensor, 0) == 7);
    stored[TOY_PARAMETERS].sizes[0] = 3;
    CHECK_OK(cddp_fsdp_load(t.fsdp, &source, &l->err));
    CHECK(toy_get(l, &l->buffers[0].tensor, 2) == (double)2.1f);
    CHECK(toy_get(l, cddp_fsdp_buffer(t.fsdp, 0), 2) == 2.09375); /* what forward computes with */
    CHECK(toy_get(l, cddp_fsdp_buffer(t.fsdp, 1), 0) == 9);
    toy_fini(&t);
}
TEST(state, of_buffers_is_loaded_where_it_is_named) { lab_of(2, loads_buffers, NULL); } /* FMP-07 */

TEST_MAIN()
