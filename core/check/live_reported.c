/* SPDX-License-Identifier: Apache-2.0 */
/* The finding about a rank that waits forever. See live.h. */
#include "core/check/live.h"

#include "cddp/backend.h"

#include <string.h>

/* An operation as `rank` posted it. */
const cd_live_posted *cd_live_posted_by(const cd_live_operation *o, uint32_t rank)
{
    return o->other.reporter == (int64_t)rank + 1 ? &o->other : &o->first;
}

/* What a rank waits in: "allreduce(sum) of 212 f32, #5 of group 'world'". */
static void describe_operation(cd_live *s, const cd_live_rank *r, char *text, size_t text_bytes)
{
    const cd_live_operation *o =
        cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence));
    char operation_words[96] = "an operation";
    if (o != NULL) cd_operation_print(o->first.data, operation_words, sizeof operation_words);
    cd_say(text, text_bytes, "%s, #%lld of group '%s'", operation_words,
           (long long)r->waiting_sequence, cd_writer_get_group(&s->writer, r->waiting_group));
}

static void describe_wait(cd_live *s, uint32_t rank, char *text, size_t text_bytes)
{
    const cd_live_rank *r = cd_ranks_find(&s->ranks, rank);
    char words[200] = "opening a group";
    if (r->is_waiting || r->has_given_up) describe_operation(s, r, words, sizeof words);
    cd_say(text, text_bytes, "rank %u waits for rank %lld in %s", rank,
           (long long)cd_live_next_of(s, r), words);
}

/* A rank of the cycle waits for the others to make a group, and has posted nothing. */
static bool opens_group(const cd_live *s, const cd_live_chain *c)
{
    for (uint32_t r = cd_rank_set_next(&c->who, 0); r != CD_NO_RANK;
         r = cd_rank_set_next(&c->who, r + 1)) {
        const cd_live_rank *x = cd_ranks_find(&s->ranks, r);
        if (x != NULL && !x->is_waiting && !x->has_given_up) return true;
    }
    return false;
}

static void report_cycle(cd_live *s, const cd_live_chain *c, cddp_finding *f)
{
    const cd_live_rank *other = cd_ranks_find(&s->ranks, c->root);
    f->rank = -1;
    cd_finding_set_ranks(&s->writer, f, &c->who);
    CD_SAY(f->title, "ranks wait for one another in a cycle of %u", c->length);
    describe_wait(s, c->first, f->expected, sizeof f->expected);
    int64_t next = cd_live_next_of(s, cd_ranks_find(&s->ranks, c->first));
    uint32_t peer = next >= 0 ? (uint32_t)next : c->root;
    describe_wait(s, peer, f->actual, sizeof f->actual);
    f->peer = (int32_t)peer;
    cd_finding_add_event(f, c->root, other->wait_sequence);
    CD_SAY(f->advice, "%s",
           opens_group(s, c)
               ? "ranks must make their groups in one order, as all members of each take part in it"
               : "operations of several groups must be issued in one order on all ranks, or the "
                 "slots for them must suffice");
}

static void advise_hook(const cd_live_rank *r, cddp_finding *f)
{
    const char *at = r->hook[0] == '\0' ? strstr(r->call, "hook ") : NULL,
               *hook = at != NULL ? at + strlen("hook ") : r->hook;
    if (r->end == CDDP_RANK_RETURNED)
        CD_SAY(f->advice,
               "the error of the rank says what hook %s refused; cddp-verify hook-conformance %s "
               "tries its laws",
               hook, hook);
    else
        CD_SAY(f->advice,
               "look for a loop or a wait in hook %s; cddp-verify hook-conformance %s runs each of "
               "its "
               "laws with a time limit",
               hook, hook);
}

/* The plan says which steps are taken, and each has its buckets. */
static bool is_due(const cd_live *s, const cd_live_rank *r)
{
    const cd_live_operation *o =
        cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence));
    cddp_fact_setting steps;
    return o != NULL && o->first.bucket >= 0 &&
           cd_writer_find_setting(&s->writer, 0, CDDP_KEY_train_steps, &steps);
}

