/* SPDX-License-Identifier: Apache-2.0 */
/* The scenarios that come with the program: those below ./scenarios, or the installed ones. */
#pragma once
#include "cli/scenarios.h"

/* Appends all of them; found is false where there are none. */
cddp_status cd_catalogue_add(cd_file_list *list, bool *found, cddp_error *err) CDDP_MUST_CHECK;
