/* SPDX-License-Identifier: Apache-2.0 */
/* cddp-verify as a user meets it: words, exit codes, streams, formats. */
#define _POSIX_C_SOURCE 200809L
#include "tests/golden/cli/program.h"

#include <signal.h>
#include <unistd.h>

static const struct {
    const char *name, *operands, *summary;
} commands[] = {
#define CD_COMMAND(id, name, operands, summary, more) {name, operands, summary},
#include "cli/commands.def"
#undef CD_COMMAND
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

TEST(program, the_overview_names_every_command_and_exit_code)
{
    static const char *const ways[] = {"", "--help", "-h", "help"};
    cd_program p;
    program_open(&p);
    for (size_t way = 0; way < 4; way++) {
        cd_test_row("cddp-verify %s", ways[way]);
        program_run(&p, ways[way]);
        assert_int_equal(p.exit_code, 0);
        for (size_t i = 0; i < COMMAND_COUNT; i++) {
            char line[256];
            snprintf(line, sizeof line, "\n  %s ", commands[i].name);
            assert_contains(p.out, line);
            snprintf(line, sizeof line, "  %s\n", commands[i].summary);
            assert_contains(p.out, line);
        }
        assert_contains(p.out, "  0  verified");
        assert_contains(p.out, "  4  inconclusive");
    }
    program_close(&p);
}

/* It is an option of every command. */
TEST(program, the_version_is_printed_wherever_it_is_asked_for)
{
    static const char *const places[] = {"--version", "run --version",
                                         "scenarios/gan_unused_params.toml -V", "doctor --version",
                                         "version"};
    cd_program p;
    program_open(&p);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        cd_test_row("%s", places[i]);
        program_run(&p, places[i]);
        assert_int_equal(p.exit_code, 0);
        assert_int_equal(strncmp(p.out, "cddp-verify ", 12), 0);
        assert_ptr_equal(strchr(p.out, '\n') + 1, p.out + strlen(p.out));
    }
    program_close(&p);
}

TEST(program, every_command_explains_itself_in_two_ways)
{
    cd_program p;
    char arguments[64], usage[256];
    program_open(&p);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        cd_test_row("%s", commands[i].name);
        if (strcmp(commands[i].name, "help") == 0) continue; /* it is the overview */
        snprintf(arguments, sizeof arguments, "%s --help", commands[i].name);
        program_run(&p, arguments);
        assert_int_equal(p.exit_code, 0);
        snprintf(usage, sizeof usage, "usage: cddp-verify %s [OPTION...]", commands[i].name);
        assert_contains(p.out, usage);
        assert_contains(p.out, commands[i].operands);
        assert_string_equal(p.err, "");
        char *first = p.out;
        p.out = NULL;
        snprintf(arguments, sizeof arguments, "help %s", commands[i].name);
        program_run(&p, arguments);
        assert_string_equal(p.out, first);
        free(first);
    }
    program_close(&p);
}

TEST(program, mistakes_on_the_command_line_are_named_and_end_with_2)
{
    static const struct {
        const char *arguments, *words;
    } cases[] = {
        /* clang-format off */
        {"rnu", "unknown command 'rnu'; did you mean 'run'?"},
        {"frobnicate", "neither a command nor a scenario file"},
        {"run", "run what?"},
        {"no/such/file.toml", "cannot read 'no/such/file.toml': No such file or directory"},
        {"scenarios/gan_unused_parms.toml", "No such file or directory; did you mean 'scenarios/gan_unused_params.toml'?"},
        {"scenarios/model", "No such file or directory; did you mean 'scenarios/models'?"},
        {"'no/such/*.toml'", "no file matches"},
        {"scenarios/gan_unused_params.toml --sed 3", "unknown option '--sed'; did you mean '--seed'?"},
        {"scenarios/gan_unused_params.toml -x", "unknown option '-x'"},
        {"scenarios/gan_unused_params.toml --seed", "--seed needs a value"},
        {"scenarios/gan_unused_params.toml --seed twelve", "--seed: 'twelve' is not a whole number"},
        {"scenarios/gan_unused_params.toml --seed -3", "--seed: '-3' is negative"},
        {"scenarios/gan_unused_params.toml --seed 99999999999999999999", "'99999999999999999999' is too large"},
        {"scenarios/gan_unused_params.toml --output no/such/report.json", "cannot write 'no/such/report.json': No such file"},
        {"scenarios/gan_unused_params.toml --output /", "cannot write '/': Is a directory"},
        {"explore scenarios/gan_unused_params.toml --set world.backend=self --world-size 1", "only the simulator can be explored"},
        {"prove scenarios/faults/rank_dies.toml", "the scenario plants faults"},
        {"explore scenarios/order", "cannot read 'scenarios/order': Is a directory"},
        {"explore scenarios/gan_unused_params.toml --frontier README.md", "'README.md': this is not a frontier"},
        {"explore scenarios/gan_unused_params.toml --frontier no/such/file", "cannot write 'no/such/file': No such file"},
        {"explore scenarios/order/chosen_at_random.toml --strategy cover --certificate no/such", "cannot write 'no/such': No such file"},
        {"shrink scenarios/bugs/options_differ.toml -o no/such/small.toml", "cannot write 'no/such/small.toml': No such file"},
        {"replay scenarios/gan_unused_params.toml", "is a scenario: replay it with --schedule, or run it"},
        {"replay scenarios/gan_unused_params.toml --schedule s1: --step", "--step goes with a store"},
        {"replay no/such.db --format json --step", "--step walks in text on standard output"},
        {"replay no/such.db --seed 3", "--seed goes with a scenario and --schedule"},
        {"replay no/such.db --from 2", "--from goes with --step"},
        {"report no/such.db --run 0", "--run 0: the runs of a store are counted from 1"},
        {"scenarios/gan_unused_params.toml --world-size 0", "there is no world of 0 ranks"},
        {"scenarios/gan_unused_params.toml --keep-going=yes", "--keep-going takes no value"},
        {"scenarios/gan_unused_params.toml --format xml", "'xml' is not one of text, json, junit, sarif, html, perfetto or svg"},
        {"scenarios/gan_unused_params.toml --color blue", "'blue' is not one of auto, always or never"},
        {"scenarios/gan_unused_params.toml --set ddp", "'ddp' is not KEY=VALUE"},
        {"scenarios/gan_unused_params.toml --log dpp:debug", "there is no component 'dpp'"},
        {"scenarios/gan_unused_params.toml --log ddp:loud", "levels are error, warn, info and debug"},
        {"scenarios/gan_unused_params.toml --jobs 100000", "at most 256 workers"},
        {"scenarios/gan_unused_params.toml --plugin no/such.so", "cannot load plugin 'no/such.so'"},
        {"scenarios/gan_unused_params.toml --plugin /lib/x86_64-linux-gnu/libm.so.6", "does not export cddp_plugin_v1"},
        {"explain I-ORDR", "did you mean 'I-ORDER'?"},
        {"explain", "explain what?"},
        {"explain UNU-999", "no document states UNU-999"},
        {"explain ddp.bucket_cap_mp", "did you mean 'ddp.bucket_cap_mb'?"},
        {"list hoks", "did you mean 'hooks'?"},
        {"list", "list what? one of hooks, backends"},
        {"explain I-ORDER --jobs 2", "--jobs means nothing to 'explain'"},
        {"completion tcsh", "one of bash, zsh, fish"},
        {"doctor sim", "'doctor' takes nothing behind it, not 'sim'"},
        {"help run check", "'help' explains one command, not 'check' too"},
        {"list hooks topk", "'list hooks' takes nothing behind it, not 'topk'"},
        {"help rnu", "did you mean 'run'?"},
        {"report", "report which store?"},
        {"hook-conformance topk --hook-options j=2", "comm hook topk: unknown option 'j'"},
        {"hook-conformance fp16_compress_wrapper", "wraps another hook; none was given"},
        {"check no/such.db", "there is no store 'no/such.db'"},
        /* clang-format on */
    };
    cd_program p;
    program_open(&p);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].arguments);
        program_run(&p, cases[i].arguments);
        assert_contains(p.err, cases[i].words);
        assert_int_equal(p.exit_code, 2);
        assert_string_equal(p.out, "");
        assert_ptr_equal(strchr(p.err, '\n'), p.err + strlen(p.err) - 1); /* one line */
    }
    program_close(&p);
}

