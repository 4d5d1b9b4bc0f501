/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes: how they start, their rendezvous, their backend, and how their events reach
** us.
**
** A transport without a launcher gets forked ranks that meet through files. In a job whose
** processes somebody started (join.c), each process has forked its rank, and the ranks meet in the
** store of that job. A launcher (mpirun) starts this very command again as its ranks: CDDP_HUB in
** the environment says to each that it is a rank and where its judge is. When mpirun started us, we
** are a rank already. Rank 0's process then judges, with a child as the rank, and tells the others
** over the transport where it is.
**
** An event travels as its bytes and its text; all ends are the same program on machines of one
** kind. A rank sends what it has whenever it starts to wait for a communication, and at the end of
** a step. So everything up to the last wait of a killed rank is known.
**
** The verifier guards every group (fingerprints before each collective) unless the scenario sets
** these options. Real libraries crash or mix data when ranks disagree, and the disagreement is to
** be shown instead.
*/
#define _POSIX_C_SOURCE 200809L
#include "verify/worlds/process.h"

#include "cddp/composition.h"
#include "cddp/process.h"
#include "cddp/rendezvous.h"
#include "backends/table/builtin.h"
#include "verify/worlds/origin.h"
#include "verify/worlds/join.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/os_folder.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIRE_BYTES 16384
#define TIMEOUT_NS UINT64_C(20000000000)   /* of an operation when the scenario names none */
#define DEADLINE_NS UINT64_C(600000000000) /* of the whole run */
/* beyond it, for a rank that is stopped: who waits for it speaks first */
#define STOP_MARGIN_NS UINT64_C(250000000)
/* for the others, after the first rank failed: they wait for the same */
#define GRACE_NS UINT64_C(750000000)
#define LATE_EXIT 70

#define PARTS_MAX 16 /* backends that one composition names */

/* What ranks give to sums. Of forked ranks they lie in memory that is taken when it is written, of
** other ranks of one machine in a file, often of a small file system. A rank of a job that somebody
** else started learns its folder with the address of its judge: "ADDRESS#FOLDER". */
#define SHARED_FORKED_BYTES ((size_t)64 << 20)
#define SHARED_FILE_BYTES ((size_t)16 << 20)

#define COMMAND_BYTES 8192
#define COMMAND_WORDS_MAX 512

struct cd_compose_process {
    cd_compose_process_options options;
    /* of backends without a rendezvous: what it can do, asked here */
    cddp_composition *composition;
    /* of the ranks that we judge; NULL when we are one that others judge */
    cddp_process_world *world;
    cddp_member_world *member; /* that one */
    cd_os_folder folder;       /* of the rendezvous; "" where the transport has one, or a job */
    cd_os_folder scratch;      /* of a job that this process starts, or judges on one machine */
    char hub[CDDP_PROCESS_ADDRESS_BYTES]; /* of a rank whose judge is another process */
    cddp_member_options joined;           /* rank 0 of a job that somebody else started */
    void *shared; /* what all ranks see of each other's operands; NULL: they share no memory */
    size_t shared_bytes;
    uint64_t *hook_since_ns; /* (world_size) when its last event came, a call of a hook; else 0 */
    bool cannot_keep;        /* a sink failed when it was flushed, as on a full disk */
    char command[COMMAND_BYTES], program[4096], run[64];
    const char *words[COMMAND_WORDS_MAX + 1]; /* of the command, and of its environment */
    const char *settings[COMMAND_WORDS_MAX + 1];
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
    char late[256];       /* what a composition found when nobody listened; "" */
    size_t used, last;    /* of wire: bytes, and where the last head begins */
    bool failed;
    unsigned char wire[WIRE_BYTES];
} rank_side;

/* ---- events to the launcher ---- */

typedef struct wire_head {
    cddp_event event;
    uint32_t text_bytes; /* 0: none; else with the terminator */
    bool is_flushed;     /* the rank's tracer was flushed behind it: an iteration ended */
} wire_head;

