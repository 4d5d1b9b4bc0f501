/* SPDX-License-Identifier: Apache-2.0 */
/* What the registries say of one name, for `explain`. */
#pragma once
#include "core/base/text.h"

/* Appends the row of an optimizer, fault, mark, chooser, algorithm, link, model, backend or
** composition. False: nothing has that name. */
bool cd_list_explain(cd_text *text, const char *name);
