/* SPDX-License-Identifier: Apache-2.0 */
/* What the recorder keeps, and gives back. */
#include "cli/recorder.h"

#include "core/trace/event.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

static void push(cd_recorder *r, const cddp_event *event) { r->sink.event(r->sink.self, event); }

static void assert_same(const cddp_event *a, const cddp_event *b, const char *text)
{
    assert_int_equal(a->time_ns, b->time_ns);
    assert_int_equal(a->sequence, b->sequence);
    assert_int_equal(a->rank, b->rank);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->micro_step, b->micro_step);
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->level, b->level);
    assert_memory_equal(a->as.field, b->as.field, sizeof a->as.field);
    if (text == NULL)
        assert_null(a->text);
    else
        assert_string_equal(a->text, text);
}

static cddp_event make(uint16_t kind, int64_t value)
{
    cddp_event e = {.time_ns = (uint64_t)value,
                    .sequence = UINT64_MAX - kind,
                    .rank = UINT32_MAX - kind,
                    .step = kind,
                    .micro_step = UINT32_MAX,
                    .kind = kind,
                    .level = UINT16_MAX};
    for (size_t i = 0; i < cd_event_field_counts[kind]; i++)
        e.as.field[i] = i % 2 == 0 ? value : (int64_t)(0 - (uint64_t)value - i);
    return e;
}

TEST(recorder, an_event_of_every_kind_comes_back_as_it_was)
{
    static const int64_t values[] = {0, 1, -1, 127, 128, INT32_MIN, INT64_MAX, INT64_MIN + 16};
    cd_recorder r;
    size_t place = 0;
    cddp_event read;
    cd_recorder_init(&r);
    assert_false(cd_recorder_read(&r, &place, &read));
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        for (uint16_t kind = 0; kind < CDDP_EV_COUNT; kind++) {
            const cddp_event e = make(kind, values[v]);
            push(&r, &e);
        }
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        for (uint16_t kind = 0; kind < CDDP_EV_COUNT; kind++) {
            const cddp_event e = make(kind, values[v]);
            assert_true(cd_recorder_read(&r, &place, &read));
            assert_same(&read, &e, NULL);
        }
    assert_false(cd_recorder_read(&r, &place, &read));
    cd_recorder_fini(&r);
}

/* Whoever emits an event may write its text where that of another event lay. */
TEST(recorder, a_text_is_what_it_was_when_the_event_came)
{
    static const char *const texts[] = {"weight", "weight", "bias", "", "weight", NULL};
    char here[16];
    cd_recorder r;
    size_t place = 0;
    cddp_event read, e = make(CDDP_EV_mark, 3);
    cd_recorder_init(&r);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i] != NULL) snprintf(here, sizeof here, "%s", texts[i]);
        e.text = texts[i] != NULL ? here : NULL;
        push(&r, &e);
    }
    memset(here, 'x', sizeof here);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_true(cd_recorder_read(&r, &place, &read));
        assert_same(&read, &e, texts[i]);
    }
    assert_false(cd_recorder_read(&r, &place, &read));
    cd_recorder_fini(&r);
}

TEST(recorder, what_comes_after_the_limit_is_not_kept)
{
    cd_recorder r;
    size_t place = 0, count = 0;
    cddp_event read;
    const cddp_event e = make(CDDP_EV_mark, 1);
    cd_recorder_init(&r);
    for (size_t i = 0; i < CD_RECORDER_EVENTS_MAX + 3; i++) push(&r, &e);
    while (cd_recorder_read(&r, &place, &read)) count++;
    assert_int_equal(count, CD_RECORDER_EVENTS_MAX);
    cd_recorder_fini(&r);
}

TEST_MAIN()
