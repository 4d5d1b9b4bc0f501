/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a rendezvous by its URL. The client of a server over a link is here; sockets are in
** tcp_link.c, the file store is in file_store.c. */
#include "backends/rendezvous/client.h"

#include "backends/rendezvous/kv.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/sized.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct store_client {
    cddp_rendezvous table;
    const cddp_allocator *allocator;
    cd_store_link link;
    bool is_connected;
    char prefix[128];
    char bind_host[CD_STORE_LOCAL_BYTES];
    bool has_secret;
    unsigned char key[CD_MAC_BYTES]; /* of the secret */
    uint64_t generation, timeout_ns;
    unsigned char frame[CD_KV_FRAME_BYTES_MAX];
    unsigned char answer[CDDP_RENDEZVOUS_VALUE_BYTES_MAX + 8];
    size_t answer_bytes; /* of the value in answer */
} store_client;

static cddp_status exchange(store_client *c, const cd_kv_request *request, uint64_t deadline_ns,
                            cd_kv_code *code, cddp_error *err)
{
    size_t bytes = cd_kv_encode(request, c->frame, sizeof c->frame);
    if (bytes == 0)
        return cd_fail(err, CDDP_E_LIMIT, "a rendezvous value of %zu bytes is too long",
                       request->a_bytes);
    CD_TRY(c->link.write(c->link.self, c->frame, bytes, deadline_ns, err));
    unsigned char head[5];
    CD_TRY(c->link.read(c->link.self, head, sizeof head, deadline_ns, err));
    size_t length =
        (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    if (length < 1 || length - 1 > sizeof c->answer || head[4] > CD_KV_REFUSED)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "the rendezvous at %s answered with %zu bytes: it is not a cddp store",
                       c->link.peer, length);
    CD_TRY(c->link.read(c->link.self, c->answer, length - 1, deadline_ns, err));
    c->answer_bytes = length - 1;
    *code = (cd_kv_code)head[4];
    if (*code == CD_KV_REFUSED)
        return cd_fail(err, CDDP_E_IO, "the rendezvous at %s refused this process: %.*s",
                       c->link.peer, (int)c->answer_bytes, (const char *)c->answer);
    return CDDP_OK;
}

static cddp_status prove(store_client *c, uint64_t deadline_ns, cddp_error *err)
{
    cd_handshake handshake;
    unsigned char proof[CD_MAC_BYTES];
    cd_kv_code code;
    if (!c->has_secret)
        return cd_fail(err, CDDP_E_CONFIG,
                       "the rendezvous at %s asks for a secret: set CDDP_STORE_SECRET",
                       c->link.peer);
    if (c->answer_bytes != CD_NONCE_BYTES)
        return cd_fail(err, CDDP_E_CORRUPT, "the rendezvous at %s is not a cddp store",
                       c->link.peer);
    memcpy(handshake.challenge, c->answer, CD_NONCE_BYTES);
    CD_TRY(cd_os_random(handshake.nonce, CD_NONCE_BYTES, err));
    cd_mac_prove(c->key, &handshake, false, proof);
    CD_TRY(exchange(c,
                    &(cd_kv_request){.verb = CD_KV_PROVE,
                                     .generation = c->generation,
                                     .key = "",
                                     .a = handshake.nonce,
                                     .a_bytes = CD_NONCE_BYTES,
                                     .b = proof,
                                     .b_bytes = CD_MAC_BYTES},
                    deadline_ns, &code, err));
    cd_mac_prove(c->key, &handshake, true, proof);
    if (code == CD_KV_OK && c->answer_bytes == CD_MAC_BYTES && cd_mac_equal(proof, c->answer))
        return CDDP_OK;
    return cd_fail(err, CDDP_E_IO,
                   "the rendezvous at %s does not know this process's secret (CDDP_STORE_SECRET)",
                   c->link.peer);
}

static cddp_status greet(store_client *c, uint64_t deadline_ns, cddp_error *err)
{
    const uint64_t version = CD_KV_VERSION;
    cd_kv_code code;
    CD_TRY(exchange(c,
                    &(cd_kv_request){.verb = CD_KV_HELLO,
                                     .generation = c->generation,
                                     .key = "",
                                     .a = &version,
                                     .a_bytes = sizeof version},
                    deadline_ns, &code, err));
    if (code == CD_KV_CHALLENGE) return CD_PASS(prove(c, deadline_ns, err));
    if (!c->has_secret) return CDDP_OK;
    return cd_fail(err, CDDP_E_IO,
                   "the rendezvous at %s asks for no secret, and this process was given one "
                   "(CDDP_STORE_SECRET): is it the right server?",
                   c->link.peer);
}