/* As of a file: all in one go, each with a caret, and said of the option. */
TEST(program, every_mistake_of_set_is_reported_at_once_below_its_option)
{
    static const char *const mistakes[] = {
        "--set ddp.bucket_cap=3: unknown key 'ddp.bucket_cap'; did you mean 'ddp.bucket_cap_mb'?\n"
        "    ddp.bucket_cap=3\n"
        "    ^\n",
        "--set world.size=two: world.size = 'two' is not a whole number\n"
        "    world.size=two\n"
        "               ^\n",
        "--set ddp.comm_hook=topx: there is no comm hook 'topx'; did you mean 'topk'?\n"
        "    ddp.comm_hook=topx\n"
        "                  ^\n",
    };
    static const char *const verbs[] = {"run", "explore", "shrink"};
    cd_program p;
    program_open(&p);
    for (size_t v = 0; v < sizeof verbs / sizeof verbs[0]; v++) {
        char line[256];
        cd_test_row("%s", verbs[v]);
        snprintf(line, sizeof line,
                 "%s scenarios/gan_unused_params.toml --set ddp.bucket_cap=3 --set world.size=two "
                 "--set ddp.comm_hook=topx",
                 verbs[v]);
        program_run(&p, line);
        assert_int_equal(p.exit_code, 2);
        for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++)
            assert_contains(v == 0 ? p.out : p.err, mistakes[i]);
    }
    program_close(&p);
}

TEST(program, mistakes_in_a_scenario_are_a_result_with_exit_code_2)
{
    cd_program p;
    program_open(&p);
    program_write(
        &p, "bad.toml",
        "schema = 1\ntitle = \"bad\"\n[ddp]\nfind_unused = true\nbucket_cap_mb = \"much\"\n");
    program_run(&p, "\"$T/bad.toml\"");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "error: ");
    assert_contains(p.out, "bad.toml:4:");
    assert_contains(p.out, "find_unused_parameters");
    assert_contains(p.out, "bad.toml:5:");
    program_run(&p, "scenarios/gan_unused_params.toml --set hook.name=alreduce");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "there is no comm hook 'alreduce'; did you mean 'allreduce'?");
    program_run(&p, "scenarios/gan_unused_params.toml --set ddp.find_unused=true");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "find_unused_parameters");
    program_run(&p, "scenarios/gan_unused_params.toml --set model.name=gam");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "no model is called \"gam\"");
    program_run(&p, "scenarios/gan_unused_params.toml --set model.name@1=gam");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "no model is called \"gam\"");
    /* A setting that only one rank refuses while it runs is a failed training. */
    program_run(&p, "scenarios/powersgd.toml --set ddp.comm_hook@1=topk:j=2");
    assert_int_equal(p.exit_code, 1);
    program_run(&p, "scenarios/gan_unused_params.toml --seed 18446744073709551615");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "is out of range: 0 to 9007199254740992");
    program_run(&p, "scenarios/gan_unused_params.toml --backend rr:3:glo");
    assert_int_equal(p.exit_code, 2);
    assert_null(strstr(p.out, "reproduce")); /* nothing has run */
    program_close(&p);
}

/* A report belongs into its file whole, or not at all; where it cannot be kept it is shown. */
TEST(program, a_file_is_written_whole_or_left_as_it_was)
{
    cd_program p;
    char path[1200];
    program_open(&p);
    snprintf(path, sizeof path, "%s/report.json", p.place);
    program_write(&p, "report.json", "what was here\n");
    program_run_with(&p, "ulimit -f 4; ", "scenarios/unused -k -f json -o \"$T/report.json\"");
    assert_int_equal(p.exit_code, 3);
    assert_contains(p.err, "report.json': ");
    assert_contains(p.out, "\"tool\": "); /* as much of it as the limit leaves room for */
    char *kept = program_slurp(path);
    assert_string_equal(kept, "what was here\n");
    free(kept);
    snprintf(path, sizeof path, "%s/report.json.new", p.place);
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/report.json", p.place);
    program_run(&p, "scenarios/gan_unused_params.toml -f json -o \"$T/report.json\"");
    assert_int_equal(p.exit_code, 0);
    kept = program_slurp(path);
    assert_contains(kept, "\"verdict\": \"verified\"");
    free(kept);
    /* a target that is not a plain file is written directly */
    program_run(&p, "scenarios/gan_unused_params.toml -f json -o /dev/stderr");
    assert_contains(p.err, "\"verdict\": \"verified\"");
    program_close(&p);
}

static const struct {
    const char *text, *words;
    /* below schema, title and [model] name = "chain", so that the text begins in line 5 */
} unknown_names[] = {
    {"options = \"depthh=3\"\n", ":5:11: model chain has no option \"depthh\""},
    {"freeze = [\"trunk.*\"]\n", ":5:10: model.freeze: model 'chain' has no parameter 'trunk.*'"},
    {"ignore = [\"trunk\"]\n", ":5:10: model.ignore: model 'chain' has no parameter 'trunk'"},
    {"[[when]]\nuses = [\"layers.0=2\"]\n[[when]]\nuses = [\"trunk=2\"]\n",
     ":8:8: when.uses: model 'chain' has no unit 'trunk'"},
    {"[[when]]\noutputs = [\"head\"]\n",
     ":6:11: when.outputs: model 'chain' has no output 'head'; its 1 go from 'out' to 'out'"},
    {"[[when]]\nready = \"listed\"\nready_order = [\"layers.0\"]\n",
     ":7:15: when.ready_order: model 'chain' has no parameter 'layers.0'"},
    {"[[when]]\npoison = \"nan\"\npoison_parameter = \"head\"\n",
     ":7:20: when.poison_parameter: model 'chain' has no parameter 'head'"},
    {"[[optimizer]]\nparameters = [\"*\", \"head.*\"]\n",
     ":6:14: optimizer.parameters: model 'chain' has no parameter 'head.*'"},
    {"[[rank]]\nranks = 1\nmodel.name = \"chian\"\n", ":7:14: no model is called \"chian\""},
    {"[[rank]]\nranks = 1\nmodel.name = \"mlp\"\n[[when]]\nranks = 1\nuses = [\"layers.1=2\"]\n",
     ":10:8: when.uses: model 'mlp' has no unit 'layers.1'"},
    {"[ddp]\ndelay_all_reduce_named_params = [\"layers.0.*\"]\nparam_to_hook_all_reduce = "
     "\"head\"\n",
     ":7:28: ddp.param_to_hook_all_reduce: model 'chain' has no parameter 'head'"},
    /* clang-format off */
    {"[hook]\nname = \"fp16_compress_wrapper\"\ninner = \"powersdg\"\n", ":7:9: there is no comm hook 'powersdg'; did you mean 'powersgd'?"},
    {"[hook]\nname = \"topk\"\noptions = \"ratoi=0.5\"\n", ":7:11: comm hook topk: unknown option 'ratoi'; did you mean 'ratio'?"},
    {"[network]\nalgorithm = \"rnig\"\n", ":6:13: there is no algorithm 'rnig'; did you mean 'ring'?"},
    {"[network]\nintra_link = \"nvlnk\"\n", ":6:14: there is no link 'nvlnk'"},
    {"[[fault]]\nrank = 0\nkind = \"kil\"\n", ":7:8: there is no fault 'kil'; did you mean 'kill'?"},
    {"[expect]\nmarks = [\"rebuild\", \"rebuilt\"]\n", ":6:9: there is no coverage mark 'rebuilt'; did you mean 'rebuild'?"},
    {"[expect]\nmarks = [\"my own mark\"]\n", ":6:9: there is no coverage mark 'my own mark'; a plugin may bring it (--plugin)"},
    {"[expect]\nexercised = [\"I_ORDER\"]\n", ":6:13: there is no check 'I_ORDER'; did you mean 'I-ORDER'?"},
    {"[expect]\nverdict = \"findings\"\n[[expect.finding]]\ncheck = \"my own check\"\n", ":8:9: there is no check 'my own check'; a plugin may bring it"},
    /* clang-format on */
};