static cddp_status wire_send(rank_side *s, cddp_error *err)
{
    if (s->used == 0) return CDDP_OK;
    size_t used = s->used;
    s->used = 0;
    CD_TRY(cddp_process_send(s->rank, s->wire, used, err));
    return CDDP_OK;
}

/* When nothing was sent since a wait there is no record to mark; the iteration is then stored with
** the next one. */
static cddp_status wire_flush(void *self, cddp_error *err)
{
    rank_side *s = self;
    const bool is_flushed = true;
    if (s->used != 0)
        memcpy(s->wire + s->last + offsetof(wire_head, is_flushed), &is_flushed, sizeof is_flushed);
    CD_TRY(wire_send(s, err));
    return CDDP_OK;
}

static void wire_event(void *self, const cddp_event *event)
{
    rank_side *s = self;
    wire_head head = {.event = *event,
                      .text_bytes = event->text != NULL ? (uint32_t)strlen(event->text) + 1 : 0};
    if (head.text_bytes > WIRE_BYTES / 2) head.text_bytes = 0;
    head.event.text = NULL;
    if (s->used + sizeof head + head.text_bytes > WIRE_BYTES && wire_send(s, NULL) != CDDP_OK)
        s->failed = true;
    if (s->failed) return;
    s->last = s->used;
    memcpy(s->wire + s->used, &head, sizeof head);
    if (head.text_bytes > 0) memcpy(s->wire + s->used + sizeof head, event->text, head.text_bytes);
    s->used += sizeof head + head.text_bytes;
    const bool may_be_last =
        event->kind == CDDP_EV_collective_wait ||
        (event->kind == CDDP_EV_hook_call && s->process->options.stuck_ns != 0);
    if (may_be_last && wire_send(s, NULL) != CDDP_OK) s->failed = true;
}

/* Sinks learn of the end of an iteration as they do from a rank in this process. One that cannot go
** on says so here, which ends the run; cddp_run asks it again, and tells. */
static void flush_sinks(cd_compose_process *p)
{
    const cddp_trace_sink *target = p->options.relay->target;
    if (target != NULL && target->flush != NULL && target->flush(target->self, NULL) != CDDP_OK)
        p->cannot_keep = true;
}

static void take_message(void *context, uint32_t rank, const void *bytes, size_t byte_count)
{
    cd_compose_process *p = context;
    const unsigned char *at = bytes, *end = at + byte_count;
    wire_head head;
    while ((size_t)(end - at) >= sizeof head) {
        memcpy(&head, at, sizeof head);
        at += sizeof head;
        if (head.text_bytes > (size_t)(end - at) || head.event.rank != rank) return;
        head.event.text = head.text_bytes > 0 ? (const char *)at : NULL;
        at += head.text_bytes;
        p->options.relay->sink.event(p->options.relay->sink.self, &head.event);
        if (p->hook_since_ns != NULL)
            p->hook_since_ns[rank] = head.event.kind == CDDP_EV_hook_call ? cd_os_now_ns() : 0;
        if (head.is_flushed) flush_sinks(p);
    }
}

static bool is_stuck(void *context, uint32_t rank)
{
    const cd_compose_process *p = context;
    if (p->options.relay->is_endless) return true;
    return p->hook_since_ns != NULL && p->hook_since_ns[rank] != 0 &&
           cd_os_now_ns() - p->hook_since_ns[rank] > p->options.stuck_ns;
}

/* ---- binding ---- */

const cddp_backend *cd_compose_process_backend(const cd_compose_process *p)
{
    return cddp_composition_backend(p->composition);
}

