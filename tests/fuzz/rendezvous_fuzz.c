/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of the rendezvous. Any bytes, in pieces: dropped with a reason, or answered; the table
** stays within its limits. Or well-formed requests of two clients, drawn from the bytes: each
** answer is what a list of keys and values would say.
**
** The clients' buffers are allocated once: they are what an input would spend its time on. */
#include "backends/rendezvous/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);

#define CLIENTS 2
#define SECRET "open"

typedef struct table {
    cd_kv kv;
    cd_kv_client *clients; /* (CLIENTS) */
    size_t keys_max;
} table;

static void check_limits(const table *t, const cd_kv_client *client)
{
    if (t->kv.count > t->keys_max || 2 * t->kv.count > t->kv.capacity) abort();
    if (client->frame_used > CD_KV_FRAME_BYTES_MAX || client->answer_bytes > CD_KV_FRAME_BYTES_MAX)
        abort();
}

/* False: the client is dropped. */
static bool feed(table *t, cd_kv_client *client, const void *bytes, size_t byte_count)
{
    const char *reason = NULL;
    if (!cd_kv_feed(&t->kv, client, bytes, byte_count, &reason)) {
        if (reason == NULL) abort();
        return false;
    }
    check_limits(t, client);
    return true;
}

/* ---- any bytes ---- */

static void feed_pieces(table *t, const uint8_t *bytes, size_t byte_count)
{
    size_t piece = 1 + bytes[1];
    for (size_t at = 2, i = 0; at < byte_count; at += piece, i++) {
        cd_kv_client *client = &t->clients[(bytes[0] & 4) != 0 ? i % CLIENTS : 0];
        if (!feed(t, client, bytes + at, byte_count - at < piece ? byte_count - at : piece)) break;
        client->answer_sent = client->answer_bytes; /* as if the socket took it */
        for (size_t k = 0; k < CLIENTS; k++) (void)cd_kv_resume(&t->kv, &t->clients[k]);
        check_limits(t, client);
    }
}

/* ---- requests, and a list that answers them too ---- */

#define KEYS 32 /* of each of two generations */
#define VALUE_BYTES_MAX 40

typedef struct listed {
    bool is_there;
    unsigned char value[VALUE_BYTES_MAX];
    size_t value_bytes;
} listed;

typedef struct list {
    listed entries[2 * KEYS];
    size_t count, keys_max;
} list;

typedef struct expected {
    cd_kv_code code;
    unsigned char value[VALUE_BYTES_MAX];
    size_t value_bytes;
} expected;

static void expect(expected *e, cd_kv_code code, const void *value, size_t value_bytes)
{
    e->code = code;
    e->value_bytes = value_bytes;
    if (value_bytes > 0) memcpy(e->value, value, value_bytes);
}

static cd_kv_code list_set(list *l, listed *entry, const void *value, size_t value_bytes)
{
    if (!entry->is_there && l->count >= l->keys_max) return CD_KV_FULL;
    l->count += !entry->is_there;
    entry->is_there = true;
    entry->value_bytes = value_bytes;
    if (value_bytes > 0) memcpy(entry->value, value, value_bytes);
    return CD_KV_OK;
}

/* All of the bytes are one decimal number. */
static bool read_number(const void *bytes, size_t byte_count, long long *number)
{
    char text[VALUE_BYTES_MAX + 1], *end;
    if (byte_count == 0 || byte_count >= 32) return false;
    memcpy(text, bytes, byte_count);
    text[byte_count] = '\0';
    *number = strtoll(text, &end, 10);
    return end == text + byte_count && end != text;
}

static void list_add(list *l, listed *entry, const cd_kv_request *r, expected *e)
{
    long long base = 0, more;
    char text[32];
    expect(e, CD_KV_NOT_A_NUMBER, NULL, 0);
    if (entry->is_there && !read_number(entry->value, entry->value_bytes, &base)) return;
    if (!read_number(r->a, r->a_bytes, &more)) return;
    int length = snprintf(text, sizeof text, "%lld",
                          (long long)((unsigned long long)base + (unsigned long long)more));
    e->code = list_set(l, entry, text, (size_t)length);
    if (e->code == CD_KV_OK) expect(e, CD_KV_OK, text, (size_t)length);
}

static bool value_is(const listed *entry, const cd_kv_request *r)
{
    if (r->a_bytes == 0) return !entry->is_there;
    return entry->is_there && entry->value_bytes == r->a_bytes - 1 &&
           memcmp(entry->value, (const char *)r->a + 1, entry->value_bytes) == 0;
}

/* False: the answer waits for the key. */
static bool list_answer(list *l, listed *entry, const cd_kv_request *r, expected *e)
{
    expect(e, CD_KV_OK, NULL, 0);
    switch (r->verb) {
    case CD_KV_SET:
        e->code = list_set(l, entry, r->a, r->a_bytes);
        break;
    case CD_KV_WAIT:
        if (!entry->is_there) return false;
        expect(e, CD_KV_OK, entry->value, entry->value_bytes);
        break;
    case CD_KV_GET:
        expect(e, entry->is_there ? CD_KV_OK : CD_KV_ABSENT, entry->value, entry->value_bytes);
        break;
    case CD_KV_COMPARE_AND_SET:
        if (value_is(entry, r))
            e->code = list_set(l, entry, r->b, r->b_bytes);
        else
            expect(e, CD_KV_DIFFERS, entry->value, entry->value_bytes);
        break;
    case CD_KV_ADD:
        list_add(l, entry, r, e);
        break;
    case CD_KV_REMOVE:
        l->count -= entry->is_there;
        *entry = (listed){0};
        break;
    case CD_KV_HELLO:
    case CD_KV_PROVE:
    case CD_KV_VERB_COUNT:
        break;
    }
    return true;
}

