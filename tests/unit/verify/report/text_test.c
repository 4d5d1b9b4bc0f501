/* SPDX-License-Identifier: Apache-2.0 */
/* Growing text and the JSON writer. */
#include "verify/report/json.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

TEST(text, grows_over_any_length)
{
    cd_text text;
    cd_text_init(&text, false);
    for (int i = 0; i < 5000; i++) cd_text_printf(&text, "%d ", i % 10);
    assert_int_equal(text.length, 10000);
    assert_int_equal(strlen(cd_text_get(&text)), 10000);
    assert_false(text.failed);
    cd_text_fini(&text);
    assert_string_equal(cd_text_get(&text), "");
}

TEST(text, styles_are_escapes_only_where_colour_is_wanted)
{
    for (int color = 0; color <= 1; color++) {
        cd_text text;
        cd_text_init(&text, color != 0);
        cd_text_style(&text, CD_STYLE_RED, "%d", 7);
        assert_string_equal(cd_text_get(&text), color ? "\033[1;31m7\033[0m" : "7");
        cd_text_fini(&text);
    }
}

TEST(text, wrapping_breaks_between_words_and_indents)
{
    cd_text text;
    cd_text_init(&text, false);
    cd_text_push(&text, "> ");
    cd_text_wrap(&text, "one two three averyveryverylongword four", 2, 12);
    assert_string_equal(cd_text_get(&text),
                        "> one two\n  three\n  averyveryverylongword\n  four\n");
    cd_text_fini(&text);
}

TEST(text, cleaning_leaves_nothing_that_a_terminal_obeys)
{
    static const struct {
        const char *in, *out;
    } cases[] = {{"plain größer\n", "plain größer\n"},
                 {"\033[2Jgone", "?[2Jgone"},
                 {"bell\a\r\b", "bell???"},
                 {"\x7f", "?"},
                 {"\xc2\x9b"
                  "31m",
                  "??31m"},
                 {"\xff\xfe", "??"},
                 {"cut\xe2\x82", "cut??"},
                 {"nbsp\xc2\xa0", "nbsp\xc2\xa0"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        cd_test_row("%zu", i);
        snprintf(text, sizeof text, "%s", cases[i].in);
        cd_text_clean(text);
        assert_string_equal(text, cases[i].out);
    }
}

TEST(json, values_nest_and_are_separated)
{
    cd_json json;
    cd_text text;
    cd_text_init(&text, false);
    cd_json_begin(&json, &text);
    cd_json_open(&json, '{');
    cd_json_key(&json, "list");
    cd_json_open(&json, '[');
    cd_json_integer(&json, INT64_MIN);
    cd_json_number(&json, 0.1);
    cd_json_number(&json, NAN);
    cd_json_flag(&json, true);
    cd_json_text(&json, NULL);
    cd_json_close(&json, ']');
    cd_json_key(&json, "empty");
    cd_json_open(&json, '{');
    cd_json_close(&json, '}');
    cd_json_key(&json, "digest");
    cd_json_digest(&json, 255);
    cd_json_close(&json, '}');
    assert_string_equal(cd_text_get(&text),
                        "{\n  \"list\": [\n    -9223372036854775808,\n    0.10000000000000001,\n   "
                        " null,\n    true,\n    null\n"
                        "  ],\n  \"empty\": {},\n  \"digest\": \"00000000000000ff\"\n}\n");
    cd_text_fini(&text);
}

TEST(json, texts_are_escaped_and_always_valid_utf_8)
{
    static const struct {
        const char *name, *in, *out;
    } cases[] = {
        {"quotes", "a\"b\\c", "\"a\\\"b\\\\c\""},
        {"controls", "\n\t\001\177", "\"\\n\\t\\u0001\\u007f\""},
        {"valid",
         "gr\xc3\xb6\xc3\x9f"
         "er \xe2\x89\xa0 \xf0\x9f\x99\x82",
         "\"gr\xc3\xb6\xc3\x9f"
         "er \xe2\x89\xa0 \xf0\x9f\x99\x82\""},
        {"stray continuation", "\x80", "\"\\ufffd\""},
        {"cut short", "a\xe2\x89", "\"a\\ufffd\\ufffd\""},
        {"overlong", "\xc0\xaf", "\"\\ufffd\\ufffd\""},
        {"surrogate", "\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""},
        {"beyond unicode", "\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_json json;
        cd_text text;
        cd_test_row("%s", cases[i].name);
        cd_text_init(&text, false);
        cd_json_begin(&json, &text);
        cd_json_text(&json, cases[i].in);
        assert_string_equal(cd_text_get(&text), cases[i].out);
        cd_text_fini(&text);
    }
}

TEST_MAIN()
