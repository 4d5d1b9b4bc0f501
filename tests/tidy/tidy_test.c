/* SPDX-License-Identifier: Apache-2.0 */
/* The house rules on the tree itself, and each rule on a plant that it must report and a twin that
** it must not. */
#include "tests/tidy/tidy.h"

#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    tidy_rule_fn rule;
} rules[] = {
    /* clang-format off */
    {"layers", tidy_check_layers},
    {"system headers", tidy_check_system},
    {"banned calls", tidy_check_bans},
    {"names", tidy_check_names},
    {"globals", tidy_check_globals},
    {"macros", tidy_check_macros},
    {"frames", tidy_check_frames},
    {"braces", tidy_check_braces},
    {"notes", tidy_check_notes},
    {"tags", tidy_check_tags},
    {"SPDX lines", tidy_check_spdx},
    {"leftovers", tidy_check_leftovers},
    {"pairs", tidy_check_pairs},
    {"links", tidy_check_links},
    {"references", tidy_check_references},
    {"prose", tidy_check_prose},
    {"fences", tidy_check_fences},
    {"width", tidy_check_width},
    {"shown", tidy_check_shown},
    {"reads", tidy_check_reads},
    {"observed", tidy_check_observed},
    {"marks", tidy_check_marks},
    {"constructors", tidy_check_constructors},
    /* clang-format on */
};
#define RULE_COUNT (sizeof rules / sizeof rules[0])

/* A plant: one file, beside a few that every tree has, and the words of the report; NULL for a
** clean twin. */
typedef struct plant {
    const char *path, *text, *reported;
} plant;

#define SPDX "/* SPDX-License-Identifier: Apache-2.0 */\n"

static void run_plants(tidy_rule_fn rule, const plant *plants, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        cd_test_row("%zu: %s", i, plants[i].reported != NULL ? plants[i].reported : "clean");
        tidy_tree tree = {0};
        tidy_report report = {0};
        tidy_tree_add(&tree, "core/base/alloc.h", SPDX);
        tidy_tree_add(&tree, "core/ddp/reducer/reducer.h", SPDX);
        tidy_tree_add(&tree, "core/train/sampler.h", SPDX);
        tidy_tree_add(&tree, "core/train/trainer.h", SPDX);
        tidy_tree_add(&tree, "core/run/tap.h", SPDX);
        tidy_tree_add(&tree, "include/cddp/ddp.h", SPDX);
        tidy_tree_add(&tree, "backends/mpi/mpi_group.h", SPDX);
        tidy_tree_add(&tree, "verify/explore/run.h", SPDX);
        tidy_tree_add(&tree, "cli/command.h", SPDX);
        tidy_tree_add(&tree, "docs/semantics.md", "| RED-05 | … |\n| TI-A-01 | … |\n");
        tidy_tree_add(&tree, "tests/unit/core/ddp/a_test.c", SPDX "/* TI-A-01 */");
        tidy_tree_add(&tree, "docs/invariants.md", "## I-ORDER\n");
        tidy_tree_add(&tree, "tests/mutants/trace_mutants.def",
                      SPDX "\nTRACE_MUTANT(order, other_count, 2)");
        tidy_tree_add(&tree, "core/plan/marks.def", SPDX "\nCD_MARK(rebuild, \"…\")");
        tidy_tree_add(&tree, "core/run/tap.c",
                      SPDX
                      "static void count(cd_tap *tap)\n{\n    count_mark(tap, \"rebuild\");\n}\n");
        tidy_tree_add(&tree, plants[i].path, plants[i].text);
        rule(&tree, &report);
        if (plants[i].reported == NULL) {
            if (report.count != 0) print_error("%s", report.text);
            assert_int_equal(report.count, 0);
        } else {
            assert_int_equal(report.count, 1);
            if (strstr(report.text, plants[i].reported) == NULL) print_error("%s", report.text);
            assert_non_null(strstr(report.text, plants[i].reported));
        }
        tidy_report_free(&report);
        tidy_tree_free(&tree);
    }
}
#define PLANTS(rule, ...)                                           \
    do {                                                            \
        static const plant plants[] = {__VA_ARGS__};                \
        run_plants(rule, plants, sizeof plants / sizeof plants[0]); \
    } while (0)

