/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the CUDA runtime that backends/nccl uses, over host memory, for unit tests of our
** logic.
**
** Streams are lazy queues: nothing runs until the host asks for it (a synchronisation, a query).
** Then only the needed operations run: those of that stream up to that point, and those of other
** streams through its waits for events. So an operation that uses what another stream makes,
** without waiting for that stream's event, runs before it and sees memory that was not written yet.
** Freed memory is painted. The clock of events counts those that were reached: it has an order and
** no time.
**
** Memory of the device can be far (fake_cuda_is_far): the host may not touch it, and ends with
** SIGSEGV when it does. Only operations on a stream may (a kernel, a copy, NCCL). So code that
** takes a device's storage for an address of the host is found without a GPU. Every wait of the
** host costs two changes of protection.
**
** Threads    any; a rank is a process.
*/
#pragma once
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Puts a function and a copy of its argument onto a stream. */
void fake_cuda_push(cudaStream_t stream, void (*run)(void *argument), const void *argument,
                    size_t bytes);
/* The same for an operation that may have to wait: run returns false, and is called again at the
** next try. */
void fake_cuda_push_waiting(cudaStream_t stream, bool (*run)(void *argument), const void *argument,
                            size_t bytes);

typedef struct fake_cuda_counts {
    uint64_t synchronizations; /* the host blocked */
    uint64_t launches, allocations, live_allocations, live_events, live_streams;
} fake_cuda_counts;
extern fake_cuda_counts fake_cuda;
extern int fake_cuda_devices; /* 1 */
/* the n-th allocation, stream or event from now fails; 0: none */
extern uint64_t fake_cuda_fail_malloc_at;
extern bool fake_cuda_is_far; /* memory that is allocated from now on */
/* a question whether an event was reached makes nothing run; only a wait of the host does */
extern bool fake_cuda_is_asleep;
extern bool fake_cuda_fails_on; /* and all behind it, until fail_malloc_at is set again */

#ifdef __cplusplus
}
#endif
