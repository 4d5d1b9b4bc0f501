/* SPDX-License-Identifier: Apache-2.0 */
/* This project's own process group inside PyTorch: what init_process_group("cddp") gives. */
#include "backends/torch/torch_backend.h"

CD_TORCH_MODULE("torch-cddp", 0, CDDP_DTYPE_BIT(CDDP_BF16));
