/* SPDX-License-Identifier: Apache-2.0 */
/* BLAKE2s, RFC 7693: the compression function of section 3.2 and the hash of section 3.3. */
#include "backends/rendezvous/mac.h"

#include <stdint.h>
#include <string.h>

#define BLOCK_BYTES 64u
#define ROUNDS 10

typedef struct state {
    uint32_t h[8];
    uint64_t count; /* bytes compressed so far */
} state;

static const uint32_t iv[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                               0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};

static const unsigned char sigma[ROUNDS][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

/* The four columns, then the four diagonals, of the 4 x 4 words. */
static const unsigned char mixed[8][4] = {{0, 4, 8, 12},  {1, 5, 9, 13},  {2, 6, 10, 14},
                                          {3, 7, 11, 15}, {0, 5, 10, 15}, {1, 6, 11, 12},
                                          {2, 7, 8, 13},  {3, 4, 9, 14}};

static uint32_t turn(uint32_t x, unsigned by) { return x >> by | x << (32 - by); }

static void mix(uint32_t v[16], const unsigned char at[4], uint32_t x, uint32_t y)
{
    uint32_t *a = &v[at[0]], *b = &v[at[1]], *c = &v[at[2]], *d = &v[at[3]];
    *a += *b + x;
    *d = turn(*d ^ *a, 16);
    *c += *d;
    *b = turn(*b ^ *c, 12);
    *a += *b + y;
    *d = turn(*d ^ *a, 8);
    *c += *d;
    *b = turn(*b ^ *c, 7);
}

static void compress(state *s, const unsigned char block[BLOCK_BYTES], bool is_last)
{
    uint32_t m[16], v[16];
    for (int i = 0; i < 16; i++)
        m[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 |
               (uint32_t)block[4 * i + 2] << 16 | (uint32_t)block[4 * i + 3] << 24;
    memcpy(v, s->h, sizeof s->h);
    memcpy(v + 8, iv, sizeof iv);
    v[12] ^= (uint32_t)s->count;
    v[13] ^= (uint32_t)(s->count >> 32);
    if (is_last) v[14] = ~v[14];
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < 8; i++)
            mix(v, mixed[i], m[sigma[round][2 * i]], m[sigma[round][2 * i + 1]]);
    for (int i = 0; i < 8; i++) s->h[i] ^= v[i] ^ v[i + 8];
}

/* A key is a separate first block. Only the last block may be short. */
void cd_mac_of(const void *key, size_t key_bytes, const void *bytes, size_t byte_count,
               unsigned char mac[CD_MAC_BYTES])
{
    const unsigned char *at = bytes;
    state s;
    memcpy(s.h, iv, sizeof iv);
    s.h[0] ^= 0x01010000u ^ (uint32_t)key_bytes << 8 ^ CD_MAC_BYTES;
    s.count = 0;
    if (key_bytes > 0) {
        unsigned char block[BLOCK_BYTES] = {0};
        memcpy(block, key, key_bytes);
        s.count += BLOCK_BYTES;
        compress(&s, block, byte_count == 0);
    }
    while (byte_count > 0 || s.count == 0) {
        unsigned char block[BLOCK_BYTES] = {0};
        const size_t taken = byte_count < BLOCK_BYTES ? byte_count : BLOCK_BYTES;
        const bool is_last = taken == byte_count;
        if (taken > 0) memcpy(block, at, taken);
        at += taken;
        byte_count -= taken;
        s.count += taken;
        compress(&s, block, is_last);
        if (is_last) break;
    }
    for (unsigned i = 0; i < CD_MAC_BYTES; i++) mac[i] = (unsigned char)(s.h[i / 4] >> 8 * (i % 4));
}

void cd_mac_key(const char *secret, unsigned char key[CD_MAC_BYTES])
{
    cd_mac_of(NULL, 0, secret, strlen(secret), key);
}

void cd_mac_prove(const unsigned char key[CD_MAC_BYTES], const cd_handshake *handshake,
                  bool is_server, unsigned char proof[CD_MAC_BYTES])
{
    unsigned char said[1 + 2 * CD_NONCE_BYTES];
    said[0] = is_server ? 's' : 'c';
    memcpy(said + 1, handshake->challenge, CD_NONCE_BYTES);
    memcpy(said + 1 + CD_NONCE_BYTES, handshake->nonce, CD_NONCE_BYTES);
    cd_mac_of(key, CD_MAC_BYTES, said, sizeof said, proof);
}

bool cd_mac_equal(const unsigned char a[CD_MAC_BYTES], const unsigned char b[CD_MAC_BYTES])
{
    unsigned char differs = 0;
    for (unsigned i = 0; i < CD_MAC_BYTES; i++) differs = (unsigned char)(differs | (a[i] ^ b[i]));
    return differs == 0;
}