/* A full disk, or here a limit: a reader of the report alone must not take the earlier events for
** all of them. */
TEST(program, a_store_that_cannot_grow_is_in_the_report)
{
    cd_program p;
    program_open(&p);
    program_run_with(&p, "ulimit -f 400; ",
                     "scenarios/gan_unused_params.toml scenarios/models/transformer.toml --trace "
                     "\"$T/run.db\" -f json");
    assert_int_equal(p.exit_code, 3);
    assert_contains(p.err, "earlier commits are kept");
    assert_contains(p.out, "\"verdict\": \"environment\"");
    assert_contains(p.out, "\"exit_code\": 3");
    assert_contains(p.out, "earlier commits are kept");
    assert_contains(p.out, "(ulimit -f)");
    program_close(&p);
}

/* A path that was meant for an operand. */
TEST(program, what_is_read_is_not_written_over)
{
    static const char *const attempts[] = {
        "\"$T/a.toml\" --output \"$T/a.toml\"",
        "\"$T\" --output \"$T/../$(basename \"$T\")/a.toml\"",
        "shrink \"$T/a.toml\" --output \"$T/link.toml\"",
        "explore \"$T/a.toml\" --strategy cover --budget 5 --certificate \"$T/a.toml\""};
    static const char scenario[] = "schema = 1\ntitle = \"a\"\n";
    cd_program p;
    char path[1200], link_path[1200];
    program_open(&p);
    program_write(&p, "a.toml", scenario);
    snprintf(path, sizeof path, "%s/a.toml", p.place);
    snprintf(link_path, sizeof link_path, "%s/link.toml", p.place);
    assert_int_equal(symlink("a.toml", link_path), 0);
    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++) {
        cd_test_row("%s", attempts[i]);
        program_run(&p, attempts[i]);
        assert_int_equal(p.exit_code, 2);
        assert_contains(p.err, "is read: what is written there would replace it");
        char *now = program_slurp(path);
        assert_string_equal(now, scenario);
        free(now);
    }
    program_close(&p);
}

TEST(program,
     a_name_that_the_model_or_the_registry_lacks_is_refused_at_its_place_before_anything_runs)
{
    cd_program p;
    program_open(&p);
    for (size_t i = 0; i < sizeof unknown_names / sizeof unknown_names[0]; i++) {
        char text[400];
        cd_test_row("%s", unknown_names[i].words);
        snprintf(text, sizeof text, "schema = 1\ntitle = \"names\"\n[model]\nname = \"chain\"\n%s",
                 unknown_names[i].text);
        program_write(&p, "names.toml", text);
        program_run(&p, "\"$T/names.toml\"");
        assert_int_equal(p.exit_code, 2);
        assert_contains(p.out, "names.toml");
        assert_contains(p.out, unknown_names[i].words);
        assert_null(strstr(p.out, "events")); /* nothing ran */
    }
    /* The twin whose names are all known, and one whose model the command line changes. */
    program_write(&p, "names.toml",
                  "schema = 1\ntitle = \"names\"\n[model]\nname = \"chain\"\n[[when]]\nuses = "
                  "[\"layers.0=2\"]\noutputs = [\"out\"]\n");
    program_run(&p, "\"$T/names.toml\"");
    assert_int_equal(p.exit_code, 0);
    program_run(&p, "\"$T/names.toml\" --set model.name=branchy");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "when.uses: model 'branchy' has no unit 'layers.0'");
    program_close(&p);
}

/* ddp.comm_hook takes the place of all of [hook]: the options there were another hook's. */
TEST(program, a_hook_is_named_in_one_go)
{
    cd_program p;
    program_open(&p);
    const char *const good[] = {"topk:k=20", "fp16", "power_sgd:start_powerSGD_iter=2", "no",
                                "reproducible"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char line[200];
        snprintf(line, sizeof line,
                 "scenarios/powersgd.toml --set ddp.comm_hook=%s --set expect.exercised= --verbose",
                 good[i]);
        program_run(&p, line);
        cd_test_row("%s: %s", good[i], p.out);
        assert_int_equal(p.exit_code, 0);
        assert_true((strstr(p.out, "hook calls completed") != NULL) ==
                    (strcmp(good[i], "no") != 0));
    }
    program_run(&p, "scenarios/powersgd.toml --set ddp.comm_hook=topc:k=2");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "there is no comm hook 'topc'; did you mean 'topk'?");
    program_run(&p, "scenarios/powersgd.toml --set ddp.comm_hook=topk:j=2");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "comm hook topk: unknown option 'j'");
    assert_contains(p.out, "every rank refuses its settings");
    program_close(&p);
}

TEST(program, a_lossy_hook_that_never_lost_anything_is_not_judged)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "hook-conformance powersgd");
    assert_int_equal(p.exit_code, 4);
    assert_contains(p.out, "the plain all-reduce bit for bit, although it declares itself lossy");
    assert_contains(p.out, "inconclusive  hook powersgd");
    program_run(
        &p,
        "hook-conformance powersgd --hook-options start_powerSGD_iter=2,min_compression_rate=1");
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, "conforms  hook powersgd");
    program_close(&p);
}

/* A float sum depends on the all-reduce's order of addition, an exact one does not. */
TEST(program, a_run_whose_repetition_ends_with_other_bits_is_a_finding)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "same.toml",
                  "schema = 1\ntitle = \"same\"\n[world]\nsize = 3\n[model]\noptions = "
                  "\"widths=16:24:8\"\nexact = false\n"
                  "[hook]\nname = \"allreduce\"\n[expect]\nsame_with = "
                  "[\"network.algorithm=halving_doubling\"]\n");
    program_run(&p, "\"$T/same.toml\"");
    assert_int_equal(p.exit_code, 1);
    assert_contains(p.out, "with network.algorithm=halving_doubling parameter");
    assert_contains(p.out, "ends with other bits");
    assert_contains(p.out, "cddp-verify run ");
    program_run(&p, "\"$T/same.toml\" --set hook.name=reproducible");
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, "the same parameters bit for bit under 1 other setting");
    program_run(
        &p, "\"$T/same.toml\" --set hook.name=reproducible --set expect.same_with=world.size=0");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "with world.size=0");
    program_close(&p);
}

TEST(program, the_flagship_is_verified_and_says_what_stands_behind_it)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "scenarios/gan_unused_params.toml");
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, "verified: scenarios/gan_unused_params.toml");
    assert_contains(p.out, "invariants exercised; trace ");
    assert_string_equal(p.err, "");
    program_close(&p);
}

TEST(program, two_runs_report_the_same_bytes_in_every_format)
{
    static const char *const formats[] = {"text", "json", "junit", "sarif"};
    cd_program p;
    program_open(&p);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        char arguments[160];
        cd_test_row("%s", formats[i]);
        snprintf(arguments, sizeof arguments,
                 "scenarios/unused scenarios/buckets -k -v --format %s", formats[i]);
        program_run(&p, arguments);
        char *first = p.out;
        p.out = NULL;
        program_run(&p, arguments);
        assert_string_equal(first, p.out);
        free(first);
    }
    program_close(&p);
}

TEST(program, workers_change_neither_report_nor_store)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "scenarios/unused -k -v --trace \"$T/one.db\" -f json");
    char *first = p.out;
    p.out = NULL;
    program_run(&p, "scenarios/unused -k -v --trace \"$T/three.db\" -f json --jobs 3");
    assert_string_equal(first, p.out);
    free(first);
    program_run(&p, "report \"$T/one.db\" -f json -o \"$T/one.json\"");
    program_run(&p, "report \"$T/three.db\" -f json -o \"$T/three.json\"");
    char command[2300];
    snprintf(command, sizeof command,
             "cd '%s' && sed s/one.db/three.db/ one.json | cmp - three.json && test $(ls | grep -c "
             "'three.db') = 1",
             p.place);
    assert_int_equal(system(command), 0);
    program_close(&p);
}