TEST(tidy, sees_includes_and_links_that_go_upwards)
{
    PLANTS(tidy_check_layers,
           /* clang-format off */
           {"core/model/a.c", "#include \"core/ddp/reducer/reducer.h\"\n", "core/model/a.c:1: core/model may not include core/ddp"},
           {"core/base/a.c", "\n#include \"core/ddp/reducer/reducer.h\"\n", "core/base/a.c:2: core/base may not include core/ddp"},
           {"backends/gloo/a.cc", "#include \"core/ddp/reducer/reducer.h\"\n", "backends/gloo may not include core/ddp"},
           {"verify/prove/a.c", "#include \"verify/explore/run.h\"\n", "verify/prove may not include verify/explore"},
           {"verify/report/a.c", "#include \"cli/command.h\"\n", "verify/report may not include cli"},
           {"verify/prove/CMakeLists.txt", "cddp_module(prove SOURCES a.c USES explore)", "verify/prove may not link explore"},
           {"backends/gloo/a.c", "#include \"backends/mpi/mpi_group.h\"\n", "backends/gloo may not include backends/mpi"},
           {"backends/a.c", "#include \"core/base/alloc.h\"\n", "backends/a.c has no row"},
           {"backends/process/CMakeLists.txt", "cddp_module(process SOURCES a.c USES base backend_mpi)", "backends/process may not link backend_mpi"},
           {"core/ddp/a.c", "#include \"reducer.h\"\n", "which is not in the tree"},
           {"core/plan/a.c", "#include \"core/train/trainer.h\"\n", "core/plan may not include core/train"},
           {"core/train/a.c", "#include \"core/run/tap.h\"\n", "core/train may not include core/run"},
           {"core/reference/a.c", "#include \"core/train/trainer.h\"\n", "core/reference may not include core/train (\"core/train/trainer.h\")"},
           {"core/reference/a.c", "#include \"core/train/sampler.h\"\n", "core/reference may not include core/train (\"core/train/sampler.h\")"},
           {"core/train/a.c", "#include \"core/train/sampler.h\"\n", NULL},
           {"core/ddp/a.c", "#include \"core/base/alloc.c\"\n", "includes the source file"},
           {"strange/a.c", "#include \"core/base/alloc.h\"\n", "strange/a.c has no row"},
           {"core/model/CMakeLists.txt", "cddp_module(model SOURCES a.c USES base ddp LINK m)", "core/model may not link ddp"},
           {"core/model/CMakeLists.txt", "cddp_module(model SOURCES a.c\n  USES base tensor\n  LINK ddp)", NULL},
           {"core/ddp/a.c", "#include \"core/ddp/reducer/reducer.h\"\n#include \"cddp/ddp.h\"\n#include \"core/base/alloc.h\"\n", NULL},
           {"examples/a.c", "#include \"core/ddp/reducer/reducer.h\"\n", "examples may not include core/ddp"},
           {"examples/a.c", "#include \"b.h\"\n", "which is not in the tree"},
           /* clang-format on */
           {"cli/a.c", "#include \"core/ddp/reducer/reducer.h\"\n", NULL});
}

TEST(tidy, sees_system_headers_in_the_wrong_place)
{
    PLANTS(tidy_check_system, {"core/ddp/a.c", "#include <unistd.h>\n", "is POSIX"},
           {"include/cddp/a.h", "#include <stdio.h>\n", "a public header includes <stdio.h>"},
           {"include/cddp/a.h", "#include <stdint.h>\n", NULL},
           {"core/base/os_posix.c", "#include <unistd.h>\n", NULL},
           {"sim/fiber_boost.c", "#include <sys/mman.h>\n", NULL},
           {"core/ddp/a.c", "#include <string.h>\n", NULL});
}