/* Most members returned well without what the first of the chain waits for. */
static bool report_odd(cd_live *s, const cd_live_chain *c, cddp_finding *f)
{
    const cd_live_rank *r = cd_ranks_find(&s->ranks, c->first);
    uint32_t members = 0, without = 0;
    char operation_words[200];
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const cd_live_member *m = cd_table_value(&s->members, i);
        if (key->part[0] != r->waiting_group) continue;
        const cd_live_rank *x = cd_ranks_find(&s->ranks, (uint32_t)key->part[1]);
        members++;
        without += m->posted <= r->waiting_sequence && x != NULL && x->has_ended && x->end == 0 &&
                   x->status == CDDP_OK;
    }
    if (!(r->is_waiting || r->has_given_up) || without * 2 <= members || is_due(s, r)) return false;
    describe_operation(s, r, operation_words, sizeof operation_words);
    f->rank = (int32_t)c->first;
    f->peer = (int32_t)c->root;
    cd_finding_set_rank(&s->writer, f, c->first);
    CD_SAY(f->title, "rank %u waits in %s, without which %u of %u members returned", c->first,
           operation_words, without, members);
    CD_SAY(f->expected, "all members post it, or none");
    CD_SAY(f->actual, "rank %u posted it, and %u of %u did not (no reference; majority)", c->first,
           without, members);
    CD_SAY(f->advice, "look for an extra collective of rank %u, or one iteration more", c->first);
    return true;
}

static void report_root(cd_live *s, const cd_live_chain *c, cddp_finding *f)
{
    if (report_odd(s, c, f)) return;
    const cd_live_rank *root = cd_ranks_find(&s->ranks, c->root);
    f->rank = (int32_t)c->root;
    f->peer = (int32_t)c->first;
    cd_finding_set_rank(&s->writer, f, c->root);
    char did[120];
    cd_live_describe_end(root, did, sizeof did);
    CD_SAY(f->title, "rank %u %s and never joined what rank %u waits for", c->root, did, c->first);
    describe_wait(s, c->first, f->expected, sizeof f->expected);
    CD_SAY(f->actual, "rank %u %s%s%s", c->root, did, root->error[0] != '\0' ? ": " : "",
           root->error);
    cd_finding_add_event(f, c->root, root->end_sequence);
    if (cd_live_is_in_hook(root))
        advise_hook(root, f);
    else
        CD_SAY(f->advice, "compare what rank %u posts with the others from step %u on", c->root,
               root->step);
}

/* How many operations of the rank are waited for in continuations, and do not end; *first: one of
** them, and of which operation's. */
static uint32_t count_blocked(const cd_live *s, uint32_t rank, int64_t first[2])
{
    uint32_t count = 0;
    for (size_t i = 0; i < s->continuations.count; i++) {
        const cd_key *key = cd_table_key(&s->continuations, i);
        const cd_live_continuation *x = cd_table_value(&s->continuations, i);
        if (key->part[2] != (int64_t)rank || x->is_done || !x->is_waited_for) continue;
        if (count++ == 0) {
            first[0] = key->part[1];
            first[1] = x->cause;
        }
    }
    return count;
}

/* Whoever completes operations waits for one. */
static bool report_blocked(cd_live *s, uint32_t rank, cddp_finding *f)
{
    int64_t first[2] = {0, 0};
    const uint32_t count = count_blocked(s, rank, first);
    if (count == 0) return false;
    f->rank = (int32_t)rank;
    cd_finding_set_rank(&s->writer, f, rank);
    CD_SAY(f->title, "rank %u waits in a continuation of #%lld for #%lld, which never completes",
           rank, (long long)first[1], (long long)first[0]);
    CD_SAY(f->expected, "a continuation returns, so that its thread completes other operations");
    CD_SAY(f->actual, "rank %u: %u continuations wait for operations that they posted", rank,
           count);
    CD_SAY(f->advice, "a wait in a future's continuation keeps a thread of the backend. Return the "
                      "next future, or wait on the thread that trains");
    return true;
}

/* Every member hangs in the operation that `r` waits for, which all have posted: none stopped. */
static bool report_all_inside(cd_live *s, const cd_live_rank *r, cddp_finding *f)
{
    cd_rank_set who = {0};
    char operation_words[200];
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const cd_live_member *m = cd_table_value(&s->members, i);
        if (key->part[0] != r->waiting_group) continue;
        const cd_live_rank *x = cd_ranks_find(&s->ranks, (uint32_t)key->part[1]);
        if (m->posted <= r->waiting_sequence || x == NULL || x->end != 2 || !x->is_waiting ||
            x->waiting_group != r->waiting_group || x->waiting_sequence != r->waiting_sequence)
            return false;
        cd_rank_set_add(&who, &s->writer.memory, (uint32_t)key->part[1]);
    }
    if (cd_rank_set_count(&who) < 2) return false;
    describe_operation(s, r, operation_words, sizeof operation_words);
    f->rank = -1;
    cd_finding_set_ranks(&s->writer, f, &who);
    CD_SAY(f->title, "all members hang inside %s, which all of them have posted", operation_words);
    CD_SAY(f->expected, "the backend completes what all members have posted");
    CD_SAY(f->actual, "%s", s->edges[0] != '\0' ? s->edges : "no member leaves it");
    CD_SAY(f->advice, "no rank is known to have stopped: run the backend's conformance tests at "
                      "this operation, element count, dtype and world size");
    return true;
}

