/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of names among the settings: which parameters and buffers the program asked to be left
** alone, and which to be reduced later. */
#pragma once
#include "core/check/table.h"
#include "cddp/check.h"

typedef enum cd_list { CD_LIST_IGNORED, CD_LIST_DELAYED, CD_LIST_COUNT } cd_list;
typedef enum cd_listed { CD_NOT_LISTED, CD_LISTED, CD_LIST_UNKNOWN } cd_listed;

typedef struct cd_lists {
    cd_ranks ranks; /* of the texts that option events gave */
} cd_lists;

void cd_lists_init(cd_lists *lists, const cddp_allocator *allocator);
void cd_lists_fini(cd_lists *lists);
/* from option events; ignores other kinds */
void cd_lists_learn(cd_lists *lists, const cddp_event *event);
/* Whether a rank's list names it. Unknown where the rank told no such setting, or one that was too
** long to be told whole. */
cd_listed cd_lists_find(const cd_lists *lists, uint32_t rank, cd_list which, const char *name);
