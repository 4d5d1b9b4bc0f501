/* SPDX-License-Identifier: Apache-2.0 */
/* The four formats over invented results of every kind: the text as recorded, JUnit against
** Jenkins' schema, JSON and SARIF by structure. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/verify/report/invented.h"
#include "verify/report/place.h"

#include <stdlib.h>
#include <unistd.h>

static char *slurp(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) print_error("cannot read %s\n", path);
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long length = ftell(file);
    rewind(file);
    char *text = malloc((size_t)length + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)length, file), length);
    fclose(file);
    text[length] = '\0';
    return text;
}

static void assert_golden(const cd_text *text, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, FOLDER "/%s", name);
    if (getenv("CDDP_UPDATE_GOLDEN") != NULL) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fputs(cd_text_get(text), file);
        fclose(file);
    }
    char *wanted = slurp(path);
    assert_string_equal(cd_text_get(text), wanted);
    free(wanted);
}

/* Writes the report to a file and runs a tool on it; false when this machine lacks the tool. */
static bool check_with(const char *tool, const cd_text *text, const char *arguments)
{
    char command[2048], path[64];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", tool);
    if (system(command) != 0) return false;
    snprintf(path, sizeof path, "report_test.%ld", (long)getpid());
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(cd_text_get(text), file);
    fclose(file);
    snprintf(command, sizeof command, "%s %s %s >%s.said 2>&1", tool, arguments, path, path);
    int status = system(command);
    snprintf(command, sizeof command, "%s.said", path);
    char *said = slurp(command);
    if (status != 0) print_error("%s %s: %s\n", tool, arguments, said);
    free(said);
    unlink(command);
    unlink(path);
    assert_int_equal(status, 0);
    return true;
}

static cd_report all_of(const cd_result results[INVENTED_COUNT], const cddp_registry *registry)
{
    return (cd_report){.results = results,
                       .count = INVENTED_COUNT,
                       .registry = registry,
                       .exit_code = 1,
                       .not_run = 2};
}

TEST(report, the_text_is_as_recorded)
{
    cd_result results[INVENTED_COUNT];
    cd_text text;
    invent(results);
    cd_text_init(&text, false);
    cd_report report = all_of(results, NULL);
    cd_report_text(&text, &report);
    report.quiet = true;
    report.interrupted = true;
    cd_text_push(&text, "---- quiet, interrupted\n");
    cd_report_text(&text, &report);
    cd_text_push(&text, "---- verbose, with times\n");
    cd_report verbose = {
        .results = &results[2], .count = 1, .exit_code = 1, .verbose = true, .timings = true};
    cd_report_text(&text, &verbose);
    assert_golden(&text, "report.txt");
    cd_text_fini(&text);
    disinvent(results);
}

TEST(report, junit_satisfies_the_schema_of_jenkins)
{
    cd_result results[INVENTED_COUNT];
    invent(results);
    for (int timings = 0; timings <= 1; timings++) {
        cd_text text;
        cd_text_init(&text, false);
        cd_report report = all_of(results, NULL);
        report.timings = timings != 0;
        cd_report_junit(&text, &report);
        assert_non_null(
            strstr(cd_text_get(&text), "tests=\"6\" failures=\"2\" errors=\"1\" skipped=\"1\""));
        assert_non_null(
            strstr(cd_text_get(&text), "name=\"expected\" classname=\"scenarios.canary\""));
        check_with("xmllint", &text, "--noout --schema '" FOLDER "/junit.xsd'");
        cd_text_fini(&text);
    }
    disinvent(results);
}

TEST(report, the_schema_refuses_what_it_should)
{
    /* A schema that accepts everything would make the test above worthless. */
    static const char *const bad[] = {
        "<testsuites><testcase name=\"a\" classname=\"b\"/></testsuites>",
        "<testsuites><testsuite name=\"a\" tests=\"1\" failures=\"0\"/></testsuites>",
        "<testsuites><testsuite name=\"a\" tests=\"1\" failures=\"0\" errors=\"0\" "
        "time=\"0.123456\"/></testsuites>"};
    if (system("command -v xmllint >/dev/null 2>&1") != 0) skip();
    for (size_t i = 0; i < 3; i++) {
        char command[2048];
        cd_test_row("%s", bad[i]);
        snprintf(command, sizeof command,
                 "echo '%s' | xmllint --noout --schema '" FOLDER "/junit.xsd' - 2>/dev/null",
                 bad[i]);
        assert_int_not_equal(system(command), 0);
    }
}

