/* SPDX-License-Identifier: Apache-2.0 */
/* export: the events of a stored run for other programs, a line each, as JSON or CSV. Lines are
** written as they are read, so a trace of any size needs no memory. */
#include "cddp/backend.h"
#include "cddp/store.h"
#include "cddp/tensor.h"
#include "cli/command.h"
#include "core/base/error.h"
#include "core/base/output.h"
#include "core/trace/event.h"
#include "db/store.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FORMAT_JSONL, FORMAT_CSV };

typedef struct exporting {
    FILE *file;
    int format;
    int32_t kind; /* -1: every kind */
    int64_t run;
    cd_text line;
    int write_errno; /* of the first line that could not be written; 0: none */
} exporting;

/* ---- values ---- */

/* The word of a value, where it has one. */
static const char *word_of(cddp_field_type type, int64_t value)
{
    switch (type) {
    case CDDP_FIELD_status:
        return cddp_status_text((cddp_status)value);
    case CDDP_FIELD_dtype:
        return value >= 0 && value < CDDP_DTYPE_COUNT ? cddp_dtype_name((cddp_dtype)value) : NULL;
    case CDDP_FIELD_op:
        return value >= 0 && value < CDDP_OP_COUNT ? cddp_op_name((cddp_op)value) : NULL;
    case CDDP_FIELD_redop:
        return cddp_red_op_name((cddp_red_op)value);
    case CDDP_FIELD_key:
        return cddp_setting_path(value);
    default:
        return cddp_event_word(type, value);
    }
}

static void put_quoted(cd_text *line, const char *value, bool is_csv)
{
    if (is_csv && strpbrk(value, ",\"\n\r") == NULL) {
        cd_text_push(line, value);
        return;
    }
    cd_text_push(line, "\"");
    for (const char *at = value; *at != '\0';) {
        const size_t length = cd_utf8_length(at);
        const unsigned char byte = (unsigned char)*at;
        if (is_csv)
            cd_text_printf(line, byte == '"' ? "\"\"" : "%c", byte);
        else if (length == 0)
            cd_text_push(line, "\\ufffd");
        else if (byte == '"' || byte == '\\')
            cd_text_printf(line, "\\%c", byte);
        else if (byte < 0x20 || byte == 0x7f)
            cd_text_printf(line, "\\u%04x", byte);
        else
            cd_text_push_bytes(line, at, length);
        at += is_csv || length == 0 ? 1 : length;
    }
    cd_text_push(line, "\"");
}

static void put_real(cd_text *line, int64_t bits, bool is_csv)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    if (isfinite(value))
        cd_text_printf(line, "%.17g", value);
    else if (is_csv)
        cd_text_push(line, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    else
        cd_text_push(line, "null");
}

static void put_value(cd_text *line, cddp_field_type type, int64_t value, bool is_csv)
{
    char digest[20];
    const char *word = word_of(type, value);
    if (type == CDDP_FIELD_f64) {
        put_real(line, value, is_csv);
    } else if (type == CDDP_FIELD_digest) {
        snprintf(digest, sizeof digest, "%016" PRIx64, (uint64_t)value);
        put_quoted(line, digest, is_csv);
    } else if (type == CDDP_FIELD_flag && !is_csv) {
        cd_text_push(line, value != 0 ? "true" : "false");
    } else if (word != NULL) {
        put_quoted(line, word, is_csv);
    } else {
        cd_text_printf(line, "%" PRId64, value);
    }
}

/* ---- lines ---- */

static void put_json(exporting *x, const cddp_event *e, const cddp_event_info *info)
{
    cd_text_printf(&x->line, "{\"run\":%" PRId64 ",\"t\":%" PRIu64 ",\"rank\":", x->run,
                   e->time_ns);
    if (e->rank == UINT32_MAX)
        cd_text_push(&x->line, "null");
    else
        cd_text_printf(&x->line, "%" PRIu32, e->rank);
    cd_text_printf(&x->line,
                   ",\"seq\":%" PRIu64 ",\"step\":%" PRIu32 ",\"micro\":%" PRIu32
                   ",\"event\":\"%s\"",
                   e->sequence, e->step, e->micro_step, info->name);
    for (uint32_t i = 0; i < info->field_count; i++) {
        cd_text_printf(&x->line, ",\"%s\":", info->fields[i].name);
        put_value(&x->line, info->fields[i].type, e->as.field[i], false);
    }
    if (e->text != NULL) {
        cd_text_push(&x->line, ",\"text\":");
        put_quoted(&x->line, e->text, false);
    }
    cd_text_push(&x->line, "}\n");
}

static void put_csv(exporting *x, const cddp_event *e, const cddp_event_info *info)
{
    cd_text_printf(&x->line, "%" PRId64 ",%" PRIu64 ",", x->run, e->time_ns);
    if (e->rank != UINT32_MAX) cd_text_printf(&x->line, "%" PRIu32, e->rank);
    cd_text_printf(&x->line, ",%" PRIu64 ",%" PRIu32 ",%" PRIu32 ",%s", e->sequence, e->step,
                   e->micro_step, info->name);
    if (x->kind >= 0) {
        for (uint32_t i = 0; i < info->field_count; i++) {
            cd_text_push(&x->line, ",");
            put_value(&x->line, info->fields[i].type, e->as.field[i], true);
        }
    } else {
        cd_text detail;
        cd_text_init(&detail, false);
        for (uint32_t i = 0; i < info->field_count; i++) {
            cd_text_printf(&detail, "%s%s=", i > 0 ? " " : "", info->fields[i].name);
            put_value(&detail, info->fields[i].type, e->as.field[i], true);
        }
        cd_text_push(&x->line, ",");
        put_quoted(&x->line, cd_text_get(&detail), true);
        cd_text_fini(&detail);
    }
    cd_text_push(&x->line, ",");
    if (e->text != NULL) put_quoted(&x->line, e->text, true);
    cd_text_push(&x->line, "\n");
}

