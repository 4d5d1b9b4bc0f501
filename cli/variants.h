/* SPDX-License-Identifier: Apache-2.0 */
/* expect.same_with: a verified run is repeated under other settings, and must end with the same
** parameters, bit for bit.
**
** Lifetime   init → give sink to the run → judge → fini.
** Errors     memory only. A difference, or a repetition that is not verified, becomes the result of
**            the run.
*/
#pragma once
#include "cli/session.h"
#include "core/trace/sink.h"

/* Parameters of rank 0 at the end of a run. */
typedef struct cd_finals {
    cddp_trace_sink sink; /* give it to the run */
    cd_memory_sink memory;
} cd_finals;

void cd_finals_init(cd_finals *finals);
void cd_finals_fini(cd_finals *finals);

/* In a rank of one of these repetitions: becomes it, without the run itself. */
cddp_status cd_variants_be_rank(const cd_session *session, const cddp_plan *plan, cd_result *result,
                                cddp_error *err) CDDP_MUST_CHECK;
/* Repeats the run of `plan` as its expect.same_with says. finals: of the run itself, whose result
** is `result`. */
cddp_status cd_variants_judge(const cd_session *session, const cddp_plan *plan,
                              const cd_finals *finals, cd_result *result,
                              cddp_error *err) CDDP_MUST_CHECK;
