/* SPDX-License-Identifier: Apache-2.0 */
/* Where a test keeps saved state: a piece of memory that is written once and read from its
** beginning.
**
**     tape t = {.used = 0};
**     cddp_state_writer writer = {&t, tape_write};
**     cddp_state_reader reader = {&t, tape_read};
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct tape {
    unsigned char bytes[65536];
    size_t used, read;
    size_t limit; /* writing more fails; 0: when it is full */
} tape;

static inline bool tape_write(void *context, const void *bytes, size_t count)
{
    tape *t = context;
    if (t->used + count > (t->limit != 0 ? t->limit : sizeof t->bytes)) return false;
    memcpy(t->bytes + t->used, bytes, count);
    t->used += count;
    return true;
}

static inline bool tape_read(void *context, void *bytes, size_t count)
{
    tape *t = context;
    if (t->read + count > t->used) return false;
    memcpy(bytes, t->bytes + t->read, count);
    t->read += count;
    return true;
}
