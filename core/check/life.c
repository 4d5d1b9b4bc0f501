/* SPDX-License-Identifier: Apache-2.0 */
/* I-LIFE: nothing is used after its release: groups, works, memory regions.
**
** Judged from   group_close (works still outstanding), group_abort, collective_post/wait/done after
**               a close, more completions than posts, or fewer: works released without a
**               wait; memory and touch per region; store_key and store_wait after the store's
**               host had returned.
** Exercised     a group that had posted something was closed, or a region that was touched was
**               released.
** Blame         the rank that closed or released too early.
** Limits        outstanding works at a close are allowed on a rank that ended with an error or
**               aborted the group, and works that nobody waited for also where something failed
**               before or a backward was left. The store's host is the one that store_wait names,
**               or else rank 0; a host that was killed is I-LIVE's, and so is a rank that comes
**               when the host has ended. Only later events in time are compared with its end.
*/
#include "core/check/writer.h"

#include "core/trace/tracer.h"

#include <string.h>

/* operations of a member from the first on that has not ended; of more it is only known how many */
#define FOLLOWED_MAX 4096

typedef struct posted {
    int64_t sequence; /* + 1; 0: it ended */
    uint64_t event;
    uint32_t step, micro_step;
    bool is_given_up; /* by right: its backward was left */
} posted;

typedef struct member {
    int64_t posted, ended, given_up, outstanding;
    /* the sequence of the first operation after all before had ended: they are numbered from
    ** there */
    uint64_t first;
    uint64_t close_sequence;
    uint32_t close_step;
    bool is_closed, is_aborted, reported;
} member;

typedef struct region {
    int64_t touches;
    uint64_t release_sequence;
    bool is_released, reported;
} region;

/* When a rank first and last used the store, and when it ended. */
typedef struct client {
    uint64_t first_ns, use_ns, use_sequence, end_ns, end_sequence;
    uint32_t step;
    bool has_used, has_returned;
    char key[64];
} client;

/* How a rank went: works that were in flight when something failed, or that belong to a backward
** that was left, are given back by right. */
typedef struct rank_end {
    bool is_good, has_failed, is_reducing;
    uint32_t step, micro_step; /* of the last bucket that was launched */
} rank_end;

typedef struct state {
    cd_writer writer;
    cd_table members;          /* (group, rank) → member */
    cd_table posts;            /* (group, rank, number) → posted */
    cd_table regions;          /* (rank, region) → region */
    cd_ranks ends;             /* of rank_end */
    cd_ranks clients;          /* of client */
    uint64_t closed, released; /* after use */
    int64_t host;              /* of the store */
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-LIFE", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->members, context->allocator, sizeof(member));
    cd_table_init(&s->posts, context->allocator, sizeof(posted));
    cd_table_init(&s->regions, context->allocator, sizeof(region));
    cd_ranks_init(&s->ends, context->allocator, sizeof(rank_end));
    cd_ranks_init(&s->clients, context->allocator, sizeof(client));
    return CDDP_OK;
}

static void report_closed(state *s, const cddp_event *e, member *m, int64_t group)
{
    if (m->reported) return;
    m->reported = true;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_add_event(&f, e->rank, m->close_sequence);
    CD_SAY(f.title, CDDP_FINDING_WHO ": group '%s' is used after it was closed",
           cd_writer_get_group(&s->writer, group));
    CD_SAY(f.expected, "no operation after the close");
    CD_SAY(f.actual, "%s", cddp_event_describe(e->kind)->name);
    cd_writer_report(&s->writer, &f);
}

static void take_post(state *s, const cddp_event *e, member *m)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    if (m->posted++ == m->ended + m->given_up) m->first = (uint64_t)c->sequence;
    const uint64_t number = (uint64_t)c->sequence - m->first;
    posted *p = number < FOLLOWED_MAX
                    ? cd_table_add(&s->posts, CD_KEY(c->group, e->rank, (int64_t)number))
                    : NULL;
    if (p != NULL) *p = (posted){c->sequence + 1, e->sequence, e->step, e->micro_step, false};
}

