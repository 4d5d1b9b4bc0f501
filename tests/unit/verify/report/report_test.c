/* SPDX-License-Identifier: Apache-2.0 */
/* The four formats over invented results of every kind: the text as recorded, JUnit against
** Jenkins' schema, JSON and SARIF by structure. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/verify/report/invented.h"

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
    cd_report_sarif(&text, &report);
    /* The required properties of the standard, that rule indexes point at their rules, and the
    ** allowed words. */
    check_with(
        "jq", &text,
        "-e '.version == \"2.1.0\" and (.runs | length) == 1 and (.runs[0] | . as $run "
        "| .tool.driver.name == \"cddp-verify\" and (.tool.driver.rules | all(.id and "
        ".shortDescription.text and "
        ".fullDescription.text)) "
        "and (.results | length) == 4 and (.results | all(.message.text and (.level == \"error\" "
        "or .level == "
        "\"none\") "
        "and (.kind == \"fail\" or .kind == \"informational\") and "
        "($run.tool.driver.rules[.ruleIndex].id == .ruleId) "
        "and (.locations[0].physicalLocation | .artifactLocation.uri and .region.startLine == 1))) "
        "and (.results[0].kind == \"informational\") and (.invocations[0].executionSuccessful | "
        "type) == \"boolean\" "
        "and (.invocations[0].toolExecutionNotifications | length) == 3)'");
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

TEST_MAIN()
