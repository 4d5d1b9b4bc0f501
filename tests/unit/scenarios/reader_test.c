/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/reader/reader.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

typedef struct heard {
    char text[4096];
    size_t count;
} heard;

static void listen(void *context, const cd_complaint *complaint)
{
    heard *h = context;
    char one[512];
    cd_complaint_print(complaint, one, sizeof one);
    strncat(h->text, one, sizeof h->text - strlen(h->text) - 1);
    h->count++;
}

static cddp_status read_text(const char *text, heard *h, cddp_plan **plan, cddp_error *err)
{
    const cd_reader_options options = {.complain = listen, .context = h};
    memset(h, 0, sizeof *h);
    return cd_reader_read_text(&options, "a.toml", text, plan, err);
}

TEST(reader, a_file_becomes_a_plan)
{
    static const char text[] =
        "schema = 1\n"
        "title = \"all kinds, and a comma\"\n"
        "tags = [\"UNU-04\", \"TI-B-03\"]\n"
        "[world]\nsize = 3\n"
        "[ddp]\nbucket_cap_mb = 1\nfind_unused_parameters = true\nbucket_cap_mb_list = []\n"
        "[[when]]\nranks = [0, 2]\nsteps = \"1%2\"\nsync = false\n"
        "[[when]]\nmicro_steps = 1\nready = \"listed\"\nready_order = [\"a\", \"b\"]\n"
        "[train]\nmicro_steps = 2\n"
        "[[rank]]\nranks = 1\nddp.find_unused_parameters = false\n"
        "[expect]\nverdict = \"findings\"\n"
        "[[expect.finding]]\ncheck = \"I-USED\"\nrank = 1\n";
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    heard h;
    assert_ok(read_text(text, &h, &plan, &err), &err);
    assert_int_equal(plan->world.size, 3);
    assert_string_equal(plan->title, "all kinds, and a comma");
    assert_int_equal(plan->tags.count, 2);
    assert_int_equal(plan->when_count, 2);
    assert_true(cddp_selector_has(&plan->whens[0].ranks, 2));
    assert_false(cddp_selector_has(&plan->whens[0].ranks, 1));
    assert_int_equal(plan->whens[0].sync, 0);
    assert_string_equal(plan->whens[1].ready_order.items[1], "b");
    assert_int_equal(plan->override_count, 1);
    cddp_plan_settings settings;
    assert_ok(cddp_plan_rank_settings(plan, 1, &settings, &err), &err);
    assert_false(settings.ddp.find_unused_parameters);
    assert_int_equal(plan->expect.finding_count, 1);
    assert_int_equal(plan->expect.findings[0].rank, 1);
    assert_true(plan->expect.findings[0].step == CDDP_PLAN_UNSET);
    assert_string_equal(plan->text, text);
    cddp_plan_destroy(plan);
}

/* Says something of the second [[when]], of a key that only a [[rank]] has, and of one that nobody
** wrote. */
static size_t examine(void *context, const cddp_plan *plan, cd_contradiction_fn report,
                      void *report_context)
{
    (void)context;
    assert_int_equal(plan->when_count, 2);
    report(report_context, "when[1].branch", "first");
    report(report_context, "model.options", "second");
    report(report_context, "when[1].uses", "third");
    report(report_context, "when[2].uses", "fourth");
    return 4;
}

TEST(reader, what_is_found_later_stands_at_the_element_that_it_is_about)
{
    static const char text[] = "schema = 1\n"
                               "title = \"t\"\n"
                               "[[when]]\nbranch = 0\n"
                               "[[when]]\nsteps = 1\nbranch = 1\n"
                               "[[rank]]\nranks = 1\nmodel.options = \"x=1\"\n";
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    heard h = {.count = 0};
    const cd_reader_options options = {.complain = listen, .context = &h, .examine = examine};
    assert_fails(cd_reader_read_text(&options, "a.toml", text, &plan, &err), CDDP_E_CONFIG, &err,
                 "a.toml");
    cd_test_row("%s", h.text);
    assert_int_equal(h.count, 4);
    assert_non_null(strstr(h.text, "a.toml:7:10: first\n    branch = 1\n             ^"));
    assert_non_null(strstr(h.text, "a.toml:10:17: second\n"));
    assert_non_null(strstr(h.text, "a.toml:6:1: third\n"));
    assert_non_null(strstr(h.text, "a.toml: fourth\n"));
    /* Contradictions of the language itself too; then nobody else is asked. */
    static const char contradiction[] =
        "schema = 1\ntitle = \"t\"\n[[when]]\nranks = 1\n[[when]]\nranks = 5\n";
    assert_fails(read_text(contradiction, &h, &plan, &err), CDDP_E_CONFIG, &err,
                 "a.toml:6:1: when.ranks = 5 selects nothing");
    assert_int_equal(h.count, 1);
}

