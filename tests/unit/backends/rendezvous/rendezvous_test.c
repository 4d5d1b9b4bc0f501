/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous: both kinds of store behave alike; the server survives whatever clients send. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/test.h"

#include "backends/rendezvous/client.h"
#include "backends/rendezvous/kv.h"
#include "backends/rendezvous/tcp.h"
#include "cddp/rendezvous.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/prng.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MILLISECOND UINT64_C(1000000)

typedef struct fixture {
    cddp_rendezvous_server *server;
    char directory[64], url[96];
    pthread_mutex_t lock;
    int dropped;
    char reason[128];
} fixture;

static void count_dropped(void *context, const char *peer, const char *reason)
{
    fixture *f = context;
    (void)peer;
    pthread_mutex_lock(&f->lock);
    f->dropped++;
    snprintf(f->reason, sizeof f->reason, "%s", reason);
    pthread_mutex_unlock(&f->lock);
}

static void fixture_init(fixture *f, bool tcp, const char *secret)
{
    *f = (fixture){.directory = "/tmp/cddp-kv-XXXXXX"};
    pthread_mutex_init(&f->lock, NULL);
    cddp_error err = CDDP_ERROR_INIT;
    if (tcp) {
        cddp_rendezvous_server_options o = {.size = sizeof o,
                                            .host = "127.0.0.1",
                                            .secret = secret,
                                            .keys_max = 100,
                                            .dropped = count_dropped,
                                            .context = f};
        assert_ok(cddp_rendezvous_server_open(&o, &f->server, &err), &err);
        snprintf(f->url, sizeof f->url, "tcp://127.0.0.1:%u",
                 (unsigned)cddp_rendezvous_server_port(f->server));
    } else {
        assert_non_null(mkdtemp(f->directory));
        snprintf(f->url, sizeof f->url, "file://%s", f->directory);
    }
}

static void fixture_fini(fixture *f)
{
    if (f->server == NULL) {
        char command[128];
        snprintf(command, sizeof command, "rm -rf %s", f->directory);
        assert_int_equal(system(command), 0);
    }
    cddp_rendezvous_server_close(f->server);
    pthread_mutex_destroy(&f->lock);
}

static cddp_rendezvous *client_of(const fixture *f, const char *secret, uint64_t generation)
{
    cddp_rendezvous *r = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_rendezvous_options o = {.size = sizeof o,
                                 .url = f->url,
                                 .prefix = "job/",
                                 .secret = secret,
                                 .generation = generation,
                                 .timeout_ns = 5000 * MILLISECOND};
    assert_ok(cddp_rendezvous_open(&o, &r, &err), &err);
    return r;
}

static void assert_value(cddp_rendezvous *r, const char *key, const char *value)
{
    char bytes[256];
    size_t n = sizeof bytes;
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(r->get(r->self, key, 1000 * MILLISECOND, bytes, &n, &err), &err);
    assert_int_equal(n, strlen(value));
    assert_memory_equal(bytes, value, n);
}

