/* SPDX-License-Identifier: Apache-2.0 */
/* Events become slices: what overlaps does not share a row, and what never ended says so. */
#include "cddp/backend.h"
#include "cddp/tensor.h"
#include "tests/support/test.h"
#include "verify/timeline/figure.h"
#include "verify/timeline/perfetto.h"
#include "verify/timeline/timeline.h"

#include <string.h>

typedef struct feed {
    cd_timeline timeline;
    uint64_t sequence;
} feed;

static void give(feed *f, uint32_t rank, uint64_t ns, cddp_event event)
{
    const cddp_trace_sink *sink = cd_timeline_sink(&f->timeline);
    event.rank = rank;
    event.time_ns = ns;
    event.sequence = f->sequence++;
    sink->event(sink->self, &event);
}

static void post(feed *f, uint32_t rank, uint64_t ns, int64_t sequence)
{
    give(f, rank, ns,
         (cddp_event){.kind = CDDP_EV_collective_post,
                      .as.collective_post = {.group = 5,
                                             .sequence = sequence,
                                             .op = CDDP_OP_ALLREDUCE,
                                             .dtype = CDDP_F32,
                                             .numel = 10,
                                             .bucket = 2}});
}

static void done(feed *f, uint32_t rank, uint64_t ns, int64_t sequence, cddp_status status)
{
    give(f, rank, ns,
         (cddp_event){.kind = CDDP_EV_collective_done,
                      .as.collective_done = {.group = 5, .sequence = sequence, .status = status}});
}

static void finish(feed *f)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_int_equal(cd_timeline_end(&f->timeline, CD_SLICES_MAX, &err), CDDP_OK);
}

TEST(timeline, what_overlaps_lies_in_rows_and_what_never_ended_says_so)
{
    feed f = {.sequence = 0};
    (void)state;
    cd_timeline_init(&f.timeline);
    give(&f, 1, 0, (cddp_event){.kind = CDDP_EV_group, .text = "world", .as.group.group = 5});
    post(&f, 1, 10, 0);
    post(&f, 1, 20, 1);
    done(&f, 1, 30, 0, CDDP_OK);
    post(&f, 1, 40, 2);
    done(&f, 1, 50, 1, CDDP_E_TIMEOUT);
    finish(&f);
    const cd_timeline *t = &f.timeline;
    assert_int_equal(t->slice_count, 3);
    assert_int_equal(t->rank_count, 2);
    assert_string_equal(t->slices[0].label, "allreduce #0");
    assert_int_equal(t->slices[0].bytes, 40);
    assert_true(t->slices[0].from_ns == 10 && t->slices[0].to_ns == 30);
    assert_int_equal(t->slices[0].end, CD_SLICE_DONE);
    assert_int_equal(t->slices[1].end, CD_SLICE_FAILED);
    assert_int_equal(t->slices[2].end, CD_SLICE_OPEN);
    assert_true(t->slices[0].row != t->slices[1].row && t->slices[2].row == t->slices[0].row);
    assert_string_equal(cd_timeline_group(t, 5), "world");
    assert_null(cd_timeline_group(t, 6));
    cd_timeline_fini(&f.timeline);
}

TEST(timeline, a_bucket_fills_and_then_travels)
{
    feed f = {.sequence = 0};
    (void)state;
    cd_timeline_init(&f.timeline);
    give(&f, 0, 1, (cddp_event){.kind = CDDP_EV_mark_ready, .as.mark_ready.bucket = 3});
    give(&f, 0, 2, (cddp_event){.kind = CDDP_EV_mark_ready, .as.mark_ready.bucket = 3});
    give(&f, 0, 5, (cddp_event){.kind = CDDP_EV_bucket_launch, .as.bucket_launch.bucket = 3});
    give(&f, 0, 9, (cddp_event){.kind = CDDP_EV_bucket_done, .as.bucket_done.bucket = 3});
    finish(&f);
    assert_int_equal(f.timeline.slice_count, 2);
    assert_string_equal(f.timeline.slices[0].label, "bucket 3 fills");
    assert_true(f.timeline.slices[0].from_ns == 1 && f.timeline.slices[0].to_ns == 5);
    assert_string_equal(f.timeline.slices[1].label, "bucket 3");
    assert_int_equal(f.timeline.slices[1].to_ns, 9);
    cd_timeline_fini(&f.timeline);
}

