/* SPDX-License-Identifier: Apache-2.0 */
/* Events as data: names, printing, digests. All of it comes from cddp/events.def. */
#pragma once
#include "cddp/trace.h"

extern const uint8_t cd_event_field_counts[CDDP_EV_COUNT];

/* -1 when no event has this name. */
int32_t cd_event_find(const char *name);
/* "rank 1 step 2 bucket_launch bucket=0 numel=12 …"; always terminated; returns the length it
** wanted. */
size_t cd_event_print(const cddp_event *event, char *text, size_t text_bytes);
/* Folds an event into a running digest. Times are left out when `timeless`, so that runs under
** different clocks can be compared. */
uint64_t cd_event_digest(uint64_t digest, const cddp_event *event, bool timeless);
/* Both at once, which takes little longer than one of them. */
void cd_event_digest_both(uint64_t *digest, uint64_t *timeless, const cddp_event *event);