static void keys_behave(bool tcp)
{
    fixture f;
    fixture_init(&f, tcp, NULL);
    cddp_rendezvous *a = client_of(&f, NULL, 0), *b = client_of(&f, NULL, 0),
                    *later = client_of(&f, NULL, 1);
    cddp_error err = CDDP_ERROR_INIT;
    char bytes[8];
    size_t n = sizeof bytes;
    assert_ok(a->set(a->self, "rank/0 with spaces", "hello", 5, &err), &err);
    assert_value(b, "rank/0 with spaces", "hello");
    assert_ok(b->set(b->self, "rank/0 with spaces", "", 0, &err), &err);
    assert_value(a, "rank/0 with spaces", "");
    assert_fails(later->get(later->self, "rank/0 with spaces", 30 * MILLISECOND, bytes, &n, &err),
                 CDDP_E_TIMEOUT, &err, "job/rank/0 with spaces' did not appear within 30 ms");
    int64_t sum = 0;
    assert_ok(a->add(a->self, "count", 5, &sum, &err), &err);
    assert_ok(b->add(b->self, "count", -7, &sum, &err), &err);
    assert_int_equal(sum, -2);
    assert_ok(a->set(a->self, "word", "twelve", 6, &err), &err);
    assert_fails(a->add(a->self, "word", 1, &sum, &err), CDDP_E_MISMATCH, &err, "is not a number");
    /* not only what stands before the zero byte */
    assert_ok(a->set(a->self, "mixed", "5\0", 2, &err), &err);
    assert_fails(a->add(a->self, "mixed", 1, &sum, &err), CDDP_E_MISMATCH, &err, "is not a number");
    assert_ok(a->set(a->self, "mixed", "", 0, &err), &err);
    assert_fails(a->add(a->self, "mixed", 1, &sum, &err), CDDP_E_MISMATCH, &err, "is not a number");
    bool swapped = false;
    assert_ok(a->compare_and_set(a->self, "leader", NULL, "0", &swapped, &err), &err);
    assert_true(swapped);
    assert_ok(b->compare_and_set(b->self, "leader", NULL, "1", &swapped, &err), &err);
    assert_false(swapped);
    assert_ok(b->compare_and_set(b->self, "leader", "0", "1", &swapped, &err), &err);
    assert_true(swapped);
    assert_value(a, "leader", "1");
    n = 3;
    assert_ok(a->set(a->self, "long", "123456", 6, &err), &err);
    assert_fails(a->get(a->self, "long", 1000 * MILLISECOND, bytes, &n, &err), CDDP_E_LIMIT, &err,
                 "3");
    assert_ok(a->remove(a->self, "leader", &err), &err);
    assert_ok(a->remove(a->self, "leader", &err), &err);
    n = sizeof bytes;
    assert_fails(b->get(b->self, "leader", 20 * MILLISECOND, bytes, &n, &err), CDDP_E_TIMEOUT, &err,
                 "leader");
    /* A client whose wait timed out is as good as new. */
    assert_value(b, "word", "twelve");
    cddp_rendezvous_close(a);
    cddp_rendezvous_close(b);
    cddp_rendezvous_close(later);
    fixture_fini(&f);
}

TEST(rendezvous, keys_behave_over_tcp) { keys_behave(true); }
TEST(rendezvous, keys_behave_in_a_directory) { keys_behave(false); }

static void *set_later(void *argument)
{
    cddp_rendezvous *r = argument;
    cd_os_sleep_ns(60 * MILLISECOND);
    assert_int_equal(r->set(r->self, "late", "now", 3, NULL), CDDP_OK);
    return NULL;
}

TEST(rendezvous, a_wait_ends_when_the_key_comes)
{
    for (int tcp = 0; tcp < 2; tcp++) {
        fixture f;
        fixture_init(&f, tcp, NULL);
        cddp_rendezvous *a = client_of(&f, NULL, 0), *b = client_of(&f, NULL, 0);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, set_later, b), 0);
        assert_value(a, "late", "now");
        pthread_join(thread, NULL);
        cddp_rendezvous_close(a);
        cddp_rendezvous_close(b);
        fixture_fini(&f);
    }
}

TEST(rendezvous, a_client_without_the_secret_is_turned_away_and_reported)
{
    fixture f;
    fixture_init(&f, true, "open sesame");
    cddp_rendezvous *good = client_of(&f, "open sesame", 0), *bad = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_rendezvous_options o = {.size = sizeof o,
                                 .url = f.url,
                                 .secret = "open barley",
                                 .timeout_ns = 1000 * MILLISECOND};
    assert_fails(cddp_rendezvous_open(&o, &bad, &err), CDDP_E_IO, &err, "CDDP_STORE_SECRET");
    assert_ok(good->set(good->self, "k", "v", 1, &err), &err);
    assert_value(good, "k", "v");
    pthread_mutex_lock(&f.lock);
    assert_int_equal(f.dropped, 1);
    assert_non_null(strstr(f.reason, "secret"));
    pthread_mutex_unlock(&f.lock);
    cddp_rendezvous_close(good);
    fixture_fini(&f);
}