TEST(timeline, layouts_are_kept_once_and_events_of_findings_are_found)
{
    feed f = {.sequence = 0};
    (void)state;
    cd_timeline_init(&f.timeline);
    cd_timeline_look_for(&f.timeline, 1, 2);
    cd_timeline_look_for(&f.timeline, 1, 99);
    for (uint32_t rank = 0; rank < 2; rank++)
        for (int64_t slot = 0; slot < 2; slot++)
            give(&f, rank, 7,
                 (cddp_event){.kind = CDDP_EV_bucket_layout,
                              .as.bucket_layout = {.slot = slot, .param = slot, .numel = 4}});
    finish(&f);
    assert_int_equal(f.timeline.slot_count, 2);
    assert_int_equal(f.timeline.spots[0].at, 2);
    assert_true(f.timeline.spots[1].at == UINT64_MAX);
    cd_timeline_fini(&f.timeline);
}

TEST(timeline, beyond_the_limit_slices_are_counted)
{
    feed f = {.sequence = 0};
    (void)state;
    cd_timeline_init(&f.timeline);
    for (int64_t i = 0; i < CD_SLICES_MAX + 5; i++) {
        post(&f, 0, (uint64_t)i, i);
        done(&f, 0, (uint64_t)i, i, CDDP_OK);
    }
    finish(&f);
    assert_int_equal(f.timeline.slice_count, CD_SLICES_MAX);
    assert_int_equal(f.timeline.slices_left, 5);
    cd_timeline_fini(&f.timeline);
}

/* (steps) of one slice each, and as many right values as a page has no room for. */
static void give_steps(feed *f, uint32_t steps)
{
    for (uint32_t step = 0; step < steps; step++) {
        give(f, 0, step, (cddp_event){.kind = CDDP_EV_forward_begin, .step = step});
        give(f, 0, step, (cddp_event){.kind = CDDP_EV_forward_end, .step = step});
        for (int64_t param = 0; param < CD_CELLS_MAX / 8; param++)
            give(f, 0, step,
                 (cddp_event){.kind = CDDP_EV_compare, .step = step, .as.compare.param = param});
    }
}

TEST(timeline, what_is_near_the_steps_that_matter_is_kept)
{
    feed f = {.sequence = 0};
    cddp_error err = CDDP_ERROR_INIT;
    size_t near = 0;
    (void)state;
    cd_timeline_init(&f.timeline);
    cd_timeline_look_at(&f.timeline, 17);
    cd_timeline_look_at(&f.timeline, 17);
    give_steps(&f, 20);
    assert_int_equal(cd_timeline_end(&f.timeline, 5, &err), CDDP_OK);
    assert_int_equal(f.timeline.slice_count, 5);
    assert_int_equal(f.timeline.slices_left, 15);
    for (size_t i = 0; i < 5; i++) assert_int_equal(f.timeline.slices[i].step, 15 + i);
    for (size_t i = 0; i < f.timeline.cell_count; i++) near += f.timeline.cells[i].step == 17;
    assert_int_equal(near, CD_CELLS_MAX / 8);
    assert_int_equal(f.timeline.cell_count + f.timeline.cells_left, 20 * (CD_CELLS_MAX / 8));
    cd_timeline_fini(&f.timeline);
}