TEST(program, the_first_failure_ends_a_run_unless_reported_to_keep_going)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "a.toml", "schema = 1\ntitle = \"a\"\n");
    program_write(&p, "b.toml", "no = toml = at = all\n");
    program_write(&p, "c.toml", "schema = 1\ntitle = \"c\"\n");
    for (int jobs = 1; jobs <= 3; jobs += 2) {
        char arguments[64];
        cd_test_row("%d jobs", jobs);
        snprintf(arguments, sizeof arguments, "\"$T\" --jobs %d -q", jobs);
        program_run(&p, arguments);
        assert_int_equal(p.exit_code, 2);
        assert_contains(p.out, "1 of 3 verified, 1 with errors, 1 not run");
        snprintf(arguments, sizeof arguments, "\"$T\" --jobs %d -q -k", jobs);
        program_run(&p, arguments);
        assert_int_equal(p.exit_code, 2);
        assert_contains(p.out, "2 of 3 verified, 1 with errors");
    }
    program_close(&p);
}

/* In a folder others may have put it; a name like a known one is a typing error wherever it
** stands. */
TEST(program, what_a_missing_plugin_would_bring_is_skipped_where_nobody_named_it)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "a.toml", "schema = 1\ntitle = \"a\"\n");
    program_write(&p, "b.toml", "schema = 1\ntitle = \"b\"\n[hook]\nname = \"crash\"\n");
    program_write(&p, "c.toml", "schema = 1\ntitle = \"c\"\n");
    for (int jobs = 1; jobs <= 3; jobs += 2) {
        char arguments[64];
        cd_test_row("%d jobs", jobs);
        snprintf(arguments, sizeof arguments, "\"$T\" --jobs %d", jobs);
        program_run(&p, arguments);
        assert_int_equal(p.exit_code, 0);
        assert_contains(p.out, "skipped: ");
        assert_contains(p.out, "'crash';"); /* lines are broken where the path's length has it */
        assert_contains(p.out, "2 of 3 verified, 1 skipped, which needs a plugin");
        snprintf(arguments, sizeof arguments, "\"$T\" --jobs %d -k --strict", jobs);
        program_run(&p, arguments);
        assert_int_equal(p.exit_code, 2);
        assert_contains(p.out, "2 of 3 verified, 1 with errors");
    }
    program_run(&p, "\"$T/*.toml\" -f junit");
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, "tests=\"3\" failures=\"0\" errors=\"0\" skipped=\"1\"");
    program_run(&p, "\"$T/b.toml\"");
    assert_int_equal(p.exit_code, 2);
    program_run(&p, "\"$T/b*.toml\""); /* nothing else to judge by */
    assert_int_equal(p.exit_code, 3);
    /* read before it is changed */
    program_run(&p, "\"$T/b*.toml\" --plugin " CRASH_PLUGIN " --set hook.name=");
    assert_int_equal(p.exit_code, 0);
    program_write(&p, "b.toml", "schema = 1\ntitle = \"b\"\n[hook]\nname = \"topkk\"\n");
    program_run(&p, "\"$T\"");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "did you mean 'topk'?");
    program_close(&p);
}

TEST(program, a_hook_that_crashes_is_a_finding_and_harms_no_other_run)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "a.toml", "schema = 1\ntitle = \"a\"\n");
    program_write(&p, "b.toml", "schema = 1\ntitle = \"b\"\n[hook]\nname = \"crash\"\n");
    program_write(&p, "c.toml", "schema = 1\ntitle = \"c\"\n");
    program_run(&p, "\"$T\" --jobs 2 -k --plugin " CRASH_PLUGIN " --trace \"$T/run.db\"");
    assert_int_equal(p.exit_code, 1);
    assert_contains(p.out, "b.toml");
    assert_contains(p.out, "rank 0 was killed in hook crash (bucket 0)");
    assert_contains(p.out, "2 of 3 verified, 1 with findings");
    program_run(&p, "report \"$T/run.db\" -q");
    /* the trace is kept */
    assert_contains(p.out, "2 of 3 verified, 1 with findings");
    program_close(&p);
}

TEST(program, a_crash_in_a_long_list_harms_no_other)
{
    cd_program p;
    program_open(&p);
    for (int i = 0; i < 1000; i++) {
        char name[32];
        snprintf(name, sizeof name, "%03d.toml", i);
        program_write(&p, name,
                      i == 501 ? "schema = 1\ntitle = \"b\"\n[hook]\nname = \"crash\"\n"
                               : "schema = 1\ntitle = \"a\"\nmistake = 1\n");
    }
    program_run(&p, "\"$T\" --jobs 2 -k -q --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 1);
    assert_contains(p.out, "501.toml");
    assert_contains(p.out, "rank 0 was killed in hook crash (bucket 0)");
    assert_contains(p.out, "0 of 1000 verified, 1 with findings, 999 with errors");
    program_close(&p);
}

TEST(program, what_a_plugin_keeps_in_its_memory_does_not_reach_the_next_scenario)
{
    cd_program p;
    program_open(&p);
    for (int i = 0; i < 70; i++) {
        char name[32];
        snprintf(name, sizeof name, "%02d.toml", i);
        program_write(&p, name,
                      "schema = 1\ntitle = \"a\"\n[world]\nsize = 1\n[hook]\nname = \"once\"\n");
    }
    program_run(&p, "\"$T\" --jobs 2 -k -q --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, "70 of 70 verified");
    program_close(&p);
}

/* Of a long list a worker runs several in turn: worlds of other sizes, one that is left with work
** under way, one that lacks its plugin. */
TEST(program, workers_of_a_long_list_report_what_one_process_reports)
{
    static const char *const kinds[] = {
        "[world]\nsize = 2\n", "[world]\nsize = 5\n[model]\nexact = false\n",
        "[world]\nsize = 3\n[[fault]]\nkind = \"kill\"\nwhen = \"inside\"\nat = 6\nrank = 1\n",
        "[world]\nsize = 3\n[[fault]]\nkind = \"nan\"\nwhen = \"before\"\nat = 6\nrank = 1\n",
        "[hook]\nname = \"brought by a plugin\"\n"};
    cd_program p;
    program_open(&p);
    for (int i = 0; i < 70; i++) {
        char name[32], text[512];
        snprintf(name, sizeof name, "%02d.toml", i);
        snprintf(text, sizeof text, "schema = 1\ntitle = \"%d\"\n%s", i, kinds[i % 5]);
        program_write(&p, name, text);
    }
    program_run(&p, "\"$T\" \"$T/04.toml\" -k -f json --jobs 1 --trace \"$T/one.db\"");
    char *one = strdup(p.out);
    assert_int_equal(p.exit_code, 1);
    program_run(&p, "\"$T\" \"$T/04.toml\" -k -f json --jobs 2 --trace \"$T/two.db\"");
    assert_string_equal(p.out, one);
    free(one);
    program_run(&p, "report \"$T/one.db\" -f json");
    one = strdup(p.out);
    for (char *at = one; (at = strstr(at, "one.db")) != NULL;) memcpy(at, "two", 3);
    program_run(&p, "report \"$T/two.db\" -f json");
    assert_string_equal(p.out, one);
    free(one);
    program_close(&p);
}

/* Code 0 of a program that a plugin ended would be taken for "verified". */
TEST(program, a_plugin_that_leaves_with_0_does_not_speak_for_the_program)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "b.toml", "schema = 1\ntitle = \"b\"\n");
    static const char *const hooks[] = {"leave", "leave_now", "leave_at_once", "leave_quickly"};
    /* of a process that calls exit a sanitizer looks for leaks, and changes the code */
    setenv("LSAN_OPTIONS", "detect_leaks=0", 0);
    for (size_t i = 0; i < sizeof hooks / sizeof hooks[0]; i++) {
        char text[1024];
        cd_test_row("%s", hooks[i]);
        snprintf(text, sizeof text, "schema = 1\ntitle = \"a\"\n[hook]\nname = \"%s\"\n", hooks[i]);
        program_write(&p, "a.toml", text);
        program_run(&p, "\"$T/a.toml\" --plugin " CRASH_PLUGIN);
        assert_int_equal(p.exit_code, 1);
        snprintf(text, sizeof text, "rank 0 left with exit code 0 in hook %s (bucket 0)", hooks[i]);
        assert_contains(p.out, text);
        assert_contains(p.out, "left with exit code 0 in run of hook");
        snprintf(text, sizeof text, "hook-conformance %s --plugin " CRASH_PLUGIN, hooks[i]);
        program_run(&p, text);
        assert_int_equal(p.exit_code, 1);
        assert_contains(p.out, "the hook ended the process with code 0 in run, on rank 0 of 1");
        program_run(&p, "\"$T\" --jobs 2 -k --plugin " CRASH_PLUGIN);
        assert_int_equal(p.exit_code, 1);
        assert_contains(p.out, "1 of 2 verified, 1 with findings");
    }
    unsetenv("LSAN_OPTIONS");
    program_close(&p);
}

