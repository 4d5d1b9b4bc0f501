/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a shard that may be unfinished, torn or hostile: every number of the file is checked before
** it is used, and nothing is mapped, so that a file that shrinks meanwhile is an early end. */
#define _POSIX_C_SOURCE 200809L
#include "cddp/shard.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/event.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_SLOTS 512u

struct cddp_shard_reader {
    cddp_shard_header header;
    char *path;
    int fd;
    uint64_t slot;        /* the next one */
    uint64_t block_begin; /* first slot of the block */
    size_t block_count;   /* slots in it */
    uint64_t events;      /* read so far */
    bool is_over;
    uint64_t text_at; /* 1 + the slot whose text is in `text`; 0: none */
    cddp_shard_slot block[BLOCK_SLOTS];
    char text[CDDP_SHARD_TEXT_MAX + 1];
};

/* Fewer bytes only at the end of the file. */
static cddp_status read_at(const cddp_shard_reader *r, void *bytes, size_t wanted, uint64_t at,
                           size_t *count, cddp_error *err)
{
    *count = 0;
    while (*count < wanted) {
        const ssize_t n =
            pread(r->fd, (char *)bytes + *count, wanted - *count, (off_t)(at + *count));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cd_fail(err, CDDP_E_IO, "cannot read %s: %s", r->path, strerror(errno));
        if (n == 0) break;
        *count += (size_t)n;
    }
    return CDDP_OK;
}

static cddp_status read_slots(const cddp_shard_reader *r, uint64_t first, void *slots,
                              size_t wanted, size_t *count, cddp_error *err)
{
    const uint64_t at = CDDP_SHARD_HEADER_BYTES + first * CDDP_SHARD_SLOT_BYTES;
    CD_TRY(read_at(r, slots, wanted * CDDP_SHARD_SLOT_BYTES, at, count, err));
    *count /= CDDP_SHARD_SLOT_BYTES;
    return CDDP_OK;
}

static cddp_status fail_at(cddp_error *err, const cddp_shard_reader *r, uint64_t slot,
                           const char *what)
{
    return cd_fail(err, CDDP_E_CORRUPT, "%s is damaged: slot %llu %s", r->path,
                   (unsigned long long)slot, what);
}

/* ---- texts ---- */

static cddp_status read_text(cddp_shard_reader *r, const cddp_shard_slot *of, cddp_error *err)
{
    if (of->text == r->text_at) return CDDP_OK;
    if (of->text >= of->sequence)
        return fail_at(err, r, of->sequence - 1, "has a text that does not lie before it");
    size_t used = 0;
    uint32_t more = 1;
    r->text_at = 0;
    for (uint64_t at = of->text - 1; more > 0; at++) {
        cddp_shard_text_slot slot;
        size_t count = 0;
        CD_TRY(read_slots(r, at, &slot, 1, &count, err));
        if (count == 0 || slot.sequence != at + 1 || slot.kind != CDDP_SHARD_TEXT ||
            slot.byte_count > sizeof slot.bytes || slot.more > CDDP_SHARD_TEXT_MAX ||
            (slot.more > 0 && slot.byte_count == 0) ||
            used + slot.byte_count + slot.more > CDDP_SHARD_TEXT_MAX)
            return fail_at(err, r, at, "is no text, but an event says so");
        memcpy(r->text + used, slot.bytes, slot.byte_count);
        used += slot.byte_count;
        more = slot.more;
    }
    r->text[used] = '\0';
    r->text_at = of->text;
    return CDDP_OK;
}

/* ---- events ---- */

/* NULL at the end. */
static cddp_status next_slot(cddp_shard_reader *r, const cddp_shard_slot **slot, cddp_error *err)
{
    *slot = NULL;
    if (r->is_over) return CDDP_OK;
    if (r->slot - r->block_begin >= r->block_count) {
        r->block_begin = r->slot;
        CD_TRY(read_slots(r, r->slot, r->block, BLOCK_SLOTS, &r->block_count, err));
    }
    if (r->block_count == 0) {
        r->is_over = true;
        return CDDP_OK;
    }
    const cddp_shard_slot *s = &r->block[r->slot - r->block_begin];
    if (s->sequence == 0) {
        r->is_over = true;
        return CDDP_OK;
    }
    if (s->sequence != r->slot + 1) return fail_at(err, r, r->slot, "has another number");
    r->slot++;
    *slot = s;
    return CDDP_OK;
}

