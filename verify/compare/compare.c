/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/compare/compare.h"

#include "cddp/tensor.h"
#include "core/base/error.h"
#include "core/base/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Lines of a list that are kept; the number goes on. */
#define LINES_MAX 20u

/* A tensor of both runs. */
typedef struct pair {
    const char *name;
    size_t one, many; /* variables */
} pair;

typedef struct comparing {
    const cd_traced *one, *many;
    const cd_comparison_options *options;
    cd_comparison *c;
    pair *pairs; /* (pair_count) */
    size_t pair_count;
    bool had_equal_bits;                    /* every gradient so far */
    bool has_other_forwards, says_forwards; /* the samples of a step were cut otherwise */
    uint32_t end; /* steps from here on may be half a step; UINT32_MAX: none */
} comparing;

/* ---- lists ---- */

static void push_line(cd_comparison *c, const char ***lines, size_t *count, size_t *capacity,
                      const char *line)
{
    if (++*count > LINES_MAX) return;
    if (cd_arena_grow(&c->arena, (void **)lines, capacity, *count, sizeof **lines))
        (*lines)[*count - 1] = line;
}

#define MISMATCH(k, ...)                                                                        \
    push_line((k)->c, &(k)->c->mismatches, &(k)->c->mismatch_count, &(k)->c->mismatch_capacity, \
              cd_arena_printf(&(k)->c->arena, __VA_ARGS__))
#define GAP(k, ...)                                                             \
    push_line((k)->c, &(k)->c->gaps, &(k)->c->gap_count, &(k)->c->gap_capacity, \
              cd_arena_printf(&(k)->c->arena, __VA_ARGS__))

static void push_difference(comparing *k, const cd_comparison_difference *d)
{
    cd_comparison *c = k->c;
    if (++c->difference_count > LINES_MAX) return;
    if (cd_arena_grow(&c->arena, (void **)&c->differences, &c->difference_capacity,
                      c->difference_count, sizeof *c->differences))
        c->differences[c->difference_count - 1] = *d;
}

static const char *digest_words(comparing *k, int64_t digest, bool is_split)
{
    return is_split      ? "its ranks differ"
           : digest == 0 ? "nothing was shown"
                         : cd_arena_printf(&k->c->arena, "digest %016" PRIx64, (uint64_t)digest);
}

/* A program without names says "parameter 3". */
static const char *parameter_words(comparing *k, const char *name)
{
    static const char prefix[] = "parameter ";
    return strncmp(name, prefix, sizeof prefix - 1) == 0
               ? name
               : cd_arena_printf(&k->c->arena, "%s%s", prefix, name);
}

/* ---- is it the same training? ---- */

static size_t find_name(const cd_traced *f, const char *name)
{
    size_t i = 0;
    while (i < f->tensor_count &&
           (f->tensors[i].name == NULL || strcmp(f->tensors[i].name, name) != 0))
        i++;
    return i;
}

static void pair_tensors(comparing *k)
{
    k->pairs = cd_arena_array(&k->c->arena, k->one->tensor_count + 1, sizeof *k->pairs);
    for (size_t i = 0; k->pairs != NULL && i < k->one->tensor_count; i++) {
        const cd_traced_tensor *a = &k->one->tensors[i];
        if (a->name == NULL) continue;
        const size_t other = find_name(k->many, a->name);
        if (other == k->many->tensor_count) {
            MISMATCH(k, "%s is in %s alone", parameter_words(k, a->name), k->options->one);
            continue;
        }
        const cd_traced_tensor *b = &k->many->tensors[other];
        if (a->numel != b->numel || a->dtype != b->dtype || a->shape != b->shape)
            MISMATCH(k, "%s has %" PRId64 " %s in %s, and %" PRId64 " %s%s in %s",
                     parameter_words(k, a->name), a->numel, cddp_dtype_name((cddp_dtype)a->dtype),
                     k->options->one, b->numel, cddp_dtype_name((cddp_dtype)b->dtype),
                     a->numel == b->numel && a->dtype == b->dtype ? ", in another shape," : "",
                     k->options->many);
        const char *name = cd_arena_strdup(&k->c->arena, a->name);
        if (name == NULL) return;
        k->pairs[k->pair_count++] = (pair){name, i, other};
    }
    for (size_t i = 0; i < k->many->tensor_count; i++)
        if (k->many->tensors[i].name != NULL &&
            find_name(k->one, k->many->tensors[i].name) == k->one->tensor_count)
            MISMATCH(k, "%s is in %s alone", parameter_words(k, k->many->tensors[i].name),
                     k->options->many);
    k->c->tensor_count = k->pair_count;
}

