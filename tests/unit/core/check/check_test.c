/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/check.h"
#include "core/check/rank_set.h"

#include "cddp/backend.h"
#include "core/base/alloc.h"
#include "core/base/prng.h"
#include "core/check/agree.h"
#include "core/check/horizon.h"
#include "core/check/writer.h"
#include "core/trace/codes.h"
#include "core/trace/rank_end.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"
#include "tests/mutants/fixture.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

/* ---- tables ---- */

TEST(table, keeps_every_value_through_growth_and_walks_in_order_of_insertion)
{
    (void)state;
    cd_table table;
    cd_table_init(&table, NULL, sizeof(int64_t));
    for (int64_t i = 0; i < 5000; i++)
        *(int64_t *)cd_table_add(&table, CD_KEY(i % 7, i, -i, 3)) = i * i;
    assert_int_equal(table.count, 5000);
    for (int64_t i = 0; i < 5000; i++) {
        assert_int_equal(*(int64_t *)cd_table_find(&table, CD_KEY(i % 7, i, -i, 3)), i * i);
        assert_int_equal(cd_table_key(&table, (size_t)i)->part[1], i);
    }
    assert_null(cd_table_find(&table, CD_KEY(1, 1, 1, 1)));
    cd_table_fini(&table);
}

/* ---- the horizon ---- */

static void at_step(cd_horizon *h, uint32_t rank, uint32_t step)
{
    const cddp_event e = {.rank = rank, .step = step, .kind = CDDP_EV_forward_begin};
    cd_horizon_learn(h, &e);
}

static void open_world(cd_horizon *h, uint32_t ranks)
{
    cd_horizon_init(h, NULL);
    for (uint32_t r = 0; r < ranks; r++) {
        cddp_event e = {.rank = r, .kind = CDDP_EV_group};
        e.as.group.members = ranks;
        cd_horizon_learn(h, &e);
    }
}

static bool keeps_sevens(void *self, const cd_key *key, const void *value)
{
    (void)self, (void)value;
    return key->part[0] % 7 == 0;
}

TEST(horizon, a_table_forgets_what_the_slowest_rank_has_left_behind_and_keeps_what_is_open)
{
    (void)state;
    cd_horizon h;
    cd_table table;
    open_world(&h, 2);
    cd_table_init(&table, NULL, sizeof(int64_t));
    cd_table_set_window(&table, &(cd_table_window){.horizon = &h, .keeps = keeps_sevens});
    for (uint32_t step = 0; step < 20000; step++) {
        at_step(&h, 0, step);
        at_step(&h, 1, step < 10 ? 0 : step - 10);
        int64_t *value = cd_table_add(&table, CD_KEY(step));
        assert_int_equal(*value, 0);
        *value = step;
    }
    cd_table_forget(&table);
    const uint32_t first = cd_horizon_get(&h);
    assert_int_equal(first, 19999 - 10 - CD_HORIZON_STEPS);
    for (uint32_t step = 0; step < 20000; step++) {
        const int64_t *value = cd_table_find(&table, CD_KEY(step));
        /* added while rank 1 was ten steps behind */
        const bool is_kept = step >= first + 10 || step % 7 == 0;
        assert_int_equal(value != NULL, is_kept);
        if (value != NULL) assert_int_equal(*value, step);
    }
    for (size_t i = 1; i < table.count; i++)
        assert_true(cd_table_key(&table, i - 1)->part[0] < cd_table_key(&table, i)->part[0]);
    cd_table_fini(&table);
    cd_horizon_fini(&h);
}

TEST(horizon, a_rank_that_shadows_the_others_does_not_hold_it_until_it_takes_steps_again)
{
    (void)state;
    cd_horizon h;
    open_world(&h, 2);
    at_step(&h, 0, 10);
    at_step(&h, 1, 10);
    cddp_event e = {.rank = 1, .step = 10, .kind = CDDP_EV_join_notify};
    cd_horizon_learn(&h, &e);
    at_step(&h, 0, 1000);
    assert_int_equal(cd_horizon_get(&h), 1000 - CD_HORIZON_STEPS);
    at_step(&h, 1, 10); /* what it mirrors now belongs where the others are */
    assert_int_equal(h.now, 1000);
    e = (cddp_event){.rank = 1, .step = 500, .kind = CDDP_EV_join_notify};
    e.as.join_notify.active = 1;
    cd_horizon_learn(&h, &e);
    assert_int_equal(cd_horizon_get(&h), 500 - CD_HORIZON_STEPS);
    cd_horizon_fini(&h);
}

TEST(horizon, nothing_is_forgotten_after_a_sign_of_a_mistake_or_before_all_ranks_have_spoken)
{
    (void)state;
    cd_horizon h;
    open_world(&h, 2);
    at_step(&h, 0, 1000);
    assert_int_equal(cd_horizon_get(&h), 0);
    at_step(&h, 1, 900);
    assert_int_equal(cd_horizon_get(&h), 900 - CD_HORIZON_STEPS);
    /* the world speaks of a rank at no step */
    cd_horizon_learn(&h, &(cddp_event){.rank = 0, .kind = CDDP_EV_rank_end});
    assert_int_equal(cd_horizon_get(&h), 900 - CD_HORIZON_STEPS);
    cddp_event e = {.rank = 1, .step = 901, .kind = CDDP_EV_compare};
    cd_horizon_learn(&h, &e);
    assert_true(cd_horizon_get(&h) > 0);
    e.as.compare.bad = 1;
    cd_horizon_learn(&h, &e);
    assert_int_equal(cd_horizon_get(&h), 0);
    cd_horizon_fini(&h);
    /* a group of two, one of which never speaks */
    open_world(&h, 1);
    e = (cddp_event){.rank = 0, .step = 500, .kind = CDDP_EV_group};
    e.as.group.members = 2;
    cd_horizon_learn(&h, &e);
    assert_int_equal(cd_horizon_get(&h), 0);
    cd_horizon_fini(&h);
}

TEST(ranks, refuses_the_world_and_garbage)
{
    (void)state;
    cd_ranks ranks;
    cd_ranks_init(&ranks, NULL, sizeof(int64_t));
    assert_null(cd_ranks_add(&ranks, UINT32_MAX));
    assert_null(cd_ranks_add(&ranks, CD_RANKS_MAX));
    *(int64_t *)cd_ranks_add(&ranks, 1023) = 5;
    assert_int_equal(*(int64_t *)cd_ranks_find(&ranks, 1023), 5);
    assert_int_equal(*(int64_t *)cd_ranks_find(&ranks, 0), 0);
    assert_null(cd_ranks_find(&ranks, 1024));
    cd_ranks_fini(&ranks);
}

/* ---- agreement ---- */

static const struct {
    const char *name;
    int64_t said[5];
    size_t count;
    int64_t authority; /* -1: none */
    bool has_culprit;
    uint32_t odd, right, odd_count;
} votes[] = {
    {"one odd of three", {7, 7, 9}, 3, -1, true, 2, 0, 1},
    {"rank 0 is the odd one", {9, 7, 7}, 3, -1, true, 0, 1, 1},
    {"two odd in different ways", {7, 8, 7, 9, 7}, 5, -1, true, 1, 0, 2},
    {"two against two", {7, 7, 9, 9}, 4, -1, false, 2, 0, 2},
    {"one against one", {7, 9}, 2, -1, false, 1, 0, 1},
    {"all different", {1, 2, 3}, 3, -1, false, 1, 0, 2},
    {"an authority outweighs the majority", {9, 9, 9, 7}, 4, 3, true, 0, 3, 3},
};

TEST(agree, blames_the_odd_ones_only_against_a_majority_or_an_authority)
{
    (void)state;
    for (size_t v = 0; v < sizeof votes / sizeof votes[0]; v++) {
        for (int backwards = 0; backwards <= 1; backwards++) {
            cd_agree agree;
            cd_split split;
            size_t cursor = 0;
            cd_test_row("%s%s", votes[v].name, backwards ? ", spoken backwards" : "");
            cd_agree_init(&agree, NULL);
            for (size_t i = 0; i < votes[v].count; i++) {
                size_t r = backwards ? votes[v].count - 1 - i : i;
                cddp_event event = {.rank = (uint32_t)r, .sequence = 10 + r};
                cd_agree_push(&agree, &(cd_statement){.key = CD_KEY(1), CD_SAYS(votes[v].said[r])},
                              &event);
            }
            if (votes[v].authority >= 0)
                cd_agree_set_authority(&agree, CD_KEY(1), (uint32_t)votes[v].authority);
            assert_true(cd_agree_next(&agree, &cursor, &split));
            assert_int_equal(split.has_culprit, votes[v].has_culprit);
            assert_int_equal(split.odd.rank, votes[v].odd);
            assert_int_equal(split.right.rank, votes[v].right);
            assert_int_equal(cd_rank_set_count(&split.odd_ranks), votes[v].odd_count);
            assert_int_equal(split.odd.sequence, 10 + votes[v].odd);
            assert_false(cd_agree_next(&agree, &cursor, &split));
            cd_agree_fini(&agree);
        }
    }
}

/* ---- I-HB over streams ---- */

typedef enum hb_step { END, WRITE_1, READ_2, RECORD_1, WAIT_2, HOST_WAITS_1, LATE, OTHER } hb_step;

static const struct {
    const char *name;
    hb_step steps[6];
    const char *race; /* in the title; NULL: none */
} hb_cases[] = {
    /* clang-format off */
    {"nobody waits", {WRITE_1, READ_2}, "without waiting"},
    {"the reader waits for a mark", {WRITE_1, RECORD_1, WAIT_2, READ_2}, NULL},
    {"the mark comes before the write", {RECORD_1, WRITE_1, WAIT_2, READ_2}, "without waiting"},
    {"the host waits, then queues the read", {WRITE_1, HOST_WAITS_1, READ_2}, NULL},
    {"the host waited before the write", {HOST_WAITS_1, WRITE_1, READ_2}, "without waiting"},
    {"what the host waited for is in every later mark", {WRITE_1, HOST_WAITS_1, RECORD_1, WAIT_2, READ_2}, NULL},
    {"it brought a delayed gradient too late", {WRITE_1, READ_2, LATE}, "comes while the delayed all-reduce"},
    {"something else came between", {WRITE_1, READ_2, OTHER}, "without waiting"},
    /* clang-format on */
};

static cddp_event hb_event(hb_step step)
{
    cddp_event e = {.kind = CDDP_EV_order, .text = "test"};
    switch (step) {
    case WRITE_1:
    case READ_2:
        e.kind = CDDP_EV_touch;
        e.as.touch = (cddp_event_touch){.region = 7,
                                        .on_stream = step == WRITE_1 ? 1 : 2,
                                        .write = step == WRITE_1,
                                        .end = 8};
        break;
    case RECORD_1:
        e.as.order = (cddp_event_order){.from = 1, .to = -1, .point = 4};
        break;
    case WAIT_2:
        e.as.order = (cddp_event_order){.from = -1, .to = 2, .point = 4, .waits = 1};
        break;
    case LATE:
    case OTHER:
        e.kind = CDDP_EV_mark;
        if (step == LATE) e.text = CD_TRACER_DELAYED_LATE;
        break;
    case HOST_WAITS_1:
    case END:
        e.as.order = (cddp_event_order){.from = 1, .to = -1, .point = -1, .waits = 1};
        break;
    }
    return e;
}

/* A rank that says two things is on both sides, and is named once. */
TEST(agree, a_rank_that_contradicts_itself_is_not_set_against_itself)
{
    (void)state;
    cd_arena memory;
    char who[160];
    cd_split split = {.has_culprit = false, .odd.rank = 0};
    cd_arena_init(&memory, NULL, CD_RANK_SET_BLOCK);
    for (uint32_t rank = 0; rank < 3; rank++) {
        cd_rank_set_add(&split.odd_ranks, &memory, rank);
        cd_rank_set_add(&split.right.ranks, &memory, rank);
    }
    cd_split_print(&split, who, sizeof who);
    assert_string_equal(who, "ranks 0-2, twice in one step,");
    cd_rank_set_add(&split.right.ranks, &memory, 4);
    cd_split_print(&split, who, sizeof who);
    assert_string_equal(who, "rank 4 and ranks 0-2, no majority,");
    cd_arena_fini(&memory);
}

TEST(hb, a_wait_orders_streams_by_marks_and_through_the_host)
{
    (void)state;
    for (size_t c = 0; c < sizeof hb_cases / sizeof hb_cases[0]; c++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        cd_test_row("%s", hb_cases[c].name);
        assert_ok(cd_judge_create(&(cd_judge_options){.allocator = NULL}, &judge, &err), &err);
        for (size_t i = 0; i < 6 && hb_cases[c].steps[i] != END; i++) {
            cddp_event e = hb_event(hb_cases[c].steps[i]);
            e.sequence = i;
            cd_judge_get_sink(judge)->event(cd_judge_get_sink(judge)->self, &e);
        }
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_finding_count(judge), hb_cases[c].race != NULL);
        if (hb_cases[c].race != NULL) {
            assert_string_equal(cd_judge_get_finding(judge, 0)->check, "I-HB");
            assert_non_null(strstr(cd_judge_get_finding(judge, 0)->title, hb_cases[c].race));
        }
        cd_judge_destroy(judge);
    }
}

