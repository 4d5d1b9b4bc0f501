/* SPDX-License-Identifier: Apache-2.0 */
/* Running one case, and the ground truth about it. */
#include "tests/selftest/outcome.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/plan/plan.h"
#include "verify/prove/prove.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const st_class_names[ST_CLASSES] = {"wrong training", "disobeyed decision",
                                                "wrong copy"};

void st_case_print(const st_case *c, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s %s %s %s %s%s", st_worlds[c->world].name,
             st_points[c->point].place, st_operators[c->op].name,
             c->is_most       ? "most-ranks"
             : c->is_one_rank ? "one-rank"
                              : "all-ranks",
             c->is_every_step ? "always" : "once", c->everything ? " everything" : "");
}

static bool is_decision(uint32_t kind)
{
    return (kind & (ST_NUMBER | ST_COUNT | ST_FLAG | ST_CALL | ST_TURN)) != 0;
}

bool st_case_decides(const st_case *c)
{
    const st_point *p = &st_points[c->point];
    return is_decision(p->kind) && (p->blame & (ST_VALUES | ST_SHOWN | ST_COVERAGE)) == 0;
}

/* ---- draws ---- */

static st_injection draw(const st_world *w, const st_case *c, uint64_t seed)
{
    char text[256];
    st_case_print(c, text, sizeof text);
    const uint64_t drawn = cd_hash64(text, strlen(text), seed);
    return (st_injection){.point = c->point,
                          .op = c->op,
                          .rank = c->is_one_rank ? (int32_t)(drawn % w->ranks) : ST_ALL_RANKS,
                          .spares_rank = c->is_most,
                          .step =
                              c->is_every_step ? ST_EVERY_STEP : (int64_t)(drawn / 64 % w->steps),
                          .everything = c->everything,
                          .draw = drawn / 4096,
                          .tensors = w->parameter_count};
}

/* ---- what the first finding says ---- */

static bool has_word(const char *text, const char *word, size_t length)
{
    for (; *text != '\0'; text++) {
        size_t i = 0;
        while (i < length && tolower((unsigned char)text[i]) == tolower((unsigned char)word[i]))
            i++;
        if (i == length) return true;
    }
    return false;
}

static bool says(const cddp_finding *f, const char *word, size_t length)
{
    return has_word(f->title, word, length) || has_word(f->expected, word, length) ||
           has_word(f->actual, word, length) || has_word(f->parameter, word, length);
}

static bool says_one_of(const cddp_finding *f, const char *words)
{
    while (*words != '\0') {
        const size_t length = strcspn(words, "|");
        if (says(f, words, length)) return true;
        words += length + (words[length] == '|');
    }
    return false;
}

/* Every rank has the wrong average: whose contributions made it wrong, one bit each. 0: none is
** named. */
static uint64_t find_culprits(const char *title)
{
    const char *missing = strstr(title, "contribution of rank ");
    uint64_t culprits = 0;
    if (missing != NULL) return UINT64_C(1) << (strtoul(missing + 21, NULL, 10) % 64);
    /* ": rank 0 counts 1/2, rank 1 counts 1/2" */
    for (const char *rank = strstr(title, ": rank "); rank != NULL;
         rank = strstr(rank, ", rank ")) {
        char *end = NULL;
        const unsigned long number = strtoul(rank + 7, &end, 10);
        if (strncmp(end, " counts", 7) != 0) break;
        culprits |= UINT64_C(1) << (number % 64);
        rank = end;
    }
    return culprits;
}

static uint64_t ranks_of(const st_world *w, const cddp_finding *f)
{
    const uint64_t all = w->ranks < 64 ? (UINT64_C(1) << w->ranks) - 1 : UINT64_MAX;
    uint64_t ranks = 0;
    for (size_t i = 0; i < f->rank_count; i++) ranks |= UINT64_C(1) << (f->ranks[i] % 64);
    if (f->rank_count == 0 && f->rank >= 0) ranks = UINT64_C(1) << (f->rank % 64);
    if (ranks == 0 || says_one_of(f, "all ranks|every rank|each rank")) ranks = all;
    const uint64_t culprits = find_culprits(f->title);
    return culprits != 0 ? culprits : ranks;
}

