/* SPDX-License-Identifier: Apache-2.0 */
/* JSON as dumps have it. */
#include "core/base/error.h"
#include "core/base/real.h"
#include "verify/import/value.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64

typedef struct parser {
    cd_arena *arena;
    const char *at, *end;
} parser;

static cd_value *parse(parser *p, int depth);

static void skip(parser *p)
{
    while (p->at < p->end && strchr(" \t\r\n", *p->at) != NULL && *p->at != '\0') p->at++;
}

static bool take(parser *p, char wanted)
{
    skip(p);
    if (p->at >= p->end || *p->at != wanted) return false;
    p->at++;
    return true;
}

static bool take_word(parser *p, const char *word)
{
    const size_t length = strlen(word);
    if ((size_t)(p->end - p->at) < length || strncmp(p->at, word, length) != 0) return false;
    p->at += length;
    return true;
}

/* Escapes beyond ASCII become question marks: names of functions are for people. */
static char unescape(parser *p)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char code = *p->at++;
    const char *found = code != '\0' ? strchr(from, code) : NULL;
    if (found != NULL) return to[found - from];
    if (code != 'u') return code;
    p->at = p->end - p->at < 4 ? p->end : p->at + 4;
    return '?';
}

static cd_value *parse_text(parser *p)
{
    const char *first = p->at;
    while (p->at < p->end && *p->at != '"') p->at += *p->at == '\\' && p->at + 1 < p->end ? 2 : 1;
    if (p->at >= p->end) return NULL;
    const char *last = p->at;
    cd_value *v = cd_value_push_text(p->arena, first, (size_t)(last - first));
    char *text = v != NULL ? cd_arena_array(p->arena, (size_t)(last - first) + 1, 1) : NULL;
    if (text == NULL) return NULL;
    v->text = text;
    for (p->at = first; p->at < last;) {
        if (*p->at != '\\') {
            *text++ = *p->at++;
        } else {
            p->at++;
            *text++ = unescape(p);
        }
    }
    p->at = last + 1;
    return v;
}

static cd_value *parse_container(parser *p, bool is_map, int depth)
{
    const char close = is_map ? '}' : ']';
    cd_value *v = cd_value_push(p->arena, is_map ? CD_VALUE_MAP : CD_VALUE_LIST);
    if (v == NULL || take(p, close)) return v;
    do {
        cd_value *item = parse(p, depth);
        if (item == NULL || !cd_value_add(p->arena, v, item)) return NULL;
        if (!is_map) continue;
        if (!take(p, ':')) return NULL;
        item = parse(p, depth);
        if (item == NULL || !cd_value_add(p->arena, v, item)) return NULL;
    } while (take(p, ','));
    return take(p, close) ? v : NULL;
}

static cd_value *parse_number(parser *p)
{
    char digits[64];
    size_t count = 0;
    bool is_real = false;
    for (; p->at < p->end && count + 1 < sizeof digits; p->at++) {
        const bool is_part = (*p->at >= '0' && *p->at <= '9') || *p->at == '-' || *p->at == '+';
        const bool is_mark = *p->at == '.' || *p->at == 'e' || *p->at == 'E';
        if (!is_part && !is_mark) break;
        is_real |= is_mark;
        digits[count++] = *p->at;
    }
    digits[count] = '\0';
    cd_value *v =
        count > 0 ? cd_value_push(p->arena, is_real ? CD_VALUE_REAL : CD_VALUE_NUMBER) : NULL;
    if (v == NULL) return NULL;
    if (is_real)
        v->real = cd_real_parse(digits, NULL);
    else
        v->number = strtoll(digits, NULL, 10);
    return v;
}

static cd_value *parse(parser *p, int depth)
{
    cd_value *v;
    skip(p);
    if (p->at >= p->end || depth >= DEPTH_MAX) return NULL;
    if (take(p, '"')) return parse_text(p);
    if (take(p, '{')) return parse_container(p, true, depth + 1);
    if (take(p, '[')) return parse_container(p, false, depth + 1);
    if (take_word(p, "null")) return cd_value_push(p->arena, CD_VALUE_NONE);
    const bool is_true = take_word(p, "true");
    if (is_true || take_word(p, "false")) {
        v = cd_value_push(p->arena, CD_VALUE_NUMBER);
        if (v != NULL) v->number = is_true;
        return v;
    }
    return parse_number(p);
}

cddp_status cd_json_read(cd_arena *arena, const char *bytes, size_t byte_count, cd_value **value,
                         cddp_error *err)
{
    parser p = {arena, bytes, bytes + byte_count};
    cd_value *v = parse(&p, 0);
    CD_TRY(cd_arena_check(arena, err, "JSON of %zu bytes", byte_count));
    if (v == NULL)
        return cd_fail(err, CDDP_E_CORRUPT, "JSON that is cut or damaged at byte %zu of %zu",
                       (size_t)(p.at - bytes), byte_count);
    *value = v;
    return CDDP_OK;
}