/* A writer, then `readers` streams that wait for nothing but a mark of it, then one more write that
** waits for all of them but the first: it races with that reader however many came later. */
static size_t count_races(int64_t readers, bool waits_for_first)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *judge = NULL;
    uint64_t sequence = 0;
    assert_ok(cd_judge_create(&(cd_judge_options){.allocator = NULL}, &judge, &err), &err);
    const cddp_trace_sink *sink = cd_judge_get_sink(judge);
    for (int64_t r = 0; r < readers; r++) {
        const int64_t stream = 100 + r;
        cddp_event e = {.kind = CDDP_EV_touch, .sequence = sequence++, .text = "reader"};
        e.as.touch = (cddp_event_touch){.region = 7, .on_stream = stream, .end = 8};
        sink->event(sink->self, &e);
        e = (cddp_event){.kind = CDDP_EV_order, .sequence = sequence++};
        e.as.order = (cddp_event_order){.from = stream, .to = -1, .point = stream};
        sink->event(sink->self, &e);
        e.sequence = sequence++;
        e.as.order = (cddp_event_order){.from = -1, .to = 0, .point = stream, .waits = 1};
        if (r > 0 || waits_for_first) sink->event(sink->self, &e);
    }
    cddp_event e = {.kind = CDDP_EV_touch, .sequence = sequence++, .text = "writer"};
    e.as.touch = (cddp_event_touch){.region = 7, .write = 1, .end = 8};
    sink->event(sink->self, &e);
    assert_ok(cd_judge_end(judge, &err), &err);
    const size_t count = cd_judge_finding_count(judge);
    cd_judge_destroy(judge);
    return count;
}

TEST(hb, any_number_of_streams_is_watched_and_no_open_access_is_forgotten)
{
    (void)state;
    for (int64_t readers = 1; readers <= 200; readers += 199) {
        cd_test_row("%lld readers", (long long)readers);
        assert_int_equal(count_races(readers, false), 1);
        assert_int_equal(count_races(readers, true), 0);
    }
}

/* Bucket 0 of rank `of` is launched, `between` happens on rank 0, and rank 0 fills it again. */
static size_t count_refills(uint32_t of, const cddp_event *between)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *judge = NULL;
    assert_ok(cd_judge_create(&(cd_judge_options){.allocator = NULL}, &judge, &err), &err);
    const cddp_trace_sink *sink = cd_judge_get_sink(judge);
    cddp_event e = {.kind = CDDP_EV_bucket_launch, .rank = of, .sequence = 1};
    sink->event(sink->self, &e);
    e = *between;
    e.sequence = 2;
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_mark_ready, .sequence = 3};
    sink->event(sink->self, &e);
    assert_ok(cd_judge_end(judge, &err), &err);
    size_t count = 0;
    for (size_t i = 0; i < cd_judge_finding_count(judge); i++)
        count += strcmp(cd_judge_get_finding(judge, i)->check, "I-HB") == 0;
    cd_judge_destroy(judge);
    return count;
}

/* What a recorder sees of a write into a bucket is the program's, and the hook's or the backend's
** after that no more; any other mark says nothing of it. */
TEST(hb, a_write_into_a_bucket_under_views_is_the_programs)
{
    static const struct {
        const char *mark, *words; /* words: NULL: no finding */
        int64_t value;
    } rows[] = {{CD_TRACER_READY_WRITTEN, "after it was marked ready", 5},
                {CD_TRACER_READY_WRITTEN, NULL, 6}, /* of no bucket */
                {CD_TRACER_HOOKED_WRITTEN, "while the hook of its bucket is at work", 5},
                {CD_TRACER_REDUCED_WRITTEN, "while its bucket is being reduced", 2},
                {CD_TRACER_REDUCED_WRITTEN, "the result of collective #9", -1},
                {CD_TRACER_GIVEN_CHANGED, NULL, 5}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        cd_test_row("%s %lld", rows[i].mark, (long long)rows[i].value);
        assert_ok(cd_judge_create(&(cd_judge_options){.allocator = NULL}, &judge, &err), &err);
        const cddp_trace_sink *sink = cd_judge_get_sink(judge);
        cddp_event e = {.kind = CDDP_EV_bucket_layout, .rank = 1, .sequence = 1};
        e.as.bucket_layout = (cddp_event_bucket_layout){.bucket = 2, .param = 5, .numel = 1};
        sink->event(sink->self, &e);
        e = (cddp_event){.kind = CDDP_EV_collective_done, .rank = 1, .sequence = 2};
        e.as.collective_done.sequence = 9;
        sink->event(sink->self, &e);
        e = (cddp_event){
            .kind = CDDP_EV_mark, .rank = 1, .step = 3, .sequence = 3, .text = rows[i].mark};
        e.as.mark.value = rows[i].value;
        sink->event(sink->self, &e);
        assert_ok(cd_judge_end(judge, &err), &err);
        size_t count = 0;
        for (size_t k = 0; k < cd_judge_finding_count(judge); k++) {
            const cddp_finding *f = cd_judge_get_finding(judge, k);
            if (strcmp(f->check, "I-HB") != 0) continue; /* others miss the rest of the run */
            count++;
            assert_true(rows[i].words != NULL && strstr(f->title, rows[i].words) != NULL);
            assert_int_equal(f->rank, 1);
            assert_int_equal(f->step, 3);
        }
        assert_int_equal(count, rows[i].words != NULL);
        cd_judge_destroy(judge);
    }
}

/* The works of a backward that is left are given back, and nothing reads its buckets later. */
TEST(hb, a_bucket_of_a_backward_that_was_left_may_be_filled_again)
{
    (void)state;
    const cddp_event left = {.kind = CDDP_EV_mark, .text = "backward_left_early"},
                     other = {.kind = CDDP_EV_mark, .text = "rebuild_during_accumulation"},
                     regroup = {.kind = CDDP_EV_regroup},
                     elsewhere = {.kind = CDDP_EV_regroup, .rank = 1};
    assert_int_equal(count_refills(0, &left), 0);
    assert_int_equal(count_refills(0, &regroup), 0);
    assert_int_equal(count_refills(0, &other), 1);
    assert_int_equal(count_refills(0, &elsewhere), 1);
    assert_int_equal(count_refills(1, &other), 0);
}

/* ---- steps on what is not finite ---- */

typedef struct range_step {
    int64_t optimizer;
    bool is_skipped;
    double clip;
    int64_t touched; /* parameter, or -1: it reports no touch */
} range_step;

/* An infinity in parameter 5; up to two optimizers decide. */
static const struct {
    const char *name;
    range_step steps[2];
    size_t count;
    bool is_found;
} range_cases[] = {
    {"the owner skips", {{0, false, 1, 1}, {1, true, 1, -1}}, 2, false},
    {"the owner steps", {{0, false, 1, 1}, {1, false, 1, 5}}, 2, true},
    {"the owner steps, the other skips", {{0, true, 1, -1}, {1, false, 1, 5}}, 2, true},
    {"nobody owns it", {{0, false, 1, 1}, {1, false, 1, 2}}, 2, false},
    {"the only one steps", {{0, false, 1, 5}}, 1, true},
    {"the only one skips", {{0, true, 1, -1}}, 1, false},
    {"no touches: both step", {{0, false, 1, -1}, {1, false, 1, -1}}, 2, true},
    {"no touches: one steps", {{0, false, 1, -1}}, 1, true},
    {"no touches: one of two skips", {{0, false, 1, -1}, {1, true, 1, -1}}, 2, false},
    {"the norm spreads it", {{0, false, NAN, 1}, {1, true, NAN, -1}}, 2, true},
    {"both skip after the norm", {{0, true, NAN, -1}, {1, true, NAN, -1}}, 2, false},
};

static void put_range(const cddp_trace_sink *sink, size_t row)
{
    uint64_t sequence = 0;
    cddp_event e = {.kind = CDDP_EV_grad_local, .sequence = sequence++};
    e.as.grad_local = (cddp_event_grad_local){.param = 5, .nonfinite = 1};
    sink->event(sink->self, &e);
    for (size_t i = 0; i < range_cases[row].count; i++) {
        const range_step *r = &range_cases[row].steps[i];
        e = (cddp_event){.kind = CDDP_EV_optimizer_step, .sequence = sequence++};
        e.as.optimizer_step = (cddp_event_optimizer_step){.optimizer = r->optimizer,
                                                          .skipped = r->is_skipped,
                                                          .clip = cd_f64_bits(r->clip)};
        sink->event(sink->self, &e);
        if (r->touched < 0) continue;
        e = (cddp_event){.kind = CDDP_EV_optimizer_touch, .sequence = sequence++};
        e.as.optimizer_touch = (cddp_event_optimizer_touch){.optimizer = r->optimizer,
                                                            .param = r->touched,
                                                            .touched = 1};
        sink->event(sink->self, &e);
    }
}

TEST(range, only_a_step_on_the_gradient_counts)
{
    (void)state;
    const cddp_check *const checks[] = {cd_check_find("I-RANGE")};
    for (size_t c = 0; c < sizeof range_cases / sizeof range_cases[0]; c++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        cd_test_row("%s", range_cases[c].name);
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 1}, &judge,
                                  &err),
                  &err);
        put_range(cd_judge_get_sink(judge), c);
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_finding_count(judge), range_cases[c].is_found);
        cd_judge_destroy(judge);
    }
}

/* ---- a group that is opened again ---- */

static void put_reduction(const cddp_trace_sink *sink, uint32_t rank, uint64_t at, int64_t digest)
{
    cddp_event e = {.kind = CDDP_EV_collective_post, .rank = rank, .sequence = at};
    e.as.collective_post = (cddp_event_collective_post){
        .group = 3, .op = CDDP_OP_BROADCAST, .dtype = CDDP_F32, .numel = 4, .bucket = -1};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_collective_done, .rank = rank, .sequence = at + 1};
    e.as.collective_done = (cddp_event_collective_done){.group = 3, .digest = digest};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_group_close, .rank = rank, .sequence = at + 2};
    e.as.group_close = (cddp_event_group_close){.group = 3, .sequence = 1};
    sink->event(sink->self, &e);
}

/* Its operations are numbered from 0 again, and are others. */
TEST(coll, a_group_that_is_opened_again_has_other_operations)
{
    (void)state;
    const cddp_check *const checks[] = {cd_check_find("I-COLL")};
    for (int differs = 0; differs <= 1; differs++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 1}, &judge,
                                  &err),
                  &err);
        for (uint32_t rank = 0; rank < 2; rank++) {
            put_reduction(cd_judge_get_sink(judge), rank, 0, 5);
            put_reduction(cd_judge_get_sink(judge), rank, 10, differs && rank == 1 ? 7 : 6);
        }
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_finding_count(judge), differs);
        if (differs)
            assert_non_null(strstr(cd_judge_get_finding(judge, 0)->title, "collective #1"));
        cd_judge_destroy(judge);
    }
}

/* The reducer leaves some parameters alone: they have a name, and no index. */
TEST(range, a_tensor_without_an_index_has_its_name)
{
    (void)state;
    const cddp_check *const checks[] = {cd_check_find("I-RANGE")};
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *judge = NULL;
    assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 1}, &judge,
                              &err),
              &err);
    cddp_event e = {.kind = CDDP_EV_compare, .text = "out.bias: not finite at element 0"};
    e.as.compare = (cddp_event_compare){.link = CD_LINK_REDUCTION,
                                        .param = -1,
                                        .bad = 1,
                                        .shape = CD_SHAPE_NONFINITE};
    cd_judge_get_sink(judge)->event(cd_judge_get_sink(judge)->self, &e);
    e = (cddp_event){.kind = CDDP_EV_optimizer_step, .sequence = 1};
    e.as.optimizer_step = (cddp_event_optimizer_step){.clip = cd_f64_bits(1)};
    cd_judge_get_sink(judge)->event(cd_judge_get_sink(judge)->self, &e);
    assert_ok(cd_judge_end(judge, &err), &err);
    assert_int_equal(cd_judge_finding_count(judge), 1);
    assert_string_equal(cd_judge_get_finding(judge, 0)->parameter, "out.bias");
    assert_non_null(strstr(cd_judge_get_finding(judge, 0)->title, "of out.bias, which was finite"));
    cd_judge_destroy(judge);
}

/* ---- an average of parameters whose ranks got different sums ---- */

static void put_model_average(const cddp_trace_sink *sink, uint32_t rank, int64_t delivered)
{
    uint64_t sequence = 0;
    cddp_event e = {.kind = CDDP_EV_group, .rank = rank, .sequence = sequence++, .text = "world"};
    e.as.group =
        (cddp_event_group){.group = 3, .members = 2, .group_rank = rank, .order = CDDP_ORDER_SAME};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_wrap, .rank = rank, .sequence = sequence++};
    e.as.wrap = (cddp_event_wrap){.group = 3};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_collective_post, .rank = rank, .sequence = sequence++};
    e.as.collective_post = (cddp_event_collective_post){.group = 3,
                                                        .op = CDDP_OP_ALLREDUCE,
                                                        .dtype = CDDP_F32,
                                                        .numel = 4,
                                                        .digest = 1 + rank,
                                                        .bucket = -1};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_collective_done, .rank = rank, .sequence = sequence++};
    e.as.collective_done = (cddp_event_collective_done){.group = 3, .digest = delivered};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_hook_law, .rank = rank, .sequence = sequence++, .text = "sum"};
    e.as.hook_law = (cddp_event_hook_law){.bucket = -1, .left = cd_f64_bits(1), .over_ranks = 1};
    sink->event(sink->self, &e);
}

TEST(hook, a_broken_law_stands_behind_the_collective_that_parted)
{
    (void)state;
    const cddp_check *const checks[] = {cd_check_find("I-HOOK"), cd_check_find("I-COLL")};
    for (int parts = 0; parts <= 1; parts++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 2}, &judge,
                                  &err),
                  &err);
        for (uint32_t rank = 0; rank < 2; rank++)
            put_model_average(cd_judge_get_sink(judge), rank, parts ? 5 + rank : 5);
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_finding_count(judge), 1 + parts);
        assert_string_equal(cd_judge_get_finding(judge, 0)->check, parts ? "I-COLL" : "I-HOOK");
        cd_judge_destroy(judge);
    }
}

