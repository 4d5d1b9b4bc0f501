/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of base that are a page each: bitset, hash, log, names, pairs, version. */
#include "cddp/cddp.h"
#include "core/base/text.h"
#include "core/base/bitset.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/pairs.h"
#include "core/base/rank_list.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

TEST(bitset, bits_are_independent_across_words)
{
    uint64_t set[CD_BITSET_WORDS(200)];
    assert_int_equal(sizeof set, 32);
    cd_bitset_clear(set, 200);
    static const size_t bits[] = {0, 63, 64, 127, 128, 199};
    for (size_t i = 0; i < 6; i++) cd_bitset_add(set, bits[i]);
    for (size_t b = 0, next = 0; b < 200; b++) {
        bool wanted = next < 6 && bits[next] == b;
        assert_int_equal(cd_bitset_has(set, b), wanted);
        next += wanted;
    }
    cd_bitset_remove(set, 64);
    assert_false(cd_bitset_has(set, 64));
    assert_true(cd_bitset_has(set, 63));
}

/* Published XXH3 values: stores and schedules written on one machine are read on another. */
TEST(hash, digests_are_the_published_ones)
{
    assert_true(cd_hash64("", 0, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(cd_hash64("a", 1, 0) == UINT64_C(0xe6c632b61e964e1f));
    assert_true(cd_hash64("abc", 3, 0) == UINT64_C(0x78af5f94892f3950));
    assert_true(cd_hash_text(NULL) == cd_hash_text(""));
    assert_true(cd_hash_text("abc") == cd_hash64("abc", 3, 0));
    assert_true(cd_hash64("abc", 3, 1) != cd_hash64("abc", 3, 0));
}

TEST(hash, mixing_depends_on_order_and_never_stalls_at_zero)
{
    assert_true(cd_hash_mix(cd_hash_mix(0, 1), 2) != cd_hash_mix(cd_hash_mix(0, 2), 1));
    assert_true(cd_hash_mix(cd_hash_mix(1, 0), 0) != cd_hash_mix(1, 0));
    uint64_t seen[1000];
    for (uint64_t i = 0; i < 1000; i++) {
        seen[i] = cd_hash_mix(12345, i);
        for (uint64_t k = 0; k < i; k++) assert_true(seen[k] != seen[i]);
    }
}

static void append(void *context, const char *line, size_t length)
{
    strncat(context, line, length);
}

TEST(log, a_line_has_its_columns_and_ends)
{
    char text[2048] = "";
    cd_log log = {.write = append, .context = text, .level = CD_LOG_INFO, .component = "ddp"};
    cd_log_write(&log, CD_LOG_INFO, (cd_log_place){.time_ns = 1234567, .rank = 2, .step = -1},
                 "bucket %d launched", 3);
    assert_string_equal(text, "        1234.567    2     - ddp      info  bucket 3 launched\n");
    cd_log_write(&log, CD_LOG_DEBUG, (cd_log_place){0}, "dropped");
    cd_log_write(NULL, CD_LOG_ERROR, (cd_log_place){0}, "nobody listens");
    assert_null(strstr(text, "dropped"));
}

TEST(log, a_long_message_is_cut_and_still_ends_the_line)
{
    char text[4096] = "", message[3000];
    memset(message, 'y', sizeof message - 1);
    message[sizeof message - 1] = '\0';
    cd_log log = {.write = append, .context = text, .level = CD_LOG_DEBUG};
    cd_log_write(&log, CD_LOG_ERROR, (cd_log_place){.rank = -1, .step = 4}, "%s", message);
    assert_true(strlen(text) <= 1024);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

TEST(log, levels_are_read_per_component)
{
    static const struct {
        const char *spec, *component;
        bool well_formed;
        cd_log_level wanted;
    } cases[] = {
        {"debug", "sim", true, CD_LOG_DEBUG},
        {"ddp:debug,sim:info", "sim", true, CD_LOG_INFO},
        {"warn,ddp:debug", "ddp", true, CD_LOG_DEBUG},
        {"ddp:debug", "dd", true, CD_LOG_ERROR},
        {"", "sim", true, CD_LOG_ERROR},
        {"ddp:loud", "ddp", false, CD_LOG_ERROR},
        {"debugging", "ddp", false, CD_LOG_ERROR},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s for %s", cases[i].spec, cases[i].component);
        cd_log_level level = CD_LOG_ERROR;
        assert_int_equal(cd_log_parse(cases[i].spec, cases[i].component, &level),
                         cases[i].well_formed);
        assert_int_equal(level, cases[i].wanted);
    }
}

TEST(names, every_enum_constant_has_one_and_strangers_get_a_question_mark)
{
    for (int i = 0; i < CDDP_DTYPE_COUNT; i++) {
        assert_true(strlen(cddp_dtype_name((cddp_dtype)i)) > 1);
        assert_true(cddp_dtype_bytes((cddp_dtype)i) > 0);
    }
    for (int i = 0; i < CDDP_RED_COUNT; i++)
        assert_true(strlen(cddp_red_op_name((cddp_red_op)i)) > 1);
    for (int i = 0; i < CDDP_OP_COUNT; i++) assert_true(strlen(cddp_op_name((cddp_op)i)) > 1);
    assert_string_equal(cddp_dtype_name(CDDP_BF16), "bf16");
    assert_int_equal(cddp_dtype_bytes(CDDP_C64), 8);
    assert_string_equal(cddp_red_op_name(CDDP_RED_PREMUL_SUM), "premul_sum");
    assert_string_equal(cddp_op_name(CDDP_OP_BARRIER), "barrier");
    assert_string_equal(cddp_dtype_name((cddp_dtype)77), "?");
    assert_int_equal(cddp_dtype_bytes((cddp_dtype)77), 0);
    assert_string_equal(cddp_op_name((cddp_op)77), "?");
    assert_string_equal(cddp_red_op_name((cddp_red_op)77), "?");
    assert_true(cddp_dtype_is_float(CDDP_F16));
    assert_false(cddp_dtype_is_float(CDDP_C64));
    assert_false(cddp_dtype_is_float(CDDP_I32));
}

typedef struct taken {
    char text[128];
    size_t count, refuses; /* the how many-th is refused; 0: none */
} taken;

static cddp_status take_pair(void *self, const char *key, const char *value, cddp_error *err)
{
    taken *t = self;
    const size_t at = strlen(t->text);
    snprintf(t->text + at, sizeof t->text - at, "%s is %s;", key, value);
    return ++t->count == t->refuses ? cd_fail(err, CDDP_E_CONFIG, "not this one") : CDDP_OK;
}

TEST(pairs, are_read_in_order_and_a_bad_one_is_named)
{
    static const struct {
        const char *text, *taken, *error;
        size_t refuses;
    } rows[] = {{NULL, "", NULL, 0},
                {"", "", NULL, 0},
                {"a=1", "a is 1;", NULL, 0},
                {"a=1,b=,a=2=3,", "a is 1;b is ;a is 2=3;", NULL, 0},
                {"a=1,b", "a is 1;", "group 'x': option 'b' is not key=value", 0},
                {",a=1", "", "group 'x': option '' is not key=value", 0},
                {"a=1,b=2", "a is 1;", "not this one", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        taken t = {.refuses = rows[i].refuses};
        cddp_error err = {.status = CDDP_OK};
        cd_test_row("%s", rows[i].text != NULL ? rows[i].text : "NULL");
        const cddp_status status = cd_pairs_read("group 'x'", rows[i].text, take_pair, &t, &err);
        assert_int_equal(status, rows[i].error == NULL ? CDDP_OK : CDDP_E_CONFIG);
        assert_string_equal(t.text, rows[i].taken);
        if (rows[i].error != NULL) assert_non_null(strstr(err.message, rows[i].error));
    }
    char longest[CD_PAIR_BYTES + 8];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    cddp_error err = {.status = CDDP_OK};
    assert_int_equal(cd_pairs_read("x", longest, take_pair, NULL, &err), CDDP_E_CONFIG);
    assert_non_null(strstr(err.message, "is too long"));
}

TEST(text, durations_read_as_people_say_them)
{
    (void)state;
    static const struct {
        uint64_t ns;
        const char *text;
    } rows[] = {{1, "1 ns"},
                {540000, "540 us"},
                {1500000000, "1.5 s"},
                {59900000000, "59.9 s"},
                {60000000000, "1 min"},
                {115020000000, "1 min 55 s"},
                {1800000000000, "30 min"},
                {3599700000000, "1 h"},
                {7500000000000, "2 h 5 min"},
                {90061000000000, "25 h 1 min"}};
    char text[CD_DURATION_BYTES];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_duration_print(rows[i].ns, text, sizeof text);
        assert_string_equal(text, rows[i].text);
    }
}

TEST(text, words_that_two_lines_share_are_cut_out)
{
    static const struct {
        const char *name, *a, *b, *left, *right;
    } rows[] = {
        {"first", "x=1 y=2", "x=3 y=2", "x=1", "x=3"},
        {"between", "x=1 y=2 z=3", "x=1 y=4 z=3", "y=2", "y=4"},
        {"two", "x=1 y=2 z=3", "x=4 y=2 z=5", "x=1 z=3", "x=4 z=5"},
        {"one more", "x=1", "x=1 y=2 z=3", "", "y=2 z=3"},
        {"shorter, and another", "x=12", "x=1 y=2", "x=12", "x=1 y=2"},
        {"equal", "x=1 y=2", "x=1 y=2", "", ""},
        {"empty", "", "", "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char a[32], b[32];
        snprintf(a, sizeof a, "%s", rows[i].a);
        snprintf(b, sizeof b, "%s", rows[i].b);
        cd_test_row("%s", rows[i].name);
        cd_text_pop_common(a, b);
        assert_string_equal(a, rows[i].left);
        assert_string_equal(b, rows[i].right);
    }
}

TEST(text, ranks_may_say_the_same_each_of_itself)
{
    static const struct {
        const char *a, *b;
        bool are_alike;
    } rows[] = {{"on rank 1, 2 of 8", "on rank 12, 2 of 8", true},
                {"rank 1", "rank 12", true},
                {"on rank 1, 2 of 8", "on rank 12, 3 of 8", false},
                {"on rank 2, 2 of 8", "on rank 2, 2 of 8", true},
                {"on rank 13", "on rank 12", false},
                {"rank 1", "rank 12 and more", false},
                {"", "", true}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_test_row("%s", rows[i].a);
        assert_int_equal(cd_rank_words_are_alike(rows[i].a, 1, rows[i].b, 12), rows[i].are_alike);
    }
}

TEST(version, the_text_is_made_of_the_numbers)
{
    char wanted[32];
    snprintf(wanted, sizeof wanted, "%d.%d.%d", CDDP_VERSION_MAJOR, CDDP_VERSION_MINOR,
             CDDP_VERSION_PATCH);
    assert_string_equal(cddp_version(), wanted);
}

TEST_MAIN()
