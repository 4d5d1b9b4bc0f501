/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of `explain`: the sections of docs/explain.md, which the program carries with it. */
#pragma once
#include "core/base/text.h"

/* Appends the section "## name"; false: there is none. */
bool cd_page_print(const char *name, cd_text *text);