TEST(reader, every_mistake_is_reported_at_once_with_its_place_and_the_nearest_key)
{
    static const char text[] = "schema = 1\n"
                               "title = \"t\"\n"
                               "[ddp]\n"
                               "find_unused = true\n"
                               "  static_graph = \"yes\"\n"
                               "[trian]\n"
                               "steps = 3\n"
                               "[world]\n"
                               "size = 0\n";
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    heard h;
    assert_fails(read_text(text, &h, &plan, &err), CDDP_E_CONFIG, &err,
                 "a.toml:4:1: unknown key 'find_unused'");
    assert_null(plan);
    assert_string_equal(
        h.text,
        "a.toml:4:1: unknown key 'find_unused' in [ddp]; did you mean 'find_unused_parameters'?\n"
        "    find_unused = true\n"
        "    ^\n"
        "a.toml:5:18: 'static_graph' wants true or false, not text\n"
        "      static_graph = \"yes\"\n"
        "                     ^\n"
        "a.toml:6:2: unknown table [trian]; did you mean [train]?\n"
        "    [trian]\n"
        "     ^\n"
        "a.toml:9:8: world.size = 0 is out of range: 1 to 4096\n"
        "    size = 0\n"
        "           ^\n");
}

TEST(reader, settings_may_be_written_as_a_table)
{
    static const char text[] = "schema = 1\ntitle = \"t\"\n"
                               "[hook]\ncomm_hook = \"power_sgd\"\n"
                               "comm_state_option = { matrix_approximation_rank = 2, warm_start = "
                               "true, orthogonalization_epsilon = 1e-3 }\n"
                               "[model.options]\nhidden = 8\n"
                               "[[rank]]\nranks = 1\nhook.comm_state_option = { "
                               "start_powerSGD_iter = 3, random_seed = 7 }\n";
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    heard h;
    assert_ok(read_text(text, &h, &plan, &err), &err);
    assert_string_equal(
        plan->settings.hook.comm_state_option,
        "matrix_approximation_rank=2,orthogonalization_epsilon=0.001,warm_start=true");
    assert_string_equal(plan->settings.model.options, "hidden=8");
    assert_int_equal(plan->override_count, 1);
    cddp_plan_destroy(plan);
}

static char dots[256];

