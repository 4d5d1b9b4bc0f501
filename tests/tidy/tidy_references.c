/* SPDX-License-Identifier: Apache-2.0 */
/* A comment or a page that names a file names one that is there: by its path, by the end of that
** path, or by its name alone. Scenarios, scripts and SQL are looked up only where a folder is
** named, since `scenario.toml` is anybody's. */
#include "tests/tidy/tidy.h"

#include <stdio.h>
#include <string.h>

static const char *const foreign[] = {
#define FOREIGN(name, whose) name,
#include "tests/tidy/foreign.def"
#undef FOREIGN
};

static const struct {
    const char *suffix;
    bool needs_folder;
} kinds[] = {{".c", false},    {".h", false},   {".cc", false}, {".cu", false},
             {".def", false},  {".sh", false},  {".md", false}, {".cmake", false},
             {".patch", true}, {".toml", true}, {".py", true},  {".sql", true}};

/* Of a path; a star, a placeholder or a variable in front of it makes it no name of a file. */
static bool is_of_path(char c) { return tidy_is_word(c) || c == '.' || c == '/' || c == '-'; }
static bool is_open(char c)
{
    return is_of_path(c) || (c != '\0' && strchr("$~*{}<>%", c) != NULL);
}

static bool is_foreign(const char *name)
{
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        const size_t length = strlen(foreign[i]);
        const bool is_folder = foreign[i][length - 1] == '/';
        if (is_folder ? strncmp(name, foreign[i], length) == 0 : strcmp(name, foreign[i]) == 0)
            return true;
    }
    return false;
}

static bool is_in_tree(const tidy_tree *tree, const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < tree->count; i++) {
        const char *path = tree->files[i].path;
        const size_t rest = strlen(path);
        if (rest < length || strcmp(path + rest - length, name) != 0) continue;
        if (rest == length || path[rest - length - 1] == '/') return true;
    }
    return false;
}

static bool is_looked_up(const char *name)
{
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot != NULL && dot > name && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(dot, kinds[i].suffix) == 0)
            return dot[-1] != '/' && (!kinds[i].needs_folder || strchr(name, '/') != NULL);
    return false;
}

static void judge(const tidy_tree *tree, const tidy_file *f, const char *at, size_t length,
                  tidy_report *report)
{
    char name[256];
    while (length > 0 && strchr(".-/", at[length - 1]) != NULL)
        length--; /* the end of a sentence */
    if (length == 0 || length >= sizeof name || at[0] == '/' || at[0] == '-') return;
    snprintf(name, sizeof name, "%.*s", (int)length, at);
    const char *path = name;
    while (strncmp(path, "../", 3) == 0) path += 3;
    if (strncmp(path, "./", 2) == 0) path += 2;
    if (is_looked_up(path) && !is_foreign(path) && !is_in_tree(tree, path))
        tidy_report_add(report, f, at, "names %s, which is not there", path);
}

/* Of C and of tables only comments count: code that names what is missing does not build. */
static void check_file(const tidy_tree *tree, const tidy_file *f, bool is_page, tidy_report *report)
{
    bool in_block = false, in_line = false;
    char quote = '\0';
    for (const char *at = f->text; *at != '\0';) {
        const bool inside = is_page || in_block || in_line;
        if (*at == '\n') in_line = false;
        if (!is_page && !inside) {
            if (quote != '\0') {
                if (*at == '\\' && at[1] != '\0')
                    at++;
                else if (*at == quote || *at == '\n')
                    quote = '\0';
            } else if (strncmp(at, "/*", 2) == 0) {
                in_block = true;
                at++;
            } else if (strncmp(at, "//", 2) == 0) {
                in_line = true;
                at++;
            } else if (*at == '"' || (*at == '\'' && (at == f->text || !tidy_is_word(at[-1])))) {
                quote = *at;
            }
            at++;
            continue;
        }
        if (in_block && strncmp(at, "*/", 2) == 0) {
            in_block = false;
            at += 2;
            continue;
        }
        if (!is_of_path(*at) || (at > f->text && is_open(at[-1]))) {
            at++;
            continue;
        }
        size_t length = 1;
        while (is_of_path(at[length])) length++;
        /* "*.c" and "<name>.c" are no names, nor is what goes on with a placeholder. */
        if (at[length] != '*' && at[length] != '<' && at[length] != '{')
            judge(tree, f, at, length, report);
        at += length;
    }
}

void tidy_check_references(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        const bool is_page = tidy_has_suffix(f->path, ".md");
        const bool is_code = tidy_is_c(f->path) || tidy_has_suffix(f->path, ".def");
        if (is_page || is_code) check_file(tree, f, is_page, report);
    }
}