static void match_samples(comparing *k, const cd_traced_step *a, const cd_traced_step *b)
{
    if (!a->has_samples || !b->has_samples) {
        GAP(k, "step %" PRIu32 ": samples were not recorded in %s (cddp_record_samples)", a->number,
            a->has_samples ? k->options->many : k->options->one);
    } else if (a->samples != b->samples) {
        MISMATCH(k, "step %" PRIu32 ": %" PRIu64 " sample%s in %s, %" PRIu64 " in %s", a->number,
                 a->samples, cd_plural(a->samples), k->options->one, b->samples, k->options->many);
    } else if (a->ids != b->ids) {
        MISMATCH(k, "step %" PRIu32 ": %" PRIu64 " sample%s in both, but not the same ones",
                 a->number, a->samples, cd_plural(a->samples));
    } else {
        k->has_other_forwards |= a->forwards != b->forwards;
    }
    k->c->samples += a->samples;
}

static void miss_step(comparing *k, uint32_t number, const char *run)
{
    GAP(k, "step %" PRIu32 " is in %s alone", number, run);
}

static void match_steps(comparing *k)
{
    size_t common = 0;
    for (size_t i = 0; i < k->one->step_count; i++) {
        const cd_traced_step *a = &k->one->steps[i];
        const cd_traced_step *b = cd_traced_find(k->many, a->number);
        if (b == NULL) {
            miss_step(k, a->number, k->options->one);
            continue;
        }
        if (a->number < k->end) match_samples(k, a, b);
        common++;
    }
    for (size_t i = 0; i < k->many->step_count; i++)
        if (cd_traced_find(k->one, k->many->steps[i].number) == NULL)
            miss_step(k, k->many->steps[i].number, k->options->many);
    if (common == 0) MISMATCH(k, "no step is in both runs");
}

/* Without a rank's shard nothing is a sum over the ranks. */
static bool has_all_ranks(comparing *k, const cd_traced *f, const char *run)
{
    bool has = true;
    for (uint32_t i = 0; i < f->rank_count; i++) {
        if (f->ranks[i].has_events) continue;
        GAP(k, "the shard of rank %" PRIu32 " of %" PRIu32 " was not given with %s", i,
            f->rank_count, run);
        has = false;
    }
    return has;
}

/* A recording that was cut ends within a step, and ranks were not all equally far. */
static void find_end(comparing *k, const cd_traced *f, const char *run)
{
    uint32_t end = UINT32_MAX;
    for (uint32_t i = 0; i < f->rank_count && !f->is_complete; i++)
        if (f->ranks[i].reached < end) end = f->ranks[i].reached;
    if (end == UINT32_MAX) return;
    GAP(k, "%s did not come to its end: steps from %" PRIu32 " on are not compared", run, end);
    if (end < k->end) k->end = end;
}

static void match(comparing *k)
{
    if (k->one->rank_count != 1)
        MISMATCH(k, "%s is a run of %" PRIu32 " ranks; the first one is to be a single process",
                 k->options->one, k->one->rank_count);
    if (k->one->has_models || k->many->has_models)
        MISMATCH(k, "%s has several wrappers, whose parameters have the same numbers",
                 k->one->has_models ? k->options->one : k->options->many);
    pair_tensors(k);
    if (k->pair_count == 0 && k->c->mismatch_count == 0)
        MISMATCH(k, "no parameters were recorded (cddp_ddp_create, or cddp_record_parameter)");
    find_end(k, k->one, k->options->one);
    find_end(k, k->many, k->options->many);
    match_steps(k);
}