/* ---- laws over all ranks, of which one rank states one less ---- */

/* Rank 0 has k in the k-th call and rank 1 -k: they add up to nothing. */
typedef struct laws {
    int left_out, wrong; /* in which call; by rank 1, by rank 0 */
    bool is_finite;      /* the gradient of the call that is left out */
} laws;

static void put_laws(const cddp_trace_sink *sink, uint32_t rank, const laws *plan)
{
    uint64_t sequence = 0;
    cddp_event e = {.kind = CDDP_EV_group, .rank = rank, .sequence = sequence++, .text = "world"};
    e.as.group =
        (cddp_event_group){.group = 3, .members = 2, .group_rank = rank, .order = CDDP_ORDER_SAME};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_wrap, .rank = rank, .sequence = sequence++};
    e.as.wrap = (cddp_event_wrap){.group = 3};
    sink->event(sink->self, &e);
    for (int k = 0; k < 4; k++) {
        e = (cddp_event){.kind = CDDP_EV_hook_call, .rank = rank, .sequence = sequence++};
        e.as.hook_call = (cddp_event_hook_call){.bucket = 0, .is_last = 1};
        sink->event(sink->self, &e);
        e = (cddp_event){.kind = CDDP_EV_grad_local, .rank = rank, .sequence = sequence++};
        e.as.grad_local.nonfinite = rank != 0 && k == plan->left_out && !plan->is_finite;
        sink->event(sink->self, &e);
        const double number = rank == 0 ? k + (k == plan->wrong) : -k;
        e = (cddp_event){.kind = CDDP_EV_hook_law, .rank = rank, .sequence = sequence++};
        e.text = "sum";
        e.as.hook_law = (cddp_event_hook_law){.left = cd_f64_bits(number), .over_ranks = 1};
        if (rank == 0 || k != plan->left_out) sink->event(sink->self, &e);
        e = (cddp_event){.kind = CDDP_EV_hook_done, .rank = rank, .sequence = sequence++};
        sink->event(sink->self, &e);
        e = (cddp_event){.kind = CDDP_EV_backward_end, .rank = rank, .sequence = sequence++};
        e.as.backward_end.finalized = 1;
        sink->event(sink->self, &e);
    }
}

/* A law that a rank may leave out, where its numbers are not finite, says nothing of the next. */
TEST(hook, a_law_that_one_rank_leaves_out_does_not_break_those_that_follow)
{
    (void)state;
    const cddp_check *const checks[] = {cd_check_find("I-HOOK")};
    for (int wrong = -1; wrong < 4; wrong++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 1}, &judge,
                                  &err),
                  &err);
        for (uint32_t rank = 0; rank < 2; rank++)
            put_laws(cd_judge_get_sink(judge), rank, &(laws){1, wrong, false});
        assert_ok(cd_judge_end(judge, &err), &err);
        cd_test_row("call %d is wrong", wrong);
        assert_int_equal(cd_judge_finding_count(judge), wrong >= 0 && wrong != 1);
        cd_judge_destroy(judge);
    }
}

/* Where all numbers are finite nothing lets a rank be silent. */
TEST(hook, a_law_that_one_rank_leaves_out_is_found)
{
    (void)state;
    const cddp_check *const checks[] = {cd_check_find("I-HOOK")};
    for (int left_out = -1; left_out < 4; left_out++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 1}, &judge,
                                  &err),
                  &err);
        for (uint32_t rank = 0; rank < 2; rank++)
            put_laws(cd_judge_get_sink(judge), rank, &(laws){left_out, -1, true});
        assert_ok(cd_judge_end(judge, &err), &err);
        cd_test_row("call %d is silent", left_out);
        assert_int_equal(cd_judge_finding_count(judge), left_out >= 0);
        if (left_out >= 0) {
            const cddp_finding *f = cd_judge_get_finding(judge, 0);
            assert_int_equal(f->rank, 1);
            assert_non_null(strstr(f->title, "leaves out a law of bucket 0"));
        }
        cd_judge_destroy(judge);
    }
}

/* ---- a wrong average, and what else may have made it so ---- */

typedef struct average_case {
    const char *name;
    int64_t presence, wrong_link; /* of the local gradient; -1: no other comparison fails */
    bool is_accused;
} average_case;

static const average_case average_cases[] = {
    {"nothing but the reduction", CDDP_PRESENCE_VALUE, -1, true},
    {"rows that the rank puts together", CDDP_PRESENCE_SPARSE, -1, false},
    {"a gradient that is not its loss's derivative", CDDP_PRESENCE_VALUE, CD_LINK_DERIVATIVE,
     false},
    {"a local gradient that is wrong", CDDP_PRESENCE_VALUE, CD_LINK_PRECISION, false},
};

static void put_average(const cddp_trace_sink *sink, uint32_t rank, const average_case *c)
{
    uint64_t sequence = 0;
    cddp_event e = {.kind = CDDP_EV_group, .rank = rank, .sequence = sequence++, .text = "world"};
    e.as.group = (cddp_event_group){.group = 3, .members = 2, .group_rank = rank};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_grad_local, .rank = rank, .sequence = sequence++};
    e.as.grad_local = (cddp_event_grad_local){.presence = c->presence, .digest = 1};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_bucket_done, .rank = rank, .sequence = sequence++};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_compare, .rank = rank, .sequence = sequence++};
    e.as.compare = (cddp_event_compare){.link = c->wrong_link, .bad = 1};
    if (c->wrong_link >= 0) sink->event(sink->self, &e);
    e.sequence = sequence++;
    e.as.compare =
        (cddp_event_compare){.link = CD_LINK_REDUCTION, .bad = 1, .shape = CD_SHAPE_UNEXPLAINED};
    sink->event(sink->self, &e);
}

TEST(coll, a_backend_is_accused_where_nothing_else_can_be_wrong)
{
    (void)state;
    const cddp_check *const checks[] = {cd_check_find("I-COLL")};
    for (size_t c = 0; c < sizeof average_cases / sizeof average_cases[0]; c++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        cd_test_row("%s", average_cases[c].name);
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 1}, &judge,
                                  &err),
                  &err);
        for (uint32_t rank = 0; rank < 2; rank++)
            put_average(cd_judge_get_sink(judge), rank, &average_cases[c]);
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_finding_count(judge), average_cases[c].is_accused);
        cd_judge_destroy(judge);
    }
}

/* ---- layouts of wrappers that are made one after the other ---- */

typedef struct layout_case {
    const char *name;
    int64_t first[2], second[2]; /* by rank: the parameter that opens the rebuilt bucket */
    bool is_found;
} layout_case;

static const layout_case layout_cases[] = {
    {"the training that resumes meets another order", {0, 0}, {1, 1}, false},
    {"ranks differ before the resume", {0, 1}, {1, 1}, true},
    {"ranks differ after the resume", {0, 0}, {0, 1}, true},
};

static void put_layout(const cddp_trace_sink *sink, uint32_t rank, int64_t generation,
                       int64_t param)
{
    static uint64_t sequence;
    cddp_event e = {.kind = CDDP_EV_bucket_layout, .rank = rank, .sequence = sequence++};
    e.as.bucket_layout =
        (cddp_event_bucket_layout){.generation = generation, .param = param, .numel = 4};
    sink->event(sink->self, &e);
    if (generation > 0) return;
    e = (cddp_event){.kind = CDDP_EV_wrap, .rank = rank, .sequence = sequence++};
    sink->event(sink->self, &e);
}

TEST(content, compares_layouts_of_wrappers_that_were_made_at_the_same_time)
{
    (void)state;
    const cddp_check *const checks[] = {cd_check_find("I-CONTENT")};
    for (size_t c = 0; c < sizeof layout_cases / sizeof layout_cases[0]; c++) {
        const layout_case *row = &layout_cases[c];
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        cd_test_row("%s", row->name);
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 1}, &judge,
                                  &err),
                  &err);
        for (uint32_t rank = 0; rank < 2; rank++) {
            put_layout(cd_judge_get_sink(judge), rank, 0, 0);
            put_layout(cd_judge_get_sink(judge), rank, 1, row->first[rank]);
            put_layout(cd_judge_get_sink(judge), rank, 0, 0);
            put_layout(cd_judge_get_sink(judge), rank, 1, row->second[rank]);
        }
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_finding_count(judge), row->is_found);
        cd_judge_destroy(judge);
    }
}

/* ---- the judge ---- */

static size_t seen_by_plugin;

static cddp_status plugin_begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    (void)err;
    *self = (void *)context->reporter;
    return CDDP_OK;
}

static void plugin_event(void *self, const cddp_event *event)
{
    (void)self;
    (void)event;
    seen_by_plugin++;
}

static void plugin_end(void *self) { (void)self; }

TEST(judge, shows_everything_to_a_check_that_names_no_kinds)
{
    (void)state;
    static const cddp_check plugin = {sizeof plugin, CDDP_CHECK_ABI,
                                      "X-ALL",       "sees all",
                                      "sees all",    plugin_begin,
                                      plugin_event,  plugin_end,
                                      NULL,          0};
    const cddp_check *checks[] = {&plugin, cd_check_get(0)};
    cddp_error err = CDDP_ERROR_INIT;
    cd_memory_sink trace;
    cd_judge *judge = NULL;
    seen_by_plugin = 0;
    cd_memory_sink_init(&trace, NULL);
    fixture_write(&trace, NULL);
    assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 2}, &judge,
                              &err),
              &err);
    assert_ok(cd_judge_push_trace(judge, &trace, &err), &err);
    assert_ok(cd_judge_end(judge, &err), &err);
    assert_int_equal(seen_by_plugin, trace.count);
    assert_fails(cd_judge_end(judge, &err), CDDP_E_STATE, &err, "already ended");
    cd_judge_destroy(judge);
    cd_memory_sink_fini(&trace);
}

static const cddp_facts *facts_of_plugin;

static cddp_status facts_begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    (void)err;
    *self = NULL;
    facts_of_plugin = context->facts;
    return CDDP_OK;
}

/* Whatever it listens to: the facts are the judge's. */
static void facts_end(void *self)
{
    (void)self;
    const cddp_facts *f = facts_of_plugin;
    cddp_fact_setting setting;
    cddp_fact_place place;
    cddp_fact_group group;
    assert_string_equal(f->name(f->self, CDDP_NAMED_VARIABLE, HEAD_WEIGHT), "head.weight");
    assert_string_equal(f->name(f->self, CDDP_NAMED_BUFFER, 0), "norm.mean");
    assert_null(f->name(f->self, CDDP_NAMED_BUFFER, 9));
    assert_true(f->group(f->self, FIXTURE_GROUP, &group));
    assert_string_equal(group.name, "world");
    assert_int_equal(group.members, FIXTURE_RANKS);
    assert_false(f->group(f->self, 1, &group));
    assert_true(f->place(f->self, 1, FC1_BIAS, &place));
    assert_int_equal(f->member(f->self, 1, &(cddp_fact_slot){place.bucket, place.slot}), FC1_BIAS);
    assert_int_equal(place.generation, f->generation(f->self, 1));
    assert_int_equal(f->generation(f->self, 900), -1);
    assert_true(f->setting(f->self, 2, "model.ignore", 1, &setting));
    assert_string_equal(setting.text, "norm.c*");
    assert_int_equal(setting.items, 2);
    assert_true(f->setting(f->self, 2, "ddp.delay_all_reduce_named_params", 0, &setting));
    assert_int_equal(setting.items, 0);
    assert_true(f->setting(f->self, 0, "ddp.static_graph", 0, &setting));
    assert_int_equal(setting.value, 0);
    assert_false(f->setting(f->self, 0, "ddp.no_such_key", 0, &setting));
    assert_int_equal(f->block(f->self, 2, CDDP_AGREED_PARAMETERS, 0), 0);
}

TEST(judge, gives_a_check_the_facts_that_it_does_not_listen_to)
{
    (void)state;
    static const uint16_t kinds[] = {CDDP_EV_run_end};
    static const cddp_check plugin = {.size = sizeof plugin,
                                      .abi = CDDP_CHECK_ABI,
                                      .name = "X-FACTS",
                                      .begin = facts_begin,
                                      .event = plugin_event,
                                      .end = facts_end,
                                      .kinds = kinds,
                                      .kind_count = 1};
    const cddp_check *checks[] = {&plugin};
    cddp_error err = CDDP_ERROR_INIT;
    cd_memory_sink trace;
    cd_judge *judge = NULL;
    cd_memory_sink_init(&trace, NULL);
    fixture_write(&trace, NULL);
    assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 1}, &judge,
                              &err),
              &err);
    assert_ok(cd_judge_push_trace(judge, &trace, &err), &err);
    assert_ok(cd_judge_end(judge, &err), &err);
    cd_judge_destroy(judge);
    cd_memory_sink_fini(&trace);
}

static const cddp_check_context *context_of_plugin;

static cddp_status old_begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    static cddp_check_context kept;
    (void)err;
    kept = *context;
    context_of_plugin = &kept;
    *self = NULL;
    return CDDP_OK;
}

/* As a check reports that was built before findings had a list of ranks. */
static void old_end(void *self)
{
    (void)self;
    const cddp_finding f = {.size = offsetof(cddp_finding, rank_count),
                            .check = "X-OLD",
                            .ranks = (const uint32_t *)(uintptr_t)7,
                            .rank = 70,
                            .peer = -1,
                            .title = "rank 70 differs",
                            .rank_count = 9};
    context_of_plugin->report(context_of_plugin->reporter, &f);
}

