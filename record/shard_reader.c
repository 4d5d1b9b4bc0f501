/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a shard that may be unfinished, torn or hostile: every number of the file is checked before
** it is used, and nothing is mapped, so that a file that shrinks meanwhile is an early end. */
#define _POSIX_C_SOURCE 200809L
#include "cddp/shard.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/event.h"
#include "record/seal.h"

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
    const uint64_t at = CDDP_SHARD_HEADER_BYTES + slot * CDDP_SHARD_SLOT_BYTES;
    return cd_fail(err, CDDP_E_CORRUPT,
                   "%s is damaged: slot %llu, at byte %llu, %s; nothing in it was judged", r->path,
                   (unsigned long long)slot, (unsigned long long)at, what);
}

/* It ends where it did not end when it was closed. */
static cddp_status fail_cut(cddp_error *err, const cddp_shard_reader *r)
{
    const uint64_t slot_bytes = CDDP_SHARD_SLOT_BYTES;
    return cd_fail(err, CDDP_E_CORRUPT,
                   "%s is damaged: its events end at byte %llu, and ended at byte %llu when it was "
                   "closed (a copy that stopped, or a full disk?); nothing in it was judged",
                   r->path, (unsigned long long)(CDDP_SHARD_HEADER_BYTES + r->slot * slot_bytes),
                   (unsigned long long)(CDDP_SHARD_HEADER_BYTES + r->header.slots * slot_bytes));
}

/* Slot `at` is as its writer left it. A writer may give no seal. */
static cddp_status check_slot(const cddp_shard_reader *r, const void *slot, uint64_t at,
                              cddp_error *err)
{
    uint64_t sequence;
    memcpy(&sequence, slot, sizeof sequence);
    if ((sequence & CD_SEAL_NUMBER) != ((at + 1) & CD_SEAL_NUMBER))
        return fail_at(err, r, at, "has another number");
    if (sequence > CD_SEAL_NUMBER && sequence != cd_seal_slot(slot, at + 1))
        return fail_at(err, r, at, "was changed after it had been written");
    if ((sequence > CD_SEAL_NUMBER) != (r->header.seal != 0))
        return fail_at(err, r, at,
                       r->header.seal != 0 ? "has lost its seal"
                                           : "has a seal, the header has none");
    return CDDP_OK;
}

/* A slot without a number ends the shard. So whatever follows it has none either, and one that was
** closed has as many slots as it says. A writer may be ahead of what was read: then the slot has a
** number now. */
static cddp_status check_end(cddp_shard_reader *r, cddp_error *err)
{
    const cddp_shard_header *h = &r->header;
    size_t count = 1;
    if (h->seal != 0 && h->end == CDDP_SHARD_CLOSED && h->slots != (uint32_t)r->slot)
        return fail_cut(err, r);
    for (uint64_t at = r->slot + 1; count > 0; at += count) {
        CD_TRY(read_slots(r, at, r->block, BLOCK_SLOTS, &count, err));
        for (size_t i = 0; i < count; i++) {
            cddp_shard_slot now = {.sequence = 0};
            size_t found = 0;
            if (r->block[i].sequence == 0) continue;
            CD_TRY(read_slots(r, r->slot, &now, 1, &found, err));
            r->block_count = 0;
            if (found == 1 && now.sequence != 0) return CDDP_OK;
            return fail_at(err, r, r->slot, "was emptied; others follow it");
        }
    }
    r->block_count = 0;
    return CDDP_OK;
}

/* The position of a slot that was checked, of the last 2^32. */
static uint64_t at_of(const cddp_shard_slot *slot) { return (slot->sequence & CD_SEAL_NUMBER) - 1; }

/* ---- texts ---- */

