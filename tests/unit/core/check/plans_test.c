/* SPDX-License-Identifier: Apache-2.0 */
/* Bucket plans, judged by I-META: stories of four or six parameters, as events. */
#include "core/check/check.h"

#include "cddp/tensor.h"
#include "core/check/writer.h"
#include "tests/support/option.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#define GROUP 7
#define CAP_40 "3.814697265625e-05" /* MiB */
#define CAP_80 "7.62939453125e-05"
#define CAP_200 "0.00019073486328125"
#define CAP_400 "0.0003814697265625"

typedef enum form {
    TENS,        /* four of 10 f32 */
    SPARSE_TENS, /* the same; the second expects sparse gradients */
    TWO_DTYPES,  /* f32[50] and f64[25], three of each in turn */
} form;

/* A layout is written as "cap: parameters, cap: parameters"; -1 is no cap. */
typedef struct story {
    const char *name;
    form form;
    const char *options[4]; /* up to the first NULL */
    const char *first;
    const char *arrival; /* what is unused stands in brackets, in the middle or not */
    const char *second;  /* NULL: not rebuilt */
    const char *third;
    const char *words; /* of the finding's title; NULL: nothing is wrong */
    int64_t group_rank;
} story;

#define CAP(mib) "ddp.bucket_cap_mb=" mib
#define LIST "ddp.bucket_cap_mb=0", "ddp.bucket_cap_mb_list=" CAP_40 "," CAP_80
#define SEARCHES "ddp.find_unused_parameters=true"