static void take_done(state *s, const cddp_event *e, member *m)
{
    const cddp_event_collective_done *c = &e->as.collective_done;
    posted *p = cd_table_find(&s->posts, CD_KEY(c->group, e->rank,
                                                (int64_t)((uint64_t)c->sequence - m->first)));
    if (p == NULL || p->sequence != c->sequence + 1) return;
    m->given_up -= p->is_given_up;
    *p = (posted){.sequence = 0};
}

static void take_collective(state *s, const cddp_event *e, int64_t group)
{
    member *m = cd_table_add(&s->members, CD_KEY(group, e->rank));
    if (m == NULL) return;
    if (m->is_closed) report_closed(s, e, m, group);
    if (e->kind == CDDP_EV_collective_post) take_post(s, e, m);
    if (e->kind != CDDP_EV_collective_done) return;
    take_done(s, e, m);
    if (++m->ended <= m->posted || m->reported) return;
    m->reported = true;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": a work of group '%s' ends twice",
           cd_writer_get_group(&s->writer, group));
    CD_SAY(f.expected, "%lld operations posted", (long long)m->posted);
    CD_SAY(f.actual, "%lld ended", (long long)m->ended);
    cd_writer_report(&s->writer, &f);
}

static void take_close(state *s, const cddp_event *e)
{
    member *m = cd_table_add(&s->members, CD_KEY(e->as.group_close.group, e->rank));
    if (m == NULL) return;
    m->is_closed = true;
    m->outstanding = e->as.group_close.outstanding;
    m->close_sequence = e->sequence;
    m->close_step = e->step;
    if (m->posted > 0) s->closed++;
}

static void take_memory(state *s, const cddp_event *e)
{
    region *r = cd_table_add(&s->regions, CD_KEY(e->rank, e->as.memory.region));
    if (r == NULL) return;
    if (e->as.memory.released && r->touches > 0) s->released++;
    if (!e->as.memory.released) r->touches = 0;
    r->is_released = e->as.memory.released;
    r->release_sequence = e->sequence;
}

static void take_touch(state *s, const cddp_event *e)
{
    region *r = cd_table_add(&s->regions, CD_KEY(e->rank, e->as.touch.region));
    if (r == NULL) return;
    r->touches++;
    if (!r->is_released || r->reported) return;
    r->reported = true;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_add_event(&f, e->rank, r->release_sequence);
    CD_SAY(f.title, CDDP_FINDING_WHO ": memory region %lld is %s after it was released",
           (long long)e->as.touch.region, e->as.touch.write ? "written" : "read");
    CD_SAY(f.expected, "no access after the release");
    CD_SAY(f.actual, "bytes %lld to %lld on stream %lld, by %s", (long long)e->as.touch.begin,
           (long long)e->as.touch.end, (long long)e->as.touch.on_stream,
           e->text != NULL ? e->text : "somebody");
    CD_SAY(f.advice, "keep the buffer alive until the stream that uses it has passed, or record "
                     "the stream with the allocator");
    cd_writer_report(&s->writer, &f);
}

static void take_store_use(state *s, const cddp_event *e)
{
    if (e->kind == CDDP_EV_store_wait) s->host = e->as.store_wait.host;
    client *c = cd_ranks_add(&s->clients, e->rank);
    if (c != NULL && (!c->has_used || e->time_ns < c->first_ns)) c->first_ns = e->time_ns;
    if (c == NULL || (c->has_used && e->time_ns < c->use_ns)) return;
    c->has_used = true;
    c->use_ns = e->time_ns;
    c->use_sequence = e->sequence;
    c->step = e->step;
    CD_SAY(c->key, "%s", e->text != NULL ? e->text : "");
}

/* The first rank that went on to use the store of a host that had returned. */
static void judge_store(state *s)
{
    const client *host = s->host >= 0 ? cd_ranks_find(&s->clients, (uint32_t)s->host) : NULL;
    for (uint32_t i = 0; host != NULL && host->has_returned && i < s->clients.count; i++) {
        const client *c = cd_ranks_find(&s->clients, i);
        if (c == NULL || !c->has_used || i == (uint32_t)s->host || c->use_ns <= host->end_ns ||
            c->first_ns > host->end_ns)
            continue;
        cddp_event at = {.rank = i, .step = c->step, .sequence = c->use_sequence};
        cddp_finding f = cd_finding_at(&s->writer, &at);
        f.rank = (int32_t)s->host;
        cd_finding_set_rank(&s->writer, &f, s->host);
        f.peer = (int32_t)i;
        cd_finding_add_event(&f, (uint32_t)s->host, host->end_sequence);
        CD_SAY(f.title, "rank %lld ended and took the store with it while rank %u still uses it",
               (long long)s->host, i);
        CD_SAY(f.expected, "the store outlives all its clients");
        CD_SAY(f.actual, "%s%s%s after rank %lld's end",
               c->key[0] != '\0' ? "key '" : "a connection asked for", c->key,
               c->key[0] != '\0' ? "' asked for" : "", (long long)s->host);
        CD_SAY(f.advice, "let the store's host wait until all clients have said that they need it "
                         "no more, or try for as long as they do");
        cd_writer_report(&s->writer, &f);
        return;
    }
}

