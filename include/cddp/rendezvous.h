/* SPDX-License-Identifier: Apache-2.0 */
/* Rendezvous: the small key-value store through which the ranks of a real backend find each other.
**
** Three ways to name one, as torchrun users know them:
**     tcp://host:port    a server on rank 0 or another host; clients everywhere
**     file:///directory  a directory that all ranks share; no server
**     env://             resolved by the command line into tcp:// from MASTER_ADDR and MASTER_PORT
** A store has generations: ranks that restarted open generation g+1 and never meet leftovers of g.
**
** Lifetime   open → set/get/… → close, per process and after any fork. A server lives until it is
**            closed.
** Threads    one handle per thread.
** Errors     a wait that ends without an answer names the missing key and the time waited.
*/
#pragma once
#include "cddp/alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_RENDEZVOUS_KEY_BYTES_MAX 256u
#define CDDP_RENDEZVOUS_VALUE_BYTES_MAX 65536u

/* A handle is a table, so that a loadable backend needs no symbol of the program. */
typedef struct cddp_rendezvous {
    uint32_t size; /* sizeof(cddp_rendezvous) known to the writer */
    void *self;
    /* does: stores a value under a key, replacing what was there. */
    cddp_status (*set)(void *self, const char *key, const void *value, size_t value_bytes,
                       cddp_error *err);
    /* does: waits at most timeout_ns for the key and copies its value. *value_bytes: room in,
    ** length out. */
    cddp_status (*get)(void *self, const char *key, uint64_t timeout_ns, void *value,
                       size_t *value_bytes, cddp_error *err);
    /* does: stores desired when the current value equals expected (NULL: when the key is absent).
    ** *swapped is true when it did. */
    cddp_status (*compare_and_set)(void *self, const char *key, const char *expected,
                                   const char *desired, bool *swapped, cddp_error *err);
    /* does: adds to a decimal counter (absent: 0) and returns the sum. */
    cddp_status (*add)(void *self, const char *key, int64_t amount, int64_t *sum, cddp_error *err);
    /* does: forgets a key; absent is fine. */
    cddp_status (*remove)(void *self, const char *key, cddp_error *err);
    uint64_t timeout_ns;   /* what to wait when the caller has no opinion */
    const char *bind_host; /* numeric address of this host's interface that reaches the peers */
} cddp_rendezvous;

typedef struct cddp_rendezvous_options {
    uint32_t size;      /* sizeof(cddp_rendezvous_options) known to the writer */
    const char *url;    /* "tcp://127.0.0.1:29500", "file:///tmp/job-7" */
    const char *prefix; /* put before every key; NULL: none */
    /* tcp: what both sides must know; NULL: none. Each side proves it and neither sends it. */
    const char *secret;
    uint64_t generation;
    uint64_t timeout_ns; /* default wait and time to reach the server; 0: 30 s */
    const cddp_allocator *allocator;
} cddp_rendezvous_options;

CDDP_API cddp_status cddp_rendezvous_open(const cddp_rendezvous_options *options,
                                          cddp_rendezvous **rendezvous,
                                          cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_rendezvous_close(cddp_rendezvous *rendezvous); /* accepts NULL */

typedef struct cddp_rendezvous_server cddp_rendezvous_server;

typedef struct cddp_rendezvous_server_options {
    uint32_t size;
    const char *host; /* numeric address or name; bound to exactly this */
    uint16_t port;    /* 0: any; ask cddp_rendezvous_server_port */
    const char *secret;
    uint32_t clients_max; /* 0: 4096 */
    uint32_t keys_max;    /* 0: 65536 */
    const cddp_allocator *allocator;
    /* does: receives every refused client, with the reason. (optional) */
    void (*dropped)(void *context, const char *peer, const char *reason);
    void *context;
    uint64_t bytes_max; /* of all keys and values; 0: 256 MiB */
    /* A client that has not greeted by then is dropped; 0: 10 s. */
    uint64_t greeting_timeout_ns;
    /* Of one address, clients that have not greeted: the oldest makes room; 0: 64. */
    uint32_t ungreeted_max;
} cddp_rendezvous_server_options;

/* Binds, and serves on its own thread. */
CDDP_API cddp_status cddp_rendezvous_server_open(const cddp_rendezvous_server_options *options,
                                                 cddp_rendezvous_server **server,
                                                 cddp_error *err) CDDP_MUST_CHECK;
CDDP_API uint16_t cddp_rendezvous_server_port(const cddp_rendezvous_server *server);
CDDP_API void cddp_rendezvous_server_close(cddp_rendezvous_server *server); /* accepts NULL */

#ifdef __cplusplus
}
#endif
