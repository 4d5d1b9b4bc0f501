/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the scenario: what all ranks do in every step first, then [[when]] for what differs. */
#include "core/base/format.h"
#include "verify/lift/lift.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"
#include "core/base/error.h"
#include "core/trace/setting.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ELEMENTS_MAX INT64_C(200000) /* of all parameters together: a scenario is to be quick */
#define WHENS_MAX 400u
#define SAMPLES_MAX 4

/* A place of the loop in which something differs, and what it is: equal words share a table. */
typedef struct place {
    uint32_t rank, step;
    int64_t micro_step; /* -1: of the whole step */
    const char *words;  /* lines of the table */
} place;

typedef struct writing {
    cd_lift *l;
    cd_text *out;
    int64_t scale; /* sizes are divided by it */
    bool has_gradients;
    uint32_t steps, micro_steps, epochs; /* epochs: of join, at most of a rank */
    place *places;                       /* (place_count) */
    size_t place_count, place_capacity;
    size_t when_count;
} writing;

#define NOTE(w, ...) cd_lift_note((w)->l, cd_arena_printf(&(w)->l->arena, __VA_ARGS__))

void cd_lift_note(cd_lift *l, const char *note)
{
    if (note == NULL) return;
    if (cd_arena_grow(&l->arena, (void **)&l->notes, &l->note_capacity, l->note_count + 1,
                      sizeof *l->notes))
        l->notes[l->note_count++] = note;
}

/* ---- texts ---- */

static void put_quoted(cd_text *t, const char *words)
{
    cd_text_push(t, "\"");
    for (const char *c = words != NULL ? words : ""; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            cd_text_printf(t, "\\%c", *c);
        else if ((unsigned char)*c < 0x20 || *c == 0x7f)
            cd_text_printf(t, "\\u%04x", (unsigned)*c);
        else
            cd_text_push_bytes(t, c, 1);
    }
    cd_text_push(t, "\"");
}

static void put_real(cd_text *t, double value)
{
    char number[40];
    cd_real_format(number, sizeof number, "%.17g", value);
    cd_text_push(t, number);
    if (strcspn(number, ".e") == strlen(number)) cd_text_push(t, ".0");
}

/* "0-2,5" of the marked ones; *is_all when every one is. */
static const char *print_selection(cd_arena *arena, const bool *marks, uint32_t count, bool *is_all)
{
    const char *words = "";
    *is_all = true;
    for (uint32_t i = 0; words != NULL && i < count; i++) {
        uint32_t last = i;
        *is_all &= marks[i];
        if (!marks[i]) continue;
        while (last + 1 < count && marks[last + 1]) last++;
        words = cd_arena_printf(arena, last > i ? "%s%s%" PRIu32 "-%" PRIu32 : "%s%s%" PRIu32,
                                words, words[0] != '\0' ? "," : "", i, last);
        i = last;
    }
    return words != NULL ? words : "";
}

/* ---- what all ranks have ---- */

static int64_t scaled(const writing *w, int64_t numel)
{
    return numel <= 0 ? numel : (numel + w->scale - 1) / w->scale;
}

static const char *name_of(const cd_lift *l, int64_t variable)
{
    for (size_t i = 0; i < l->parameter_count; i++)
        if (l->parameters[i].variable == variable) return l->parameters[i].name;
    return "?";
}

static void choose_scale(writing *w)
{
    int64_t all = 0;
    for (size_t i = 0; i < w->l->parameter_count; i++) {
        const int64_t numel = w->l->parameters[i].numel;
        if (numel > 0 && numel < INT64_MAX / 2 - all) all += numel;
    }
    w->scale =
        all > ELEMENTS_MAX && !w->has_gradients ? (all + ELEMENTS_MAX - 1) / ELEMENTS_MAX : 1;
    if (w->scale > 1)
        NOTE(w,
             "sizes of parameters and of buckets are divided by %" PRId64
             ": a bucket may begin at another parameter than in the program",
             w->scale);
}

static bool is_size(int32_t key)
{
    return key == CDDP_KEY_ddp_bucket_cap_mb || key == CDDP_KEY_ddp_bucket_cap_mb_list ||
           key == CDDP_KEY_ddp_first_bucket_bytes;
}