static cddp_status open_guarded(const cddp_backend *backend, cddp_rank *rank,
                                const cddp_group_spec *spec, void **group, cddp_error *err)
{
    const rank_side *s = backend->self;
    const cddp_backend *composed = cddp_composition_backend(s->composition);
    cddp_group_spec guarded = *spec;
    bool has_options = guarded.options != NULL && guarded.options[0] != '\0';
    if (!has_options && composed->capabilities.guards) guarded.options = "guard=1";
    if (guarded.timeout_ns == 0) guarded.timeout_ns = TIMEOUT_NS;
    char note[128];
    snprintf(note, sizeof note, "connecting group '%.80s'", guarded.name);
    cddp_process_note(rank, note);
    CD_TRY(composed->open(composed, rank, &guarded, group, err));
    snprintf(note, sizeof note, "group '%.80s' is connected", guarded.name);
    cddp_process_note(rank, note);
    return CDDP_OK;
}

static const char *read_variable(const char *variable) { return getenv(variable); }

static bool is_set(const char *variable) { return getenv(variable) != NULL; }

static cddp_status find_module(const cd_compose_process *p, const char *name,
                               const cddp_backend **module, cddp_error *err)
{
    const cddp_registry *registry = p->options.registry;
    const cd_backend_row *alias = cd_backend_row_of_alias(name, is_set);
    *module = registry != NULL
                  ? cddp_registry_find_backend(registry, alias != NULL ? alias->name : name)
                  : NULL;
    if (*module == NULL)
        return cd_fail(err, CDDP_E_BACKEND,
                       "backend '%s' is not here; `cddp-verify doctor` says why", name);
    return CDDP_OK;
}

/* Here, before there are ranks. */
static cddp_status find_unbound(void *context, const char *name, const cddp_backend **backend,
                                cddp_error *err)
{
    CD_TRY(find_module(context, name, backend, err));
    return CDDP_OK;
}

/* In the rank. */
static cddp_status find_bound(void *context, const char *name, const cddp_backend **backend,
                              cddp_error *err)
{
    rank_side *s = context;
    const cddp_backend *module = NULL;
    if (s->part_count == PARTS_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "a composition names more than %d backends", PARTS_MAX);
    CD_TRY(find_module(s->process, name, &module, err));
    cddp_backend *part = &s->parts[s->part_count++];
    *part = *module;
    /* a backend that has a state keeps it */
    if (part->self == NULL) part->self = s->rendezvous;
    *backend = part;
    return CDDP_OK;
}

/* Ranks of a transport with a launcher meet by its own means. */
static bool is_joined(const cd_compose_process *p)
{
    return p->options.origin != NULL && p->options.origin->join != NULL &&
           cd_compose_process_backend(p)->launcher == NULL;
}

static void hear_late(void *context, uint32_t rank, const char *message)
{
    rank_side *s = context;
    (void)rank;
    snprintf(s->late, sizeof s->late, "%s", message);
}

static cddp_status bind_rank(void *context, cddp_rank *rank, cddp_rank_binding *binding,
                             cddp_error *err)
{
    const cd_compose_process *p = context;
    const cd_join *join = p->options.origin != NULL ? p->options.origin->join : NULL;
    cddp_status status = CDDP_OK;
    char url[544], prefix[32];
    rank_side *s = cd_allocate_zero(NULL, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "rank %u", rank->rank);
    s->rank = rank;
    s->process = p;
    cddp_process_note(rank, "starting");
    s->sink = (cddp_trace_sink){sizeof s->sink, CDDP_TRACE_ABI, s, wire_event, wire_flush};
    cddp_rendezvous_options meeting = {.size = sizeof meeting,
                                       .url = url,
                                       .timeout_ns = TIMEOUT_NS};
    cddp_composition_options parts = {.size = sizeof parts,
                                      .spec = p->options.backend,
                                      .find = find_bound,
                                      .late = hear_late,
                                      .context = s,
                                      .node = p->options.node,
                                      .own_process = true};
    snprintf(url, sizeof url, "file://%s", p->folder.path);
    if (is_joined(p)) {
        snprintf(prefix, sizeof prefix, "run/%llu/", (unsigned long long)join->order);
        meeting.url = join->url;
        meeting.secret = join->secret[0] != '\0' ? join->secret : NULL;
        meeting.prefix = prefix;
    }
    if (p->folder.path[0] != '\0' || is_joined(p))
        CD_TRY_OUT(cddp_rendezvous_open(&meeting, &s->rendezvous, err));
    CD_TRY_OUT(cddp_composition_open(&parts, &s->composition, err));
    s->guarded = *cddp_composition_backend(s->composition);
    s->guarded.self = s;
    s->guarded.open = open_guarded;
    binding->shared = p->shared;
    binding->shared_bytes = p->shared_bytes;
    binding->backend = &s->guarded;
    binding->sink = &s->sink;
    binding->self = s;
    return CDDP_OK;
out:
    cddp_rendezvous_close(s->rendezvous);
    cd_release(NULL, s, sizeof *s);
    return status;
}

