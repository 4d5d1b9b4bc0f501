/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of an event: nanoseconds per CD_EMIT without a tracer, into an empty sink, a digest,
** memory. */
#include "core/base/os.h"
#include "core/trace/sink.h"
#include "core/trace/tracer.h"

#include <stdio.h>

#define EVENTS 2000000

static void drop(void *self, const cddp_event *event) { *(uint64_t *)self += event->sequence; }

/* A clock as cheap as the simulator's, so that the system's is not what is measured. */
static uint64_t virtual_now(cddp_rank *rank) { return ++*(uint64_t *)rank->world; }
static const cddp_world_ops ops = {.size = sizeof ops,
                                   .abi = CDDP_WORLD_ABI,
                                   .name = "bench",
                                   .now_ns = virtual_now};

static void measure(const char *name, const cddp_trace_sink *sink, int64_t events)
{
    uint64_t now = 0;
    cddp_rank rank = {.ops = &ops, .world = &now, .world_size = 1};
    cddp_tracer *tracer = NULL;
    if (sink != NULL &&
        cddp_tracer_create(&rank, sink, CDDP_TRACE_DIGEST, &tracer, NULL) != CDDP_OK)
        return;
    uint64_t start = cd_os_now_ns();
    for (int64_t i = 0; i < events; i++)
        CD_EMIT(tracer, bucket_launch, NULL, .bucket = i & 7, .numel = i, .digest = i * 3,
                .sequence = i);
    uint64_t took = cd_os_now_ns() - start;
    printf("%-12s %6.1f ns per event\n", name, (double)took / (double)events);
    cddp_tracer_destroy(tracer);
}

int main(void)
{
    uint64_t dropped = 0;
    const cddp_trace_sink empty = {.size = sizeof empty,
                                   .abi = CDDP_TRACE_ABI,
                                   .self = &dropped,
                                   .event = drop};
    cd_digest_sink digest;
    cd_memory_sink memory;
    cd_digest_sink_init(&digest, true);
    cd_memory_sink_init(&memory, NULL);
    measure("no tracer", NULL, EVENTS);
    measure("empty sink", &empty, EVENTS);
    measure("digest", &digest.sink, EVENTS);
    measure("memory", &memory.sink, EVENTS / 10);
    cd_memory_sink_clear(&memory);
    measure("memory again", &memory.sink, EVENTS / 10);
    cd_memory_sink_fini(&memory);
    return 0;
}
