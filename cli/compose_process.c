/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as forked processes: their rendezvous, their backend, and the way of their events back to us.
**
** An event travels as its bytes and its text; both ends are the same program on the same machine. A rank sends
** what it has whenever it starts to wait for a communication and at the end of a step, so that of a rank that is
** killed everything up to its last wait is known.
**
** The verifier guards every group (fingerprints before each collective) unless the scenario gives options of its
** own: real libraries crash or mix data when ranks disagree, and it is the disagreement that is to be shown.
*/
#define _POSIX_C_SOURCE 200809L
#include "cli/compose_process.h"

#include "cddp/composition.h"
#include "cddp/process.h"
#include "cddp/rendezvous.h"
#include "core/base/alloc.h"
#include "core/base/error.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIRE_BYTES 16384
#define TIMEOUT_NS UINT64_C(20000000000)   /* of an operation when the scenario names none */
#define DEADLINE_NS UINT64_C(600000000000) /* of the whole run */
#define GRACE_NS UINT64_C(2000000000)
#define LATE_EXIT 70

#define PARTS_MAX 16 /* backends that one composition names */

struct cd_compose_process {
    cd_compose_process_options options;
    cddp_composition *composition; /* of backends without a rendezvous: what it can do, asked here */
    cddp_process_world *world;
    char directory[64]; /* of the rendezvous */
};

/* Lives in the rank's process. */
typedef struct rank_side {
    cddp_trace_sink sink;
    cddp_rank *rank;
    const cd_compose_process *process;
    cddp_rendezvous *rendezvous;
    cddp_backend parts[PARTS_MAX]; /* the modules' tables with this rank's rendezvous */
    size_t part_count;
    cddp_composition *composition;
    cddp_backend guarded; /* what groups are opened with */
    char late[256];       /* what a composition found when nobody could be told; "" */
    size_t used;
    bool failed;
    unsigned char wire[WIRE_BYTES];
} rank_side;

/* ---- events to the launcher ---- */

typedef struct wire_head {
    cddp_event event;
    uint32_t text_bytes; /* 0: none; else with the terminator */
} wire_head;

static cddp_status wire_flush(void *self, cddp_error *err)
{
    rank_side *s = self;
    if (s->used == 0) return CDDP_OK;
    size_t used = s->used;
    s->used = 0;
    CD_TRY(cddp_process_send(s->rank, s->wire, used, err));
    return CDDP_OK;
}

static void wire_event(void *self, const cddp_event *event)
{
    rank_side *s = self;
    wire_head head = {.event = *event, .text_bytes = event->text != NULL ? (uint32_t)strlen(event->text) + 1 : 0};
    if (head.text_bytes > WIRE_BYTES / 2) head.text_bytes = 0;
    head.event.text = NULL;
    if (s->used + sizeof head + head.text_bytes > WIRE_BYTES && wire_flush(s, NULL) != CDDP_OK) s->failed = true;
    if (s->failed) return;
    memcpy(s->wire + s->used, &head, sizeof head);
    if (head.text_bytes > 0) memcpy(s->wire + s->used + sizeof head, event->text, head.text_bytes);
    s->used += sizeof head + head.text_bytes;
    if (event->kind == CDDP_EV_collective_wait && wire_flush(s, NULL) != CDDP_OK) s->failed = true;
}

static void take_message(void *context, uint32_t rank, const void *bytes, size_t byte_count)
{
    const cd_compose_process *p = context;
    const unsigned char *at = bytes, *end = at + byte_count;
    wire_head head;
    while ((size_t)(end - at) >= sizeof head) {
        memcpy(&head, at, sizeof head);
        at += sizeof head;
        if (head.text_bytes > (size_t)(end - at) || head.event.rank != rank) return;
        head.event.text = head.text_bytes > 0 ? (const char *)at : NULL;
        at += head.text_bytes;
        p->options.relay->sink.event(p->options.relay->sink.self, &head.event);
    }
}

/* ---- binding ---- */

static cddp_status open_guarded(const cddp_backend *backend, cddp_rank *rank, const cddp_group_spec *spec, void **group,
                                cddp_error *err)
{
    const rank_side *s = backend->self;
    const cddp_backend *composed = cddp_composition_backend(s->composition);
    cddp_group_spec guarded = *spec;
    bool has_options = guarded.options != NULL && guarded.options[0] != '\0';
    if (!has_options && composed->capabilities.guards) guarded.options = "guard=1";
    if (guarded.timeout_ns == 0) guarded.timeout_ns = TIMEOUT_NS;
    CD_TRY(composed->open(composed, rank, &guarded, group, err));
    return CDDP_OK;
}

static cddp_status find_module(const cd_compose_process *p, const char *name, const cddp_backend **module,
                               cddp_error *err)
{
    const cddp_registry *registry = p->options.registry;
    *module = registry != NULL ? cddp_registry_find_backend(registry, name) : NULL;
    if (*module == NULL)
        return cd_fail(err, CDDP_E_BACKEND, "backend '%s' is not here; `cddp-verify doctor` says why", name);
    return CDDP_OK;
}

/* Here, before there are ranks. */
static cddp_status find_unbound(void *context, const char *name, const cddp_backend **backend, cddp_error *err)
{
    CD_TRY(find_module(context, name, backend, err));
    return CDDP_OK;
}