TEST(report, json_says_everything)
{
    cd_result results[INVENTED_COUNT];
    cd_text text;
    invent(results);
    cd_text_init(&text, false);
    cd_report report = all_of(results, NULL);
    cd_report_json(&text, &report);
    check_with(
        "jq", &text,
        "-e '(.results | length) == 6 and .exit_code == 1 and .not_run == 2 "
        "and .results[2].findings[0].ranks == [1, 70] "
        "and .results[2].findings[0].rank == 1 and .results[2].findings[1].bucket == null "
        "and (.results[2].findings[0].events | length) == 1 and .results[1].as_expected "
        "and .results[0].exercised[\"I-ORDER\"] == \"12 launches on 3 ranks\" and "
        ".results[0].marks[\"a rebuild "
        "happened\"] == 2 "
        "and .results[5].ranks[0].end == \"killed\" and .results[0].plan == \"0000000000000def\" "
        "and .results[2].findings[1].parameter == \"größer.weight\"'");
    cd_text_fini(&text);
    disinvent(results);
}

static bool explain(const char *name, cd_text *text)
{
    cd_text_printf(text, "what %s says", name);
    return true;
}

TEST(report, sarif_has_the_structure_of_2_1_0)
{
    cd_result results[INVENTED_COUNT];
    cddp_registry *registry = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cd_text text;
    invent(results);
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    cd_text_init(&text, false);
    cd_report report = all_of(results, registry);
    report.explain = explain;
    report.docs = "https://docs";
    cd_report_sarif(&text, &report);
    /* The required properties of the standard, that rule indexes point at their rules, and the
    ** allowed words. */
    check_with(
        "jq", &text,
        "-e '.version == \"2.1.0\" and (.runs | length) == 1 and (.runs[0] | . as $run "
        "| .tool.driver.name == \"cddp-verify\" and (.tool.driver.rules | all(.id and "
        ".shortDescription.text and "
        ".fullDescription.text)) "
        "and (.results | length) == 3 and (.results | all(.message.text and (.level == \"error\" "
        "or .level == "
        "\"none\") "
        "and (.kind == \"fail\" or .kind == \"informational\") and "
        "($run.tool.driver.rules[.ruleIndex].id == .ruleId) "
        "and (.locations[0].physicalLocation | .artifactLocation.uri and .region.startLine >= 1)) "
        "and all(.partialFingerprints[\"cddpCause/v1\"] | length == 16)) "
        "and (.results[1].properties.also == {\"I-REF\": 2}) "
        "and (.results[2] | .ruleId == \"scenario\" and .message.text == \"unknown key\" and "
        "(.locations[0].physicalLocation.region | .startLine == 4 and .startColumn == 1)) "
        "and (.tool.driver.rules[] | select(.id == \"I-INIT\") | .helpUri == "
        "\"https://docs/explain.html#i-init\" and "
        ".help.text == \"what I-INIT says\") "
        "and (.results[0].kind == \"informational\") and (.invocations[0].executionSuccessful | "
        "type) == \"boolean\" "
        "and (.invocations[0].toolExecutionNotifications | length) == 2)'");
    cd_text_fini(&text);
    cddp_registry_destroy(registry);
    disinvent(results);
}

TEST(report, sarif_names_a_file_by_a_uri_reference)
{
    cd_result results[INVENTED_COUNT];
    cddp_registry *registry = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cd_text text;
    invent(results);
    for (size_t i = 0; i < INVENTED_COUNT; i++) results[i].source = "a b/c:\xc3\xbc%41#?.toml";
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    cd_text_init(&text, false);
    cd_report report = all_of(results, registry);
    cd_report_sarif(&text, &report);
    assert_non_null(strstr(cd_text_get(&text), "\"uri\": \"a%20b/c%3A%C3%BC%2541%23%3F.toml\""));
    assert_null(strstr(cd_text_get(&text), "\"uri\": \"a b"));
    cd_text_fini(&text);
    cddp_registry_destroy(registry);
    disinvent(results);
}

/* Two runs with the same cause are one result, whatever their numbers. */
TEST(report, sarif_has_one_result_per_cause)
{
    cd_result results[3];
    cd_text text;
    for (int i = 0; i < 3; i++) {
        cd_result_init(&results[i]);
        results[i].source = "run.db";
        results[i].verdict.outcome = CDDP_OUTCOME_FINDINGS;
        results[i].place = i < 2 ? "a.toml" : "b.toml";
        results[i].place_line = 7;
        invent_findings(&results[i], 2);
    }
    snprintf(((cddp_finding *)(uintptr_t)results[1].verdict.findings)->title, 100,
             "rank 3 launches <bucket 22> where \"rank 1\" launches bucket 5 & more");
    const cd_report report = {.results = results, .count = 3, .exit_code = 1};
    cd_text_init(&text, false);
    cd_report_sarif(&text, &report);
    check_with("jq", &text,
               "-e '.runs[0].results | length == 2 and .[0].occurrenceCount == 2 and "
               "(.[0].locations[0].physicalLocation | .artifactLocation.uri == \"a.toml\" and "
               ".region.startLine == 7) and (.[1] | has(\"occurrenceCount\") | not)'");
    cd_text_fini(&text);
    for (int i = 0; i < 3; i++) cd_result_fini(&results[i]);
}

/* ---- where to look ---- */

