/* SPDX-License-Identifier: Apache-2.0 */
/* Shards: what was emitted is there, whatever happened to the writer, the disk or the file. */
#define _POSIX_C_SOURCE 200809L
#include "cddp/shard.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/base/prng.h"
#include "core/trace/tracer.h"
#include "record/seal.h"
#include "record/shard_file.h"
#include "tests/support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[256];
static char path[300];

static void make_place(void)
{
    const char *temporary = getenv("TMPDIR");
    if (directory[0] == '\0') {
        snprintf(directory, sizeof directory, "%.200s/cddp-shard-XXXXXX",
                 temporary != NULL ? temporary : "/tmp");
        assert_non_null(mkdtemp(directory));
    }
    snprintf(path, sizeof path, "%s/run.db.1", directory);
}

static void remove_place(void)
{
    unlink(path);
    rmdir(directory);
    directory[0] = '\0';
}

static cddp_shard *open_shard(void)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_shard *shard = NULL;
    make_place();
    const cddp_shard_options options = {.size = sizeof options,
                                        .path = path,
                                        .rank = 1,
                                        .world_size = 4,
                                        .generation = 2,
                                        .level = CDDP_TRACE_DIGEST,
                                        .job = 7,
                                        .program = "a program"};
    assert_int_equal(cddp_shard_open(&options, &shard, &err), CDDP_OK);
    return shard;
}

static void emit_mark(cddp_shard *shard, const char *name, int64_t value)
{
    cddp_event event = {.kind = CDDP_EV_mark,
                        .step = (uint32_t)value,
                        .micro_step = (uint32_t)value + 1,
                        .text = name,
                        .time_ns = 5};
    event.as.mark.value = value;
    cddp_shard_emit(shard, &event);
}

/* How many events there are; each is the mark with the next value. */
static uint64_t count_marks(void)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_shard_reader *reader = NULL;
    cddp_event event;
    bool found = true;
    uint64_t count = 0;
    assert_int_equal(cddp_shard_reader_open(path, &reader, &err), CDDP_OK);
    while (found) {
        assert_int_equal(cddp_shard_reader_next(reader, &event, &found, &err), CDDP_OK);
        if (!found) break;
        assert_int_equal(event.kind, CDDP_EV_mark);
        assert_int_equal(event.as.mark.value, count);
        assert_int_equal(event.sequence, count);
        assert_int_equal(event.rank, 1);
        count++;
    }
    cddp_shard_reader_close(reader);
    return count;
}

TEST(shard, what_is_emitted_is_read_with_its_texts)
{
    cddp_error err = CDDP_ERROR_INIT;
    char longest[1000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    const char *const texts[] = {"one", NULL, "", longest, "one", longest};
    const size_t count = sizeof texts / sizeof texts[0];
    cddp_shard *shard = open_shard();
    for (size_t i = 0; i < count; i++) emit_mark(shard, texts[i], (int64_t)i);
    assert_int_equal(cddp_shard_close(shard, &err), CDDP_OK);
    cddp_shard_reader *reader = NULL;
    cddp_event event;
    bool found = false;
    assert_int_equal(cddp_shard_reader_open(path, &reader, &err), CDDP_OK);
    const cddp_shard_header *h = cddp_shard_reader_header(reader);
    assert_int_equal(h->rank, 1);
    assert_int_equal(h->world_size, 4);
    assert_int_equal(h->generation, 2);
    assert_int_equal(h->job, 7);
    assert_int_equal(h->end, CDDP_SHARD_CLOSED);
    assert_string_equal(h->program, "a program");
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(cddp_shard_reader_next(reader, &event, &found, &err), CDDP_OK);
            assert_true(found);
            assert_int_equal(event.step, i);
            assert_int_equal(event.micro_step, i + 1);
            assert_int_equal(event.time_ns, 5);
            if (texts[i] == NULL)
                assert_null(event.text);
            else
                assert_string_equal(event.text, texts[i]);
        }
        assert_int_equal(cddp_shard_reader_next(reader, &event, &found, &err), CDDP_OK);
        assert_false(found);
        cddp_shard_reader_rewind(reader);
    }
    cddp_shard_reader_close(reader);
    remove_place();
}

