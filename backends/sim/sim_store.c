/* SPDX-License-Identifier: Apache-2.0 */
/* The agent of a rank: attempts, rounds, and its error when it gives up. sim_store.h has the
** protocol. */
#include "backends/sim/sim_store.h"

#include "backends/rendezvous/client.h"
#include "backends/rendezvous/kv.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/trace/tracer.h"
#include "sim/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOBODY (-1)
#define KEYS_MAX ((size_t)1 << 20)

/* State that a rank keeps between its attempts. */
typedef struct agent {
    cd_kv_client client;   /* the server's side of it */
    uint64_t group, round; /* generation of its key while the meeting has not ended; 0: none */
    bool has_client, is_here;
} agent;

typedef struct service {
    const cd_sim_store *store;
    cd_wire *wire;
    cd_kv kv;
    agent *agents; /* (world_size) */
    uint32_t world_size;
} service;

/* One attempt of one rank for one group. */
typedef struct meeting {
    service *s;
    cddp_rank *rank;
    const cddp_group_spec *spec;
    cddp_tracer *tracer;
    agent *agent;
    uint64_t round;
    uint32_t attempt;
    uint64_t begin_ns, deadline_ns;
    int64_t missing; /* the rank that did not answer this attempt */
    bool is_cut;
    cddp_rendezvous *client;
} meeting;

/* ---- the server ---- */

static bool has_answer(void *self, uint32_t client)
{
    const service *s = self;
    return s->agents[client].client.answer_bytes > s->agents[client].client.answer_sent;
}

static bool feed(void *self, uint32_t client, const void *bytes, size_t byte_count)
{
    service *s = self;
    const char *reason = NULL;
    if (!cd_kv_feed(&s->kv, &s->agents[client].client, bytes, byte_count, &reason)) return false;
    for (uint32_t i = 0; i < s->world_size; i++)
        if (s->agents[i].has_client) (void)cd_kv_resume(&s->kv, &s->agents[i].client);
    return true;
}

static size_t take(void *self, uint32_t client, void *bytes, size_t room)
{
    service *s = self;
    cd_kv_client *c = &s->agents[client].client;
    size_t ready = c->answer_bytes - c->answer_sent, n = ready < room ? ready : room;
    memcpy(bytes, c->answer + c->answer_sent, n);
    c->answer_sent += n;
    return n;
}

static void reset(void *self, uint32_t client)
{
    service *s = self;
    cd_kv_client_reset(&s->agents[client].client);
}

static cddp_status make_service(const cd_sim_store *store, cddp_rank *rank, service **made,
                                cddp_error *err)
{
    const cddp_allocator *a = rank->allocator; /* the world's block */
    service *s = cd_allocate_zero(a, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "the store that ranks meet through");
    *s = (service){.store = store, .world_size = rank->world_size};
    s->agents = cd_allocate_array(a, rank->world_size, sizeof *s->agents);
    if (s->agents == NULL) return cd_fail_memory(err, "the agents of %u ranks", rank->world_size);
    CD_TRY(cd_kv_init(&s->kv, a, KEYS_MAX, NULL, err));
    const cd_wire_options wire = {.ops = {feed, take, has_answer, reset},
                                  .self = s,
                                  .allocator = a};
    CD_TRY(cd_wire_create(store->sim, &wire, &s->wire, err));
    /* leftovers of a failed attempt are freed with the run */
    cd_sim_set_service(store->sim, s);
    *made = s;
    return CDDP_OK;
}

/* ---- the link of a client ---- */

static uint64_t now_of(void *self)
{
    const meeting *m = self;
    return m->rank->ops->now_ns(m->rank);
}

static cddp_status connect_wire(void *self, uint64_t deadline_ns, char local[CD_STORE_LOCAL_BYTES],
                                cddp_error *err)
{
    meeting *m = self;
    snprintf(local, CD_STORE_LOCAL_BYTES, "rank %u", m->rank->rank);
    return CD_PASS(cd_wire_connect(m->s->wire, m->rank, deadline_ns, err));
}

static cddp_status write_wire(void *self, const void *bytes, size_t n, uint64_t deadline_ns,
                              cddp_error *err)
{
    meeting *m = self;
    return CD_PASS(cd_wire_write(m->s->wire, m->rank, bytes, n, deadline_ns, err));
}

static cddp_status read_wire(void *self, void *bytes, size_t n, uint64_t deadline_ns,
                             cddp_error *err)
{
    meeting *m = self;
    return CD_PASS(cd_wire_read(m->s->wire, m->rank, bytes, n, deadline_ns, err));
}

static void disconnect_wire(void *self)
{
    meeting *m = self;
    cd_wire_disconnect(m->s->wire, m->rank);
}

/* ---- asking ---- */

