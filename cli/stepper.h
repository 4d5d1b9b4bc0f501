/* SPDX-License-Identifier: Apache-2.0 */
/* Walking through the events of a run, forwards and backwards, at a terminal or from a script. */
#pragma once
#include "core/trace/sink.h"

/* Reads commands from standard input until q or its end; `help` lists them. position: where to
** start. */
void cd_stepper_run(const cd_memory_sink *events, size_t position);