TEST(shard, many_steps_of_growth_lose_nothing)
{
    const int64_t count = 200000; /* several steps of the file */
    cddp_error err = CDDP_ERROR_INIT;
    cddp_shard *shard = open_shard();
    for (int64_t i = 0; i < count; i++) emit_mark(shard, i % 3 == 0 ? "third" : NULL, i);
    assert_int_equal(cddp_shard_close(shard, &err), CDDP_OK);
    assert_int_equal(count_marks(), count);
    remove_place();
}

/* Emits until it is killed; says through a pipe how far it is. */
static void emit_for_ever(int said)
{
    cddp_shard *shard = open_shard();
    for (int64_t i = 0;; i++) {
        emit_mark(shard, "m", i);
        if (write(said, &i, sizeof i) != sizeof i) _exit(1);
    }
}

TEST(shard, every_event_before_a_kill_is_there)
{
    for (int round = 0; round < 20; round++) {
        int ends[2];
        make_place();
        assert_int_equal(pipe(ends), 0);
        const pid_t child = fork();
        if (child == 0) emit_for_ever(ends[1]);
        close(ends[1]);
        int64_t last = -1;
        for (int i = 0; i < 50 + round * 97; i++)
            if (read(ends[0], &last, sizeof last) != sizeof last) break;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        for (int64_t said = 0; read(ends[0], &said, sizeof said) == sizeof said;) last = said;
        close(ends[0]);
        const uint64_t count = count_marks();
        assert_true(count >= (uint64_t)last + 1);
        assert_true(count <= (uint64_t)last + 2);
    }
    remove_place();
}

TEST(shard, a_shard_says_until_when_its_process_lived)
{
    cddp_error err = CDDP_ERROR_INIT;
    make_place();
    const uint64_t before_ns = cddp_shard_now_ns();
    cddp_shard *shard = open_shard();
    cddp_shard_header header;
    cddp_shard_reader *reader = NULL;
    assert_int_equal(cddp_shard_reader_open(path, &reader, &err), CDDP_OK);
    const uint64_t alive_ns = cddp_shard_reader_alive(reader);
    assert_in_range(alive_ns, before_ns, cddp_shard_now_ns());
    header = *cddp_shard_reader_header(reader);
    assert_int_equal(cd_seal_read_alive(&header), alive_ns);
    for (int bit = 0; bit < 64; bit++) { /* what a disk has changed says nothing */
        header.alive ^= UINT64_C(1) << bit;
        assert_int_equal(cd_seal_read_alive(&header), 0);
        header.alive ^= UINT64_C(1) << bit;
    }
    cddp_shard_reader_close(reader);
    assert_int_equal(cddp_shard_close(shard, &err), CDDP_OK);
    remove_place();
}

TEST(shard, a_child_process_adds_nothing)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_shard *shard = open_shard();
    emit_mark(shard, "parent", 0);
    const pid_t child = fork();
    if (child == 0) {
        emit_mark(shard, "child", 77);
        _exit(cddp_shard_close(shard, NULL) == CDDP_OK ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(count_marks(), 1); /* before the parent writes over it */
    emit_mark(shard, "parent", 1);
    assert_int_equal(cddp_shard_close(shard, &err), CDDP_OK);
    assert_int_equal(count_marks(), 2);
    remove_place();
}

/* In a child, since the limit is the process's. */
static int emit_beyond_the_limit(void)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_shard *shard = open_shard();
    const struct rlimit limit = {.rlim_cur = 200000, .rlim_max = 200000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    for (int64_t i = 0; i < 10000; i++) emit_mark(shard, "m", i);
    if (cddp_shard_flush(shard, &err) != CDDP_E_IO) return 3;
    if (strstr(err.message, "File too large") == NULL) return 4;
    if (cddp_shard_flush(shard, &err) != CDDP_OK) return 5; /* once */
    return cddp_shard_close(shard, &err) == CDDP_OK ? 0 : 6;
}

TEST(shard, a_full_disk_ends_the_recording_and_not_the_program)
{
    cddp_error err = CDDP_ERROR_INIT;
    make_place();
    const pid_t child = fork();
    if (child == 0) _exit(emit_beyond_the_limit());
    int status = 1;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    cddp_shard_reader *reader = NULL;
    assert_int_equal(cddp_shard_reader_open(path, &reader, &err), CDDP_OK);
    const cddp_shard_header *h = cddp_shard_reader_header(reader);
    assert_int_equal(h->end, CDDP_SHARD_FULL);
    assert_true(h->lost > 0);
    assert_non_null(strstr(h->failure, "File too large"));
    const uint64_t lost = h->lost;
    cddp_shard_reader_close(reader);
    assert_int_equal(count_marks() + lost, 10000);
    remove_place();
}

TEST(shard, what_is_no_shard_is_not_overwritten)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_shard *shard = NULL;
    make_place();
    FILE *file = fopen(path, "w");
    fputs("somebody's results", file);
    fclose(file);
    const cddp_shard_options options = {.size = sizeof options,
                                        .path = path,
                                        .rank = 1,
                                        .world_size = 4};
    assert_int_equal(cddp_shard_open(&options, &shard, &err), CDDP_E_ARG);
    assert_non_null(strstr(err.message, "not overwritten"));
    cddp_shard_reader *reader = NULL;
    assert_int_equal(cddp_shard_reader_open(path, &reader, &err), CDDP_E_CORRUPT);
    assert_non_null(strstr(err.message, "is no shard"));
    remove_place();
}