/* Has every member posted what the rank waits for? */
static bool is_posted_by_all(const cd_live *s, const cd_live_rank *r)
{
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_live_member *m = cd_table_value(&s->members, i);
        if (cd_table_key(&s->members, i)->part[0] == r->waiting_group &&
            m->posted <= r->waiting_sequence)
            return false;
    }
    return true;
}

/* Two ranks that hang in two operations, each of which the other has posted as well: neither
** stopped. */
static bool report_crossed(cd_live *s, uint32_t rank, cddp_finding *f)
{
    const cd_live_rank *r = cd_ranks_find(&s->ranks, rank);
    cd_rank_set who = {0};
    char one[200], other[200];
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_rank *x = cd_ranks_find(&s->ranks, i);
        if (x == NULL || x == r || x->end != 2 || !x->is_waiting ||
            x->waiting_group == r->waiting_group ||
            cd_table_find(&s->members, CD_KEY(r->waiting_group, i)) == NULL ||
            cd_table_find(&s->members, CD_KEY(x->waiting_group, rank)) == NULL ||
            !is_posted_by_all(s, r) || !is_posted_by_all(s, x))
            continue;
        cd_rank_set_add(&who, &s->writer.memory, rank);
        cd_rank_set_add(&who, &s->writer.memory, i);
        describe_operation(s, r, one, sizeof one);
        describe_operation(s, x, other, sizeof other);
        f->rank = -1;
        cd_finding_set_ranks(&s->writer, f, &who);
        CD_SAY(f->title, "rank %u waits in %s, and rank %u in %s; both have posted both", rank, one,
               i, other);
        CD_SAY(f->expected, "what all members have posted ends, whichever they wait for first");
        CD_SAY(f->actual, "%s", s->edges[0] != '\0' ? s->edges : "neither ends");
        CD_SAY(f->advice, "the backend goes on with an operation only while its group is waited "
                          "for, as compositions do: let all ranks wait in one order");
        return true;
    }
    return false;
}

static void report_inside(cd_live *s, uint32_t rank, uint32_t inside, cddp_finding *f)
{
    const cd_live_rank *x = cd_ranks_find(&s->ranks, inside);
    if (x->end == 2 && x->is_waiting && report_crossed(s, inside, f)) return;
    if (x->end == 2 && report_blocked(s, inside, f)) return;
    if (x->end == 2 && report_all_inside(s, cd_ranks_find(&s->ranks, rank), f)) return;
    const char *did = x->end == 0                                        ? ""
                      : x->end == 2                                      ? "stopped"
                      : x->end == 1 && strcmp(x->how, "was killed") == 0 ? "died"
                                                                         : x->how;
    char operation_words[200];
    describe_operation(s, cd_ranks_find(&s->ranks, rank), operation_words, sizeof operation_words);
    f->rank = (int32_t)inside;
    cd_finding_set_rank(&s->writer, f, inside);
    CD_SAY(f->title, "rank %u %s inside %s", inside, did, operation_words);
    CD_SAY(f->expected, "all members, who have posted it, take part to its end");
    CD_SAY(f->actual, "rank %u %s", inside, did);
    if (inside != rank) {
        f->peer = (int32_t)rank;
        CD_SAY(f->actual, "rank %u %s, and rank %u waited for it", inside, did, rank);
        cd_finding_add_event(f, inside, x->end_sequence);
    }
    CD_SAY(f->advice,
           "all members had posted it: look at what became of the process, and at its machine");
}

