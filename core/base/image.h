/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of memory that is put back again and again, and of which most is zeros.
**
** Zeros are not kept. They are looked at, and written only where the memory has changed: reading is
** cheaper.
**
** Lifetime   take → put_back* → destroy.
** Errors     NULL when there is no memory.
*/
#pragma once
#include "cddp/alloc.h"

typedef struct cd_image cd_image;

/* memory: (bytes), aligned to 8 */
cd_image *cd_image_take(const cddp_allocator *allocator, const void *memory, size_t bytes);
/* memory: (the same bytes) */
void cd_image_put_back(const cd_image *image, void *memory);
void cd_image_destroy(cd_image *image); /* accepts NULL */