/* Connects and greets. A client reconnects after a wait timed out: the late answer may still be on
** the way. */
static cddp_status reach(store_client *c, cddp_error *err)
{
    if (c->is_connected) return CDDP_OK;
    uint64_t deadline = c->link.now_ns(c->link.self) + c->timeout_ns;
    CD_TRY(c->link.connect(c->link.self, deadline, c->bind_host, err));
    const cddp_status status = greet(c, deadline, err);
    if (status == CDDP_OK)
        c->is_connected = true;
    else
        c->link.disconnect(c->link.self);
    return status;
}

static cddp_status ask(store_client *c, cd_kv_request request, const char *key, uint64_t timeout_ns,
                       cd_kv_code *code, cddp_error *err)
{
    char full[CDDP_RENDEZVOUS_KEY_BYTES_MAX + 1];
    int length = snprintf(full, sizeof full, "%s%s", c->prefix, key);
    if (length < 0 || (size_t)length >= sizeof full)
        return cd_fail(err, CDDP_E_LIMIT, "rendezvous key '%s%s' is longer than %u bytes",
                       c->prefix, key, CDDP_RENDEZVOUS_KEY_BYTES_MAX);
    CD_TRY(reach(c, err));
    request.generation = c->generation;
    request.key = full;
    request.key_bytes = (size_t)length;
    cddp_status status =
        exchange(c, &request, c->link.now_ns(c->link.self) + timeout_ns, code, err);
    if (status != CDDP_OK) {
        c->link.disconnect(c->link.self);
        c->is_connected = false;
        if (status == CDDP_E_TIMEOUT)
            return cd_fail(err, status, "rendezvous key '%s' did not appear within %" PRIu64 " ms",
                           full, timeout_ns / 1000000);
        return status;
    }
    if (*code == CD_KV_FULL)
        return cd_fail(err, CDDP_E_LIMIT, "the rendezvous store is full; key '%s' refused", full);
    return CDDP_OK;
}

static cddp_status store_set(void *self, const char *key, const void *value, size_t value_bytes,
                             cddp_error *err)
{
    store_client *c = self;
    cd_kv_code code;
    if (value_bytes > CDDP_RENDEZVOUS_VALUE_BYTES_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "rendezvous key '%s': a value of %zu bytes is too long",
                       key, value_bytes);
    CD_TRY(ask(c, (cd_kv_request){.verb = CD_KV_SET, .a = value, .a_bytes = value_bytes}, key,
               c->timeout_ns, &code, err));
    return CDDP_OK;
}

static cddp_status store_get(void *self, const char *key, uint64_t timeout_ns, void *value,
                             size_t *value_bytes, cddp_error *err)
{
    store_client *c = self;
    cd_kv_code code;
    CD_TRY(ask(c, (cd_kv_request){.verb = CD_KV_WAIT}, key,
               timeout_ns != 0 ? timeout_ns : c->timeout_ns, &code, err));
    if (c->answer_bytes > *value_bytes)
        return cd_fail(err, CDDP_E_LIMIT,
                       "rendezvous key '%s' has %zu bytes; the caller has room for %zu", key,
                       c->answer_bytes, *value_bytes);
    memcpy(value, c->answer, c->answer_bytes);
    *value_bytes = c->answer_bytes;
    return CDDP_OK;
}

static cddp_status store_compare_and_set(void *self, const char *key, const char *expected,
                                         const char *desired, bool *swapped, cddp_error *err)
{
    store_client *c = self;
    char tagged[512] = "1";
    size_t length = 0;
    if (expected != NULL) {
        if (strlen(expected) > sizeof tagged - 2)
            return cd_fail(err, CDDP_E_LIMIT,
                           "rendezvous key '%s': a compared value of %zu bytes is too long", key,
                           strlen(expected));
        memcpy(tagged + 1, expected, strlen(expected));
        length = strlen(expected) + 1;
    }
    cd_kv_code code;
    CD_TRY(ask(c,
               (cd_kv_request){.verb = CD_KV_COMPARE_AND_SET,
                               .a = tagged,
                               .a_bytes = length,
                               .b = desired,
                               .b_bytes = strlen(desired)},
               key, c->timeout_ns, &code, err));
    *swapped = code == CD_KV_OK;
    return CDDP_OK;
}

