/* SPDX-License-Identifier: Apache-2.0 */
/* A page holds whatever a name says, and the same results make the same bytes. */
#include "tests/unit/verify/report/invented.h"
#include "verify/html/html.h"

static bool explain(const char *name, cd_text *text)
{
    cd_text_printf(text, "the rule %s says </script> & more", name);
    return true;
}

static void print(cd_text *text, const cd_timeline *const *timelines)
{
    cd_result results[INVENTED_COUNT];
    invent(results);
    results[2].title = "</script><script>alert(1)</script>";
    const cd_report report = {.results = results, .count = INVENTED_COUNT, .explain = explain};
    cd_text_init(text, false);
    cd_html_print(text, &(cd_html){.report = &report,
                                   .timelines = timelines,
                                   .why = "nothing was recorded"});
    for (size_t i = 0; i < INVENTED_COUNT; i++) cd_result_fini(&results[i]);
}

static size_t count(const char *text, const char *word)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += strlen(word)) n++;
    return n;
}

TEST(html, a_name_ends_no_element)
{
    cd_text text;
    (void)state;
    print(&text, NULL);
    assert_false(text.failed);
    assert_int_equal(count(cd_text_get(&text), "<script"), 4);
    assert_int_equal(count(cd_text_get(&text), "</script>"), 4);
    assert_int_equal(count(cd_text_get(&text), "alert(1)"), 2);
    assert_non_null(strstr(cd_text_get(&text), "says \\u003c/script> & more"));
    assert_non_null(strstr(cd_text_get(&text), "\"runs\":[null,null,null,null,null,null]"));
    cd_text_fini(&text);
}

TEST(html, it_asks_no_network_for_anything)
{
    cd_text text;
    (void)state;
    print(&text, NULL);
    assert_null(strstr(cd_text_get(&text), "src="));
    assert_null(strstr(cd_text_get(&text), "@import"));
    assert_null(strstr(cd_text_get(&text), "fetch("));
    assert_int_equal(count(cd_text_get(&text), "http"),
                     count(cd_text_get(&text), "http://www.w3.org/2000/svg"));
    cd_text_fini(&text);
}

TEST(html, the_same_results_make_the_same_bytes)
{
    cd_text a, b;
    cd_timeline t;
    cddp_error err = CDDP_ERROR_INIT;
    const cd_timeline *timelines[INVENTED_COUNT] = {NULL, NULL, &t};
    (void)state;
    cd_timeline_init(&t);
    cd_timeline_look_for(&t, 1, 17);
    const cddp_event events[] = {
        {.kind = CDDP_EV_param, .rank = 1, .text = "</script>", .as.param.param = 0},
        {.kind = CDDP_EV_forward_begin, .rank = 1, .sequence = 17},
        {.kind = CDDP_EV_compare, .rank = 1, .sequence = 18, .as.compare = {.bad = 1}}};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        cd_timeline_sink(&t)->event(&t, &events[i]);
    assert_int_equal(cd_timeline_end(&t, CD_SLICES_MAX, &err), CDDP_OK);
    print(&a, timelines);
    print(&b, timelines);
    assert_string_equal(cd_text_get(&a), cd_text_get(&b));
    assert_non_null(strstr(cd_text_get(&a), "{\"finding\":0,\"rank\":1,\"at\":1,\"ns\":0}"));
    assert_non_null(strstr(cd_text_get(&a), "\"0\":\"\\u003c/script>\""));
    cd_text_fini(&a);
    cd_text_fini(&b);
    cd_timeline_fini(&t);
}

TEST_MAIN()