static void put_sizes(writing *w, const cd_lift_parameter *p)
{
    int64_t sizes[CD_LIFT_DIMS_MAX];
    const uint32_t count = w->scale == 1 ? cd_lift_find_sizes(p, sizes) : 0;
    if (count == 0) cd_text_printf(w->out, "%" PRId64, p->numel >= 0 ? scaled(w, p->numel) : 1);
    for (uint32_t i = 0; i < count; i++)
        cd_text_printf(w->out, "%s%" PRId64, i > 0 ? "x" : "", sizes[i]);
}

static bool has_flag(const cd_lift *l, cddp_key key)
{
    for (size_t i = 0; i < l->setting_count; i++)
        if (l->settings[i].rank == 0 && cd_setting_find(l->settings[i].key) == (int32_t)key)
            return l->settings[i].value != 0;
    return false;
}

/* Where unused parameters are searched, the first layout stays, and PyTorch 1 makes it with a small
** first bucket whatever was asked for. */
static void write_recorded_caps(writing *w)
{
    const cd_lift *l = w->l;
    const double cap = l->bucket_cap > 0 ? (double)l->bucket_cap / 1048576.0 : 25.0;
    if (has_flag(l, CDDP_KEY_ddp_find_unused_parameters) &&
        !has_flag(l, CDDP_KEY_ddp_static_graph)) {
        cd_text_push(w->out, "ddp.bucket_cap_mb_list = [");
        put_real(w->out, (double)l->first_bucket / 1048576.0);
        cd_text_push(w->out, ", ");
        put_real(w->out, cap);
        cd_text_push(w->out, "]\n");
    } else if (l->bucket_cap > 0) {
        cd_text_push(w->out, "ddp.bucket_cap_mb = ");
        put_real(w->out, cap);
        cd_text_push(w->out, "\n");
        if (l->first_bucket != l->bucket_cap)
            NOTE(w, "the first bucket is as large as the others, as in PyTorch 2");
    } else {
        cd_text_printf(w->out, "ddp.first_bucket_bytes = %" PRId64 "\n", l->first_bucket);
    }
}

/* The caps that make the recorded layout again: each is exactly what its bucket has. */
static void write_caps(writing *w)
{
    const cd_lift *l = w->l;
    bool has_any = false;
    for (size_t i = 0; i < l->setting_count; i++)
        if (is_size(cd_setting_find(l->settings[i].key))) return;
    if (w->has_gradients && l->first_bucket > 0) {
        write_recorded_caps(w);
        return;
    }
    for (size_t first = 0; first < l->slot_count;) {
        double bytes = 0;
        size_t end = first;
        for (; end < l->slot_count && l->slots[end].bucket == l->slots[first].bucket; end++)
            for (size_t k = 0; k < l->parameter_count; k++) {
                const cd_lift_parameter *p = &l->parameters[k];
                if (p->variable == l->slots[end].variable)
                    bytes += (double)scaled(w, p->numel) *
                             (double)cddp_dtype_bytes((cddp_dtype)p->dtype);
            }
        cd_text_push(w->out, has_any ? ", " : "ddp.bucket_cap_mb_list = [");
        put_real(w->out, bytes / 1048576.0);
        has_any = true;
        first = end;
    }
    if (has_any) cd_text_push(w->out, "]\n");
}

/* Recorded gradients are those of a micro-step when each has one backward on each rank. Says what
** keeps them from it. */
static bool has_gradients(writing *w)
{
    const cd_lift *l = w->l;
    if (l->gradients == NULL) return false;
    const char *why = NULL;
    if (strpbrk(l->gradients, ",=") != NULL) why = "the name of their folder has a , or =";
    if (l->has_join) why = "ranks joined";
    if (l->wrapper_count > 1) why = "there are several wrappers";
    for (uint32_t r = 0; r < l->rank_count && why == NULL; r++) {
        uint64_t passes = 0;
        for (size_t i = 0; i < l->pass_count; i++)
            passes += l->passes[i].rank == r && l->passes[i].has_backward;
        if (passes != (uint64_t)w->steps * w->micro_steps)
            why = cd_arena_printf(&w->l->arena,
                                  "rank %" PRIu32 " has %" PRIu64 " backwards, and %" PRIu32
                                  " steps of %" PRIu32 " micro-steps need %" PRIu64,
                                  r, passes, w->steps, w->micro_steps,
                                  (uint64_t)w->steps * w->micro_steps);
    }
    if (why != NULL) NOTE(w, "the recorded gradients: %s", why);
    return why == NULL;
}

