/* SPDX-License-Identifier: Apache-2.0 */
/* A hang in one sentence, the cause at its end. */
#pragma once
#include "cddp/run.h"
#include "core/base/text.h"

/* "hang: ranks 0, 1 and 3 wait in allreduce #7 (bucket 0, step 3) for rank 2, which …"; nothing
** when nobody waits. */
void cd_hang_print(const cddp_verdict *verdict, cd_text *text);
/* "in allreduce #7 of group 'rows' (bucket 0, step 3)"; of the whole world without its name. Or
** "at the rendezvous". */
void cd_hang_print_operation(const cddp_wait *wait, cd_text *text);