TEST(rendezvous, both_sides_prove_the_secret)
{
    static const struct {
        const char *server, *client, *words;
    } cases[] = {{"open sesame", "open barley", "it does not know the secret (CDDP_STORE_SECRET)"},
                 {"open sesame", NULL, "asks for a secret: set CDDP_STORE_SECRET"},
                 {NULL, "open sesame", "asks for no secret, and this process was given one"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture f;
        cddp_error err = CDDP_ERROR_INIT;
        cddp_rendezvous *r = NULL;
        fixture_init(&f, true, cases[i].server);
        const cddp_rendezvous_options o = {.size = sizeof o,
                                           .url = f.url,
                                           .secret = cases[i].client,
                                           .timeout_ns = 1000 * MILLISECOND};
        cd_test_row("%s", cases[i].words);
        assert_int_not_equal(cddp_rendezvous_open(&o, &r, &err), CDDP_OK);
        assert_non_null(strstr(err.message, cases[i].words));
        fixture_fini(&f);
    }
}

static size_t frame_of(cd_kv_verb verb, const void *a, size_t a_bytes, const void *b,
                       unsigned char frame[CD_KV_GREETING_BYTES_MAX])
{
    const cd_kv_request r = {.verb = verb,
                             .key = "",
                             .a = a,
                             .a_bytes = a_bytes,
                             .b = b,
                             .b_bytes = b != NULL ? CD_MAC_BYTES : 0};
    return cd_kv_encode(&r, frame, CD_KV_GREETING_BYTES_MAX);
}

/* Whoever listened to a right greeting has nothing that opens another connection. */
TEST(rendezvous, a_greeting_cannot_be_replayed)
{
    cd_kv kv;
    cd_kv_client first, second;
    cddp_error err = CDDP_ERROR_INIT;
    const uint64_t version = CD_KV_VERSION;
    const char *reason = NULL;
    unsigned char hello[CD_KV_GREETING_BYTES_MAX], shown[CD_KV_GREETING_BYTES_MAX],
        proof[CD_MAC_BYTES], key[CD_MAC_BYTES];
    cd_handshake handshake = {.nonce = {1, 2, 3}};
    cd_mac_key("open sesame", key);
    assert_ok(cd_kv_init(&kv, NULL, 50, "open sesame", &err), &err);
    assert_ok(cd_kv_client_init(&first, NULL, &err), &err);
    assert_ok(cd_kv_client_init(&second, NULL, &err), &err);
    const size_t hello_bytes = frame_of(CD_KV_HELLO, &version, sizeof version, NULL, hello);
    assert_true(cd_kv_feed(&kv, &first, hello, hello_bytes, &reason));
    assert_int_equal(first.answer[4], CD_KV_CHALLENGE);
    memcpy(handshake.challenge, first.answer + 5, CD_NONCE_BYTES);
    first.answer_sent = first.answer_bytes;
    cd_mac_prove(key, &handshake, false, proof);
    const size_t shown_bytes = frame_of(CD_KV_PROVE, handshake.nonce, CD_NONCE_BYTES, proof, shown);
    assert_true(cd_kv_feed(&kv, &first, shown, shown_bytes, &reason));
    assert_true(first.greeted);
    /* the server's own proof is another one: it cannot be sent back */
    cd_mac_prove(key, &handshake, true, proof);
    assert_memory_equal(first.answer + 5, proof, sizeof proof);
    assert_true(cd_kv_feed(&kv, &second, hello, hello_bytes, &reason));
    second.answer_sent = second.answer_bytes;
    assert_false(cd_kv_feed(&kv, &second, shown, shown_bytes, &reason));
    assert_non_null(strstr(reason, "does not know the secret"));
    assert_false(second.greeted);
    cd_kv_client_fini(&first, NULL);
    cd_kv_client_fini(&second, NULL);
    cd_kv_fini(&kv);
}

static void assert_mac(const unsigned char *key, size_t key_bytes, size_t byte_count,
                       const char *expected)
{
    unsigned char bytes[255], mac[CD_MAC_BYTES];
    char text[2 * CD_MAC_BYTES + 1];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)i;
    cd_mac_of(key, key_bytes, bytes, byte_count, mac);
    for (size_t i = 0; i < CD_MAC_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", mac[i]);
    assert_string_equal(text, expected);
}

/* What Python's hashlib.blake2s says of bytes 0, 1, 2, …; with the key 0 … 31, as in the vectors of
** BLAKE2's authors. */
TEST(rendezvous, the_mac_is_blake2s)
{
    unsigned char key[32], mac[CD_MAC_BYTES], other[CD_MAC_BYTES];
    for (size_t i = 0; i < sizeof key; i++) key[i] = (unsigned char)i;
    assert_mac(NULL, 0, 0, "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9");
    assert_mac(key, 32, 0, "48a8997da407876b3d79c0d92325ad3b89cbb754d86ab71aee047ad345fd2c49");
    assert_mac(key, 32, 128, "0c311f38c35a4fb90d651c289d486856cd1413df9b0677f53ece2cd9e477c60a");
    assert_mac(key, 32, 255, "3fb735061abc519dfe979e54c1ee5bfad0a9d858b3315bad34bde999efd724dd");
    cd_mac_of(NULL, 0, "abc", 3, mac);
    assert_int_equal(mac[0], 0x50);
    assert_int_equal(mac[31], 0x82);
    memcpy(other, mac, sizeof other);
    assert_true(cd_mac_equal(mac, other));
    other[31] ^= 1;
    assert_false(cd_mac_equal(mac, other));
}

static cddp_rendezvous_server *small_server(fixture *f)
{
    const cddp_rendezvous_server_options o = {.size = sizeof o,
                                              .host = "127.0.0.1",
                                              .clients_max = 8,
                                              .bytes_max = 1000,
                                              .greeting_timeout_ns = 200 * MILLISECOND,
                                              .ungreeted_max = 4,
                                              .dropped = count_dropped,
                                              .context = f};
    cddp_error err = CDDP_ERROR_INIT;
    *f = (fixture){.directory = ""};
    pthread_mutex_init(&f->lock, NULL);
    assert_ok(cddp_rendezvous_server_open(&o, &f->server, &err), &err);
    snprintf(f->url, sizeof f->url, "tcp://127.0.0.1:%u",
             (unsigned)cddp_rendezvous_server_port(f->server));
    return f->server;
}

/* Twenty connections that say nothing, in a server for eight: whoever greets is served. */
TEST(rendezvous, idle_clients_do_not_block_the_server)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    const uint16_t port = cddp_rendezvous_server_port(small_server(&f));
    int idle[20];
    for (int i = 0; i < 20; i++)
        assert_ok(cd_tcp_connect("127.0.0.1", port, cd_os_now_ns() + 2000 * MILLISECOND, &idle[i],
                                 &err),
                  &err);
    cddp_rendezvous *clients[8];
    for (int i = 0; i < 8; i++) clients[i] = client_of(&f, NULL, 0);
    assert_ok(clients[7]->set(clients[7]->self, "k", "v", 1, &err), &err);
    assert_value(clients[0], "k", "v");
    /* the table is full of clients that greeted: the ninth is refused in words */
    const cddp_rendezvous_options o = {.size = sizeof o,
                                       .url = f.url,
                                       .timeout_ns = 2000 * MILLISECOND};
    cddp_rendezvous *ninth = NULL;
    assert_fails(cddp_rendezvous_open(&o, &ninth, &err), CDDP_E_IO, &err,
                 "refused this process: there are too many clients");
    for (int i = 0; i < 20; i++) close(idle[i]);
    for (int i = 0; i < 8; i++) cddp_rendezvous_close(clients[i]);
    fixture_fini(&f);
}