/* Whatever the hook does to one rank, the world goes on without it, and the judge has its trace. */
TEST(program, a_hook_that_breaks_is_named_with_its_function_by_every_verb)
{
    static const struct {
        const char *options, *words;
        bool shrinks;
    } cases[] = {
        {"crash=run", "rank 1 was killed in hook break (bucket 0)", true},
        {"crash=stage", "rank 1 was killed in a stage of hook break", false},
        {"crash=create", "rank 1 was killed in create of hook break", false},
        {"crash=destroy", "rank 1 was killed in destroy of hook break", false},
        {"crash=rebuilt", "rank 1 was killed in rebuilt of hook break", false},
        {"crash=save", "rank 1 was killed in save of hook break", false},
        {"leave=stage", "rank 1 exited in a stage of hook break", true},
#ifndef __SANITIZE_ADDRESS__ /* it ends the program itself where a stack overflows */
        {"overflow=run", "its stack had overflowed", false},
#endif
    };
    static const char *const verbs[] = {"run", "explore", "prove", "shrink --output \"$T/s.toml\""};
    cd_program p;
    program_open(&p);
    setenv("LSAN_OPTIONS", "detect_leaks=0", 0);
    program_write(&p, "a.toml", "schema = 1\ntitle = \"a\"\n[hook]\nname = \"break\"\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t v = 0; v < (cases[i].shrinks ? 4 : 1); v++) {
            char line[1024];
            snprintf(line, sizeof line,
                     "%s \"$T/a.toml\" --set hook.options=%s --plugin " CRASH_PLUGIN, verbs[v],
                     cases[i].options);
            program_run(&p, line);
            cd_test_row("%s: exit %d: %s %s", line, p.exit_code, p.out, p.err);
            assert_int_equal(p.exit_code, v == 3 ? 0 : 1);
            assert_contains(p.out, cases[i].words);
        }
    program_run(&p, "\"$T/a.toml\" --set hook.options=loop=run --set world.timeout_ms=1 "
                    "--plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 1);
    assert_contains(p.out, "does not return from hook break (bucket 0, step 0)");
    unsetenv("LSAN_OPTIONS");
    program_close(&p);
}

/* A proof runs ranks of large worlds alone, on the program's own stack: what breaks there breaks
** the program, which has a name for it. */
TEST(program, a_hook_that_breaks_in_a_proof_of_one_rank_alone_is_named)
{
    static const struct {
        const char *options, *words;
    } cases[] = {
        {"crash=alone", "crashed (SIGSEGV): there is no verdict"},
        {"leave=alone", "ended the program: there is no verdict"},
        {"loop=alone --set world.timeout_ms=1", "does not return: there is no verdict"},
    };
    cd_program p;
    program_open(&p);
    setenv("LSAN_OPTIONS", "detect_leaks=0", 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[1024];
        snprintf(line, sizeof line,
                 "prove scenarios/proofs/views.toml --set hook.name=break --set hook.options=%s "
                 "--plugin " CRASH_PLUGIN,
                 cases[i].options);
        program_run(&p, line);
        cd_test_row("%s: exit %d: %s %s", line, p.exit_code, p.out, p.err);
        assert_int_equal(p.exit_code, 2);
        assert_contains(p.err, "hook break, in run of rank 0 alone in a world of 7 ranks, ");
        assert_contains(p.err, cases[i].words);
    }
    unsetenv("LSAN_OPTIONS");
    program_close(&p);
}

/* The same words where the hook's rank is a process. */
TEST(program, a_hook_that_leaves_a_process_is_named)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "a.toml", "schema = 1\ntitle = \"a\"\n[hook]\nname = \"leave_now\"\n");
    program_run(&p, "\"$T/a.toml\" --backend gloo --plugin " CRASH_PLUGIN);
    if (p.exit_code != 3) { /* there is no Gloo here */
        assert_int_equal(p.exit_code, 1);
        assert_contains(p.out, "rank 0 left with exit code 0 in hook leave_now (bucket 0)");
    }
    program_close(&p);
}

/* A run is replayed with what it was recorded with. */
TEST(program, a_replay_without_its_plugin_says_which_one_is_missing)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "a.toml", "schema = 1\ntitle = \"a\"\n[hook]\nname = \"lawful\"\n");
    program_run(&p, "\"$T/a.toml\" --trace \"$T/a.db\" --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 0);
    program_run(&p, "replay \"$T/a.db\"");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.err, "run 1 was recorded with a plugin that is not loaded: ");
    assert_contains(p.err, "there is no comm hook 'lawful'");
    assert_contains(p.err, "Load it with --plugin FILE.so");
    program_run(&p, "replay \"$T/a.db\" --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 0);
    program_close(&p);
}

/* One rank of three was started with another option: it is named, with both values. */
TEST(program, the_option_that_differs_between_ranks_is_named)
{
    static const struct {
        const char *option, *words;
    } rows[] = {
        {"ddp.init_sync = false", "ddp.init_sync is false on rank 1, true on ranks 0 and 2"},
        {"ddp.comm_hook = \"fp16\"", "ddp.comm_hook is fp16 on rank 1, not given on ranks 0 and 2"},
        {"join.enable = true", "join.enable is true on rank 1, false on ranks 0 and 2"},
        {"ddp.static_graph = true", "rank 1 has static_graph=1, ranks 0 and 2 have static_graph=0"},
        {"ddp.bucket_cap_mb = 1",
         "rank 1 has bucket_cap_bytes=1048576, ranks 0 and 2 have bucket_cap_bytes=26214400"},
        {"ddp.broadcast_buffers = false",
         "rank 1 has broadcast_buffers=0, ranks 0 and 2 have broadcast_buffers=1"},
    };
    cd_program p;
    program_open(&p);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int size = 2; size <= 3; size++) {
            char text[512], flat[8192] = "";
            snprintf(text, sizeof text,
                     "schema = 1\ntitle = \"a\"\nworld.size = %d\nmodel.name = \"cnn\"\n"
                     "model.options = \"norm=batch\"\n[[rank]]\nranks = 1\n%s\n",
                     size, rows[i].option);
            program_write(&p, "a.toml", text);
            program_run(&p, "\"$T/a.toml\"");
            cd_test_row("%s of %d: exit %d: %s", rows[i].option, size, p.exit_code, p.out);
            assert_int_equal(p.exit_code, 1);
            size_t used = 0; /* long lines were folded */
            for (const char *at = p.out; *at != '\0' && used + 1 < sizeof flat; at++)
                if (*at > ' ' || (used > 0 && flat[used - 1] != ' '))
                    flat[used++] = *at > ' ' ? *at : ' ';
            /* with two ranks nobody knows which is right: both are named */
            if (size == 3)
                assert_contains(flat, rows[i].words);
            else
                assert_true(strstr(flat, "rank 0 has ") != NULL ||
                            strstr(flat, "on rank 1, ") != NULL);
        }
    program_close(&p);
}

/* A bad file beside a bad --set: all of it in one go. */
TEST(program, mistakes_of_a_file_and_of_set_are_listed_together)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "a.toml", "schema = 1\ntitle = \"a\"\n[ddp]\nbucket_cap = 3\n");
    program_run(&p, "\"$T/a.toml\" --set ddp.foo=1 --set train.steps=abc --set hook.name=topkk "
                    "--set 'fault[0].rank=1'");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out, "unknown key 'bucket_cap' in [ddp]");
    assert_contains(p.out, "--set ddp.foo=1: unknown key 'ddp.foo'");
    assert_contains(p.out, "--set train.steps=abc: train.steps = 'abc' is not a whole number");
    assert_contains(p.out, "--set hook.name=topkk: there is no comm hook 'topkk'; did you mean");
    assert_null(strstr(p.out, "--set fault")); /* a [[fault]] is the file's, which cannot be read */
    program_close(&p);
}