static const struct {
    const char *name, *text, *words;
} refused[] = {
    {"broken TOML", "schema = 1\ntitle = \n", "a.toml:2:"},
    {"no schema", "title = \"t\"\n", "starts with schema = 1"},
    {"schema of the future", "schema = 2\ntitle = \"t\"\n", "out of range: 1 to 1"},
    {"table written once that repeats", "schema=1\ntitle=\"t\"\n[when]\nsync=true\n",
     "write [[when]]"},
    {"table repeated that does not", "schema=1\ntitle=\"t\"\n[[ddp]]\nstatic_graph=true\n",
     "may not be repeated"},
    {"key that is the same for all ranks",
     "schema=1\ntitle=\"t\"\n[[rank]]\nranks=0\nworld.size=3\n", "cannot be changed for some"},
    {"unknown key in a rank table", "schema=1\ntitle=\"t\"\n[[rank]]\nranks=0\nddp.static=true\n",
     "did you mean 'static_graph'"},
    {"line of the top behind a header", "schema=1\ntitle=\"t\"\n[ddp]\nabout=\"a\"\n",
     "unknown key 'about' in [ddp]; did you mean 'about' above the first table?"},
    {"the right name with its table before it", "schema=1\ntitle=\"t\"\nworld_size=3\n",
     "unknown key 'world_size'; did you mean 'world.size'?"},
    {"a short name of another table", "schema=1\ntitle=\"t\"\n[train]\nlr=1\n",
     "unknown key 'lr' in [train]; did you mean 'optimizer[].lr'?"},
    {"a word too many", "schema=1\ntitle=\"t\"\n[[fault]]\nat_step=2\n",
     "unknown key 'at_step' in [fault]; did you mean 'at'?"},
    {"a key that only findings have", "schema=1\ntitle=\"t\"\n[[fault]]\nstep=2\n",
     "unknown key 'step' in [fault]; [fault] has kind, when, at, "},
    {"a longer name of a table", "schema=1\ntitle=\"t\"\n[training]\nsteps=2\n",
     "did you mean [train]?"},
    {"a table written as a key", "schema=1\ntitle=\"t\"\nmodel=\"mlp\"\n",
     "did you mean 'model.name'?"},
    {"a word that is nearly one of those", "schema=1\ntitle=\"t\"\n[expect]\nverdict=\"findngs\"\n",
     "did you mean 'findings'?"},
    {"contradiction with its place", "schema=1\ntitle=\"t\"\n[train]\nresume=true\n",
     "a.toml:4:1: train.resume needs"},
    {"list in a table of settings", "schema=1\ntitle=\"t\"\n[hook.options]\nk=[1,2]\n",
     "a.toml:4:1: 'k' in a table of settings"},
    {"comma in a table of settings", "schema=1\ntitle=\"t\"\nhook.options={k=\"1,l=2\"}\n",
     "'k' in a table of settings"},
    {"table of a rank repeated",
     "schema=1\ntitle=\"t\"\n[[rank]]\nranks=0\n[[rank.ddp]]\nstatic_graph=true\n",
     ":5:1: [[rank.ddp]] may not be repeated: write it once, with single brackets"},
    {"unknown table repeated within another",
     "schema=1\ntitle=\"t\"\n[[when]]\n[[when.foo]]\na=1\n", "unknown table [[when.foo]]"},
    {"table in a table of settings", "schema=1\ntitle=\"t\"\n[hook.options.deep]\nk=1\n",
     "unknown table [hook.options.deep]"},
    {"text that has no settings", "schema=1\ntitle=\"t\"\n[hook.name]\nk=1\n",
     "unknown table [hook.name]"},
    {"element of a table within [rank]",
     "schema=1\ntitle=\"t\"\n[rank]\n[[rank.ddp]]\nstatic_graph=true\n", "write [[rank]]"},
    {"table within a table repeated by mistake",
     "schema=1\ntitle=\"t\"\n[[expect]]\n[expect.finding]\ncheck=\"I-REF\"\n",
     "may not be repeated"},
    {"quoted key that looks like an element",
     "schema=1\ntitle=\"t\"\n[\"rank[5]\"]\nddp.static_graph=true\n",
     "a.toml:3:2: a key is letters"},
    {"half a bracket in a key", "schema=1\ntitle=\"t\"\n\"when[\" = 1\n", "a key is letters"},
    {"empty key", "schema=1\ntitle=\"t\"\n\"\" = 1\n", "a key is letters"},
    {"line of dots", dots, "a.toml:3:129: more than 128 dots"},
    {"zero byte in text", "schema=1\ntitle=\"a\\u0000b\"\n", "a.toml:2:7: text with a zero byte"},
    {"values within values", "schema=1\ntitle=[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]\n",
     "nested value depth"},
    {"value of a rank that does not fit, then one that does",
     "schema=1\ntitle=\"t\"\n[[rank]]\nranks=0\ntrain.steps=0\ntrain.micro_steps=2\n",
     "a.toml:5:13: train.steps = 0 is out of range"},
    {"empty selection", "schema=1\ntitle=\"t\"\n[[when]]\nranks=[]\n",
     "a.toml:4:7: when[].ranks selects nothing"},
    {"empty text of a selection", "schema=1\ntitle=\"t\"\n[[when]]\nsteps=[\"1\", \"\"]\n",
     "when[].steps selects nothing"},
    {"selection of an empty text", "schema=1\ntitle=\"t\"\n[[when]]\nsteps=\"\"\n",
     "a.toml:4:7: when[].steps selects nothing"},
    {"no ranks of [[rank]]", "schema=1\ntitle=\"t\"\n[[rank]]\nranks=[]\nddp.static_graph=true\n",
     "a.toml:4:7: 'ranks' selects nothing"},
    {"empty text in a list", "schema=1\ntitle=\"t\"\n[expect]\nsame_with=[\"\"]\n",
     "a.toml:4:11: text 1 of expect.same_with is empty"},
    {"date", "schema=1\ntitle=2024-01-01\n", "wants text in quotes, not something else"},
};

