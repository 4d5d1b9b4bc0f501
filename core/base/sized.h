/* SPDX-License-Identifier: Apache-2.0 */
/* Public structs that begin with `uint32_t size`, the bytes that their writer knows. Whoever takes
** one asks for it and for its size before any other field.
**
** Ownership  borrows for the call.
** Errors     CDDP_E_ARG, with the name of the struct.
*/
#pragma once
#include "core/base/error.h"

#include <stddef.h>

/* It is there, and its writer knew the field `last` and all before it:
** `CD_TRY(CD_SIZED_CHECK(options, cddp_group_options, spec, err));` */
#define CD_SIZED_CHECK(given, type, last, err)                                                 \
    cd_sized_check((given), offsetof(type, last) + sizeof((given)->last), sizeof(type), #type, \
                   (err))
cddp_status cd_sized_check(const void *given, size_t needed, size_t known, const char *type,
                           cddp_error *err);
/* Copies what both sides know over *own, which holds the defaults; its size becomes own_bytes. */
void cd_sized_copy(void *own, size_t own_bytes, const void *given);
/* The other way round: fills a result of whatever size its reader knows, and leaves that size. */
void cd_sized_fill(void *given, const void *own, size_t own_bytes);
