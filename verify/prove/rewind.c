/* SPDX-License-Identifier: Apache-2.0 */
/* A rank in one block of memory. See rewind.h. */
#include "verify/prove/rewind.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "sim/memory.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)256 << 20) /* reserved; touched pages cost */
#define PIECE ((size_t)16)
#define NOBODY 64u /* behind the numbers of firings */
#define EVERYBODY 65u
#define PAGE ((size_t)4096)
#define SLACK ((size_t)1 << 20) /* a window may take so much more memory */
#define CHECK_EVERY 16384u
#define DEPTH_MAX (CD_PROVE_EVENTS_SNAPSHOT + 1)

/* The block begins with this. */
typedef struct head {
    cd_memory memory;
    cd_rank_walk walk;
} head;

typedef struct image {
    unsigned char *bytes; /* (used) of the block, from its start */
    size_t used;
} image;

struct cd_rewind_memory {
    cddp_allocator table;
    image first, before; /* of the window; learning: before the last firing */
    size_t watched;      /* bytes of the block that may change in this window */
    /* (BLOCK_BYTES / PIECE) the one firing that changes a piece, NOBODY or EVERYBODY */
    uint8_t *owner;
    uint32_t *known;                /* (known_count) pieces by owner, EVERYBODY's last */
    size_t first_of[EVERYBODY + 2]; /* by owner: where in known */
    size_t known_count;
    unsigned char *saved; /* (DEPTH_MAX, known_count, PIECE) */
    uint32_t since_check;
};

static head *head_of(const cd_rewind *r) { return (head *)(void *)r->block; }
static size_t head_bytes(void) { return (sizeof(head) + 63) / 64 * 64; }
static size_t used_of(const cd_rewind *r) { return head_bytes() + head_of(r)->memory.used; }

cddp_status cd_rewind_create(cd_rewind **rewind, cddp_error *err)
{
    cd_rewind *r = calloc(1, sizeof *r);
    if (r != NULL) {
        r->block = aligned_alloc(PAGE, BLOCK_BYTES);
        r->memory = calloc(1, sizeof *r->memory);
    }
    if (r != NULL && r->memory != NULL) r->memory->owner = malloc(BLOCK_BYTES / PIECE);
    if (r == NULL || r->block == NULL || r->memory == NULL || r->memory->owner == NULL) {
        cd_rewind_destroy(r);
        return cd_fail_memory(err, "a rank in its own block");
    }
    memset(r->block, 0, head_bytes());
    memset(r->memory->owner, NOBODY, BLOCK_BYTES / PIECE);
    cd_memory_init(&head_of(r)->memory, r->block + head_bytes(), BLOCK_BYTES - head_bytes());
    r->memory->table = cd_memory_table(&head_of(r)->memory);
    *rewind = r;
    return CDDP_OK;
}

void cd_rewind_destroy(cd_rewind *r)
{
    if (r == NULL) return;
    if (r->memory != NULL) {
        free(r->memory->first.bytes);
        free(r->memory->owner);
        free(r->memory->before.bytes);
        free(r->memory->known);
        free(r->memory->saved);
    }
    free(r->memory);
    free(r->block);
    free(r);
}

cd_rank_walk *cd_rewind_walk(cd_rewind *r) { return &head_of(r)->walk; }
const cddp_allocator *cd_rewind_allocator(cd_rewind *r) { return &r->memory->table; }

/* ---- whole images ---- */

static cddp_status take_image(const cd_rewind *r, image *to, size_t bytes, cddp_error *err)
{
    unsigned char *grown = realloc(to->bytes, bytes);
    if (grown == NULL) return cd_fail_memory(err, "an image of %zu bytes", bytes);
    to->bytes = grown;
    to->used = bytes;
    memcpy(to->bytes, r->block, bytes);
    return CDDP_OK;
}

/* ---- pieces ---- */

cddp_status cd_rewind_begin(cd_rewind *r, cddp_error *err)
{
    r->is_torn = false;
    r->memory->watched = (used_of(r) + SLACK) / PAGE * PAGE;
    CD_TRY(take_image(r, &r->memory->first, r->memory->watched, err));
    return CD_PASS(take_image(r, &r->memory->before, r->memory->watched, err));
}

/* One more gradient changes this piece; a second one makes it everybody's. */
static void note_change(struct cd_rewind_memory *m, size_t piece, uint32_t firing)
{
    uint8_t *owner = &m->owner[piece];
    if (*owner == NOBODY)
        *owner = (uint8_t)firing;
    else if (*owner != firing)
        *owner = EVERYBODY;
}