TEST(perfetto, names_are_quoted_and_flows_join_ranks)
{
    feed f = {.sequence = 0};
    cd_text text;
    (void)state;
    cd_timeline_init(&f.timeline);
    cd_text_init(&text, false);
    give(&f, 0, 0, (cddp_event){.kind = CDDP_EV_group, .text = "a \"group\"", .as.group.group = 5});
    for (uint32_t rank = 0; rank < 2; rank++) post(&f, rank, 3, 0);
    for (uint32_t rank = 0; rank < 2; rank++) done(&f, rank, 8, 0, CDDP_OK);
    finish(&f);
    cd_perfetto_print(&text, &f.timeline, "a title\n", false);
    assert_non_null(strstr(cd_text_get(&text), "\"title\":\"a title\\u000a\""));
    assert_non_null(strstr(cd_text_get(&text), "\"group\":\"a \\\"group\\\"\""));
    assert_non_null(strstr(cd_text_get(&text), "{\"ph\":\"s\",\"pid\":0"));
    assert_non_null(strstr(cd_text_get(&text), "{\"ph\":\"f\",\"pid\":1"));
    assert_non_null(strstr(cd_text_get(&text), "\"ts\":0.003,\"dur\":0.005"));
    cd_text_fini(&text);
    cd_timeline_fini(&f.timeline);
}

TEST(figure, it_shows_the_last_events_and_escapes_names)
{
    feed f = {.sequence = 0};
    cd_text text;
    (void)state;
    cd_timeline_init(&f.timeline);
    cd_text_init(&text, false);
    cd_timeline_look_for(&f.timeline, 0, 4);
    for (int64_t i = 0; i < 2; i++) {
        post(&f, 0, 3, i);
        done(&f, 0, 8, i, CDDP_OK);
    }
    post(&f, 0, 9, 2);
    finish(&f);
    cd_figure_print(&text, &(cd_figure){.timeline = &f.timeline,
                                        .title = "<one>",
                                        .headline = "a & b",
                                        .slices = 2});
    assert_non_null(strstr(cd_text_get(&text), "&lt;one&gt;"));
    assert_non_null(strstr(cd_text_get(&text), "<title>a &amp; b</title>"));
    assert_null(strstr(cd_text_get(&text), "<title>allreduce #0"));
    assert_non_null(strstr(cd_text_get(&text), "<title>allreduce #1"));
    assert_non_null(strstr(cd_text_get(&text), "class='open'"));
    assert_non_null(strstr(cd_text_get(&text), "class='spot'"));
    assert_non_null(strstr(cd_text_get(&text), "events 3 to 5"));
    cd_text_fini(&text);
    cd_timeline_fini(&f.timeline);
}

TEST(figure, it_shows_the_ranks_of_findings_and_no_label_lies_under_another_slice)
{
    feed f = {.sequence = 0};
    cd_text text;
    (void)state;
    cd_timeline_init(&f.timeline);
    cd_text_init(&text, false);
    cd_timeline_look_for(&f.timeline, 40, 0);
    /* more than there are rows for: the last row is shared, and all but one are covered */
    for (int64_t i = 1; i < 12; i++) post(&f, 40, 2, i);
    for (uint32_t rank = 0; rank < 64; rank++) post(&f, rank, 1, 0);
    finish(&f);
    cd_figure_print(&text, &(cd_figure){.timeline = &f.timeline, .title = "t", .headline = ""});
    assert_non_null(strstr(cd_text_get(&text), ">rank 40</text>"));
    assert_non_null(strstr(cd_text_get(&text), "16 of 64 ranks"));
    assert_non_null(strstr(cd_text_get(&text), ">allreduce #6</text>"));
    assert_non_null(strstr(cd_text_get(&text), "<title>allreduce #8</title>"));
    assert_null(strstr(cd_text_get(&text), ">allreduce #8</text>"));
    assert_null(strstr(cd_text_get(&text), ">rank 15</text>"));
    cd_text_fini(&text);
    cd_timeline_fini(&f.timeline);
}

TEST_MAIN()
