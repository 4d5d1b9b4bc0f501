/* SPDX-License-Identifier: Apache-2.0 */
/* Manual page and completions name every command and option, and are well-formed where a tool can
** say so. */
#define _POSIX_C_SOURCE 200809L
#include "tests/golden/cli/program.h"

static const char *const commands[] = {
#define CD_COMMAND(id, name, operands, summary, more) name,
#include "cli/commands.def"
#undef CD_COMMAND
};

static const struct {
    const char *name, *argument;
    char letter;
} options[] = {
#define CD_OPTION(id, name, letter, argument, commands, help) {name, argument, letter},
#include "cli/options.def"
#undef CD_OPTION
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])
#define OPTION_COUNT (sizeof options / sizeof options[0])

/* Runs a checking tool; false when this machine lacks it. */
static bool check_with(cd_program *p, const char *tool, const char *command)
{
    char text[3000];
    snprintf(text, sizeof text, "command -v %s >/dev/null 2>&1", tool);
    if (system(text) != 0) return false;
    snprintf(text, sizeof text, "cd '%s' && %s", p->place, command);
    int status = system(text);
    if (status != 0) print_error("%s fails on what was printed\n", tool);
    assert_int_equal(status, 0);
    return true;
}

TEST(man, names_every_command_option_and_exit_code)
{
    cd_program p;
    char words[80];
    program_open(&p);
    program_run(&p, "man");
    assert_int_equal(p.exit_code, 0);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        cd_test_row("%s", commands[i]);
        snprintf(words, sizeof words, ".B %s", commands[i]);
        assert_contains(p.out, words);
    }
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        size_t used = (size_t)snprintf(words, sizeof words, "\\-\\-");
        for (const char *at = options[i].name; *at != '\0'; at++)
            used +=
                (size_t)snprintf(words + used, sizeof words - used, *at == '-' ? "\\-" : "%c", *at);
        cd_test_row("%s", options[i].name);
        assert_contains(p.out, words);
    }
    for (int code = 0; code <= 4; code++) {
        snprintf(words, sizeof words, ".B %d\n", code);
        assert_contains(p.out, words);
    }
    check_with(&p, "groff",
               "groff -man -Tutf8 -ww out >/dev/null 2>warnings && ! test -s warnings");
    program_close(&p);
}

TEST(completion, bash_offers_every_command_and_the_options_of_each)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "completion bash");
    assert_int_equal(p.exit_code, 0);
    program_write(&p, "script", p.out);
    for (size_t i = 0; i < COMMAND_COUNT; i++) assert_contains(p.out, commands[i]);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char words[64];
        snprintf(words, sizeof words, "--%s", options[i].name);
        cd_test_row("%s", words);
        assert_contains(p.out, words);
    }
    check_with(&p, "bash",
               "bash -c 'source ./script; COMP_WORDS=(cddp-verify re); COMP_CWORD=1; _cddp_verify; "
               "case \" ${COMPREPLY[*]} \" in *\" report \"*) ;; *) exit 1 ;; esac'");
    check_with(&p, "bash",
               "bash -c 'source ./script; COMP_WORDS=(cddp-verify run --keep); COMP_CWORD=2; "
               "_cddp_verify; "
               "test \"${COMPREPLY[*]}\" = --keep-going'");
    check_with(&p, "bash",
               "bash -c 'source ./script; COMP_WORDS=(cddp-verify explain --keep); COMP_CWORD=2; "
               "_cddp_verify; "
               "test -z \"${COMPREPLY[*]}\"'");
    program_close(&p);
}

TEST(completion, zsh_and_fish_scripts_parse)
{
    cd_program p;
    program_open(&p);
    program_run(&p, "completion zsh");
    assert_contains(p.out, "#compdef cddp-verify");
    check_with(&p, "zsh", "zsh -n out");
    program_run(&p, "completion fish");
    assert_contains(p.out, "complete -c cddp-verify -l keep-going -s k");
    check_with(&p, "fish", "fish --no-execute out");
    program_close(&p);
}

/* docs/cli.md names every command and option, so that it cannot fall behind. */
TEST(document, names_every_command_and_option)
{
    char *document = program_slurp(SOURCE_ROOT "/docs/cli.md");
    char words[80];
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        snprintf(words, sizeof words, "cddp-verify %s", commands[i]);
        cd_test_row("%s", words);
        assert_contains(document, words);
    }
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        snprintf(words, sizeof words, "--%s", options[i].name);
        cd_test_row("%s", words);
        assert_contains(document, words);
    }
    free(document);
}

