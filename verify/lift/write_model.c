/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks have: the model, its buckets, the options, the optimizer. See writing.h. */
#include "verify/lift/writing.h"

#include "cddp/tensor.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/trace/setting.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ELEMENTS_MAX INT64_C(200000) /* of all parameters together: a scenario is to be quick */

void cd_writing_put_quoted(cd_text *t, const char *words)
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

void cd_writing_put_real(cd_text *t, double value)
{
    char number[40];
    cd_real_format(number, sizeof number, "%.17g", value);
    cd_text_push(t, number);
    if (strcspn(number, ".e") == strlen(number)) cd_text_push(t, ".0");
}

/* "0-2,5" of the marked ones; *is_all when every one is. */
const char *cd_writing_print_selection(cd_arena *arena, const bool *marks, uint32_t count,
                                       bool *is_all)
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

static int64_t scaled(const cd_writing *w, int64_t numel)
{
    return numel <= 0 ? numel : (numel + w->scale - 1) / w->scale;
}

const char *cd_writing_name_of(const cd_lift *l, int64_t variable)
{
    for (size_t i = 0; i < l->parameter_count; i++)
        if (l->parameters[i].variable == variable) return l->parameters[i].name;
    return "?";
}

void cd_writing_choose_scale(cd_writing *w)
{
    int64_t all = 0;
    for (size_t i = 0; i < w->l->parameter_count; i++) {
        const int64_t numel = w->l->parameters[i].numel;
        if (numel > 0 && numel < INT64_MAX / 2 - all) all += numel;
    }
    w->scale =
        all > ELEMENTS_MAX && !w->has_gradients ? (all + ELEMENTS_MAX - 1) / ELEMENTS_MAX : 1;
    if (w->scale > 1)
        CD_WRITING_NOTE(w,
                        "sizes of parameters and of buckets are divided by %" PRId64
                        ": a bucket may begin at another parameter than in the program",
                        w->scale);
}

static bool is_size(int32_t key)
{
    return key == CDDP_KEY_ddp_bucket_cap_mb || key == CDDP_KEY_ddp_bucket_cap_mb_list ||
           key == CDDP_KEY_ddp_first_bucket_bytes;
}

static void put_sizes(cd_writing *w, const cd_lift_parameter *p)
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
static void write_recorded_caps(cd_writing *w)
{
    const cd_lift *l = w->l;
    const double cap = l->bucket_cap > 0 ? (double)l->bucket_cap / 1048576.0 : 25.0;
    if (has_flag(l, CDDP_KEY_ddp_find_unused_parameters) &&
        !has_flag(l, CDDP_KEY_ddp_static_graph)) {
        cd_text_push(w->out, "ddp.bucket_cap_mb_list = [");
        cd_writing_put_real(w->out, (double)l->first_bucket / 1048576.0);
        cd_text_push(w->out, ", ");
        cd_writing_put_real(w->out, cap);
        cd_text_push(w->out, "]\n");
    } else if (l->bucket_cap > 0) {
        cd_text_push(w->out, "ddp.bucket_cap_mb = ");
        cd_writing_put_real(w->out, cap);
        cd_text_push(w->out, "\n");
        if (l->first_bucket != l->bucket_cap)
            CD_WRITING_NOTE(w, "the first bucket is as large as the others, as in PyTorch 2");
    } else {
        cd_text_printf(w->out, "ddp.first_bucket_bytes = %" PRId64 "\n", l->first_bucket);
    }
}

/* The caps that make the recorded layout again: each is exactly what its bucket has. */
void cd_writing_caps(cd_writing *w)
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
        cd_writing_put_real(w->out, bytes / 1048576.0);
        has_any = true;
        first = end;
    }
    if (has_any) cd_text_push(w->out, "]\n");
}

/* Recorded gradients are those of a micro-step when each has one backward on each rank. Says what
** keeps them from it. */
bool cd_writing_has_gradients(cd_writing *w)
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
    if (why != NULL) CD_WRITING_NOTE(w, "the recorded gradients: %s", why);
    return why == NULL;
}

static void write_list(cd_writing *w)
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