static void write_list(writing *w)
{
    const cd_lift *l = w->l;
    cd_text_push(w->out, "name = \"params\"\noptions = \"list=");
    for (size_t i = 0; i < l->parameter_count; i++) {
        const cd_lift_parameter *p = &l->parameters[i];
        cd_text_printf(w->out, "%s%s:", i > 0 ? ";" : "", p->name);
        put_sizes(w, p);
        cd_text_printf(w->out, ":%s%s", cddp_dtype_name((cddp_dtype)p->dtype),
                       p->requires_grad ? "" : ":frozen");
    }
    cd_text_push(w->out, "\"\n");
}

static cddp_status write_model(writing *w, cddp_error *err)
{
    cd_lift *l = w->l;
    cd_text_push(w->out, "\n[model]\n");
    for (size_t i = 0; i < l->parameter_count; i++) {
        const cd_lift_parameter *p = &l->parameters[i];
        if (strpbrk(p->name, ":;,=\"\\") != NULL || p->name[0] == '\0')
            return cd_fail(
                err, CDDP_E_UNSUPPORTED,
                "a scenario cannot name a parameter '%.60s': names have no : ; , = and no quote",
                p->name);
    }
    if (w->has_gradients) {
        cd_text_push(w->out, "name = \"recorded\"\nexact = false\noptions = ");
        put_quoted(w->out, cd_arena_printf(&l->arena, "from=%s", l->gradients));
        cd_text_push(w->out, "\n");
    } else {
        write_list(w);
    }
    bool has_ignored = false;
    for (size_t i = 0; i < l->parameter_count; i++) {
        if (!l->parameters[i].is_ignored) continue;
        cd_text_push(w->out, has_ignored ? ", " : "ignore = [");
        put_quoted(w->out, l->parameters[i].name);
        has_ignored = true;
    }
    if (has_ignored) cd_text_push(w->out, "]\n");
    if (l->buffer_count > 0)
        NOTE(w, "%zu buffers are left out, with their broadcasts before each forward",
             l->buffer_count);
    return CDDP_OK;
}

static void put_value(writing *w, const cd_lift_setting *s)
{
    const int32_t key = cd_setting_find(s->key);
    const int64_t scale = is_size(key) ? w->scale : 1;
    switch (cd_setting_type((cddp_key)key)) {
    case CDDP_KEY_FLAG:
        cd_text_push(w->out, s->value != 0 ? "true" : "false");
        break;
    case CDDP_KEY_NUMBER:
    case CDDP_KEY_NUMBERS:
        put_real(w->out, s->real / (double)scale);
        break;
    case CDDP_KEY_INTEGER:
    case CDDP_KEY_UNSIGNED:
        cd_text_printf(w->out, "%" PRId64, s->value / scale > 0 ? s->value / scale : s->value > 0);
        break;
    default:
        put_quoted(w->out, s->text != NULL ? s->text : "");
        break;
    }
}

/* A list comes item by item. */
static void put_setting(writing *w, size_t at)
{
    const cd_lift *l = w->l;
    const cd_lift_setting *s = &l->settings[at];
    const int32_t key = cd_setting_find(s->key);
    if (key == CDDP_KEY_join_enable && l->has_join) return; /* said with its inputs */
    const cddp_key_type type = cd_setting_type((cddp_key)key);
    const bool is_list = type == CDDP_KEY_TEXTS || type == CDDP_KEY_NUMBERS;
    cd_text_printf(w->out, "%s = %s", cd_setting_path((cddp_key)key), is_list ? "[" : "");
    for (size_t i = at; i < l->setting_count; i++) {
        const cd_lift_setting *item = &l->settings[i];
        if (item->rank != s->rank || item->key != s->key) continue;
        if (i > at) cd_text_push(w->out, ", ");
        put_value(w, item);
        if (!is_list || item->item + 1 >= item->items) break;
    }
    cd_text_push(w->out, is_list ? "]\n" : "\n");
}