static uint64_t left_ns(meeting *m)
{
    const uint64_t now = now_of(m);
    return m->deadline_ns > now ? m->deadline_ns - now : 1;
}

/* The rank that this attempt waits for is `peer`; NOBODY: the store itself. */
static void report_wait(meeting *m, const char *key, int64_t peer)
{
    m->missing = peer != NOBODY ? peer : (int64_t)m->s->store->host;
    CD_EMIT(m->tracer, store_wait, key, .host = m->s->store->host, .peer = peer,
            .generation = (int64_t)m->round);
}

static cddp_status connect_to(meeting *m, uint64_t generation, cddp_error *err)
{
    const cddp_rendezvous_options options = {.size = sizeof options,
                                             .generation = generation,
                                             .timeout_ns = left_ns(m),
                                             .allocator = m->rank->allocator};
    const cd_store_link link = {m,         "the simulated host", now_of, connect_wire, write_wire,
                                read_wire, disconnect_wire,      NULL};
    report_wait(m, NULL, NOBODY);
    return CD_PASS(cd_store_client_open(&options, &link, &m->client, err));
}

static void disconnect(meeting *m)
{
    cddp_rendezvous_close(m->client);
    m->client = NULL;
}

/* The key of a member, made from its group's name and its position. */
static cddp_status key_of(const meeting *m, uint32_t position,
                          char key[CDDP_RENDEZVOUS_KEY_BYTES_MAX], cddp_error *err)
{
    int n = snprintf(key, CDDP_RENDEZVOUS_KEY_BYTES_MAX, "%s/%u", m->spec->name, position);
    if (n < 0 || n >= (int)CDDP_RENDEZVOUS_KEY_BYTES_MAX)
        return cd_fail(err, CDDP_E_LIMIT,
                       "the name of group '%s' is too long for a key of the store", m->spec->name);
    return CDDP_OK;
}

/* A key as the store has it: owners are found by it. */
static void report_key(meeting *m, const char *key, bool written, const char *value)
{
    char full[CDDP_RENDEZVOUS_KEY_BYTES_MAX + 24];
    snprintf(full, sizeof full, "%" PRIu64 "/%s", m->s->store->generations ? m->round : 0, key);
    CD_EMIT(m->tracer, store_key, full, .generation = (int64_t)m->round, .written = written,
            .value = (int64_t)cd_hash_text(value));
}

/* ---- rounds ---- */

static cddp_status read_state(meeting *m, const char *key, bool *is_full, cddp_error *err)
{
    char text[32] = "";
    size_t bytes = sizeof text - 1;
    CD_TRY(m->client->get(m->client->self, key, left_ns(m), text, &bytes, err));
    text[bytes < sizeof text ? bytes : sizeof text - 1] = '\0';
    const bool is_open = strncmp(text, "open ", 5) == 0;
    *is_full = strncmp(text, "full ", 5) == 0;
    m->round = is_open || *is_full ? strtoull(text + 5, NULL, 10) : 0;
    return m->round > 0 ? CDDP_OK
                        : cd_fail(err, CDDP_E_CORRUPT,
                                  "the store's key '%s' is '%s', which is not a round", key, text);
}

static void print_state(char text[32], const char *word, uint64_t round)
{
    snprintf(text, 32, "%s %" PRIu64, word, round);
}

/* Finds the round to join. *is_over: the round is full and this rank is in it. */
static cddp_status begin_round(meeting *m, const char *key, bool *is_over, cddp_error *err)
{
    bool swapped = false, is_full = false;
    char now[32], next[32];
    CD_TRY(m->client->compare_and_set(m->client->self, key, NULL, "open 1", &swapped, err));
    CD_TRY(read_state(m, key, &is_full, err));
    *is_over =
        is_full && m->agent->group == cd_hash_text(m->spec->name) && m->agent->round == m->round;
    if (!is_full || *is_over) return CDDP_OK;
    print_state(now, "full", m->round); /* of an earlier group of this name */
    print_state(next, "open", m->round + 1);
    CD_TRY(m->client->compare_and_set(m->client->self, key, now, next, &swapped, err));
    return CD_PASS(read_state(m, key, &is_full, err));
}

/* Decides the round: full, or given up. *is_full is the outcome. */
static cddp_status end_round(meeting *m, const char *key, bool sees_all, bool *is_full,
                             cddp_error *err)
{
    const uint64_t round = m->round;
    char now[32], next[32];
    bool swapped = false;
    print_state(now, "open", round);
    print_state(next, sees_all ? "full" : "open", sees_all ? round : round + 1);
    CD_TRY(m->client->compare_and_set(m->client->self, key, now, next, &swapped, err));
    if (swapped) {
        *is_full = sees_all;
        return CDDP_OK;
    }
    CD_TRY(read_state(m, key, is_full, err));
    *is_full = *is_full && m->round == round;
    m->round = round;
    return CDDP_OK;
}

