/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of patterns among the settings: which parameters and buffers the program asked to be left
** alone, and which to be reduced later. */
#pragma once
#include "core/check/writer.h"

typedef enum cd_listed { CD_NOT_LISTED, CD_LISTED, CD_LIST_UNKNOWN } cd_listed;

/* Whether a pattern in a list of a rank fits a name. Unknown where the rank reported no such
** setting, or not all of it. */
cd_listed cd_lists_find(const cd_writer *writer, uint32_t rank, cddp_key list, const char *name);
