/* SPDX-License-Identifier: Apache-2.0 */
/* The table of keys and the request → answer function. See kv.h for the wire format. */
#include "backends/rendezvous/kv.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cddp_status cd_kv_init(cd_kv *kv, const cddp_allocator *allocator, size_t keys_max,
                       const char *secret, cddp_error *err)
{
    *kv = (cd_kv){.allocator = allocator,
                  .capacity = 64,
                  .keys_max = keys_max,
                  .bytes_max = CD_KV_BYTES_MAX,
                  .has_secret = secret != NULL};
    if (secret != NULL) cd_mac_key(secret, kv->key);
    kv->entries = cd_allocate_array(allocator, kv->capacity, sizeof *kv->entries);
    if (kv->entries == NULL) return cd_fail_memory(err, "a rendezvous store");
    return CDDP_OK;
}

static void entry_free(cd_kv *kv, cd_kv_entry *e)
{
    cd_release(kv->allocator, e->key, e->key_bytes);
    cd_release(kv->allocator, e->value, e->value_bytes);
    kv->bytes -= e->key_bytes + e->value_bytes;
    *e = (cd_kv_entry){0};
}

void cd_kv_fini(cd_kv *kv)
{
    for (size_t i = 0; kv->entries != NULL && i < kv->capacity; i++)
        entry_free(kv, &kv->entries[i]);
    cd_release(kv->allocator, kv->entries, kv->capacity * sizeof *kv->entries);
    kv->entries = NULL;
}

cddp_status cd_kv_client_init(cd_kv_client *client, const cddp_allocator *allocator,
                              cddp_error *err)
{
    *client = (cd_kv_client){.allocator = allocator, .room = CD_KV_GREETING_BYTES_MAX};
    client->frame = cd_allocate(allocator, client->room);
    client->answer = cd_allocate(allocator, client->room);
    if (client->frame == NULL || client->answer == NULL) {
        cd_kv_client_fini(client, allocator);
        return cd_fail_memory(err, "a rendezvous client");
    }
    return CDDP_OK;
}

void cd_kv_client_reset(cd_kv_client *client)
{
    client->greeted = client->is_challenged = client->waiting = false;
    client->frame_used = client->answer_bytes = client->answer_sent = 0;
}

void cd_kv_client_fini(cd_kv_client *client, const cddp_allocator *allocator)
{
    cd_release(allocator, client->frame, client->room);
    cd_release(allocator, client->answer, client->room);
    *client = (cd_kv_client){0};
}

/* Its greeting is over and its answer is not written yet. */
static bool client_grow(cd_kv_client *client)
{
    if (client->room == CD_KV_FRAME_BYTES_MAX) return true;
    unsigned char *frame = cd_allocate(client->allocator, CD_KV_FRAME_BYTES_MAX);
    unsigned char *answer = cd_allocate(client->allocator, CD_KV_FRAME_BYTES_MAX);
    if (frame == NULL || answer == NULL) {
        cd_release(client->allocator, frame, CD_KV_FRAME_BYTES_MAX);
        cd_release(client->allocator, answer, CD_KV_FRAME_BYTES_MAX);
        return false;
    }
    cd_release(client->allocator, client->frame, client->room);
    cd_release(client->allocator, client->answer, client->room);
    client->frame = frame;
    client->answer = answer;
    client->room = CD_KV_FRAME_BYTES_MAX;
    return true;
}

static size_t slot_of(const cd_kv *kv, const char *key, size_t key_bytes)
{
    size_t i = (size_t)cd_hash64(key, key_bytes, 0) & (kv->capacity - 1);
    while (kv->entries[i].key != NULL && (kv->entries[i].key_bytes != key_bytes ||
                                          memcmp(kv->entries[i].key, key, key_bytes) != 0))
        i = (i + 1) & (kv->capacity - 1);
    return i;
}

static bool table_grow(cd_kv *kv)
{
    cd_kv grown = *kv;
    grown.capacity *= 2;
    grown.entries = cd_allocate_array(kv->allocator, grown.capacity, sizeof *grown.entries);
    if (grown.entries == NULL) return false;
    for (size_t i = 0; i < kv->capacity; i++)
        if (kv->entries[i].key != NULL)
            grown.entries[slot_of(&grown, kv->entries[i].key, kv->entries[i].key_bytes)] =
                kv->entries[i];
    cd_release(kv->allocator, kv->entries, kv->capacity * sizeof *kv->entries);
    *kv = grown;
    return true;
}