/* A failure that nobody could hear ends the rank without a result. The launcher reports that, with
** these last words. */
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
    (void)wire_send(s, NULL); /* a launcher that is gone takes no events */
    leave_late(s);
    cddp_composition_close(s->composition);
    cddp_rendezvous_close(s->rendezvous);
    cd_release(NULL, s, sizeof *s);
}

/* ---- what ranks of one machine share ---- */

/* Of the whole job. */
static bool open_scratch(cd_compose_process *p)
{
    return cd_os_folder_open(&p->scratch, "/dev/shm", "cddp-job", NULL) == CDDP_OK;
}

/* Where the job's folder has no room for it, the ranks' judges do without. */
static void open_shared_file(cd_compose_process *p, const char *folder)
{
    char path[sizeof p->scratch.path + 16];
    if (folder == NULL) return;
    snprintf(path, sizeof path, "%s/operands", folder);
    if (cd_os_shared_file_open(path, SHARED_FILE_BYTES, &p->shared, NULL) == CDDP_OK)
        p->shared_bytes = SHARED_FILE_BYTES;
}

/* Behind the address, where it has room. */
static void add_folder(const cd_compose_process *p, char address[CDDP_PROCESS_ADDRESS_BYTES])
{
    const size_t used = strlen(address), more = strlen(p->scratch.path);
    if (more == 0 || used + 1 + more >= CDDP_PROCESS_ADDRESS_BYTES) return;
    address[used] = '#';
    memcpy(address + used + 1, p->scratch.path, more + 1);
}

/* Cuts it off again. */
static void take_folder(cd_compose_process *p, char *address)
{
    char *folder = strchr(address, '#');
    if (folder == NULL) return;
    *folder = '\0';
    open_shared_file(p, folder + 1);
}

/* ---- a job that somebody else started ---- */

/* Hands the address of the judge from rank 0 to all others, by the only means that they share. */
static cddp_status meet(void *context, cddp_rank *rank, char address[CDDP_PROCESS_ADDRESS_BYTES],
                        cddp_error *err)
{
    cd_compose_process *p = context;
    const cddp_backend *b = cd_compose_process_backend(p);
    cddp_status status = CDDP_OK;
    void *group = NULL, *work = NULL;
    int64_t bytes = CDDP_PROCESS_ADDRESS_BYTES;
    uint32_t *members = cd_allocate_array(NULL, rank->world_size, sizeof *members);
    if (members == NULL)
        return cd_fail_memory(err, "the members of a world of %u ranks", rank->world_size);
    for (uint32_t i = 0; i < rank->world_size; i++) members[i] = i;
    cddp_group_spec spec = {.size = sizeof spec,
                            .name = "judge",
                            .group_rank = rank->rank,
                            .group_size = rank->world_size,
                            .members = members,
                            .timeout_ns = TIMEOUT_NS};
    cddp_tensor text = cddp_tensor_of(cddp_device_cpu(), address, 0, CDDP_U8, &bytes, 1);
    cddp_collective broadcast = {.size = sizeof broadcast,
                                 .op = CDDP_OP_BROADCAST,
                                 .input = text,
                                 .output = text};
    add_folder(p, address);
    CD_TRY_OUT(b->open(b, rank, &spec, &group, err));
    CD_TRY_OUT(b->post(group, &broadcast, &work, err));
    status = b->wait(group, work, TIMEOUT_NS, err);
    b->release(group, work);
    if (status == CDDP_OK) take_folder(p, address);
out:
    b->close(group);
    cd_release(NULL, members, rank->world_size * sizeof *members);
    return status;
}