/* ---- a step ---- */

static const cd_traced_cell *cell_of(const cd_traced_step *s, size_t variable)
{
    static const cd_traced_cell none;
    return variable < s->cell_count ? &s->cells[variable] : &none;
}

/* Before a step: what the step before left, or what was there at the beginning. */
static int64_t find_begin(const cd_traced *f, const cd_traced_step *s, size_t variable,
                          bool *is_split)
{
    const cd_traced_last *l =
        s == f->steps ? &f->tensors[variable].initial : &cell_of(s - 1, variable)->after;
    *is_split |= l->is_split;
    return l->digest;
}

static void compare_begin(comparing *k, const cd_traced_step *a, const cd_traced_step *b,
                          cd_comparison_step *out)
{
    bool is_split = false;
    out->began_equal = out->is_begin_shown = true;
    for (size_t i = 0; i < k->pair_count; i++) {
        const int64_t x = find_begin(k->one, a, k->pairs[i].one, &is_split);
        const int64_t y = find_begin(k->many, b, k->pairs[i].many, &is_split);
        out->is_begin_shown &= x != 0 && y != 0;
        out->began_equal &= x == y;
    }
    out->began_equal &= out->is_begin_shown && !is_split;
}

static void compare_rates(comparing *k, const cd_traced_step *a, const cd_traced_step *b)
{
    if (a->has_stepped == b->has_stepped && a->is_skipped == b->is_skipped && a->rate == b->rate)
        return;
    cd_comparison_difference d = {.what = CD_COMPARISON_RATE,
                                  .step = a->number,
                                  .tensor = "",
                                  .hint = ""};
    const cd_traced_step *sides[2] = {a, b};
    const char *words[2];
    for (int i = 0; i < 2; i++)
        words[i] = !sides[i]->has_stepped ? "no optimizer stepped"
                   : sides[i]->is_skipped
                       ? "the step was skipped"
                       : cd_arena_printf(&k->c->arena, "learning rate %.9g", sides[i]->rate);
    d.one = words[0], d.many = words[1];
    push_difference(k, &d);
}

static void note_bits(comparing *k, uint32_t step, const char *what, const char *name)
{
    if (k->c->first_bits[0] != '\0') return;
    k->c->first_bits_step = step;
    k->c->first_bits = cd_arena_printf(&k->c->arena, "%s of %s", what, name);
    if (k->c->first_bits == NULL) k->c->first_bits = "";
}

static void compare_digests(comparing *k, uint32_t step, const pair *p, cd_comparison_what what,
                            const cd_traced_last *one, const cd_traced_last *many, bool is_owed)
{
    const int64_t digests[2] = {one->digest, many->digest};
    const bool is_split = many->is_split;
    const bool is_equal = digests[0] != 0 && digests[0] == digests[1] && !is_split;
    uint64_t *equal =
        what == CD_COMPARISON_GRADIENT ? &k->c->equal_gradients : &k->c->equal_parameters;
    uint64_t *all = what == CD_COMPARISON_GRADIENT ? &k->c->gradients : &k->c->parameters;
    if (digests[0] == 0 && digests[1] == 0) return; /* no gradient in both */
    if (many->ranks < many->all)
        GAP(k, "step %" PRIu32 ": the last %s of %s is not of all ranks", step,
            what == CD_COMPARISON_GRADIENT ? "reduction" : "value", p->name);
    ++*all;
    *equal += is_equal;
    if (is_equal) return;
    note_bits(k, step, what == CD_COMPARISON_GRADIENT ? "the gradient" : "the parameter", p->name);
    const bool is_absent = digests[0] == 0 || digests[1] == 0;
    if (!is_owed && !is_absent && !is_split) return;
    if (is_absent && what == CD_COMPARISON_PARAMETER) {
        GAP(k, "step %" PRIu32 ": %s after the step was not recorded in %s (cddp_record_value)",
            step, p->name, digests[0] == 0 ? k->options->one : k->options->many);
        return;
    }
    push_difference(k, &(cd_comparison_difference){
                           .what = is_split    ? CD_COMPARISON_SPLIT
                                   : is_absent ? CD_COMPARISON_PRESENCE
                                               : what,
                           .step = step,
                           .tensor = p->name,
                           .one = digest_words(k, digests[0], false),
                           .many = digest_words(k, digests[1], is_split),
                           .hint = is_split ? "judge that run first: cddp-verify check" : ""});
}