/* By its number, or by a parameter in it. */
static bool names_bucket(const st_world *w, int64_t bucket, const cddp_finding *f)
{
    if (f->bucket >= 0) return f->bucket == bucket;
    for (size_t i = 0; i < w->parameter_count; i++) {
        const int64_t variable = w->variables[i];
        if (variable >= 0 && (w->buckets[variable] >> (bucket % 64) & 1u) != 0 &&
            says(f, w->parameters[i], strlen(w->parameters[i])))
            return true;
    }
    return false;
}

static bool is_buffer(const st_point *p)
{
    return (strstr(p->place, ".buffer") != NULL || strncmp(p->place, "buffers.", 8) == 0);
}

static const char *struck_name(const st_world *w, const st_point *p, size_t tensor)
{
    if (tensor == SIZE_MAX || (p->blame & ST_BUCKET) != 0) return "";
    if ((p->blame & ST_VARIABLE) != 0) {
        for (size_t i = 0; i < w->parameter_count; i++)
            if (w->variables[i] == (int64_t)tensor) return w->parameters[i];
        return "";
    }
    if (strstr(p->place, ".slot") != NULL) return "";
    if (is_buffer(p)) return tensor < w->buffer_count ? w->buffers[tensor] : "";
    return tensor < w->parameter_count ? w->parameters[tensor] : "";
}

static bool names_tensor(const st_world *w, const st_point *p, const char *name, const st_effect *e,
                         const cddp_finding *f)
{
    /* two tensors that changed places are both wrong */
    const char *partner = struck_name(w, p, e->partner);
    if (name[0] != '\0' && says(f, name, strlen(name))) return true;
    if (partner[0] != '\0' && says(f, partner, strlen(partner))) return true;
    if ((p->blame & ST_BUCKET) != 0) return names_bucket(w, (int64_t)e->tensor, f);
    if (f->bucket < 0 || e->tensor >= w->parameter_count) return false;
    const int64_t variable = w->variables[e->tensor];
    return variable >= 0 && (w->buckets[variable] >> (f->bucket % 64) & 1u) != 0;
}

static bool is_step_right(const st_point *p, uint32_t struck, uint32_t named)
{
    if ((p->blame & ST_APART) != 0) return true;
    if ((p->blame & ST_LATER) != 0) return named >= struck;
    return named == struck || ((p->blame & ST_NEXT) != 0 && named == struck + 1);
}

/* "" when the blame is right. */
static void judge_blame(const st_world *w, const st_case *c, const cddp_finding *f, st_outcome *o)
{
    const st_point *p = &st_points[c->point];
    const st_effect *e = st_injection_effect();
    const uint64_t ranks = ranks_of(w, f), struck = o->struck_ranks;
    const bool is_step_known = e->first_step != CD_INJECT_EVERYONE;
    o->wrong[0] = '\0';
    if ((p->blame & ST_SOME) != 0 ? ranks == 0 || (ranks & ~struck) != 0 : ranks != struck)
        snprintf(o->wrong, sizeof o->wrong, "ranks %llx, struck %llx", (unsigned long long)ranks,
                 (unsigned long long)struck);
    else if (is_step_known && !is_step_right(p, e->first_step, f->step))
        snprintf(o->wrong, sizeof o->wrong, "step %u, struck %u", f->step, e->first_step);
    else if (strcmp(f->check, "I-COLL") == 0)
        snprintf(o->wrong, sizeof o->wrong, "accuses the backend");
    else if (strcmp(f->check, "I-HOOK") == 0 && (p->blame & ST_HOOK) == 0 &&
             has_word(f->title, "result of hook", 14))
        snprintf(o->wrong, sizeof o->wrong, "accuses the hook");
    else if (!c->everything && !says_one_of(f, p->words) &&
             !(is_decision(p->kind) && f->parameter[0] != '\0') &&
             !names_tensor(w, p, o->struck, e, f))
        snprintf(o->wrong, sizeof o->wrong, "does not name %s",
                 o->struck[0] != '\0' ? o->struck : p->words);
}