static cddp_status decide(meeting *m, const char *key, bool sees_all, bool *is_full,
                          cddp_error *err)
{
    const int64_t missing = m->missing; /* the attempt's error, whatever settling returns */
    CD_TRY(connect_to(m, 0, err));
    cddp_status status = end_round(m, key, sees_all, is_full, err);
    disconnect(m);
    if (status == CDDP_OK) m->missing = missing;
    return status;
}

/* ---- an attempt ---- */

static cddp_status see_members(meeting *m, cddp_error *err)
{
    char key[CDDP_RENDEZVOUS_KEY_BYTES_MAX], value[64];
    CD_TRY(key_of(m, m->spec->group_rank, key, err));
    snprintf(value, sizeof value, "rank %u in round %" PRIu64, m->rank->rank, m->round);
    CD_TRY(m->client->set(m->client->self, key, value, strlen(value), err));
    report_key(m, key, true, value);
    m->agent->group = cd_hash_text(m->spec->name);
    m->agent->round = m->round;
    cd_sim_pass_join(m->rank, CDDP_FAULT_INSIDE_JOIN);
    for (uint32_t i = 0; i < m->spec->group_size; i++) {
        size_t bytes = sizeof value - 1;
        if (i == m->spec->group_rank) continue;
        CD_TRY(key_of(m, i, key, err));
        report_wait(m, key, m->spec->members[i]);
        CD_TRY(m->client->get(m->client->self, key, left_ns(m), value, &bytes, err));
        value[bytes] = '\0';
        report_key(m, key, false, value);
    }
    m->missing = NOBODY;
    return CDDP_OK;
}

static cddp_status look_for_round(meeting *m, const char *state, bool *is_over, cddp_error *err)
{
    m->round = m->attempt;
    if (!m->s->store->generations) return CDDP_OK;
    CD_TRY(connect_to(m, 0, err));
    cddp_status status = begin_round(m, state, is_over, err);
    disconnect(m);
    return status;
}

static cddp_status attempt(meeting *m, cddp_error *err)
{
    const bool has_rounds = m->s->store->generations;
    char state[CDDP_RENDEZVOUS_KEY_BYTES_MAX];
    bool is_over = false, is_full = false;
    if (snprintf(state, sizeof state, "%s/state", m->spec->name) >= (int)sizeof state)
        return cd_fail(err, CDDP_E_LIMIT,
                       "the name of group '%s' is too long for a key of the store", m->spec->name);
    CD_TRY(look_for_round(m, state, &is_over, err));
    if (is_over) return CDDP_OK;
    cddp_status status = connect_to(m, has_rounds ? m->round : 0, err);
    if (status == CDDP_OK) status = see_members(m, err);
    disconnect(m);
    if (!has_rounds || (status != CDDP_OK && status != CDDP_E_TIMEOUT)) return status;
    cddp_error ignored = CDDP_ERROR_INIT;
    m->deadline_ns = now_of(m) + m->s->store->agents[m->rank->rank].timeout_ns;
    cddp_status decided =
        decide(m, state, status == CDDP_OK, &is_full, status == CDDP_OK ? err : &ignored);
    if (decided == CDDP_OK && is_full) return CDDP_OK;
    if (status != CDDP_OK) return decided == CDDP_E_ABORTED ? decided : status;
    if (decided != CDDP_OK) return decided;
    return cd_fail(err, CDDP_E_TIMEOUT,
                   "round %" PRIu64 " of group '%s' was given up by another rank", m->round,
                   m->spec->name);
}

/* ---- the outcome ---- */

static const char *words_of(cd_wire_state state)
{
    switch (state) {
    case CD_WIRE_ABSENT:
        return "which is not there";
    case CD_WIRE_SILENT:
        return "which is dead or hangs";
    case CD_WIRE_CUT:
        return "which the network does not reach";
    case CD_WIRE_ALIVE:
        break;
    }
    return "which answers";
}

/* The rank to name: the host when the store does not answer, else the owner of the missing
** key. */
static void explain(meeting *m, cddp_status status, cddp_error *err)
{
    const uint32_t host = m->s->store->host;
    const cd_wire_state state = cd_wire_look(m->s->wire, m->rank);
    char why[CDDP_ERROR_MESSAGE_BYTES / 2], words[CDDP_ERROR_MESSAGE_BYTES];
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, err->message);
    if (state != CD_WIRE_ALIVE) m->missing = host;
    m->is_cut = state == CD_WIRE_CUT;
    if (m->missing == NOBODY)
        snprintf(words, sizeof words, "%s", why);
    else if (state != CD_WIRE_ALIVE)
        snprintf(words, sizeof words, "%s; rank %u waits for the store on rank %u, %s", why,
                 m->rank->rank, host, words_of(state));
    else
        snprintf(words, sizeof words,
                 "%s; rank %u waits for rank %" PRId64
                 ", which has not come to the store on rank %u",
                 why, m->rank->rank, m->missing, host);
    if (m->missing != NOBODY)
        CD_EMIT(m->tracer, waiting_for, words, .group = -1, .sequence = -1, .peer = m->missing,
                .op = -1, .who = m->rank->rank);
    (void)cd_fail(err, status, "attempt %u to join group '%s': %s", m->attempt, m->spec->name,
                  words);
}