static const story stories[] = {
    {"one bucket at first, then as they arrive",
     TENS,
     {CAP(CAP_80)},
     "-1: 0 1 2 3",
     "3 2 1 0",
     "80: 3 2, 80: 1 0",
     NULL,
     NULL,
     0},
    {"closed too late",
     TENS,
     {CAP(CAP_80)},
     "-1: 0 1 2 3",
     "3 2 1 0",
     "80: 3 2 1, 80: 0",
     NULL,
     "rank 0: layout 1 is not what its bucket caps and the order of arrival give: parameter 1",
     0},
    {"another cap is reported",
     TENS,
     {CAP(CAP_80)},
     "-1: 0 1 2 3",
     "3 2 1 0",
     "80: 3 2, 40: 1 0",
     NULL,
     "rank 0: layout 1",
     0},
    {"the first layout obeys a cap",
     TENS,
     {CAP(CAP_80)},
     "80: 2 3, 80: 0 1",
     "3 2 1 0",
     "80: 3 2, 80: 1 0",
     NULL,
     "rank 0: layout 0 is not what its bucket caps and the order of its parameters give",
     0},
    {"the order of registration instead",
     TENS,
     {CAP(CAP_80)},
     "-1: 0 1 2 3",
     "2 3 0 1",
     "80: 3 2, 80: 1 0",
     NULL,
     "rank 0: layout 1",
     0},
    {"another rank's arrival, of a rank that does not lead",
     TENS,
     {CAP(CAP_80)},
     "-1: 0 1 2 3",
     "2 3 0 1",
     "80: 3 2, 80: 1 0",
     NULL,
     NULL,
     1},
    {"nothing known of the caps",
     TENS,
     {NULL},
     "-1: 0 1 2 3",
     "2 3 0 1",
     "80: 3 2, 80: 1 0",
     NULL,
     NULL,
     0},
    {"one MiB, then more",
     TENS,
     {"ddp.bucket_cap_mb=0", "ddp.first_bucket_bytes=40"},
     "-1: 0 1 2 3",
     "3 2 1 0",
     "40: 3, 26214400: 2 1 0",
     NULL,
     NULL,
     0},
    {"a list of caps",
     TENS,
     {LIST},
     "80: 3, 80: 1 2, 40: 0",
     "3 2 1 0",
     "40: 3, 80: 2 1, 80: 0",
     NULL,
     NULL,
     0},
    {"the list does not advance",
     TENS,
     {LIST},
     "80: 3, 80: 1 2, 40: 0",
     "3 2 1 0",
     "40: 3, 40: 2, 40: 1, 40: 0",
     NULL,
     "rank 0: layout 1",
     0},
    {"the small cap last",
     TENS,
     {LIST, "ddp.set_last_bucket_cap=true"},
     "80: 3, 80: 1 2, 40: 0",
     "3 2 1 0",
     "80: 3, 80: 1 2, 40: 0",
     NULL,
     NULL,
     0},
    {"who searches does not rebuild",
     TENS,
     {CAP(CAP_80), SEARCHES},
     "80: 2 3, 80: 0 1",
     "3 2 1 0",
     NULL,
     NULL,
     NULL,
     0},
    {"who searches rebuilds",
     TENS,
     {CAP(CAP_80), SEARCHES},
     "80: 2 3, 80: 0 1",
     "3 2 1 0",
     "80: 3 2, 80: 1 0",
     NULL,
     "although unused parameters are searched for",
     0},
    {"not rebuilt",
     TENS,
     {CAP(CAP_80)},
     "-1: 0 1 2 3",
     "3 2 1 0",
     NULL,
     NULL,
     "rank 0: buckets are not rebuilt",
     0},
    {"rebuilt again",
     TENS,
     {CAP(CAP_80)},
     "-1: 0 1 2 3",
     "3 2 1 0",
     "80: 3 2, 80: 1 0",
     "80: 3 2, 80: 1 0",
     "rank 0: buckets are rebuilt again",
     0},
    {"not all arrived", TENS, {CAP(CAP_80)}, "-1: 0 1 2 3", "3 2 1", NULL, NULL, NULL, 0},
    {"a sparse one stands alone",
     SPARSE_TENS,
     {CAP(CAP_80), SEARCHES},
     "80: 3, 0: 1, 80: 0 2",
     "3 2 1 0",
     NULL,
     NULL,
     NULL,
     0},
    {"a sparse one among others",
     SPARSE_TENS,
     {CAP(CAP_80), SEARCHES},
     "80: 2 3, 80: 0 1",
     "3 2 1 0",
     NULL,
     NULL,
     "rank 0: layout 0",
     0},
    {"each dtype for itself",
     TWO_DTYPES,
     {"ddp.bucket_cap_mb=0", "ddp.bucket_cap_mb_list=" CAP_200 "," CAP_400},
     "400: 3 5, 400: 2 4, 200: 1, 200: 0",
     "5 4 3 2 1 0",
     "200: 5, 200: 4, 400: 3 1, 400: 2 0",
     NULL,
     NULL,
     0},
    {"dtypes take turns",
     TWO_DTYPES,
     {"ddp.bucket_cap_mb=0", "ddp.bucket_cap_mb_list=" CAP_200 "," CAP_400},
     "400: 4 5, 400: 2 3, 400: 1, 200: 0",
     "5 4 3 2 1 0",
     "200: 5, 200: 4, 400: 3 1, 400: 2 0",
     NULL,
     "rank 0: layout 0",
     0},
    {"a static graph, its unused last",
     TENS,
     {CAP(CAP_80), SEARCHES, "ddp.static_graph=true"},
     "-1: 0 1 2 3",
     "(2) 3 1 0",
     "80: 3 1, 80: 0 2",
     NULL,
     NULL,
     0},
    {"a static graph, its unused first",
     TENS,
     {CAP(CAP_80), "ddp.static_graph=true"},
     "-1: 0 1 2 3",
     "(2) 3 1 0",
     "80: 2 3, 80: 1 0",
     NULL,
     "rank 0: layout 1",
     0},
    {"a static graph that is not rebuilt",
     TENS,
     {CAP(CAP_80), "ddp.static_graph=true"},
     "-1: 0 1 2 3",
     "(2) 3 1 0",
     NULL,
     NULL,
     "rank 0: buckets are not rebuilt",
     0},
};

typedef struct reporter {
    const cddp_trace_sink *sink;
    uint64_t sequence;
} reporter;

