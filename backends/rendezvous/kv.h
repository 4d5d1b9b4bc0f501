/* SPDX-License-Identifier: Apache-2.0 */
/* The store: a table of keys, and a function from request to answer. It uses no socket, so the
** simulator can serve it over simulated links and a fuzzer can feed it bytes.
**
** Wire format, little-endian, one request outstanding per client:
**   frame   u32 length of what follows, u8 verb, u64 generation, u16 key bytes, key, u32 a bytes,
**           a, u32 b bytes, b
**   answer  u32 length of what follows, u8 code, value bytes
** The first request of a client is HELLO with the version of this format as a, a u64. A server that
** has a secret answers CHALLENGE with a nonce. Then the client sends PROVE: its own nonce, and the
** proof of mac.h over both; the answer is the server's proof. What was recorded of one connection
** is of no use in another. Later requests are not signed: the secret keeps strangers out, but not
** somebody who can change what others send.
**
** The server drops a client that sends anything malformed. It says why first: an answer REFUSED
** with the reason as text. Before it has greeted, a client gets 256 bytes of memory.
**
** Lifetime   init → serve … → fini. An answer stays in the client's buffer until its next
**            request.
** Errors     cd_kv_feed returns false with a reason; the table is never left half-changed.
*/
#pragma once
#include "backends/rendezvous/mac.h"
#include "cddp/rendezvous.h"

#define CD_KV_VERSION UINT64_C(2)
#define CD_KV_GREETING_BYTES_MAX 128u
#define CD_KV_BYTES_MAX (UINT64_C(256) << 20) /* of keys and values, where none is given */
#define CD_KV_FRAME_BYTES_MAX (CDDP_RENDEZVOUS_VALUE_BYTES_MAX * 2 + 1024u)

typedef enum cd_kv_verb {
    CD_KV_HELLO,
    CD_KV_SET,
    CD_KV_GET,
    CD_KV_WAIT,
    CD_KV_COMPARE_AND_SET,
    CD_KV_ADD,
    CD_KV_REMOVE,
    CD_KV_PROVE,
    CD_KV_VERB_COUNT
} cd_kv_verb;

typedef enum cd_kv_code {
    CD_KV_OK,
    CD_KV_ABSENT,
    CD_KV_DIFFERS,
    CD_KV_FULL,
    CD_KV_NOT_A_NUMBER,
    CD_KV_CHALLENGE,
    CD_KV_REFUSED
} cd_kv_code;

typedef struct cd_kv_entry {
    char *key; /* "generation/key"; NULL: the slot is free */
    size_t key_bytes;
    unsigned char *value;
    size_t value_bytes;
} cd_kv_entry;

typedef struct cd_kv {
    const cddp_allocator *allocator;
    cd_kv_entry *entries; /* (capacity) open addressing, capacity a power of two */
    size_t count, capacity, keys_max;
    uint64_t bytes, bytes_max; /* of keys and values */
    bool has_secret;
    unsigned char key[CD_MAC_BYTES]; /* of the secret */
} cd_kv;

/* One client, on the server's side. */
typedef struct cd_kv_client {
    const cddp_allocator *allocator;
    bool greeted, is_challenged;
    unsigned char challenge[CD_NONCE_BYTES];
    bool waiting;         /* its WAIT has no answer yet; call cd_kv_resume after every change */
    unsigned char *frame; /* (room) the request that arrives, then the one that waits */
    size_t frame_used;
    unsigned char *answer; /* (room) */
    size_t room;           /* CD_KV_GREETING_BYTES_MAX, then CD_KV_FRAME_BYTES_MAX */
    size_t answer_bytes, answer_sent;
} cd_kv_client;

cddp_status cd_kv_init(cd_kv *kv, const cddp_allocator *allocator, size_t keys_max,
                       const char *secret, cddp_error *err);
void cd_kv_fini(cd_kv *kv);
cddp_status cd_kv_client_init(cd_kv_client *client, const cddp_allocator *allocator,
                              cddp_error *err);
/* Its connection ended: the next one begins anew. */
void cd_kv_client_reset(cd_kv_client *client);
void cd_kv_client_fini(cd_kv_client *client, const cddp_allocator *allocator);

/* Feeds bytes that arrived. True: continue; an answer may be ready. False: drop the client;
** *reason says why. */
bool cd_kv_feed(cd_kv *kv, cd_kv_client *client, const void *bytes, size_t byte_count,
                const char **reason);
/* Retries a waiting request. True when an answer is ready now. */
bool cd_kv_resume(cd_kv *kv, cd_kv_client *client);

/* An answer REFUSED; returns its bytes. */
size_t cd_kv_refusal(const char *reason, unsigned char frame[CD_KV_GREETING_BYTES_MAX]);

typedef struct cd_kv_request {
    cd_kv_verb verb;
    uint64_t generation;
    const char *key;
    const void *a, *b;
    size_t key_bytes, a_bytes, b_bytes;
} cd_kv_request;
/* Writes a request frame; returns its bytes, 0 when it does not fit. */
size_t cd_kv_encode(const cd_kv_request *request, unsigned char *frame, size_t frame_bytes);
