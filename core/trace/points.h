/* SPDX-License-Identifier: Apache-2.0 */
/* Points of the self-test where a tracer knows rank and step: nothing in the library and in the
** programs (core/base/inject.h).
**
**     CD_POINT_TRACED(COUNT, "reducer.divisor", r->tracer, factor);
*/
#pragma once
#include "core/base/inject.h"

#ifdef CDDP_INJECT
/* Somebody writes at a point: nothing that was read before it is true behind it. */
#define CD_POINTS_STRIKE true
#include "core/trace/tracer.h"

#define CD_POINT_TRACED(kind, place, tracer, ...)                                       \
    do {                                                                                \
        if ((tracer) != NULL && (tracer)->rank != NULL)                                 \
            CD_INJECT_##kind(place, (tracer)->rank->rank, (tracer)->step, __VA_ARGS__); \
    } while (0)
#define CD_POINT_TRACED_SKIPS(place, tracer)       \
    ((tracer) != NULL && (tracer)->rank != NULL && \
     CD_INJECT_SKIPS(place, (tracer)->rank->rank, (tracer)->step))
/* The gradients of a bucket, of a cd_reducer. */
#define CD_POINT_WRITTEN(r, bucket)                                                   \
    do {                                                                              \
        for (uint32_t i = 0; i < (bucket)->variable_count; i++) {                     \
            const uint32_t v = (r)->buckets.layout.indices[(bucket)->first_slot + i]; \
            CD_POINT_TRACED(TENSOR, "written.gradient", (r)->tracer, v,               \
                            &cd_wrapped_variable((r)->module, v)->grad->value);       \
        }                                                                             \
    } while (0)
#else
#define CD_POINTS_STRIKE false
#define CD_POINT_TRACED_SKIPS(place, tracer) false
#define CD_POINT_WRITTEN(r, bucket) ((void)0)
#define CD_POINT_TRACED(kind, place, tracer, ...) ((void)0)
#endif