/* Runs every line that begins with "$ cddp-verify"; it ends with the exit code that the comment
** behind it says ("# exit 1"), 0 without one. How many there were. */
static int run_examples(cd_program *p, const char *document)
{
    int count = 0;
    for (const char *at = document; (at = strstr(at, "\n$ cddp-verify ")) != NULL;) {
        const char *line = at + strlen("\n$ cddp-verify "), *end = strchr(line, '\n');
        char arguments[1024];
        assert_non_null(end);
        int wanted = 0;
        const char *comment = strstr(line, "# exit ");
        if (comment != NULL && comment < end) wanted = comment[7] - '0';
        snprintf(arguments, sizeof arguments, "%.*s",
                 (int)((comment != NULL && comment < end ? comment : end) - line), line);
        cd_test_row("%s", arguments);
        program_run(p, arguments);
        if (p->exit_code != wanted)
            print_error("cddp-verify %s ended with %d:\n%s%s\n", arguments, p->exit_code, p->out,
                        p->err);
        assert_int_equal(p->exit_code, wanted);
        count++;
        at = end;
    }
    return count;
}

/* "# key = value" or "# [table]": what a template suggests. */
static bool is_suggestion(const char *line)
{
    if (strncmp(line, "# ", 2) != 0) return false;
    const size_t name = strspn(line + 2, "abcdefghijklmnopqrstuvwxyz_.");
    return line[2] == '[' || (name > 0 && strncmp(line + 2 + name, " = ", 3) == 0);
}

/* The template with one suggestion taken: a line, or a table with the lines below it. `from` is its
** first line. How far it reaches. */
static size_t take_suggestion(const char *template, size_t from, char *text, size_t text_bytes)
{
    size_t used = from, at = from;
    const bool is_table = template[from + 2] == '[';
    assert_true(strlen(template) < text_bytes);
    memcpy(text, template, from);
    do {
        const size_t line = strcspn(template + at, "\n") + 1;
        memcpy(text + used, template + at + 2, line - 2);
        used += line - 2;
        at += line;
    } while (is_table && is_suggestion(template + at));
    memcpy(text + used, template + at, strlen(template + at) + 1);
    return at;
}

TEST(template, each_suggestion_can_be_taken)
{
    static const char *const names[] = {"scenario", "hang"};
    size_t count = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        cd_program p;
        char words[1200], text[8192];
        program_open(&p);
        snprintf(words, sizeof words, "new %s --output $T/template.toml", names[i]);
        program_run(&p, words);
        assert_int_equal(p.exit_code, 0);
        snprintf(words, sizeof words, "%s/template.toml", p.place);
        char *template = program_slurp(words);
        for (size_t at = 0; template[at] != '\0';) {
            if (!is_suggestion(template + at)) {
                at += strcspn(template + at, "\n");
                at += template[at] == '\n';
                continue;
            }
            cd_test_row("%s: %.40s", names[i], template + at);
            at = take_suggestion(template, at, text, sizeof text);
            program_write(&p, "taken.toml", text);
            program_run(&p, "run $T/taken.toml");
            /* It may be the cause of a finding; it is no mistake in the scenario. */
            if (p.exit_code > 1) print_error("%s%s", p.out, p.err);
            assert_true(p.exit_code <= 1);
            count++;
        }
        free(template);
        program_close(&p);
    }
    assert_true(count >= 5);
}

/* That these compile, and what their cards say, is shown where they are built against an
** installation (tests/install). */
TEST(template, of_a_plugin_is_an_example_to_the_byte)
{
    static const char *const rows[][2] = {{"hook", "hook/mean_hook.c"},
                                          {"stateful-hook", "hook/alternate_hook.c"},
                                          {"backend", "backend/loopback_backend.c"},
                                          {"wrong-backend", "backend/dummy_backend.c"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_program p;
        char words[1200];
        cd_test_row("%s", rows[i][0]);
        program_open(&p);
        snprintf(words, sizeof words, "new %s --output $T/plugin.c", rows[i][0]);
        program_run(&p, words);
        assert_int_equal(p.exit_code, 0);
        snprintf(words, sizeof words, "%s/plugin.c", p.place);
        char *written = program_slurp(words);
        snprintf(words, sizeof words, SOURCE_ROOT "/examples/%s", rows[i][1]);
        char *example = program_slurp(words);
        assert_string_equal(written, example);
        free(example);
        free(written);
        program_close(&p);
    }
}

TEST(document, its_examples_run)
{
    static const struct {
        const char *path;
        int least;
    } pages[] = {{"cli.md", 30},
                 {"tour.md", 20},
                 {"howto/ci.md", 3},
                 {"howto/prove.md", 1},
                 {"howto/reproduce-a-hang.md", 7}};
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        cd_program p;
        char path[1024];
        snprintf(path, sizeof path, SOURCE_ROOT "/docs/%s", pages[i].path);
        char *document = program_slurp(path);
        program_open(&p);
        assert_true(run_examples(&p, document) >= pages[i].least);
        program_close(&p);
        free(document);
    }
}

TEST_MAIN()
