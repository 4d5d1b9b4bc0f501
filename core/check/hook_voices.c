/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/hook_voices.h"

#include "core/base/hash.h"
#include "core/trace/codes.h"

#include <string.h>

#define LAWS_MAX 16

typedef struct place {
    uint32_t step, micro_step;
    uint64_t sequence;
    bool is_known;
} place;

/* One law of a bucket, as a rank states it. */
typedef struct voice_law {
    int64_t name;
    uint64_t spoken; /* completed calls in which it was stated */
    uint64_t last;   /* the last call in which it was, + 1 */
    place gap;       /* the first completed call without it, behind one that had it */
} voice_law;

typedef struct voice {
    int64_t group;
    uint64_t opened, completed;
    bool is_open;
    place first; /* completed call */
    uint32_t count;
    voice_law laws[LAWS_MAX];
} voice;

void cd_hook_voices_init(cd_hook_voices *v, cd_writer *writer, const cddp_allocator *allocator)
{
    *v = (cd_hook_voices){.writer = writer};
    cd_table_init(&v->voices, allocator, sizeof(voice));
    cd_table_init(&v->names, allocator, sizeof(const char *));
}

void cd_hook_voices_fini(cd_hook_voices *v)
{
    cd_table_fini(&v->voices);
    cd_table_fini(&v->names);
}

static voice *voice_of(cd_hook_voices *v, const cddp_event *e, int64_t bucket)
{
    return bucket >= 0 && bucket < CD_IDS_MAX ? cd_table_add(&v->voices, CD_KEY(e->rank, bucket))
                                              : NULL;
}

static void keep_name(cd_hook_voices *v, int64_t hash, const char *text)
{
    if (cd_table_find(&v->names, CD_KEY(hash)) != NULL) return;
    const char **name = cd_table_add(&v->names, CD_KEY(hash));
    if (name != NULL) *name = cd_arena_strdup(&v->writer->memory, text);
}

static void take_law(cd_hook_voices *v, const cddp_event *e)
{
    voice *of = voice_of(v, e, e->as.hook_law.bucket);
    const char *text = e->text != NULL ? e->text : "";
    const int64_t name = (int64_t)cd_hash_text(text);
    uint32_t i = 0;
    if (of == NULL) return;
    while (i < of->count && of->laws[i].name != name) i++;
    if (i == LAWS_MAX) return;
    if (i == of->count) {
        of->laws[of->count++] = (voice_law){.name = name};
        keep_name(v, name, text);
    }
    voice_law *law = &of->laws[i];
    if (law->last == of->opened + 1) return;
    law->last = of->opened + 1;
    law->spoken += !of->is_open && of->opened > 0; /* of a call that is complete already */
}

static void take_done(cd_hook_voices *v, const cddp_event *e)
{
    voice *of = voice_of(v, e, e->as.hook_done.bucket);
    const place here = {e->step, e->micro_step, e->sequence, true};
    if (of == NULL) return;
    of->completed++;
    of->is_open = false;
    if (!of->first.is_known) of->first = here;
    for (uint32_t i = 0; i < of->count; i++) {
        voice_law *law = &of->laws[i];
        if (law->last == of->opened + 1)
            law->spoken++;
        else if (!law->gap.is_known)
            law->gap = here;
    }
}

void cd_hook_voices_take(cd_hook_voices *v, const cddp_event *e, int64_t group)
{
    voice *of;
    switch (e->kind) {
    case CDDP_EV_owed:
        v->is_owed |= e->text != NULL && strcmp(e->text, CD_STATED_LAWS) == 0;
        break;
    case CDDP_EV_grad_local:
        v->is_silent |= e->as.grad_local.nonfinite != 0;
        break;
    case CDDP_EV_grad_final:
        v->is_silent |= e->as.grad_final.nonfinite != 0;
        break;
    case CDDP_EV_hook_call:
        of = voice_of(v, e, e->as.hook_call.bucket);
        if (of == NULL) break;
        of->group = group;
        of->opened++;
        of->is_open = true;
        break;
    case CDDP_EV_hook_done:
        take_done(v, e);
        break;
    case CDDP_EV_hook_law:
        take_law(v, e);
        break;
    default:
        break;
    }
}

void cd_hook_voices_drop(cd_hook_voices *v, uint32_t rank)
{
    for (size_t i = 0; i < v->voices.count; i++) {
        voice *of = cd_table_value(&v->voices, i);
        if (cd_table_key(&v->voices, i)->part[0] == (int64_t)rank) of->is_open = false;
    }
}

/* ---- who leaves out what others state ---- */