void cd_rewind_learn(cd_rewind *r, uint32_t firing)
{
    struct cd_rewind_memory *m = r->memory;
    CD_ASSERT(used_of(r) <= m->watched);
    for (size_t page = 0; page < m->watched; page += PAGE) {
        if (memcmp(r->block + page, m->before.bytes + page, PAGE) == 0) continue;
        for (size_t at = page; at < page + PAGE; at += PIECE)
            if (memcmp(r->block + at, m->before.bytes + at, PIECE) != 0)
                note_change(m, at / PIECE, firing);
        memcpy(m->before.bytes + page, r->block + page, PAGE);
    }
}

void cd_rewind_restore_first(cd_rewind *r)
{
    memcpy(r->block, r->memory->first.bytes, r->memory->watched);
    memcpy(r->memory->before.bytes, r->memory->first.bytes, r->memory->watched);
}

cddp_status cd_rewind_fix(cd_rewind *r, cddp_error *err)
{
    struct cd_rewind_memory *m = r->memory;
    const size_t pieces = m->watched / PIECE;
    size_t count = 0;
    for (size_t i = 0; i < pieces; i++) count += m->owner[i] != NOBODY;
    free(m->known);
    free(m->saved);
    m->known = malloc((count + 1) * sizeof *m->known);
    m->saved = aligned_alloc(64, (DEPTH_MAX * count * PIECE + 127) / 64 * 64);
    if (m->known == NULL || m->saved == NULL) return cd_fail_memory(err, "%zu pieces", count);
    m->known_count = 0;
    for (uint32_t owner = 0; owner <= EVERYBODY; owner++) {
        m->first_of[owner] = m->known_count;
        if (owner == NOBODY) continue;
        for (size_t i = 0; i < pieces; i++)
            if (m->owner[i] == owner) m->known[m->known_count++] = (uint32_t)i;
    }
    m->first_of[EVERYBODY + 1] = m->known_count;
    return CDDP_OK;
}

static unsigned char *saved_at(const struct cd_rewind_memory *m, uint32_t depth)
{
    return m->saved + (size_t)depth * m->known_count * PIECE;
}

void cd_rewind_save(cd_rewind *r, uint32_t depth)
{
    const struct cd_rewind_memory *m = r->memory;
    unsigned char *to = saved_at(m, depth);
    for (size_t i = 0; i < m->known_count; i++)
        memcpy(to + i * PIECE, r->block + (size_t)m->known[i] * PIECE, PIECE);
}

static void put_back(cd_rewind *r, const unsigned char *from, uint32_t owner)
{
    const struct cd_rewind_memory *m = r->memory;
    unsigned char *block = r->block;
    const uint32_t *known = m->known;
    for (size_t i = m->first_of[owner], end = m->first_of[owner + 1]; i < end; i++)
        memcpy(block + (size_t)known[i] * PIECE, from + i * PIECE, PIECE);
}

void cd_rewind_restore(cd_rewind *r, uint32_t depth, uint32_t firing)
{
    const unsigned char *from = saved_at(r->memory, depth);
    put_back(r, from, firing);
    put_back(r, from, EVERYBODY);
}

void cd_rewind_compare(cd_rewind *r, uint32_t depth)
{
    struct cd_rewind_memory *m = r->memory;
    const unsigned char *saved = saved_at(m, depth);
    for (size_t i = 0; i < m->first_of[EVERYBODY]; i++) {
        if (memcmp(r->block + (size_t)m->known[i] * PIECE, saved + i * PIECE, PIECE) == 0) continue;
        m->owner[m->known[i]] = EVERYBODY;
        r->is_torn = true;
    }
}

void cd_rewind_check(cd_rewind *r, bool now)
{
    struct cd_rewind_memory *m = r->memory;
    if (!now && ++m->since_check < CHECK_EVERY) return;
    m->since_check = 0;
    for (size_t page = 0; page < m->watched; page += PAGE) {
        if (memcmp(r->block + page, m->first.bytes + page, PAGE) == 0) continue;
        for (size_t i = page / PIECE; i < (page + PAGE) / PIECE; i++) {
            if (m->owner[i] != NOBODY ||
                memcmp(r->block + i * PIECE, m->first.bytes + i * PIECE, PIECE) == 0)
                continue;
            m->owner[i] = EVERYBODY;
            r->is_torn = true;
        }
    }
}
