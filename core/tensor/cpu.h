/* SPDX-License-Identifier: Apache-2.0 */
/* Storage for CPU arithmetic, of the `cpu` device and of the integer tensors of `shape`.
**
** A device's `self`, when not NULL, is the cddp_allocator that its storage comes from (NULL: the
** process heap). So a caller that owns its memory, a simulated world or a test, copies a table and
** sets self:
**     cddp_device mine = cd_device_with_allocator(cddp_device_cpu(), &allocator);
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/device.h"

cddp_device cd_device_with_allocator(const cddp_device *device, const cddp_allocator *allocator);
const cddp_allocator *cd_device_allocator(const cddp_device *device);

/* Storage is 64-byte aligned and filled with 0xff. Until written, every float is NaN and every
** integer all ones, on every machine. So a read before the first write shows, and always in the
** same way. */
void *cd_cpu_storage_create(const cddp_allocator *allocator, size_t bytes);
void cd_cpu_storage_destroy(const cddp_allocator *allocator, void *storage, size_t bytes);