TEST(tidy, sees_banned_calls_but_not_words_members_comments_or_strings)
{
    PLANTS(
        tidy_check_bans, {"core/ddp/a.c", "int x = rand ();", "rand: an unseeded"},
        /* clang-format off */
           {"sim/a.c", "y = exp(x);", "exp: libm"}, {"core/model/a.c", "p = realloc(p, n);", "realloc: use cd_vec_grow"},
           {"db/a.c", "getenv(\"HOME\");", "getenv: only the program"}, {"cli/a.c", "qsort(a, n, s, f);", "qsort: unstable"},
           {"core/ddp/a.c", "printf(\"x\");", "printf: libraries do not print"},
           {"core/ddp/a.c", "w->time(1); w.time(2); strand(3); snprintf(t, 4, \"rand(5)\"); /* time(6) */ // exp(7)\n", NULL},
           {"cli/a.c", "getenv(\"HOME\"); printf(\"x\"); free(p);", NULL},
           {"core/ddp/a.c", "vsnprintf(t, n, f, a);", "vsnprintf: the locale's"}, {"verify/a.c", "x = strtod(t, e);", "strtod: the locale's"},
           {"db/a.c", "snprintf(t, n,\n  \"%s: %.3g\", a, f(b));", "snprintf of a real number"},
           {"db/a.c", "snprintf(t, n, \"100%% %d %s\", a, b); g(\"%g\");", NULL},
        /* clang-format on */
        {"core/base/os_posix.c", "clock_gettime(c, &t);", NULL});
}

TEST(tidy, sees_reserved_names_and_decisions_by_name)
{
    PLANTS(tidy_check_names, {"core/ddp/a.h", "typedef struct bucket bucket_t;", "ending in _t"},
           /* clang-format off */
           {"core/ddp/a.h", "typedef struct {\n int a;\n} bucket_t;", "ending in _t"},
           {"core/ddp/a.h", "#define _BUCKET_H\n", "underscore"},
           {"core/ddp/a.c", "static int f(void)\n{\n    return strcmp(backend->name, \"nccl\");\n}\n", "decides by a name"},
           {"core/ddp/a.c", "static int f(void)\n{\n    return strcmp(backend->name, name);\n}\n", NULL},
           /* clang-format on */
           {"core/ddp/a.c",
            "#define _POSIX_C_SOURCE 200809L\nsize_t x;\nuint64_t y_t_;\n    uint32_t a;\n", NULL});
}

TEST(tidy, sees_variables_that_outlive_their_run)
{
    PLANTS(tidy_check_globals, {"core/ddp/a.c", "static int counter;", "static int counter"},
           /* clang-format off */
           {"core/ddp/a.c", "int counter = 3;", "int counter"},
           {"core/ddp/a.c", "static const char *names[] = {\"a\"};", "static const char *names[]"},
           {"core/ddp/a.c", "int f(void)\n{\n    static int calls;\n    int fine = 0;\n    return fine;\n}\n", "static int calls"},
           {"sim/a.c", "_Thread_local int x = 0;", "_Thread_local int x"},
           {"sim/a.c", "static _Atomic(struct s *) kept;", "static _Atomic(struct s *) kept"},
           {"sim/a.c", "static _Atomic(int) f(int x);", NULL},
           {"sim/a.c", "DEFINE(a)\nDEFINE(b)\nstatic struct {\n    int i;\n} rows[] = {{1}};", "static struct"},
           {"sim/a.c", "DEFINE(a)\nDEFINE(b)\nstatic const struct {\n    int i;\n} rows[] = {{1}};", NULL},
           /* clang-format on */
           {"core/ddp/a.c",
            "static const int a = 1;\nstatic const char *const names[] = {\"a\", \"b\"};\nstatic "
            "int f(int x);\n"
            "struct s {\n    int member;\n};\nenum { A = 1, B };\ntypedef int "
            "(*g_fn)(int);\nextern const int e;\n"
            "static int f(int x)\n{\n    int y = x == 1 ? 2 : 3;\n    struct s z = {.member = y};\n"
            "    return z.member;\n}\nstatic const struct {\n    int a;\n} table[] = {{1}, {2}};\n",
            NULL});
}

TEST(tidy, sees_jumps_in_macros)
{
    PLANTS(tidy_check_macros,
           {"core/ddp/a.h", "#define TRY(x) \\\n    if (x) return 1\n", "hides a jump"},
           {"core/ddp/a.h", "#define OUT goto out\n", "hides a jump"},
           {"core/base/error.h", "#define TRY(x) if (x) return 1\n", NULL},
           {"core/ddp/a.h", "#define ADD(a, b) ((a) + (b))\nstatic int f(void) { return 1; }\n",
            NULL});
}

