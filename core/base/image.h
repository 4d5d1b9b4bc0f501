/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of memory that is put back again and again, and of which most is zeros or is not written.
**
** Memory is looked at in blocks. Blocks of zeros are not kept: they are looked at, and cleared
** where they have changed. Kept ones are compared, and copied where they have changed: reading is
** cheaper than writing what the caches must bring back later. Which ones change every time is
** learnt from the first times. They are copied without a look.
**
** Nothing is left out: a block that changed never before is put back as well.
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
void cd_image_put_back(cd_image *image, void *memory);
void cd_image_destroy(cd_image *image); /* accepts NULL */