typedef struct bytes_view {
    const void *bytes;
    size_t count;
} bytes_view;

static bool table_set(cd_kv *kv, bytes_view key, bytes_view value)
{
    if (2 * (kv->count + 1) > kv->capacity && !table_grow(kv)) return false;
    cd_kv_entry *e = &kv->entries[slot_of(kv, key.bytes, key.count)];
    bool is_new = e->key == NULL;
    if (is_new && kv->count >= kv->keys_max) return false;
    const uint64_t bytes = kv->bytes - e->value_bytes + value.count + (is_new ? key.count : 0);
    if (bytes > kv->bytes_max) return false;
    unsigned char *copy = cd_allocate(kv->allocator, value.count);
    char *name = is_new ? cd_allocate(kv->allocator, key.count) : e->key;
    if (copy == NULL || name == NULL) {
        cd_release(kv->allocator, copy, value.count);
        if (is_new) cd_release(kv->allocator, name, key.count);
        return false;
    }
    if (value.count > 0) memcpy(copy, value.bytes, value.count);
    if (is_new) memcpy(name, key.bytes, key.count);
    cd_release(kv->allocator, e->value, e->value_bytes);
    *e = (cd_kv_entry){name, key.count, copy, value.count};
    kv->bytes = bytes;
    kv->count += is_new;
    return true;
}

/* Open addressing: entries after a freed slot may have to move up. */
static void table_remove(cd_kv *kv, bytes_view key)
{
    size_t hole = slot_of(kv, key.bytes, key.count);
    if (kv->entries[hole].key == NULL) return;
    entry_free(kv, &kv->entries[hole]);
    kv->count--;
    size_t mask = kv->capacity - 1;
    for (size_t i = (hole + 1) & mask; kv->entries[i].key != NULL; i = (i + 1) & mask) {
        cd_kv_entry moved = kv->entries[i];
        kv->entries[i] = (cd_kv_entry){0};
        kv->entries[slot_of(kv, moved.key, moved.key_bytes)] = moved;
    }
}

static void put_u32(unsigned char *at, size_t value)
{
    for (int i = 0; i < 4; i++) at[i] = (unsigned char)(value >> (8 * i));
}

static size_t get_u32(const unsigned char *at)
{
    return (size_t)at[0] | (size_t)at[1] << 8 | (size_t)at[2] << 16 | (size_t)at[3] << 24;
}

size_t cd_kv_encode(const cd_kv_request *r, unsigned char *frame, size_t frame_bytes)
{
    size_t body = 1 + 8 + 2 + r->key_bytes + 4 + r->a_bytes + 4 + r->b_bytes;
    if (r->key_bytes > CDDP_RENDEZVOUS_KEY_BYTES_MAX || body + 4 > frame_bytes) return 0;
    unsigned char *at = frame;
    put_u32(at, body);
    at += 4;
    *at++ = (unsigned char)r->verb;
    for (int i = 0; i < 8; i++) *at++ = (unsigned char)(r->generation >> (8 * i));
    *at++ = (unsigned char)r->key_bytes;
    *at++ = (unsigned char)(r->key_bytes >> 8);
    if (r->key_bytes > 0) memcpy(at, r->key, r->key_bytes);
    at += r->key_bytes;
    put_u32(at, r->a_bytes);
    if (r->a_bytes > 0) memcpy(at + 4, r->a, r->a_bytes);
    at += 4 + r->a_bytes;
    put_u32(at, r->b_bytes);
    if (r->b_bytes > 0) memcpy(at + 4, r->b, r->b_bytes);
    return body + 4;
}

/* Reads the body of a frame and checks each length: a hostile length must not move the cursor past
** the end. */
static bool decode(const unsigned char *body, size_t body_bytes, cd_kv_request *r)
{
    size_t at = 11;
    if (body_bytes < at || body[0] >= CD_KV_VERB_COUNT) return false;
    r->verb = (cd_kv_verb)body[0];
    r->generation = 0;
    for (int i = 0; i < 8; i++) r->generation |= (uint64_t)body[1 + i] << (8 * i);
    r->key_bytes = (size_t)body[9] | (size_t)body[10] << 8;
    if (r->key_bytes > CDDP_RENDEZVOUS_KEY_BYTES_MAX || r->key_bytes > body_bytes - at)
        return false;
    r->key = (const char *)body + at;
    at += r->key_bytes;
    if (body_bytes - at < 4) return false;
    r->a_bytes = get_u32(body + at);
    at += 4;
    if (r->a_bytes > CDDP_RENDEZVOUS_VALUE_BYTES_MAX || r->a_bytes > body_bytes - at) return false;
    r->a = body + at;
    at += r->a_bytes;
    if (body_bytes - at < 4) return false;
    r->b_bytes = get_u32(body + at);
    at += 4;
    if (r->b_bytes > CDDP_RENDEZVOUS_VALUE_BYTES_MAX || r->b_bytes != body_bytes - at) return false;
    r->b = body + at;
    return true;
}