cddp_status cd_writing_model(cd_writing *w, cddp_error *err)
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
        cd_writing_put_quoted(w->out, cd_arena_printf(&l->arena, "from=%s", l->gradients));
        cd_text_push(w->out, "\n");
    } else {
        write_list(w);
    }
    bool has_ignored = false;
    for (size_t i = 0; i < l->parameter_count; i++) {
        if (!l->parameters[i].is_ignored) continue;
        cd_text_push(w->out, has_ignored ? ", " : "ignore = [");
        cd_writing_put_quoted(w->out, l->parameters[i].name);
        has_ignored = true;
    }
    if (has_ignored) cd_text_push(w->out, "]\n");
    if (l->buffer_count > 0)
        CD_WRITING_NOTE(w, "%zu buffers are left out, with their broadcasts before each forward",
                        l->buffer_count);
    return CDDP_OK;
}

static void put_value(cd_writing *w, const cd_lift_setting *s)
{
    const int32_t key = cd_setting_find(s->key);
    const int64_t scale = is_size(key) ? w->scale : 1;
    switch (cd_setting_type((cddp_key)key)) {
    case CDDP_KEY_FLAG:
        cd_text_push(w->out, s->value != 0 ? "true" : "false");
        break;
    case CDDP_KEY_NUMBER:
    case CDDP_KEY_NUMBERS:
        cd_writing_put_real(w->out, s->real / (double)scale);
        break;
    case CDDP_KEY_INTEGER:
    case CDDP_KEY_UNSIGNED:
        cd_text_printf(w->out, "%" PRId64, s->value / scale > 0 ? s->value / scale : s->value > 0);
        break;
    default:
        cd_writing_put_quoted(w->out, s->text != NULL ? s->text : "");
        break;
    }
}

/* A list comes item by item. */
static void put_setting(cd_writing *w, size_t at)
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
void cd_writing_settings(cd_writing *w)
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
        CD_WRITING_NOTE(
            w, "buckets of the default size (25 MiB, the first 1 MiB) are not divided beyond the "
               "first");
}

void cd_writing_rank_settings(cd_writing *w)
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

void cd_writing_hook(cd_writing *w)
{
    cd_lift *l = w->l;
    if (l->hook == NULL) return;
    if (l->is_of_torch && !cd_lift_knows_hook(l->hook)) {
        CD_WRITING_NOTE(w, "comm hook '%s' is a function of the program: allreduce takes its place",
                        l->hook);
        return;
    }
    if (strcmp(l->hook, "reproducible") == 0)
        CD_WRITING_NOTE(
            w, "comm hook reproducible sums as many digits as the values have: its operations have "
               "other sizes");
    cd_text_push(w->out, "\n[hook]\nname = ");
    cd_writing_put_quoted(w->out, l->hook);
    cd_text_push(w->out, "\n");
    if (l->inner != NULL) {
        cd_text_push(w->out, "inner = ");
        cd_writing_put_quoted(w->out, l->inner);
        cd_text_push(w->out, "\n");
    }
    if (l->hook_options.length > 0) {
        cd_text_push(w->out, "options = ");
        cd_writing_put_quoted(w->out, cd_text_get(&l->hook_options));
        cd_text_push(w->out, "\n");
    }
    if (l->has_continuations) cd_text_push(w->out, "continuations = \"on_completion\"\n");
}

void cd_writing_optimizer(cd_writing *w)
{
    static const char *const kinds[] = {"adamw", "adagrad", "adam", "sgd"};
    const cd_lift *l = w->l;
    const char *kind = NULL;
    for (size_t i = 0; l->optimizer != NULL && kind == NULL && i < sizeof kinds / sizeof *kinds;
         i++)
        if (strstr(l->optimizer, kinds[i]) != NULL) kind = kinds[i];
    if (kind == NULL)
        CD_WRITING_NOTE(w,
                        l->optimizer != NULL ? "optimizer '%s' is not known: sgd takes its place"
                                             : "no optimizer was recorded%s: sgd steps",
                        l->optimizer != NULL ? l->optimizer : "");
    cd_text_printf(w->out, "\n[[optimizer]]\nkind = \"%s\"\n", kind != NULL ? kind : "sgd");
    if (l->optimizer != NULL) {
        cd_text_push(w->out, "lr = ");
        cd_writing_put_real(w->out, l->rate);
        cd_text_push(w->out, "\n");
    }
    if (l->has_rates)
        CD_WRITING_NOTE(
            w, "the learning rate changed, or differed between ranks: the first one is used");
}
