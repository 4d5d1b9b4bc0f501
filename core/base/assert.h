/* SPDX-License-Identifier: Apache-2.0 */
/* CD_ASSERT finds bugs in cddp itself. It is on in every build, prints the expression and its
** place, then aborts.
**
** The expression must have no side effects. Bad input and failing peers are cddp_status, never
** assertions.
*/
#pragma once
#include "cddp/status.h"

#define CD_ASSERT(expression) \
    ((expression) ? (void)0 : cd_assert_fail(#expression, __FILE__, __func__, __LINE__))

/* Marks a place that no path reaches, such as an enum out of its range. */
#define CD_UNREACHABLE(why) cd_assert_fail(why, __FILE__, __func__, __LINE__)

#if defined(__GNUC__)
__attribute__((noreturn, cold))
#endif
void cd_assert_fail(const char *expression, const char *file, const char *function, int line);
