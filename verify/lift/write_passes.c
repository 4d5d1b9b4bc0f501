/* SPDX-License-Identifier: Apache-2.0 */
/* What differs from pass to pass, in tables. See writing.h. */
#include "verify/lift/writing.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WHENS_MAX 400u

static void differ(cd_writing *w, uint32_t rank, uint32_t step, int64_t micro_step,
                   const char *words)
{
    if (words == NULL) return;
    if (cd_arena_grow(&w->l->arena, (void **)&w->places, &w->place_capacity, w->place_count + 1,
                      sizeof *w->places))
        w->places[w->place_count++] = (cd_writing_place){rank, step, micro_step, words};
}

void cd_writing_put_selection(cd_writing *w, const char *key, const bool *marks, uint32_t count)
{
    bool is_all;
    const char *words = cd_writing_print_selection(&w->l->arena, marks, count, &is_all);
    if (!is_all) cd_text_printf(w->out, "%s = \"%s\"\n", key, words);
}

/* One table for the same words on several ranks in the same place, or in several steps of the same
** ranks. What was written is marked by words == NULL. */
static void write_when(cd_writing *w, size_t first, bool *ranks, bool *steps, bool *micros)
{
    const cd_writing_place *p = &w->places[first];
    const char *words = p->words;
    const uint32_t step = p->step;
    const int64_t micro = p->micro_step;
    memset(ranks, 0, w->l->rank_count * sizeof *ranks);
    memset(steps, 0, w->steps * sizeof *steps);
    memset(micros, 0, w->micro_steps * sizeof *micros);
    for (size_t i = first; i < w->place_count; i++) {
        cd_writing_place *q = &w->places[i];
        if (q->words == NULL || q->step != step || q->micro_step != micro ||
            strcmp(q->words, words) != 0)
            continue;
        ranks[q->rank] = true;
        q->words = NULL;
    }
    steps[step] = true;
    /* Further steps in which exactly these ranks do the same. */
    for (uint32_t s = step + 1; s < w->steps; s++) {
        uint32_t same = 0, wanted = 0;
        bool others = false;
        for (uint32_t r = 0; r < w->l->rank_count; r++) wanted += ranks[r];
        for (size_t i = first; i < w->place_count; i++) {
            const cd_writing_place *q = &w->places[i];
            if (q->words == NULL || q->step != s || q->micro_step != micro ||
                strcmp(q->words, words) != 0)
                continue;
            same += ranks[q->rank];
            others |= !ranks[q->rank];
        }
        if (same != wanted || others) continue;
        steps[s] = true;
        for (size_t i = first; i < w->place_count; i++) {
            cd_writing_place *q = &w->places[i];
            if (q->words != NULL && q->step == s && q->micro_step == micro &&
                strcmp(q->words, words) == 0)
                q->words = NULL;
        }
    }
    if (++w->when_count > WHENS_MAX) return;
    cd_text_push(w->out, "\n[[when]]\n");
    cd_writing_put_selection(w, "ranks", ranks, w->l->rank_count);
    cd_writing_put_selection(w, "steps", steps, w->steps);
    if (micro >= 0 && w->micro_steps > 1)
        cd_text_printf(w->out, "micro_steps = %" PRId64 "\n", micro);
    cd_text_push(w->out, words);
}

static void write_whens(cd_writing *w)
{
    cd_arena *arena = &w->l->arena;
    bool *ranks = cd_arena_array(arena, w->l->rank_count, sizeof *ranks);
    bool *steps = cd_arena_array(arena, w->steps, sizeof *steps);
    bool *micros = cd_arena_array(arena, w->micro_steps, sizeof *micros);
    if (ranks == NULL || steps == NULL || micros == NULL) return;
    for (size_t i = 0; i < w->place_count; i++)
        if (w->places[i].words != NULL) write_when(w, i, ranks, steps, micros);
    if (w->when_count > WHENS_MAX)
        CD_WRITING_NOTE(w, "%zu more places where a rank did something else are left out",
                        w->when_count - WHENS_MAX);
}

static bool is_whole(const cd_lift *l, const cd_lift_pass *p)
{
    size_t wanted = 0;
    for (size_t i = 0; i < l->parameter_count; i++) wanted += l->parameters[i].variable >= 0;
    return p->arrived_count == wanted;
}