/* A law of a bucket, over the ranks that completed equally many calls. */
typedef struct chorus {
    int64_t bucket, name, group;
    uint64_t completed;
} chorus;

static const voice_law *law_of(const voice *of, int64_t name)
{
    for (uint32_t i = 0; i < of->count; i++)
        if (of->laws[i].name == name) return &of->laws[i];
    return NULL;
}

static uint64_t spoken_by(const voice *of, int64_t name)
{
    const voice_law *law = law_of(of, name);
    return law != NULL ? law->spoken : 0;
}

static const voice *member_of(const cd_hook_voices *v, size_t i, const chorus *c)
{
    const voice *of = cd_table_value(&v->voices, i);
    return cd_table_key(&v->voices, i)->part[1] == c->bucket && of->group == c->group &&
                   of->completed == c->completed
               ? of
               : NULL;
}

static place gap_of(const voice *of, int64_t name)
{
    const voice_law *law = law_of(of, name);
    return law != NULL && law->gap.is_known ? law->gap : of->first;
}

static void report(cd_hook_voices *v, const chorus *c, uint64_t most, const cd_rank_set *who)
{
    const uint32_t rank = cd_rank_set_next(who, 0);
    const voice *of = cd_table_find(&v->voices, CD_KEY(rank, c->bucket));
    const char *const *name = cd_table_find(&v->names, CD_KEY(c->name));
    const place at = gap_of(of, c->name);
    const cddp_event here = {.kind = CDDP_EV_hook_done,
                             .rank = rank,
                             .step = at.step,
                             .micro_step = at.micro_step,
                             .sequence = at.sequence};
    char ranks[96];
    cddp_finding f = cd_finding_at(v->writer, &here);
    cd_finding_set_ranks(v->writer, &f, who);
    f.bucket = (int32_t)c->bucket;
    cd_rank_set_print(who, rank, ranks, sizeof ranks);
    CD_SAY(f.title, "%s: the hook leaves out a law of bucket %lld that other ranks state, \"%s\"",
           ranks, (long long)c->bucket, name != NULL && *name != NULL ? *name : "");
    CD_SAY(f.expected, "stated in %llu of %llu calls, as by the others", (unsigned long long)most,
           (unsigned long long)c->completed);
    CD_SAY(f.actual, "rank %u: in %llu", rank, (unsigned long long)spoken_by(of, c->name));
    CD_SAY(f.advice,
           "what a rank does not state is not judged there: compare the hook's code on "
           "this rank. A rank that cannot say more states the law with an infinite bound");
    cd_writer_report(v->writer, &f);
}

/* Ranks that state it less often than others: few of them, or such as have stated it. */
static bool judge(cd_hook_voices *v, const chorus *c)
{
    uint64_t most = 0, members = 0, least_of_some = UINT64_MAX;
    cd_rank_set who = {0};
    for (size_t i = 0; i < v->voices.count; i++) {
        const voice *of = member_of(v, i, c);
        if (of == NULL) continue;
        const uint64_t spoken = spoken_by(of, c->name);
        members++;
        most = spoken > most ? spoken : most;
        if (spoken > 0 && spoken < least_of_some) least_of_some = spoken;
    }
    for (size_t i = 0; i < v->voices.count; i++) {
        const voice *of = member_of(v, i, c);
        if (of != NULL && spoken_by(of, c->name) < most)
            cd_rank_set_add(&who, &v->writer->memory,
                            (uint32_t)cd_table_key(&v->voices, i)->part[0]);
    }
    const uint64_t fewer = cd_rank_set_count(&who);
    /* a law of some ranks that the others never state may be theirs alone */
    if (fewer == 0 || (2 * fewer >= members && least_of_some == most)) return false;
    report(v, c, most, &who);
    return true;
}

void cd_hook_voices_report(cd_hook_voices *v)
{
    bool has_found = v->is_owed || v->is_silent; /* the first says it all */
    cd_table heard;                              /* (bucket, name, group, calls): a chorus */
    cd_table_init(&heard, v->voices.allocator, sizeof(int64_t));
    for (size_t i = 0; i < v->voices.count && !has_found; i++) {
        const voice *of = cd_table_value(&v->voices, i);
        for (uint32_t k = 0; k < of->count && !has_found; k++) {
            const chorus c = {cd_table_key(&v->voices, i)->part[1], of->laws[k].name, of->group,
                              of->completed};
            int64_t *is_heard =
                cd_table_add(&heard, CD_KEY(c.bucket, c.name, c.group, (int64_t)c.completed));
            if (is_heard == NULL || (*is_heard)++ > 0) continue;
            has_found = judge(v, &c);
        }
    }
    cd_table_fini(&heard);
}