static void report(reporter *t, const cddp_event *event)
{
    cddp_event e = *event;
    e.sequence = t->sequence++;
    t->sink->event(t->sink->self, &e);
}
#define TELL(t, name, words, ...) \
    report((t), &(cddp_event){.kind = CDDP_EV_##name, .text = (words), .as.name = {__VA_ARGS__}})

static int64_t param_count(const story *s) { return s->form == TWO_DTYPES ? 6 : 4; }

static void report_module(reporter *t, const story *s)
{
    TELL(t, group, "world", .group = GROUP, .members = 2, .group_rank = s->group_rank);
    for (size_t i = 0; i < 4 && s->options[i] != NULL; i++) {
        cd_test_options made;
        cd_test_options_init(&made, s->options[i]);
        for (size_t k = 0; k < made.count; k++) report(t, &made.events[k]);
    }
    for (int64_t p = 0; p < param_count(s); p++) {
        const bool is_f64 = s->form == TWO_DTYPES && p % 2 == 1;
        TELL(t, param, NULL, .param = p, .ordinal = p,
             .numel = s->form != TWO_DTYPES ? 10
                      : is_f64              ? 25
                                            : 50,
             .dtype = is_f64 ? CDDP_F64 : CDDP_F32, .requires_grad = 1,
             .sparse = s->form == SPARSE_TENS && p == 1);
    }
}

static void report_layout(reporter *t, const char *layout, int64_t generation)
{
    int64_t bucket = 0, slot = 0, limit = 0;
    for (const char *at = layout; *at != '\0';) {
        char *end;
        const long long number = strtoll(at, &end, 10);
        assert_true(end > at);
        if (*end == ':') {
            limit = number;
            slot = 0;
            end++;
        } else {
            TELL(t, bucket_layout, NULL, .generation = generation, .bucket = bucket, .slot = slot++,
                 .param = number, .limit = limit);
        }
        if (*end == ',') {
            bucket++;
            end++;
        }
        at = end;
    }
}

static void report_forward(reporter *t, const char *layout, int64_t generation)
{
    TELL(t, forward_begin, NULL, .sync = 1, .grad_mode = 1);
    if (layout != NULL) {
        TELL(t, rebuild, NULL, .generation = generation);
        report_layout(t, layout, generation);
    }
    TELL(t, forward_end, NULL, .unused = -1, .prepared = 1);
}

static void report_backward(reporter *t, const char *arrival)
{
    for (const char *at = arrival; *at != '\0';) {
        const bool is_unused = *at == '(';
        char *end;
        const long long param = strtoll(at + is_unused, &end, 10);
        assert_true(end > at);
        TELL(t, mark_ready, NULL, .param = param, .unused = is_unused, .factor = 2);
        at = end + strspn(end, ") ");
    }
    TELL(t, used_local, NULL, .used = 1);
    TELL(t, backward_end, NULL, .finalized = 1);
}

static void report_story(reporter *t, const story *s)
{
    bool is_static = false;
    for (size_t i = 0; i < 4 && s->options[i] != NULL; i++)
        is_static |= strcmp(s->options[i], "ddp.static_graph=true") == 0;
    report_module(t, s);
    report_layout(t, s->first, 0);
    TELL(t, wrap, NULL, .params = param_count(s), .group = GROUP);
    if (is_static) {
        report_forward(t, NULL, 0);
        report_backward(t, "0 1 (2) 3");
    }
    report_forward(t, NULL, 0);
    report_backward(t, s->arrival);
    report_forward(t, s->second, 1);
    if (s->third == NULL) return;
    report_backward(t, s->arrival);
    report_forward(t, s->third, 2);
}

TEST(plans, a_layout_is_what_caps_and_arrival_give)
{
    (void)state;
    const cddp_check *check = cd_check_find("I-META");
    for (size_t i = 0; i < sizeof stories / sizeof stories[0]; i++) {
        const story *s = &stories[i];
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        cd_test_row("%s", s->name);
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = &check, .check_count = 1}, &judge,
                                  &err),
                  &err);
        reporter t = {.sink = cd_judge_get_sink(judge)};
        report_story(&t, s);
        assert_ok(cd_judge_end(judge, &err), &err);
        if (s->words == NULL) {
            assert_int_equal(cd_judge_finding_count(judge), 0);
        } else {
            assert_int_equal(cd_judge_finding_count(judge), 1);
            assert_non_null(strstr(cd_judge_get_finding(judge, 0)->title, s->words));
            assert_int_equal(cd_judge_get_finding(judge, 0)->rank, 0);
        }
        cd_judge_destroy(judge);
    }
}

static cddp_status judge_story(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    const cddp_check *check = cd_check_find("I-META");
    cd_judge *judge = NULL;
    cddp_status status = cd_judge_create(&(cd_judge_options){.checks = &check,
                                                             .check_count = 1,
                                                             .allocator = allocator},
                                         &judge, err);
    if (status == CDDP_OK) {
        reporter t = {.sink = cd_judge_get_sink(judge)};
        report_story(&t, argument);
        status = cd_judge_end(judge, err);
    }
    cd_judge_destroy(judge);
    return status;
}

TEST(plans, memory_that_runs_out_is_reported)
{
    (void)state;
    for (size_t i = 0; i < sizeof stories / sizeof stories[0]; i++) {
        story s = stories[i];
        cd_test_row("%s", s.name);
        assert_true(cd_test_oom_loop(judge_story, &s) > 8);
    }
}

TEST_MAIN()
