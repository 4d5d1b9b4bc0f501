/* SPDX-License-Identifier: Apache-2.0 */
/* Do ranks issue the same collectives for any number of ranks? See Note [Numbers of ranks]. */
#pragma once
#include "verify/prove/prove.h"

/* After the proof for the scenario's own number. states: of one rank's search, about; a small one
** is repeated in a large world. What was shown, or why nothing was, is written into the proof; a
** larger world that fails refutes it. */
cddp_status cd_prove_sizes(const cd_prove_options *options, uint64_t states, cd_proof *proof,
                           cddp_error *err) CDDP_MUST_CHECK;
