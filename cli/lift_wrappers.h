/* SPDX-License-Identifier: Apache-2.0 */
/* The scenario of a recorded program with several wrappers: each lifted by itself, and joined. */
#pragma once
#include "cli/sources.h"
#include "core/base/text.h"

/* How many wrapped modules the recording has. */
cddp_status cd_lift_count_wrappers(const cd_source *source, size_t *count,
                                   cddp_error *err) CDDP_MUST_CHECK;
/* Writes the scenario, and into `notes` a line for each thing that it does not express.
** CDDP_E_UNSUPPORTED: no scenario has these wrappers together, and why. */
cddp_status cd_lift_wrappers(const cd_source *source, size_t count, cd_text *toml, cd_text *notes,
                             cddp_error *err) CDDP_MUST_CHECK;
