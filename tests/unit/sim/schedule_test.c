/* SPDX-License-Identifier: Apache-2.0 */
/* Choice strings: canonical, readable again, and refused with a position when malformed. */
#include "sim/schedule.h"
#include "core/base/prng.h"
#include "sim/chooser.h"
#include "tests/support/test.h"

#include <string.h>

TEST(schedule, prints_deviations_from_fifo_compactly)
{
    (void)state;
    static const struct {
        cd_deviation items[4];
        size_t count;
        const char *text;
    } cases[] = {
        {{{0, 0, 0}}, 0, "s1:"},
        {{{0, 1, 0}}, 1, "s1:1"},
        {{{16, 2, 0}, {18, 1, 0}, {19, 23, 0}, {20, 3, 0}}, 4, "s1:Q2B1(23)3"},
        {{{26, 9, 0}, {27, 10, 0}}, 2, "s1:BA9(10)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_deviation items[4];
        memcpy(items, cases[i].items, sizeof items);
        cd_schedule s = {.items = items, .count = cases[i].count, .capacity = 4};
        char text[64];
        assert_int_equal(cd_schedule_print(&s, text, sizeof text), strlen(cases[i].text));
        assert_string_equal(text, cases[i].text);
        char little[5];
        cd_schedule_print(&s, little, sizeof little);
        assert_int_equal(strlen(little), strlen(cases[i].text) < 4 ? strlen(cases[i].text) : 4);
    }
}

TEST(schedule, what_was_printed_is_read_back)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int round = 0; round < 500; round++) {
        cd_deviation items[20];
        cd_schedule s = {.items = items, .capacity = 20};
        size_t wanted = (size_t)cd_prng_below(&prng, 21);
        while (s.count < wanted) {
            for (uint64_t gap = cd_prng_below(&prng, cd_prng_chance(&prng, 1, 4) ? 2000 : 3);
                 gap > 0; gap--)
                cd_schedule_push(&s, 0, 0);
            cd_schedule_push(
                &s, 1 + (uint32_t)cd_prng_below(&prng, cd_prng_chance(&prng, 1, 4) ? 5000 : 12), 0);
        }
        char text[512];
        assert_true(cd_schedule_print(&s, text, sizeof text) < sizeof text);
        const char *at = NULL;
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_schedule_open(text, &at, &err), &err);
        cd_deviation d = {.number = UINT64_MAX};
        bool found = true;
        for (size_t i = 0; i <= s.count; i++) {
            assert_ok(cd_schedule_read(text, &at, d.number, &d, &found, &err), &err);
            assert_int_equal(found, i < s.count);
            if (found) assert_true(d.number == items[i].number && d.value == items[i].value);
        }
    }
}

TEST(schedule, deviations_beyond_the_capacity_are_reported)
{
    (void)state;
    cd_deviation items[2];
    cd_schedule s = {.items = items, .capacity = 2};
    for (int i = 0; i < 3; i++) cd_schedule_push(&s, 1, 0);
    assert_true(s.overflowed);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.choice_count, 3);
}

TEST(schedule, malformed_strings_are_refused_with_the_position)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "starts with 's1:'"},
        {"s2:1", "not with 's2:1'"},
        {"s1:0", "position 3: '0' where an option"},
        {"s1:A1", "position 3: 'A'"},
        {"s1:Q", "ends at position 4"},
        {"s1:(12", "ends at position 6"},
        {"s1:(9)", "10 or more"},
        {"s1:(012)", "10 or more"},
        {"s1:()", "position 4"},
        {"s1:1 2", "position 4: ' '"},
        {"s1:q1", "position 3: 'q'"},
        {"s1:(99999999999)", "no choice has that many"},
        {"s1:(4294967295)", "that many"},
        {"s1:\xff", "position 3: '?'"},
        {"s1:ZZZZZZZZZZZZZZZ1", "a gap that long"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_replay_chooser replay;
        cd_chooser chooser;
        cddp_error err = CDDP_ERROR_INIT;
        cd_test_row("%s", cases[i].text);
        cddp_status status = cd_chooser_replay(&replay, cases[i].text, &chooser, &err);
        assert_true(status == CDDP_E_CONFIG || status == CDDP_E_LIMIT);
        assert_fails(status, status, &err, cases[i].words);
    }
    cddp_error err = CDDP_ERROR_INIT;
    cd_replay_chooser replay;
    cd_chooser chooser;
    assert_fails(cd_chooser_replay(&replay, NULL, &chooser, &err), CDDP_E_CONFIG, &err,
                 "no schedule");
}

/* A string that is accepted is the canonical one: printing what was read gives it back. */
TEST(schedule, random_bytes_are_refused_or_canonical)
{
    (void)state;
    static const char alphabet[] = "s1:ABQZ0129()5 \n";
    cd_prng prng = cd_prng_seed(cd_test_seed() + 1);
    uint32_t accepted = 0;
    for (int round = 0; round < 200000; round++) {
        char text[16] = "s1:";
        size_t length = 3 + (size_t)cd_prng_below(&prng, 9);
        for (size_t i = 3; i < length; i++)
            text[i] = alphabet[cd_prng_below(&prng, sizeof alphabet - 1)];
        text[length] = '\0';
        const char *at = NULL;
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_schedule_open(text, &at, &err), &err);
        cd_deviation items[16], d = {.number = UINT64_MAX};
        cd_schedule s = {.items = items, .capacity = 16};
        bool found = true;
        cddp_status status = CDDP_OK;
        while (status == CDDP_OK && found) {
            status = cd_schedule_read(text, &at, d.number, &d, &found, &err);
            if (status == CDDP_OK && found) items[s.count++] = d;
        }
        if (status != CDDP_OK) continue;
        char again[64];
        cd_schedule_print(&s, again, sizeof again);
        assert_string_equal(again, text);
        accepted++;
    }
    assert_true(accepted > 100);
}

TEST_MAIN()
