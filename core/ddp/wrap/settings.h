/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapper's options as `option` events, for a recording: it has no plan that says them. */
#pragma once
#include "cddp/ddp.h"

void cd_ddp_settings_emit(const cddp_ddp_options *options, cddp_tracer *tracer);
void cd_join_settings_emit(const cddp_join_options *options, cddp_tracer *tracer);
