/* SPDX-License-Identifier: Apache-2.0 */
/* Tables and printers generated from cddp/events.def. */
#include "core/trace/event.h"

#include "cddp/backend.h"
#include "core/base/hash.h"
#include "core/base/real.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const cddp_event_info infos[CDDP_EV_COUNT] = {
#define CDDP_FIELD(type, name, doc) {#name, CDDP_FIELD_##type, doc},
#define CDDP_EVENT(name, doc, fields) \
    [CDDP_EV_##name] = {#name, doc, sizeof(cddp_event_##name) / sizeof(int64_t), {fields}},
#include "cddp/events.def"
#undef CDDP_FIELD
};

/* of each type of a field: its words, each with its zero, and an empty one at the end */
#define CDDP_WORD(constant, word) word "\0"
static const char *const type_words[CDDP_FIELD_TYPE_COUNT] = {
#define CDDP_EVENT_ENUM(name, words) [CDDP_FIELD_##name] = words,
#include "cddp/events.def"
};

const char *cddp_event_word(cddp_field_type type, int64_t value)
{
    const char *at = (uint32_t)type < CDDP_FIELD_TYPE_COUNT ? type_words[type] : NULL;
    for (; at != NULL && *at != '\0'; at += strlen(at) + 1)
        if (value-- == 0) return at;
    return NULL;
}

