/* SPDX-License-Identifier: Apache-2.0 */
/* BLAKE2s of RFC 7693 with a key: the proof that a client and a server know the same secret.
** docs/decisions has why it is here and not in a library.
**
** Lifetime   none: plain functions of bytes
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define CD_MAC_BYTES 32u
#define CD_NONCE_BYTES 16u

/* BLAKE2s-256; key_bytes is 0 (a plain hash) to 32. */
void cd_mac_of(const void *key, size_t key_bytes, const void *bytes, size_t byte_count,
               unsigned char mac[CD_MAC_BYTES]);
/* A key from a secret of any length. */
void cd_mac_key(const char *secret, unsigned char key[CD_MAC_BYTES]);

typedef struct cd_handshake {
    unsigned char challenge[CD_NONCE_BYTES]; /* of the server, fresh for each connection */
    unsigned char nonce[CD_NONCE_BYTES];     /* of the client */
} cd_handshake;
/* What a client shows, and what the server shows in turn: neither can be replayed, nor sent back as
** the other. */
void cd_mac_prove(const unsigned char key[CD_MAC_BYTES], const cd_handshake *handshake,
                  bool is_server, unsigned char proof[CD_MAC_BYTES]);
/* Takes the same time for equal and for different proofs. */
bool cd_mac_equal(const unsigned char a[CD_MAC_BYTES], const unsigned char b[CD_MAC_BYTES]);