/* See Note [Projections of a mean] in verify/import/means.h. */
static double mean_bound(const cd_traced_cell *c, double ranks)
{
    const bool is_single = c->dtype == CDDP_F32;
    const double roundoff = is_single ? 0x1p-24 : 0x1p-53, tiny = is_single ? 0x1p-149 : 0x1p-1074;
    const double terms = (ranks + 2) * roundoff, n = (double)c->numel;
    return (terms / (1 - terms) + 8 * n * 0x1p-53) * c->magnitude / ranks + 2 * n * ranks * tiny;
}

static void compare_reduction(comparing *k, uint32_t step, const pair *p, const cd_traced_cell *c)
{
    const double ranks = (double)k->many->rank_count;
    if (k->c->unheld[0] != '\0' || c->gradient.digest == 0) return;
    k->c->reductions++;
    if (c->locals != k->many->rank_count || c->shown != k->many->rank_count) {
        GAP(k, "step %" PRIu32 ": %s was not recorded before and after its reduction by all ranks",
            step, p->name);
        return;
    }
    const double mean = c->local / ranks, far = fabs(c->reduced - mean);
    if (far <= mean_bound(c, ranks)) {
        k->c->held++;
        return;
    }
    const bool is_sum = fabs(c->reduced - c->local) <= ranks * mean_bound(c, ranks);
    push_difference(
        k, &(cd_comparison_difference){
               .what = CD_COMPARISON_REDUCTION,
               .step = step,
               .tensor = p->name,
               .one = cd_arena_printf(&k->c->arena, "projection %.9g ± %.2g: the mean of the ranks",
                                      mean, mean_bound(c, ranks)),
               .many =
                   cd_arena_printf(&k->c->arena, "projection %.9g after the reduction", c->reduced),
               .hint = is_sum ? "it is the sum: divide by the number of ranks" : ""});
}

/* A factor between both sides says much. */
static const char *explain_ratio(comparing *k, double one, double many)
{
    const double ranks = (double)k->many->rank_count, ratio = many / one;
    if (!isfinite(ratio) || k->many->rank_count < 2) return "";
    if (fabs(ratio / ranks - 1) < 1e-3)
        return "it is W times as large: the loss of a rank is not divided by the samples of the "
               "rank";
    if (fabs(ratio * ranks - 1) < 1e-3)
        return "it is 1/W of that: the loss is divided by the samples of all ranks, and DDP "
               "divides again";
    return cd_arena_printf(&k->c->arena, "factor %.6g", ratio);
}