TEST(rendezvous, who_does_not_greet_in_time_is_dropped_and_learns_why)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    const uint16_t port = cddp_rendezvous_server_port(small_server(&f));
    unsigned char answer[CD_KV_GREETING_BYTES_MAX] = {0};
    const size_t words = strlen("it did not greet in time");
    int fd = -1;
    assert_ok(cd_tcp_connect("127.0.0.1", port, cd_os_now_ns() + 2000 * MILLISECOND, &fd, &err),
              &err);
    assert_ok(cd_tcp_read(fd, answer, 5 + words, cd_os_now_ns() + 5000 * MILLISECOND, &err), &err);
    assert_int_equal(answer[4], CD_KV_REFUSED);
    assert_memory_equal(answer + 5, "it did not greet in time", words);
    close(fd);
    fixture_fini(&f);
}

TEST(rendezvous, the_bytes_of_a_store_are_capped)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    char value[600] = "";
    (void)small_server(&f);
    cddp_rendezvous *a = client_of(&f, NULL, 0);
    assert_ok(a->set(a->self, "one", value, sizeof value, &err), &err);
    assert_fails(a->set(a->self, "two", value, sizeof value, &err), CDDP_E_LIMIT, &err, "full");
    assert_ok(a->set(a->self, "one", value, 10, &err), &err);
    assert_ok(a->set(a->self, "two", value, sizeof value, &err), &err);
    assert_ok(a->remove(a->self, "two", &err), &err);
    assert_ok(a->set(a->self, "three", value, sizeof value, &err), &err);
    cddp_rendezvous_close(a);
    fixture_fini(&f);
}