static void check_answer(cd_kv_client *client, const expected *e)
{
    const unsigned char *at = client->answer;
    size_t length = (size_t)at[0] | (size_t)at[1] << 8 | (size_t)at[2] << 16 | (size_t)at[3] << 24;
    if (client->answer_bytes != 5 + e->value_bytes || length != 1 + e->value_bytes ||
        at[4] != e->code)
        abort();
    if (e->value_bytes > 0 && memcmp(at + 5, e->value, e->value_bytes) != 0) abort();
    client->answer_sent = client->answer_bytes;
}

/* The client and its request: four bytes, then those of a and b. */
typedef struct drawn {
    size_t client, entry;
    cd_kv_request request;
} drawn;

/* Returns where the next begins; 0: there is none. */
static size_t draw(const uint8_t *bytes, size_t byte_count, size_t at, drawn *d)
{
    static const char keys[KEYS + 1] = "0123456789abcdefghijklmnopqrstuv";
    if (byte_count - at < 4) return 0;
    const uint8_t *head = bytes + at;
    size_t left = byte_count - at - 4, a = head[2] % VALUE_BYTES_MAX, b = head[3] % VALUE_BYTES_MAX;
    a = a < left ? a : left;
    b = b < left - a ? b : left - a;
    d->client = head[0] >> 7;
    d->entry = head[1] % (2 * KEYS);
    d->request = (cd_kv_request){.verb = (cd_kv_verb)(1 + head[0] % CD_KV_REMOVE),
                                 .generation = d->entry / KEYS,
                                 .key = &keys[d->entry % KEYS],
                                 .key_bytes = 1,
                                 .a = head + 4,
                                 .a_bytes = a,
                                 .b = head + 4 + a,
                                 .b_bytes = b};
    return at + 4 + a + b;
}

static void ask(table *t, const uint8_t *bytes, size_t byte_count)
{
    static unsigned char frame[512];
    static list l;
    drawn d, waits[CLIENTS];
    expected e;
    memset(&l, 0, sizeof l);
    l.keys_max = t->keys_max;
    for (size_t at = 2; (at = draw(bytes, byte_count, at, &d)) != 0;) {
        cd_kv_client *client = &t->clients[d.client], *other = &t->clients[!d.client];
        if (client->waiting) continue;
        size_t length = cd_kv_encode(&d.request, frame, sizeof frame);
        if (length == 0 || !feed(t, client, frame, length)) abort();
        if (list_answer(&l, &l.entries[d.entry], &d.request, &e) == client->waiting) abort();
        if (client->waiting)
            waits[d.client] = d;
        else
            check_answer(client, &e);
        if (other->waiting) { /* exactly until its key is there */
            const drawn *w = &waits[!d.client];
            bool answered = list_answer(&l, &l.entries[w->entry], &w->request, &e);
            if (cd_kv_resume(&t->kv, other) != answered) abort();
            if (answered) check_answer(other, &e);
        }
        if (t->kv.count != l.count) abort();
    }
}

/* At a table that wants no secret: what a client is afterwards does not depend on where it
** greeted. */
static void greet(cd_kv_client *client)
{
    static const unsigned char version[8] = {CD_KV_VERSION};
    unsigned char frame[64];
    const char *reason = NULL;
    const cd_kv_request hello = {.verb = CD_KV_HELLO,
                                 .key = "",
                                 .a = version,
                                 .a_bytes = sizeof version};
    cd_kv lobby;
    if (cd_kv_init(&lobby, NULL, 1, NULL, NULL) != CDDP_OK) abort();
    const size_t length = cd_kv_encode(&hello, frame, sizeof frame);
    if (!cd_kv_feed(&lobby, client, frame, length, &reason) || !client->greeted) abort();
    client->answer_sent = client->answer_bytes;
    cd_kv_fini(&lobby);
}

/* The first byte: 1: the clients greeted; 2: a secret is wanted; 4: both clients write; 8: more
** keys than the table begins with; 16: requests. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static cd_kv_client clients[CLIENTS];
    if (byte_count < 2) return 0;
    table t = {.clients = clients, .keys_max = (bytes[0] & 8) != 0 ? 48 : 16};
    if (cd_kv_init(&t.kv, NULL, t.keys_max, (bytes[0] & 2) != 0 ? SECRET : NULL, NULL) != CDDP_OK)
        abort();
    for (size_t i = 0; i < CLIENTS; i++) {
        if (clients[i].frame == NULL && cd_kv_client_init(&clients[i], NULL, NULL) != CDDP_OK)
            abort();
        cd_kv_client_reset(&clients[i]);
        if ((bytes[0] & 17) != 0) greet(&clients[i]);
    }
    if ((bytes[0] & 16) != 0)
        ask(&t, bytes, byte_count);
    else
        feed_pieces(&t, bytes, byte_count);
    cd_kv_fini(&t.kv);
    return 0;
}