static void leave(void *context)
{
    const cd_compose_process *p = context;
    cd_compose_process_backend(p)->launcher->leave();
}

/* In the process of rank 0: sends the waiting others the address of their judge. */
static cddp_status announce(void *context, cddp_rank *rank,
                            char address[CDDP_PROCESS_ADDRESS_BYTES], cddp_error *err)
{
    cd_compose_process *p = context;
    (void)rank;
    add_folder(p, address);
    CD_TRY(cd_join_announce(p->options.origin->join, p->options.run, address, err));
    take_folder(p, address);
    return CDDP_OK;
}

/* ---- a job that we start ---- */

/* Settings, then the launcher's words; behind them this program and its arguments. */
static cddp_status make_command(cd_compose_process *p, cddp_error *err)
{
    const cd_compose_process_options *o = &p->options;
    size_t setting_count = 0, word_count = 0;
    /* What the launcher's library leaves behind when it is killed goes with this folder. */
    if (open_scratch(p))
        setenv("CDDP_SCRATCH", p->scratch.path, 1);
    else
        unsetenv("CDDP_SCRATCH");
    CD_TRY(cd_compose_process_backend(p)->launcher->command((uint32_t)o->plan->world.size,
                                                            read_variable, p->command,
                                                            sizeof p->command, err));
    ssize_t length = readlink("/proc/self/exe", p->program, sizeof p->program - 1);
    if (length < 0)
        return cd_fail(err, CDDP_E_IO, "cannot find this program to start it again: %s",
                       strerror(errno));
    snprintf(p->run, sizeof p->run, "CDDP_HUB_RUN=%llu", (unsigned long long)o->run);
    p->settings[setting_count++] = p->run;
    for (char *at = p->command; *at != '\0';) {
        char *next = at + strcspn(at, "\n");
        bool is_setting = word_count == 0 && memchr(at, '=', (size_t)(next - at)) != NULL;
        if (setting_count == COMMAND_WORDS_MAX || word_count == COMMAND_WORDS_MAX) break;
        if (is_setting)
            p->settings[setting_count++] = at;
        else
            p->words[word_count++] = at;
        at = next + (*next == '\n');
        *next = '\0';
    }
    for (size_t i = 0; word_count <= COMMAND_WORDS_MAX; i++) {
        if (i > 0 && o->origin->words[i] == NULL) return CDDP_OK;
        if (word_count < COMMAND_WORDS_MAX)
            p->words[word_count] = i == 0 ? p->program : o->origin->words[i];
        word_count++;
    }
    return cd_fail(err, CDDP_E_LIMIT, "a command of more than %d words cannot be started by %s",
                   COMMAND_WORDS_MAX, cd_compose_process_backend(p)->launcher->name);
}

/* ---- life ---- */

static bool interrupted(void *context)
{
    const cd_compose_process *p = context;
    if (p->options.idle != NULL) p->options.idle(p->options.idle_context);
    return p->cannot_keep || (p->options.interrupted != NULL && p->options.interrupted());
}

static cddp_status open_member(cd_compose_process *p, cddp_member_options member, cddp_error *err)
{
    if (p->options.origin->hub != NULL) {
        snprintf(p->hub, sizeof p->hub, "%s", p->options.origin->hub);
        take_folder(p, p->hub);
        member.address = p->hub;
    }
    CD_TRY(cddp_member_world_open(&member, &p->member, err));
    return CDDP_OK;
}

static cddp_status check_size(const cd_compose_process *p, uint32_t started, const char *how,
                              cddp_error *err)
{
    if (started == p->options.plan->world.size) return CDDP_OK;
    return cd_fail(
        err, CDDP_E_CONFIG,
        "the scenario has %llu ranks, but %u were started%s: give both the same number (-n)",
        (unsigned long long)p->options.plan->world.size, started, how);
}