TEST(shard, digests_are_those_of_the_cpu_device)
{
    static const int64_t sizes[] = {0, 1, 511, 512, 513, 5000};
    float values[5000];
    for (int i = 0; i < 5000; i++) values[i] = (float)i * 0.25f;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t digest = 0;
        const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F32, &sizes[i], 1);
        assert_int_equal(cddp_device_cpu()->digest(&t, &digest, NULL), CDDP_OK);
        assert_true(digest ==
                    cddp_shard_digest(values, (size_t)sizes[i] * sizeof(float), sizeof(float)));
    }
    assert_int_equal(cddp_shard_kind("mark"), CDDP_EV_mark);
    assert_int_equal(cddp_shard_kind("no such kind"), -1);
}

/* Reads to the end or to an error, whatever the file has. */
static cddp_status read_all(const char *where)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_shard_reader *reader = NULL;
    cddp_event event;
    bool found = true;
    cddp_status status = cddp_shard_reader_open(where, &reader, &err);
    while (status == CDDP_OK && found) {
        status = cddp_shard_reader_next(reader, &event, &found, &err);
        if (status == CDDP_OK && found) {
            assert_true(event.kind < CDDP_EV_COUNT);
            assert_true(event.text == NULL || strlen(event.text) <= CDDP_SHARD_TEXT_MAX);
        }
    }
    if (status != CDDP_OK) assert_true(strlen(err.message) > 0);
    cddp_shard_reader_close(reader);
    return status;
}

static size_t read_file(unsigned char *bytes, size_t capacity)
{
    FILE *file = fopen(path, "rb");
    const size_t count = fread(bytes, 1, capacity, file);
    fclose(file);
    return count;
}