/* A plugin's constructors and its probe run in the program itself. */
TEST(program, a_plugin_that_breaks_while_it_is_loaded_is_named)
{
    static const struct {
        const char *variable, *how, *words;
    } cases[] = {
        {"ON_LOAD", "abort", "crash_plugin.so', while it was loaded, crashed (SIGABRT)"},
        {"ON_LOAD", "crash", "crash_plugin.so', while it was loaded, crashed (SIGSEGV)"},
        {"ON_LOAD", "leave", "crash_plugin.so', while it was loaded, ended the program"},
        {"ON_LOAD", "leave_now", "crash_plugin.so', while it was loaded, ended the program"},
        {"ON_LOAD", "loop", "crash_plugin.so', while it was loaded, does not return"},
        {"IN_PROBE", "abort", "backend fragile, in probe, crashed (SIGABRT)"},
        {"IN_PROBE", "leave_now", "backend fragile, in probe, ended the program"},
        {"IN_PROBE", "loop", "backend fragile, in probe, does not return"},
    };
    static const char *const verbs[] = {"hook-conformance lawful --limit 1s",
                                        "backend-conformance fragile -n 1 --limit 1s",
                                        "\"$T/a.toml\" -n 1 --backend fragile --plugin-limit 1s"};
    cd_program p;
    program_open(&p);
    setenv("LSAN_OPTIONS", "detect_leaks=0", 0);
    program_write(&p, "a.toml", "schema = 1\ntitle = \"a\"\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t v = 0; v < sizeof verbs / sizeof verbs[0]; v++) {
            char before[80], line[1024];
            if (v == 0 && cases[i].variable[0] == 'I') continue;
            snprintf(before, sizeof before, "CRASH_PLUGIN_%s=%s ", cases[i].variable, cases[i].how);
            snprintf(line, sizeof line, "%s --plugin " CRASH_PLUGIN, verbs[v]);
            program_run_with(&p, before, line);
            cd_test_row("%s%s: exit %d: %s %s", before, line, p.exit_code, p.out, p.err);
            assert_int_equal(p.exit_code, 2);
            assert_contains(p.err, cases[i].words);
            assert_contains(p.err, "there is no verdict");
        }
    for (size_t v = 0; v < sizeof verbs / sizeof verbs[0]; v++) {
        char line[1024];
        snprintf(line, sizeof line, "%s --plugin " CRASH_PLUGIN, verbs[v]);
        program_run(&p, line);
        cd_test_row("%s: exit %d: %s %s", line, p.exit_code, p.out, p.err);
        assert_null(strstr(p.err, "there is no verdict"));
    }
    unsetenv("LSAN_OPTIONS");
    program_close(&p);
}

/* Each law is tried in its own process, so that the others are judged all the same. */
TEST(program, a_hook_that_crashes_or_never_returns_breaks_the_law_that_was_tried)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "hook-conformance crash --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 1);
    assert_contains(p.out, "FAILED  runs");
    assert_contains(p.out,
                    "the hook crashed (SIGABRT, signal 6) in run, on rank 0 of 1, step 0, f32");
    program_run(&p, "hook-conformance sulk --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 1);
    assert_contains(p.out, "passed  runs");
    assert_contains(p.out, "FAILED  resume");
    assert_contains(p.out, "in save, on rank");
    assert_contains(p.out, "it printed");
    assert_contains(p.err, "sulk: the state is 7 bytes short");
    assert_contains(p.out, "1 law broken");
    program_run(&p, "hook-conformance spin --limit 1s --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 1);
    assert_contains(p.out, "does not return: it was stopped after 1 s in run");
    assert_contains(p.out, "not run   runs and what comes after it: 2 tries took too long");
    program_close(&p);
}

/* A rank that a launcher started ends by _exit once all is said; a plugin in it does not make that
** a refusal. */
TEST(program, a_rank_of_a_launcher_with_a_plugin_leaves_as_without)
{
    static const char *const backends[] = {"mpi-openmpi", "mpi-mpich"};
    cd_program p;
    program_open(&p);
    program_write(&p, "a.toml", "schema = 1\ntitle = \"a\"\n[hook]\nname = \"lawful\"\n");
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        char line[1024];
        snprintf(line, sizeof line, "\"$T/a.toml\" --backend %s --plugin " CRASH_PLUGIN,
                 backends[i]);
        program_run(&p, line);
        cd_test_row("%s: exit %d: %s %s", backends[i], p.exit_code, p.out, p.err);
        assert_true(p.exit_code == 0 || p.exit_code == 3); /* 3: there is no such MPI here */
        assert_null(strstr(p.err, "a plugin ended the program"));
        snprintf(line, sizeof line, "backend-conformance %s -n 2 --plugin " CRASH_PLUGIN,
                 backends[i]);
        program_run(&p, line);
        cd_test_row("conformance of %s: exit %d: %s", backends[i], p.exit_code, p.err);
        assert_true(p.exit_code == 0 || p.exit_code == 3);
        assert_null(strstr(p.err, "a plugin ended the program"));
    }
    program_close(&p);
}

/* "verified" must not be read as a word about values that nothing could judge. */
TEST(program, a_lossy_hook_that_states_no_law_is_reported_as_unjudged)
{
    cd_program p;
    program_open(&p);
    static const char *const unjudged = "what hook lawless makes of gradients";
    program_write(&p, "a.toml", "schema = 1\ntitle = \"a\"\n[hook]\nname = \"lawless\"\n");
    program_write(&p, "b.toml", "schema = 1\ntitle = \"b\"\n");
    program_run(&p, "\"$T/a.toml\" --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, "unjudged");
    assert_contains(p.out, unjudged);
    program_run(&p,
                "\"$T/b.toml\" --set ddp.comm_hook=lawless --format json --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, unjudged);
    /* through a worker's pipe */
    program_run(&p, "\"$T/a.toml\" \"$T/b.toml\" --jobs 2 -v --plugin " CRASH_PLUGIN);
    assert_contains(p.out, unjudged);
    static const char *const judged[] = {"lawful", "topk:k=2", "fp16", "noop", "no", "powersgd"};
    for (size_t i = 0; i < sizeof judged / sizeof judged[0]; i++) {
        char line[1024];
        cd_test_row("%s", judged[i]);
        snprintf(line, sizeof line, "\"$T/b.toml\" --set ddp.comm_hook=%s --plugin " CRASH_PLUGIN,
                 judged[i]);
        program_run(&p, line);
        assert_null(strstr(p.out, "unjudged"));
        assert_contains(p.out, "b.toml");
    }
    program_close(&p);
}

TEST(program, a_rank_that_states_a_law_no_more_is_found)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "a.toml",
                  "schema = 1\ntitle = \"a\"\n[world]\nsize = 3\n[train]\nsteps = 5\n"
                  "[hook]\nname = \"falls_silent\"\n");
    program_run(&p, "\"$T/a.toml\" --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 1);
    assert_contains(p.out, "rank 1: the hook leaves out a law of bucket 0 that other ranks state");
    assert_contains(p.out, "rank 1: in 2");
    assert_contains(p.out, "step 2");
    /* there is no rank 1 */
    program_run(&p, "\"$T/a.toml\" --set world.size=1 --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 0);
    program_close(&p);
}

TEST(program, plugins_appear_in_the_lists)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "list hooks --plugin " CRASH_PLUGIN);
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, "crash                     from a plugin");
    program_run(&p, "explain crash --plugin " CRASH_PLUGIN);
    assert_contains(p.out, "crash: from a plugin");
    program_close(&p);
}

/* script(1) gives the program a terminal; without it the test has nothing to look at. */
TEST(program, progress_is_shown_on_terminals_only)
{
    cd_program p;
    char command[4096], path[1200];
    program_open(&p);
    program_run(&p, "scenarios/unused -k -q");
    assert_string_equal(p.err, "");
    if (system("command -v script >/dev/null 2>&1") != 0) skip();
    snprintf(
        command, sizeof command,
        "cd '%s' && script -qc '%s scenarios/unused --set train.steps=80 -k -q' '%s/typescript' "
        ">/dev/null </dev/null",
        SOURCE_ROOT, CDDP_VERIFY, p.place);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/typescript", p.place);
    char *seen = program_slurp(path);
    assert_contains(seen, "/s, ");
    assert_contains(seen, " s left  scenarios/");
    free(seen);
    program_close(&p);
}