/* 20 times "experts.": longer than a finding has room for. */
static const char *long_name(void)
{
    static char name[192];
    for (size_t i = 0; i < 20; i++) memcpy(name + 8 * i, "experts.", 8);
    memcpy(name + 160, "weight", 7);
    return name;
}

static void long_end(void *self)
{
    (void)self;
    cddp_finding f = {.size = sizeof f, .check = "X-LONG", .rank = 0, .peer = -1, .bucket = -1};
    for (int32_t param = 0; param < 2; param++) {
        f.param = param;
        cd_say(f.parameter, sizeof f.parameter, "%s", param == 0 ? long_name() : "head.weight");
        context_of_plugin->report(context_of_plugin->reporter, &f);
    }
}

TEST(judge, keeps_the_whole_name_of_a_parameter)
{
    (void)state;
    static const cddp_check plugin = {.size = sizeof plugin,
                                      .abi = CDDP_CHECK_ABI,
                                      .name = "X-LONG",
                                      .begin = old_begin,
                                      .event = plugin_event,
                                      .end = long_end};
    const cddp_check *checks[] = {&plugin};
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *judge = NULL;
    assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 1}, &judge,
                              &err),
              &err);
    const cddp_trace_sink *sink = cd_judge_get_sink(judge);
    for (int64_t param = 0; param < 2; param++) {
        const cddp_event e = {.kind = CDDP_EV_param,
                              .text = param == 0 ? long_name() : "head.weight",
                              .as.param = {.param = param, .ordinal = param, .numel = 1}};
        sink->event(sink->self, &e);
    }
    assert_ok(cd_judge_end(judge, &err), &err);
    assert_int_equal(cd_judge_finding_count(judge), 2);
    for (size_t i = 0; i < 2; i++) {
        const cddp_finding *f = cd_judge_get_finding(judge, i);
        const bool is_long = f->param == 0;
        assert_true((f->name != NULL) == is_long);
        if (is_long) assert_string_equal(f->name, long_name());
        if (is_long) assert_non_null(strstr(f->parameter, "experts.expe..."));
    }
    cd_judge_destroy(judge);
}

TEST(judge, reads_a_finding_by_its_own_size)
{
    (void)state;
    static const cddp_check plugin = {.size = sizeof plugin,
                                      .abi = CDDP_CHECK_ABI,
                                      .name = "X-OLD",
                                      .begin = old_begin,
                                      .event = plugin_event,
                                      .end = old_end};
    const cddp_check *checks[] = {&plugin};
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *judge = NULL;
    assert_ok(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 1}, &judge,
                              &err),
              &err);
    assert_ok(cd_judge_end(judge, &err), &err);
    assert_int_equal(cd_judge_finding_count(judge), 1);
    const cddp_finding *f = cd_judge_get_finding(judge, 0);
    assert_string_equal(f->title, "rank 70 differs");
    assert_int_equal(f->rank_count, 1);
    assert_int_equal(f->ranks[0], 70);
    cd_judge_destroy(judge);
}

static void put_ignored(const cddp_trace_sink *sink, uint32_t rank, int64_t ignored)
{
    const char *pattern = "a.name.of.two.hundred.characters.is.what.a.deep.model.gives.to.its."
                          "parameters.and.a.list.of.them.was.cut.where.it.was.written.down.and."
                          "a.check.that.read.it.back.said.nothing.of.it.at.all.decoder.layers.*";
    const char *name = "a.name.of.two.hundred.characters.is.what.a.deep.model.gives.to.its."
                       "parameters.and.a.list.of.them.was.cut.where.it.was.written.down.and."
                       "a.check.that.read.it.back.said.nothing.of.it.at.all.decoder.layers.7";
    cddp_event e = {.rank = rank, .kind = CDDP_EV_option, .text = pattern};
    e.as.option = (cddp_event_option){.key = cd_setting_id(CDDP_KEY_model_ignore), .items = 1};
    sink->event(sink->self, &e);
    e = (cddp_event){.rank = rank, .sequence = 1, .kind = CDDP_EV_option};
    e.as.option.key = cd_setting_id(CDDP_KEY_ddp_delay_all_reduce_named_params);
    sink->event(sink->self, &e);
    e = (cddp_event){.rank = rank, .sequence = 2, .kind = CDDP_EV_param, .text = name};
    e.as.param = (cddp_event_param){.param = ignored ? -1 : 0,
                                    .numel = 1,
                                    .requires_grad = 1,
                                    .ignored = ignored};
    sink->event(sink->self, &e);
}

TEST(judge, reads_long_settings_whole)
{
    (void)state;
    const cddp_check *check = cd_check_find("I-META");
    for (int64_t ignored = 0; ignored <= 1; ignored++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = &check, .check_count = 1}, &judge,
                                  &err),
                  &err);
        put_ignored(cd_judge_get_sink(judge), 70, ignored);
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_get_exercise(judge, 0)->count, ignored);
        assert_int_equal(cd_judge_finding_count(judge), !ignored);
        if (!ignored) {
            assert_int_equal(cd_judge_get_finding(judge, 0)->rank_count, 1);
            assert_int_equal(cd_judge_get_finding(judge, 0)->ranks[0], 70);
        }
        cd_judge_destroy(judge);
    }
}

TEST(judge, refuses_a_check_without_its_functions)
{
    (void)state;
    static const cddp_check hollow = {.size = sizeof hollow,
                                      .abi = CDDP_CHECK_ABI,
                                      .name = "X-HOLLOW"};
    const cddp_check *checks[] = {cd_check_get(0), &hollow};
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *judge = NULL;
    assert_fails(cd_judge_create(&(cd_judge_options){.checks = checks, .check_count = 2}, &judge,
                                 &err),
                 CDDP_E_ARG, &err, "X-HOLLOW");
}

/* Every buffer of ranks 1 differs at every step of a long run: many findings, few kept, the
** earliest first. */
static void feed_forwards(const cddp_trace_sink *sink, uint32_t ranks, uint32_t steps)
{
    for (uint32_t r = 0; r < ranks; r++) {
        for (uint32_t s = 0; s < steps; s++) {
            cddp_event e = {.rank = r, .step = s, .sequence = s * 3, .kind = CDDP_EV_forward_begin};
            sink->event(sink->self, &e);
            e = (cddp_event){.rank = r,
                             .step = s,
                             .sequence = s * 3 + 1,
                             .kind = CDDP_EV_buffer_sync};
            sink->event(sink->self, &e);
            e = (cddp_event){.rank = r, .step = s, .sequence = s * 3 + 2, .kind = CDDP_EV_value};
            e.as.value = (cddp_event_value){.what = CDDP_WHAT_BUFFER,
                                            .moment = CDDP_MOMENT_FORWARD,
                                            .presence = CDDP_PRESENCE_VALUE,
                                            .digest = r == 1 ? 5 : 4,
                                            .param = -1,
                                            .nonfinite = -1};
            sink->event(sink->self, &e);
        }
    }
}

TEST(judge, keeps_the_earliest_findings_of_many_and_counts_all)
{
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *judge = NULL;
    assert_ok(cd_judge_create(&(cd_judge_options){.findings_per_check = 3}, &judge, &err), &err);
    feed_forwards(cd_judge_get_sink(judge), 3, 40);
    assert_ok(cd_judge_end(judge, &err), &err);
    assert_int_equal(cd_judge_finding_count(judge), 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(cd_judge_get_finding(judge, i)->step, i);
        assert_int_equal(cd_judge_get_finding(judge, i)->rank, 1);
    }
    for (size_t i = 0; i < cd_judge_exercise_count(judge); i++)
        if (strcmp(cd_judge_get_exercise(judge, i)->check, "I-BUFEQ") == 0)
            assert_int_equal(cd_judge_get_exercise(judge, i)->findings, 40);
    cd_judge_destroy(judge);
}

TEST(judge, handles_a_thousand_ranks)
{
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *judge = NULL;
    assert_ok(cd_judge_create(&(cd_judge_options){0}, &judge, &err), &err);
    feed_forwards(cd_judge_get_sink(judge), 1024, 20);
    assert_ok(cd_judge_end(judge, &err), &err);
    const cddp_finding *f = cd_judge_get_finding(judge, 0);
    assert_int_equal(f->rank, 1);
    assert_non_null(strstr(f->title, "rank 1 against ranks 0 and 2-1023"));
    assert_null(strstr(f->title, "(1 ")); /* what is named is not counted, too */
    cd_judge_destroy(judge);
}

/* The gradient of one rank against its reference, or against nothing. */
static void put_compared(const cddp_trace_sink *sink, uint32_t rank, bool is_compared,
                         bool is_wrong)
{
    cddp_event e = {.time_ns = 1,
                    .sequence = 1,
                    .rank = rank,
                    .kind = is_compared ? CDDP_EV_compare : CDDP_EV_uncompared};
    if (is_compared) {
        e.as.compare =
            (cddp_event_compare){.link = CD_LINK_MATHEMATICS,
                                 .param = 0,
                                 .element = is_wrong ? 0 : -1,
                                 .bad = is_wrong,
                                 .shape = is_wrong ? CD_SHAPE_UNEXPLAINED : CD_SHAPE_NONE};
    } else {
        e.as.uncompared = (cddp_event_uncompared){.references = 3};
    }
    sink->event(sink->self, &e);
}

/* Of a hundred ranks some are compared; the last of them is left out of another step. */
static void judge_some(uint32_t compared, bool is_wrong, cd_judge **judge)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cd_judge_create(&(cd_judge_options){0}, judge, &err), &err);
    for (uint32_t rank = 0; rank < 100; rank++)
        put_compared(cd_judge_get_sink(*judge), rank, rank < compared, is_wrong);
    if (compared < 100) put_compared(cd_judge_get_sink(*judge), compared - 1, false, false);
    assert_ok(cd_judge_end(*judge, &err), &err);
}

static void expect_ranks(const char *text, uint32_t culprit, const uint32_t *ranks, size_t count)
{
    cd_arena arena;
    cd_rank_set set = {0};
    char printed[96];
    cd_arena_init(&arena, NULL, 4096);
    for (size_t i = count; i-- > 0;) cd_rank_set_add(&set, &arena, ranks[i]);
    assert_int_equal(cd_rank_set_count(&set), count);
    for (size_t i = 0; i < count; i++) assert_true(cd_rank_set_has(&set, ranks[i]));
    assert_false(cd_rank_set_has(&set, 5000));
    cd_rank_set_print(&set, culprit, printed, sizeof printed);
    assert_string_equal(printed, text);
    cd_arena_fini(&arena);
}
#define RANKS(...) (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)

TEST(rank_set, names_the_culprit_first_and_ranges_in_one)
{
    (void)state;
    expect_ranks("rank 70", CD_NO_RANK, RANKS(70));
    expect_ranks("ranks 0 and 1", CD_NO_RANK, RANKS(0, 1));
    expect_ranks("ranks 62-65", CD_NO_RANK, RANKS(62, 63, 64, 65));
    expect_ranks("ranks 10, 70-73 and 4000", 10, RANKS(10, 70, 71, 72, 73, 4000));
    expect_ranks("ranks 72, 10, 70, 71 and 73", 72, RANKS(10, 70, 71, 72, 73));
    expect_ranks("ranks 1, 3, 5, 7, 9, 11 and 2 more", CD_NO_RANK,
                 RANKS(1, 3, 5, 7, 9, 11, 130, 132));
}

TEST(judge, says_of_how_many_ranks_a_finding_does_not_speak)
{
    (void)state;
    cd_judge *judge = NULL;
    judge_some(3, true, &judge);
    const cddp_finding *f = cd_judge_get_finding(judge, 0);
    assert_string_equal(f->check, "I-REF");
    assert_non_null(strstr(f->title, "ranks 0-2: "));
    assert_string_equal(
        f->advice,
        "the same error in 2 more comparisons, up to step 0; 97 more ranks, each of which "
        "starts from its own values, were not compared");
    cd_judge_destroy(judge);
    judge_some(1, true, &judge);
    assert_string_equal(
        cd_judge_get_finding(judge, 0)->advice,
        "99 more ranks, each of which starts from its own values, were not compared");
    cd_judge_destroy(judge);
    judge_some(100, true, &judge);
    assert_string_equal(cd_judge_get_finding(judge, 0)->advice,
                        "the same error in 99 more comparisons, up to step 0");
    cd_judge_destroy(judge);
    judge_some(3, false, &judge);
    assert_int_equal(cd_judge_finding_count(judge), 0);
    cd_judge_destroy(judge);
}

/* What a comparison needs decides who is left out of it. */
TEST(judge, speaks_of_ranks_left_out_only_where_a_reference_was)
{
    static const struct {
        const char *name;
        int64_t link;
        bool statistics, is_said; /* its statistics were left out, too */
    } rows[] = {
        /* clang-format off */
        {"a mean", CD_LINK_MATHEMATICS, false, true},       {"an update", CD_LINK_UPDATE, false, false},
        {"an update", CD_LINK_UPDATE, true, false},         {"optimizer state", CD_LINK_OPTIMIZER, true, false},
        {"a local gradient", CD_LINK_PRECISION, false, false}, {"a local gradient", CD_LINK_PRECISION, true, true},
        {"a buffer", CD_LINK_BUFFER, false, false},         {"statistics", CD_LINK_STATISTICS, true, true},
        /* clang-format on */
    };
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cd_test_row("%s, link %lld%s", rows[i].name, (long long)rows[i].link,
                    rows[i].statistics ? " with statistics" : "");
        cd_judge *judge = NULL;
        assert_ok(cd_judge_create(&(cd_judge_options){0}, &judge, &err), &err);
        const cddp_trace_sink *sink = cd_judge_get_sink(judge);
        const cddp_event wrong = {
            .time_ns = 1,
            .sequence = 1,
            .kind = CDDP_EV_compare,
            .as.compare = {.link = rows[i].link, .element = 0, .bad = 1, .shape = CD_SHAPE_OTHER}};
        const cddp_event left = {.time_ns = 1,
                                 .sequence = 1,
                                 .rank = 1,
                                 .kind = CDDP_EV_uncompared,
                                 .as.uncompared = {.references = 3,
                                                   .statistics = rows[i].statistics}};
        sink->event(sink->self, &wrong);
        sink->event(sink->self, &left);
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_string_equal(cd_judge_get_finding(judge, 0)->advice,
                            rows[i].is_said
                                ? "1 more rank, which starts from its own values, was not compared"
                                : "");
        cd_judge_destroy(judge);
    }
}