TEST(rendezvous, a_full_store_says_so)
{
    fixture f;
    fixture_init(&f, true, NULL);
    cddp_rendezvous *a = client_of(&f, NULL, 0);
    cddp_error err = CDDP_ERROR_INIT;
    char key[16];
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_ok(a->set(a->self, key, key, strlen(key), &err), &err);
    }
    assert_fails(a->set(a->self, "one more", "x", 1, &err), CDDP_E_LIMIT, &err, "full");
    for (int i = 0; i < 100; i += 3) {
        snprintf(key, sizeof key, "k%d", i);
        assert_ok(a->remove(a->self, key, &err), &err);
    }
    /* the remaining keys are still found after others were removed */
    for (int i = 1; i < 100; i += 3) {
        snprintf(key, sizeof key, "k%d", i);
        assert_value(a, key, key);
    }
    cddp_rendezvous_close(a);
    fixture_fini(&f);
}

TEST(rendezvous, hostile_bytes_drop_only_their_sender)
{
    fixture f;
    fixture_init(&f, true, NULL);
    cddp_rendezvous *good = client_of(&f, NULL, 0);
    cddp_error err = CDDP_ERROR_INIT;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    uint16_t port = cddp_rendezvous_server_port(f.server);
    for (int i = 0; i < 200; i++) {
        int fd = -1;
        unsigned char bytes[512];
        size_t n = 1 + (size_t)cd_prng_below(&prng, sizeof bytes);
        for (size_t k = 0; k < n; k++) bytes[k] = (unsigned char)cd_prng_next(&prng);
        if (i % 3 == 0) bytes[1] = bytes[2] = bytes[3] = 0; /* plausible lengths get further */
        assert_ok(cd_tcp_connect("127.0.0.1", port, cd_os_now_ns() + 2000 * MILLISECOND, &fd, &err),
                  &err);
        (void)!write(fd, bytes, n);
        close(fd);
    }
    assert_ok(good->set(good->self, "still", "here", 4, &err), &err);
    assert_value(good, "still", "here");
    cddp_rendezvous_close(good);
    fixture_fini(&f);
}