TEST(tidy, sees_tail_calls_that_leave_no_frame)
{
#define STATUS "static cddp_status f(int a, cddp_error *err)\n{\n    "
    PLANTS(tidy_check_frames,
           /* clang-format off */
           {"core/ddp/a.c", STATUS "return g(a, err);\n}\n", "core/ddp/a.c:3: a failure of this call leaves no frame"},
           {"core/ddp/a.c", STATUS "return a ? CDDP_OK : o->g(a,\n        err);\n}\n", "core/ddp/a.c:3: a failure"},
           {"cli/a.c", "#define A {\ncddp_status\nf(cddp_error *err) { return g(err); }\n", "cli/a.c:3: a failure"},
           {"core/ddp/a.c", STATUS "return CD_PASS(g(a, err));\n}\n", NULL},
           {"core/ddp/a.c", STATUS "return a ? cd_fail_memory(err, \"a\") : g(a, err);\n}\n", NULL},
           {"core/ddp/a.c", STATUS "return cd_fail(err, CDDP_E_ARG, \"a\");\n}\n", NULL},
           {"core/ddp/a.c", STATUS "if (a) return NO_MEMORY(err);\n    CD_TRY(g(a, err));\n    return h(a, &err);\n}\n", NULL},
           {"core/ddp/a.c", "static bool f(cddp_error *err)\n{\n    return g(err);\n}\n", NULL},
           {"core/ddp/a.h", STATUS "return g(a, err);\n}\n", NULL},
           {"tests/a.c", STATUS "return g(a, err);\n}\n", NULL},
           {"core/ddp/a.c", STATUS "/* return g(a, err); */ return CDDP_OK;\n}\n", NULL}
           /* clang-format on */
    );
#undef STATUS
}

TEST(tidy, sees_citations_of_notes_that_nobody_wrote)
{
    PLANTS(tidy_check_notes, {"core/ddp/a.c", "/* See Note [Missing]. */", "cites Note [Missing]"},
           {"core/ddp/a.c", "/* Note [Here]\n** text */\n/* See Note [Here]. */", NULL});
}

TEST(tidy, sees_tags_and_invariants_without_an_entry)
{
    PLANTS(tidy_check_tags, {"core/ddp/a.c", "/* as in RED-99 */", "the rule RED-99"},
           {"tests/a.c", "/* TI-A-99 */", "the rule TI-A-99"},
           {"scenarios/a.toml", "tags = [\"ZOO-146\"]", "the rule ZOO-146"},
           {"scenarios/a.toml", "finding = \"I-ODDER\"", "names I-ODDER"},
           {"core/ddp/a.c",
            "/* RED-05 and I-ORDER; UTF-16; I-NAME; x86-64; A-1; TI-A-01; SHA-256; ISO-8601 */",
            NULL});
}

TEST(tidy, sees_upstreams_tests_that_nothing_shows)
{
    PLANTS(tidy_check_shown, {"docs/zoo.md", "| TI-A-02 | … |", "has a row for TI-A-02"},
           {"docs/zoo.md", "|a|\n| VER-03 | … |\n", "has a row for VER-03"},
           {"tests/fuzz/corpus/a.toml", "| TI-A-02 |", NULL},
           {"docs/zoo.md",
            "| TI-A-01 | … |\n| TI-A-02, TI-A-03: helpers | left out |\n| RED-05 | … |\n| TI-A-04: "
            "one | left out |\n",
            NULL});
}

TEST(tidy, sees_missing_licence_lines)
{
    PLANTS(tidy_check_spdx,
           {"core/ddp/a.c", "int a;\n/* SPDX-License-Identifier: Apache-2.0 */",
            "core/ddp/a.c:1: does not begin"},
           {"tools/a.py", "#!/usr/bin/env python3\nprint()\n", "tools/a.py:1: does not begin"},
           {"tools/a.py", "#!/usr/bin/env python3\n# SPDX-License-Identifier: Apache-2.0\n", NULL},
           {"core/ddp/a.c", SPDX "int a;\n", NULL});
}

TEST(tidy, sees_deferred_work)
{
    PLANTS(tidy_check_leftovers, {"core/ddp/a.c", "/* TODO: more */", "TODO"},
           {"docs/a.md", "FIXME later", "FIXME"}, {"core/ddp/a.c", "#if 0\n", "#if 0"},
           {"core/ddp/a.c", "int TODOS, XXXL; /* nothing to do */", NULL});
}

