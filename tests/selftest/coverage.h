/* SPDX-License-Identifier: Apache-2.0 */
/* What must have a point: every field that the judge takes, every decision and every moment. The
** build asks with `selftest --coverage`, and fails where one has none.
*/
#pragma once
#include "tests/selftest/injection.h"

/* Points besides those of points.def do not count. Prints what has none. */
bool st_coverage_check(const st_point *points, size_t count);
/* Leaves out what one point after another covers, and looks that the rule notices. */
bool st_coverage_plant(void);
