/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for whom: what the records of the ranks let one say. See live.h. */
#include "core/check/live.h"

#include <string.h>

bool cd_live_is_stuck(const cd_live_rank *r)
{
    return r->is_known && (r->end == 2 || r->has_given_up);
}

/* A rank that went away without a word: it did not return, it did not give up a wait, and nobody
** interrupted the run. */
bool cd_live_is_gone(const cd_live_rank *r)
{
    return r != NULL && r->has_ended && r->end != 0 && r->end != 4 && !r->has_given_up;
}

bool cd_live_has_died(const cd_live_rank *r) { return r->end == 1 || r->end == 3; }

/* Its record stops, and nobody said how the rank ended: what it did after that is not known. */
bool cd_live_is_lost(const cd_live_rank *r) { return r != NULL && r->is_known && !r->has_ended; }

/* Whether `r` waits for what a member may have posted, of which there is no record, or none that
** reaches its end; *lost: those whose record stops, *absent: how many have none at all. */
bool cd_live_is_unknown(cd_live *s, const cd_live_rank *r, cd_rank_set *lost, uint32_t *absent)
{
    cddp_fact_group group;
    int64_t members = 0;
    *absent = 0;
    if (!(r->is_waiting || r->has_given_up)) return false;
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const cd_live_member *m = cd_table_value(&s->members, i);
        if (key->part[0] != r->waiting_group) continue;
        members++;
        if (m->posted <= r->waiting_sequence &&
            cd_live_is_lost(cd_ranks_find(&s->ranks, (uint32_t)key->part[1])))
            cd_rank_set_add(lost, &s->writer.memory, (uint32_t)key->part[1]);
    }
    if (cd_writer_find_group(&s->writer, r->waiting_group, &group) && group.members > members &&
        group.members <= CD_RANKS_MAX)
        *absent = (uint32_t)(group.members - members);
    return *absent > 0 || cd_rank_set_count(lost) > 0;
}

/* It waits in another operation than `r`, whose part in that of `r` may be over. One that died with
** both under way, and waited in the earlier one, died inside both. */
static bool has_got_past(const cd_live_rank *x, const cd_live_rank *r)
{
    const bool is_same_group = x->waiting_group == r->waiting_group;
    if (!x->is_waiting || (is_same_group && x->waiting_sequence == r->waiting_sequence))
        return false;
    return !cd_live_has_died(x) || (is_same_group && x->waiting_sequence > r->waiting_sequence);
}

/* Its wait failed as a peer was gone. */
bool cd_live_has_lost(const cd_live_rank *r)
{
    return r->has_given_up && (r->wait_status == CDDP_E_BACKEND || r->wait_status == CDDP_E_IO);
}

/* A member that posted the operation which `r` waits for, and died before it was over; -1: none. */
int64_t cd_live_find_dead(const cd_live *s, const cd_live_rank *r)
{
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_rank *x = cd_ranks_find(&s->ranks, i);
        const cd_live_member *m = cd_table_find(&s->members, CD_KEY(r->waiting_group, i));
        const bool has_posted = m != NULL && m->posted > r->waiting_sequence;
        if (has_posted && cd_live_is_gone(x) && cd_live_has_died(x) && !x->is_struck &&
            !has_got_past(x, r))
            return i;
    }
    return -1;
}

/* The member of the group that has not posted the operation that `rank` waits for: the first that
** died, or that went away, or else the first; -1 when there is none. */
int64_t cd_live_find_missing(const cd_live *s, const cd_live_rank *r)
{
    if (!r->is_waiting && !r->has_given_up) return -1;
    int64_t missing = -1, gone = -1, dead = -1;
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const cd_live_member *m = cd_table_value(&s->members, i);
        if (key->part[0] != r->waiting_group || m->posted > r->waiting_sequence) continue;
        const cd_live_rank *x = cd_ranks_find(&s->ranks, (uint32_t)key->part[1]);
        const bool is_out = cd_live_is_gone(x) && !x->is_waiting;
        if (is_out && cd_live_has_died(x) && (dead < 0 || key->part[1] < dead)) dead = key->part[1];
        if (is_out && (gone < 0 || key->part[1] < gone)) gone = key->part[1];
        if (cd_live_is_lost(x)) continue;
        if (missing < 0 || key->part[1] < missing) missing = key->part[1];
    }
    /* who only failed to come lost the dead one, as `r` did */
    const int64_t inside =
        missing >= 0 && dead < 0 && cd_live_has_lost(r) ? cd_live_find_dead(s, r) : -1;
    if (inside >= 0) return inside;
    return dead >= 0 ? dead : gone >= 0 ? gone : missing;
}