static cddp_status judge_fixture(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    cd_judge *judge = NULL;
    cddp_status status = cd_judge_create(&(cd_judge_options){.allocator = allocator}, &judge, err);
    if (status == CDDP_OK) status = cd_judge_push_trace(judge, argument, err);
    if (status == CDDP_OK) status = cd_judge_end(judge, err);
    cd_judge_destroy(judge);
    return status;
}

/* The important half: whatever allocation fails, the judge says so instead of finding nothing. */
TEST(judge, survives_every_failing_allocation_and_never_calls_it_silence)
{
    (void)state;
    cd_memory_sink trace;
    cd_memory_sink_init(&trace, NULL);
    fixture_write(&trace, NULL);
    assert_true(cd_test_oom_loop(judge_fixture, &trace) > 27);
    cd_memory_sink_fini(&trace);
}

static cddp_status judge_wrong_result(const cddp_allocator *allocator, void *argument,
                                      cddp_error *err)
{
    const cddp_event events[] = {
        {.kind = CDDP_EV_group, .text = "world", .as.group = {.group = 7, .members = 1}},
        {.kind = CDDP_EV_collective_post,
         .as.collective_post = {.group = 7, .bucket = -1, .numel = 5, .digest = 3}},
        {.kind = CDDP_EV_collective_done, .as.collective_done = {.group = 7, .digest = 4}},
        {.kind = CDDP_EV_compare,
         .text = "allreduce sum of group 'world'",
         .as.compare = {.link = CD_LINK_COLLECTIVE, .param = -1, .bad = 1}}};
    const cddp_check *check = cd_check_find("I-COLL");
    cd_judge *judge = NULL;
    size_t *findings = argument;
    cddp_status status = cd_judge_create(&(cd_judge_options){.checks = &check,
                                                             .check_count = 1,
                                                             .allocator = allocator},
                                         &judge, err);
    for (size_t i = 0; status == CDDP_OK && i < sizeof events / sizeof events[0]; i++)
        cd_judge_get_sink(judge)->event(cd_judge_get_sink(judge)->self, &events[i]);
    if (status == CDDP_OK) status = cd_judge_end(judge, err);
    if (status == CDDP_OK) *findings = cd_judge_finding_count(judge);
    cd_judge_destroy(judge);
    return status;
}

/* In a trace of one operation nothing that could not be remembered is remembered later. */
TEST(judge, survives_every_failing_allocation_of_the_first_operation)
{
    (void)state;
    size_t findings = 0;
    assert_true(cd_test_oom_loop(judge_wrong_result, &findings) > 8);
    assert_int_equal(findings, 1);
}

/* Posts `count` operations, of which one never ends, and closes the group. */
static void report_unawaited(const cddp_trace_sink *sink, int64_t count, int64_t lost)
{
    cddp_event e = {.kind = CDDP_EV_group, .text = "world", .as.group = {.group = 7, .members = 1}};
    sink->event(sink->self, &e);
    for (int64_t i = 0; i < 2 * count; i++) {
        const int64_t k = i % count;
        if (i < count)
            e = (cddp_event){.kind = CDDP_EV_collective_post,
                             .as.collective_post = {.group = 7, .sequence = k, .bucket = -1}};
        else
            e = (cddp_event){.kind = CDDP_EV_collective_done,
                             .as.collective_done = {.group = 7, .sequence = k}};
        e.sequence = (uint64_t)i + 1;
        if (i < count || k != lost) sink->event(sink->self, &e);
    }
    e = (cddp_event){.kind = CDDP_EV_group_close,
                     .as.group_close = {.group = 7, .sequence = count}};
    sink->event(sink->self, &e);
    e = (cddp_event){.kind = CDDP_EV_rank_end};
    sink->event(sink->self, &e);
}

TEST(judge, names_the_operation_that_nobody_waited_for)
{
    (void)state;
    static const struct {
        int64_t count, lost;
        const char *words;
    } rows[] = {{5, 5, NULL},
                {5, 3, "collective #3 of"},
                {300, 3, "collective #3 of"},
                {300, 299, "collective #299 of"},
                {9000, 8000, "waits for a collective of"},
                {9000, 9000, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const cddp_check *check = cd_check_find("I-LIFE");
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        cd_test_row("%lld of %lld", (long long)rows[i].lost, (long long)rows[i].count);
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = &check, .check_count = 1}, &judge,
                                  &err),
                  &err);
        report_unawaited(cd_judge_get_sink(judge), rows[i].count, rows[i].lost);
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_finding_count(judge), rows[i].words != NULL);
        if (rows[i].words != NULL)
            assert_non_null(strstr(cd_judge_get_finding(judge, 0)->title, rows[i].words));
        cd_judge_destroy(judge);
    }
}

/* ---- blame ---- */

static cd_judge *make_judge_of(const char *name)
{
    const cddp_check *check = cd_check_find(name);
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *judge = NULL;
    assert_ok(cd_judge_create(&(cd_judge_options){.checks = &check, .check_count = 1}, &judge,
                              &err),
              &err);
    return judge;
}

static void put(cd_judge *judge, cddp_event e)
{
    static uint64_t sequence;
    e.sequence = sequence++;
    cd_judge_get_sink(judge)->event(cd_judge_get_sink(judge)->self, &e);
}
#define PUT_AT(judge, rank_, step_, kind_, ...)        \
    put((judge), (cddp_event){.rank = (rank_),         \
                              .step = (step_),         \
                              .kind = CDDP_EV_##kind_, \
                              .as.kind_ = (cddp_event_##kind_){__VA_ARGS__}})

/* The only finding has these words in its title or in what was found. */
static void expect_finding(cd_judge *judge, const char *title, const char *actual)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cd_judge_end(judge, &err), &err);
    assert_int_equal(cd_judge_finding_count(judge), title != NULL);
    if (title != NULL) {
        const cddp_finding *f = cd_judge_get_finding(judge, 0);
        if (strstr(f->title, title) == NULL || strstr(f->actual, actual) == NULL)
            print_message("%s | %s\n", f->title, f->actual);
        assert_non_null(strstr(f->title, title));
        assert_non_null(strstr(f->actual, actual));
    }
    cd_judge_destroy(judge);
}

#define MS UINT64_C(1000000)

/* One rank posts a flag 5000 times, one in a millisecond; `pass`: with this event before each. */
static cd_judge *judge_loop(cddp_event_kind pass)
{
    cd_judge *judge = make_judge_of("I-LIVE");
    PUT_AT(judge, 1, 0, param, .param = 0, .ordinal = 0, .numel = 4);
    for (uint64_t k = 0; k < 5000; k++) {
        if (pass == CDDP_EV_forward_begin) PUT_AT(judge, 1, 3, forward_begin, .sync = 1);
        if (pass == CDDP_EV_mark) /* of one unit of a sharded model */
            put(judge,
                (cddp_event){.rank = 1, .step = 3, .kind = CDDP_EV_mark, .text = "sharded_pass"});
        cddp_event e = {.rank = 1, .step = 3, .kind = CDDP_EV_collective_post, .time_ns = k * MS};
        e.as.collective_post = (cddp_event_collective_post){.group = 7,
                                                            .sequence = (int64_t)k,
                                                            .op = CDDP_OP_ALLREDUCE,
                                                            .reduce_op = CDDP_RED_SUM,
                                                            .root = -1,
                                                            .dtype = CDDP_I32,
                                                            .numel = 1,
                                                            .bucket = -1};
        put(judge, e);
    }
    return judge;
}

static void end_loop(cd_judge *judge, uint32_t rank, cddp_rank_end how, cddp_status status,
                     uint64_t ms)
{
    cddp_event e = {.rank = rank, .step = 3, .kind = CDDP_EV_rank_end, .time_ns = ms * MS};
    e.as.rank_end = (cddp_event_rank_end){.end = how, .status = status};
    put(judge, e);
}

TEST(live, a_rank_that_posts_one_operation_until_its_world_gives_up_goes_round_in_circles)
{
    (void)state;
    static const cddp_event_kind passes[] = {CDDP_EV_run_begin, CDDP_EV_forward_begin,
                                             CDDP_EV_mark};
    for (size_t i = 0; i < 3; i++) {
        cd_judge *judge = judge_loop(passes[i]);
        end_loop(judge, 1, CDDP_RANK_HUNG, CDDP_E_TIMEOUT, 5002);
        cd_test_row("pass %zu", i);
        expect_finding(judge,
                       i > 0 ? "rank 1 never comes back"
                             : "rank 1 goes round in circles: it posts allreduce(sum)",
                       i > 0 ? "outside a collective" : "and it goes on");
    }
}

/* The loop ends, with the program or before the next pass; or it would have, and the rank was ended
** in it; or it stopped for some other reason. */
TEST(live, a_long_loop_that_ends_or_whose_record_stops_is_no_livelock)
{
    (void)state;
    static const struct {
        const char *name;
        bool has_end;
        cddp_rank_end end;
        cddp_status status;
        uint64_t ms;     /* of its end */
        int64_t other;   /* how another rank ended; -1: there is none */
        const char *why; /* what is found instead */
    } cases[] = {{"the record stops", false, 0, 0, 0, -1, NULL},
                 {"it returns", true, CDDP_RANK_RETURNED, CDDP_OK, 5001, -1, NULL},
                 {"it fails", true, CDDP_RANK_RETURNED, CDDP_E_IO, 5001, -1, NULL},
                 {"it gives up", true, CDDP_RANK_RETURNED, CDDP_E_TIMEOUT, 5001, -1, NULL},
                 {"it is killed", true, CDDP_RANK_KILLED, CDDP_E_ABORTED, 5001, -1, NULL},
                 {"it crashes", true, CDDP_RANK_CRASHED, CDDP_E_ABORTED, 5001, -1, NULL},
                 {"the job is ended", true, CDDP_RANK_INTERRUPTED, CDDP_E_ABORTED, 5001, -1, NULL},
                 {"it stood still", true, CDDP_RANK_HUNG, CDDP_E_TIMEOUT, 35000, -1,
                  "never comes back"},
                 {"a peer died", true, CDDP_RANK_HUNG, CDDP_E_TIMEOUT, 5001, CDDP_RANK_KILLED,
                  "never comes back"},
                 {"a peer returned", true, CDDP_RANK_HUNG, CDDP_E_TIMEOUT, 5001, CDDP_RANK_RETURNED,
                  "never comes back"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_judge *judge = judge_loop(CDDP_EV_run_begin);
        if (cases[i].has_end) end_loop(judge, 1, cases[i].end, cases[i].status, cases[i].ms);
        if (cases[i].other >= 0)
            end_loop(judge, 0, (cddp_rank_end)cases[i].other, CDDP_OK, cases[i].ms);
        cd_test_row("%s", cases[i].name);
        expect_finding(judge, cases[i].why, "outside a collective");
    }
    cd_judge *judge = judge_loop(CDDP_EV_run_begin);
    PUT_AT(judge, 1, 4, forward_begin, .sync = 1);
    expect_finding(judge, NULL, "");
}

static void put_post(cd_judge *judge, uint32_t rank, uint64_t k)
{
    PUT_AT(judge, rank, 3, collective_post, .group = 7, .sequence = (int64_t)k,
           .op = CDDP_OP_ALLREDUCE, .reduce_op = CDDP_RED_SUM, .root = -1, .dtype = CDDP_F32,
           .numel = 1, .bucket = -1);
}

/* Two ranks that have joined, and shadow 3000 passes each; a third rank begins `mirrored` of them
** itself, before them or, where shards are read one after the other, behind them. */
static cd_judge *judge_shadows(uint64_t mirrored, bool is_behind)
{
    cd_judge *judge = make_judge_of("I-LIVE");
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t k = 0; k < mirrored && (pass == 1) == is_behind; k++)
            PUT_AT(judge, 2, 3, forward_begin, .sync = 1);
        for (uint64_t k = 0; k < 3000 && pass == 0 && is_behind; k++) {
            PUT_AT(judge, 0, 3, forward_begin, .joined = 1);
            put_post(judge, 0, k);
        }
    }
    for (uint32_t rank = is_behind; rank < 2; rank++)
        for (uint64_t k = 0; k < 3000; k++) {
            PUT_AT(judge, rank, 3, forward_begin, .joined = 1);
            put_post(judge, rank, k);
        }
    return judge;
}

static void end_shadows(cd_judge *judge)
{
    for (uint32_t rank = 0; rank < 2; rank++)
        end_loop(judge, rank, CDDP_RANK_HUNG, CDDP_E_TIMEOUT, 0);
}

TEST(live, joined_ranks_that_shadow_one_another_go_round_in_circles)
{
    (void)state;
    cd_judge *judge = judge_shadows(0, false);
    end_shadows(judge);
    expect_finding(judge,
                   "rank 0 goes round in circles: it posts allreduce(sum) of 1 f32 2993 times",
                   "as a joined rank it shadowed 2992 passes that no rank began");
    for (int is_behind = 0; is_behind < 2; is_behind++) {
        cd_test_row("others begin what they shadow, %s", is_behind ? "behind" : "before");
        judge = judge_shadows(3000, is_behind);
        end_shadows(judge);
        expect_finding(judge, "rank 0 never comes back", "outside a collective");
    }
}

