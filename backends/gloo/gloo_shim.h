/* SPDX-License-Identifier: Apache-2.0 */
/* The border between C and Gloo's C++. No C++ type, allocation or exception crosses it. Every call
** blocks the calling thread, which is the queue thread of gloo_backend.c.
**
** Lifetime   open → use → close; buffers go before their context.
** Failure    A connection may still read or write the memory of an abandoned operation. So an
**            operation that fails with messages in flight first closes all connections of the
**            context and wakes the waiting threads. The memory is the caller's again, and every
**            later call reports the first failure.
** Errors     a cd_gloo_code, and the library's text.
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CD_GLOO_TEXT_BYTES 256

typedef enum cd_gloo_code {
    CD_GLOO_OK,
    CD_GLOO_TIMEOUT,
    CD_GLOO_IO,
    CD_GLOO_CLOSED,   /* the connections were closed before; text says why */
    CD_GLOO_SHORTAGE, /* memory, threads or files ran out */
    CD_GLOO_FAILED
} cd_gloo_code;

typedef struct cd_gloo cd_gloo;               /* a context: this process's view of one group */
typedef struct cd_gloo_buffer cd_gloo_buffer; /* registered memory that sends or receives */

typedef struct cd_gloo_open {
    int rank, size;
    /* a numeric address: Gloo dereferences NULL for a name that does not resolve */
    const char *host;
    int64_t timeout_ms;
    bool batch; /* the event loop's thread runs as SCHED_BATCH */
    void *store;
    bool (*store_set)(void *store, const char *key, const void *bytes, size_t byte_count);
    bool (*store_get)(void *store, const char *key, int64_t timeout_ms, void *bytes,
                      size_t *byte_count);
} cd_gloo_open;

typedef struct cd_gloo_call {
    void *data; /* in place */
    size_t element_count, element_bytes;
    int root;
    uint32_t tag;
    int64_t timeout_ms;
    /* out = in1 op in2; out may be in1 or in2 */
    void (*reduce)(void *context, void *out, const void *in1, const void *in2,
                   size_t element_count);
    void *context;
    bool
        *lost; /* (size) out, of an operation that failed with CD_GLOO_IO: whose connection broke */
} cd_gloo_call;

cd_gloo_code cd_gloo_context_open(const cd_gloo_open *options, cd_gloo **gloo, char *text);
void cd_gloo_context_close(cd_gloo *gloo); /* accepts NULL */
/* From any thread: closes all connections and wakes the waiting threads. Blocks for a tick of the
** event loop (10 ms) per peer. */
void cd_gloo_disconnect(cd_gloo *gloo, const char *why);

/* the library's ring */
cd_gloo_code cd_gloo_allreduce(cd_gloo *gloo, const cd_gloo_call *call, char *text);
/* the library's tree */
cd_gloo_code cd_gloo_broadcast(cd_gloo *gloo, const cd_gloo_call *call, char *text);

cd_gloo_code cd_gloo_buffer_create(cd_gloo *gloo, void *data, size_t bytes, cd_gloo_buffer **buffer,
                                   char *text);
/* Accepts NULL. A buffer with a message in flight first closes all connections. */
void cd_gloo_buffer_destroy(cd_gloo_buffer *buffer);
/* For a buffer whose wait failed with CD_GLOO_IO: the connection of its message is closed, so
** nobody touches its memory, and the other connections go on. */
void cd_gloo_buffer_forget(cd_gloo_buffer *buffer);
cd_gloo_code cd_gloo_send(cd_gloo_buffer *buffer, int peer, uint64_t slot, size_t offset,
                          size_t bytes, char *text);
cd_gloo_code cd_gloo_recv(cd_gloo_buffer *buffer, int peer, uint64_t slot, size_t offset,
                          size_t bytes, char *text);
cd_gloo_code cd_gloo_wait_send(cd_gloo_buffer *buffer, int64_t timeout_ms, char *text);
cd_gloo_code cd_gloo_wait_recv(cd_gloo_buffer *buffer, int64_t timeout_ms, char *text);

#ifdef __cplusplus
}
#endif