/* ---- by what the run ended with ---- */

static void say_finding(const cddp_finding *f, st_outcome *o)
{
    snprintf(o->said, sizeof o->said, "%s step %u rank %d: %s; expected: %s; actual: %s", f->check,
             f->step, f->rank, f->title, f->expected, f->actual);
}

static void judge_failure(const st_world *w, const cddp_verdict *v, st_outcome *o)
{
    uint64_t failed = 0;
    for (size_t i = 0; i < v->rank_count; i++) {
        const cddp_rank_result *r = &v->ranks[i].result;
        if (r->status == CDDP_OK && r->end == CDDP_RANK_RETURNED) continue;
        if (failed == 0) snprintf(o->said, sizeof o->said, "error: %s", r->error.message);
        failed |= UINT64_C(1) << (i % 64);
    }
    (void)w;
    if (failed == 0) snprintf(o->said, sizeof o->said, "%s (%s)", v->summary, v->reason);
    if (failed != o->struck_ranks)
        snprintf(o->wrong, sizeof o->wrong, "no finding; ranks %llx failed, struck %llx",
                 (unsigned long long)failed, (unsigned long long)o->struck_ranks);
}

static void judge_verdict(const st_world *w, const st_case *c, const cddp_verdict *v, st_outcome *o)
{
    o->exit_code = (int32_t)v->outcome;
    if (v->finding_count > 0) {
        judge_blame(w, c, &v->findings[0], o);
        say_finding(&v->findings[0], o);
    } else {
        judge_failure(w, v, o);
    }
    const bool is_coverage = (st_points[c->point].blame & ST_COVERAGE) != 0;
    const bool is_caught = (is_coverage && v->outcome == CDDP_OUTCOME_INCONCLUSIVE) ||
                           v->outcome == CDDP_OUTCOME_FINDINGS || v->outcome == CDDP_OUTCOME_ERROR;
    o->end = !is_caught ? ST_END_MISSED : o->wrong[0] == '\0' ? ST_END_BLAMED : ST_END_CAUGHT;
}

static void judge_proof(const st_world *w, const st_case *c, const cd_proof *proof, st_outcome *o)
{
    const bool is_coverage = (st_points[c->point].blame & ST_COVERAGE) != 0;
    o->exit_code = proof->end == CD_PROOF_HOLDS ? 0 : proof->end == CD_PROOF_REFUTED ? 1 : 4;
    snprintf(o->said, sizeof o->said, "%s", proof->culprit);
    const bool is_caught = o->exit_code == 1 || (o->exit_code == 4 && is_coverage);
    o->end = is_caught ? ST_END_CAUGHT : ST_END_MISSED;
    char rank[32];
    for (uint32_t r = 0; r < w->ranks; r++) {
        snprintf(rank, sizeof rank, "rank %u", r);
        const bool is_all = o->struck_ranks == (UINT64_C(1) << w->ranks) - 1;
        if (o->end == ST_END_CAUGHT && (o->struck_ranks >> r & 1u) != 0 &&
            (strstr(o->said, rank) != NULL || (is_all && strstr(o->said, "all ranks") != NULL)))
            o->end = ST_END_BLAMED;
    }
    if (o->end == ST_END_CAUGHT)
        snprintf(o->wrong, sizeof o->wrong, "does not name the struck ranks");
}

/* The command ends with an error that says why. */
static void judge_refusal(const cddp_error *refusal, st_outcome *o)
{
    o->exit_code = CDDP_OUTCOME_ERROR;
    o->end = ST_END_CAUGHT;
    snprintf(o->said, sizeof o->said, "error: %s", refusal->message);
    snprintf(o->wrong, sizeof o->wrong, "no finding");
}

