/* SPDX-License-Identifier: Apache-2.0 */
/* Directions: include lines against the layer table, USES lists of CMake against it, system headers
** by place. */
#include "tests/tidy/tidy.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *folder, *may;
} layers[] = {
#define LAYER(folder, may) {folder, may},
#include "tests/tidy/layers.def"
#undef LAYER
};
#define LAYER_COUNT (sizeof layers / sizeof layers[0])

/* The row with the longest matching folder; -1 when no row covers the path. */
static int layer_of(const char *path)
{
    int found = -1;
    for (size_t i = 0; i < LAYER_COUNT; i++) {
        bool longer = found < 0 || strlen(layers[i].folder) > strlen(layers[found].folder);
        if (tidy_is_under(path, layers[i].folder) && longer) found = (int)i;
    }
    return found;
}

/* An include of ours, as written, to the path of the file in the tree. */
static void resolve(const char *name, char path[512])
{
    snprintf(path, 512, "%s%s", strncmp(name, "cddp/", 5) == 0 ? "include/" : "", name);
}

static bool is_allowed(int from, int to)
{
    const char *target = layers[to].folder;
    if (from == to || strcmp(target, "include/cddp") == 0) return true;
    return tidy_list_has(layers[from].may, target);
}

/* Finds the next include of ours: its name, and where it stands. NULL at the end. */
static const char *next_include(const char *at, char name[400])
{
    while ((at = strstr(at, "#include \"")) != NULL) {
        const char *start = at + strlen("#include \"");
        size_t length = strcspn(start, "\"\n");
        at = start;
        if (length >= 400 || start[length] != '"') continue;
        memcpy(name, start, length);
        name[length] = '\0';
        return start;
    }
    return NULL;
}

static void check_include(const tidy_tree *tree, const tidy_file *f, const char *at,
                          const char *name, tidy_report *report)
{
    char path[512];
    resolve(name, path);
    /* An example is somebody else's program: it may sit in its own folder. */
    if (tidy_is_under(f->path, "examples") && strchr(name, '/') == NULL)
        snprintf(path, sizeof path, "%.*s%s", (int)(strrchr(f->path, '/') - f->path + 1), f->path,
                 name);
    if (tidy_has_suffix(name, ".c") || tidy_has_suffix(name, ".cc")) {
        tidy_report_add(report, f, at, "includes the source file %s", name);
        return;
    }
    const tidy_file *target = tidy_tree_find(tree, path);
    if (target == NULL) {
        tidy_report_add(
            report, f, at,
            "includes \"%s\", which is not in the tree (includes are relative to its root)", name);
        return;
    }
    int from = layer_of(f->path), to = layer_of(path);
    if (from < 0 || to < 0) {
        tidy_report_add(report, f, at, "%s has no row in tests/tidy/layers.def",
                        from < 0 ? f->path : path);
    } else if (!is_allowed(from, to)) {
        tidy_report_add(report, f, at, "%s may not include %s (\"%s\")", layers[from].folder,
                        layers[to].folder, name);
    }
}

/* USES of a module names modules by the last part of their folder; backend_sim is backends/sim. */
static int layer_of_module(const char *name, size_t length)
{
    const size_t prefix = strlen("backend_");
    const bool is_backend = length > prefix && strncmp(name, "backend_", prefix) == 0;
    if (is_backend) name += prefix, length -= prefix;
    for (size_t i = 0; i < LAYER_COUNT; i++) {
        const char *last = strrchr(layers[i].folder, '/');
        last = last != NULL ? last + 1 : layers[i].folder;
        if (is_backend && !tidy_is_under(layers[i].folder, "backends")) continue;
        if (strlen(last) == length && strncmp(last, name, length) == 0) return (int)i;
    }
    return -1;
}

/* Reads the words after USES up to the next keyword or the closing parenthesis. */
static void check_uses(const tidy_file *f, const char *uses, const char *end, tidy_report *report)
{
    int from = layer_of(f->path);
    for (const char *at = uses; at < end;) {
        at += strspn(at, " \n");
        size_t length = strcspn(at, " \n)");
        if (at >= end || length == 0) return;
        bool keyword = (length == 4 && strncmp(at, "LINK", 4) == 0) ||
                       (length == 7 && strncmp(at, "LIBRARY", 7) == 0) ||
                       (length == 7 && strncmp(at, "SOURCES", 7) == 0);
        if (keyword) return;
        int to = layer_of_module(at, length);
        if (from >= 0 && to >= 0 && !is_allowed(from, to))
            tidy_report_add(report, f, at, "%s may not link %.*s", layers[from].folder, (int)length,
                            at);
        at += length;
    }
}

static void check_cmake(const tidy_file *f, tidy_report *report)
{
    for (const char *at = f->text; (at = strstr(at, "cddp_module(")) != NULL; at++) {
        const char *end = strchr(at, ')'), *uses = strstr(at, " USES ");
        if (end == NULL) return;
        if (uses == NULL || uses > end) uses = strstr(at, "\n  USES ");
        if (uses != NULL && uses < end) check_uses(f, strstr(uses, "USES") + 4, end, report);
    }
}

void tidy_check_layers(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (tidy_has_suffix(f->path, "CMakeLists.txt")) check_cmake(f, report);
        if (!tidy_is_c(f->path)) continue;
        char name[400];
        for (const char *at = f->text; (at = next_include(at, name)) != NULL;)
            check_include(tree, f, at, name, report);
    }
}

static const char *const posix_headers =
    "dirent.h dlfcn.h fcntl.h netdb.h poll.h pthread.h sched.h spawn.h termios.h ucontext.h "
    "unistd.h arpa/inet.h netinet/in.h netinet/tcp.h sys/mman.h sys/prctl.h sys/socket.h "
    "sys/stat.h sys/types.h sys/wait.h sys/time.h sys/resource.h sys/uio.h sys/un.h";

static bool may_use_posix(const char *path)
{
    if (tidy_is_under(path, "core"))
        return strncmp(path, "core/base/os_", strlen("core/base/os_")) == 0;
    if (tidy_is_under(path, "sim")) return strncmp(path, "sim/fiber", strlen("sim/fiber")) == 0;
    return !tidy_is_under(path, "include") && !tidy_is_under(path, "scenarios") &&
           !tidy_is_under(path, "db");
}

void tidy_check_system(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (!tidy_is_c(f->path)) continue;
        for (const char *at = f->text; (at = strstr(at, "#include <")) != NULL;) {
            at += strlen("#include <");
            char name[200];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ">\n"), at);
            if (tidy_is_under(f->path, "include") &&
                !tidy_list_has("stdbool.h stddef.h stdint.h", name))
                tidy_report_add(
                    report, f, at,
                    "a public header includes <%s>; only stdbool, stddef and stdint are promised",
                    name);
            if (tidy_list_has(posix_headers, name) && !may_use_posix(f->path))
                tidy_report_add(
                    report, f, at,
                    "<%s> is POSIX; it belongs in core/base/os_*.c, sim/fiber*, backends or cli",
                    name);
        }
    }
}
