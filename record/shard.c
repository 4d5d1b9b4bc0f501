/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a shard: events of one rank, each in a slot of a mapped file.
**
** Invariants:
**   S1  the sequence of a slot is stored after everything else in it, so a slot whose sequence is
**       there is whole, whenever the process was killed;
**   S2  slots are filled in order: the first without its sequence is the end;
**   S3  a text lies in front of the event that has it;
**   S4  a process that was forked after open writes nothing: the file has one writer.
*/
#define _POSIX_C_SOURCE 200809L
#include "cddp/shard.h"

#include "cddp/cddp.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/hash_chain.h"
#include "core/base/os.h"
#include "core/trace/event.h"
#include "record/pulse.h"
#include "record/seal.h"
#include "record/shard_file.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TEXTS_MAX 4096u /* a power of two; three quarters of it are used */

typedef struct known_text {
    uint64_t digest, slot; /* slot 0: unused; else 1 + the first slot of the text */
} known_text;

struct cddp_shard {
    cddp_trace_sink sink;
    cd_shard_file file;
    cd_pulse pulse;
    pthread_mutex_t lock;
    unsigned born;      /* forks of this process when the shard was opened */
    uint64_t next_slot; /* under lock, as everything below */
    uint16_t level;
    bool is_full, is_told;
    cddp_error failure;
    size_t text_count;
    known_text texts[TEXTS_MAX];
};

/* How often this process came into being by a fork since the library was loaded: S4. */
static atomic_uint forks;
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;
static void count_fork(void) { atomic_fetch_add(&forks, 1); }
static void begin_to_watch(void)
{
    const int failed = pthread_atfork(NULL, NULL, count_fork);
    (void)failed; /* no memory: a child that emits would spoil the end of the shard */
}

static cddp_shard_header *header_of(const cddp_shard *shard) { return shard->file.head; }

uint64_t cddp_shard_schema(void)
{
    uint64_t schema = CDDP_EVENT_FIELDS;
    for (uint32_t kind = 0; kind < CDDP_EV_COUNT; kind++) {
        const cddp_event_info *info = cddp_event_describe(kind);
        schema = cd_hash_mix(schema, cd_hash_text(info->name));
        for (uint32_t i = 0; i < info->field_count; i++) {
            schema = cd_hash_mix(schema, cd_hash_text(info->fields[i].name));
            schema = cd_hash_mix(schema, (uint64_t)info->fields[i].type);
        }
    }
    return schema;
}

uint64_t cddp_shard_now_ns(void) { return cd_os_now_ns(); }
int32_t cddp_shard_kind(const char *name) { return name != NULL ? cd_event_find(name) : -1; }

/* As the cpu device does it: blocks in order, folded into the number of elements. */
uint64_t cddp_shard_digest(const void *bytes, size_t byte_count, size_t element_bytes)
{
    return cd_hash_chain(bytes, byte_count, element_bytes > 0 ? byte_count / element_bytes : 0);
}

/* ---- slots ---- */

/* Everything in the slot is stored before its sequence: S1. */
static void publish(uint64_t *sequence, uint64_t value)
{
    atomic_thread_fence(memory_order_release);
    *(volatile uint64_t *)sequence = value;
}

static void *take_slot(cddp_shard *s)
{
    void *slot = NULL;
    if (s->is_full) return NULL;
    if (cd_shard_file_take(&s->file, CDDP_SHARD_SLOT_BYTES, &slot, &s->failure) == CDDP_OK)
        return slot;
    s->is_full = true;
    header_of(s)->end = CDDP_SHARD_FULL;
    snprintf(header_of(s)->failure, sizeof header_of(s)->failure, "%.*s",
             (int)sizeof header_of(s)->failure - 1, s->failure.message);
    return NULL;
}

