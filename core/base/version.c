/* SPDX-License-Identifier: Apache-2.0 */
/* The version of the library, from the public header. */
#include "cddp/cddp.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *cddp_version(void)
{
    return TEXT(CDDP_VERSION_MAJOR) "." TEXT(CDDP_VERSION_MINOR) "." TEXT(CDDP_VERSION_PATCH);
}