static const char *print_order(cd_lift *l, const cd_lift_pass *p)
{
    cd_text t;
    cd_text_init(&t, false);
    cd_text_push(&t, "ready = \"listed\"\nready_order = [");
    for (size_t i = 0; i < p->arrived_count; i++) {
        if (i > 0) cd_text_push(&t, ", ");
        cd_writing_put_quoted(&t, cd_writing_name_of(l, p->arrived[i]));
    }
    cd_text_push(&t, "]\n");
    const char *words = cd_arena_strdup(&l->arena, cd_text_get(&t));
    cd_text_fini(&t);
    return words;
}

static const char *print_unused(cd_lift *l, const cd_lift_pass *p)
{
    cd_text t;
    bool has_any = false;
    cd_text_init(&t, false);
    for (size_t i = 0; i < l->parameter_count; i++) {
        const cd_lift_parameter *q = &l->parameters[i];
        bool has = q->variable < 0;
        for (size_t k = 0; k < p->arrived_count; k++) has |= p->arrived[k] == q->variable;
        if (has) continue;
        cd_text_push(&t, has_any ? ", " : "uses = [");
        cd_writing_put_quoted(&t, cd_arena_printf(&l->arena, "%s=0", q->name));
        has_any = true;
    }
    if (has_any) cd_text_push(&t, "]\n");
    const char *words = cd_arena_strdup(&l->arena, cd_text_get(&t));
    cd_text_fini(&t);
    return words;
}

static bool is_same_order(const cd_lift_pass *a, const cd_lift_pass *b)
{
    return a->arrived_count == b->arrived_count &&
           memcmp(a->arrived, b->arrived, a->arrived_count * sizeof *a->arrived) == 0;
}

/* The first whole order is that of all passes; another one, or parameters that are missing, are
** said where they were. A rank that ended in its backward said only a part of it. */
static const cd_lift_pass *find_order(const cd_lift *l)
{
    for (size_t i = 0; i < l->pass_count; i++)
        if (is_whole(l, &l->passes[i])) return &l->passes[i];
    return NULL;
}

static bool is_cut(const cd_lift *l, size_t at)
{
    const cd_lift_rank *r = &l->ranks[l->passes[at].rank];
    return r->pass == at + 1 && (r->in_backward || !r->is_over || r->end != CDDP_RANK_RETURNED);
}

static void compare_pass(cd_writing *w, size_t at, const cd_lift_pass *order, int64_t samples)
{
    cd_lift *l = w->l;
    const cd_lift_pass *p = &l->passes[at];
    const bool is_last = p->micro_step + 1 == w->micro_steps;
    if (p->micro_step >= w->micro_steps || p->step >= w->steps) return;
    if (p->is_sync != is_last)
        differ(w, p->rank, p->step, p->micro_step, p->is_sync ? "sync = true\n" : "sync = false\n");
    if (samples < 0 && p->samples >= 0 && !w->has_gradients)
        differ(w, p->rank, p->step, p->micro_step,
               cd_arena_printf(&l->arena, "samples = %" PRId64 "\n",
                               p->samples < 65536 ? p->samples : 65536));
    if (is_cut(l, at)) return;
    if (!p->has_backward && p->arrived_count == 0) {
        differ(w, p->rank, p->step, p->micro_step, "skip = \"backward\"\n");
        return;
    }
    if (p->arrived_count == 0) return; /* inside no_sync nothing says what came */
    if (!is_whole(l, p))
        differ(w, p->rank, p->step, p->micro_step, print_unused(l, p));
    else if (order != NULL && !is_same_order(order, p))
        differ(w, p->rank, p->step, p->micro_step, print_order(l, p));
}

/* What a rank did in a step. One that its rank did not come to the end of says nothing. */
typedef struct step_facts {
    uint32_t passes, first; /* first: the micro-step here of its first pass */
    bool has_step, is_open;
} step_facts;

static step_facts *find_steps(cd_writing *w)
{
    cd_lift *l = w->l;
    step_facts *all = cd_arena_array(&l->arena, (size_t)l->rank_count * w->steps, sizeof *all);
    for (size_t i = 0; all != NULL && i < l->pass_count; i++) {
        const cd_lift_pass *p = &l->passes[i];
        const cd_lift_rank *r = &l->ranks[p->rank];
        const bool has_left = r->is_over && r->end == CDDP_RANK_RETURNED && r->status == CDDP_OK;
        if (p->step >= w->steps || p->micro_step >= w->micro_steps) continue;
        step_facts *f = &all[(size_t)p->rank * w->steps + p->step];
        f->passes = p->micro_step + 1 > f->passes ? p->micro_step + 1 : f->passes;
        f->has_step |= p->has_step;
        f->is_open |= r->pass == i + 1 && !has_left;
    }
    return all;
}

