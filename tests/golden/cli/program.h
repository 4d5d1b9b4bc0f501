/* SPDX-License-Identifier: Apache-2.0 */
/* Running cddp-verify as a user does: from the root of the tree, through a shell, both streams
** captured.
**
** CDDP_VERIFY (the program) and SOURCE_ROOT come from CMakeLists.txt. */
#pragma once
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct cd_program {
    char folder[64]; /* a fresh one under the current folder, absolute path in `place` */
    char place[1024];
    char *out, *err; /* owned by the fixture, of the last run */
    int exit_code;   /* 128 + n when signal n ended it */
} cd_program;

static inline char *program_slurp(const char *path)
{
    FILE *file = fopen(path, "rb");
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

static inline void program_open(cd_program *p)
{
    char here[900];
    memset(p, 0, sizeof *p);
    snprintf(p->folder, sizeof p->folder, "program_test.XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    assert_non_null(getcwd(here, sizeof here));
    snprintf(p->place, sizeof p->place, "%s/%s", here, p->folder);
}

static inline void program_close(cd_program *p)
{
    char command[1200];
    free(p->out);
    free(p->err);
    p->out = p->err = NULL;
    snprintf(command, sizeof command, "rm -rf '%s'", p->place);
    assert_int_equal(system(command), 0);
}

/* arguments as a shell takes them; $T is the folder of the test. before is put in front:
** "NO_COLOR=1 ", "" */
static inline void program_run_with(cd_program *p, const char *before, const char *arguments)
{
    char command[8192], path[1100];
    snprintf(command, sizeof command,
             "cd '%s' && T='%s'; %s'%s' %s >\"$T/out\" 2>\"$T/err\" </dev/null", SOURCE_ROOT,
             p->place, before, CDDP_VERIFY, arguments);
    int status = system(command);
    assert_true(WIFEXITED(status));
    p->exit_code = WEXITSTATUS(status);
    free(p->out);
    free(p->err);
    snprintf(path, sizeof path, "%s/out", p->place);
    p->out = program_slurp(path);
    snprintf(path, sizeof path, "%s/err", p->place);
    p->err = program_slurp(path);
}

static inline void program_run(cd_program *p, const char *arguments)
{
    program_run_with(p, "", arguments);
}

static inline void program_write(cd_program *p, const char *name, const char *text)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", p->place, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

static inline void assert_contains(const char *text, const char *words)
{
    if (strstr(text, words) == NULL) print_error("\"%s\" is not in:\n%s\n", words, text);
    assert_non_null(strstr(text, words));
}

/* Compares with tests/golden/cli/<name>; CDDP_UPDATE_GOLDEN=1 in the environment rewrites it
** instead. */
static inline void assert_golden(const char *text, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/golden/cli/%s", SOURCE_ROOT, name);
    if (getenv("CDDP_UPDATE_GOLDEN") != NULL) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fputs(text, file);
        fclose(file);
        return;
    }
    char *wanted = program_slurp(path);
    if (strcmp(wanted, text) != 0)
        print_error("differs from %s (CDDP_UPDATE_GOLDEN=1 rewrites it):\n%s\n", path, text);
    assert_string_equal(wanted, text);
    free(wanted);
}