static void note_effect(const st_world *w, const st_case *c, st_outcome *o)
{
    const st_effect *e = st_injection_effect();
    o->struck_step = e->first_step;
    o->struck_ranks = ((st_points[c->point].blame & ST_APART) != 0 ? e->all_ranks : e->ranks) &
                      ((UINT64_C(1) << w->ranks) - 1);
    snprintf(o->struck, sizeof o->struck, "%s", struck_name(w, &st_points[c->point], e->tensor));
}

/* ---- the trace, read again ---- */

static void compare_verdicts(const cddp_verdict *live, const cddp_verdict *again, st_outcome *o)
{
    const cddp_finding *a = live->finding_count > 0 ? &live->findings[0] : NULL;
    const cddp_finding *b = again->finding_count > 0 ? &again->findings[0] : NULL;
    const bool is_same = (a == NULL) == (b == NULL) &&
                         (a == NULL || (strcmp(a->check, b->check) == 0 && a->step == b->step &&
                                        a->rank == b->rank && strcmp(a->title, b->title) == 0));
    if (live->outcome == again->outcome && is_same) return;
    snprintf(o->stored, sizeof o->stored, "outcome %d, live %d; %s step %u rank %d: %s",
             (int)again->outcome, (int)live->outcome, b != NULL ? b->check : "no finding",
             b != NULL ? b->step : 0, b != NULL ? b->rank : -1,
             b != NULL ? b->title : again->reason);
}

static cddp_status read_again(const st_world *w, st_recording *recording, const cddp_verdict *live,
                              st_outcome *o, cddp_error *err)
{
    cddp_verdict *again = NULL;
    CD_TRY(st_recording_judge(recording, w, &again, err));
    compare_verdicts(live, again, o);
    cddp_verdict_destroy(again);
    return CDDP_OK;
}

/* ---- a case ---- */

/* false: it is not struck. */
static bool classify(const st_world *w, const st_case *c, const st_finals *finals, st_outcome *o)
{
    if (st_injection_effect()->changed == 0) return false;
    if ((st_points[c->point].blame & (ST_SHOWN | ST_COVERAGE)) != 0)
        o->kind = ST_COPY;
    else if (memcmp(finals, &w->finals, sizeof *finals) != 0)
        o->kind = ST_TRAINING;
    else if (st_case_decides(c))
        o->kind = ST_DISOBEYED;
    else
        return false;
    return true;
}

static void prove_case(const st_world *w, const st_case *c, st_outcome *o)
{
    cd_proof proof;
    cddp_error refusal = CDDP_ERROR_INIT;
    const cd_prove_options options = {
        .plan = w->plan, .registry = w->registry, .orders_max = 50000, .probes = 1, .jobs = 1};
    if (cd_prove(&options, &proof, &refusal) == CDDP_OK)
        judge_proof(w, c, &proof, o);
    else
        judge_refusal(&refusal, o);
}

cddp_status st_case_run(const st_world *world, const st_case *c, const st_case_options *options,
                        st_outcome *outcome, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const st_injection injection = draw(world, c, options->seed);
    cddp_verdict *verdict = NULL;
    st_recording recording = {.count = 0};
    st_finals finals;
    *outcome = (st_outcome){.end = ST_END_SILENT};
    st_injection_begin(&injection);
    CD_TRY_OUT(
        st_world_run(world, options->reads_again ? &recording : NULL, &finals, &verdict, err));
    note_effect(world, c, outcome);
    if (!classify(world, c, &finals, outcome)) goto out;
    if (world->row->how == ST_RUN) {
        judge_verdict(world, c, verdict, outcome);
        /* A copy that changes the values is none. */
        if (outcome->end == ST_END_MISSED && memcmp(&finals, &world->finals, sizeof finals) != 0)
            outcome->kind = ST_TRAINING;
        if (options->reads_again) CD_TRY_OUT(read_again(world, &recording, verdict, outcome, err));
    } else {
        st_injection_begin(&injection);
        prove_case(world, c, outcome);
    }
out:
    st_recording_fini(&recording);
    cddp_verdict_destroy(verdict);
    return status;
}
