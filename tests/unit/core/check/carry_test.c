/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets followed through their collectives, judged by I-CONTENT: stories of two backwards, as
** events. */
#include "core/check/check.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"
#include "core/base/hash.h"
#include "tests/support/test.h"

#include <string.h>

#define GROUP 7
#define MANY 700

typedef enum mistake {
    NOTHING,
    NOT_CARRIED,       /* nobody posts the bucket */
    PACKED_OTHERWISE,  /* other bytes than are launched */
    POSTED_OTHERWISE,  /* other bytes than were launched */
    TAKEN_EARLY,       /* its result is taken before its (last) operation has ended */
    RESULT_REPLACED,   /* what is taken is not what arrived */
    WRITTEN_OTHERWISE, /* a gradient is not its slice of the result */
    /* no mistake: the first backward is left, and what it posted ends in the second */
    LEFT,
} mistake;

typedef struct story {
    const char *name;
    int64_t buckets, posts; /* of each bucket */
    bool has_digests, has_hook;
    mistake mistake; /* of bucket `at` in the second backward */
    int64_t at;
    const char *words; /* of the finding's title; NULL: nothing is wrong */
} story;

static const story stories[] = {
    /* clang-format off */
    {"two buckets", 2, 1, true, false, NOTHING, 0, NULL},
    {"more under way than anybody would keep", MANY, 1, true, false, NOTHING, 0, NULL},
    {"of so many the first is taken early", MANY, 1, true, false, TAKEN_EARLY, 0, "bucket 0 is taken for reduced before its collective has ended"},
    {"of so many the last is taken early", MANY, 1, true, false, TAKEN_EARLY, MANY - 1, "bucket 699 is taken for reduced before its collective has ended"},
    {"of so many one is not carried", MANY, 1, true, false, NOT_CARRIED, 5, "bucket 5 is said to be reduced, but no collective carried it"},
    {"of so many one changes before it is posted", MANY, 1, true, false, POSTED_OTHERWISE, 6, "bucket 6 is not posted as it was launched"},
    {"of so many one is not what arrived", MANY, 1, true, false, RESULT_REPLACED, 7, "bucket 7 is not what its collective delivered"},
    {"of so many one changes before it is launched", MANY, 1, true, false, PACKED_OTHERWISE, 8, "bucket 8 is not launched as it was packed"},
    {"of so many one gradient is written otherwise", MANY, 1, true, false, WRITTEN_OTHERWISE, 9, "the gradient of parameter 19 is not what bucket 9 delivered"},
    {"a backward is left", MANY, 1, true, false, LEFT, 0, NULL},
    {"rows, in three operations", 3, 3, false, false, NOTHING, 0, NULL},
    {"rows, and a backward is left", 3, 3, false, false, LEFT, 0, NULL},
    {"rows that are not carried", 3, 3, false, false, NOT_CARRIED, 1, "bucket 1 is said to be reduced, but no collective carried it"},
    {"rows that are taken early", 3, 3, false, false, TAKEN_EARLY, 2, "bucket 2 is taken for reduced before its collective has ended"},
    {"what a hook does is its own business", 3, 1, true, true, POSTED_OTHERWISE, 1, NULL},
    {"a hook is given what was packed", 3, 1, true, true, PACKED_OTHERWISE, 1, "bucket 1 is not launched as it was packed"},
    {"what a hook returned is written back", 3, 1, true, true, WRITTEN_OTHERWISE, 1, "the gradient of parameter 3 is not what bucket 1 delivered"},
    {"a hook that sends later", 3, 1, true, true, TAKEN_EARLY, 1, NULL},
    {"a hook that sends nothing", 3, 1, true, true, NOT_CARRIED, 1, NULL},
    /* clang-format on */
};

typedef struct reporter {
    const cddp_trace_sink *sink;
    const story *story;
    uint64_t sequence;
    uint32_t step;
    int64_t posted; /* in the group */
} reporter;