static const cd_lift_setting *find_setting(const cd_lift *l, uint32_t rank, int64_t key,
                                           int64_t item)
{
    for (size_t i = 0; i < l->setting_count; i++) {
        const cd_lift_setting *s = &l->settings[i];
        if (s->rank == rank && s->key == key && s->item == item) return s;
    }
    return NULL;
}

static bool is_same(const cd_lift_setting *a, const cd_lift_setting *b)
{
    return a != NULL && b != NULL && a->items == b->items && a->value == b->value &&
           a->real == b->real &&
           (a->text == b->text ||
            (a->text != NULL && b->text != NULL && strcmp(a->text, b->text) == 0));
}

/* Rank 0's first, by full path; a wrapper made twice says them twice. */
static void write_settings(writing *w)
{
    const cd_lift *l = w->l;
    for (size_t i = 0; i < l->setting_count; i++) {
        const cd_lift_setting *s = &l->settings[i];
        if (s->rank == 0 && s->item == 0 && cd_setting_find(s->key) >= 0 &&
            find_setting(l, 0, s->key, 0) == s)
            put_setting(w, i);
    }
    if (w->scale > 1 && find_setting(l, 0, cd_setting_id(CDDP_KEY_ddp_bucket_cap_mb), 0) != NULL &&
        find_setting(l, 0, cd_setting_id(CDDP_KEY_ddp_bucket_cap_mb), 0)->real == 0)
        NOTE(w, "buckets of the default size (25 MiB, the first 1 MiB) are not divided beyond the "
                "first");
}

static void write_rank_settings(writing *w)
{
    const cd_lift *l = w->l;
    for (uint32_t rank = 1; rank < l->rank_count; rank++) {
        bool has_table = false;
        for (size_t i = 0; i < l->setting_count; i++) {
            const cd_lift_setting *s = &l->settings[i];
            if (s->rank != rank || s->item != 0 || cd_setting_find(s->key) < 0 ||
                find_setting(l, rank, s->key, 0) != s || is_same(s, find_setting(l, 0, s->key, 0)))
                continue;
            if (!has_table) cd_text_printf(w->out, "\n[[rank]]\nranks = %" PRIu32 "\n", rank);
            has_table = true;
            put_setting(w, i);
        }
        if (!l->has_join || cd_lift_inputs(l, rank) == cd_lift_inputs(l, 0)) continue;
        if (!has_table) cd_text_printf(w->out, "\n[[rank]]\nranks = %" PRIu32 "\n", rank);
        cd_text_printf(w->out, "data.inputs = %" PRIu32 "\n", cd_lift_inputs(l, rank));
    }
}

static void write_hook(writing *w)
{
    cd_lift *l = w->l;
    if (l->hook == NULL) return;
    if (l->is_of_torch && !cd_lift_knows_hook(l->hook)) {
        NOTE(w, "comm hook '%s' is a function of the program: allreduce takes its place", l->hook);
        return;
    }
    if (strcmp(l->hook, "reproducible") == 0)
        NOTE(w,
             "comm hook reproducible sums as many digits as the values have: its operations have "
             "other sizes");
    cd_text_push(w->out, "\n[hook]\nname = ");
    put_quoted(w->out, l->hook);
    cd_text_push(w->out, "\n");
    if (l->inner != NULL) {
        cd_text_push(w->out, "inner = ");
        put_quoted(w->out, l->inner);
        cd_text_push(w->out, "\n");
    }
    if (l->hook_options.length > 0) {
        cd_text_push(w->out, "options = ");
        put_quoted(w->out, cd_text_get(&l->hook_options));
        cd_text_push(w->out, "\n");
    }
    if (l->has_continuations) cd_text_push(w->out, "continuations = \"on_completion\"\n");
}

static void write_optimizer(writing *w)
{
    static const char *const kinds[] = {"adamw", "adagrad", "adam", "sgd"};
    const cd_lift *l = w->l;
    const char *kind = NULL;
    for (size_t i = 0; l->optimizer != NULL && kind == NULL && i < sizeof kinds / sizeof *kinds;
         i++)
        if (strstr(l->optimizer, kinds[i]) != NULL) kind = kinds[i];
    if (kind == NULL)
        NOTE(w,
             l->optimizer != NULL ? "optimizer '%s' is not known: sgd takes its place"
                                  : "no optimizer was recorded%s: sgd steps",
             l->optimizer != NULL ? l->optimizer : "");
    cd_text_printf(w->out, "\n[[optimizer]]\nkind = \"%s\"\n", kind != NULL ? kind : "sgd");
    if (l->optimizer != NULL) {
        cd_text_push(w->out, "lr = ");
        put_real(w->out, l->rate);
        cd_text_push(w->out, "\n");
    }
    if (l->has_rates)
        NOTE(w, "the learning rate changed, or differed between ranks: the first one is used");
}