static void put_header(exporting *x)
{
    cd_text_push(&x->line, "run,t,rank,seq,step,micro,event,");
    const cddp_event_info *info = x->kind >= 0 ? cddp_event_describe((uint32_t)x->kind) : NULL;
    if (info == NULL) cd_text_push(&x->line, "detail,");
    for (uint32_t i = 0; info != NULL && i < info->field_count; i++)
        cd_text_printf(&x->line, "%s,", info->fields[i].name);
    cd_text_push(&x->line, "text\n");
}

static void write_line(exporting *x)
{
    if (fwrite(cd_text_get(&x->line), 1, x->line.length, x->file) != x->line.length)
        x->write_errno = errno;
    x->line.length = 0;
}

static void write_event(exporting *x, const cddp_event *e)
{
    const cddp_event_info *info = cddp_event_describe(e->kind);
    if (info == NULL || (x->kind >= 0 && e->kind != x->kind)) return;
    if (x->format == FORMAT_CSV)
        put_csv(x, e, info);
    else
        put_json(x, e, info);
    write_line(x);
}

/* ---- the command ---- */

static cddp_status read_arguments(const cd_args *args, exporting *x, uint64_t *run, cddp_error *err)
{
    static const char *const formats[] = {"jsonl", "csv", NULL};
    const char *name = cd_args_text(args, CD_OPTION_event, NULL);
    const char *path = cd_args_text(args, CD_OPTION_output, NULL);
    if (args->operand_count != 1)
        return cd_fail(err, CDDP_E_ARG, "export which store? name one file");
    CD_TRY(cd_args_choice(args, CD_OPTION_format, formats, &x->format, err));
    CD_TRY(cd_args_run_number(args, run, err));
    x->kind = name != NULL ? cd_event_find(name) : -1;
    if (name != NULL && x->kind < 0)
        return cd_fail(err, CDDP_E_ARG,
                       "there is no event '%.60s'; \"cddp-verify list events\" has them all", name);
    return path != NULL ? CD_PASS(cd_output_check(path, err)) : CDDP_OK;
}

/* Ends where nothing more can be written. */
static cddp_status each_event(exporting *x, cddp_store *store, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_cursor cursor = {.store = NULL};
    CD_TRY(cd_cursor_open(&cursor, store, x->run, CDDP_STORE_RECORDED, err));
    for (bool found = true; x->write_errno == 0;) {
        cddp_event event;
        CD_TRY_OUT(cd_cursor_next(&cursor, &event, &found, err));
        if (!found) break;
        write_event(x, &event);
    }
out:
    cd_cursor_close(&cursor);
    return status;
}

static cddp_status write_events(exporting *x, cddp_store *store, uint64_t run, cddp_error *err)
{
    CD_TRY(cddp_store_last_run(store, &x->run, err));
    if (run > (uint64_t)x->run)
        return cd_fail(err, CDDP_E_ARG, "'%s' has no run %" PRIu64 "; its last one is %" PRId64,
                       cddp_store_path(store), run, x->run);
    if (run != 0) x->run = (int64_t)run;
    if (x->format == FORMAT_CSV) put_header(x), write_line(x);
    CD_TRY(each_event(x, store, err));
    if (x->line.failed) return cd_fail_memory(err, "an event");
    errno = 0;
    if (fflush(x->file) == 0 && !ferror(x->file)) return CDDP_OK;
    /* whoever reads a pipe may have seen enough: that is no failure */
    const int why = errno != 0 ? errno : x->write_errno;
    return why == EPIPE && x->file == stdout
               ? CDDP_OK
               : cd_fail(err, x->file == stdout ? CDDP_E_NOMEM : cd_error_of_errno(why),
                         "cannot write the events: %s", strerror(why));
}

int cd_command_export(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    const char *path = cd_args_text(cli->args, CD_OPTION_output, NULL);
    exporting x = {.file = stdout};
    cddp_store *store = NULL;
    uint64_t run = 0;
    cd_text_init(&x.line, false);
    cddp_status status = read_arguments(cli->args, &x, &run, &err);
    if (status == CDDP_OK)
        status = cddp_store_open(cli->args->operands[0], CDDP_STORE_READ, NULL, &store, &err);
    if (status == CDDP_OK && path != NULL && (x.file = fopen(path, "wb")) == NULL)
        status =
            cd_fail(&err, cd_error_of_errno(errno), "cannot write %s: %s", path, strerror(errno));
    if (status == CDDP_OK) status = write_events(&x, store, run, &err);
    if (x.file != NULL && x.file != stdout && fclose(x.file) != 0 && status == CDDP_OK)
        status =
            cd_fail(&err, cd_error_of_errno(errno), "cannot write %s: %s", path, strerror(errno));
    cddp_store_close(store);
    cd_text_fini(&x.line);
    return status == CDDP_OK ? CD_EXIT_VERIFIED : cd_cli_fail(cli, &err);
}
