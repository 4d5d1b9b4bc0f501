/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's process group over Gloo. It has no reduce-scatter, and sums no bf16. */
#include "backends/torch/torch_backend.h"

CD_TORCH_MODULE("torch-gloo",
                CD_BIT(CDDP_OP_GATHER) | CD_BIT(CDDP_OP_SCATTER) | CD_BIT(CDDP_OP_ALLTOALL) |
                    CD_BIT(CDDP_OP_SEND) | CD_BIT(CDDP_OP_RECV),
                0);
