/* SPDX-License-Identifier: Apache-2.0 */
/* Every check is shown to fire, first and with the right blame, and to stay silent on the clean
** twin. */
#include "cddp/world.h"
#include "core/check/check.h"
#include "core/check/writer.h"
#include "tests/mutants/mutations.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *file, *name;
} checks[] = {
#define CD_CHECK(file, name) {#file, name},
#include "core/check/checks.def"
#undef CD_CHECK
};
#define CHECK_COUNT (sizeof checks / sizeof checks[0])

static const char *name_of(const char *file)
{
    for (size_t i = 0; i < CHECK_COUNT; i++)
        if (strcmp(checks[i].file, file) == 0) return checks[i].name;
    fail_msg("trace_mutants.def names %s, which is no check", file);
    return NULL;
}

/* How the ranks' events interleave before the judge: by time; rank after rank as written; the last
** rank first. */
typedef enum interleaving { BY_TIME, BY_RANK, BY_RANK_BACKWARDS, INTERLEAVINGS } interleaving;

static void push_ranks(const cddp_trace_sink *sink, const cd_memory_sink *trace, bool backwards)
{
    for (uint32_t turn = 0; turn <= FIXTURE_RANKS; turn++) {
        uint32_t rank = turn == 0 ? UINT32_MAX : backwards ? FIXTURE_RANKS - turn : turn - 1;
        for (size_t i = 0; i < trace->count; i++) {
            cddp_event event = cd_memory_sink_get(trace, i);
            if (event.rank == rank) sink->event(sink->self, &event);
        }
    }
}

static cd_judge *judge(fixture_edit_fn edit, interleaving order)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_memory_sink trace;
    cd_judge *j = NULL;
    cd_memory_sink_init(&trace, NULL);
    fixture_write(&trace, edit);
    assert_ok(cd_judge_create(&(cd_judge_options){0}, &j, &err), &err);
    if (order == BY_TIME) assert_ok(cd_judge_push_trace(j, &trace, &err), &err);
    if (order != BY_TIME) push_ranks(cd_judge_get_sink(j), &trace, order == BY_RANK_BACKWARDS);
    assert_ok(cd_judge_end(j, &err), &err);
    cd_memory_sink_fini(&trace);
    return j;
}

static void print_findings(const cd_judge *j)
{
    for (size_t i = 0; i < cd_judge_finding_count(j); i++) {
        const cddp_finding *f = cd_judge_get_finding(j, i);
        print_message("  %s step %u rank %d peer %d: %s\n    expected %s\n    actual   %s\n",
                      f->check, f->step, f->rank, f->peer, f->title, f->expected, f->actual);
    }
}

TEST(trace_mutants, the_clean_twin_is_silent_and_exercises_every_check)
{
    (void)state;
    for (interleaving order = 0; order < INTERLEAVINGS; order++) {
        cd_judge *j = judge(NULL, order);
        print_findings(j);
        assert_int_equal(cd_judge_finding_count(j), 0);
        assert_int_equal(cd_judge_exercise_count(j), CHECK_COUNT);
        for (size_t i = 0; i < CHECK_COUNT; i++) {
            cd_test_row("%s on the clean trace", cd_judge_get_exercise(j, i)->check);
            if (cd_judge_get_exercise(j, i)->count == 0)
                print_error("%s was not exercised\n", cd_judge_get_exercise(j, i)->check);
            assert_true(cd_judge_get_exercise(j, i)->count > 0);
            assert_true(cd_judge_get_exercise(j, i)->how[0] != '\0');
        }
        cd_judge_destroy(j);
    }
}

TEST(trace_mutants, each_planted_corruption_is_the_first_finding_with_the_right_blame)
{
    size_t wrong = 0; /* all of them are shown */
    (void)state;
    for (size_t i = 0; i < trace_mutant_count; i++) {
        const trace_mutant *m = &trace_mutants[i];
        cd_test_row("%s: %s (%s)", m->check_file, m->name, m->what);
        cd_judge *j = judge(m->edit, BY_TIME);
        const cddp_finding *first =
            cd_judge_finding_count(j) > 0 ? cd_judge_get_finding(j, 0) : NULL;
        bool right = first != NULL && strcmp(first->check, name_of(m->check_file)) == 0 &&
                     strstr(first->title, m->words) != NULL && first->rank == m->rank &&
                     (m->peer < 0 || first->peer == m->peer);
        if (!right) {
            print_error("%s: %s (%s): wanted %s rank %d peer %d \"…%s…\"\n", m->check_file, m->name,
                        m->what, name_of(m->check_file), m->rank, m->peer, m->words);
            print_findings(j);
        }
        wrong += !right;
        assert_non_null(first);
        assert_true(first->event_count > 0 || first->rank < 0);
        assert_true(first->expected[0] != '\0' && first->actual[0] != '\0');
        cd_judge_destroy(j);
    }
    assert_int_equal(wrong, 0);
}

