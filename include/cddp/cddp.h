/* SPDX-License-Identifier: Apache-2.0 */
/* Everything public, and the version. */
#pragma once
#include "cddp/alloc.h"
#include "cddp/averager.h"
#include "cddp/backend.h"
#include "cddp/check.h"
#include "cddp/coalesced.h"
#include "cddp/comm.h"
#include "cddp/composition.h"
#include "cddp/ddp.h"
#include "cddp/device.h"
#include "cddp/fsdp.h"
#include "cddp/hook.h"
#include "cddp/plan.h"
#include "cddp/plugin.h"
#include "cddp/process.h"
#include "cddp/registry.h"
#include "cddp/self.h"
#include "cddp/run.h"
#include "cddp/status.h"
#include "cddp/tensor.h"
#include "cddp/trace.h"
#include "cddp/world.h"
#include "cddp/zero.h"

#define CDDP_VERSION_MAJOR 0
#define CDDP_VERSION_MINOR 1
#define CDDP_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0"; static text. */
CDDP_API const char *cddp_version(void);

#ifdef __cplusplus
}
#endif