/* In the rank. */
static cddp_status find_bound(void *context, const char *name, const cddp_backend **backend, cddp_error *err)
{
    rank_side *s = context;
    const cddp_backend *module = NULL;
    if (s->part_count == PARTS_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "a composition names more than %d backends", PARTS_MAX);
    CD_TRY(find_module(s->process, name, &module, err));
    cddp_backend *part = &s->parts[s->part_count++];
    *part = *module;
    if (part->self == NULL) part->self = s->rendezvous; /* a backend with a state of its own keeps it */
    *backend = part;
    return CDDP_OK;
}

static void hear_late(void *context, uint32_t rank, const char *message)
{
    rank_side *s = context;
    (void)rank;
    snprintf(s->late, sizeof s->late, "%s", message);
}

static cddp_status bind_rank(void *context, cddp_rank *rank, cddp_rank_binding *binding, cddp_error *err)
{
    const cd_compose_process *p = context;
    cddp_status status = CDDP_OK;
    char url[80];
    snprintf(url, sizeof url, "file://%s", p->directory);
    rank_side *s = cd_allocate_zero(NULL, sizeof *s);
    if (s == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for rank %u", rank->rank);
    s->rank = rank;
    s->process = p;
    s->sink = (cddp_trace_sink){sizeof s->sink, CDDP_TRACE_ABI, s, wire_event, wire_flush};
    cddp_rendezvous_options meeting = {.size = sizeof meeting, .url = url, .timeout_ns = TIMEOUT_NS};
    cddp_composition_options parts = {.size = sizeof parts,
                                      .spec = p->options.backend,
                                      .find = find_bound,
                                      .late = hear_late,
                                      .context = s,
                                      .node = p->options.node,
                                      .own_process = true};
    CD_TRY_OUT(cddp_rendezvous_open(&meeting, &s->rendezvous, err));
    CD_TRY_OUT(cddp_composition_open(&parts, &s->composition, err));
    s->guarded = *cddp_composition_backend(s->composition);
    s->guarded.self = s;
    s->guarded.open = open_guarded;
    binding->backend = &s->guarded;
    binding->sink = &s->sink;
    binding->self = s;
    return CDDP_OK;
out:
    cddp_rendezvous_close(s->rendezvous);
    cd_release(NULL, s, sizeof *s);
    return status;
}

/* What nobody could be told ends the rank without a result: the launcher says that, with these last words. */
static void leave_late(const rank_side *s)
{
    if (s->late[0] == '\0') return;
    cddp_process_note(s->rank, s->late);
    fprintf(stderr, "%s\n", s->late);
    fflush(stderr);
    _exit(LATE_EXIT);
}

static void unbind_rank(void *context, cddp_rank *rank, cddp_rank_binding *binding)
{
    rank_side *s = binding->self;
    (void)context;
    (void)rank;
    (void)wire_flush(s, NULL); /* a launcher that is gone takes no events */
    leave_late(s);
    cddp_composition_close(s->composition);
    cddp_rendezvous_close(s->rendezvous);
    cd_release(NULL, s, sizeof *s);
}

/* ---- life ---- */

static void directory_remove(const char *path)
{
    DIR *d = opendir(path);
    if (d == NULL) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char file[400];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        unlink(file);
    }
    closedir(d);
    rmdir(path);
}

cddp_status cd_compose_process_open(const cd_compose_process_options *given, cd_compose_process **process,
                                    cddp_error *err)
{
    const cddp_plan *plan = given->plan;
    cddp_status status = CDDP_OK;
    cd_compose_process *p = cd_allocate_zero(NULL, sizeof *p);
    if (p == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for a world of processes");
    p->options = *given;
    const cddp_composition_options parts = {.size = sizeof parts,
                                            .spec = given->backend,
                                            .find = find_unbound,
                                            .context = p,
                                            .node = given->node,
                                            .own_process = true};
    CD_TRY_OUT(cddp_composition_open(&parts, &p->composition, err));
    snprintf(p->directory, sizeof p->directory, "/tmp/cddp-rendezvous-XXXXXX");
    if (mkdtemp(p->directory) == NULL) {
        p->directory[0] = '\0';
        status = cd_fail(err, CDDP_E_IO, "cannot make a directory for the rendezvous: %s", strerror(errno));
        goto out;
    }
    cddp_process_options options = {.size = sizeof options,
                                    .world_size = (uint32_t)plan->world.size,
                                    .deadline_ns = DEADLINE_NS,
                                    .grace_ns = GRACE_NS + plan->world.timeout_ms * 1000000u,
                                    .message = take_message,
                                    .context = p};
    CD_TRY_OUT(cddp_process_world_open(&options, &p->world, err));
    *process = p;
    return CDDP_OK;
out:
    cd_compose_process_close(p);
    return status;
}

const cddp_backend *cd_compose_process_backend(const cd_compose_process *p)
{
    return cddp_composition_backend(p->composition);
}

void cd_compose_process_fill(cd_compose_process *p, cddp_run_options *options)
{
    options->world_ops = cddp_process_world_ops();
    options->world = p->world;
    options->backend = cd_compose_process_backend(p);
    options->bind = bind_rank;
    options->unbind = unbind_rank;
    options->bind_context = p;
}

void cd_compose_process_close(cd_compose_process *p)
{
    if (p == NULL) return;
    cddp_process_world_close(p->world);
    if (p->directory[0] != '\0') directory_remove(p->directory);
    cddp_composition_close(p->composition);
    cd_release(NULL, p, sizeof *p);
}