/* 1 + the first slot of the text; 0 without room. */
static uint64_t write_text(cddp_shard *s, const char *text, size_t byte_count)
{
    const uint64_t first = s->next_slot + 1;
    do {
        cddp_shard_text_slot *slot = take_slot(s);
        if (slot == NULL) return 0;
        const size_t count = byte_count < sizeof slot->bytes ? byte_count : sizeof slot->bytes;
        slot->kind = CDDP_SHARD_TEXT;
        slot->byte_count = (uint16_t)count;
        memcpy(slot->bytes, text, count);
        text += count;
        byte_count -= count;
        slot->more = (uint32_t)byte_count;
        s->next_slot++;
        publish(&slot->sequence, cd_seal_slot(slot, s->next_slot));
    } while (byte_count > 0);
    return first;
}

/* Names come again and again: a text that is in the file already is not written twice. */
static uint64_t keep_text(cddp_shard *s, const char *text)
{
    if (text == NULL) return 0;
    size_t byte_count = strlen(text);
    if (byte_count > CDDP_SHARD_TEXT_MAX) byte_count = CDDP_SHARD_TEXT_MAX;
    const uint64_t digest = cd_hash64(text, byte_count, byte_count);
    size_t at = digest & (TEXTS_MAX - 1);
    while (s->texts[at].slot != 0 && s->texts[at].digest != digest) at = (at + 1) & (TEXTS_MAX - 1);
    if (s->texts[at].slot != 0) return s->texts[at].slot;
    const uint64_t slot = write_text(s, text, byte_count);
    if (slot != 0 && s->text_count < TEXTS_MAX / 4 * 3) {
        s->texts[at] = (known_text){digest, slot};
        s->text_count++;
    }
    return slot;
}

static void write_event(cddp_shard *s, const cddp_event *event, uint64_t time_ns)
{
    const uint64_t text = keep_text(s, event->text);
    cddp_shard_slot *slot = take_slot(s);
    if (slot == NULL) {
        header_of(s)->lost++;
        return;
    }
    slot->kind = event->kind;
    slot->level = s->level;
    slot->step = event->step;
    slot->micro_step = event->micro_step;
    slot->thread = 0;
    slot->time_ns = time_ns;
    slot->text = text;
    const uint32_t used = cd_event_field_counts[event->kind];
    for (uint32_t i = 0; i < CDDP_EVENT_FIELDS; i++)
        slot->field[i] = i < used ? event->as.field[i] : 0;
    s->next_slot++;
    publish(&slot->sequence, cd_seal_slot(slot, s->next_slot));
}

static void emit_at(cddp_shard *s, const cddp_event *event, uint64_t time_ns)
{
    if (atomic_load_explicit(&forks, memory_order_relaxed) != s->born) return; /* S4 */
    if (event->kind >= CDDP_EV_COUNT) return;
    pthread_mutex_lock(&s->lock);
    write_event(s, event, time_ns);
    pthread_mutex_unlock(&s->lock);
}

void cddp_shard_emit(cddp_shard *shard, const cddp_event *event)
{
    if (shard != NULL) emit_at(shard, event, event->time_ns != 0 ? event->time_ns : cd_os_now_ns());
}

static void sink_event(void *self, const cddp_event *event)
{
    emit_at(self, event, cd_os_now_ns());
}

static cddp_status sink_flush(void *self, cddp_error *err)
{
    return CD_PASS(cddp_shard_flush(self, err));
}

const cddp_trace_sink *cddp_shard_sink(cddp_shard *shard)
{
    return shard != NULL ? &shard->sink : NULL;
}

/* ---- life ---- */