/* ---- what differs from pass to pass ---- */

static void differ(writing *w, uint32_t rank, uint32_t step, int64_t micro_step, const char *words)
{
    if (words == NULL) return;
    if (cd_arena_grow(&w->l->arena, (void **)&w->places, &w->place_capacity, w->place_count + 1,
                      sizeof *w->places))
        w->places[w->place_count++] = (place){rank, step, micro_step, words};
}

static void put_selection(writing *w, const char *key, const bool *marks, uint32_t count)
{
    bool is_all;
    const char *words = print_selection(&w->l->arena, marks, count, &is_all);
    if (!is_all) cd_text_printf(w->out, "%s = \"%s\"\n", key, words);
}

/* One table for the same words on several ranks in the same place, or in several steps of the same
** ranks. What was written is marked by words == NULL. */
static void write_when(writing *w, size_t first, bool *ranks, bool *steps, bool *micros)
{
    const place *p = &w->places[first];
    const char *words = p->words;
    const uint32_t step = p->step;
    const int64_t micro = p->micro_step;
    memset(ranks, 0, w->l->rank_count * sizeof *ranks);
    memset(steps, 0, w->steps * sizeof *steps);
    memset(micros, 0, w->micro_steps * sizeof *micros);
    for (size_t i = first; i < w->place_count; i++) {
        place *q = &w->places[i];
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
            const place *q = &w->places[i];
            if (q->words == NULL || q->step != s || q->micro_step != micro ||
                strcmp(q->words, words) != 0)
                continue;
            same += ranks[q->rank];
            others |= !ranks[q->rank];
        }
        if (same != wanted || others) continue;
        steps[s] = true;
        for (size_t i = first; i < w->place_count; i++) {
            place *q = &w->places[i];
            if (q->words != NULL && q->step == s && q->micro_step == micro &&
                strcmp(q->words, words) == 0)
                q->words = NULL;
        }
    }
    if (++w->when_count > WHENS_MAX) return;
    cd_text_push(w->out, "\n[[when]]\n");
    put_selection(w, "ranks", ranks, w->l->rank_count);
    put_selection(w, "steps", steps, w->steps);
    if (micro >= 0 && w->micro_steps > 1)
        cd_text_printf(w->out, "micro_steps = %" PRId64 "\n", micro);
    cd_text_push(w->out, words);
}