/* Fields that are read as an index of a table by whoever gets the event are the checks' concern:
** they take events from any store. */
static cddp_status take_event(cddp_shard_reader *r, const cddp_shard_slot *slot, cddp_event *event,
                              cddp_error *err)
{
    if (slot->kind >= CDDP_EV_COUNT)
        return fail_at(err, r, slot->sequence - 1, "is of a kind that does not exist");
    if (slot->text != 0) CD_TRY(read_text(r, slot, err));
    *event = (cddp_event){.time_ns = slot->time_ns,
                          .sequence = r->events++,
                          .text = slot->text != 0 ? r->text : NULL,
                          .rank = r->header.rank,
                          .step = slot->step,
                          .micro_step = slot->micro_step,
                          .kind = slot->kind,
                          .level = (uint16_t)r->header.level};
    const uint32_t used = cd_event_field_counts[slot->kind];
    for (uint32_t i = 0; i < used; i++) event->as.field[i] = slot->field[i];
    return CDDP_OK;
}

cddp_status cddp_shard_reader_next(cddp_shard_reader *r, cddp_event *event, bool *found,
                                   cddp_error *err)
{
    const cddp_shard_slot *slot = NULL;
    do CD_TRY(next_slot(r, &slot, err));
    while (slot != NULL && slot->kind == CDDP_SHARD_TEXT);
    if (slot != NULL) CD_TRY(take_event(r, slot, event, err));
    *found = slot != NULL;
    return CDDP_OK;
}

void cddp_shard_reader_rewind(cddp_shard_reader *r)
{
    r->slot = r->block_begin = r->events = 0;
    r->block_count = 0;
    r->is_over = false;
}

/* ---- life ---- */

static cddp_status check_header(const cddp_shard_reader *r, size_t byte_count, cddp_error *err)
{
    const cddp_shard_header *h = &r->header;
    if (byte_count < sizeof *h || h->magic != CDDP_SHARD_MAGIC)
        return cd_fail(err, CDDP_E_CORRUPT, "%s is no shard of a recorded run", r->path);
    if (h->version != CDDP_SHARD_VERSION || h->header_bytes != CDDP_SHARD_HEADER_BYTES ||
        h->slot_bytes != CDDP_SHARD_SLOT_BYTES)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "%s is a shard of version %u; this program reads version %u", r->path,
                       h->version, CDDP_SHARD_VERSION);
    if (h->schema != cddp_shard_schema())
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "%s was written by another version of cddp (%s), with other events", r->path,
                       h->version_text);
    if (h->rank >= h->world_size || h->world_size > CDDP_SHARD_WORLD_MAX ||
        h->level > CDDP_TRACE_PAYLOAD || h->end > CDDP_SHARD_FULL)
        return cd_fail(err, CDDP_E_CORRUPT, "%s is damaged: its header contradicts itself",
                       r->path);
    return CDDP_OK;
}

static void end_texts(cddp_shard_header *h)
{
    h->host[sizeof h->host - 1] = h->boot[sizeof h->boot - 1] = '\0';
    h->program[sizeof h->program - 1] = h->failure[sizeof h->failure - 1] = '\0';
    h->version_text[sizeof h->version_text - 1] = '\0';
}

static cddp_status open_file(cddp_shard_reader *r, cddp_error *err)
{
    struct stat facts;
    size_t count = 0;
    r->fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r->fd < 0) return cd_fail(err, CDDP_E_ARG, "cannot open %s: %s", r->path, strerror(errno));
    if (fstat(r->fd, &facts) != 0 || !S_ISREG(facts.st_mode))
        return cd_fail(err, CDDP_E_CORRUPT, "%s is no shard of a recorded run", r->path);
    CD_TRY(read_at(r, &r->header, sizeof r->header, 0, &count, err));
    end_texts(&r->header);
    return CD_PASS(check_header(r, count, err));
}

cddp_status cddp_shard_reader_open(const char *path, cddp_shard_reader **reader, cddp_error *err)
{
    cddp_shard_reader *r = cd_allocate_zero(NULL, sizeof *r);
    if (r == NULL) return cd_fail_memory(err, "reading %s", path);
    r->fd = -1;
    r->path = cd_strdup(NULL, path);
    const cddp_status status =
        r->path != NULL ? open_file(r, err) : cd_fail_memory(err, "reading %s", path);
    if (status == CDDP_OK)
        *reader = r;
    else
        cddp_shard_reader_close(r);
    return status;
}

void cddp_shard_reader_close(cddp_shard_reader *reader)
{
    if (reader == NULL) return;
    if (reader->fd >= 0) close(reader->fd);
    cd_strfree(NULL, reader->path);
    cd_release(NULL, reader, sizeof *reader);
}

const cddp_shard_header *cddp_shard_reader_header(const cddp_shard_reader *reader)
{
    return &reader->header;
}