TEST(rendezvous, any_bytes_after_a_greeting_leave_the_table_sound)
{
    cd_kv kv;
    cddp_error err = CDDP_ERROR_INIT;
    cd_prng prng = cd_prng_seed(cd_test_seed() + 1);
    assert_ok(cd_kv_init(&kv, NULL, 50, NULL, &err), &err);
    for (int i = 0; i < 20000; i++) {
        cd_kv_client c;
        const char *reason = NULL;
        assert_ok(cd_kv_client_init(&c, NULL, &err), &err);
        c.greeted = true;
        unsigned char frame[200];
        char key[8];
        snprintf(key, sizeof key, "k%d", (int)cd_prng_below(&prng, 80));
        cd_kv_request r = {.verb = (cd_kv_verb)(1 + cd_prng_below(&prng, CD_KV_VERB_COUNT - 1)),
                           .key = key,
                           .key_bytes = strlen(key),
                           .a = "17",
                           .a_bytes = (size_t)cd_prng_below(&prng, 3),
                           .b = "xyz",
                           .b_bytes = (size_t)cd_prng_below(&prng, 4)};
        size_t n = cd_kv_encode(&r, frame, sizeof frame);
        assert_true(n > 0);
        if (cd_prng_chance(&prng, 1, 3))
            frame[cd_prng_below(&prng, n)] ^= (unsigned char)(1u << cd_prng_below(&prng, 8));
        (void)cd_kv_feed(&kv, &c, frame, n, &reason);
        cd_kv_client_fini(&c, NULL);
        assert_true(kv.count <= 50);
    }
    cd_kv_fini(&kv);
}

/* ---- a peer that lies about lengths ---- */

typedef struct liar {
    const unsigned char *head; /* (5) of its first answer */
    size_t asked;              /* bytes that the client wanted after the head */
} liar;

static uint64_t liar_now_ns(void *self)
{
    (void)self;
    return 0;
}

static cddp_status liar_connect(void *self, uint64_t deadline_ns, char local[CD_STORE_LOCAL_BYTES],
                                cddp_error *err)
{
    (void)self, (void)deadline_ns, (void)err;
    local[0] = '\0';
    return CDDP_OK;
}

static cddp_status liar_write(void *self, const void *bytes, size_t byte_count,
                              uint64_t deadline_ns, cddp_error *err)
{
    (void)self, (void)bytes, (void)byte_count, (void)deadline_ns, (void)err;
    return CDDP_OK;
}

static cddp_status liar_read(void *self, void *bytes, size_t byte_count, uint64_t deadline_ns,
                             cddp_error *err)
{
    liar *l = self;
    (void)deadline_ns, (void)err;
    if (byte_count == 5)
        memcpy(bytes, l->head, 5);
    else
        l->asked += byte_count;
    return CDDP_OK;
}

static void liar_disconnect(void *self) { (void)self; }

TEST(rendezvous, a_server_that_answers_with_an_impossible_length_or_code_is_refused)
{
    static const struct {
        const char *name;
        unsigned char head[5];
    } cases[] = {{"four gigabytes", {0xff, 0xff, 0xff, 0xff, CD_KV_OK}},
                 {"one byte more than any value", {10, 0, 1, 0, CD_KV_OK}},
                 {"not even a code", {0, 0, 0, 0, CD_KV_OK}},
                 {"a code that no server has", {1, 0, 0, 0, CD_KV_REFUSED + 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].name);
        liar l = {.head = cases[i].head};
        const cd_store_link link = {.self = &l,
                                    .peer = "a liar",
                                    .now_ns = liar_now_ns,
                                    .connect = liar_connect,
                                    .write = liar_write,
                                    .read = liar_read,
                                    .disconnect = liar_disconnect};
        const cddp_rendezvous_options o = {.size = sizeof o, .url = "tcp://x:1"};
        cddp_rendezvous *r = NULL;
        cddp_error err = CDDP_ERROR_INIT;
        assert_fails(cd_store_client_open(&o, &link, &r, &err), CDDP_E_CORRUPT, &err,
                     "it is not a cddp store");
        assert_null(r);
        assert_int_equal(l.asked, 0);
    }
}