/* Only a rank that missed the others, or lost the store, may try again. */
static bool may_try_again(cddp_status status)
{
    return status == CDDP_E_TIMEOUT || status == CDDP_E_IO;
}

static void report_end(meeting *m, cddp_status status, bool is_last, const cddp_error *err)
{
    CD_EMIT(m->tracer, store_done, status != CDDP_OK ? err->message : NULL, .status = status,
            .attempt = m->attempt, .is_last = is_last, .generation = (int64_t)m->round,
            .host = m->s->store->host, .peer = may_try_again(status) ? m->missing : NOBODY,
            .is_cut = m->is_cut, .duration = (int64_t)(now_of(m) - m->begin_ns));
}

static cddp_status try_once(meeting *m, bool is_last, cddp_error *err)
{
    const cd_sim_store_agent *a = &m->s->store->agents[m->rank->rank];
    cddp_error why = CDDP_ERROR_INIT;
    m->begin_ns = now_of(m);
    m->deadline_ns = m->begin_ns + a->timeout_ns;
    m->missing = NOBODY;
    m->is_cut = false;
    cd_sim_pass_join(m->rank, CDDP_FAULT_BEFORE_JOIN);
    cddp_status status = attempt(m, &why);
    if (status == CDDP_OK) cd_sim_pass_join(m->rank, CDDP_FAULT_AFTER_JOIN);
    if (may_try_again(status)) explain(m, status, &why);
    report_end(m, status, is_last || !may_try_again(status), &why);
    if (status != CDDP_OK && err != NULL) *err = why;
    return status;
}

static cddp_status meet(meeting *m, cddp_error *err)
{
    const cd_sim_store_agent *a = &m->s->store->agents[m->rank->rank];
    for (m->attempt = 1;; m->attempt++) {
        const bool is_last = m->attempt >= a->attempts;
        cddp_status status = try_once(m, is_last, err);
        if (status == CDDP_OK || is_last || !may_try_again(status)) return status;
        CD_TRY(m->rank->ops->sleep_ns(m->rank, a->backoff_ns, err));
    }
}

/* A rank's first meeting: it may come late; the host begins to serve. */
static cddp_status arrive(service *s, cddp_rank *rank, cddp_error *err)
{
    agent *a = &s->agents[rank->rank];
    if (a->is_here) return CDDP_OK;
    a->is_here = true;
    CD_TRY(cd_kv_client_init(&a->client, rank->allocator, err));
    a->has_client = true;
    const uint64_t late_ns = s->store->agents[rank->rank].late_ns;
    if (late_ns > 0) CD_TRY(rank->ops->sleep_ns(rank, late_ns, err));
    if (rank->rank == s->store->host) cd_wire_listen(s->wire, rank);
    return CDDP_OK;
}

static cddp_status open_traced(const cddp_backend *backend, cddp_rank *rank,
                               const cddp_group_spec *spec, cddp_tracer *tracer, void **group,
                               cddp_error *err)
{
    const cd_sim_store *store = backend->self;
    service *s = rank->world == store->sim ? cd_sim_get_service(store->sim) : NULL;
    if (rank->world != store->sim)
        return CD_PASS(store->inner.open(&store->inner, rank, spec, group, err));
    if (s == NULL) CD_TRY(make_service(store, rank, &s, err));
    CD_TRY(arrive(s, rank, err));
    meeting m = {
        .s = s, .rank = rank, .spec = spec, .tracer = tracer, .agent = &s->agents[rank->rank]};
    CD_TRY(meet(&m, err));
    m.agent->group = m.agent->round = 0;
    return CD_PASS(store->inner.open(&store->inner, rank, spec, group, err));
}

static cddp_status open_unreported(const cddp_backend *backend, cddp_rank *rank,
                                   const cddp_group_spec *spec, void **group, cddp_error *err)
{
    return CD_PASS(open_traced(backend, rank, spec, NULL, group, err));
}

cddp_backend cd_sim_store_backend(cd_sim_store *store)
{
    cddp_backend table = store->inner;
    table.self = store;
    table.open = open_unreported;
    table.open_traced = open_traced;
    return table;
}