/* A member that is gone at the end of who waits for whom inside an operation, as the world
** reported it; -1: there is none, or nobody reported. */
static int64_t reported_to_be_gone(const cd_live *s, const cd_live_rank *r)
{
    int64_t at = r->reported_inside - 1;
    for (uint32_t i = 0; at >= 0 && i < s->ranks.count; i++) {
        const cd_live_rank *x = cd_ranks_find(&s->ranks, (uint32_t)at);
        if (x == NULL || x->reported_inside == 0) return cd_live_is_gone(x) ? at : -1;
        at = x->reported_inside - 1;
    }
    return -1;
}

/* A member that died or stopped inside the operation that `r` waits for, which all have posted; -1:
** none. A rank that waits in a later one got past this. A hung rank may be such a member itself:
** where one died, the others hang for that reason. */
int64_t cd_live_find_stopped(const cd_live *s, const cd_live_rank *r)
{
    if (!r->is_waiting && !r->has_given_up) return -1;
    int64_t stopped = reported_to_be_gone(s, r);
    if (stopped >= 0) return stopped;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_rank *x = cd_ranks_find(&s->ranks, i);
        const cd_live_member *m = cd_table_find(&s->members, CD_KEY(r->waiting_group, i));
        if (!cd_live_is_gone(x) || x->is_struck || m == NULL || m->posted <= r->waiting_sequence)
            continue;
        if (has_got_past(x, r)) continue;
        if (cd_live_has_died(x)) return i;
        if (stopped < 0) stopped = i;
    }
    return stopped;
}

/* Another rank, whose part of the message that `r` waits for names itself as the other side: it
** cannot arrive; -1: none. */
int64_t cd_live_find_itself(const cd_live *s, const cd_live_rank *r)
{
    for (uint32_t i = 0; (r->is_waiting || r->has_given_up) && i < s->ranks.count; i++) {
        const cd_live_member *m = cd_table_find(&s->members, CD_KEY(r->waiting_group, i));
        if (m != NULL && m->to_itself == r->waiting_sequence + 1 &&
            cd_ranks_find(&s->ranks, i) != r)
            return i;
    }
    return -1;
}

/* For whom a stuck rank waits, in a collective or to open a group. */
int64_t cd_live_next_of(const cd_live *s, const cd_live_rank *r)
{
    const bool opens = r->end == 2 && !r->is_waiting && !r->has_given_up;
    return opens ? r->reported_peer - 1 : cd_live_find_missing(s, r);
}

bool cd_live_is_in_hook(const cd_live_rank *r) { return r->hook[0] != '\0' || r->call[0] != '\0'; }

/* Where it hangs. */
void cd_live_describe_place(const cd_live_rank *r, char *text, size_t text_bytes)
{
    if (r->hook[0] != '\0' && (r->call[0] == '\0' || strncmp(r->call, "hook ", 5) == 0))
        cd_say(text, text_bytes, "does not return from hook %s (bucket %lld, step %u)", r->hook,
               (long long)r->hook_bucket, r->step);
    else if (r->call[0] != '\0')
        cd_say(text, text_bytes, "does not return from %s (step %u)", r->call, r->step);
    else
        cd_say(text, text_bytes, "hangs outside a collective after step %u", r->step);
}

void cd_live_describe_end(const cd_live_rank *r, char *text, size_t text_bytes)
{
    if (!r->has_ended)
        cd_say(text, text_bytes, "was last seen at step %u", r->step);
    else if (r->end == 0 && r->status != CDDP_OK)
        cd_say(text, text_bytes, "ended with an error (%s)",
               cddp_status_text((cddp_status)r->status));
    else if (r->end == 2)
        cd_live_describe_place(r, text, text_bytes);
    else
        cd_say(text, text_bytes, "%s after step %u", r->end == 0 ? "ended normally" : r->how,
               r->step);
}

cd_live_chain cd_live_follow(cd_live *s, uint32_t from)
{
    cd_live_chain c = {.first = from, .root = from};
    for (size_t i = 0; i <= s->ranks.count; i++) {
        const cd_live_rank *r = cd_ranks_find(&s->ranks, c.root);
        cd_rank_set_add(&c.who, &s->writer.memory, c.root);
        c.length++;
        int64_t next = r != NULL && cd_live_is_stuck(r) ? cd_live_next_of(s, r) : -1;
        if (next < 0) return c;
        c.root = (uint32_t)next;
        if (cd_rank_set_has(&c.who, c.root)) {
            c.is_cycle = true;
            return c;
        }
    }
    c.is_cycle = true;
    return c;
}