/* A step with fewer passes than others has the last micro-steps: there is what all ranks do. */
static void shift_passes(cd_writing *w)
{
    cd_lift *l = w->l;
    step_facts *all = find_steps(w);
    const size_t count = all != NULL ? (size_t)l->rank_count * w->steps : 0;
    for (size_t at = 0; at < count && !l->has_join; at++) {
        step_facts *f = &all[at];
        const uint32_t rank = (uint32_t)(at / w->steps), step = (uint32_t)(at % w->steps);
        if (f->passes == 0 || f->is_open) continue;
        f->first = w->micro_steps - f->passes;
        for (uint32_t m = 0; m < f->first; m++) differ(w, rank, step, m, "skip = \"all\"\n");
        if (!f->has_step && l->optimizer != NULL) differ(w, rank, step, -1, "skip = \"step\"\n");
    }
    for (size_t i = 0; i < l->pass_count && count > 0; i++) {
        cd_lift_pass *p = &l->passes[i];
        if (p->step < w->steps && p->micro_step < w->micro_steps)
            p->micro_step += all[(size_t)p->rank * w->steps + p->step].first;
    }
}

/* Of all passes that say it, or -1: they differ. */
int64_t cd_writing_common_samples(const cd_lift *l)
{
    int64_t all = -2;
    for (size_t i = 0; i < l->pass_count; i++) {
        const int64_t n = l->passes[i].samples;
        if (n < 0) continue;
        if (all >= 0 && n != all) return -1;
        all = n;
    }
    return all;
}

void cd_writing_count_loop(cd_writing *w)
{
    const cd_lift *l = w->l;
    for (uint32_t i = 0; i < l->rank_count; i++) {
        const uint32_t contexts = cd_lift_context_count(l, i);
        if (contexts > w->epochs) w->epochs = contexts;
        if (l->ranks[i].steps > w->steps) w->steps = l->ranks[i].steps;
    }
    if (w->epochs > 0) w->steps = w->epochs * l->context_length;
    for (size_t i = 0; i < l->pass_count; i++)
        if (l->passes[i].micro_step >= w->micro_steps) w->micro_steps = l->passes[i].micro_step + 1;
    if (w->micro_steps > 4096) w->micro_steps = 4096;
}

/* data.inputs is one number: in a context with fewer, the rank stops. */
static void stop_in_contexts(cd_writing *w, uint32_t rank)
{
    const cd_lift *l = w->l;
    const uint32_t inputs = cd_lift_inputs(l, rank);
    const cd_lift_context *c;
    for (uint32_t i = 0; (c = cd_lift_find_context(l, rank, i)) != NULL; i++)
        if (c->is_whole && c->steps < inputs)
            differ(w, rank, i * l->context_length + c->steps, -1, "stop = true\n");
}

void cd_writing_passes(cd_writing *w, int64_t samples)
{
    cd_lift *l = w->l;
    const cd_lift_pass *order = find_order(l);
    if (order != NULL) {
        const char *words = print_order(l, order);
        cd_text_push(w->out, "\n[[when]]\n");
        if (words != NULL) cd_text_push(w->out, words);
    } else {
        CD_WRITING_NOTE(w, "no backward shows all gradients: their order is the engine's");
    }
    shift_passes(w);
    for (size_t i = 0; i < l->pass_count; i++) compare_pass(w, i, order, samples);
    for (size_t i = 0; i < l->skip_count; i++)
        if (l->skips[i].step < w->steps)
            differ(w, l->skips[i].rank, l->skips[i].step, -1, "skip = \"step\"\n");
    for (uint32_t i = 0; i < l->rank_count; i++) {
        const cd_lift_rank *r = &l->ranks[i];
        const bool left = r->is_over && r->end == CDDP_RANK_RETURNED && r->status == CDDP_OK;
        for (uint32_t s = r->steps; left && !l->has_join && s < w->steps; s++)
            differ(w, i, s, -1, "stop = true\n");
        stop_in_contexts(w, i);
    }
    write_whens(w);
}
