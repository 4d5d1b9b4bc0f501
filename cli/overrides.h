/* SPDX-License-Identifier: Apache-2.0 */
/* The changes that the command line makes to every scenario: --set, --world-size, --seed,
** --backend, as keys and values.
**
** The same list is stored with a run as text, one "key=value" per line, so that a stored trace can
** be judged with the plan that produced it.
*/
#pragma once
#include "cddp/plan.h"
#include "cli/args.h"
#include "core/base/text.h"

/* Checks the shape of every change and writes the lines. */
cddp_status cd_overrides_read(const cd_args *args, cd_text *lines, cddp_error *err) CDDP_MUST_CHECK;
/* Applies every change that can be, and appends the mistakes of the others to complaints. Fails
** only without memory. */
cddp_status cd_overrides_apply(const char *lines, cddp_plan *plan, cd_text *complaints,
                               cddp_error *err) CDDP_MUST_CHECK;
/* Appends a mistake of the value that the changes give to a key. */
void cd_overrides_complain(const char *lines, const char *key, const char *message,
                           cd_text *complaints);
/* The i-th --plugin of a cd_args, for cd_command_line; NULL behind the last. */
const char *cd_overrides_plugin(const void *args, size_t index);
