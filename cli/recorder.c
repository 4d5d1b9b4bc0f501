/* SPDX-License-Identifier: Apache-2.0 */
/* Events as few bytes. */
#include "cli/recorder.h"

#include "core/base/alloc.h"
#include "core/trace/event.h"

#include <stdint.h>
#include <string.h>

#define HEAD_NUMBERS 8 /* of an event, before its fields */
#define NUMBER_BYTES_MAX (1 + sizeof(uint64_t))
#define EVENT_BYTES_MAX ((HEAD_NUMBERS + CDDP_EVENT_FIELDS) * NUMBER_BYTES_MAX)

/* ---- numbers ---- */

/* Small numbers of either sign have few bits. */
static uint64_t fold_sign(int64_t value) { return (uint64_t)value << 1 ^ (uint64_t)(value >> 63); }
static int64_t unfold_sign(uint64_t folded) { return (int64_t)(folded >> 1 ^ (0 - (folded & 1))); }

static unsigned char *put(unsigned char *at, uint64_t value)
{
    size_t count = 0;
    for (uint64_t rest = value; rest != 0; rest >>= 8) at[++count] = (unsigned char)rest;
    *at = (unsigned char)count;
    return at + 1 + count;
}

static const unsigned char *get(const unsigned char *at, uint64_t *value)
{
    const size_t count = *at++;
    *value = 0;
    for (size_t i = 0; i < count; i++) *value |= (uint64_t)at[i] << 8 * i;
    return at + count;
}

/* ---- texts ---- */

static size_t slot_of(const char *text) { return ((uintptr_t)text >> 3) % CD_RECORDER_TEXTS; }

/* 0: there is none. */
static size_t keep_text(cd_recorder *r, const char *text)
{
    if (text == NULL) return 0;
    const size_t slot = slot_of(text), place = r->known[slot].place;
    if (place > 0 && r->known[slot].text == text && strcmp(r->texts + place - 1, text) == 0)
        return place;
    const size_t bytes = strlen(text) + 1;
    r->is_full =
        !cd_vec_grow(NULL, (void **)&r->texts, &r->text_capacity, r->text_bytes + bytes, 1);
    if (r->is_full) return 0;
    memcpy(r->texts + r->text_bytes, text, bytes);
    r->known[slot].text = text;
    r->known[slot].place = r->text_bytes + 1;
    r->text_bytes += bytes;
    return r->known[slot].place;
}

/* ---- events ---- */

static size_t field_count(uint16_t kind)
{
    return kind < CDDP_EV_COUNT ? cd_event_field_counts[kind] : 0;
}

static void record(void *self, const cddp_event *event)
{
    cd_recorder *r = self;
    if (r->is_full) return;
    const size_t text = keep_text(r, event->text);
    r->is_full = r->is_full || !cd_vec_grow(NULL, (void **)&r->bytes, &r->byte_capacity,
                                            r->byte_count + EVENT_BYTES_MAX, 1);
    if (r->is_full) return;
    const uint64_t head[HEAD_NUMBERS] = {event->time_ns, event->sequence, text,
                                         event->rank,    event->step,     event->micro_step,
                                         event->kind,    event->level};
    unsigned char *at = r->bytes + r->byte_count;
    for (size_t i = 0; i < HEAD_NUMBERS; i++) at = put(at, head[i]);
    for (size_t i = 0; i < field_count(event->kind); i++)
        at = put(at, fold_sign(event->as.field[i]));
    r->byte_count = (size_t)(at - r->bytes);
    r->is_full = ++r->count == CD_RECORDER_EVENTS_MAX;
}

bool cd_recorder_read(const cd_recorder *recorder, size_t *place, cddp_event *event)
{
    uint64_t head[HEAD_NUMBERS], value;
    const unsigned char *at = recorder->bytes + *place;
    if (*place == recorder->byte_count) return false;
    for (size_t i = 0; i < HEAD_NUMBERS; i++) at = get(at, &head[i]);
    *event = (cddp_event){.time_ns = head[0],
                          .sequence = head[1],
                          .text = head[2] > 0 ? recorder->texts + head[2] - 1 : NULL,
                          .rank = (uint32_t)head[3],
                          .step = (uint32_t)head[4],
                          .micro_step = (uint32_t)head[5],
                          .kind = (uint16_t)head[6],
                          .level = (uint16_t)head[7]};
    for (size_t i = 0; i < field_count(event->kind); i++) {
        at = get(at, &value);
        event->as.field[i] = unfold_sign(value);
    }
    *place = (size_t)(at - recorder->bytes);
    return true;
}

/* ---- life ---- */

void cd_recorder_init(cd_recorder *recorder)
{
    *recorder =
        (cd_recorder){.sink = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, recorder, record, NULL}};
}

void cd_recorder_fini(cd_recorder *recorder)
{
    cd_release(NULL, recorder->bytes, recorder->byte_capacity);
    cd_release(NULL, recorder->texts, recorder->text_capacity);
    cd_recorder_init(recorder);
}