static void take_rank_end(state *s, const cddp_event *e)
{
    rank_end *end = cd_ranks_add(&s->ends, e->rank);
    if (end != NULL) end->is_good = e->as.rank_end.end == 0 && e->as.rank_end.status == CDDP_OK;
    client *c = cd_ranks_add(&s->clients, e->rank);
    if (c == NULL) return;
    c->has_returned = e->as.rank_end.end == 0;
    c->end_ns = e->time_ns;
    c->end_sequence = e->sequence;
}

/* Nobody waits for what a backward that was left has posted. */
static void give_up(state *s, uint32_t rank, uint32_t step, uint32_t micro_step)
{
    for (size_t i = 0; i < s->posts.count; i++) {
        const cd_key *key = cd_table_key(&s->posts, i);
        posted *p = cd_table_value(&s->posts, i);
        member *m = cd_table_find(&s->members, CD_KEY(key->part[0], key->part[1]));
        if (key->part[1] != (int64_t)rank || p->sequence == 0 || p->is_given_up || m == NULL ||
            p->step != step || p->micro_step != micro_step)
            continue;
        p->is_given_up = true;
        m->given_up++;
    }
}

static void take_course(state *s, const cddp_event *e)
{
    rank_end *end = cd_ranks_add(&s->ends, e->rank);
    if (end == NULL) return;
    end->has_failed |= e->kind == CDDP_EV_error;
    if (e->kind == CDDP_EV_forward_begin && end->is_reducing)
        give_up(s, e->rank, end->step, end->micro_step);
    end->is_reducing = e->kind == CDDP_EV_bucket_launch;
    if (!end->is_reducing) return;
    end->step = e->step;
    end->micro_step = e->micro_step;
}

/* Of another wrapper, too, whose operations are in the same group. */
static void take_mark(state *s, const cddp_event *e)
{
    if (e->text != NULL && strcmp(e->text, CD_TRACER_LEFT) == 0)
        give_up(s, e->rank, e->step, e->micro_step);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    switch (e->kind) {
    case CDDP_EV_error:
    case CDDP_EV_forward_begin:
    case CDDP_EV_bucket_launch:
    case CDDP_EV_backward_end:
        take_course(s, e);
        break;
    case CDDP_EV_mark:
        take_mark(s, e);
        break;
    case CDDP_EV_collective_post:
        take_collective(s, e, e->as.collective_post.group);
        break;
    case CDDP_EV_collective_wait:
        take_collective(s, e, e->as.collective_wait.group);
        break;
    case CDDP_EV_collective_done:
        take_collective(s, e, e->as.collective_done.group);
        break;
    case CDDP_EV_group_close:
        take_close(s, e);
        break;
    case CDDP_EV_group_abort: {
        member *m = cd_table_add(&s->members, CD_KEY(e->as.group_abort.group, e->rank));
        if (m != NULL) m->is_aborted = true;
        break;
    }
    case CDDP_EV_memory:
        take_memory(s, e);
        break;
    case CDDP_EV_touch:
        take_touch(s, e);
        break;
    case CDDP_EV_store_key:
    case CDDP_EV_store_wait:
        take_store_use(s, e);
        break;
    case CDDP_EV_rank_end:
        take_rank_end(s, e);
        break;
    case CDDP_EV_group: {
        /* A group that is opened again under the same id starts a new life. */
        member *m = cd_table_add(&s->members, CD_KEY(e->as.group.group, e->rank));
        if (m != NULL) *m = (member){0};
        break;
    }
    default:
        break;
    }
}