static void report_itself(cd_live *s, uint32_t rank, uint32_t culprit, cddp_finding *f)
{
    const cd_live_rank *r = cd_ranks_find(&s->ranks, rank);
    const cd_live_member *m = cd_table_find(&s->members, CD_KEY(r->waiting_group, culprit));
    f->rank = (int32_t)culprit;
    f->peer = (int32_t)rank;
    cd_finding_set_rank(&s->writer, f, culprit);
    CD_SAY(f->title,
           "rank %u names itself in message #%lld of group '%s', and rank %u waits for it", culprit,
           (long long)r->waiting_sequence, cd_writer_get_group(&s->writer, r->waiting_group), rank);
    CD_SAY(f->expected, "the other side is rank %u", rank);
    CD_SAY(f->actual, "it is rank %lld of the group, which is rank %u itself", (long long)m->index,
           culprit);
    cd_finding_add_event(f, culprit, m->itself_sequence);
    CD_SAY(f->advice,
           "the root of send and recv is the other rank of the message, counted within the group");
}

/* Messages of a group of more than two have numbers of two ranks only: numbers no longer pair. */
static bool is_paired(const cd_live *s, int64_t group)
{
    uint32_t members = 0;
    bool has_messages = false;
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_live_member *m = cd_table_value(&s->members, i);
        if (cd_table_key(&s->members, i)->part[0] != group) continue;
        members++;
        has_messages |= m->has_messages;
    }
    return members <= 2 || !has_messages;
}

/* The first operation, up to the one that `r` waits for, that members did not post alike; *number:
** its own. NULL: there is none. */
static const cd_live_operation *find_split(const cd_live *s, const cd_live_rank *r, int64_t *number)
{
    const cd_live_operation *found = NULL;
    if (!(r->is_waiting || r->has_given_up) || !is_paired(s, r->waiting_group)) return NULL;
    for (size_t i = 0; i < s->operations.count; i++) {
        const cd_key *key = cd_table_key(&s->operations, i);
        const cd_live_operation *o = cd_table_value(&s->operations, i);
        if (key->part[0] != r->waiting_group || key->part[1] > r->waiting_sequence ||
            o->other.reporter == 0 || (found != NULL && key->part[1] > *number))
            continue;
        found = o;
        *number = key->part[1];
    }
    return found;
}

/* The one that posted after `r` had given up; -1: none did. */
int64_t cd_live_find_late(const cd_live *s, const cd_live_rank *r)
{
    const cd_live_operation *o =
        r->has_given_up
            ? cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence))
            : NULL;
    return o != NULL && r->has_timed_out && o->last_ns > r->given_up_ns ? (int64_t)o->last_rank
                                                                        : -1;
}

/* How long after `r` had given up `peer` came, or was let go on; 0: that is not known. */
uint64_t cd_live_lateness(const cd_live *s, const cd_live_rank *r, uint32_t peer)
{
    const cd_live_rank *x = cd_ranks_find(&s->ranks, peer);
    if (!r->has_timed_out || x == NULL) return 0;
    if (cd_live_find_late(s, r) == (int64_t)peer) {
        const cd_live_operation *o =
            cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence));
        return o->last_ns - r->given_up_ns;
    }
    const bool was_kept = x->kept_from_ns < r->given_up_ns && r->given_up_ns < x->kept_until_ns;
    return was_kept ? x->kept_until_ns - r->given_up_ns : 0;
}

static void describe_post(const cd_live_posted *p, char *text, size_t text_bytes)
{
    char words[96];
    cd_operation_print(p->data, words, sizeof words);
    if (p->step >= 0)
        cd_say(text, text_bytes, "%s (bucket %lld of step %lld)", words, (long long)p->bucket,
               (long long)p->step);
    else
        cd_say(text, text_bytes, "%s", words);
}

