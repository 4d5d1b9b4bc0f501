/* SPDX-License-Identifier: Apache-2.0 */
/* A streaming JSON writer: what is written is always well-formed, two spaces of indent per level.
**
** Invalid UTF-8 in a text becomes U+FFFD. 64-bit digests are written as texts, because readers keep
** numbers as doubles. Numbers that JSON lacks (NaN, infinity) become null.
*/
#pragma once
#include "core/base/text.h"

#define CD_JSON_DEPTH_MAX 32

typedef struct cd_json {
    cd_text *text; /* borrows */
    uint32_t depth;
    bool used[CD_JSON_DEPTH_MAX]; /* something stands at this level already */
    bool after_key;
} cd_json;

void cd_json_begin(cd_json *json, cd_text *text);
void cd_json_open(cd_json *json, char bracket);  /* '{' or '[' */
void cd_json_close(cd_json *json, char bracket); /* '}' or ']' */
void cd_json_key(cd_json *json, const char *key);
void cd_json_text(cd_json *json, const char *value); /* NULL writes null */
void cd_json_flag(cd_json *json, bool value);
void cd_json_integer(cd_json *json, int64_t value);
void cd_json_number(cd_json *json, double value);
void cd_json_digest(cd_json *json, uint64_t value);

/* Members: key and value at once. */
void cd_json_put_text(cd_json *json, const char *key, const char *value);
void cd_json_put_integer(cd_json *json, const char *key, int64_t value);
void cd_json_put_flag(cd_json *json, const char *key, bool value);