/* Nobody knows whether such an operation was over when its buffer was used, nor what came of it. */
static void report_unawaited(state *s, const cd_key *key, const member *m)
{
    /* the first, where it was followed */
    posted lost = {.sequence = 0, .step = m->close_step, .event = m->close_sequence};
    for (size_t i = 0; i < s->posts.count; i++) {
        const cd_key *of = cd_table_key(&s->posts, i);
        const posted *p = cd_table_value(&s->posts, i);
        if (of->part[0] != key->part[0] || of->part[1] != key->part[1] || p->sequence == 0 ||
            p->is_given_up)
            continue;
        if (lost.sequence == 0 || p->sequence < lost.sequence) lost = *p;
    }
    const cddp_event at = {.rank = (uint32_t)key->part[1],
                           .step = lost.step,
                           .micro_step = lost.micro_step,
                           .sequence = lost.event};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    char which[32] = "a collective";
    if (lost.sequence > 0) CD_SAY(which, "collective #%lld", (long long)lost.sequence - 1);
    CD_SAY(f.title, CDDP_FINDING_WHO ": nobody waits for %s of group '%s'", which,
           cd_writer_get_group(&s->writer, key->part[0]));
    CD_SAY(f.expected,
           "every operation that is posted is waited for, or tested until it has ended");
    CD_SAY(f.actual, "%lld of %lld given back before anybody knew how they ended",
           (long long)(m->posted - m->ended - m->given_up), (long long)m->posted);
    CD_SAY(f.advice, "an operation that nobody waits for may still be reading its buffer, and its "
                     "failure is never noticed");
    cd_writer_report(&s->writer, &f);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->closed + s->released > 0)
        cd_writer_exercise(&s->writer,
                           "%llu groups closed after use, %llu regions released after use",
                           (unsigned long long)s->closed, (unsigned long long)s->released);
    for (uint32_t rank = 0; rank < s->ends.count; rank++) {
        const rank_end *last = cd_ranks_find(&s->ends, rank);
        if (last != NULL && last->is_reducing) give_up(s, rank, last->step, last->micro_step);
    }
    for (size_t i = 0; i < s->members.count; i++) {
        const member *m = cd_table_value(&s->members, i);
        const cd_key *key = cd_table_key(&s->members, i);
        const rank_end *end = cd_ranks_find(&s->ends, (uint32_t)key->part[1]);
        if (m->is_aborted || end == NULL || !end->is_good) continue;
        if (m->outstanding <= 0) {
            if (m->is_closed && m->posted > m->ended + m->given_up && !end->has_failed)
                report_unawaited(s, key, m);
            continue;
        }
        cddp_event at = {.rank = (uint32_t)key->part[1],
                         .step = m->close_step,
                         .sequence = m->close_sequence};
        cddp_finding f = cd_finding_at(&s->writer, &at);
        CD_SAY(f.title, CDDP_FINDING_WHO ": group '%s' is closed with %lld works not given back",
               cd_writer_get_group(&s->writer, key->part[0]), (long long)m->outstanding);
        CD_SAY(f.expected, "every work waited for or released before the close");
        CD_SAY(f.actual, "%lld of %lld outstanding", (long long)m->outstanding,
               (long long)m->posted);
        cd_writer_report(&s->writer, &f);
    }
    judge_store(s);
    cd_table_fini(&s->members);
    cd_table_fini(&s->posts);
    cd_table_fini(&s->regions);
    cd_ranks_fini(&s->ends);
    cd_ranks_fini(&s->clients);
    cd_check_end(s);
}

static const uint16_t kinds[] = {
    CDDP_EV_collective_post, CDDP_EV_collective_wait, CDDP_EV_collective_done, CDDP_EV_group_close,
    CDDP_EV_group_abort,     CDDP_EV_group,           CDDP_EV_memory,          CDDP_EV_touch,
    CDDP_EV_store_key,       CDDP_EV_rank_end,        CDDP_EV_store_wait,      CDDP_EV_error,
    CDDP_EV_forward_begin,   CDDP_EV_bucket_launch,   CDDP_EV_backward_end,    CDDP_EV_mark};

CD_CHECK_TABLE(life, "I-LIFE", "nothing is used after it was given back",
               "No buffer, work handle, store or group is recycled while an operation or handle "
               "can still touch it.");