TEST(reader, what_is_wrong_is_refused)
{
    memcpy(dots, "schema=1\ntitle=\"t\"\n", 19);
    memset(dots + 19, '.', 129);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        heard h;
        cd_test_row("%s", refused[i].name);
        assert_fails(read_text(refused[i].text, &h, &plan, &err), CDDP_E_CONFIG, &err,
                     refused[i].words);
        assert_true(h.count >= 1);
    }
}

/* Each mistake is looked up in the text, so that a file of nothing else would take for ever. */
TEST(reader, mistakes_without_end_are_not_all_reported)
{
    static char text[40000];
    static const char *const what[] = {"a%u = 1\n", "[a%u]\n", "[[when]] # %u\nranks = 9\n"};
    for (size_t i = 0; i < sizeof what / sizeof what[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        heard h;
        size_t used = (size_t)snprintf(text, sizeof text, "schema = 1\ntitle = \"t\"\n");
        cd_test_row("%s", what[i]);
        for (unsigned k = 0; k < 201; k++)
            used += (size_t)snprintf(text + used, sizeof text - used, what[i], k);
        assert_fails(read_text(text, &h, &plan, &err), CDDP_E_CONFIG, &err, "a.toml:");
        assert_int_equal(h.count, 201); /* 200, and that there are more */
        *strrchr(text, i == 2 ? '9' : i == 1 ? '[' : 'a') = i == 2 ? '1' : '#';
        assert_fails(read_text(text, &h, &plan, &err), CDDP_E_CONFIG, &err, "a.toml:");
        assert_int_equal(h.count, 200);
    }
}

TEST(reader, a_contradiction_may_be_what_a_scenario_expects)
{
    static const char text[] = "schema = 1\ntitle = \"t\"\n[train]\nresume = true\n"
                               "[expect]\nverdict = \"error\"\nerror = \"nothing to load\"\n";
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    heard h;
    assert_ok(read_text(text, &h, &plan, &err), &err);
    cddp_plan_destroy(plan);
}

TEST(reader, settings_of_the_command_line_go_over_the_file)
{
    static const char text[] = "schema = 1\ntitle = \"t\"\n[world]\nsize = 2\n";
    const char *const good[] = {"world.size=5", "ddp.static_graph@1=true"};
    const char *const bad[] = {"world.siz=5", "nonsense"};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    heard h = {0};
    cd_reader_options options = {.complain = listen, .context = &h, .sets = good, .set_count = 2};
    assert_ok(cd_reader_read_text(&options, "a.toml", text, &plan, &err), &err);
    assert_int_equal(plan->world.size, 5);
    assert_int_equal(plan->override_count, 1);
    cddp_plan_destroy(plan);
    options.sets = bad;
    assert_fails(cd_reader_read_text(&options, "a.toml", text, &plan, &err), CDDP_E_CONFIG, &err,
                 "--set world.siz=5");
    assert_int_equal(h.count, 2);
}

TEST(reader, a_file_that_is_not_there_is_an_input_error)
{
    const cd_reader_options options = {0};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_fails(cd_reader_read_file(&options, "no/such/file.toml", &plan, &err), CDDP_E_IO, &err,
                 "no/such/file.toml");
}

static cddp_status read_and_drop(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    const cd_reader_options options = {.allocator = allocator};
    cddp_plan *plan = NULL;
    cddp_status status = cd_reader_read_text(&options, "a.toml", argument, &plan, err);
    cddp_plan_destroy(plan);
    return status;
}

TEST(reader, running_out_of_memory_leaves_nothing_behind)
{
    static char text[] = "schema = 1\ntitle = \"t\"\n[[when]]\nsync = true\n[[rank]]\nranks = "
                         "1\nddp.static_graph = true\n";
    cd_test_oom_loop(read_and_drop, text);
}

TEST_MAIN()
