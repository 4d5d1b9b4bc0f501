/* SPDX-License-Identifier: Apache-2.0 */
/* Choice strings: writing, and reading with the position of what is wrong. */
#include "sim/schedule.h"

#include "core/base/error.h"

#include <string.h>

void cd_schedule_push(cd_schedule *schedule, uint32_t value, uint32_t kind)
{
    uint64_t number = schedule->choice_count++;
    if (value == 0) return;
    if (schedule->count == schedule->capacity) {
        schedule->overflowed = true;
        return;
    }
    schedule->items[schedule->count++] = (cd_deviation){number, value, kind};
}

typedef struct writer {
    char *text;
    size_t bytes, length; /* length wanted so far */
} writer;

static void put(writer *w, char c)
{
    if (w->length + 1 < w->bytes) w->text[w->length] = c;
    w->length++;
}

/* Digits of a number in a base, most significant first; nothing for zero. */
static void put_number(writer *w, uint64_t number, uint64_t base, char zero)
{
    char digits[64];
    size_t n = 0;
    for (; number > 0; number /= base) digits[n++] = (char)(zero + (char)(number % base));
    while (n > 0) put(w, digits[--n]);
}

size_t cd_schedule_print(const cd_schedule *schedule, char *text, size_t text_bytes)
{
    writer w = {text, text_bytes, 0};
    uint64_t next = 0;
    for (const char *p = CD_SCHEDULE_PREFIX; *p != '\0'; p++) put(&w, *p);
    for (size_t i = 0; i < schedule->count; i++) {
        const cd_deviation *d = &schedule->items[i];
        put_number(&w, d->number - next, 26, 'A');
        if (d->value > 9) put(&w, '(');
        put_number(&w, d->value, 10, '0');
        if (d->value > 9) put(&w, ')');
        next = d->number + 1;
    }
    if (text_bytes > 0) text[w.length < text_bytes ? w.length : text_bytes - 1] = '\0';
    return w.length;
}

cddp_status cd_schedule_open(const char *start, const char **text, cddp_error *err)
{
    size_t n = strlen(CD_SCHEDULE_PREFIX);
    if (start == NULL) return cd_fail(err, CDDP_E_CONFIG, "no schedule was given");
    if (strncmp(start, CD_SCHEDULE_PREFIX, n) != 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "a schedule starts with '" CD_SCHEDULE_PREFIX "', not with '%.8s'", start);
    *text = start + n;
    return CDDP_OK;
}

static cddp_status malformed(const char *start, const char *at, const char *wanted, cddp_error *err)
{
    if (*at == '\0')
        return cd_fail(err, CDDP_E_CONFIG,
                       "the schedule ends at position %zu, where %s is expected",
                       (size_t)(at - start), wanted);
    return cd_fail(err, CDDP_E_CONFIG, "schedule position %zu: '%c' where %s is expected",
                   (size_t)(at - start),
                   (unsigned char)*at >= ' ' && (unsigned char)*at < 127 ? *at : '?', wanted);
}

/* The fifo choices in front of a deviation. */
static cddp_status read_gap(const char *start, const char **text, uint64_t *gap, cddp_error *err)
{
    const char *p = *text;
    if (*p == 'A') return CD_PASS(malformed(start, p, "no leading A", err));
    uint64_t value = 0;
    for (; *p >= 'A' && *p <= 'Z'; p++) {
        if (value > (UINT64_MAX >> 8) / 26)
            return cd_fail(err, CDDP_E_LIMIT, "schedule position %zu: a gap that long cannot be",
                           (size_t)(p - start));
        value = value * 26 + (uint64_t)(*p - 'A');
    }
    *gap = value;
    *text = p;
    return CDDP_OK;
}

static cddp_status read_value(const char *start, const char **text, uint32_t *value,
                              cddp_error *err)
{
    const char *p = *text;
    if (*p >= '1' && *p <= '9') {
        *value = (uint32_t)(*p - '0');
        *text = p + 1;
        return CDDP_OK;
    }
    if (*p != '(')
        return CD_PASS(malformed(start, p, "an option (1 to 9, or a number in parentheses)", err));
    const char *first = ++p;
    uint64_t number = 0;
    for (; *p >= '0' && *p <= '9' && number <= UINT32_MAX; p++)
        number = number * 10 + (uint64_t)(*p - '0');
    if (number > UINT32_MAX - 1)
        return cd_fail(err, CDDP_E_LIMIT, "schedule position %zu: no choice has that many options",
                       (size_t)(first - start));
    if (*p != ')') return CD_PASS(malformed(start, p, "a closing parenthesis", err));
    if (*first == '0' || number < 10)
        return CD_PASS(malformed(start, first, "a number of 10 or more", err));
    *value = (uint32_t)number;
    *text = p + 1;
    return CDDP_OK;
}

cddp_status cd_schedule_read(const char *start, const char **text, uint64_t previous,
                             cd_deviation *deviation, bool *found, cddp_error *err)
{
    if (**text == '\0') {
        *found = false;
        return CDDP_OK;
    }
    const char *p = *text;
    uint64_t gap = 0;
    uint32_t value = 0;
    CD_TRY(read_gap(start, &p, &gap, err));
    CD_TRY(read_value(start, &p, &value, err));
    uint64_t first = previous == UINT64_MAX ? 0 : previous + 1;
    if (gap > UINT64_MAX / 2 - first)
        return cd_fail(err, CDDP_E_LIMIT, "schedule position %zu: more choices than a run can have",
                       (size_t)(p - start));
    *deviation = (cd_deviation){first + gap, value, 0};
    *found = true;
    *text = p;
    return CDDP_OK;
}