static void answer(cd_kv_client *client, cd_kv_code code, bytes_view value)
{
    put_u32(client->answer, 1 + value.count);
    client->answer[4] = (unsigned char)code;
    if (value.count > 0) memcpy(client->answer + 5, value.bytes, value.count);
    client->answer_bytes = 5 + value.count;
    client->answer_sent = 0;
}

/* True when all bytes are one decimal number. A number out of range is clamped. */
static bool read_number(bytes_view bytes, long long *number)
{
    char text[32], *end;
    if (bytes.count == 0 || bytes.count >= sizeof text) return false;
    memcpy(text, bytes.bytes, bytes.count);
    text[bytes.count] = '\0';
    *number = strtoll(text, &end, 10);
    return end == text + bytes.count;
}

static cd_kv_code add_to(cd_kv *kv, bytes_view key, const cd_kv_entry *e, const cd_kv_request *r,
                         char text[32])
{
    long long base = 0, more = 0;
    if (e->key != NULL && !read_number((bytes_view){e->value, e->value_bytes}, &base))
        return CD_KV_NOT_A_NUMBER;
    if (!read_number((bytes_view){r->a, r->a_bytes}, &more)) return CD_KV_NOT_A_NUMBER;
    snprintf(text, 32, "%lld", (long long)((unsigned long long)base + (unsigned long long)more));
    return table_set(kv, key, (bytes_view){text, strlen(text)}) ? CD_KV_OK : CD_KV_FULL;
}

/* Serves one decoded request after HELLO. False: its answer has to wait for the key. */
static bool serve(cd_kv *kv, cd_kv_client *client, const cd_kv_request *r)
{
    char full[CDDP_RENDEZVOUS_KEY_BYTES_MAX + 32];
    int head = snprintf(full, sizeof full, "%llx/", (unsigned long long)r->generation);
    memcpy(full + head, r->key, r->key_bytes);
    bytes_view key = {full, (size_t)head + r->key_bytes}, none = {NULL, 0};
    const cd_kv_entry *e = &kv->entries[slot_of(kv, key.bytes, key.count)];
    bytes_view value = {e->value, e->value_bytes};
    char text[32];
    switch (r->verb) {
    case CD_KV_SET:
        answer(client, table_set(kv, key, (bytes_view){r->a, r->a_bytes}) ? CD_KV_OK : CD_KV_FULL,
               none);
        return true;
    case CD_KV_GET:
    case CD_KV_WAIT:
        if (e->key == NULL && r->verb == CD_KV_WAIT) return false;
        answer(client, e->key != NULL ? CD_KV_OK : CD_KV_ABSENT, value);
        return true;
    case CD_KV_COMPARE_AND_SET: {
        /* a is "1" and the expected text, or empty: the key must be absent. */
        bool expects = r->a_bytes > 0;
        bool equal = expects ? e->key != NULL && e->value_bytes == r->a_bytes - 1 &&
                                   memcmp(e->value, (const char *)r->a + 1, e->value_bytes) == 0
                             : e->key == NULL;
        if (!equal)
            answer(client, CD_KV_DIFFERS, value);
        else
            answer(client,
                   table_set(kv, key, (bytes_view){r->b, r->b_bytes}) ? CD_KV_OK : CD_KV_FULL,
                   none);
        return true;
    }
    case CD_KV_ADD: {
        cd_kv_code code = add_to(kv, key, e, r, text);
        answer(client, code, code == CD_KV_OK ? (bytes_view){text, strlen(text)} : none);
        return true;
    }
    case CD_KV_REMOVE:
        table_remove(kv, key);
        answer(client, CD_KV_OK, none);
        return true;
    case CD_KV_HELLO:
    case CD_KV_PROVE:
    case CD_KV_VERB_COUNT:
        break;
    }
    answer(client, CD_KV_OK, none);
    return true;
}