/* The part that the launcher of the transport gives to this process: a rank, the judge beside rank
** 0, or the one that starts it. */
static cddp_status open_launched(cd_compose_process *p, cddp_process_options *options,
                                 cddp_error *err)
{
    const cddp_launcher *launcher = cd_compose_process_backend(p)->launcher;
    const cd_compose_process_options *o = &p->options;
    cddp_member_options *m = &p->joined;
    bool one_host = false;
    if (o->origin == NULL)
        return cd_fail(
            err, CDDP_E_UNSUPPORTED,
            "ranks of backend '%s' are started by %s, and this program cannot be started again",
            cd_compose_process_backend(p)->name, launcher->name);
    *m = (cddp_member_options){.size = sizeof *m,
                               .meet = o->origin->hub == NULL ? meet : NULL,
                               .leave = leave,
                               .context = p,
                               .patience_ns = options->patience_ns,
                               .shelter = o->origin->hub != NULL && launcher->ends_all};
    if (!launcher->identity(read_variable, &m->rank, &m->world_size, &one_host)) {
        if (o->origin->hub != NULL)
            return cd_fail(err, CDDP_E_UNSUPPORTED,
                           "CDDP_HUB is set, but %s did not start this process", launcher->name);
        CD_TRY(cd_join_refuse(read_variable, "start all ranks", err));
        CD_TRY(make_command(p, err));
        options->command = p->words;
        options->environment = p->settings;
        return CDDP_OK;
    }
    CD_TRY(check_size(p, m->world_size, "", err));
    if (o->origin->hub == NULL && o->run > 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "a job of the launcher holds one scenario; without it, cddp-verify starts a "
                       "job for each");
    if (o->origin->hub != NULL) open_shared_file(p, getenv("CDDP_SCRATCH"));
    if (m->rank > 0 || o->origin->hub != NULL) return CD_PASS(open_member(p, *m, err));
    const char *host = getenv("CDDP_HUB_HOST");
    if (host == NULL && !one_host)
        return cd_fail(err, CDDP_E_CONFIG,
                       "the ranks are on several hosts: say in CDDP_HUB_HOST at which name or "
                       "address they reach this one");
    options->hub_host = host != NULL ? host : "127.0.0.1";
    options->member = m;
    if (one_host) (void)open_scratch(p);
    return CDDP_OK;
}

/* One process per rank was started: rank 0's judges, with a child as the rank; the others were
** forked for this run. */
static cddp_status open_joined(cd_compose_process *p, cddp_process_options *options,
                               cddp_error *err)
{
    const cd_origin *o = p->options.origin;
    cddp_member_options *m = &p->joined;
    char how[80];
    *m = (cddp_member_options){.size = sizeof *m,
                               .rank = o->join->rank,
                               .world_size = o->join->world_size,
                               .context = p,
                               .patience_ns = options->patience_ns};
    snprintf(how, sizeof how, " (%s)", o->join->variables);
    CD_TRY(check_size(p, m->world_size, how, err));
    if (o->hub != NULL) return CD_PASS(open_member(p, *m, err));
    o->join->order++;
    m->meet = announce;
    options->hub_host = o->join->host;
    options->member = m;
    options->ends_members = true;
    options->one_host = o->join->one_host;
    if (o->join->one_host) (void)open_scratch(p);
    return CDDP_OK;
}

static cddp_status open_forked(cd_compose_process *p, cddp_error *err)
{
    const char *folder = getenv("TMPDIR");
    if (folder == NULL || folder[0] == '\0') folder = "/tmp";
    cddp_error why = CDDP_ERROR_INIT;
    const cddp_status status = cd_os_folder_open(&p->folder, folder, "cddp-rendezvous", &why);
    if (cd_os_shared_open(SHARED_FORKED_BYTES, &p->shared, NULL) == CDDP_OK)
        p->shared_bytes = SHARED_FORKED_BYTES;
    if (status == CDDP_OK) return CDDP_OK;
    return cd_fail(err, status, "ranks cannot meet in TMPDIR: %s", why.message);
}

