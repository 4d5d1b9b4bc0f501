/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the scenario: what all ranks do in every step first, then [[when]] for what differs. See
** writing.h. */
#include "verify/lift/writing.h"

#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>

#define SAMPLES_MAX 4

void cd_lift_note(cd_lift *l, const char *note)
{
    if (note == NULL) return;
    if (cd_arena_grow(&l->arena, (void **)&l->notes, &l->note_capacity, l->note_count + 1,
                      sizeof *l->notes))
        l->notes[l->note_count++] = note;
}

/* ---- ends ---- */

/* It ended, or stood still, while it waited for another rank: no cause. */
static bool is_waiting(const cd_lift_rank *r) { return r->outstanding > 0 || r->has_failed; }

/* Others waited, when all was over, in operations that this one had not come to. */
static bool is_missed(const cd_lift *l, const cd_lift_rank *r)
{
    for (uint32_t i = 0; i < l->rank_count; i++) {
        const cd_lift_rank *o = &l->ranks[i];
        if (o->is_over && is_waiting(o) && o->collectives > r->collectives) return true;
    }
    return false;
}

/* What the rank does by itself; NULL: nothing. */
static const char *find_fault(const cd_lift *l, const cd_lift_rank *r)
{
    if (!r->is_over) return NULL;
    if (r->end == CDDP_RANK_KILLED) return "kill";
    if (is_waiting(r)) return NULL;
    if (r->end == CDDP_RANK_HUNG) return "hang";
    if (r->end == CDDP_RANK_CRASHED) return "kill";
    if (!is_missed(l, r)) return NULL;
    if (r->end == CDDP_RANK_INTERRUPTED) return "hang";
    return r->end == CDDP_RANK_RETURNED && r->status != CDDP_OK ? "kill" : NULL;
}

static void continue_ranks(cd_writing *w)
{
    cd_lift *l = w->l;
    uint32_t most = l->rank_count;
    for (uint32_t i = 0; i < l->rank_count; i++)
        if (find_fault(l, &l->ranks[i]) == NULL &&
            (most == l->rank_count || l->ranks[i].collectives > l->ranks[most].collectives))
            most = i;
    for (uint32_t i = 0; most < l->rank_count && i < l->rank_count; i++)
        if (find_fault(l, &l->ranks[i]) != NULL) cd_lift_continue(l, i, most);
}
/* The number of its next operation there. A wrapper of ours posts one all-reduce before it
** broadcasts; PyTorch's an all-gather and a broadcast of sizes. What the program posted before it
** wrapped is not lifted. */
static uint64_t count_posted(const cd_lift_rank *r)
{
    if (!r->has_wrapper || r->before_wrap == 0) return r->collectives; /* or of bare.c */
    const bool has_sizes = r->has_gathered && r->last_broadcasts > 0;
    const bool is_verified = r->before_wrap > r->last_broadcasts;
    return r->collectives - r->before_wrap + is_verified + r->last_broadcasts - has_sizes;
}

static void write_ends(cd_writing *w)
{
    const cd_lift *l = w->l;
    if (l->hook != NULL && l->has_continuations) {
        CD_WRITING_NOTE(
            w, "how the ranks ended: which continuation comes first is left to explore, and this "
               "scenario goes on");
        return;
    }
    for (uint32_t i = 0; i < l->rank_count; i++) {
        const cd_lift_rank *r = &l->ranks[i];
        const char *kind = find_fault(l, r);
        if (kind == NULL && !r->is_over && is_missed(l, r))
            CD_WRITING_NOTE(
                w,
                "the hang: others waited for rank %" PRIu32
                ", and nothing that was recorded says why it did not come. A run of this scenario "
                "may go through",
                i);
        if (kind == NULL) continue;
        cd_text_printf(w->out,
                       "\n[[fault]]\nkind = \"%s\"\nrank = %" PRIu32
                       "\nwhen = \"before\"\nat = %" PRIu64 "\n",
                       kind, i, count_posted(r));
        if (r->end == CDDP_RANK_CRASHED)
            CD_WRITING_NOTE(w,
                            "rank %" PRIu32
                            " left the program; here it is killed before its next operation",
                            i);
        else if (r->end == CDDP_RANK_RETURNED)
            CD_WRITING_NOTE(
                w,
                "rank %" PRIu32
                " ended with its own error; here it is killed before its next operation",
                i);
        else if (r->end == CDDP_RANK_INTERRUPTED)
            CD_WRITING_NOTE(
                w,
                "what rank %" PRIu32
                " did while others waited for it; here it hangs before its next operation",
                i);
    }
    if (!l->is_complete)
        CD_WRITING_NOTE(
            w, "the recording has no good end: the program may have had more steps than %" PRIu32,
            w->steps);
}