/* The world says that it ended ranks without end: what else is only long is a livelock then. */
TEST(live, ranks_that_their_world_ended_go_round_in_circles)
{
    (void)state;
    static const struct {
        cddp_event_kind pass;
        const char *title, *actual;
    } cases[] = {{CDDP_EV_forward_begin,
                  "rank 1 goes round in circles: it posts allreduce(sum) of 1 i32 5000 times",
                  "5000 passes in one micro-step, and it goes on"},
                 {CDDP_EV_run_begin,
                  "rank 1 goes round in circles: it posts allreduce(sum) of 1 i32 5000 times",
                  "5000, and it goes on"}};
    for (size_t i = 0; i < 2; i++) {
        cd_judge *judge = judge_loop(cases[i].pass);
        cddp_event e = {.rank = UINT32_MAX, .kind = CDDP_EV_mark, .text = CD_RANK_ENDLESS};
        e.as.mark.value = 1;
        put(judge, e);
        end_loop(judge, 1, CDDP_RANK_HUNG, CDDP_E_TIMEOUT, 5002);
        expect_finding(judge, cases[i].title, cases[i].actual);
    }
    cd_judge *judge = make_judge_of("I-LIVE");
    PUT_AT(judge, 1, 9, forward_begin, .sync = 1);
    cddp_event e = {.rank = UINT32_MAX, .kind = CDDP_EV_mark, .text = CD_RANK_ENDLESS};
    e.as.mark.value = 1;
    put(judge, e);
    end_loop(judge, 1, CDDP_RANK_HUNG, CDDP_E_TIMEOUT, 1);
    expect_finding(judge, "rank 1 goes round in circles: it goes on without end in step 9",
                   "it goes on");
}

/* It joins the group, posts the first operation and waits for it. */
static void put_member(cd_judge *judge, uint32_t rank)
{
    PUT_AT(judge, rank, 0, group, .group = 7, .group_rank = (int64_t)rank);
    PUT_AT(judge, rank, 0, collective_post, .group = 7, .sequence = 0, .op = CDDP_OP_ALLREDUCE,
           .reduce_op = CDDP_RED_SUM, .root = -1, .dtype = CDDP_F32, .numel = 4, .bucket = 0);
    PUT_AT(judge, rank, 0, collective_wait, .group = 7, .sequence = 0);
}

/* A planted fault kept rank 2 from coming before the others' time-outs. */
TEST(live, of_a_rank_that_a_fault_kept_it_is_said_how_late_it_came)
{
    (void)state;
    for (int is_behind = 0; is_behind < 2; is_behind++) {
        cd_judge *judge = make_judge_of("I-LIVE");
        /* a hang may begin when it has posted */
        if (is_behind)
            PUT_AT(judge, 0, 0, fault, .kind = CDDP_FAULT_HANG, .target = 2, .peer = -1,
                   .duration = 500 * MS);
        else
            PUT_AT(judge, 0, 0, fault, .kind = CDDP_FAULT_SLOW_RANK, .target = 2, .peer = -1);
        for (uint32_t rank = 0; rank < 3; rank++)
            PUT_AT(judge, rank, 0, group, .group = 7, .group_rank = (int64_t)rank, .members = 3);
        for (uint32_t rank = 0; rank < 3; rank++) {
            cddp_event e = {.rank = rank, .kind = CDDP_EV_collective_post};
            if (rank == 2 && !is_behind) e.time_ns = 500 * MS;
            e.as.collective_post = (cddp_event_collective_post){.group = 7,
                                                                .op = CDDP_OP_ALLREDUCE,
                                                                .reduce_op = CDDP_RED_SUM,
                                                                .root = -1,
                                                                .bucket = 0};
            put(judge, e);
            e = (cddp_event){.rank = rank, .kind = CDDP_EV_collective_done};
            e.time_ns = rank == 2 ? 600 * MS : 100 * MS;
            e.as.collective_done =
                (cddp_event_collective_done){.group = 7, .status = CDDP_E_TIMEOUT};
            put(judge, e);
            PUT_AT(judge, rank, 0, rank_end, .status = CDDP_E_TIMEOUT);
        }
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_wait_count(judge), 2);
        for (size_t i = 0; i < 2; i++) {
            const cddp_wait *w = cd_judge_get_wait(judge, i);
            assert_int_equal(w->rank, i);
            assert_int_equal(w->peer_count, 1);
            assert_int_equal(w->peers[0], 2);
            assert_int_equal(w->late_ns, 400 * MS);
        }
        cd_judge_destroy(judge);
    }
}

/* What became of rank 1 and rank 2 under a planted fault each; all posted the operation, in which
** the others time out. */
static const struct {
    const char *name;
    cddp_event_fault first, second;
    bool has_first_died; /* else rank 1 times out as well */
    size_t waiting, peers;
    uint32_t peer; /* the first */
} struck_pairs[] = {
    {"both are dead",
     {.kind = CDDP_FAULT_KILL, .target = 1},
     {.kind = CDDP_FAULT_KILL, .target = 2},
     true,
     2,
     2,
     1},
    {"one is dead, one hangs",
     {.kind = CDDP_FAULT_HANG, .target = 1},
     {.kind = CDDP_FAULT_KILL, .target = 2},
     true,
     2,
     2,
     1},
    {"one came back before anybody gave up",
     {.kind = CDDP_FAULT_HANG, .target = 1, .duration = 20 * MS},
     {.kind = CDDP_FAULT_KILL, .target = 2},
     false,
     3,
     1,
     2},
    {"one came back after the others gave up, one is dead",
     {.kind = CDDP_FAULT_HANG, .target = 1, .duration = 500 * MS},
     {.kind = CDDP_FAULT_KILL, .target = 2},
     false,
     2,
     2,
     1},
    {"a bit of one was flipped",
     {.kind = CDDP_FAULT_BIT_FLIP, .target = 1},
     {.kind = CDDP_FAULT_KILL, .target = 2},
     false,
     3,
     1,
     2},
};

TEST(live, of_several_ranks_that_faults_struck_those_are_waited_for_that_are_still_out)
{
    (void)state;
    for (size_t i = 0; i < sizeof struck_pairs / sizeof struck_pairs[0]; i++) {
        cd_judge *judge = make_judge_of("I-LIVE");
        const bool has_died[4] = {false, struck_pairs[i].has_first_died, true, false};
        cd_test_row("%s", struck_pairs[i].name);
        put(judge, (cddp_event){.kind = CDDP_EV_fault, .as.fault = struck_pairs[i].first});
        put(judge, (cddp_event){.kind = CDDP_EV_fault, .as.fault = struck_pairs[i].second});
        for (uint32_t rank = 0; rank < 4; rank++) {
            PUT_AT(judge, rank, 0, group, .group = 7, .group_rank = (int64_t)rank, .members = 4);
            PUT_AT(judge, rank, 0, collective_post, .group = 7, .op = CDDP_OP_ALLREDUCE,
                   .reduce_op = CDDP_RED_SUM, .root = -1, .bucket = 0);
        }
        for (uint32_t rank = 0; rank < 4; rank++) {
            const bool is_late = rank == 1 && struck_pairs[i].first.duration == 500 * MS;
            cddp_event e = {.rank = rank, .kind = CDDP_EV_collective_done};
            e.time_ns = is_late ? 600 * MS : 100 * MS;
            e.as.collective_done =
                (cddp_event_collective_done){.group = 7, .status = CDDP_E_TIMEOUT};
            if (!has_died[rank]) put(judge, e);
            PUT_AT(judge, rank, 0, rank_end, .status = CDDP_E_TIMEOUT,
                   .end = has_died[rank] ? CDDP_RANK_KILLED : CDDP_RANK_RETURNED);
        }
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_wait_count(judge), struck_pairs[i].waiting);
        for (size_t k = 0; k < cd_judge_wait_count(judge); k++) {
            const cddp_wait *w = cd_judge_get_wait(judge, k);
            assert_int_equal(w->peer_count, struck_pairs[i].peers);
            assert_int_equal(w->peers[0], struck_pairs[i].peer);
            assert_int_equal(w->peers[w->peer_count - 1], 2);
        }
        cd_judge_destroy(judge);
    }
}

/* What rank 2 posted is not known: there is no record of it, or one that stops. */
TEST(live, a_member_without_a_record_to_its_end_is_not_to_blame)
{
    (void)state;
    for (int is_cut = 0; is_cut < 2; is_cut++) {
        cd_judge *judge = make_judge_of("I-LIVE");
        for (uint32_t rank = 0; rank < 2u + (uint32_t)is_cut; rank++)
            PUT_AT(judge, rank, 0, group, .group = 7, .group_rank = (int64_t)rank, .members = 3);
        for (uint32_t rank = 0; rank < 2; rank++) put_member(judge, rank);
        for (uint32_t rank = 0; rank < 2; rank++)
            PUT_AT(judge, rank, 0, rank_end, .end = CDDP_RANK_HUNG, .status = CDDP_E_TIMEOUT);
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_judge_end(judge, &err), &err);
        cd_test_row("record stops: %d", is_cut);
        assert_int_equal(cd_judge_finding_count(judge), 1);
        const cddp_finding *f = cd_judge_get_finding(judge, 0);
        assert_int_equal(f->rank, -1);
        assert_int_equal(f->rank_count, 0);
        assert_non_null(strstr(f->title, is_cut ? "no record says whether rank 2 came"
                                                : "no record says whether 1 member came"));
        cd_judge_destroy(judge);
    }
}

/* All have posted it. Ranks that its death leaves waiting are ended by the launcher. */
TEST(live, of_ranks_inside_an_operation_the_one_that_died_stopped_it)
{
    (void)state;
    for (uint32_t dead = 0; dead < 3; dead++) {
        cd_judge *judge = make_judge_of("I-LIVE");
        for (uint32_t rank = 0; rank < 3; rank++) put_member(judge, rank);
        for (uint32_t rank = 0; rank < 3; rank++)
            PUT_AT(judge, rank, 0, rank_end,
                   .end = rank == dead ? CDDP_RANK_KILLED : CDDP_RANK_HUNG,
                   .status = CDDP_E_ABORTED, .detail = rank == dead ? 9 : 0);
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_judge_end(judge, &err), &err);
        cd_test_row("rank %u died", dead);
        assert_int_equal(cd_judge_finding_count(judge), 1);
        assert_int_equal(cd_judge_get_finding(judge, 0)->rank, dead);
        assert_int_equal(cd_judge_wait_count(judge), 2);
        for (size_t i = 0; i < 2; i++) {
            const cddp_wait *wait = cd_judge_get_wait(judge, i);
            assert_true(wait->is_inside && wait->peer_count == 1 && wait->peers[0] == dead);
        }
        cd_judge_destroy(judge);
    }
}

/* Three are under way. The dead rank had waited for the first, and the others lose it in the
** second; or it had waited for the third, and its part in the second may be over. */
TEST(live, a_rank_that_died_with_several_operations_under_way_died_inside_the_later_ones)
{
    (void)state;
    for (int64_t waits_in = 0; waits_in <= 2; waits_in += 2) {
        cd_judge *judge = make_judge_of("I-LIVE");
        for (uint32_t rank = 0; rank < 3; rank++) {
            PUT_AT(judge, rank, 0, group, .group = 7, .group_rank = (int64_t)rank);
            for (int64_t k = 0; k < 3; k++)
                PUT_AT(judge, rank, 0, collective_post, .group = 7, .sequence = k,
                       .op = CDDP_OP_ALLREDUCE, .reduce_op = CDDP_RED_SUM, .root = -1,
                       .dtype = CDDP_F32, .numel = 4, .bucket = k);
            PUT_AT(judge, rank, 0, collective_wait, .group = 7,
                   .sequence = rank == 1 ? waits_in : 1);
            if (rank != 1)
                PUT_AT(judge, rank, 0, collective_done, .group = 7, .sequence = 1,
                       .status = CDDP_E_BACKEND);
            PUT_AT(judge, rank, 0, rank_end,
                   .end = rank == 1 ? CDDP_RANK_KILLED : CDDP_RANK_RETURNED,
                   .status = rank == 1 ? CDDP_E_ABORTED : CDDP_E_BACKEND,
                   .detail = rank == 1 ? 9 : 0);
        }
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_judge_end(judge, &err), &err);
        cd_test_row("it waited in #%lld", (long long)waits_in);
        assert_int_equal(cd_judge_wait_count(judge), waits_in == 0 ? 2 : 0);
        for (size_t i = 0; i < cd_judge_wait_count(judge); i++) {
            const cddp_wait *wait = cd_judge_get_wait(judge, i);
            assert_int_equal(wait->sequence, 1);
            assert_true(wait->is_inside && wait->peer_count == 1 && wait->peers[0] == 1);
        }
        cd_judge_destroy(judge);
    }
}