TEST(rendezvous, a_client_that_announces_four_gigabytes_is_dropped)
{
    cd_kv kv;
    cd_kv_client c;
    const char *reason = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    const unsigned char frame[5] = {0xff, 0xff, 0xff, 0xff, CD_KV_HELLO};
    assert_ok(cd_kv_init(&kv, NULL, 50, NULL, &err), &err);
    assert_ok(cd_kv_client_init(&c, NULL, &err), &err);
    assert_false(cd_kv_feed(&kv, &c, frame, sizeof frame, &reason));
    assert_string_equal(reason, "its request is too long");
    cd_kv_client_fini(&c, NULL);
    cd_kv_fini(&kv);
}

TEST(rendezvous, refuses_what_is_no_url)
{
    static const struct {
        const char *url, *words;
    } cases[] = {
        {"http://x", "is unknown; use tcp"},    {"tcp://localhost", "not tcp://host:port"},
        {"tcp://:5", "not tcp://host:port"},    {"tcp://h:99999", "not tcp://host:port"},
        {"tcp://h:12x", "not tcp://host:port"}, {"file://relative/dir", "absolute"},
        {"env://", "reads the environment"},    {"tcp://no.such.host.invalid:7", "cannot resolve"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].url);
        cddp_rendezvous *r = NULL;
        cddp_error err = CDDP_ERROR_INIT;
        cddp_rendezvous_options o = {.size = sizeof o,
                                     .url = cases[i].url,
                                     .timeout_ns = 100 * MILLISECOND};
        assert_fails(cddp_rendezvous_open(&o, &r, &err), CDDP_E_CONFIG, &err, cases[i].words);
        assert_null(r);
    }
}

TEST(rendezvous, a_server_that_never_comes_is_a_time_out)
{
    cddp_rendezvous *r = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_rendezvous_options o = {.size = sizeof o,
                                 .url = "tcp://127.0.0.1:1",
                                 .timeout_ns = 50 * MILLISECOND};
    assert_fails(cddp_rendezvous_open(&o, &r, &err), CDDP_E_TIMEOUT, &err, "127.0.0.1:1");
}

/* ---- memory runs out ---- */

static cddp_status makes_server(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_rendezvous_server *server = NULL;
    const cddp_rendezvous_server_options o = {.size = sizeof o,
                                              .host = "127.0.0.1",
                                              .keys_max = 100,
                                              .allocator = allocator};
    CD_TRY(cddp_rendezvous_server_open(&o, &server, err));
    cddp_rendezvous_server_close(server);
    return CDDP_OK;
}

static cddp_status makes_client(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    const fixture *f = argument;
    cddp_rendezvous *r = NULL;
    const cddp_rendezvous_options o = {.size = sizeof o,
                                       .url = f->url,
                                       .prefix = "job/",
                                       .timeout_ns = 5000 * MILLISECOND,
                                       .allocator = allocator};
    CD_TRY(cddp_rendezvous_open(&o, &r, err));
    cddp_status status = r->set(r->self, "key", "value", 5, err);
    cddp_rendezvous_close(r);
    return status;
}

/* The server's table, with more keys than it begins with, and one of its clients. */
static cddp_status makes_table(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    cd_kv kv;
    cd_kv_client client;
    CD_TRY(cd_kv_init(&kv, allocator, 100, NULL, err));
    cddp_status status = cd_kv_client_init(&client, allocator, err);
    if (status == CDDP_OK) cd_kv_client_fini(&client, allocator);
    cd_kv_fini(&kv);
    return status;
}

TEST(rendezvous, survives_every_failing_allocation)
{
    assert_true(cd_test_oom_loop(makes_table, NULL) >= 3);
    assert_true(cd_test_oom_loop(makes_server, NULL) >= 4);
    for (int tcp = 0; tcp < 2; tcp++) {
        fixture f;
        cd_test_row("%s", tcp ? "tcp" : "file");
        fixture_init(&f, tcp, NULL);
        assert_true(cd_test_oom_loop(makes_client, &f) >= 1);
        fixture_fini(&f);
    }
}

TEST_MAIN()
