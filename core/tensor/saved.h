/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of saved states: of hooks, optimizers and scalers.
**
** Errors     CDDP_E_IO where nothing can be written; CDDP_E_CORRUPT where the end is missing, or a
**            byte is another one.
*/
#pragma once
#include "cddp/hook.h"
#include "core/base/hash.h"

static inline uint64_t cd_seal_add(uint64_t seal, const void *bytes, size_t count)
{
    return cd_hash_mix(seal, count > 0 ? cd_hash64(bytes, count, count) : 0);
}

/* A saved state as it is written, and as it is read: pieces, and behind the last one a digest of
** all of them, so that a state of which a byte was damaged is refused. */
typedef struct cd_state_out {
    const cddp_state_writer *writer;
    const char *who; /* "comm hook topk", for messages */
    uint64_t seal;   /* begins with 0 */
} cd_state_out;
typedef struct cd_state_in {
    const cddp_state_reader *reader;
    const char *who;
    uint64_t seal;
} cd_state_in;
cddp_status cd_state_put(cd_state_out *out, const void *bytes, size_t count,
                         cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_state_put_seal(cd_state_out *out, cddp_error *err) CDDP_MUST_CHECK;
/* The pieces are those that were put. */
cddp_status cd_state_get(cd_state_in *in, void *bytes, size_t count,
                         cddp_error *err) CDDP_MUST_CHECK;
/* Before anything of the state counts. */
cddp_status cd_state_check_seal(cd_state_in *in, cddp_error *err) CDDP_MUST_CHECK;
/* For who reads a piece in parts, and adds it to the seal. */
cddp_status cd_state_fail_early(const cd_state_in *in, cddp_error *err) CDDP_MUST_CHECK;
