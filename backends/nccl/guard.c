/* SPDX-License-Identifier: Apache-2.0 */
/* The guard: exchanges fingerprints through the group's communicator before each collective.
**
** It blocks the host until every member has reached the same call, so it is for verification and
** off otherwise. Members that use two groups in different orders wait for each other here, as they
** would in NCCL's kernels.
*/
#include "backends/nccl/nccl_group.h"

#include "backends/guard/call_fingerprint.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <string.h>

#define POLL_NS UINT64_C(20000)

/* Polls, so that a missing member causes a time-out. The lock is given up between two looks, so
** that an abort ends this wait too. */
static cddp_status wait_stream(cd_nccl_group *g, const cd_nccl_work *w, cddp_error *err)
{
    g->cuda->host_waits++;
    CD_TRY(cd_cuda_check(cudaEventRecord(w->done, g->stream), "cudaEventRecord", err));
    for (;;) {
        cudaError_t code = cudaEventQuery(w->done);
        if (code != cudaErrorNotReady)
            return CD_PASS(cd_cuda_check(code, "exchanging fingerprints", err));
        (void)cudaGetLastError();
        ncclResult_t state = ncclSuccess;
        (void)ncclCommGetAsyncError(g->comm, &state);
        if (state != ncclSuccess && state != ncclInProgress)
            return CD_PASS(cd_nccl_fail(g, state, "exchanging fingerprints", err));
        if (cd_os_now_ns() >= w->deadline_ns)
            return cd_fail(err, CDDP_E_TIMEOUT,
                           "rank %u, group '%s': not every rank came to %s #%llu in time",
                           g->members[g->rank], g->name, cddp_op_name(w->call.op),
                           (unsigned long long)w->call.sequence);
        pthread_mutex_unlock(&g->lock);
        cd_os_sleep_ns(POLL_NS);
        pthread_mutex_lock(&g->lock);
        if (g->comm_aborted) return cd_fail(err, g->watch.status, "%s", g->watch.reason);
    }
}

cddp_status cd_nccl_guard(cd_nccl_group *g, const cd_nccl_work *w, cddp_error *err)
{
    cd_call_fingerprint mine = cd_call_fingerprint_of(&w->call, g->rank, g->size);
    char *all = g->guard_device, *own = all + g->size * sizeof mine;
    memcpy(g->guard_host, &mine, sizeof mine);
    CD_TRY(cd_cuda_check(cudaMemcpyAsync(own, g->guard_host, sizeof mine, cudaMemcpyHostToDevice,
                                         g->stream),
                         "cudaMemcpyAsync", err));
    ncclResult_t code = ncclAllGather(own, all, sizeof mine, ncclUint8, g->comm, g->stream);
    CD_TRY(cd_nccl_settle_work(g, code, w, err));
    CD_TRY(cd_cuda_check(cudaMemcpyAsync(g->guard_host, all, g->size * sizeof mine,
                                         cudaMemcpyDeviceToHost, g->stream),
                         "cudaMemcpyAsync", err));
    CD_TRY(wait_stream(g, w, err));
    CD_TRY(cd_call_fingerprint_agree(g->guard_host, g->members, g->rank, g->size, err));
    return CDDP_OK;
}