static void write_file(const unsigned char *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

/* Nobody reads what is behind the header's last field. */
static bool is_same_shard(const unsigned char *a, const unsigned char *b, size_t count)
{
    return memcmp(a, b, sizeof(cddp_shard_header)) == 0 &&
           memcmp(a + CDDP_SHARD_HEADER_BYTES, b + CDDP_SHARD_HEADER_BYTES,
                  count - CDDP_SHARD_HEADER_BYTES) == 0;
}

TEST(shard, a_torn_or_changed_file_is_refused)
{
    static unsigned char whole[65536], changed[65536];
    cddp_error err = CDDP_ERROR_INIT;
    cddp_shard *shard = open_shard();
    char longest[1000];
    memset(longest, 'y', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    for (int64_t i = 0; i < 40; i++) emit_mark(shard, i % 4 == 0 ? longest : "m", i);
    assert_int_equal(cddp_shard_close(shard, &err), CDDP_OK);
    const size_t count = read_file(whole, sizeof whole);
    cd_prng prng = cd_prng_seed(20261122);
    for (size_t cut = 0; cut < count; cut += 61) { /* a tail that was torn off */
        write_file(whole, cut);
        assert_int_equal(read_all(path), CDDP_E_CORRUPT);
    }
    for (int round = 0; round < 3000; round++) { /* bytes that were changed */
        memcpy(changed, whole, count);
        const uint64_t changes = 1 + cd_prng_below(&prng, 8);
        for (uint64_t i = 0; i < changes; i++) {
            const size_t at = round % 2 == 0 ? CDDP_SHARD_HEADER_BYTES : 0;
            changed[at + cd_prng_below(&prng, count - at)] =
                (unsigned char)cd_prng_below(&prng, 256);
        }
        write_file(changed, count);
        const bool is_whole = is_same_shard(changed, whole, count);
        assert_int_equal(read_all(path) == CDDP_OK, is_whole);
    }
    for (size_t bit = 0; bit < 8 * count; bit += 7) { /* one bit that was turned over */
        memcpy(changed, whole, count);
        changed[bit / 8] ^= (unsigned char)(1 << bit % 8);
        write_file(changed, count);
        const bool is_whole = is_same_shard(changed, whole, count);
        cd_test_row("byte %zu, bit %zu", bit / 8, bit % 8);
        /* it is damaged, and not another version's */
        assert_int_equal(read_all(path), is_whole ? CDDP_OK : CDDP_E_CORRUPT);
    }
    for (size_t at = CDDP_SHARD_HEADER_BYTES; at < count; at += 128) { /* two that changed places */
        const size_t other = CDDP_SHARD_HEADER_BYTES + (at * 7) % (count - CDDP_SHARD_HEADER_BYTES);
        const size_t slot = other - other % 128;
        memcpy(changed, whole, count);
        memcpy(changed + at, whole + slot, 128);
        memcpy(changed + slot, whole + at, 128);
        write_file(changed, count);
        const bool is_whole = is_same_shard(changed, whole, count);
        assert_int_equal(read_all(path) == CDDP_OK, is_whole);
    }
    for (size_t at = CDDP_SHARD_HEADER_BYTES; at < count; at += 128) { /* zeros from a hole */
        memcpy(changed, whole, count);
        memset(changed + at, 0, 128);
        write_file(changed, count);
        assert_int_equal(read_all(path), CDDP_E_CORRUPT);
    }
    for (int round = 0; round < 1000; round++) { /* longer ones, over the header too */
        const size_t at = cd_prng_below(&prng, count),
                     room = 1 + cd_prng_below(&prng, round % 2 == 0 ? 64 : 8192);
        memcpy(changed, whole, count);
        memset(changed + at, 0, room < count - at ? room : count - at);
        write_file(changed, count);
        const bool is_whole = is_same_shard(changed, whole, count);
        cd_test_row("%zu bytes at %zu", room, at);
        assert_int_equal(read_all(path) == CDDP_OK, is_whole);
    }
    for (int round = 0; round < 300; round++) { /* anything behind a good header */
        memcpy(changed, whole, CDDP_SHARD_HEADER_BYTES);
        for (size_t at = CDDP_SHARD_HEADER_BYTES; at < count; at++)
            changed[at] = (unsigned char)cd_prng_below(&prng, 256);
        write_file(changed, count);
        assert_int_equal(read_all(path), CDDP_E_CORRUPT);
    }
    assert_int_equal(read_all(directory), CDDP_E_CORRUPT);
    assert_int_equal(read_all("/nonexistent/shard"), CDDP_E_IO);
    remove_place();
}

TEST(shard, what_is_not_there_is_refused_in_words)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_shard_reader *reader = NULL;
    assert_int_equal(cddp_shard_reader_open(NULL, &reader, &err), CDDP_E_ARG);
    assert_non_null(strstr(err.message, "the path is NULL"));
    assert_int_equal(cddp_shard_reader_open("/tmp", NULL, &err), CDDP_E_ARG);
    assert_int_equal(cddp_shard_flush(NULL, &err), CDDP_E_ARG);
    assert_non_null(strstr(err.message, "the shard is NULL"));
    assert_int_equal(cddp_shard_kind(NULL), -1);
    assert_null(cddp_shard_sink(NULL));
    cddp_shard_reader_rewind(NULL);
}

TEST_MAIN()