static const trace_mutant *find_mutant(const char *check_file, const char *name)
{
    for (size_t i = 0; i < trace_mutant_count; i++)
        if (strcmp(trace_mutants[i].check_file, check_file) == 0 &&
            strcmp(trace_mutants[i].name, name) == 0)
            return &trace_mutants[i];
    fail_msg("there is no corruption %s of %s", name, check_file);
    return NULL;
}

/* Two ranks wait for the third, as in the corruption, but the run was interrupted before anybody
** failed. */
static bool interrupt(cddp_event *e)
{
    const bool is_kept = find_mutant("live", "waits_for_ended")->edit(e);
    if (e->kind == CDDP_EV_rank_end)
        e->as.rank_end =
            (cddp_event_rank_end){.status = CDDP_E_ABORTED, .end = CDDP_RANK_INTERRUPTED};
    return is_kept;
}

TEST(trace_mutants, who_still_waited_when_the_run_was_interrupted_is_not_stuck)
{
    (void)state;
    for (interleaving order = 0; order < INTERLEAVINGS; order++) {
        cd_judge *j = judge(interrupt, order);
        print_findings(j);
        assert_int_equal(cd_judge_finding_count(j), 0);
        cd_judge_destroy(j);
    }
}

/* Real processes tell in whatever order they are scheduled. */
TEST(trace_mutants, findings_do_not_depend_on_how_ranks_interleave)
{
    (void)state;
    for (size_t i = 0; i < trace_mutant_count; i++) {
        cd_judge *by_time = judge(trace_mutants[i].edit, BY_TIME);
        for (interleaving order = BY_RANK; order < INTERLEAVINGS; order++) {
            cd_test_row("%s: %s, interleaving %d", trace_mutants[i].check_file,
                        trace_mutants[i].name, (int)order);
            cd_judge *other = judge(trace_mutants[i].edit, order);
            assert_int_equal(cd_judge_finding_count(by_time), cd_judge_finding_count(other));
            for (size_t k = 0; k < cd_judge_finding_count(by_time); k++) {
                const cddp_finding *a = cd_judge_get_finding(by_time, k),
                                   *b = cd_judge_get_finding(other, k);
                assert_string_equal(a->check, b->check);
                assert_string_equal(a->title, b->title);
                assert_string_equal(a->parameter, b->parameter);
                assert_string_equal(a->expected, b->expected);
                assert_string_equal(a->actual, b->actual);
                assert_int_equal(a->rank, b->rank);
            }
            cd_judge_destroy(other);
        }
        cd_judge_destroy(by_time);
    }
}

TEST(trace_mutants, every_check_has_a_row)
{
    (void)state;
    for (size_t c = 0; c < CHECK_COUNT; c++) {
        size_t rows = 0;
        for (size_t i = 0; i < trace_mutant_count; i++)
            rows += strcmp(trace_mutants[i].check_file, checks[c].file) == 0;
        cd_test_row("%s", checks[c].name);
        assert_true(rows > 0);
    }
}

TEST(trace_mutants, tables_and_rows_name_the_same_invariants)
{
    (void)state;
    assert_int_equal(cd_checks_count(), 34);
    for (size_t c = 0; c < CHECK_COUNT; c++) {
        const cddp_check *check = cd_check_get(c);
        cd_test_row("%s", checks[c].name);
        assert_string_equal(check->name, checks[c].name);
        assert_ptr_equal(cd_check_find(checks[c].name), check);
        assert_true(check->title[0] != '\0' && check->rule[0] != '\0' && check->kind_count > 0);
    }
}

static char *read_document(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    rewind(file);
    char *text = calloc((size_t)size + 1, 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    fclose(file);
    return text;
}

TEST(trace_mutants, the_document_reports_every_check_and_every_corruption)
{
    (void)state;
    char *text = read_document(CDDP_INVARIANTS_MD), wanted[160];
    for (size_t c = 0; c < CHECK_COUNT; c++) {
        cd_test_row("%s in docs/invariants.md", checks[c].name);
        snprintf(wanted, sizeof wanted, "\n## %s\n\n%.100s", checks[c].name, cd_check_get(c)->rule);
        assert_non_null(strstr(text, wanted));
        snprintf(wanted, sizeof wanted, "(#%c-%s) | %s |", 'i', checks[c].file,
                 cd_check_get(c)->title);
        assert_non_null(strstr(text, wanted));
    }
    for (size_t i = 0; i < trace_mutant_count; i++) {
        cd_test_row("%s in docs/invariants.md", trace_mutants[i].name);
        snprintf(wanted, sizeof wanted, "`%s` %s", trace_mutants[i].name, trace_mutants[i].what);
        assert_non_null(strstr(text, wanted));
    }
    free(text);
}

TEST_MAIN()