TEST(program, two_programs_append_to_one_store)
{
    cd_program p;
    char command[4096];
    program_open(&p);
    snprintf(command, sizeof command,
             "cd '%s' && T='%s'; for k in 1 2 3 4; do '%s' scenarios/unused -k -q --trace "
             "\"$T/run.db\" >\"$T/out$k\" "
             "2>&1 & done; wait; "
             "cat \"$T\"/out? | sort -u | wc -l | grep -qx 1",
             SOURCE_ROOT, p.place, CDDP_VERIFY);
    assert_int_equal(system(command), 0);
    program_run(&p, "scenarios/unused -k -q");
    int total = 0, verified = 0;
    assert_int_equal(sscanf(p.out, "%d of %d verified", &verified, &total), 2);
    program_run(&p, "report \"$T/run.db\" -q");
    char words[64];
    snprintf(words, sizeof words, "%d of %d verified", 4 * verified, 4 * total);
    assert_contains(p.out, words);
    program_close(&p);
}

TEST(program, a_stored_run_is_reported_and_judged_again)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "scenarios/gan_unused_params.toml --trace \"$T/run.db\"");
    assert_int_equal(p.exit_code, 0);
    program_run(&p, "scenarios/gan_unused_params.toml --seed 5 -n 3 --trace \"$T/run.db\"");
    assert_int_equal(p.exit_code, 0);
    program_run(&p, "report \"$T/run.db\"");
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, "run 1: ");
    assert_contains(p.out, "run 2: ");
    program_run(&p, "check \"$T/run.db\" -f json");
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, "\"run\": 2");
    assert_contains(p.out, "--set world.size=3 --set world.seed=5");
    program_run(&p, "check \"$T/run.db\" --run 7");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.err, "has no run 7");
    program_close(&p);
}

TEST(program, bad_stores_get_one_sentence_and_are_left_alone)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "text.db",
                  "not a store at all, but long enough to look at: "
                  "...................................................");
    static const char *const attempts[] = {
        "check \"$T/text.db\"", "report \"$T/text.db\"",
        "scenarios/gan_unused_params.toml --trace \"$T/text.db\""};
    for (size_t i = 0; i < 3; i++) {
        cd_test_row("%s", attempts[i]);
        program_run(&p, attempts[i]);
        assert_int_equal(p.exit_code, 2);
        assert_contains(p.err, "is not a cddp store: it is not an SQLite file");
        assert_ptr_equal(strchr(p.err, '\n'), p.err + strlen(p.err) - 1);
    }
    program_run_with(&p, "ulimit -f 150; ",
                     "scenarios/gan_unused_params.toml --trace \"$T/full.db\"");
    assert_int_equal(p.exit_code, 3);
    assert_contains(p.err, "cannot write '");
    assert_contains(p.err, "full.db");
    program_close(&p);
}

/* The text after `key` up to the next quotation mark, into `value`. */
static void find_member(const char *json, const char *key, char *value, size_t bytes)
{
    const char *at = strstr(json, key);
    assert_non_null(at);
    at += strlen(key);
    snprintf(value, bytes, "%.*s", (int)strcspn(at, "\""), at);
}

/* Planted faults are the simulator's: nothing is run, and there is nothing to come again. */
TEST(program, a_run_that_never_began_is_not_replayed)
{
    cd_program p;
    program_open(&p);
    program_write(&p, "kill.toml",
                  "schema = 1\ntitle = \"killed\"\n[[fault]]\nkind = \"kill\"\nrank = 1\nwhen = "
                  "\"inside\"\nat = 6\n");
    program_run(&p, "run $T/kill.toml --backend gloo --trace $T/kill.db");
    assert_int_equal(p.exit_code, 3);
    program_run(&p, "replay $T/kill.db");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.err, "run 1 (environment) never began");
    program_close(&p);
}

TEST(program, the_line_that_reproduces_does)
{
    static const char *const runs[] = {
        "scenarios/gan_unused_params.toml --set ddp.find_unused_parameters=false",
        "scenarios/order/chosen_at_random.toml --set world.seed=11 --set train.steps=2",
        "scenarios/canary --set world.size=3",
    };
    cd_program p;
    program_open(&p);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        char arguments[2100], line[2048], digest[2][32];
        cd_test_row("%s", runs[i]);
        snprintf(arguments, sizeof arguments, "%s -f json", runs[i]);
        program_run(&p, arguments);
        int exit_code = p.exit_code;
        find_member(p.out, "\"trace\": \"", digest[0], sizeof digest[0]);
        find_member(p.out, "\"reproduce\": \"cddp-verify ", line, sizeof line);
        snprintf(arguments, sizeof arguments, "%s -f json", line);
        program_run(&p, arguments);
        assert_int_equal(p.exit_code, exit_code);
        find_member(p.out, "\"trace\": \"", digest[1], sizeof digest[1]);
        assert_string_equal(digest[0], digest[1]);
    }
    program_close(&p);
}

TEST(program, colours_only_when_wanted)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "scenarios/gan_unused_params.toml");
    assert_null(strchr(p.out, '\033'));
    program_run(&p, "scenarios/gan_unused_params.toml --color always");
    assert_non_null(strchr(p.out, '\033'));
    program_run(&p, "rnu --color always");
    assert_contains(p.err, "cddp-verify");
    program_run_with(&p, "NO_COLOR=1 ", "scenarios/gan_unused_params.toml");
    assert_null(strchr(p.out, '\033'));
    program_close(&p);
}

TEST(program, timings_appear_only_on_request)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "scenarios/gan_unused_params.toml -f json");
    assert_null(strstr(p.out, "wall_ns"));
    program_run(&p, "scenarios/gan_unused_params.toml -f json --timings");
    assert_contains(p.out, "\"wall_ns\": ");
    program_close(&p);
}

TEST(program, the_log_goes_to_standard_error)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "scenarios/gan_unused_params.toml --log ddp:debug");
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.err, " ddp      debug bucket_launch bucket=0");
    assert_null(strstr(p.err, " comm "));
    program_close(&p);
}

TEST(program, an_unknown_backend_is_a_mistake_and_an_absent_one_an_environment)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "scenarios/gan_unused_params.toml --backend smi");
    assert_contains(p.out, "did you mean 'sim'?");
    assert_int_equal(p.exit_code, 2);
    program_run(&p, "list backends");
    bool absent = strstr(p.out, "not in this build") != NULL;
    if (absent) {
        char name[32] = "", arguments[128];
        char *line = strstr(p.out, "not in this build");
        while (line > p.out && line[-1] != '\n') line--;
        sscanf(line, "%31s", name);
        snprintf(arguments, sizeof arguments, "scenarios/gan_unused_params.toml --backend %s",
                 name);
        program_run(&p, arguments);
        assert_int_equal(p.exit_code, 3);
        assert_contains(p.out, "is not in this build");
    }
    program_run(&p, "scenarios/models --backend torch-nosuch");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.out,
                    "unknown backend 'torch-nosuch'; a process group of PyTorch is torch-gloo "
                    "or torch-cddp");
    /* An alias means what is here; where nothing is, the first of those that it could mean. */
    program_run(&p, "scenarios/models --set world.size=0 --backend mpi");
    assert_int_not_equal(p.exit_code, 0);
    assert_null(strstr(p.out, "unknown backend"));
    program_close(&p);
}

TEST(program, a_battery_of_too_many_ranks_is_refused_in_words)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "backend-conformance sim -n 4097");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.err, "-n 4097 is not between 1 and 4096");
    program_close(&p);
}