const uint8_t cd_event_field_counts[CDDP_EV_COUNT] = {
#define CDDP_EVENT(name, doc, fields) \
    [CDDP_EV_##name] = sizeof(cddp_event_##name) / sizeof(int64_t),
#include "cddp/events.def"
};

#define CDDP_EVENT(name, doc, fields)                                                \
    _Static_assert(sizeof(cddp_event_##name) <= CDDP_EVENT_FIELDS * sizeof(int64_t), \
                   "event " #name " has too many fields");
#include "cddp/events.def"

const cddp_event_info *cddp_event_describe(uint32_t kind)
{
    return kind < CDDP_EV_COUNT ? &infos[kind] : NULL;
}

int32_t cd_event_find(const char *name)
{
    for (int32_t i = 0; i < CDDP_EV_COUNT; i++)
        if (strcmp(infos[i].name, name) == 0) return i;
    return -1;
}

static int print_field(char *text, size_t bytes, const cddp_field_info *info, int64_t value)
{
    bool is_name = info->type == CDDP_FIELD_dtype || info->type == CDDP_FIELD_op ||
                   info->type == CDDP_FIELD_redop;
    /* the operation has none */
    if (is_name && value < 0) return snprintf(text, bytes, " %s=-", info->name);
    switch (info->type) {
    case CDDP_FIELD_digest:
        return snprintf(text, bytes, " %s=%016" PRIx64, info->name, (uint64_t)value);
    case CDDP_FIELD_f64: {
        double f;
        char number[32];
        memcpy(&f, &value, sizeof f);
        cd_real_print(f, 17, number, sizeof number);
        return snprintf(text, bytes, " %s=%s", info->name, number);
    }
    case CDDP_FIELD_status:
        return snprintf(text, bytes, " %s=\"%s\"", info->name,
                        cddp_status_text((cddp_status)value));
    case CDDP_FIELD_dtype:
        return snprintf(text, bytes, " %s=%s", info->name, cddp_dtype_name((cddp_dtype)value));
    case CDDP_FIELD_op:
        return snprintf(text, bytes, " %s=%s", info->name, cddp_op_name((cddp_op)value));
    case CDDP_FIELD_redop:
        return snprintf(text, bytes, " %s=%s", info->name, cddp_red_op_name((cddp_red_op)value));
    case CDDP_FIELD_key:
        if (cddp_setting_path(value) == NULL)
            return snprintf(text, bytes, " %s=%016" PRIx64, info->name, (uint64_t)value);
        return snprintf(text, bytes, " %s=%s", info->name, cddp_setting_path(value));
    case CDDP_FIELD_count:
    case CDDP_FIELD_index:
    case CDDP_FIELD_bytes:
    case CDDP_FIELD_flag:
    case CDDP_FIELD_ns:
    case CDDP_FIELD_param:
    case CDDP_FIELD_bucket:
    case CDDP_FIELD_rank:
    case CDDP_FIELD_group:
    default:
        break;
    }
    if (cddp_event_word(info->type, value) != NULL) {
        const char *word = cddp_event_word(info->type, value);
        const char *quote = strchr(word, ' ') != NULL ? "\"" : "";
        return snprintf(text, bytes, " %s=%s%s%s", info->name, quote, word, quote);
    }
    return snprintf(text, bytes, " %s=%" PRId64, info->name, value);
}

/* Whether there is something is no value: 1 and 0 would read as numbers. */
static int print_presence(char *text, size_t bytes, const cddp_event_compare *c)
{
    double expected, actual;
    memcpy(&expected, &c->expected, sizeof expected);
    memcpy(&actual, &c->actual, sizeof actual);
    return snprintf(text, bytes, " link=presence param=%" PRId64 " expected=%s actual=%s", c->param,
                    expected != 0 ? "there" : "none", actual != 0 ? "there" : "none");
}

size_t cd_event_print(const cddp_event *event, char *text, size_t text_bytes)
{
    const cddp_event_info *info = cddp_event_describe(event->kind);
    if (info == NULL)
        return (size_t)snprintf(text, text_bytes, "unknown event %u", (unsigned)event->kind);
    size_t used = 0;
    int n = event->rank == UINT32_MAX
                ? snprintf(text, text_bytes, "world step %u %s", event->step, info->name)
                : snprintf(text, text_bytes, "rank %u step %u %s", event->rank, event->step,
                           info->name);
    used += (size_t)n;
    const bool is_presence =
        event->kind == CDDP_EV_compare && event->as.compare.shape == CDDP_SHAPE_PRESENCE;
    if (is_presence) {
        const size_t at = used < text_bytes ? used : text_bytes;
        used += (size_t)print_presence(text + at, text_bytes - at, &event->as.compare);
    }
    for (uint32_t i = 0; i < info->field_count && !is_presence; i++) {
        size_t at = used < text_bytes ? used : text_bytes;
        used +=
            (size_t)print_field(text + at, text_bytes - at, &info->fields[i], event->as.field[i]);
    }
    if (event->text != NULL) {
        size_t at = used < text_bytes ? used : text_bytes;
        used += (size_t)snprintf(text + at, text_bytes - at, " text=\"%s\"", event->text);
    }
    return used;
}

uint64_t cd_event_digest(uint64_t digest, const cddp_event *event, bool timeless)
{
    if (!timeless) digest = cd_hash_mix(digest, event->time_ns);
    digest = cd_hash_mix(digest, ((uint64_t)event->rank << 32) | event->kind);
    digest = cd_hash_mix(digest, ((uint64_t)event->step << 32) | event->micro_step);
    const cddp_event_info *info = cddp_event_describe(event->kind);
    for (uint32_t i = 0; info != NULL && i < info->field_count; i++) {
        if (timeless && info->fields[i].type == CDDP_FIELD_ns) continue;
        digest = cd_hash_mix(digest, (uint64_t)event->as.field[i]);
    }
    return cd_hash_mix(digest, cd_hash_text(event->text));
}

void cd_event_digest_both(uint64_t *digest, uint64_t *timeless, const cddp_event *event)
{
    const uint64_t who = ((uint64_t)event->rank << 32) | event->kind;
    const uint64_t when = ((uint64_t)event->step << 32) | event->micro_step;
    uint64_t d = cd_hash_mix(cd_hash_mix(cd_hash_mix(*digest, event->time_ns), who), when);
    uint64_t t = cd_hash_mix(cd_hash_mix(*timeless, who), when);
    const cddp_event_info *info = cddp_event_describe(event->kind);
    for (uint32_t i = 0; info != NULL && i < info->field_count; i++) {
        d = cd_hash_mix(d, (uint64_t)event->as.field[i]);
        if (info->fields[i].type != CDDP_FIELD_ns) t = cd_hash_mix(t, (uint64_t)event->as.field[i]);
    }
    const uint64_t text = cd_hash_text(event->text);
    *digest = cd_hash_mix(d, text);
    *timeless = cd_hash_mix(t, text);
}