static void report(reporter *t, const cddp_event *event)
{
    cddp_event e = *event;
    e.sequence = t->sequence++;
    e.step = t->step;
    t->sink->event(t->sink->self, &e);
}
#define TELL(t, name, words, ...) \
    report((t), &(cddp_event){.kind = CDDP_EV_##name, .text = (words), .as.name = {__VA_ARGS__}})

static bool is_struck(const reporter *t, int64_t bucket, mistake m)
{
    return t->step == 1 && t->story->mistake == m && t->story->at == bucket;
}

static int64_t digest(const reporter *t, int64_t about)
{
    return t->story->has_digests ? 1000 * (int64_t)(t->step + 1) + about : 0;
}

/* Two variables: 2 · bucket and the next. Returns the digests of its slices, folded. */
static int64_t report_packed(reporter *t, int64_t bucket)
{
    uint64_t folded = 0;
    for (int64_t slot = 1; slot >= 0; slot--)
        TELL(t, mark_ready, NULL, .param = 2 * bucket + slot, .bucket = bucket, .slot = slot,
             .digest = digest(t, 3 * MANY + 2 * bucket + slot));
    for (int64_t slot = 0; slot < 2; slot++)
        folded = cd_hash_mix(folded, (uint64_t)digest(t, 3 * MANY + 2 * bucket + slot));
    if (!t->story->has_digests) return 0;
    return (int64_t)folded + is_struck(t, bucket, PACKED_OTHERWISE);
}

static void report_finals(reporter *t, int64_t bucket)
{
    for (int64_t slot = 0; slot < 2; slot++) {
        const int64_t slice = digest(t, 5 * MANY + slot);
        TELL(t, grad_final, NULL, .param = 2 * bucket + slot, .bucket = bucket, .slice = slice,
             .digest = slice + (slot == 1 && is_struck(t, bucket, WRITTEN_OTHERWISE)));
    }
}

static void report_launch(reporter *t, int64_t bucket)
{
    const int64_t slices = report_packed(t, bucket);
    const int64_t launched = digest(t, bucket),
                  posted = launched + is_struck(t, bucket, POSTED_OTHERWISE);
    TELL(t, bucket_launch, NULL, .bucket = bucket, .numel = 4, .dtype = CDDP_F32,
         .digest = launched, .group = GROUP, .slices = slices);
    if (t->story->has_hook)
        TELL(t, hook_call, "own", .bucket = bucket, .bytes = 16, .dtype = CDDP_F32);
    TELL(t, collective_post, NULL, .group = GROUP, .sequence = t->posted++, .op = CDDP_OP_ALLREDUCE,
         .root = -1, .bucket = -1);
    for (int64_t i = 0; i < t->story->posts && !is_struck(t, bucket, NOT_CARRIED); i++)
        TELL(t, collective_post, NULL, .group = GROUP, .sequence = t->posted++,
             .op = CDDP_OP_ALLREDUCE, .root = -1, .dtype = CDDP_F32, .numel = 4, .digest = posted,
             .bucket = bucket);
}

static void report_arrival(reporter *t, int64_t bucket)
{
    const int64_t arrived = digest(t, MANY + bucket);
    TELL(t, bucket_done, NULL, .bucket = bucket, .dtype = CDDP_F32,
         .digest = arrived + is_struck(t, bucket, RESULT_REPLACED));
    report_finals(t, bucket);
}

/* Posts of bucket b end as (first of b) …; the second backward of a story that was left hears of
** the first one's, too. */
static void report_backward(reporter *t)
{
    const story *s = t->story;
    const int64_t first = t->step == 1 && s->mistake == LEFT ? 0 : t->posted;
    int64_t bucket = 0, left = s->posts;
    for (int64_t b = 0; b < s->buckets; b++) report_launch(t, b);
    if (t->step == 0 && s->mistake == LEFT) return;
    for (int64_t k = first; first == 0 && t->step == 1 && k < t->posted / 2; k++)
        TELL(t, collective_done, NULL, .group = GROUP, .sequence = k, .digest = 1);
    for (int64_t k = first == 0 && t->step == 1 ? t->posted / 2 : first; k < t->posted; k++) {
        if (left == s->posts) { /* the program's own */
            left = 0;
            TELL(t, collective_done, NULL, .group = GROUP, .sequence = k);
            if (!is_struck(t, bucket, NOT_CARRIED)) continue;
            left = s->posts;
        } else {
            left++;
            if (left == s->posts && is_struck(t, bucket, TAKEN_EARLY)) report_arrival(t, bucket);
            TELL(t, collective_done, NULL, .group = GROUP, .sequence = k,
                 .digest = digest(t, MANY + bucket));
        }
        if (left < s->posts) continue;
        if (!is_struck(t, bucket, TAKEN_EARLY)) report_arrival(t, bucket);
        bucket++;
    }
    assert_int_equal(bucket, s->buckets);
}

static void report_story(reporter *t)
{
    TELL(t, group, "world", .group = GROUP, .members = 2);
    for (t->step = 0; t->step < 2; t->step++) report_backward(t);
}

TEST(carry, a_bucket_is_followed_from_launch_to_result)
{
    (void)state;
    const cddp_check *check = cd_check_find("I-CONTENT");
    for (size_t i = 0; i < sizeof stories / sizeof stories[0]; i++) {
        const story *s = &stories[i];
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        cd_test_row("%s", s->name);
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = &check, .check_count = 1}, &judge,
                                  &err),
                  &err);
        reporter t = {.sink = cd_judge_get_sink(judge), .story = s};
        report_story(&t);
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_finding_count(judge), s->words != NULL);
        if (s->words != NULL)
            assert_non_null(strstr(cd_judge_get_finding(judge, 0)->title, s->words));
        cd_judge_destroy(judge);
    }
}

TEST_MAIN()
