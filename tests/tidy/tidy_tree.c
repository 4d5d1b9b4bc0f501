/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the tree, blanking comments, collecting reports. */
#define _POSIX_C_SOURCE 200809L
#include "tests/tidy/tidy.h"

#include "tests/support/test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_BYTES_MAX (8 * 1024 * 1024)

bool tidy_has_suffix(const char *path, const char *suffix)
{
    size_t p = strlen(path), s = strlen(suffix);
    return p >= s && strcmp(path + p - s, suffix) == 0;
}

bool tidy_is_c(const char *path)
{
    return tidy_has_suffix(path, ".c") || tidy_has_suffix(path, ".h") ||
           tidy_has_suffix(path, ".cc") || tidy_has_suffix(path, ".cu");
}

bool tidy_is_under(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

bool tidy_list_has(const char *list, const char *folder)
{
    if (strcmp(list, "*") == 0) return true;
    size_t n = strlen(folder);
    for (const char *at = list; (at = strstr(at, folder)) != NULL; at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

bool tidy_is_word(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

size_t tidy_line_length(const char *at) { return strcspn(at, "\n"); }

/* Copies text with comments, strings and character constants blanked; line ends stay where they
** are. */
static char *blank(const char *text)
{
    char *code = strdup(text);
    assert_non_null(code);
    enum { CODE, LINE, BLOCK, STRING, CHARACTER } mode = CODE;
    for (size_t i = 0; text[i] != '\0'; i++) {
        char c = text[i], next = text[i + 1];
        if (mode == CODE) {
            bool digit_separator = c == '\'' && i > 0 && text[i - 1] >= '0' && text[i - 1] <= '9';
            if (c == '/' && next == '/')
                mode = LINE;
            else if (c == '/' && next == '*')
                mode = BLOCK;
            else if (c == '"')
                mode = STRING;
            else if (c == '\'' && !digit_separator)
                mode = CHARACTER;
            else
                continue;
            code[i] = ' ';
            if (mode == BLOCK) code[++i] = ' '; /* so that its star does not close it */
            continue;
        }
        if (c != '\n') code[i] = ' ';
        if (mode == LINE && c == '\n') mode = CODE;
        if (mode == BLOCK && c == '*' && next == '/') {
            code[++i] = ' ';
            mode = CODE;
        }
        if ((mode == STRING || mode == CHARACTER) && c == '\\' && next != '\0') {
            if (next != '\n') code[i + 1] = ' ';
            i++;
            continue;
        }
        if ((mode == STRING && c == '"') || (mode == CHARACTER && c == '\'')) mode = CODE;
    }
    return code;
}

void tidy_tree_add(tidy_tree *tree, const char *path, const char *text)
{
    if (tree->count == tree->capacity) {
        size_t capacity = tree->capacity != 0 ? 2 * tree->capacity : 256;
        tidy_file *files = realloc(tree->files, capacity * sizeof *files);
        assert_non_null(files);
        tree->files = files;
        tree->capacity = capacity;
    }
    tidy_file *f = &tree->files[tree->count++];
    *f = (tidy_file){.path = strdup(path), .text = strdup(text)};
    assert_true(f->path != NULL && f->text != NULL);
    f->code = blank(f->text);
}

void tidy_tree_free(tidy_tree *tree)
{
    for (size_t i = 0; i < tree->count; i++) {
        free(tree->files[i].path);
        free(tree->files[i].text);
        free(tree->files[i].code);
    }
    free(tree->files);
    *tree = (tidy_tree){0};
}

const tidy_file *tidy_tree_find(const tidy_tree *tree, const char *path)
{
    for (size_t i = 0; i < tree->count; i++)
        if (strcmp(tree->files[i].path, path) == 0) return &tree->files[i];
    return NULL;
}

static bool is_wanted(const char *name)
{
    static const char *const suffixes[] = {".c",     ".h",   ".cc",    ".cu",  ".def", ".md",
                                           ".cmake", ".txt", ".sql",   ".py",  ".sh",  ".toml",
                                           ".in",    ".yml", ".patch", ".svg", ".json"};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
        if (tidy_has_suffix(name, suffixes[i])) return true;
    return strcmp(name, "run") == 0 || strcmp(name, "check") == 0;
}

static void load_file(tidy_tree *tree, const char *full, const char *path, size_t bytes)
{
    if (bytes > FILE_BYTES_MAX) return;
    FILE *in = fopen(full, "rb");
    if (in == NULL) return; /* removed between the listing and now */
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    size_t n = fread(text, 1, bytes, in);
    text[n] = '\0';
    fclose(in);
    tidy_tree_add(tree, path, text);
    free(text);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void load_folder(tidy_tree *tree, const char *root, const char *folder)
{
    char path[1024], full[4096];
    snprintf(full, sizeof full, "%s/%s", root, folder);
    struct dirent **entries = NULL;
    int count = scandir(full, &entries, NULL, by_name);
    assert_true(count >= 0);
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        bool skipped = (name[0] == '.' && strcmp(name, ".ci") != 0) ||
                       strncmp(name, "build", 5) == 0 || strcmp(name, "__pycache__") == 0;
        snprintf(path, sizeof path, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", name);
        snprintf(full, sizeof full, "%s/%s", root, path);
        struct stat s;
        if (!skipped && stat(full, &s) == 0) {
            if (S_ISDIR(s.st_mode))
                load_folder(tree, root, path);
            else if (S_ISREG(s.st_mode) && is_wanted(name))
                load_file(tree, full, path, (size_t)s.st_size);
        }
        free(entries[i]);
    }
    free(entries);
}

void tidy_tree_load(tidy_tree *tree, const char *root) { load_folder(tree, root, ""); }

static size_t line_of(const tidy_file *file, const char *at)
{
    const char *from =
        at >= file->code && at <= file->code + strlen(file->code) ? file->code : file->text;
    size_t line = 1;
    for (const char *p = from; p < at; p++) line += *p == '\n';
    return line;
}

void tidy_report_add(tidy_report *report, const tidy_file *file, const char *at, const char *format,
                     ...)
{
    char line[1024];
    int used = snprintf(line, sizeof line, "%s:%zu: ", file->path, line_of(file, at));
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, sizeof line - (size_t)used, format, args);
    va_end(args);
    size_t needed = report->used + strlen(line) + 2;
    if (needed > report->capacity) {
        char *text = realloc(report->text, 2 * needed);
        assert_non_null(text);
        report->text = text;
        report->capacity = 2 * needed;
    }
    report->used += (size_t)snprintf(report->text + report->used, report->capacity - report->used,
                                     "%s\n", line);
    report->count++;
}

void tidy_report_free(tidy_report *report)
{
    free(report->text);
    *report = (tidy_report){0};
}