static cddp_status read_text(cddp_shard_reader *r, const cddp_shard_slot *of, cddp_error *err)
{
    if (of->text == r->text_at) return CDDP_OK;
    if (of->text > at_of(of))
        return fail_at(err, r, at_of(of), "has a text that does not lie before it");
    size_t used = 0;
    uint32_t more = 1;
    r->text_at = 0;
    for (uint64_t at = of->text - 1; more > 0; at++) {
        cddp_shard_text_slot slot;
        size_t count = 0;
        CD_TRY(read_slots(r, at, &slot, 1, &count, err));
        if (count == 1) CD_TRY(check_slot(r, &slot, at, err));
        if (count == 0 || slot.kind != CDDP_SHARD_TEXT || slot.byte_count > sizeof slot.bytes ||
            slot.more > CDDP_SHARD_TEXT_MAX || (slot.more > 0 && slot.byte_count == 0) ||
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
    const cddp_shard_slot *s = &r->block[r->slot - r->block_begin];
    if (r->block_count == 0 || s->sequence == 0) {
        r->is_over = true;
        return CD_PASS(check_end(r, err));
    }
    CD_TRY(check_slot(r, s, r->slot, err));
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
        return fail_at(err, r, at_of(slot), "is of a kind that does not exist");
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
    if (r == NULL) return;
    r->slot = r->block_begin = r->events = 0;
    r->block_count = 0;
    r->is_over = false;
}

/* ---- life ---- */

/* Its writer was about to say that it is closed. */
static void settle_end(cddp_shard_header *h)
{
    if (h->end == CDDP_SHARD_OPEN && h->seal_of_end != 0) h->end = CDDP_SHARD_CLOSED;
}

static cddp_status fail_header(const cddp_shard_reader *r, cddp_error *err)
{
    return cd_fail(err, CDDP_E_CORRUPT,
                   "%s is damaged: its header (bytes 0 to %zu) was changed after it had been "
                   "written; nothing in it was judged",
                   r->path, sizeof r->header - 1);
}

/* A changed byte can make another version, other sizes or other events of the header. It is damage
** when the seal is right once that number is put back, or wrong although all of them are ours.
** Whoever has other events sealed their own digest, and another version may seal otherwise. */
static bool contradicts_its_seal(const cddp_shard_header *h)
{
    cddp_shard_header ours = *h;
    ours.version = CDDP_SHARD_VERSION;
    ours.header_bytes = CDDP_SHARD_HEADER_BYTES;
    ours.slot_bytes = CDDP_SHARD_SLOT_BYTES;
    if (memcmp(&ours, h, sizeof ours) != 0) return h->seal == cd_seal_begin(&ours);
    return h->seal != cd_seal_begin(h);
}

static cddp_status check_header(cddp_shard_reader *r, size_t byte_count, cddp_error *err)
{
    cddp_shard_header *h = &r->header;
    settle_end(h);
    if (byte_count >= sizeof h->magic && byte_count < sizeof *h && h->magic == CDDP_SHARD_MAGIC)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "%s is damaged: it is cut at byte %zu, inside its header; nothing in it was "
                       "judged",
                       r->path, byte_count);
    if (byte_count == 0)
        return cd_fail(err, CDDP_E_CORRUPT, "%s is empty: it has no header of a shard", r->path);
    if (byte_count < sizeof *h || h->magic != CDDP_SHARD_MAGIC)
        return cd_fail(err, CDDP_E_CORRUPT, "%s is no shard of a recorded run", r->path);
    if (h->seal != 0 && contradicts_its_seal(h)) return CD_PASS(fail_header(r, err));
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
    const bool is_changed = h->seal != 0 && h->seal != cd_seal_begin(h),
               is_sealed = h->seal_of_end != 0 || h->end == CDDP_SHARD_CLOSED,
               has_other_end =
                   h->seal != 0 && (is_sealed ? h->seal_of_end != cd_seal_close(h)
                                              : h->end == CDDP_SHARD_FULL && h->failure[0] == '\0');
    return CD_PASS(is_changed || has_other_end ? fail_header(r, err) : CDDP_OK);
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
    if (r->fd < 0)
        return cd_fail(err, cd_error_of_errno(errno), "cannot open %s: %s", r->path,
                       strerror(errno));
    if (fstat(r->fd, &facts) != 0 || !S_ISREG(facts.st_mode))
        return cd_fail(err, CDDP_E_CORRUPT, "%s is no shard of a recorded run", r->path);
    CD_TRY(read_at(r, &r->header, sizeof r->header, 0, &count, err));
    CD_TRY(check_header(r, count, err));
    end_texts(&r->header);
    return CDDP_OK;
}

cddp_status cddp_shard_reader_resume(cddp_shard_reader *r, cddp_error *err)
{
    size_t count = 0;
    CD_TRY(read_at(r, &r->header, sizeof r->header, 0, &count, err));
    r->is_over = false;
    r->block_begin = r->slot;
    r->block_count = 0; /* the slot at which it ended is read again */
    CD_TRY(check_header(r, count, err));
    end_texts(&r->header);
    return CDDP_OK;
}

cddp_status cddp_shard_reader_open(const char *path, cddp_shard_reader **reader, cddp_error *err)
{
    if (path == NULL || reader == NULL)
        return cd_fail(err, CDDP_E_ARG, "cddp_shard_reader_open: %s is NULL",
                       path == NULL ? "the path" : "the place for the reader");
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

uint64_t cddp_shard_reader_alive(const cddp_shard_reader *reader)
{
    return cd_seal_read_alive(&reader->header);
}
