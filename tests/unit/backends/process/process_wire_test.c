/* SPDX-License-Identifier: Apache-2.0 */
/* Records and lines as they arrive: in pieces, and from children that write nonsense. */
#define _POSIX_C_SOURCE 200809L
#include "backends/process/process_wire.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What a child would have written: bytes of records, through a real pipe. */
static size_t written(cddp_status (*write_records)(int fd, cddp_error *err), unsigned char *bytes,
                      size_t capacity)
{
    cddp_error err = CDDP_ERROR_INIT;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_ok(write_records(ends[1], &err), &err);
    close(ends[1]);
    size_t used = 0;
    for (ssize_t n; (n = read(ends[0], bytes + used, capacity - used)) > 0;) used += (size_t)n;
    close(ends[0]);
    return used;
}

static cddp_status two_records(int fd, cddp_error *err)
{
    cddp_error failure = CDDP_ERROR_INIT;
    CD_TRY(cd_process_record_write(fd, CD_PROCESS_MESSAGE, "hello", 5, err));
    (void)cd_fail(&failure, CDDP_E_MISMATCH, "bucket 3");
    CD_TRY(cd_process_result_write(fd, CDDP_E_MISMATCH, &failure, err));
    return CDDP_OK;
}

TEST(inbox, records_arrive_whole_whatever_the_pieces)
{
    cddp_error err = CDDP_ERROR_INIT;
    unsigned char bytes[4096];
    size_t total = written(two_records, bytes, sizeof bytes);
    for (size_t piece = 1; piece <= total; piece = piece < 8 ? piece + 1 : piece * 3) {
        cd_test_row("pieces of %zu", piece);
        cd_process_inbox inbox;
        cd_arena texts;
        cd_process_inbox_init(&inbox, NULL);
        cd_arena_init(&texts, NULL, 256);
        cddp_rank_result result = {0};
        size_t seen = 0;
        for (size_t at = 0; at < total; at += piece) {
            assert_ok(cd_process_inbox_push(&inbox, bytes + at,
                                            at + piece < total ? piece : total - at, &err),
                      &err);
            cd_process_record record;
            bool found = true;
            for (;;) {
                assert_ok(cd_process_inbox_take(&inbox, &record, &found, &err), &err);
                if (!found) break;
                if (seen++ == 0) {
                    assert_int_equal(record.kind, CD_PROCESS_MESSAGE);
                    assert_int_equal(record.byte_count, 5);
                    assert_memory_equal(record.bytes, "hello", 5);
                } else {
                    assert_ok(cd_process_result_read(&record, &texts, &result, &err), &err);
                }
            }
        }
        assert_int_equal(seen, 2);
        assert_int_equal(result.status, CDDP_E_MISMATCH);
        assert_string_equal(result.error.message, "bucket 3");
        assert_string_equal(result.error.frames[0].function, "two_records");
        cd_arena_fini(&texts);
        cd_process_inbox_fini(&inbox);
    }
}

TEST(inbox, a_header_that_no_rank_writes_is_refused)
{
    static const struct {
        uint32_t kind, byte_count;
    } headers[] = {{0, 4}, {4, 4}, {CD_PROCESS_MESSAGE, UINT32_MAX}, {0xdeadbeef, 0xdeadbeef}};
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        cd_test_row("kind %u, %u bytes", headers[i].kind, headers[i].byte_count);
        cddp_error err = CDDP_ERROR_INIT;
        cd_process_inbox inbox;
        cd_process_inbox_init(&inbox, NULL);
        assert_ok(cd_process_inbox_push(&inbox, &headers[i], sizeof headers[i], &err), &err);
        cd_process_record record;
        bool found = true;
        assert_fails(cd_process_inbox_take(&inbox, &record, &found, &err), CDDP_E_CORRUPT, &err,
                     "a rank wrote a record of kind");
        assert_false(found);
        cd_process_inbox_fini(&inbox);
    }
}