TEST(tidy, sees_checks_that_nobody_has_seen_fire)
{
    PLANTS(tidy_check_pairs,
           {"core/check/checks.def", "\nCD_CHECK(once, \"I-ONCE\")\n", "once has no row"},
           {"core/check/checks.def", "\nCD_CHECK(order, \"I-ORDER\")\n", NULL});
}

TEST(tidy, sees_marks_that_the_language_does_not_know)
{
    PLANTS(tidy_check_marks,
           {"core/ddp/a.c", "CD_EMIT(r->tracer, mark, \"rebuilt\", .value = 1);",
            "core/ddp/a.c:1: emits the mark rebuilt"},
           {"core/hooks/a.c", "\ncddp_tracer_mark(s->tracer, \"rebuilt\", 1);",
            "core/hooks/a.c:2: emits the mark rebuilt"},
           {"core/run/a.c", "cd_trainer_emit_mark(t, \"rebuild\", 1);", NULL},
           {"core/run/a.c", "f(name); /* _mark(t, \"rebuilt\") */", NULL});
}

TEST(tidy, sees_marks_that_nobody_reports)
{
    tidy_tree tree = {0};
    tidy_report report = {0};
    tidy_tree_add(&tree, "core/plan/marks.def", SPDX "\nCD_MARK(rebuild, \"…\")");
    tidy_tree_add(&tree, "core/run/a.c", SPDX "/* rebuild */ count_mark(tap, \"rebuild_later\");");
    tidy_check_marks(&tree, &report);
    assert_int_equal(report.count, 2);
    assert_non_null(strstr(report.text, "the mark rebuild is emitted nowhere"));
    tidy_report_free(&report);
    tidy_tree_free(&tree);
}

TEST(tidy, sees_what_reaches_the_judge_outside_of_its_table)
{
    PLANTS(tidy_check_observed,
           {"core/run/a.c", "\nCD_TRY(cd_oracle_begin_step(o, 0));",
            "core/run/a.c:2: cd_oracle_begin_step: the judge is fed through the rows"},
           {"core/train/a.c", "cd_reference_create(&options, &r, err);", "cd_reference_create"},
           {"core/run/a.c", "cd_referee_peek(o, &tensor);", "cd_referee_peek"},
           {"core/run/a.c", "cd_referee_create(o); cd_referee_begin(o, &b); x_cd_oracle_y(1);",
            NULL},
           {"core/reference/a.c", "cd_oracle_begin_step(o, 0);", NULL},
           {"core/reference/observed.def", "CD_OBSERVED_FIELD(const float *, values, PLAN, \"\")",
            "const float *: a field is a value"},
           {"core/reference/observed.def", "CD_OBSERVED_FIELD(void, values, PLAN, \"\")", "void"},
           {"core/reference/observed.def", "CD_OBSERVED_FIELD(double, norm, PLAN, \"\")", NULL});
}

TEST(tidy, sees_reads_of_other_ranks_that_nobody_explained)
{
    PLANTS(tidy_check_reads,
           {"core/ddp/a.c", "int *x = c->host;",
            "core/ddp/a.c:1: reads host 1 times, of which tests/tidy/reads.def explains 0"},
           /* clang-format off */
           {"core/hooks/a.c", "\nif (cddp_group_size(g) >= 7) return;", "core/hooks/a.c:2: reads cddp_group_size 1 times"},
           {"core/run/a.c", "r = cddp_group_rank(g);", "reads cddp_group_rank"},
           {"core/ddp/modes/delayed.c", "a = cddp_group_size(g); b = cddp_group_size(g);", "2 times, of which tests/tidy/reads.def explains 1"},
           {"core/ddp/modes/delayed.c", "\n", "0 times, of which tests/tidy/reads.def explains 1"},
           {"core/ddp/modes/delayed.c", "a = cddp_group_size(g); host(1); ghost.hosts = x_cddp_group_rank(2); /* c->host */", NULL},
           /* clang-format on */
           {"core/comm/a.c", "b->host[0] = cddp_group_size(g);", NULL});
}

