/* SPDX-License-Identifier: Apache-2.0 */
/* A legal trace, written by hand: three ranks train five parameters for three steps of two
** micro-steps, correctly.
**
** It emulates what a right reducer emits, so that checks can be shown to stay silent on it and to
** speak when one thing in it is corrupted. Every check is exercised by it: accumulation under
** no_sync, a parameter that nobody uses, one that a single rank does not use, a comm hook with a
** narrower wire, gradient views, buffers, streams, a checkpoint that is loaded again, a fault that
** harms nobody.
*/
#pragma once
#include "core/trace/sink.h"

#define FIXTURE_RANKS 3
#define FIXTURE_STEPS 3
#define FIXTURE_GROUP 71

enum { FC1_WEIGHT, FC1_BIAS, FC2_WEIGHT, FC2_BIAS, HEAD_WEIGHT, FIXTURE_PARAMS };

/* Changes an event on its way into the trace; false leaves it out. */
typedef bool (*fixture_edit_fn)(cddp_event *event);

/* Appends the whole trace, every event through edit (which may be NULL). */
void fixture_write(cd_memory_sink *trace, fixture_edit_fn edit);
