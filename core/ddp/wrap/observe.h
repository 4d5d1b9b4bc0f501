/* SPDX-License-Identifier: Apache-2.0 */
/* Showing buckets to an observer. */
#pragma once
#include "cddp/ddp.h"
#include "core/ddp/parts/observer.h"

/* The observer from now on, borrowed until the wrapper is destroyed; NULL: none. Sparse buckets are
** not shown. */
void cd_ddp_set_observer(cddp_ddp *ddp, const cd_bucket_observer *observer);
/* Continuations run on completion from now on, in the order that it chooses. Borrowed likewise. */
void cd_ddp_set_continuations(cddp_ddp *ddp, const cd_continuation_chooser *chooser);
