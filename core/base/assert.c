/* SPDX-License-Identifier: Apache-2.0 */
/* A failed assertion prints itself and aborts. */
#include "core/base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void cd_assert_fail(const char *expression, const char *file, const char *function, int line)
{
    fprintf(stderr,
            "cddp: bug: assertion `%s` failed in %s (%s:%d)\n"
            "cddp: this is a defect of cddp itself; please report it with the command line and "
            "scenario\n",
            expression, function, file, line);
    fflush(stderr);
    abort();
}
