/* SPDX-License-Identifier: Apache-2.0 */
/* Tags such as UNU-04 and ZOO-20: what the documents say about them, which the program carries
** along. */
#pragma once
#include <stdbool.h>

typedef struct cd_tag {
    const char *document; /* "docs/semantics.md" */
    char words[1024];     /* the rest of its row, columns separated by "; " */
} cd_tag;

/* False when no document has a row for it. */
bool cd_tag_find(const char *name, cd_tag *tag);
