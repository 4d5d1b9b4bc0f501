/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a rendezvous client, in pieces: dropped with a reason, or answered; the table stays within its limits. */
#include "backends/rendezvous/kv.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    cd_kv kv;
    cd_kv_client client;
    const char *reason = NULL;
    if (byte_count < 2 || cd_kv_init(&kv, NULL, 16, NULL, NULL) != CDDP_OK) return 0;
    if (cd_kv_client_init(&client, NULL, NULL) != CDDP_OK) {
        cd_kv_fini(&kv);
        return 0;
    }
    client.greeted = (bytes[0] & 1) != 0;
    size_t piece = 1 + bytes[1];
    for (size_t at = 2; at < byte_count; at += piece) {
        size_t n = byte_count - at < piece ? byte_count - at : piece;
        if (!cd_kv_feed(&kv, &client, bytes + at, n, &reason)) {
            if (reason == NULL) abort();
            break;
        }
        client.answer_sent = client.answer_bytes; /* as if the socket took it */
        (void)cd_kv_resume(&kv, &client);
        if (kv.count > 16 || client.frame_used > CD_KV_FRAME_BYTES_MAX || client.answer_bytes > CD_KV_FRAME_BYTES_MAX) abort();
    }
    cd_kv_client_fini(&client, NULL);
    cd_kv_fini(&kv);
    return 0;
}