static cddp_status one_result(int fd, cddp_error *err)
{
    cddp_error failure = CDDP_ERROR_INIT;
    (void)cd_fail(&failure, CDDP_E_IO, "disk");
    CD_TRY(cd_process_result_write(fd, CDDP_E_IO, &failure, err));
    return CDDP_OK;
}

TEST(result, one_of_another_size_or_with_impossible_numbers_is_refused)
{
    unsigned char bytes[4096];
    size_t total = written(one_result, bytes, sizeof bytes), header = 8;
    cd_arena texts;
    cd_arena_init(&texts, NULL, 256);
    for (int i = 0; i < 4; i++) {
        cd_test_row("damage %d", i);
        cddp_error err = CDDP_ERROR_INIT;
        unsigned char damaged[4096];
        memcpy(damaged, bytes, total);
        cd_process_record record = {CD_PROCESS_RESULT, damaged + header, total - header};
        static const uint32_t huge = 0x7fffffff;
        if (i == 0) record.byte_count--;
        if (i == 1) memcpy(damaged + header, &huge, sizeof huge);     /* the status */
        if (i == 2) memcpy(damaged + header + 4, &huge, sizeof huge); /* how many frames */
        cddp_rank_result result = {0};
        cddp_status status = cd_process_result_read(&record, &texts, &result, &err);
        if (i < 3)
            assert_fails(status, CDDP_E_CORRUPT, &err, "a rank's result has");
        else
            assert_ok(status, &err);
    }
    cd_arena_fini(&texts);
}

TEST(result, texts_without_an_end_stay_inside_their_arrays)
{
    unsigned char bytes[4096];
    size_t total = written(one_result, bytes, sizeof bytes), header = 8;
    memset(bytes + header + 8, 'x', total - header - 8); /* message and frames: no NUL anywhere */
    cddp_error err = CDDP_ERROR_INIT;
    cd_arena texts;
    cd_arena_init(&texts, NULL, 256);
    cd_process_record record = {CD_PROCESS_RESULT, bytes + header, total - header};
    cddp_rank_result result = {0};
    assert_ok(cd_process_result_read(&record, &texts, &result, &err), &err);
    assert_int_equal(strlen(result.error.message), CDDP_ERROR_MESSAGE_BYTES - 1);
    assert_true(strlen(result.error.frames[0].file) < 200);
    cd_arena_fini(&texts);
}

TEST(record, more_than_the_limit_is_refused_before_anything_is_written)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_fails(cd_process_record_write(-1, CD_PROCESS_MESSAGE, "x",
                                         (size_t)CD_PROCESS_RECORD_BYTES_MAX + 1, &err),
                 CDDP_E_LIMIT, &err, "at most");
}

static void append(void *context, const char *line, size_t length)
{
    char *text = context;
    size_t used = strlen(text);
    snprintf(text + used, 8192 - used, "%.*s|", (int)length, line);
}

TEST(lines, are_cut_at_newlines_whatever_the_pieces_and_long_ones_in_parts)
{
    static const char *const text = "one\n\ntwo words\nlast";
    for (size_t piece = 1; piece < 25; piece++) {
        cd_process_lines lines = {.used = 0};
        char got[8192] = "";
        for (size_t at = 0; at < strlen(text); at += piece)
            cd_process_lines_push(&lines, text + at,
                                  at + piece < strlen(text) ? piece : strlen(text) - at, append,
                                  got);
        cd_process_lines_end(&lines, append, got);
        cd_process_lines_end(&lines, append, got);
        assert_string_equal(got, "one||two words|last|");
    }
    cd_process_lines lines = {.used = 0};
    char got[8192] = "";
    for (size_t i = 0; i < sizeof lines.text + 1; i++)
        cd_process_lines_push(&lines, "x", 1, append, got);
    cd_process_lines_end(&lines, append, got);
    /* all of it, and an end after each of two parts */
    assert_int_equal(strlen(got), sizeof lines.text + 3);
    assert_int_equal(got[sizeof lines.text], '|');
}

TEST_MAIN()