/* Rank 0 could not open the group when rank 2 died, and rank 1 had opened it: rank 1 lost rank 2.
** Where rank 2 died before it opened the group, both are missing, and the dead one is named. */
TEST(live, a_rank_that_died_is_the_cause_for_one_that_could_not_come)
{
    (void)state;
    for (int has_opened = 0; has_opened < 2; has_opened++) {
        cd_judge *judge = make_judge_of("I-LIVE");
        PUT_AT(judge, 0, 0, rank_begin, .world_size = 3);
        for (uint32_t rank = 1; rank < 3; rank++) {
            if (rank == 2 && !has_opened) continue;
            PUT_AT(judge, rank, 0, group, .group = 7, .group_rank = (int64_t)rank, .members = 3);
            put_member(judge, rank);
        }
        PUT_AT(judge, 1, 0, collective_done, .group = 7, .status = CDDP_E_BACKEND);
        for (uint32_t rank = 0; rank < 3; rank++)
            PUT_AT(judge, rank, 0, rank_end,
                   .end = rank == 2 ? CDDP_RANK_KILLED : CDDP_RANK_RETURNED,
                   .status = CDDP_E_BACKEND, .detail = rank == 2 ? 9 : 0);
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_judge_end(judge, &err), &err);
        cd_test_row("opened: %d", has_opened);
        assert_int_equal(cd_judge_wait_count(judge), 1);
        const cddp_wait *wait = cd_judge_get_wait(judge, 0);
        assert_int_equal(wait->peer_count, has_opened ? 1 : 2);
        assert_int_equal(wait->peers[wait->peer_count - 1], 2);
        assert_int_equal(cd_judge_finding_count(judge), 1);
        assert_int_equal(cd_judge_get_finding(judge, 0)->rank, 2);
        cd_judge_destroy(judge);
    }
}

/* What it waits in ends with its status, as on a transport that loses the peer. */
TEST(live, a_rank_under_whose_operation_another_aborts_the_group_lost_that_one)
{
    (void)state;
    for (int goes_on = 0; goes_on < 2; goes_on++) {
        cd_judge *judge = make_judge_of("I-LIVE");
        PUT_AT(judge, 1, 0, group, .group = 7, .group_rank = 1);
        put_member(judge, 0);
        PUT_AT(judge, 1, 0, group_abort, .group = 7);
        PUT_AT(judge, 0, 0, collective_done, .group = 7, .sequence = 0, .status = CDDP_E_ABORTED);
        PUT_AT(judge, 0, 0, group_abort, .group = 7);
        if (goes_on) put_member(judge, 0);
        for (uint32_t rank = 0; rank < 2; rank++)
            PUT_AT(judge, rank, 0, rank_end, .end = CDDP_RANK_RETURNED, .status = CDDP_E_STATE);
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_judge_end(judge, &err), &err);
        cd_test_row("goes on: %d", goes_on);
        assert_int_equal(cd_judge_finding_count(judge), 0);
        assert_int_equal(cd_judge_wait_count(judge), !goes_on);
        if (!goes_on) {
            const cddp_wait *wait = cd_judge_get_wait(judge, 0);
            assert_int_equal(wait->status, CDDP_E_ABORTED);
            assert_true(wait->rank == 0 && wait->peer_count == 1 && wait->peers[0] == 1);
        }
        cd_judge_destroy(judge);
    }
}