static void compare_local(comparing *k, cd_comparison_step *out, const pair *p,
                          const cd_traced_cell *a, const cd_traced_cell *b)
{
    const double ranks = (double)k->many->rank_count, mean = b->local / ranks;
    const double size = b->magnitude / ranks > a->magnitude ? b->magnitude / ranks : a->magnitude;
    const double far = fabs(mean - a->local), relative = size > 0 ? far / size : far;
    if (a->locals != 1 || b->locals != k->many->rank_count) {
        GAP(k, "step %" PRIu32 ": %s was not recorded before its reduction (cddp_record_gradient)",
            out->number, p->name);
        return;
    }
    out->has_local = true;
    if (relative > out->local || !isfinite(relative))
        out->local = relative, out->local_tensor = p->name;
    if (k->options->rtol < 0) return;
    if (relative <= k->options->rtol) {
        k->c->locals++;
        return;
    }
    push_difference(k, &(cd_comparison_difference){
                           .what = CD_COMPARISON_LOCAL,
                           .step = out->number,
                           .tensor = p->name,
                           .one = cd_arena_printf(&k->c->arena,
                                                  "projection %.9g, in a sum of sizes %.9g",
                                                  a->local, size),
                           .many = cd_arena_printf(&k->c->arena,
                                                   "projection %.9g, the mean of %" PRIu32
                                                   " ranks: %.3g of it away",
                                                   mean, k->many->rank_count, relative),
                           .hint = explain_ratio(k, a->local, mean)});
}

static void measure(cd_comparison_step *out, const pair *p, const cd_traced_cell *a,
                    const cd_traced_cell *b)
{
    const double far = fabs(a->reduced - b->reduced);
    const double relative = a->reduced_magnitude > 0 ? far / a->reduced_magnitude : far;
    if (a->shown == 0 || b->shown == 0) return;
    out->has_distance = true;
    if (relative > out->distance || !isfinite(relative))
        out->distance = relative, out->tensor = p->name;
}

/* Not where a forward of one run has the samples of several of the other: what is given to the hook
** was rounded otherwise. */
static bool owes_bits(const comparing *k) { return k->c->is_exact && !k->has_other_forwards; }

static void say_forwards(comparing *k, uint32_t step)
{
    if (k->says_forwards) return;
    k->says_forwards = true;
    GAP(k,
        "step %" PRIu32 ": forwards have other samples in both runs, so no equal bits are owed: "
        "let each forward have the same samples in both",
        step);
}

/* There was a gradient, and what became of it nobody said. */
static bool is_unshown(const cd_traced_cell *c) { return c->locals > 0 && c->gradient.all == 0; }

static void compare_step(comparing *k, const cd_traced_step *a, const cd_traced_step *b,
                         cd_comparison_step *out)
{
    const bool is_exact = owes_bits(k);
    *out = (cd_comparison_step){.number = a->number, .tensor = "", .local_tensor = ""};
    compare_begin(k, a, b, out);
    if (!out->is_begin_shown)
        GAP(k,
            "step %" PRIu32
            ": the parameters before it were not recorded in both runs (cddp_record_value, %s)",
            a->number, a == k->one->steps ? "CDDP_MOMENT_AFTER_INIT" : "CDDP_MOMENT_AFTER_STEP");
    compare_rates(k, a, b);
    out->has_equal_bits = true;
    for (size_t i = 0; i < k->pair_count; i++) {
        const pair *p = &k->pairs[i];
        const cd_traced_cell *x = cell_of(a, p->one), *y = cell_of(b, p->many);
        const cd_traced_last *g = &x->gradient, *h = &y->gradient;
        if (is_unshown(x) || is_unshown(y))
            GAP(k,
                "step %" PRIu32
                ": %s was not recorded after its reduction in %s (cddp_record_reduced)",
                a->number, p->name, is_unshown(x) ? k->options->one : k->options->many);
        else
            compare_digests(k, a->number, p, CD_COMPARISON_GRADIENT, g, h, is_exact);
        out->has_equal_bits &= g->digest == h->digest && !h->is_split;
        compare_reduction(k, a->number, p, y);
        if (out->began_equal && !is_exact && g->digest != 0 && h->digest != 0)
            compare_local(k, out, p, x, y);
        measure(out, p, x, y);
    }
    if (k->c->is_exact && !is_exact && !out->has_equal_bits) say_forwards(k, a->number);
    k->had_equal_bits &= out->has_equal_bits && out->began_equal;
    for (size_t i = 0; i < k->pair_count; i++) {
        const pair *p = &k->pairs[i];
        const cd_traced_cell *x = cell_of(a, p->one), *y = cell_of(b, p->many);
        compare_digests(k, a->number, p, CD_COMPARISON_PARAMETER, &x->after, &y->after,
                        is_exact || k->had_equal_bits);
    }
}