cddp_status cd_compose_process_is_forked(const cddp_registry *registry, const char *backend,
                                         bool *is_forked, cddp_error *err)
{
    cd_compose_process p = {.options = {.registry = registry, .backend = backend}};
    const cddp_composition_options parts = {.size = sizeof parts,
                                            .spec = backend,
                                            .find = find_unbound,
                                            .context = &p,
                                            .own_process = true};
    CD_TRY(cddp_composition_open(&parts, &p.composition, err));
    *is_forked = cd_compose_process_backend(&p)->launcher == NULL;
    cddp_composition_close(p.composition);
    return CDDP_OK;
}

cddp_status cd_compose_process_open(const cd_compose_process_options *given,
                                    cd_compose_process **process, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_compose_process *p = cd_allocate_zero(NULL, sizeof *p);
    if (p == NULL) return cd_fail_memory(err, "a world of processes");
    p->options = *given;
    const cddp_composition_options parts = {.size = sizeof parts,
                                            .spec = given->backend,
                                            .find = find_unbound,
                                            .context = p,
                                            .node = given->node,
                                            .own_process = true};
    CD_TRY_OUT(cddp_composition_open(&parts, &p->composition, err));
    const uint64_t timeout_ns = given->plan->world.timeout_ms * 1000000u;
    cddp_process_options world = {.size = sizeof world,
                                  .world_size = (uint32_t)given->plan->world.size,
                                  .deadline_ns = DEADLINE_NS,
                                  .grace_ns = GRACE_NS,
                                  .patience_ns =
                                      (timeout_ns != 0 ? timeout_ns : TIMEOUT_NS) + STOP_MARGIN_NS,
                                  .message = take_message,
                                  .interrupted = interrupted,
                                  .is_stuck = is_stuck,
                                  .context = p};
    if (given->stuck_ns != 0) {
        p->hook_since_ns = cd_allocate_zero(NULL, world.world_size * sizeof *p->hook_since_ns);
        if (p->hook_since_ns == NULL) {
            status = cd_fail_memory(err, "%u ranks", world.world_size);
            goto out;
        }
    }
    bool is_launched = cd_compose_process_backend(p)->launcher != NULL;
    CD_TRY_OUT(is_launched    ? open_launched(p, &world, err)
               : is_joined(p) ? open_joined(p, &world, err)
                              : open_forked(p, err));
    if (p->member == NULL) CD_TRY_OUT(cddp_process_world_open(&world, &p->world, err));
    *process = p;
    return CDDP_OK;
out:
    cd_compose_process_close(p);
    return status;
}

bool cd_compose_process_is_member(const cd_compose_process *process)
{
    return process->member != NULL;
}

bool cd_compose_process_was_interrupted(const cd_compose_process *process)
{
    return process->world != NULL && cddp_process_world_was_interrupted(process->world);
}

void cd_compose_process_fill(cd_compose_process *p, cddp_run_options *options)
{
    options->world_ops = p->member != NULL ? cddp_member_world_ops() : cddp_process_world_ops();
    options->world = p->member != NULL ? (void *)p->member : (void *)p->world;
    options->backend = cd_compose_process_backend(p);
    options->bind = bind_rank;
    options->unbind = unbind_rank;
    options->bind_context = p;
}

void cd_compose_process_close(cd_compose_process *p)
{
    if (p == NULL) return;
    cddp_process_world_close(p->world);
    cddp_member_world_close(p->member);
    cd_os_shared_close(p->shared, p->shared_bytes);
    cd_os_folder_close(&p->folder);
    cd_os_folder_close(&p->scratch);
    cddp_composition_close(p->composition);
    cd_release(NULL, p->hook_since_ns,
               (size_t)p->options.plan->world.size * sizeof *p->hook_since_ns);
    cd_release(NULL, p, sizeof *p);
}