/* Bucket 0 of every step on three ranks; one of them leaves a step out, or has one more. */
TEST(order, a_bucket_that_meets_another_step_is_named_with_what_is_missing)
{
    (void)state;
    static const struct {
        int64_t skipped, repeated;
        const char *title, *actual;
    } rows[] = {{-1, -1, NULL, NULL},
                {2, -1, "rank 2: bucket 0 of step 3 meets bucket 0 of step 2 of ranks 0 and 1",
                 "rank 2 issues nothing for step 2 between #1 and #2"},
                {-1, 2, "rank 2: bucket 0 of step 2 meets bucket 0 of step 3 of ranks 0 and 1",
                 "rank 2 issues more than ranks 0 and 1 before #3"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_judge *judge = make_judge_of("I-ORDER");
        for (uint32_t rank = 0; rank < 3; rank++) {
            int64_t sequence = 0;
            for (uint32_t step = 0; step < 5; step++) {
                int count = 1;
                if (rank == 2 && rows[i].skipped == step) count = 0;
                if (rank == 2 && rows[i].repeated == step) count = 2;
                while (count-- > 0)
                    PUT_AT(judge, rank, step, collective_post, .group = 7, .sequence = sequence++,
                           .op = CDDP_OP_ALLREDUCE, .reduce_op = CDDP_RED_SUM, .root = -1,
                           .dtype = CDDP_F32, .numel = 8, .bucket = 0);
            }
        }
        cd_test_row("row %zu", i);
        expect_finding(judge, rows[i].title, rows[i].actual);
    }
}

static void post_flag(cd_judge *judge, uint32_t rank, uint32_t step, int64_t sequence,
                      int64_t bucket)
{
    PUT_AT(judge, rank, step, collective_post, .group = 7, .sequence = sequence,
           .op = CDDP_OP_ALLREDUCE, .reduce_op = CDDP_RED_SUM, .root = -1, .dtype = CDDP_F32,
           .numel = 8, .bucket = bucket);
}

/* Without a majority: the sequence with a gap in it is the wrong one. */
TEST(order, of_two_ranks_the_one_that_leaves_a_step_out_is_blamed)
{
    (void)state;
    static const char *const titles[] = {
        "rank 0: bucket 0 of step 3 meets bucket 0 of step 2 of rank 1",
        "rank 1: bucket 0 of step 3 meets bucket 0 of step 2 of rank 0"};
    for (uint32_t who = 0; who < 2; who++) {
        cd_judge *judge = make_judge_of("I-ORDER");
        for (uint32_t rank = 0; rank < 2; rank++) {
            int64_t sequence = 0;
            for (uint32_t step = 0; step < 5; step++)
                if (rank != who || step != 2) post_flag(judge, rank, step, sequence++, 0);
        }
        expect_finding(judge, titles[who], "issues nothing for step 2 between #1 and #2");
    }
}

/* A last operation that some ranks post; ranks that return without it. */
TEST(order, of_a_short_sequence_the_ranks_that_differ_from_most_are_blamed)
{
    (void)state;
    static const struct {
        uint32_t ranks, posters; /* of rank 1 on */
        int64_t bucket;
        const char *title;
    } rows[] = {{4, 1, -1,
                 "rank 1 posted collective #1 of group '7', which ranks 0, 2 and 3 returned"},
                {4, 3, -1, "rank 0 returned without posting collective #1"},
                {2, 1, -1,
                 "rank 0 returned without collective #1 of group '7', which rank 1 posted: no"},
                {2, 1, 0, "rank 0 returned without posting collective #1"},
                {4, 4, -1, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_judge *judge = make_judge_of("I-ORDER");
        for (uint32_t rank = 0; rank < rows[i].ranks; rank++) {
            const uint32_t place = (rank + rows[i].ranks - 1) % rows[i].ranks;
            post_flag(judge, rank, 0, 0, 0);
            if (place < rows[i].posters) post_flag(judge, rank, 1, 1, rows[i].bucket);
            PUT_AT(judge, rank, 1, rank_end, .status = CDDP_OK);
        }
        cd_test_row("row %zu", i);
        expect_finding(judge, rows[i].title, "");
    }
}

/* Bucket 1 is complete and waits for bucket 0, of which one parameter never comes. */
TEST(once, names_the_bucket_that_was_waited_for_and_what_it_lacks)
{
    (void)state;
    cd_judge *judge = make_judge_of("I-ONCE");
    for (int64_t p = 0; p < 3; p++)
        PUT_AT(judge, 0, 0, bucket_layout, .bucket = p == 2, .slot = p == 2 ? 0 : p, .param = p,
               .numel = 4);
    PUT_AT(judge, 0, 1, forward_begin, .sync = 1, .grad_mode = 1);
    for (int64_t p = 0; p < 3; p++) {
        PUT_AT(judge, 0, 1, grad_local, .param = p, .presence = CDDP_PRESENCE_VALUE,
               .contributions = 1);
        if (p != 1) PUT_AT(judge, 0, 1, mark_ready, .param = p, .bucket = p == 2);
    }
    PUT_AT(judge, 0, 1, optimizer_touch, .param = 2, .touched = 1);
    expect_finding(judge, "steps on a local gradient of parameter 2",
                   "it waited for bucket 0, in which parameter 1 did not become ready");
}

/* Ranks 1 and 3 post a barrier where the others reduce: each waits in what it posted itself. */
TEST(live, a_rank_waits_in_the_operation_that_it_posted_itself)
{
    (void)state;
    cd_judge *judge = make_judge_of("I-LIVE");
    for (uint32_t rank = 0; rank < 4; rank++) {
        PUT_AT(judge, rank, 0, group, .group = 7, .members = 4, .group_rank = rank);
        if (rank % 2 == 0)
            post_flag(judge, rank, 1, 0, -1);
        else
            PUT_AT(judge, rank, 1, collective_post, .group = 7, .op = CDDP_OP_BARRIER,
                   .bucket = -1);
        PUT_AT(judge, rank, 1, collective_wait, .group = 7);
    }
    for (uint32_t rank = 0; rank < 4; rank++)
        PUT_AT(judge, rank, 1, rank_end, .status = CDDP_E_TIMEOUT, .end = CDDP_RANK_HUNG);
    assert_int_equal(cd_judge_end(judge, NULL), CDDP_OK);
    assert_int_equal(cd_judge_wait_count(judge), 4);
    for (size_t i = 0; i < 4; i++) {
        const cddp_wait *wait = &cd_judge_get_wait(judge, 0)[i];
        assert_int_equal(wait->op, wait->rank % 2 == 0 ? CDDP_OP_ALLREDUCE : CDDP_OP_BARRIER);
    }
    cd_judge_destroy(judge);
}

/* Rank 1 sends to rank 0, which waits for it elsewhere and has recorded no exchange of messages. */
TEST(live, who_never_asks_for_a_message_is_named_by_the_group_of_who_sends_it)
{
    (void)state;
    static const uint32_t pair[] = {1, 0};
    for (int knows = 0; knows < 2; knows++) {
        cd_judge *judge = make_judge_of("I-LIVE");
        const int64_t digest = knows ? (int64_t)cd_rank_members_digest(pair, 2) : 5;
        for (uint32_t rank = 0; rank < 3; rank++)
            PUT_AT(judge, rank, 0, group, .group = 7, .members = 3, .group_rank = rank);
        PUT_AT(judge, 1, 0, group, .group = 9, .members = 2, .members_digest = digest);
        PUT_AT(judge, 1, 1, collective_post, .group = 9, .op = CDDP_OP_SEND, .root = 1,
               .bucket = -1);
        PUT_AT(judge, 1, 1, collective_wait, .group = 9);
        for (uint32_t rank = 0; rank < 3; rank += 2) {
            post_flag(judge, rank, 1, 0, -1);
            PUT_AT(judge, rank, 1, collective_wait, .group = 7);
        }
        for (uint32_t rank = 0; rank < 3; rank++)
            PUT_AT(judge, rank, 1, rank_end, .status = CDDP_E_TIMEOUT, .end = CDDP_RANK_HUNG);
        cd_test_row("knows %d", knows);
        expect_finding(judge, knows ? "wait for one another in a cycle of 2" : "no record says",
                       "");
    }
}

/* After a step on gradients that nobody reduced, the program itself all-reduces something. */
TEST(once, ranks_that_average_just_what_they_have_stepped_on_are_not_accused)
{
    (void)state;
    static const struct {
        int64_t elements[2]; /* of the two all-reduces behind the step */
        const char *title;   /* NULL: none */
    } rows[] = {{{4, 4}, NULL},
                {{8, 0}, NULL},
                {{13, 0}, NULL},  /* with the frozen one */
                {{100, 8}, NULL}, /* behind an average of another module */
                {{4, 3}, "steps on a local gradient"},
                {{100, 1}, "steps on a local gradient"},
                {{0, 0}, "steps on a local gradient"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_judge *judge = make_judge_of("I-ONCE");
        put(judge, (cddp_event){.kind = CDDP_EV_mark,
                                .text = i % 2 == 0 ? "torch 2.6" : CD_TRACER_RECORDED});
        for (int64_t p = 0; p < 2; p++)
            PUT_AT(judge, 0, 0, param, .param = p, .ordinal = p, .numel = 4);
        PUT_AT(judge, 0, 0, param, .param = -1, .ordinal = 2, .numel = 5);
        for (int64_t p = 0; p < 2; p++)
            PUT_AT(judge, 0, 1, grad_local, .param = p, .presence = CDDP_PRESENCE_VALUE,
                   .contributions = 1);
        for (int64_t p = 0; p < 2; p++)
            PUT_AT(judge, 0, 1, optimizer_touch, .param = p, .touched = 1);
        for (size_t k = 0; k < 2 && rows[i].elements[k] > 0; k++) {
            cddp_event mark = {.step = 1, .kind = CDDP_EV_mark, .text = CD_TRACER_OWN_REDUCTION};
            mark.as.mark.value = rows[i].elements[k];
            put(judge, mark);
        }
        cd_test_row("row %zu", i);
        expect_finding(judge, rows[i].title, "");
    }
}

/* By means that nobody sees, or with other modules at once: what ranks show behind the step. */
TEST(once, ranks_that_part_and_then_hold_a_new_content_are_not_accused)
{
    (void)state;
    enum { START = 1 };
    static const struct {
        const char *name;
        int64_t gradients[2], behind_step[2], behind_average[2]; /* by rank; 0: not shown */
        bool has_group;
        int64_t summed; /* elements that the program all-reduces in it */
        bool is_accused;
    } rows[] = {
        {"shown twice", {11, 12}, {21, 22}, {30, 30}, false, 0, false},
        {"shown behind the average", {11, 12}, {30, 30}, {0, 0}, false, 0, false},
        {"in a group, with another module", {11, 12}, {21, 22}, {30, 30}, true, 9, false},
        {"in a group, too few elements", {11, 12}, {21, 22}, {30, 30}, true, 3, true},
        {"in a group, a broadcast", {11, 12}, {30, 30}, {0, 0}, true, 0, true},
        {"one keeps what it had", {11, 12}, {21, 22}, {21, 21}, false, 0, true},
        {"the step changes nothing", {11, 12}, {START, START}, {0, 0}, false, 0, true},
        {"equal gradients", {11, 11}, {21, 21}, {0, 0}, false, 0, true},
        {"one rank shows it", {11, 12}, {30, 0}, {0, 0}, false, 0, true},
        {"they stay apart", {11, 12}, {21, 22}, {31, 32}, false, 0, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_judge *judge = make_judge_of("I-ONCE");
        for (uint32_t rank = 0; rank < 2; rank++) {
            put(judge,
                (cddp_event){.rank = rank, .kind = CDDP_EV_mark, .text = CD_TRACER_RECORDED});
            PUT_AT(judge, rank, 0, param, .param = 0, .numel = 4);
            PUT_AT(judge, rank, 0, value, .what = CDDP_WHAT_PARAMETER,
                   .moment = CDDP_MOMENT_AFTER_INIT, .digest = START);
            PUT_AT(judge, rank, 1, grad_local, .presence = CDDP_PRESENCE_VALUE, .contributions = 1);
            if (rows[i].has_group) PUT_AT(judge, rank, 1, collective_post, .bucket = -1);
            PUT_AT(judge, rank, 1, optimizer_touch, .touched = 1,
                   .gradient = rows[i].gradients[rank]);
            PUT_AT(judge, rank, 1, value, .what = CDDP_WHAT_PARAMETER,
                   .moment = CDDP_MOMENT_AFTER_STEP, .digest = rows[i].behind_step[rank]);
            cddp_event mark = {.rank = rank,
                               .step = 1,
                               .kind = CDDP_EV_mark,
                               .text = CD_TRACER_OWN_REDUCTION};
            mark.as.mark.value = rows[i].summed;
            if (rows[i].summed > 0) put(judge, mark);
            PUT_AT(judge, rank, 1, value, .what = CDDP_WHAT_PARAMETER,
                   .moment = CDDP_MOMENT_AFTER_AVERAGE, .digest = rows[i].behind_average[rank]);
        }
        cd_test_row("%s", rows[i].name);
        expect_finding(judge, rows[i].is_accused ? "steps on a local gradient" : NULL, "");
    }
}

/* Of an ignored one no shape is known. */
TEST(init, a_parameter_that_one_rank_ignores_differs_in_its_flags)
{
    (void)state;
    cd_judge *judge = make_judge_of("I-INIT");
    for (uint32_t rank = 0; rank < 3; rank++) {
        const bool is_ignored = rank == 1;
        PUT_AT(judge, rank, 0, param, .param = is_ignored ? -1 : 0, .numel = is_ignored ? -1 : 4,
               .shape = is_ignored ? 0 : 7, .name = 5, .requires_grad = 1, .ignored = is_ignored);
    }
    expect_finding(judge, "disagree on the flags of parameter 0", "trainable, ignored");
}

/* Loaders of a recorded program that say their samples at once: what a call says comes mixed. */
TEST(data, samples_of_several_threads_may_come_mixed)
{
    (void)state;
    for (int is_recorded = 0; is_recorded < 2; is_recorded++) {
        cd_judge *judge = make_judge_of("I-DATA");
        if (is_recorded) put(judge, (cddp_event){.kind = CDDP_EV_mark, .text = CD_TRACER_RECORDED});
        for (int64_t id = 3; id < 5; id++)
            PUT_AT(judge, 0, 1, sample, .sample = id, .weight = cd_f64_bits(1));
        for (int64_t id = 3; id < 5; id++)
            PUT_AT(judge, 0, 1, samples, .count = 1 + (id == 3),
                   .ids = (int64_t)cd_hash_mix(0, (uint64_t)id), .weight = cd_f64_bits(1));
        cd_test_row("recorded %d", is_recorded);
        expect_finding(judge, is_recorded ? NULL : "samples changed", "");
    }
}

/* Two ranks agree on a gradient that the oracle found wrong; the one that it found right wins. */
TEST(gradeq, a_majority_does_not_outvote_the_reference)
{
    (void)state;
    for (int has_reference = 0; has_reference < 2; has_reference++) {
        cd_judge *judge = make_judge_of("I-GRADEQ");
        for (uint32_t rank = 0; rank < 3; rank++) {
            put(judge, (cddp_event){.rank = rank,
                                    .kind = CDDP_EV_group,
                                    .text = "world",
                                    .as.group = {.group = 7,
                                                 .members = 3,
                                                 .group_rank = rank,
                                                 .order = CDDP_ORDER_SAME}});
            PUT_AT(judge, rank, 0, wrap, .params = 1, .group = 7);
            PUT_AT(judge, rank, 0, grad_final, .param = 0, .presence = CDDP_PRESENCE_VALUE,
                   .digest = rank == 1 ? 11 : 12);
            if (has_reference)
                PUT_AT(judge, rank, 0, compare, .link = CD_LINK_MATHEMATICS, .param = 0,
                       .bad = rank != 1, .shape = rank != 1 ? CD_SHAPE_RATIO : CD_SHAPE_NONE);
        }
        cd_test_row("reference: %d", has_reference);
        expect_finding(judge,
                       has_reference ? "ranks 0 and 2 against rank 1 hold"
                                     : "rank 1 against ranks 0 and 2 (no reference; majority) hold",
                       "digest");
    }
}

/* A store may hold anything. Whatever the fields say, judging ends and touches nothing that is not
** there. */
TEST(judge, survives_garbage)
{
    (void)state;
    static const int64_t odd[] = {-1, 0, 1, 2, 3, 64, 1 << 25, INT64_MAX, INT64_MIN, INT64_MAX - 1};
    static const char *const texts[] = {NULL, "", "ddp.find_unused_parameters=true", "world",
                                        "hook.name=x"};
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int round = 0; round < 10; round++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        assert_ok(cd_judge_create(&(cd_judge_options){0}, &judge, &err), &err);
        for (uint64_t i = 0; i < 3000; i++) {
            cddp_event e = {.sequence = i,
                            .time_ns = cd_prng_below(&prng, 50),
                            .step = (uint32_t)cd_prng_below(&prng, 4)};
            e.kind = (uint16_t)cd_prng_below(&prng, CDDP_EV_COUNT + 1);
            e.rank = cd_prng_chance(&prng, 1, 50) ? UINT32_MAX - (uint32_t)cd_prng_below(&prng, 2)
                                                  : (uint32_t)cd_prng_below(&prng, 5);
            e.text = texts[cd_prng_below(&prng, 5)];
            for (size_t f = 0; f < CDDP_EVENT_FIELDS; f++)
                e.as.field[f] = cd_prng_chance(&prng, 3, 4) ? (int64_t)cd_prng_below(&prng, 4)
                                                            : odd[cd_prng_below(&prng, 10)];
            cd_judge_get_sink(judge)->event(cd_judge_get_sink(judge)->self, &e);
        }
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_true(cd_judge_finding_count(judge) > 0);
        cd_judge_destroy(judge);
    }
}

/* ---- merging ---- */

typedef struct order_check {
    uint64_t time_ns, sequence;
    uint32_t rank;
    size_t count;
} order_check;

static void check_order(void *self, const cddp_event *event)
{
    order_check *o = self;
    if (o->count++ > 0) {
        bool later =
            event->time_ns > o->time_ns ||
            (event->time_ns == o->time_ns &&
             (event->rank > o->rank || (event->rank == o->rank && event->sequence > o->sequence)));
        assert_true(later);
    }
    o->time_ns = event->time_ns;
    o->rank = event->rank;
    o->sequence = event->sequence;
}

TEST(merge, orders_by_time_rank_and_sequence)
{
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    cd_memory_sink traces[3];
    order_check o = {0};
    cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &o, check_order, NULL};
    for (uint32_t t = 0; t < 3; t++) {
        cd_memory_sink_init(&traces[t], NULL);
        for (uint64_t i = 0; i < 100; i++) {
            cddp_event e = {.time_ns = i / 3 * (t + 1),
                            .sequence = i,
                            .rank = 2 - t,
                            .kind = CDDP_EV_mark,
                            .text = "here"};
            traces[t].sink.event(traces[t].sink.self, &e);
        }
    }
    assert_ok(cd_trace_merge(&(cd_merge_input){traces, 3, NULL}, &sink, &err), &err);
    assert_int_equal(o.count, 300);
    for (uint32_t t = 0; t < 3; t++) cd_memory_sink_fini(&traces[t]);
}

/* ---- I-TRACE ---- */

/* A rank that reports something; of it `lacks` is left out. */
typedef struct trace_of {
    cd_judge *judge;
    int64_t lacks; /* CDDP_EV_…; -1: nothing */
} trace_of;

static void report(const trace_of *t, cddp_event e)
{
    if ((int64_t)e.kind != t->lacks) put(t->judge, e);
}
#define REPORT(t, kind_, words, ...)                  \
    report((t), (cddp_event){.kind = CDDP_EV_##kind_, \
                             .text = (words),         \
                             .as.kind_ = (cddp_event_##kind_){__VA_ARGS__}})

static void report_join(const trace_of *t)
{
    REPORT(t, join_notify, NULL, .active_ranks = 1);
    REPORT(t, join_notify, NULL, .active_ranks = 0);
    REPORT(t, join_end, NULL, .shadow_iterations = 1);
    REPORT(t, value, "w", .moment = CDDP_MOMENT_END, .param = -1);
}

static void report_unit(const trace_of *t)
{
    REPORT(t, unit, "layers.0", .unit = 0);
    REPORT(t, unit_pass, NULL, .unit = 0);
    REPORT(t, planned_storage, "layers.0", .bytes = 4);
    REPORT(t, unit_storage, NULL, .bytes = 4);
    REPORT(t, unit_read, NULL, .unit = 0);
}

static void report_shares(const trace_of *t)
{
    REPORT(t, group, "world", .group = 7, .members = 2);
    REPORT(t, collective_post, NULL, .group = 7, .op = CDDP_OP_ALLGATHER, .numel = -1,
           .bucket = -1);
    REPORT(t, collective_share, NULL, .group = 7, .peer = 1, .given = 1, .taken = 2);
    REPORT(t, collective_done, NULL, .group = 7);
}

/* An optimizer without state. */
static void report_step(const trace_of *t)
{
    REPORT(t, stop, NULL, .stop = 0);
    REPORT(t, optimizer_step, "sgd", .optimizer = 0);
    REPORT(t, optimizer_touch, NULL, .touched = 1);
    REPORT(t, compare, "", .link = CD_LINK_UPDATE);
    REPORT(t, value, "sgd", .what = CDDP_WHAT_OPTIMIZER, .moment = CDDP_MOMENT_AFTER_STEP);
}

/* Of a lossy hook no average is compared. */
static void report_delivered(const trace_of *t)
{
    REPORT(t, hook_call, "topk", .bucket = 0);
    REPORT(t, hook_done, "topk", .bucket = 0);
    REPORT(t, bucket_done, NULL, .bucket = 0);
    REPORT(t, bucket_slice, NULL, .param = 0, .digest = 5);
    REPORT(t, grad_final, NULL, .param = 0, .presence = CDDP_PRESENCE_VALUE, .digest = 5);
    REPORT(t, backward_begin, NULL, .sync = 1);
    REPORT(t, backward_end, NULL, .finalized = 1);
    REPORT(t, value, "w", .what = CDDP_WHAT_GRADIENT, .moment = CDDP_MOMENT_AFTER_BACKWARD,
           .digest = 5);
}

/* Gradients of units, which lie in no bucket. */
static void report_scattered(const trace_of *t)
{
    REPORT(t, group, "world", .group = 7, .members = 2);
    REPORT(t, collective_post, NULL, .group = 7, .op = CDDP_OP_REDUCE_SCATTER, .bucket = -1);
    REPORT(t, collective_done, NULL, .group = 7);
    REPORT(t, grad_final, NULL, .param = 0, .presence = CDDP_PRESENCE_VALUE);
    REPORT(t, backward_begin, NULL, .sync = 1);
    REPORT(t, backward_end, NULL, .finalized = 1);
    REPORT(t, compare, "", .link = CD_LINK_REDUCTION);
}

TEST(trace, an_event_that_others_show_is_missed_and_only_then)
{
    static const struct {
        void (*report)(const trace_of *t);
        int64_t lacks;
        const char *words; /* NULL: the others do not show it */
    } rows[] = {{report_join, CDDP_EV_join_end, "lacks every join_end"},
                {report_unit, CDDP_EV_unit_storage, "lacks every unit_storage"},
                {report_unit, CDDP_EV_planned_storage, NULL},
                {report_shares, CDDP_EV_collective_share, "lacks every collective_share"},
                {report_step, CDDP_EV_stop, "lacks every stop"},
                {report_step, CDDP_EV_optimizer_touch, "lacks every optimizer_touch"},
                {report_delivered, CDDP_EV_grad_final, "lacks every grad_final"},
                {report_delivered, CDDP_EV_bucket_done, "lacks every bucket_done"},
                {report_delivered, CDDP_EV_backward_end, "lacks every backward_end"},
                {report_delivered, CDDP_EV_bucket_slice, NULL},
                {report_scattered, CDDP_EV_collective_done, "lacks every collective_done"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int is_whole = 0; is_whole < 2; is_whole++) {
            const trace_of t = {make_judge_of("I-TRACE"), is_whole ? -1 : rows[i].lacks};
            cd_test_row("row %zu, %s", i, is_whole ? "whole" : "lacking");
            REPORT(&t, owed, "", .count = 0);
            REPORT(&t, wrap, NULL, .params = 1);
            REPORT(&t, param, "w", .param = 0);
            rows[i].report(&t);
            expect_finding(t.judge, is_whole ? NULL : rows[i].words, "no such event");
        }
    }
}

TEST_MAIN()