/* ---- all of it ---- */

static bool is_reproducible(const cd_traced *f)
{
    return f->accumulates && strcmp(f->hook, "reproducible") == 0;
}

static const char *find_unheld(comparing *k)
{
    if (owes_bits(k)) return "bits were compared instead";
    if (k->many->has_join) return "uneven inputs (join) make something else by right";
    if (k->many->hook[0] != '\0')
        return cd_arena_printf(&k->c->arena, "comm hook %s makes something else by right",
                               k->many->hook);
    return "";
}

/* See Note [The first jump]. */
static void find_jump(comparing *k)
{
    cd_comparison *c = k->c;
    for (size_t i = 1; i < c->step_count && c->jump == NULL; i++) {
        const cd_comparison_step *from = &c->steps[i - 1], *to = &c->steps[i];
        const bool was_near = k->options->rtol < 0 || from->distance <= k->options->rtol;
        const double least = from->distance > 0x1p-24 ? from->distance : 0x1p-24;
        if (from->has_distance && to->has_distance && was_near && to->distance > 1000 * least)
            c->jump = to;
    }
}

static void compare_all(comparing *k)
{
    cd_comparison *c = k->c;
    c->is_exact = is_reproducible(k->one) && is_reproducible(k->many);
    c->first_bits = "";
    k->had_equal_bits = true;
    k->end = UINT32_MAX;
    const bool has_all = has_all_ranks(k, k->one, k->options->one);
    if (!has_all_ranks(k, k->many, k->options->many) || !has_all) return;
    match(k);
    c->unheld = find_unheld(k);
    if (c->mismatch_count > 0 || c->unheld == NULL) return;
    c->steps = cd_arena_array(&c->arena, k->one->step_count, sizeof *c->steps);
    for (size_t i = 0; c->steps != NULL && i < k->one->step_count; i++) {
        const cd_traced_step *b = cd_traced_find(k->many, k->one->steps[i].number);
        if (b != NULL && b->number < k->end)
            compare_step(k, &k->one->steps[i], b, &c->steps[c->step_count++]);
    }
    find_jump(k);
}

cddp_status cd_compare(const cd_traced *one, const cd_traced *many,
                       const cd_comparison_options *options, cd_comparison *comparison,
                       cddp_error *err)
{
    comparing k = {.one = one, .many = many, .options = options, .c = comparison};
    *comparison = (cd_comparison){.first_bits = "", .unheld = ""};
    cd_arena_init(&comparison->arena, NULL, 4096);
    if (one->is_out_of_memory || many->is_out_of_memory)
        return cd_fail_memory(err, "a comparison of %zu steps", one->step_count);
    compare_all(&k);
    return cd_arena_check(&comparison->arena, err, "a comparison of %zu steps", one->step_count);
}

void cd_comparison_fini(cd_comparison *comparison) { cd_arena_fini(&comparison->arena); }

/* Nothing is owed where no step began alike and no bits were equal: then nothing was shown. */
int cd_comparison_exit_code(const cd_comparison *c, const cd_comparison_options *options)
{
    bool has_begun = false;
    for (size_t i = 0; i < c->step_count; i++) has_begun |= c->steps[i].began_equal;
    if (c->mismatch_count > 0) return 4;
    if (c->difference_count > 0) return 1;
    const bool has_equal_bits = c->gradients > 0 && c->equal_gradients == c->gradients &&
                                c->equal_parameters == c->parameters;
    if (c->gap_count > 0 || c->gradients == 0) return 4;
    if (c->is_exact || has_equal_bits) return 0;
    return has_begun && options->rtol >= 0 && c->jump == NULL ? 0 : 4;
}
