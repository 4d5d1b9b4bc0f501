/* SPDX-License-Identifier: Apache-2.0 */
/* Which errors of the system mean that this machine has too little: memory, processes, files,
** space. Such a run says nothing about the program that is judged. */
#pragma once
#include "cddp/status.h"

#include <errno.h>

static inline bool cd_errno_is_shortage(int code)
{
    return code == EMFILE || code == ENFILE || code == ENOMEM || code == ENOBUFS ||
           code == ENOSPC || code == EDQUOT || code == EAGAIN;
}

/* CDDP_E_NOMEM for a shortage. */
static inline cddp_status cd_errno_status(int code, cddp_status otherwise)
{
    return cd_errno_is_shortage(code) ? CDDP_E_NOMEM : otherwise;
}
