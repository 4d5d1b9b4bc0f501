/* SPDX-License-Identifier: Apache-2.0 */
/* A streaming JSON writer. */
#include "verify/report/json.h"

#include "core/base/assert.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void cd_json_begin(cd_json *json, cd_text *text) { *json = (cd_json){.text = text}; }

static void break_line(cd_json *json)
{
    cd_text_printf(json->text, "\n%*s", (int)(2 * json->depth), "");
}

/* The separator between the value before and this one. */
static void separate(cd_json *json)
{
    if (json->after_key) {
        json->after_key = false;
        return;
    }
    if (json->used[json->depth]) cd_text_push(json->text, ",");
    json->used[json->depth] = true;
    if (json->depth > 0) break_line(json);
}

void cd_json_open(cd_json *json, char bracket)
{
    separate(json);
    CD_ASSERT(json->depth + 1 < CD_JSON_DEPTH_MAX);
    cd_text_push_bytes(json->text, &bracket, 1);
    json->used[++json->depth] = false;
}

void cd_json_close(cd_json *json, char bracket)
{
    CD_ASSERT(json->depth > 0 && !json->after_key);
    bool was_used = json->used[json->depth--];
    if (was_used) break_line(json);
    cd_text_push_bytes(json->text, &bracket, 1);
    if (json->depth == 0) cd_text_push(json->text, "\n");
}

static void push_quoted(cd_text *text, const char *value)
{
    cd_text_push(text, "\"");
    for (const char *at = value; *at != '\0';) {
        size_t length = cd_utf8_length(at);
        unsigned char byte = (unsigned char)*at;
        if (length == 0)
            cd_text_push(text, "\\ufffd");
        else if (byte == '"' || byte == '\\')
            cd_text_printf(text, "\\%c", byte);
        else if (byte == '\n')
            cd_text_push(text, "\\n");
        else if (byte == '\t')
            cd_text_push(text, "\\t");
        else if (byte < 0x20 || byte == 0x7f)
            cd_text_printf(text, "\\u%04x", byte);
        else
            cd_text_push_bytes(text, at, length);
        at += length == 0 ? 1 : length;
    }
    cd_text_push(text, "\"");
}

void cd_json_key(cd_json *json, const char *key)
{
    separate(json);
    push_quoted(json->text, key);
    cd_text_push(json->text, ": ");
    json->after_key = true;
}

void cd_json_text(cd_json *json, const char *value)
{
    separate(json);
    if (value == NULL)
        cd_text_push(json->text, "null");
    else
        push_quoted(json->text, value);
}

void cd_json_flag(cd_json *json, bool value)
{
    separate(json);
    cd_text_push(json->text, value ? "true" : "false");
}

void cd_json_integer(cd_json *json, int64_t value)
{
    separate(json);
    cd_text_printf(json->text, "%" PRId64, value);
}

void cd_json_number(cd_json *json, double value)
{
    separate(json);
    if (isfinite(value))
        cd_text_printf(json->text, "%.17g", value);
    else
        cd_text_push(json->text, "null");
}

void cd_json_digest(cd_json *json, uint64_t value)
{
    separate(json);
    cd_text_printf(json->text, "\"%016" PRIx64 "\"", value);
}

void cd_json_put_text(cd_json *json, const char *key, const char *value)
{
    cd_json_key(json, key);
    cd_json_text(json, value);
}

void cd_json_put_integer(cd_json *json, const char *key, int64_t value)
{
    cd_json_key(json, key);
    cd_json_integer(json, value);
}

void cd_json_put_flag(cd_json *json, const char *key, bool value)
{
    cd_json_key(json, key);
    cd_json_flag(json, value);
}