static cddp_status store_add(void *self, const char *key, int64_t amount, int64_t *sum,
                             cddp_error *err)
{
    store_client *c = self;
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, amount);
    cd_kv_code code;
    CD_TRY(ask(c, (cd_kv_request){.verb = CD_KV_ADD, .a = text, .a_bytes = strlen(text)}, key,
               c->timeout_ns, &code, err));
    if (code == CD_KV_NOT_A_NUMBER || c->answer_bytes >= sizeof text)
        return cd_fail(err, CDDP_E_MISMATCH, "rendezvous key '%s' is not a number", key);
    memcpy(text, c->answer, c->answer_bytes);
    text[c->answer_bytes] = '\0';
    *sum = strtoll(text, NULL, 10);
    return CDDP_OK;
}

static cddp_status store_remove(void *self, const char *key, cddp_error *err)
{
    store_client *c = self;
    cd_kv_code code;
    CD_TRY(ask(c, (cd_kv_request){.verb = CD_KV_REMOVE}, key, c->timeout_ns, &code, err));
    return CDDP_OK;
}

static void store_close(cddp_rendezvous *table)
{
    store_client *c = table->self;
    c->link.disconnect(c->link.self);
    if (c->link.close != NULL) c->link.close(c->link.self);
    cd_release(c->allocator, c, sizeof *c);
}

cddp_status cd_store_client_open(const cddp_rendezvous_options *o, const cd_store_link *link,
                                 cddp_rendezvous **rendezvous, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    store_client *c = cd_allocate_zero(o->allocator, sizeof *c);
    if (c == NULL) {
        if (link->close != NULL) link->close(link->self);
        return cd_fail_memory(err, "a rendezvous client");
    }
    c->allocator = o->allocator;
    c->link = *link;
    c->generation = o->generation;
    c->has_secret = o->secret != NULL;
    if (o->secret != NULL) cd_mac_key(o->secret, c->key);
    c->timeout_ns = o->timeout_ns != 0 ? o->timeout_ns : UINT64_C(30000000000);
    snprintf(c->prefix, sizeof c->prefix, "%s", o->prefix != NULL ? o->prefix : "");
    c->table = (cddp_rendezvous){.size = sizeof c->table,
                                 .self = c,
                                 .set = store_set,
                                 .get = store_get,
                                 .compare_and_set = store_compare_and_set,
                                 .add = store_add,
                                 .remove = store_remove,
                                 .timeout_ns = c->timeout_ns,
                                 .bind_host = c->bind_host};
    CD_TRY_OUT(reach(c, err));
    *rendezvous = &c->table;
    return CDDP_OK;
out:
    store_close(&c->table);
    return status;
}

cddp_status cddp_rendezvous_open(const cddp_rendezvous_options *options,
                                 cddp_rendezvous **rendezvous, cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(options, cddp_rendezvous_options, url, err));
    if (options->url == NULL) return cd_fail(err, CDDP_E_ARG, "a rendezvous needs a URL");
    if (options->prefix != NULL && strlen(options->prefix) > 100)
        return cd_fail(err, CDDP_E_LIMIT, "rendezvous prefix '%s' is longer than 100 bytes",
                       options->prefix);
    if (strncmp(options->url, "tcp://", 6) == 0)
        return CD_PASS(cd_tcp_store_open(options, options->url + 6, rendezvous, err));
    if (strncmp(options->url, "file://", 7) == 0)
        return CD_PASS(cd_file_store_open(options, options->url + 7, rendezvous, err));
    if (strcmp(options->url, "env://") == 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "env:// is not known here: the program that reads the environment resolves "
                       "it; give tcp://host:port");
    return cd_fail(err, CDDP_E_CONFIG,
                   "rendezvous '%s' is unknown; use tcp://host:port, file:///directory or env://",
                   options->url);
}

void cddp_rendezvous_close(cddp_rendezvous *rendezvous)
{
    if (rendezvous == NULL) return;
    if (rendezvous->set == store_set)
        store_close(rendezvous);
    else
        cd_file_store_close(rendezvous);
}