static void write_whens(writing *w)
{
    cd_arena *arena = &w->l->arena;
    bool *ranks = cd_arena_array(arena, w->l->rank_count, sizeof *ranks);
    bool *steps = cd_arena_array(arena, w->steps, sizeof *steps);
    bool *micros = cd_arena_array(arena, w->micro_steps, sizeof *micros);
    if (ranks == NULL || steps == NULL || micros == NULL) return;
    for (size_t i = 0; i < w->place_count; i++)
        if (w->places[i].words != NULL) write_when(w, i, ranks, steps, micros);
    if (w->when_count > WHENS_MAX)
        NOTE(w, "%zu more places where a rank did something else are left out",
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
        put_quoted(&t, name_of(l, p->arrived[i]));
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
        put_quoted(&t, cd_arena_printf(&l->arena, "%s=0", q->name));
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

static void compare_pass(writing *w, size_t at, const cd_lift_pass *order, int64_t samples)
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

static step_facts *find_steps(writing *w)
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
static void shift_passes(writing *w)
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
static int64_t common_samples(const cd_lift *l)
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

static void count_loop(writing *w)
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
static void stop_in_contexts(writing *w, uint32_t rank)
{
    const cd_lift *l = w->l;
    const uint32_t inputs = cd_lift_inputs(l, rank);
    const cd_lift_context *c;
    for (uint32_t i = 0; (c = cd_lift_find_context(l, rank, i)) != NULL; i++)
        if (c->is_whole && c->steps < inputs)
            differ(w, rank, i * l->context_length + c->steps, -1, "stop = true\n");
}

static void compare_passes(writing *w, int64_t samples)
{
    cd_lift *l = w->l;
    const cd_lift_pass *order = find_order(l);
    if (order != NULL) {
        const char *words = print_order(l, order);
        cd_text_push(w->out, "\n[[when]]\n");
        if (words != NULL) cd_text_push(w->out, words);
    } else {
        NOTE(w, "no backward shows all gradients: their order is the engine's");
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

static void continue_ranks(writing *w)
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

/* ---- collectives ---- */

static bool is_same_collective(const cd_lift_collective *a, const cd_lift_collective *b)
{
    return a->group == b->group && a->op == b->op && a->reduction == b->reduction &&
           a->root == b->root && a->dtype == b->dtype && a->numel == b->numel;
}

/* The i-th that a rank posted at a place of a step. */
static const cd_lift_collective *find_posted(const cd_lift *l, uint32_t rank, uint32_t step,
                                             cd_lift_place at, size_t i)
{
    for (size_t k = 0; k < l->collective_count; k++) {
        const cd_lift_collective *c = &l->collectives[k];
        if (c->rank == rank && c->step == step && c->place == at && i-- == 0) return c;
    }
    return NULL;
}

static bool posts_alike(const cd_lift *l, uint32_t a, uint32_t step, uint32_t b, uint32_t other,
                        cd_lift_place at)
{
    for (size_t i = 0;; i++) {
        const cd_lift_collective *x = find_posted(l, a, step, at, i),
                                 *y = find_posted(l, b, other, at, i);
        if (x == NULL || y == NULL) return x == y;
        if (!is_same_collective(x, y)) return false;
    }
}

/* A run opens its world by itself, beside whatever group of that name the program had. */
static const char *group_name(const cd_lift_group *g)
{
    return strcmp(g->name, "world") == 0 ? "world of the program" : g->name;
}

static bool has_all_members(const cd_lift_group *g)
{
    bool has = true;
    for (int64_t k = 0; k < g->members; k++) has &= g->ranks[k] != UINT32_MAX;
    return has;
}

/* It was left out. */
static bool lacks_group(const cd_lift *l, const cd_lift_collective *c)
{
    for (size_t i = 0; i < l->group_count && c->group != l->reducer; i++)
        if (l->groups[i].id == c->group) return !has_all_members(&l->groups[i]);
    return false;
}

static void put_collective(writing *w, const cd_lift_collective *c, const bool *ranks,
                           const bool *steps)
{
    static const char *const places[] = {"before_forward", "before_backward", "after_backward",
                                         "after_step"};
    const cd_lift *l = w->l;
    cd_text_push(w->out, "\n[[collective]]\n");
    put_selection(w, "ranks", ranks, l->rank_count);
    put_selection(w, "steps", steps, w->steps);
    for (size_t i = 0; i < l->group_count && c->group != l->reducer; i++)
        if (l->groups[i].id == c->group) {
            cd_text_push(w->out, "group = ");
            put_quoted(w->out, group_name(&l->groups[i]));
            cd_text_push(w->out, "\n");
        }
    cd_text_printf(w->out, "op = \"%s\"\nplace = \"%s\"\n", cddp_op_name((cddp_op)c->op),
                   places[c->place]);
    if (c->op == CDDP_OP_BARRIER) return;
    if (c->reduction >= 0 && c->reduction < CDDP_RED_COUNT)
        cd_text_printf(w->out, "reduction = \"%s\"\n", cddp_red_op_name((cddp_red_op)c->reduction));
    if (c->root >= 0) cd_text_printf(w->out, "root = %" PRId64 "\n", c->root);
    cd_text_printf(w->out, "numel = %" PRId64 "\ndtype = \"%s\"\n", c->numel >= 0 ? c->numel : 1,
                   cddp_dtype_name((cddp_dtype)c->dtype));
}

/* Ranks and steps that post the same at a place share their tables. */
static void write_collectives_at(writing *w, cd_lift_place at, bool *done, bool *ranks, bool *steps)
{
    const cd_lift *l = w->l;
    const size_t count = (size_t)l->rank_count * w->steps;
    memset(done, 0, count * sizeof *done);
    for (size_t k = 0; k < count; k++) {
        const uint32_t step = (uint32_t)(k / l->rank_count), rank = (uint32_t)(k % l->rank_count);
        if (done[k] || find_posted(l, rank, step, at, 0) == NULL) continue;
        memset(ranks, 0, l->rank_count * sizeof *ranks);
        memset(steps, 0, w->steps * sizeof *steps);
        for (uint32_t r = rank; r < l->rank_count; r++)
            ranks[r] =
                !done[(size_t)step * l->rank_count + r] && posts_alike(l, rank, step, r, step, at);
        for (uint32_t s = step; s < w->steps; s++) {
            bool alike = true;
            for (uint32_t r = 0; r < l->rank_count; r++)
                if (ranks[r] &&
                    (done[(size_t)s * l->rank_count + r] || !posts_alike(l, rank, step, r, s, at)))
                    alike = false;
            steps[s] = alike;
            for (uint32_t r = 0; alike && r < l->rank_count; r++)
                if (ranks[r]) done[(size_t)s * l->rank_count + r] = true;
        }
        for (size_t i = 0; find_posted(l, rank, step, at, i) != NULL; i++)
            if (!lacks_group(l, find_posted(l, rank, step, at, i)))
                put_collective(w, find_posted(l, rank, step, at, i), ranks, steps);
    }
}

static bool is_message(const cd_lift_collective *c)
{
    return c->op == CDDP_OP_SEND || c->op == CDDP_OP_RECV;
}

/* Messages in a row, of a run that ended well: a program that posts all of them before it waits may
** do so in any order. Here each waits, so that all ranks take groups in one order. */
static void order_messages(cd_lift *l)
{
    size_t *last = cd_arena_array(&l->arena, l->rank_count, sizeof *last);
    for (bool has_moved = last != NULL; has_moved;) {
        has_moved = false;
        memset(last, 0, l->rank_count * sizeof *last);
        for (size_t i = 0; i < l->collective_count; i++) {
            cd_lift_collective *c = &l->collectives[i], *before;
            const size_t k = last[c->rank];
            last[c->rank] = i + 1;
            before = k > 0 ? &l->collectives[k - 1] : NULL;
            if (before == NULL || !is_message(c) || !is_message(before) ||
                before->step != c->step || before->place != c->place || before->group <= c->group)
                continue;
            const cd_lift_collective other = *c;
            *c = *before;
            *before = other;
            has_moved = true;
        }
    }
}

static void write_groups(writing *w)
{
    cd_lift *l = w->l;
    for (size_t i = 0; i < l->group_count; i++) {
        const cd_lift_group *g = &l->groups[i];
        if (g->id == l->reducer) continue;
        if (!has_all_members(g)) {
            NOTE(w, "group '%s' is left out, with its operations: not all of its ranks recorded it",
                 g->name);
            continue;
        }
        cd_text_push(w->out, "\n[[group]]\nname = ");
        put_quoted(w->out, group_name(g));
        cd_text_push(w->out, "\nmembers = [");
        for (int64_t k = 0; k < g->members; k++)
            cd_text_printf(w->out, "%s%" PRIu32, k > 0 ? ", " : "", g->ranks[k]);
        cd_text_push(w->out, "]\n");
    }
}

static void write_collectives(writing *w)
{
    cd_lift *l = w->l;
    bool *done = cd_arena_array(&l->arena, (size_t)l->rank_count * w->steps, sizeof *done);
    bool *ranks = cd_arena_array(&l->arena, l->rank_count, sizeof *ranks);
    bool *steps = cd_arena_array(&l->arena, w->steps, sizeof *steps);
    if (done == NULL || ranks == NULL || steps == NULL) return;
    if (l->is_complete) order_messages(l);
    for (int at = CD_LIFT_BEFORE_FORWARD; at <= CD_LIFT_AFTER_STEP; at++)
        write_collectives_at(w, (cd_lift_place)at, done, ranks, steps);
    if (l->reduces_itself)
        NOTE(w, "what the program itself reduces behind backwards inside no_sync: its operations "
                "are here, and no gradient or parameter becomes their result");
    if (l->has_outside) NOTE(w, "operations between join contexts, or behind them, are left out");
    for (size_t i = 0; i < l->collective_count; i++)
        if (l->collectives[i].step >= w->steps) {
            NOTE(w, "operations after the last forward's step are left out");
            break;
        }
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

static void write_ends(writing *w)
{
    const cd_lift *l = w->l;
    if (l->hook != NULL && l->has_continuations) {
        NOTE(w, "how the ranks ended: which continuation comes first is left to explore, and this "
                "scenario goes on");
        return;
    }
    for (uint32_t i = 0; i < l->rank_count; i++) {
        const cd_lift_rank *r = &l->ranks[i];
        const char *kind = find_fault(l, r);
        if (kind == NULL && !r->is_over && is_missed(l, r))
            NOTE(w,
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
            NOTE(w,
                 "rank %" PRIu32 " left the program; here it is killed before its next operation",
                 i);
        else if (r->end == CDDP_RANK_RETURNED)
            NOTE(w,
                 "rank %" PRIu32
                 " ended with its own error; here it is killed before its next operation",
                 i);
        else if (r->end == CDDP_RANK_INTERRUPTED)
            NOTE(w,
                 "what rank %" PRIu32
                 " did while others waited for it; here it hangs before its next operation",
                 i);
    }
    if (!l->is_complete)
        NOTE(w, "the recording has no good end: the program may have had more steps than %" PRIu32,
             w->steps);
}

static void write_train(writing *w, int64_t samples)
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
        NOTE(w, "a pass has %d samples instead of %" PRId64, SAMPLES_MAX, samples);
    if (l->has_join) cd_text_push(w->out, "join.enable = true\n");
    if (w->epochs > 1) cd_text_printf(w->out, "join.epochs = %" PRIu32 "\n", w->epochs);
    if (l->has_join && cd_lift_inputs(l, 0) < l->context_length)
        cd_text_printf(w->out, "data.inputs = %" PRIu32 "\n", cd_lift_inputs(l, 0));
    size_t outside = 0;
    for (size_t i = 0; i < l->pass_count; i++) outside += !l->passes[i].is_joined;
    if (l->has_join && outside > 0)
        NOTE(w, "%zu passes outside of join contexts take place within one", outside);
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
    put_quoted(toml, cd_arena_printf(&l->arena, "lifted from a recording of %s",
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
        if (!posts_alike(l, l->collectives[i].rank, 0, 0, 0, CD_LIFT_BEFORE_FORWARD)) return false;
    return waits;
}

static cddp_status write_bare(cd_lift *l, cd_text *toml, cddp_error *err)
{
    cd_text body;
    CD_TRY(cd_lift_keep_bare(l, err));
    cd_text_init(&body, false);
    writing w = {.l = l, .out = &body, .steps = 1, .micro_steps = 1, .scale = 1};
    cd_text_printf(&body,
                   "\nworld.size = %" PRIu32
                   "\ntrain.steps = 1\n\n[model]\nname = \"params\"\noptions = "
                   "\"list=nothing:1:f32\"\n",
                   l->rank_count);
    if (is_unexplained(l))
        NOTE(&w, "why the last operations did not end: all ranks agree on them, and a run of this "
                 "scenario goes through");
    write_groups(&w);
    continue_ranks(&w);
    write_collectives(&w);
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
    writing w = {.l = l, .out = &body};
    const int64_t samples = common_samples(l);
    cd_lift_end_joins(l);
    count_loop(&w);
    w.has_gradients = has_gradients(&w);
    choose_scale(&w);
    if (l->wrapper_count > 1)
        NOTE(&w,
             "%zu wrappers%s%s: the first one's parameters train, and what the others post are "
             "collectives of the program%s",
             l->wrapper_count,
             l->why_apart != NULL ? ", which no scenario has together, since " : "",
             l->why_apart != NULL ? l->why_apart : "",
             l->is_interleaved ? ", after the backward in which they were posted" : "");
    cd_text_printf(&body, "\nworld.size = %" PRIu32 "\n", l->rank_count);
    write_train(&w, samples);
    write_settings(&w);
    write_caps(&w);
    const cddp_status status = write_model(&w, err);
    write_hook(&w);
    write_optimizer(&w);
    write_rank_settings(&w);
    compare_passes(&w, samples);
    write_groups(&w);
    continue_ranks(&w);
    write_collectives(&w);
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