TEST(tidy, sees_constructors_that_nobody_has_starved)
{
    PLANTS(tidy_check_constructors,
           /* clang-format off */
           {"core/ddp/a.h", "cddp_status cd_never_reported_create(int a, cddp_error *err);\n", "core/ddp/a.h:1: cd_never_reported_create has no row"},
           {"cli/a.h", "cddp_status\n cd_a;\ncddp_status cd_file_open_new(void);\n", "cli/a.h:3: cd_file_open_new has no row"},
           {"sim/world.h", "cddp_status cd_sim_create(int a);\n", "cd_sim_create: its test tests/unit/sim/world_test.c is not there"},
           {"core/ddp/a.h", "cddp_status cd_schedule_open(int a);\n", NULL},
           /* clang-format on */
           {"core/ddp/a.h",
            "void cd_plain_init(int *a);\ncddp_status cd_opened_later(int a);\nstatic cddp_status "
            "make_create(int a);\n"
            "/* cddp_status cd_never_reported_create(int a); */\n",
            NULL},
           {"tests/a.h", "cddp_status cd_never_reported_create(int a);\n", NULL});
}

TEST(tidy, sees_rows_of_constructors_that_show_nothing)
{
    static const struct {
        const char *test, *reported;
    } cases[] = {{"int main(void) { return 0; }", "cd_wide_sum_init: no allocation fails in"},
                 {"cd_test_oom_loop(make_other, 0);", "does not name cd_wide_sum_init"},
                 {"/* cd_wide_sum_init */ cd_test_oom_loop(make_other, 0);",
                  "does not name cd_wide_sum_init"},
                 {"cd_wide_sum_init(&s); cd_test_oom_loop(make_sum, 0);", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tidy_tree tree = {0};
        tidy_report report = {0};
        cd_test_row("%zu", i);
        tidy_tree_add(&tree, "core/oracle/wide_sum.h", "cddp_status cd_wide_sum_init(int a);");
        tidy_tree_add(&tree, "tests/unit/core/oracle/wide_sum_test.c", cases[i].test);
        tidy_check_constructors(&tree, &report);
        assert_int_equal(report.count, cases[i].reported != NULL);
        if (cases[i].reported != NULL) assert_non_null(strstr(report.text, cases[i].reported));
        tidy_report_free(&report);
        tidy_tree_free(&tree);
    }
}

TEST(tidy, sees_links_into_nowhere)
{
    PLANTS(tidy_check_links, {"docs/a.md", "[x](b.md)", "links to b.md"},
           {"docs/a.md", "[x](../core/nothing)", "links to ../core/nothing"},
           {"docs/howto/a.md",
            "[x](../semantics.md) [y](../../core/ddp) [z](https://example.org) [w](#here) "
            "[v](../semantics.md#a)",
            NULL});
}

TEST(tidy, sees_names_of_files_that_are_not_there)
{
    PLANTS(tidy_check_references,
           /* clang-format off */
           {"core/ddp/a.c", "int a; /* see core/ddp/bucket.c. */", "core/ddp/a.c:1: names core/ddp/bucket.c, which is not there"},
           {"core/ddp/a.h", "\n// as bucket.h says\n", "core/ddp/a.h:2: names bucket.h"},
           {"core/plan/keys.def", "/* read by key.c */\nROW(\"other.c\")", "names key.c"},
           {"docs/a.md", "`cddp/bucket.h`", "docs/a.md:1: names cddp/bucket.h"},
           {"docs/a.md", "`scenarios/unused/gan.toml`", "names scenarios/unused/gan.toml"},
           {"core/ddp/a.c", "/* core/ddp/reducer/reducer.h, cddp/ddp.h, reducer.h, a.c */ f(\"bucket.c\");", NULL},
           {"core/ddp/a.c", "/* *.c <name>.c name*.c reducer.cpp torch/nn/join.py $x.sh 3.c-d .c e.g */", NULL},
           {"docs/a.md", "../core/ddp/reducer/reducer.h scenario.toml nccl.h", NULL}
           /* clang-format on */
    );
}

#define TEN "one two three four five six seven eight nine ten "

TEST(tidy, sees_words_that_readers_would_have_to_learn)
{
    PLANTS(tidy_check_all_prose,
           /* clang-format off */
           {"core/ddp/a.c", "int a; /* what it was told */", "core/ddp/a.c:1: \"told\": write \"reported\""},
           {"core/ddp/a.c", "\nconst char *a = \"Told twice\";", "core/ddp/a.c:2: \"told\""},
           {"core/ddp/a.c", "/* a memory of\n** its own */\n", "core/ddp/a.c:1: \"of its own\": write \"its own\""},
           {"core/ddp/a.c", "// a memory of\n// its own\n", "core/ddp/a.c:1: \"of its own\""},
           {"cli/a.c", "f(\"a memory of \"\n  \"their own\");", "cli/a.c:1: \"of their own\""},
           {"core/ddp/a.h", "int cd_open_scribe;", "core/ddp/a.h:1: an identifier with \"scribe\": use \"writer\""},
           {"core/ddp/teller.c", "int a;", "core/ddp/teller.c:1: a name of a file with \"teller\""},
           {"docs/a.md", "a `home is` lost", "\"home is\""},
           {"docs/a.md", "```console\n$ a --seat 3\n```\n", "docs/a.md:2: \"seat\""},
           {"scenarios/a.toml", "title = \"what each was told\"", "scenarios/a.toml:1: \"told\""},
           {"verify/prove/a.c", "/* a letter of it */", "\"letter\": write \"call of a rank\""},
           {"docs/a.md", "The bound holds for f64", "\"holds for\""},
           {"docs/a.md", "Equality holds.", "\"holds.\""},
           {"core/ddp/a.c", "/* describes subscribers, holds a lock, of\n**\n** its own; a letter; tolds; ideal */ int subscribe, ideal;", NULL},
           /* clang-format on */
           {"tests/tidy/words.def", "/* told */", NULL});
}

TEST(tidy, sees_sentences_that_do_not_end)
{
    PLANTS(tidy_check_all_prose,
           /* clang-format off */
           {"docs/a.md", "Short one. " TEN TEN "\n" TEN "eleven.\n", "docs/a.md:1: a sentence of 31 words: one two"},
           {"docs/a.md", "* " TEN TEN TEN "`a b`\n* more", "a sentence of 31 words"},
           {"core/ddp/a.c", "f(\"" TEN TEN "\"\n  \"" TEN "%\" PRIu64 \" words\");", "core/ddp/a.c:1: a sentence of 31 words"},
           {"core/ddp/a.c", "f(\"" TEN TEN TEN "\", \"" TEN "\", g, \"" TEN "\");", NULL},
           {"core/ddp/a.c", "f(\"" TEN TEN TEN "\\n" TEN "\"); /* " TEN TEN TEN TEN "*/", NULL},
           {"core/ddp/a.c", "f(\"SELECT " TEN TEN TEN TEN "\");", NULL},
           {"docs/a.md", TEN TEN TEN "\n\n" TEN "\n- " TEN TEN "\n- " TEN TEN "\n| " TEN TEN " | " TEN TEN " |\n", NULL},
           {"docs/a.md", TEN TEN "(" TEN "!) " TEN TEN "[a](b c) `one two three four`.\n\n    " TEN TEN TEN TEN "\n", NULL},
           /* clang-format on */
           {"tests/a.c", "f(\"" TEN TEN TEN TEN "\");", NULL});
}

TEST(tidy, enforces_prose_where_it_is_clean)
{
    PLANTS(tidy_check_prose, {"cmake/a.cmake", "# told\n", "cmake/a.cmake:1: \"told\""},
           {"elsewhere/a.md", "told", NULL});
}

TEST(tidy, sees_lines_that_are_too_wide)
{
    PLANTS(tidy_check_width,
           /* clang-format off */
           {"core/ddp/a.c", "int a;\n/* " TEN TEN "*/\n", "core/ddp/a.c:2: a line of 103 columns"},
           {"core/ddp/a.c", "/* clang-format off */\n/* " TEN TEN "*/\n/* clang-format on */\n/* " TEN TEN "*/", "core/ddp/a.c:4: a line"},
           /* clang-format on */
           {"core/ddp/a.c", "/* " TEN "ΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣΣ */\n", NULL},
           {"core/ddp/a.def", "/* " TEN TEN "*/\n", NULL});
}

TEST(tidy, sees_blocks_that_nobody_closes)
{
    PLANTS(tidy_check_fences, {"docs/a.md", "```console\n$ a\n\n## b\n", "is not closed"},
           {"docs/a.md", "```console\n$ a\n\n## b\n\n```sh\nc\n```\n", "is not closed"},
           {"core/a.c", "/* ``` */\n", NULL},
           {"docs/a.md",
            "```console\n$ a\n```\n\n```\nb\n```\n* c\n\n      ```toml\n      d = 1\n      ```\n",
            NULL});
}

TEST(tidy, sees_braces_around_a_body_of_one_line)
{
    PLANTS(tidy_check_braces,
           /* clang-format off */
           {"core/ddp/a.c", "f()\n{\n    if (a) {\n        b();\n    }\n}\n", "core/ddp/a.c:3: a body of one line has braces"},
           {"core/ddp/a.c", "for (i = 0; i < n; i++) {\n    b[i] = \"}{ //\"[i];\n}\n", "has braces"},
           {"core/ddp/a.c", "while (a('\"', '\\'')) {\n    p = (pair){1, 2};\n}\n", "has braces"},
           {"core/ddp/a.c", "if (a &&\n    b) {\n    return x * y;\n}\n", "has braces"},
           {"core/ddp/a.c", "if (a) {\n    b();\n} else if (c) {\n    d();\n} else {\n    e();\n}\n", "has braces"},
           {"core/ddp/a.c", "if (a)\n    b();\nelse {\n    e();\n}\n", "has braces"},
           {"backends/nccl/a.cu", "if constexpr (a) {\n    std::swap(b, c);\n}\n", "has braces"},
           {"core/ddp/a.c", "if (a)\n    b();\nelse {\n    c();\n    d();\n}\n", "has no braces"},
           {"core/ddp/a.c", "if (a) {\n    b();\n    c();\n} else if (d)\n    e();\n", "has no braces"},
           {"core/ddp/a.c", "if (a) b();\nfor (;;) {\n    if (a) b();\n}\nif (a)\n    b();\nelse if (c)\n    d();\nelse\n    e();\n", NULL},
           {"core/ddp/a.c", "if (a) {\n    b();\n} else {\n    c();\n    d();\n}\nif (a) {\n    b();\n} else {\n    f(1,\n      2);\n}\n", NULL},
           {"core/ddp/a.c", "if (a) {\n    if (b) c();\n} else {\n    d();\n}\nif (a) {\n    f(1,\n      2);\n}\n", NULL},
           {"core/ddp/a.c", "if (a) {\n    b(); /* why */\n}\nif (a) {\n    // why\n    b();\n}\nif (a) { /* why */\n    b();\n}\n", NULL},
           {"core/ddp/a.c", "if (a) {\n}\nif (a) {\n    int b = 1;\n}\nif (a) {\n    type *b = c;\n}\nif (a) {\n    EACH(b)\n}\nfor (;;) {\nout: b();\n}\n", NULL},
           {"core/ddp/a.c", "do {\n    a();\n} while (b);\n{ c(); }\n#define A \\\n    if (a) { \\\n        b(); \\\n    }\n", NULL},
           {"core/ddp/a.c", "const char *off = \"/* clang-format off\";\nif (a) {\n    b();\n}\n", "a.c:2: a body of one line has braces"},
           {"core/ddp/a.c", "if (a) {\n#ifdef B\n    b();\n#endif\n}\n/* clang-format off */\nif (a) { b(); }\n/* clang-format on */\n", NULL},
           /* clang-format on */
           {"docs/a.md", "if (a) {\n    b();\n}\n", NULL});
}

TEST(tidy, the_tree_obeys)
{
    tidy_tree tree = {0};
    tidy_tree_load(&tree, CDDP_ROOT);
    assert_true(tree.count > 50);
    size_t reports = 0;
    for (size_t i = 0; i < RULE_COUNT; i++) {
        tidy_report report = {0};
        rules[i].rule(&tree, &report);
        if (report.count != 0) print_error("%s: %zu\n%s", rules[i].name, report.count, report.text);
        reports += report.count;
        tidy_report_free(&report);
    }
    tidy_print_outliers(&tree);
    tidy_tree_free(&tree);
    assert_int_equal(reports, 0);
}

/* `tidy_test --report prose` lists what the rules on prose would say of the whole tree. */
int main(int argc, char **argv)
{
    if (argc != 3 || strcmp(argv[1], "--report") != 0 || strcmp(argv[2], "prose") != 0)
        return cd_test_main(argc, argv, __FILE__);
    tidy_tree tree = {0};
    tidy_tree_load(&tree, CDDP_ROOT);
    tidy_report report = {0};
    tidy_check_all_prose(&tree, &report);
    printf("%s%zu places\n", report.text != NULL ? report.text : "", report.count);
    tidy_report_free(&report);
    tidy_tree_free(&tree);
    return 0;
}
