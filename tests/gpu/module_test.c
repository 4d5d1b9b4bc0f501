/* SPDX-License-Identifier: Apache-2.0 */
/* The module as a file, and the program that may lack it: which GPUs it carries code for, that
** nothing of CUDA is
*** linked into the program, and what is said where something is missing. Runs on any machine. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- fat binaries: a header, then entries of PTX (kind 1) or machine code (kind 2) for one
** architecture each ---- */

typedef struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
} fat_header;

typedef struct fat_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes, options;
    uint16_t minor, major;
    uint32_t architecture;
} fat_entry;

#define FAT_MAGIC 0xba55ed50u

typedef struct code {
    bool machine[256], ptx[256];
} code;

static void read_entries(const unsigned char *at, const unsigned char *end, code *found)
{
    fat_header h;
    memcpy(&h, at, sizeof h);
    at += h.header_bytes;
    if ((uint64_t)(end - at) > h.bytes) end = at + h.bytes;
    while (at + sizeof(fat_entry) <= end) {
        fat_entry e;
        memcpy(&e, at, sizeof e);
        if (e.kind == 0 || e.kind > 2 || e.architecture >= 256) return;
        (e.kind == 1 ? found->ptx : found->machine)[e.architecture] = true;
        at += e.header_bytes + e.bytes;
    }
}

TEST(module, carries_machine_code_for_its_architectures_and_ptx_for_the_last)
{
    static const int wanted[] = {CDDP_ARCHITECTURES};
    const size_t count = sizeof wanted / sizeof wanted[0];
    code found = {{false}, {false}};
    FILE *file = fopen(CDDP_NCCL_MODULE, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *all = malloc(bytes);
    assert_non_null(all);
    assert_int_equal(fread(all, 1, bytes, file), bytes);
    fclose(file);
    for (size_t at = 0; at + sizeof(fat_header) < bytes; at += 4) {
        uint32_t magic;
        memcpy(&magic, all + at, sizeof magic);
        if (magic == FAT_MAGIC) read_entries(all + at, all + bytes, &found);
    }
    free(all);
    for (size_t i = 0; i < count; i++) {
        cd_test_row("sm_%d", wanted[i]);
        assert_true(found.machine[wanted[i]]);
    }
    assert_true(found.ptx[wanted[count - 1]]);
    for (int other = 0; other < 256; other++) {
        bool asked_for = false;
        for (size_t i = 0; i < count; i++) asked_for = asked_for || wanted[i] == other;
        cd_test_row("sm_%d, which nobody asked for", other);
        assert_true(asked_for || !found.machine[other]);
        assert_true(other == wanted[count - 1] || !found.ptx[other]);
    }
}

/* ---- what is linked, and what is said ---- */

static int run(const char *command, char *output, size_t bytes)
{
    char line[2048];
    snprintf(line, sizeof line, "%s 2>&1", command);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t used = fread(output, 1, bytes - 1, pipe);
    output[used] = '\0';
    /* Messages are wrapped. */
    size_t to = 0;
    for (size_t i = 0; output[i] != '\0'; i++) {
        bool space = output[i] == ' ' || output[i] == '\n';
        if (space && to > 0 && output[to - 1] == ' ') continue;
        output[to++] = space ? ' ' : output[i];
    }
    output[to] = '\0';
    int how = pclose(pipe);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

TEST(module, nothing_of_cuda_is_linked_into_the_program)
{
    static char output[1 << 16];
    if (run("readelf -d " CDDP_PROGRAM, output, sizeof output) != 0) {
        print_message("readelf is not here: %.100s\n", output);
        skip();
    }
    assert_non_null(strstr(output, "NEEDED"));
    assert_null(strstr(output, "cuda"));
    assert_null(strstr(output, "nccl"));
    assert_null(strstr(output, "cublas"));
}

static bool has_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (driver != NULL) dlclose(driver);
    return driver != NULL;
}

TEST(module, without_a_driver_the_reason_is_said_and_the_exit_code_is_3)
{
    static char output[1 << 16];
    if (has_driver()) {
        print_message("this machine has a driver\n");
        skip();
    }
    cd_test_row("%s", output);
    assert_int_equal(run(CDDP_PROGRAM " --backend nccl " CDDP_SCENARIO, output, sizeof output), 3);
    assert_non_null(
        strstr(output,
               "backend nccl does not work here: there is no NVIDIA driver (libcuda.so.1:"));
    assert_int_equal(run(CDDP_PROGRAM " doctor", output, sizeof output), 0);
    assert_non_null(
        strstr(output, "no nccl backend nccl does not work here: there is no NVIDIA driver"));
}

/* A program without its modules: the one that was asked for is named, and everything else works. */
TEST(module, without_the_module_the_reason_is_said_and_the_exit_code_is_3)
{
    static char output[1 << 16];
    char directory[] = "/tmp/cddp-module-XXXXXX", command[512];
    assert_non_null(mkdtemp(directory));
    snprintf(command, sizeof command,
             "mkdir %s/bin && ln " CDDP_PROGRAM " %s/bin/cddp-verify || cp " CDDP_PROGRAM
             " %s/bin/cddp-verify",
             directory, directory, directory);
    assert_int_equal(run(command, output, sizeof output), 0);
    snprintf(command, sizeof command, "%s/bin/cddp-verify --backend nccl " CDDP_SCENARIO,
             directory);
    int absent = run(command, output, sizeof output);
    char words[400];
    snprintf(words, sizeof words, "%.399s",
             strstr(output, "backend nccl") != NULL ? strstr(output, "backend nccl") : output);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    assert_int_equal(run(command, output, sizeof output), 0);
    cd_test_row("%s", words);
    assert_int_equal(absent, 3);
    assert_non_null(strstr(words, "backend nccl does not work here: cannot load plugin"));
    assert_non_null(strstr(words, "cddp-nccl.so"));
    assert_non_null(strstr(words, "No such file"));
}

TEST_MAIN()