/* The one that differs from several is to blame; else nobody knows which side is right. */
static void report_split(cd_live *s, const cd_live_operation *o, int64_t group, int64_t number,
                         cddp_finding *f)
{
    const bool is_first_odd = o->first.count == 1 && o->other.count > 1;
    const cd_live_posted *odd = is_first_odd ? &o->first : &o->other,
                         *most = is_first_odd ? &o->other : &o->first;
    const uint32_t rank = (uint32_t)odd->reporter - 1, peer = (uint32_t)most->reporter - 1;
    char odd_words[160], most_words[160];
    cd_rank_set who = {0};
    const bool is_blamed = odd->count == 1 && most->count > 1;
    cd_rank_set_add(&who, &s->writer.memory, rank);
    if (!is_blamed) cd_rank_set_add(&who, &s->writer.memory, peer);
    f->rank = is_blamed ? (int32_t)rank : -1;
    f->peer = (int32_t)peer;
    cd_finding_set_ranks(&s->writer, f, &who);
    describe_post(odd, odd_words, sizeof odd_words);
    describe_post(most, most_words, sizeof most_words);
    if (cd_live_is_same_side(odd, most)) {
        const bool sends = odd->data[0] == CDDP_OP_SEND;
        const uint32_t low = rank < peer ? rank : peer, high = rank < peer ? peer : rank;
        CD_SAY(f->title, "as #%lld of group '%s' ranks %u and %u both %s each other",
               (long long)number, cd_writer_get_group(&s->writer, group), low, high,
               sends ? "send to" : "receive from");
        CD_SAY(f->expected, "one of them %s", sends ? "receives" : "sends");
        CD_SAY(f->actual, "rank %u: %s; rank %u: %s", rank, odd_words, peer, most_words);
        CD_SAY(f->advice, "one of the two has the other side of this message");
        return;
    }
    CD_SAY(f->title, "as #%lld of group '%s' rank %u posted %s, and rank %u %s", (long long)number,
           cd_writer_get_group(&s->writer, group), rank, odd_words, peer, most_words);
    CD_SAY(f->expected, "rank %u: %s", peer, most_words);
    CD_SAY(f->actual, "rank %u: %s", rank, odd_words);
    CD_SAY(f->advice,
           "operations meet by their number alone: look at what these ranks did before #%lld",
           (long long)number);
}

static void report_late(cd_live *s, uint32_t rank, uint32_t late, cddp_finding *f)
{
    const cd_live_rank *r = cd_ranks_find(&s->ranks, rank);
    const cd_live_operation *o =
        cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence));
    char words[200];
    describe_operation(s, r, words, sizeof words);
    f->rank = (int32_t)late;
    f->peer = (int32_t)rank;
    cd_finding_set_rank(&s->writer, f, late);
    CD_SAY(f->title, "rank %u came too late for #%lld: rank %u had given up %llu ms before", late,
           (long long)r->waiting_sequence, rank,
           (unsigned long long)((o->last_ns - r->given_up_ns) / 1000000));
    CD_SAY(f->expected, "rank %u posts %s before the time-out of rank %u", late, words, rank);
    CD_SAY(f->actual, "rank %u posted it when rank %u had given up", late, rank);
    CD_SAY(f->advice, "see what kept rank %u, or give the others a longer time-out", late);
}

/* No rank did anything wrong. */
static void report_parted(cd_live *s, cddp_finding *f)
{
    f->rank = -1;
    cd_rank_set stuck = {0};
    for (uint32_t i = 0; i < s->ranks.count; i++)
        if (cd_live_is_stuck(cd_ranks_find(&s->ranks, i)))
            cd_rank_set_add(&stuck, &s->writer.memory, i);
    cd_finding_set_ranks(&s->writer, f, &stuck);
    CD_SAY(f->title, "%s, and ranks on both sides wait for each other", s->parted);
    CD_SAY(f->expected, "what one side sends reaches the other");
    CD_SAY(f->actual, "%s", s->edges[0] != '\0' ? s->edges : "they wait");
    cd_finding_add_event(f, UINT32_MAX, s->parted_sequence);
    CD_SAY(f->advice, "look at the network between the two sides: no rank on either has failed");
}

/* Nobody waits for it. Ranks that do not return from the same call are named together, by the first
** of them. */
static void report_stay(cd_live *s, uint32_t rank, cddp_finding *f)
{
    const cd_live_rank *r = cd_ranks_find(&s->ranks, rank);
    CD_SAY(f->expected, "it returns");
    if (!cd_live_is_in_hook(r)) {
        CD_SAY(f->title, "rank %u never comes back", rank);
        CD_SAY(f->actual, "it waits %s",
               r->is_waiting ? "for an operation that all members have posted"
                             : "outside a collective");
        return;
    }
    char place[120], other[120], who[96];
    cd_rank_set all = {0};
    cd_live_describe_place(r, place, sizeof place);
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_rank *x = cd_ranks_find(&s->ranks, i);
        if (x == NULL || !x->is_known || x->end != 2 || !cd_live_is_in_hook(x)) continue;
        cd_live_describe_place(x, other, sizeof other);
        if (strcmp(place, other) == 0) cd_rank_set_add(&all, &s->writer.memory, i);
    }
    cd_rank_set_print(&all, rank, who, sizeof who);
    cd_finding_set_ranks(&s->writer, f, &all);
    if (cd_rank_set_count(&all) > 1)
        CD_SAY(f->title, "%s do not return%s", who, place + strlen("does not return"));
    else
        CD_SAY(f->title, "%s %s", who, place);
    CD_SAY(f->actual, "it %s", place);
    advise_hook(r, f);
}