static uint64_t read_realtime(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void write_header(cddp_shard *s, const cddp_shard_options *o)
{
    cddp_shard_header *h = header_of(s);
    h->version = CDDP_SHARD_VERSION;
    h->header_bytes = CDDP_SHARD_HEADER_BYTES;
    h->slot_bytes = CDDP_SHARD_SLOT_BYTES;
    h->kind_count = CDDP_EV_COUNT;
    h->schema = cddp_shard_schema();
    h->rank = o->rank;
    h->world_size = o->world_size;
    h->generation = o->generation;
    h->level = o->level;
    h->process = cd_os_process_id();
    h->realtime_ns = read_realtime();
    h->monotonic_ns = cd_os_now_ns();
    h->job = o->job;
    if (gethostname(h->host, sizeof h->host - 1) != 0) h->host[0] = '\0';
    /* Two containers of one machine may have one name and different clocks, and the reverse. */
    cd_os_read_boot(h->boot, sizeof h->boot);
    snprintf(h->program, sizeof h->program, "%s", o->program != NULL ? o->program : "");
    snprintf(h->version_text, sizeof h->version_text, "%s", cddp_version());
    h->seal = cd_seal_begin(h);
    publish(&h->magic, CDDP_SHARD_MAGIC);
}

/* How a process of an older job ended, of which the shard was replaced. */
static void remove_note(const char *path)
{
    char note[4096];
    const int length = snprintf(note, sizeof note, "%s.exit", path);
    if (length > 0 && (size_t)length < sizeof note) (void)remove(note); /* mostly there is none */
}

static cddp_status check_options(const cddp_shard_options *o, cddp_error *err)
{
    if (o == NULL || o->size < sizeof *o || o->path == NULL || o->path[0] == '\0')
        return cd_fail(err, CDDP_E_ARG, "a shard needs options with their size, and a path");
    if (o->rank >= o->world_size)
        return cd_fail(err, CDDP_E_ARG, "%s: rank %u does not exist in a world of %u", o->path,
                       o->rank, o->world_size);
    if (o->level > CDDP_TRACE_PAYLOAD)
        return cd_fail(err, CDDP_E_ARG, "%s: there is no level %u", o->path, o->level);
    return CDDP_OK;
}

cddp_status cddp_shard_open(const cddp_shard_options *options, cddp_shard **shard, cddp_error *err)
{
    CD_TRY(check_options(options, err));
    CD_TRY(cd_os_hold_standard_streams(err));
    cddp_shard *s = cd_allocate_zero(NULL, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "the shard %s", options->path);
    const cddp_status status = cd_shard_file_open(&s->file, options->path, err);
    if (status != CDDP_OK) {
        cd_release(NULL, s, sizeof *s);
        return CD_PASS(status);
    }
    pthread_once(&watch_forks, begin_to_watch);
    pthread_mutex_init(&s->lock, NULL);
    s->born = atomic_load(&forks);
    s->level = (uint16_t)options->level;
    s->sink = (cddp_trace_sink){sizeof s->sink, CDDP_TRACE_ABI, s, sink_event, sink_flush};
    remove_note(options->path);
    write_header(s, options);
    cd_pulse_begin(&s->pulse, header_of(s));
    *shard = s;
    return CDDP_OK;
}

cddp_status cddp_shard_flush(cddp_shard *shard, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    if (shard == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_shard_flush: the shard is NULL");
    pthread_mutex_lock(&shard->lock);
    if (shard->is_full && !shard->is_told) {
        shard->is_told = true;
        status = cd_fail(err, shard->failure.status, "the recording ended early: %s",
                         shard->failure.message);
    }
    pthread_mutex_unlock(&shard->lock);
    return status;
}

/* `end` last: who reads it meanwhile finds the rest. */
static void seal_end(cddp_shard *s)
{
    cddp_shard_header *h = header_of(s), closed;
    h->slots = (uint32_t)s->next_slot;
    closed = *h;
    if (!s->is_full) closed.end = CDDP_SHARD_CLOSED;
    h->seal_of_end = cd_seal_close(&closed);
    atomic_thread_fence(memory_order_release);
    *(volatile uint32_t *)&h->end = closed.end;
}

cddp_status cddp_shard_close(cddp_shard *shard, cddp_error *err)
{
    if (shard == NULL) return CDDP_OK;
    cddp_status status = CDDP_OK;
    if (atomic_load(&forks) == shard->born) {
        status = cddp_shard_flush(shard, err);
        cd_pulse_end(&shard->pulse);
        seal_end(shard);
        cd_shard_file_close(&shard->file);
        pthread_mutex_destroy(&shard->lock);
    } else {
        cd_shard_file_forget(&shard->file);
    }
    cd_release(NULL, shard, sizeof *shard);
    return status;
}
