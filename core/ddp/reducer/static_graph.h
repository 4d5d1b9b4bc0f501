/* SPDX-License-Identifier: Apache-2.0 */
/* Static graph: the first synchronised backward only counts, then one delayed reduction; later ones
** replay the counts (STA-01…09). */
#pragma once
#include "core/ddp/reducer/reducer.h"

/* STA-02: refused after the first synchronising forward. *changed says whether it was not static
** before. */
cddp_status cd_static_graph_set(cd_reducer *reducer, cddp_error *err);
/* STA-03: the used map first, then every variable, then every bucket. Finalisation follows. */
cddp_status cd_static_graph_reduce_delayed(cd_reducer *reducer, cddp_error *err);