static void write_train(cd_writing *w, int64_t samples)
{
    const cd_lift *l = w->l;
    cd_text_printf(w->out, "train.steps = %" PRIu32 "\ntrain.micro_steps = %" PRIu32 "\n", w->steps,
                   w->micro_steps);
    if (!l->has_zero_grad)
        cd_text_push(w->out, "train.zero_grad = \"keep\"\n");
    else if (l->zeroes)
        cd_text_push(w->out, "train.zero_grad = \"zero\"\n");
    if (w->has_gradients)
        cd_text_push(w->out, "train.loss = \"sum\"\ndata.samples = 1\n");
    else if (samples > 0)
        cd_text_printf(w->out, "data.samples = %" PRId64 "\n",
                       samples < SAMPLES_MAX ? samples : SAMPLES_MAX);
    if (samples > SAMPLES_MAX && !w->has_gradients)
        CD_WRITING_NOTE(w, "a pass has %d samples instead of %" PRId64, SAMPLES_MAX, samples);
    if (l->has_join) cd_text_push(w->out, "join.enable = true\n");
    if (w->epochs > 1) cd_text_printf(w->out, "join.epochs = %" PRIu32 "\n", w->epochs);
    if (l->has_join && cd_lift_inputs(l, 0) < l->context_length)
        cd_text_printf(w->out, "data.inputs = %" PRIu32 "\n", cd_lift_inputs(l, 0));
    size_t outside = 0;
    for (size_t i = 0; i < l->pass_count; i++) outside += !l->passes[i].is_joined;
    if (l->has_join && outside > 0)
        CD_WRITING_NOTE(w, "%zu passes outside of join contexts take place within one", outside);
}

static cddp_status check(const cd_lift *l, cddp_error *err)
{
    bool has_forwards = l->pass_count > 0;
    if (l->parameter_count == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "nothing to lift: the recording names no parameters");
    if (!has_forwards)
        return cd_fail(
            err, CDDP_E_UNSUPPORTED,
            "nothing to lift: the program has no forward through cddp_ddp. A scenario trains "
            "with it, and a program that reduces by itself is judged by check alone");
    return CDDP_OK;
}

static void write_head(cd_lift *l, cd_text *toml, const char *about, const char *body)
{
    cd_text_push(toml, "schema = 1\ntitle = ");
    cd_writing_put_quoted(toml, cd_arena_printf(&l->arena, "lifted from a recording of %s",
                                                l->program[0] != '\0' ? l->program : "a program"));
    cd_text_printf(toml, "\n# %s What could not be expressed:\n", about);
    for (size_t i = 0; i < l->note_count; i++) cd_text_printf(toml, "#   %s\n", l->notes[i]);
    if (l->note_count == 0) cd_text_push(toml, "#   nothing\n");
    cd_text_push(toml, body);
}

