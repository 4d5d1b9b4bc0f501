/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between two members over Gloo's unbound buffers, and the texts of their errors. */
#include "backends/gloo/gloo_group.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <stdio.h>

int64_t cd_gloo_milliseconds_left(const cd_gloo_work *work)
{
    uint64_t now = cd_os_now_ns();
    /* Never 0: Gloo reads 0 as "no time-out". */
    return now >= work->deadline_ns ? 1 : (int64_t)((work->deadline_ns - now) / 1000000 + 1);
}

bool cd_gloo_is_aborted(cd_gloo_group *group)
{
    pthread_mutex_lock(&group->lanes.lock);
    bool aborted = group->aborted;
    pthread_mutex_unlock(&group->lanes.lock);
    return aborted;
}

cddp_status cd_gloo_fail(cd_gloo_group *group, cd_gloo_code code, int64_t peer, const char *text,
                         cddp_error *err)
{
    static const cddp_status statuses[] = {[CD_GLOO_OK] = CDDP_OK,
                                           [CD_GLOO_TIMEOUT] = CDDP_E_TIMEOUT,
                                           [CD_GLOO_IO] = CDDP_E_BACKEND,
                                           [CD_GLOO_SHORTAGE] = CDDP_E_NOMEM,
                                           [CD_GLOO_FAILED] = CDDP_E_BACKEND};
    if (cd_gloo_is_aborted(group))
        return cd_fail(err, CDDP_E_ABORTED, "the group was aborted: %s", group->abort_reason);
    /* No peer is named here: the operation that failed first names it. */
    if (code == CD_GLOO_CLOSED)
        return cd_fail(err, CDDP_E_BACKEND,
                       "gloo: an operation failed and the connections were closed: %s", text);
    const uint32_t lost = group->mesh != NULL && peer < 0 && code == CD_GLOO_IO
                              ? cd_mesh_find_lost(group->mesh)
                              : CD_MESH_NOBODY;
    if (lost != CD_MESH_NOBODY)
        return cd_fail(err, CDDP_E_BACKEND, "lost rank %u (gloo: %s)", lost, text);
    if (peer < 0) return cd_fail(err, statuses[code], "gloo: %s", text);
    if (code == CD_GLOO_TIMEOUT)
        return cd_fail(err, CDDP_E_TIMEOUT, "lost rank %u: it did not take part in time (gloo: %s)",
                       group->members[peer], text);
    return cd_fail(err, statuses[code], "lost rank %u (gloo: %s)", group->members[peer], text);
}

/* Gloo names nobody, or a neighbour that waits itself. So ranks tell each other. */
cddp_status cd_gloo_fail_collective(cd_gloo_group *group, cd_gloo_code code, int64_t peer,
                                    const char *text, cddp_error *err)
{
    char names[120];
    const bool may_ask = group->mesh != NULL && !cd_gloo_is_aborted(group);
    bool is_asked = may_ask && code == CD_GLOO_TIMEOUT;
    /* somebody else ran out of time first, and closed its connections */
    if (may_ask && code == CD_GLOO_IO && cd_mesh_find_lost(group->mesh) == CD_MESH_NOBODY)
        is_asked = cd_mesh_is_late(group->mesh);
    const uint32_t silent = is_asked ? cd_mesh_find_silent(group->mesh, names, sizeof names) : 0;
    if (silent > 0) {
        char library[CD_GLOO_TEXT_BYTES + 8];
        snprintf(library, sizeof library, "gloo: %s", text);
        return CD_PASS(cd_call_fail_silent(group->op, names, silent, library, err));
    }
    return CD_PASS(cd_gloo_fail(group, code, peer, text, err));
}

cddp_status cd_gloo_message_begin(cd_gloo_group *group, const cd_gloo_work *work,
                                  cd_gloo_message *message, void *data, size_t bytes, uint32_t slot,
                                  cddp_error *err)
{
    char text[CD_GLOO_TEXT_BYTES];
    cd_gloo_code code = cd_gloo_buffer_create(group->gloo, data, bytes, &message->buffer, text);
    if (code != CD_GLOO_OK)
        return CD_PASS(cd_gloo_fail_collective(group, code, message->peer, text, err));
    /* Native operations use 32-bit tags shifted up by Gloo; the top bit marks ours. */
    uint64_t full = UINT64_C(1) << 63 | work->call.sequence << 24 | slot;
    code = message->sends ? cd_gloo_send(message->buffer, (int)message->peer, full, 0, bytes, text)
                          : cd_gloo_recv(message->buffer, (int)message->peer, full, 0, bytes, text);
    if (code == CD_GLOO_OK) return CDDP_OK;
    cd_gloo_buffer_destroy(message->buffer);
    message->buffer = NULL;
    return CD_PASS(cd_gloo_fail_collective(group, code, message->peer, text, err));
}

static void waiting_set(cd_gloo_group *group, int32_t peer)
{
    pthread_mutex_lock(&group->lanes.lock);
    group->waiting_peer = peer;
    pthread_mutex_unlock(&group->lanes.lock);
}

cddp_status cd_gloo_message_end(cd_gloo_group *group, const cd_gloo_work *work,
                                cd_gloo_message *message, cddp_error *err)
{
    char text[CD_GLOO_TEXT_BYTES];
    int64_t left = cd_gloo_milliseconds_left(work);
    waiting_set(group, (int32_t)message->peer);
    cd_gloo_code code = message->sends ? cd_gloo_wait_send(message->buffer, left, text)
                                       : cd_gloo_wait_recv(message->buffer, left, text);
    waiting_set(group, -1);
    cd_gloo_buffer_destroy(message->buffer);
    message->buffer = NULL;
    if (code != CD_GLOO_OK)
        return CD_PASS(cd_gloo_fail_collective(group, code, message->peer, text, err));
    return CDDP_OK;
}

void cd_gloo_message_drop(cd_gloo_message *message)
{
    cd_gloo_buffer_destroy(message->buffer);
    message->buffer = NULL;
}
