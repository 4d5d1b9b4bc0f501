/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/sized.h"

#include <inttypes.h>
#include <string.h>

static uint32_t size_of(const void *given)
{
    uint32_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

static void set_size(void *own, size_t bytes)
{
    const uint32_t size = (uint32_t)bytes;
    memcpy(own, &size, sizeof size);
}

cddp_status cd_sized_check(const void *given, size_t needed, size_t known, const char *type,
                           cddp_error *err)
{
    if (given == NULL) return cd_fail(err, CDDP_E_ARG, "%s is NULL", type);
    const uint32_t size = size_of(given);
    if (size < needed)
        return cd_fail(err, CDDP_E_ARG,
                       "the size of %s is %" PRIu32 "; set it to sizeof(%s), which is %zu here",
                       type, size, type, known);
    return CDDP_OK;
}

void cd_sized_copy(void *own, size_t own_bytes, const void *given)
{
    const uint32_t size = size_of(given);
    memcpy(own, given, size < own_bytes ? size : own_bytes);
    set_size(own, own_bytes);
}

void cd_sized_fill(void *given, const void *own, size_t own_bytes)
{
    const uint32_t size = size_of(given);
    memcpy(given, own, size < own_bytes ? size : own_bytes);
    set_size(given, size);
}
