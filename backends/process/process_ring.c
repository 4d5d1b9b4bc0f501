/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of slots, each with the number of its event. The number is cleared before a slot
** is written and set afterwards, so a slot whose writer died in between counts as empty. */
#include "backends/process/process_ring.h"

#include <stdatomic.h>
#include <stdio.h>

typedef struct slot {
    /* 1-based position among all events of the rank; 0: empty, or half written */
    _Atomic uint64_t number;
    cddp_event event; /* its text points nowhere: see below */
    bool has_text;
    char text[CD_PROCESS_RING_TEXT_BYTES];
} slot;

struct cd_process_ring {
    uint64_t count; /* the writer's own */
    slot slots[CD_PROCESS_RING_EVENTS];
};

size_t cd_process_ring_bytes(void) { return sizeof(cd_process_ring); }

void cd_process_ring_push(cd_process_ring *ring, const cddp_event *event)
{
    slot *s = &ring->slots[ring->count % CD_PROCESS_RING_EVENTS];
    atomic_store_explicit(&s->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    s->event = *event;
    s->event.text = NULL;
    s->has_text = event->text != NULL;
    if (s->has_text) snprintf(s->text, sizeof s->text, "%s", event->text);
    atomic_store_explicit(&s->number, ++ring->count, memory_order_release);
}

void cd_process_ring_each(const cd_process_ring *ring, const cddp_trace_sink *sink)
{
    uint64_t newest = 0;
    for (uint32_t i = 0; i < CD_PROCESS_RING_EVENTS; i++) {
        uint64_t number = atomic_load_explicit(&ring->slots[i].number, memory_order_acquire);
        if (number > newest) newest = number;
    }
    uint64_t oldest = newest > CD_PROCESS_RING_EVENTS ? newest - CD_PROCESS_RING_EVENTS + 1 : 1;
    for (uint64_t n = oldest; n <= newest; n++) {
        const slot *s = &ring->slots[(n - 1) % CD_PROCESS_RING_EVENTS];
        if (atomic_load_explicit(&s->number, memory_order_acquire) != n) continue;
        cddp_event event = s->event;
        if (s->has_text) event.text = s->text;
        sink->event(sink->self, &event);
    }
}
