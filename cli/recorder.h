/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the events of a run, up to a limit, so that findings can be shown with those they rest on.
**
** Every run is recorded, and most have no findings. So events are kept as few bytes: an event's
** numbers one after the other, each as the count of its bytes and then these, and a text once.
**
** Lifetime   init → events → read → fini.
** Errors     an event for which there is no memory is the end of the record.
*/
#pragma once
#include "cddp/trace.h"

#define CD_RECORDER_EVENTS_MAX 400000 /* beyond it findings are shown without their events */
#define CD_RECORDER_TEXTS 256         /* of which the place is remembered */

typedef struct cd_recorder {
    cddp_trace_sink sink; /* give it to the run */
    size_t count;
    unsigned char *bytes; /* (byte_count) of the events */
    size_t byte_count, byte_capacity;
    char *texts; /* (text_bytes) each ends with a zero */
    size_t text_bytes, text_capacity;
    struct {
        const char *text; /* where it lay; something else may lie there now */
        size_t place;     /* in texts, and one more */
    } known[CD_RECORDER_TEXTS];
    bool is_full;
} cd_recorder;

void cd_recorder_init(cd_recorder *recorder);
void cd_recorder_fini(cd_recorder *recorder);
/* The event at *place, which begins at 0 and moves on; false behind the last one. Its text is
** borrowed until fini. */
bool cd_recorder_read(const cd_recorder *recorder, size_t *place, cddp_event *event);