/* All agreed, and all came: what kept the last operation is not in the recording. */
static bool is_unexplained(const cd_lift *l)
{
    bool waits = false;
    for (uint32_t i = 0; i < l->rank_count; i++) {
        if (find_fault(l, &l->ranks[i]) != NULL) return false;
        if (l->ranks[i].collectives != l->ranks[0].collectives) return false;
        waits |= is_waiting(&l->ranks[i]);
    }
    for (size_t i = 0; i < l->collective_count; i++)
        if (!cd_writing_posts_alike(l, l->collectives[i].rank, 0, 0, 0, CD_LIFT_BEFORE_FORWARD))
            return false;
    return waits;
}

static cddp_status write_bare(cd_lift *l, cd_text *toml, cddp_error *err)
{
    cd_text body;
    CD_TRY(cd_lift_keep_bare(l, err));
    cd_text_init(&body, false);
    cd_writing w = {.l = l, .out = &body, .steps = 1, .micro_steps = 1, .scale = 1};
    cd_text_printf(&body,
                   "\nworld.size = %" PRIu32
                   "\ntrain.steps = 1\n\n[model]\nname = \"params\"\noptions = "
                   "\"list=nothing:1:f32\"\n",
                   l->rank_count);
    if (is_unexplained(l))
        CD_WRITING_NOTE(
            &w, "why the last operations did not end: all ranks agree on them, and a run of this "
                "scenario goes through");
    cd_writing_groups(&w);
    continue_ranks(&w);
    cd_writing_collectives(&w);
    l->is_complete = true;
    write_ends(&w);
    write_head(l, toml,
               "What the recorded ranks posted from the last operation on which all agreed; the "
               "model is not theirs.",
               cd_text_get(&body));
    const bool failed = body.failed || toml->failed;
    cd_text_fini(&body);
    CD_TRY(cd_arena_check(&l->arena, err, "a scenario"));
    return failed ? cd_fail_memory(err, "a scenario") : CDDP_OK;
}

cddp_status cd_lift_write(cd_lift *l, cd_text *toml, cddp_error *err)
{
    cd_text body;
    CD_TRY(cd_arena_check(&l->arena, err, "a recorded run"));
    if (cd_lift_is_bare(l)) return CD_PASS(write_bare(l, toml, err));
    CD_TRY(check(l, err));
    cd_text_init(&body, false);
    cd_writing w = {.l = l, .out = &body};
    const int64_t samples = cd_writing_common_samples(l);
    cd_lift_end_joins(l);
    cd_writing_count_loop(&w);
    w.has_gradients = cd_writing_has_gradients(&w);
    cd_writing_choose_scale(&w);
    if (l->wrapper_count > 1)
        CD_WRITING_NOTE(
            &w,
            "%zu wrappers%s%s: the first one's parameters train, and what the others post are "
            "collectives of the program%s",
            l->wrapper_count,
            l->why_apart != NULL ? ", which no scenario has together, since " : "",
            l->why_apart != NULL ? l->why_apart : "",
            l->is_interleaved ? ", after the backward in which they were posted" : "");
    cd_text_printf(&body, "\nworld.size = %" PRIu32 "\n", l->rank_count);
    write_train(&w, samples);
    cd_writing_settings(&w);
    cd_writing_caps(&w);
    const cddp_status status = cd_writing_model(&w, err);
    cd_writing_hook(&w);
    cd_writing_optimizer(&w);
    cd_writing_rank_settings(&w);
    cd_writing_passes(&w, samples);
    cd_writing_groups(&w);
    continue_ranks(&w);
    cd_writing_collectives(&w);
    write_ends(&w);
    if (status == CDDP_OK)
        write_head(l, toml, "What the recorded program did, with a model of as many parameters.",
                   cd_text_get(&body));
    const bool failed = body.failed || toml->failed;
    cd_text_fini(&body);
    if (status != CDDP_OK) return CD_PASS(status);
    CD_TRY(cd_arena_check(&l->arena, err, "a scenario"));
    return failed ? cd_fail_memory(err, "a scenario") : CDDP_OK;
}
