/* SPDX-License-Identifier: Apache-2.0 */
/* What tells a slot as it was written from one that a disk or a copy has changed.
**
** Bytes 8 to 127 of a slot, word by word: value = (value ^ word) * prime, beginning with the slot's
** number. The halves of it, xor-ed, are the upper half of the slot's sequence. Every step is a
** bijection. 0 stands for no seal, and is written as 1.
*/
#pragma once
#include "cddp/shard.h"

#include <string.h>

#define CD_SEAL_PRIME UINT64_C(0x9e3779b185ebca87)
#define CD_SEAL_NUMBER UINT64_C(0xffffffff) /* of a sequence: the number of the slot */

static inline uint64_t cd_seal_words(uint64_t value, const void *bytes, size_t word_count)
{
    const char *at = bytes;
    for (size_t i = 0; i < word_count; i++) {
        uint64_t word;
        memcpy(&word, at + i * sizeof word, sizeof word);
        value = (value ^ word) * CD_SEAL_PRIME;
    }
    return value;
}

static inline uint64_t cd_seal_end(uint64_t value)
{
    const uint64_t folded = (value ^ value >> 32) & UINT64_C(0xffffffff);
    return folded != 0 ? folded : 1;
}

/* The sequence of a slot with this number and content. */
static inline uint64_t cd_seal_slot(const void *slot, uint64_t number)
{
    const size_t words = (CDDP_SHARD_SLOT_BYTES - sizeof number) / sizeof number;
    const uint64_t value = cd_seal_words(number, (const char *)slot + sizeof number, words);
    return cd_seal_end(value) << 32 | (number & CD_SEAL_NUMBER);
}

/* What the header says from the beginning: all but lost, end, slots, failure and what follows. */
static inline uint64_t cd_seal_begin(const cddp_shard_header *h)
{
    uint64_t value = cd_seal_words(CDDP_SHARD_MAGIC, &h->version,
                                   (offsetof(cddp_shard_header, lost) - sizeof h->magic) / 8);
    value =
        cd_seal_words(value, h->host,
                      (offsetof(cddp_shard_header, failure) - offsetof(cddp_shard_header, host)) /
                          8);
    return cd_seal_end(value);
}

/* What it says at the end. */
static inline uint64_t cd_seal_close(const cddp_shard_header *h)
{
    uint64_t value =
        cd_seal_words(h->seal, &h->lost,
                      (offsetof(cddp_shard_header, host) - offsetof(cddp_shard_header, lost)) / 8);
    value = cd_seal_words(value, h->failure, sizeof h->failure / 8);
    return cd_seal_end(h->alive != 0 ? cd_seal_words(value, &h->alive, 1) : value);
}

/* ---- until when the process lived ---- */

#define CD_ALIVE_BITS 40

static inline uint64_t cd_seal_alive(const cddp_shard_header *h, uint64_t milliseconds)
{
    const uint64_t number = milliseconds & ((UINT64_C(1) << CD_ALIVE_BITS) - 1);
    const uint64_t seal =
        cd_seal_end(cd_seal_words(h->monotonic_ns ^ h->process, &number, 1)) >> 8 | 1;
    return seal << CD_ALIVE_BITS | number;
}

/* On the clock of the shard; 0: the header does not say it, or something changed what it said. */
static inline uint64_t cd_seal_read_alive(const cddp_shard_header *h)
{
    const uint64_t milliseconds = h->alive & ((UINT64_C(1) << CD_ALIVE_BITS) - 1);
    if (h->alive == 0 || cd_seal_alive(h, milliseconds) != h->alive) return 0;
    return h->monotonic_ns + milliseconds * UINT64_C(1000000);
}