static void locate(cd_result *r, const char *check, int32_t rank, const char *scenario)
{
    static cddp_finding finding;
    finding = (cddp_finding){.size = sizeof finding, .check = check, .rank = rank};
    cd_result_init(r);
    r->verdict.outcome = CDDP_OUTCOME_FINDINGS;
    r->verdict.findings = &finding;
    r->verdict.finding_count = 1;
    cd_result_locate(r, "a.toml", scenario);
}

TEST(report, a_result_points_at_the_key_to_look_at)
{
    static const char scenario[] = "schema = 1\n"                /* 1 */
                                   "about = \"\"\"\n"            /* 2 */
                                   "[ddp]\n"                     /* 3 */
                                   "bucket_cap_mb = 99\n"        /* 4 */
                                   "\"\"\"\n"                    /* 5 */
                                   "[ddp] # options\n"           /* 6 */
                                   "static_graph = true\n"       /* 7 */
                                   "bucket_cap_mb = 1\n"         /* 8 */
                                   "[[when]]\n"                  /* 9 */
                                   "steps = 1\n"                 /* 10 */
                                   "branch = 1\n"                /* 11 */
                                   "[[rank]]\n"                  /* 12 */
                                   "ranks = \"0,2-3\" # not 1\n" /* 13 */
                                   "data.samples = 3\n";         /* 14 */
    static const struct {
        const char *check;
        int32_t rank;
        uint32_t line;
        const char *key;
    } cases[] = {{"I-ORDER", 1, 8, "ddp.bucket_cap_mb"},
                 {"I-ORDER", 3, 14, "rank.data.samples"},
                 {"I-USED", -1, 7, "ddp.static_graph"},
                 {"I-RANGE", -1, 10, "when.steps"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_result r;
        locate(&r, cases[i].check, cases[i].rank, scenario);
        assert_string_equal(r.place_key, cases[i].key);
        assert_int_equal(r.place_line, cases[i].line);
        cd_result_fini(&r);
    }
}

TEST(report, a_finding_of_a_program_names_its_line)
{
    static const struct {
        const char *advice, *path;
        uint32_t line;
    } cases[] = {{"look at 3. rank 1 at train.py:31 in forward; rank 0 at b.py:7", "train.py", 31},
                 {"it stands at rank 2", NULL, 0},
                 {"rank 12 at nowhere", NULL, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_finding f = {.size = sizeof f};
        char path[64];
        uint32_t line = 0;
        snprintf(f.advice, sizeof f.advice, "%s", cases[i].advice);
        const bool found = cd_finding_find_source(&f, path, sizeof path, &line);
        assert_int_equal(found, cases[i].path != NULL);
        if (found) assert_string_equal(path, cases[i].path);
        assert_int_equal(line, cases[i].line);
    }
}

/* ---- cards ---- */

TEST(report, a_card_is_in_every_format)
{
    static const char *const messages[] = {"", "<\"3\" & 4>", "the budget ended it", "not run"};
    cd_card card;
    cd_text text;
    cd_card_init(&card, "prove", "a b.toml", true);
    for (int i = CD_CARD_PASSED; i <= CD_CARD_SKIPPED; i++)
        cd_card_add_line(&card, &(cd_card_line){.state = (cd_card_state)i,
                                                .name = cd_card_state_name((cd_card_state)i),
                                                .title = "what was asked",
                                                .message = messages[i],
                                                .case_count = 3});
    cd_card_add_number(&card, "states", 12);
    cd_card_add_text(&card, "hook", "topk");
    cd_card_end(&card, "refuted", 1, "refuted & so on\n");
    assert_false(card.failed);
    const cd_report report = {.card = &card, .exit_code = 1};
    cd_text_init(&text, false);
    cd_report_junit(&text, &report);
    check_with("xmllint", &text, "--noout --schema " FOLDER "/junit.xsd");
    assert_non_null(strstr(cd_text_get(&text), "failures=\"2\" errors=\"0\" skipped=\"1\""));
    cd_text_fini(&text);
    cd_text_init(&text, false);
    cd_report_json(&text, &report);
    check_with("jq", &text,
               "-e '.verdict == \"refuted\" and .exit_code == 1 and .results == [] and "
               "[.lines[].state] == [\"passed\", \"failed\", \"open\", \"skipped\"] and "
               ".facts == {\"states\": 12, \"hook\": \"topk\"}'");
    cd_text_fini(&text);
    cd_text_init(&text, false);
    cd_report_sarif(&text, &report);
    check_with("jq", &text,
               "-e '.runs[0] | . as $run | (.results | length) == 1 and (.results[0] | .ruleId == "
               "\"prove/failed\" and $run.tool.driver.rules[.ruleIndex].id == .ruleId and "
               ".locations[0].physicalLocation.artifactLocation.uri == \"a%20b.toml\") and "
               "(.invocations[0].toolExecutionNotifications | length) == 1'");
    cd_text_fini(&text);
    cd_card_fini(&card);
}

TEST_MAIN()