size_t cd_kv_refusal(const char *reason, unsigned char frame[CD_KV_GREETING_BYTES_MAX])
{
    size_t bytes = strlen(reason);
    if (bytes > CD_KV_GREETING_BYTES_MAX - 5) bytes = CD_KV_GREETING_BYTES_MAX - 5;
    put_u32(frame, 1 + bytes);
    frame[4] = CD_KV_REFUSED;
    memcpy(frame + 5, reason, bytes);
    return 5 + bytes;
}

static bool admit(cd_kv_client *client, bytes_view proof, const char **reason)
{
    if (!client_grow(client)) {
        *reason = "the server has no memory left";
        return false;
    }
    client->greeted = true;
    answer(client, CD_KV_OK, proof);
    return true;
}

static bool prove(const cd_kv *kv, cd_kv_client *client, const cd_kv_request *r,
                  const char **reason)
{
    unsigned char proof[CD_MAC_BYTES];
    cd_handshake handshake;
    if (r->verb != CD_KV_PROVE || r->a_bytes != CD_NONCE_BYTES || r->b_bytes != CD_MAC_BYTES) {
        *reason = "it did not answer the challenge";
        return false;
    }
    memcpy(handshake.challenge, client->challenge, CD_NONCE_BYTES);
    memcpy(handshake.nonce, r->a, CD_NONCE_BYTES);
    cd_mac_prove(kv->key, &handshake, false, proof);
    if (!cd_mac_equal(proof, r->b)) {
        *reason = "it does not know the secret (CDDP_STORE_SECRET)";
        return false;
    }
    cd_mac_prove(kv->key, &handshake, true, proof);
    return admit(client, (bytes_view){proof, sizeof proof}, reason);
}

static bool greet(const cd_kv *kv, cd_kv_client *client, const cd_kv_request *r,
                  const char **reason)
{
    uint64_t version = 0;
    if (client->is_challenged) return prove(kv, client, r, reason);
    if (r->verb != CD_KV_HELLO || r->a_bytes != sizeof version) {
        *reason = "it did not greet";
        return false;
    }
    memcpy(&version, r->a, sizeof version);
    if (version != CD_KV_VERSION) {
        *reason = "it speaks another version of the protocol";
        return false;
    }
    if (!kv->has_secret) return admit(client, (bytes_view){NULL, 0}, reason);
    if (cd_os_random(client->challenge, sizeof client->challenge, NULL) != CDDP_OK) {
        *reason = "the server has no random bytes";
        return false;
    }
    client->is_challenged = true;
    answer(client, CD_KV_CHALLENGE, (bytes_view){client->challenge, sizeof client->challenge});
    return true;
}

bool cd_kv_resume(cd_kv *kv, cd_kv_client *client)
{
    cd_kv_request r;
    if (!client->waiting || !decode(client->frame + 4, client->frame_used - 4, &r)) return false;
    if (!serve(kv, client, &r)) return false;
    client->waiting = false;
    client->frame_used = 0;
    return true;
}

/* Serves the frame, which is complete. */
static bool frame_end(cd_kv *kv, cd_kv_client *client, const char **reason)
{
    cd_kv_request r;
    if (!decode(client->frame + 4, client->frame_used - 4, &r)) {
        *reason = "it sent a malformed request";
        return false;
    }
    if (!client->greeted) {
        if (!greet(kv, client, &r, reason)) return false;
    } else if (!serve(kv, client, &r)) {
        client->waiting = true;
        return true;
    }
    client->frame_used = 0;
    return true;
}

bool cd_kv_feed(cd_kv *kv, cd_kv_client *client, const void *bytes, size_t byte_count,
                const char **reason)
{
    const unsigned char *at = bytes;
    while (byte_count > 0) {
        if (client->waiting || client->answer_bytes > client->answer_sent) {
            *reason = "it sent a request before it had the answer to the last one";
            return false;
        }
        size_t wanted = client->frame_used < 4 ? 4 : 4 + get_u32(client->frame);
        if (wanted > client->room) {
            *reason = "its request is too long";
            return false;
        }
        size_t take =
            wanted - client->frame_used < byte_count ? wanted - client->frame_used : byte_count;
        memcpy(client->frame + client->frame_used, at, take);
        client->frame_used += take;
        at += take;
        byte_count -= take;
        if (client->frame_used >= 4 && client->frame_used == 4 + get_u32(client->frame) &&
            !frame_end(kv, client, reason))
            return false;
    }
    return true;
}