/* A sanitizer's shadow alone needs more address space than a limit leaves. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SHADOW true
#else
#define HAS_SHADOW false
#endif

/* The simulated world has so much memory and no more: that says nothing about a backend. */
TEST(program, a_battery_without_memory_accuses_nobody)
{
    cd_program p;
    if (HAS_SHADOW) return;
    program_open(&p);
    /* the simulator's memory grows up to the machine's: here up to a limit */
    program_run_with(&p, "ulimit -v 400000; ", "backend-conformance sim -n 64");
    assert_int_equal(p.exit_code, 3);
    assert_string_equal(p.out, "");
    assert_contains(p.err, "cddp-verify: ");
    program_close(&p);
}

/* Exhausted resources of the machine say nothing about the request. */
TEST(program, a_machine_without_files_is_an_environment)
{
    cd_program p;
    program_open(&p);
    program_run_with(&p, "ulimit -n 16; ", "scenarios/unused --keep-going --jobs 8");
    assert_int_equal(p.exit_code, 3);
    assert_contains(p.err, "cannot make a pipe: ");
    program_close(&p);
}

TEST(program, an_interrupt_ends_with_what_is_known)
{
    cd_program p;
    char command[4096], path[1200];
    program_open(&p);
    /* A run long enough to be interrupted in the middle. By SIGTERM, which means the same to the
    ** program: a shell without job control starts what runs in the background with SIGINT
    ** ignored. */
    snprintf(command, sizeof command,
             "cd '%s' && T='%s'; { '%s' scenarios/gan_unused_params.toml --set train.steps=200000 "
             "--set "
             "data.samples=1 --trace \"$T/run.db\" "
             ">\"$T/out\" 2>\"$T/err\" & pid=$!; n=0; until [ -s \"$T/run.db-wal\" ] || [ $n -gt "
             "600 ]; do sleep 0.1; n=$((n + 1)); done; "
             "sleep 0.5; kill -TERM $pid; wait $pid; echo $? >\"$T/code\"; }",
             SOURCE_ROOT, p.place, CDDP_VERIFY);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/code", p.place);
    char *code = program_slurp(path);
    assert_string_equal(code, "4\n");
    free(code);
    snprintf(path, sizeof path, "%s/out", p.place);
    char *out = program_slurp(path);
    assert_contains(out, "interrupted");
    assert_null(strstr(out, "verified:"));
    free(out);
    program_run(&p, "report \"$T/run.db\"");
    assert_int_equal(p.exit_code, 4);
    assert_contains(p.out, "the run was interrupted; every finished iteration is in the store");
    program_run(&p, "check \"$T/run.db\"");
    assert_int_equal(p.exit_code, 4);
    assert_contains(p.out, "nothing is broken as far as the run went, but it was interrupted");
    program_run(&p, "replay \"$T/run.db\"");
    assert_int_equal(p.exit_code, 2);
    assert_contains(p.err, "was interrupted while it was recorded");
    program_close(&p);
}

/* All ranks in one process, which nobody outside could end: they look before every row of the card.
** A terminal that is closed says so by SIGHUP. */
TEST(program, an_interrupted_battery_judges_nobody)
{
    static const char *const signals[] = {"TERM", "HUP"};
    cd_program p;
    char command[4096], path[1200];
    program_open(&p);
    signal(SIGHUP, SIG_DFL); /* the program that started the tests may have set it to ignored */
    for (size_t i = 0; i < 2; i++) {
        cd_test_row("%s", signals[i]);
        /* The signal waits until the program catches SIGTERM: bit 14 of the mask, and the last of
        ** them. */
        snprintf(
            command, sizeof command,
            "T='%s'; '%s' backend-conformance sim -n 12 --thorough >\"$T/out\" 2>&1 & pid=$!; n=0; "
            "until grep -q '^SigCgt:.*[4567cdef]...$' /proc/$pid/status || [ $n -gt 600 ]; do "
            "sleep 0.1; n=$((n + 1)); done; "
            "kill -%s $pid; wait $pid; echo $? >\"$T/code\"",
            p.place, CDDP_VERIFY, signals[i]);
        assert_int_equal(system(command), 0);
        snprintf(path, sizeof path, "%s/code", p.place);
        char *code = program_slurp(path);
        assert_string_equal(code, "4\n");
        free(code);
        snprintf(path, sizeof path, "%s/out", p.place);
        char *out = program_slurp(path);
        assert_contains(out, "inconclusive  backend sim: interrupted after ");
        assert_null(strstr(out, "FAILED"));
        free(out);
    }
    program_close(&p);
}

/* All posted something under the number that they wait for, and not all in time or the same. */
TEST(program, a_hang_names_who_posted_another_operation_or_came_late)
{
    static const struct {
        const char *size, *change, *headline, *culprits;
    } cases[] = {{"3", "[[collective]]\nranks = 2\nsteps = 1\nop = \"broadcast\"\n",
                  "rank 2 posted broadcast root 0 of 5 f32, and rank 0 allreduce(sum) of", "[2]"},
                 {"2", "[[collective]]\nranks = 0\nsteps = 1\nop = \"send\"\nroot = 1\n",
                  "rank 1 posted allreduce(sum) of", "[0,1]"},
                 {"3", "[[when]]\nranks = 2\nsteps = 1\ncompute_us = 120000000\n",
                  "rank 2 came too late for #", "[2]"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_program p;
        char text[1000], culprits[16] = "";
        program_open(&p);
        cd_test_row("%s", cases[i].headline);
        snprintf(text, sizeof text,
                 "schema = 1\ntitle = \"all posted\"\n[world]\nsize = %s\ntimeout_ms = 60000\n"
                 "[train]\nsteps = 3\n%s",
                 cases[i].size, cases[i].change);
        program_write(&p, "posted.toml", text);
        program_run(&p, "run $T/posted.toml --format json");
        assert_int_equal(p.exit_code, 1);
        assert_contains(p.out, cases[i].headline);
        const char *at = strstr(p.out, "\"culprits\":");
        assert_non_null(at);
        for (at = strchr(at, '['); *at != '\0' && strlen(culprits) + 2 < sizeof culprits; at++) {
            if (*at != ' ' && *at != '\n') strncat(culprits, at, 1);
            if (*at == ']') break;
        }
        assert_string_equal(culprits, cases[i].culprits);
        program_close(&p);
    }
}

TEST(program, explains_what_its_reports_name)
{
    static const char *const names[] = {"I-ORDER", "bucket_launch", "ddp.bucket_cap_mb",
                                        "4",       "allreduce",     "UNU-04",
                                        "ZOO-20",  "bucket_cap_mb", "mlp",
                                        "adamw",   "gloo",          "ethernet_10g",
                                        "kill",    "why",           "keep-going",
                                        "hier",    "gloo_ring",     "inconclusive"};
    cd_program p;
    char arguments[64];
    program_open(&p);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        cd_test_row("%s", names[i]);
        snprintf(arguments, sizeof arguments, "explain %s", names[i]);
        program_run(&p, arguments);
        assert_int_equal(p.exit_code, 0);
        assert_contains(p.out, names[i]);
    }
    program_close(&p);
}

TEST(program, lists_every_registry)
{
    static const struct {
        const char *topic, *words;
    } cases[] = {{"hooks", "allreduce"},
                 {"backends", "sim"},
                 {"checks", "I-ORDER"},
                 {"scenarios", "scenarios/gan_unused_params.toml"},
                 {"keys", "ddp.bucket_cap_mb"},
                 {"events", "bucket_launch"},
                 {"models", "mlp"},
                 {"optimizers", "adamw"},
                 {"faults", "kill"},
                 {"choosers", "fifo"},
                 {"algorithms", "gloo_ring"},
                 {"links", "ethernet_10g"},
                 {"schema", "\"bucket_cap_mb\""}};
    cd_program p;
    char arguments[64];
    program_open(&p);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].topic);
        snprintf(arguments, sizeof arguments, "list %s", cases[i].topic);
        program_run(&p, arguments);
        assert_int_equal(p.exit_code, 0);
        assert_contains(p.out, cases[i].words);
    }
    program_close(&p);
}

TEST(program, the_doctor_trains_on_the_built_in_backends)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "doctor");
    assert_int_equal(p.exit_code, 0);
    assert_contains(p.out, "works  self");
    assert_contains(p.out, "works  sim");
    assert_contains(p.out, "rounding");
    program_close(&p);
}

TEST_MAIN()