/* All members of which something is known have posted it, and who may not have is not known. */
static void report_unknown(cd_live *s, const cd_live_rank *r, const cd_rank_set *lost,
                           uint32_t absent, cddp_finding *f)
{
    char operation_words[200], who[96] = "", missing[48] = "";
    describe_operation(s, r, operation_words, sizeof operation_words);
    if (cd_rank_set_count(lost) > 0) cd_rank_set_print(lost, CD_NO_RANK, who, sizeof who);
    if (absent > 0) cd_say(missing, sizeof missing, "%u member%s", absent, absent == 1 ? "" : "s");
    f->rank = -1;
    cd_finding_set_ranks(&s->writer, f, &(cd_rank_set){0}); /* nobody is blamed */
    CD_SAY(f->title, "ranks wait in %s, and no record says whether %s%s%s came", operation_words,
           who, who[0] != '\0' && absent > 0 ? " and " : "", missing);
    CD_SAY(f->expected, "the record of every member, up to its end");
    if (absent > 0)
        CD_SAY(f->actual, "no record of %s of the group", missing);
    else
        CD_SAY(f->actual, "the record of %s stops before", who);
    CD_SAY(f->advice, "judge the records of all ranks together: the cause may be in one that is "
                      "not here");
}

void cd_live_report(cd_live *s, uint32_t rank)
{
    const cd_live_rank *r = cd_ranks_find(&s->ranks, rank);
    cd_live_chain c = cd_live_follow(s, rank);
    const cd_live_rank *root = cd_ranks_find(&s->ranks, c.root);
    bool hung = r->end == 2;
    cd_rank_set lost = {0};
    uint32_t absent = 0;
    const bool may_have_come = !c.is_cycle && root != NULL && cd_live_is_stuck(root) &&
                               cd_live_is_unknown(s, root, &lost, &absent);
    /* A transport that notices that a peer has gone ends the wait with a failure; had
    ** the peer stayed, the wait would have lasted for ever. */
    bool died = root != NULL && cd_live_has_died(root);
    bool left = root != NULL && c.length > 1 && root->has_ended &&
                ((root->end == 0 && root->status == CDDP_OK) || died);
    /* The root waits as well, inside an operation that all have posted. */
    int64_t inside =
        !c.is_cycle && root != NULL && cd_live_is_stuck(root) ? cd_live_find_stopped(s, root) : -1;
    const int64_t itself = cd_live_find_itself(s, r);
    /* Of what all have posted: who posted another operation, or came when others had gone. */
    int64_t blocked[2];
    const cd_live_rank *stopped = inside >= 0 ? cd_ranks_find(&s->ranks, (uint32_t)inside) : NULL;
    const bool is_posted =
        !c.is_cycle && root != NULL && cd_live_is_stuck(root) &&
        (inside < 0 || (stopped->is_waiting && count_blocked(s, (uint32_t)inside, blocked) == 0));
    int64_t number = -1;
    const cd_live_operation *split = is_posted ? find_split(s, root, &number) : NULL;
    const int64_t late = is_posted ? cd_live_find_late(s, root) : -1;
    if (!hung &&
        (s->has_fault || root == NULL || !(r->has_timed_out || left || inside >= 0 || itself >= 0)))
        return;
    cddp_event at = {.rank = rank,
                     .step = r->step,
                     .micro_step = r->micro_step,
                     .sequence = r->wait_sequence};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    if (s->parted[0] != '\0')
        report_parted(s, &f);
    else if (itself >= 0)
        report_itself(s, rank, (uint32_t)itself, &f);
    else if (c.is_cycle)
        report_cycle(s, &c, &f);
    else if (split != NULL)
        report_split(s, split, root->waiting_group, number, &f);
    else if (may_have_come &&
             (inside < 0 || !cd_live_has_died(cd_ranks_find(&s->ranks, (uint32_t)inside))))
        report_unknown(s, root, &lost, absent, &f);
    else if (inside >= 0 && (c.length == 1 || inside != c.root))
        report_inside(s, c.root, (uint32_t)inside, &f);
    else if (late >= 0 && late != (int64_t)c.root)
        report_late(s, c.root, (uint32_t)late, &f);
    else if (c.length > 1 && root != NULL)
        report_root(s, &c, &f);
    else
        report_stay(s, rank, &f);
    cd_writer_report(&s->writer, &f);
}
