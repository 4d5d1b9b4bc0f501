/* SPDX-License-Identifier: Apache-2.0 */
/* Verification across ranks.
**
** Every rank folds what it wraps into a digest, and the smallest and the largest of all ranks'
** digests are compared: one small reduction, whatever the number of ranks. When they are equal that
** is all. When not, every rank describes what it wraps as text, one line per setting list,
** parameter and buffer, and the digests of the texts are all-gathered. Every rank sees the same
** digests and so knows the same pair of ranks: rank 0 and the first one that differs from it. Their
** texts are broadcast, and every rank reports the first line in which they part, both sides shown,
** and all ranks that differ from rank 0.
**
** PyTorch compares shapes and strides only, finds them only on ranks other than 0, and never looks
** at dtypes, names or options (INI-08…10); a difference there becomes garbage or a hang much later.
*/
#include "core/ddp/wrap/verify.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/rank_list.h"
#include "core/base/text.h"
#include "core/comm/control.h"

#include <stdio.h>
#include <string.h>

static void append_dims(cd_text *t, const char *before, const int64_t *dims, uint32_t count)
{
    cd_text_printf(t, "%s[", before);
    for (uint32_t i = 0; i < count; i++)
        cd_text_printf(t, "%s%lld", i > 0 ? "," : "", (long long)dims[i]);
    cd_text_printf(t, "]");
}

static void append_parameter(cd_text *t, const cd_wrapped_parameter *p)
{
    const cddp_tensor *like = &p->tensor.form->like;
    cd_text_printf(t, "parameter '%s'", p->name);
    if (p->is_ignored) {
        cd_text_printf(t, " %s\n", p->is_delayed ? "delayed" : "ignored");
        return;
    }
    cd_text_printf(t, " %s ", cddp_dtype_name(like->dtype));
    append_dims(t, "", like->sizes, like->dim_count);
    append_dims(t, " strides ", like->strides, like->dim_count);
    cd_text_printf(t, "%s%s\n", p->requires_grad ? " requires_grad" : " frozen",
                   p->expect_sparse ? " sparse" : "");
}

static void append_buffer(cd_text *t, const cd_wrapped_buffer *b)
{
    cd_text_printf(t, "buffer '%s'", b->name);
    if (b->is_ignored) {
        cd_text_printf(t, " ignored");
    } else {
        cd_text_printf(t, " %s ", cddp_dtype_name(b->tensor.dtype));
        append_dims(t, "", b->tensor.sizes, b->tensor.dim_count);
    }
    cd_text_printf(t, "\n");
}

/* As long as its list of caps makes it. */
static void append_options(cd_text *t, const cd_ddp_config *config)
{
    const size_t bytes = 512 + 64 * config->caps.list_count;
    if (!cd_text_reserve(t, bytes)) return;
    cd_ddp_config_print(config, t->bytes + t->length, bytes);
    t->length += strlen(t->bytes + t->length);
    cd_text_printf(t, "\n");
}

static cddp_status describe(cd_text *t, const cd_wrapped *m, const cd_ddp_config *config,
                            cddp_error *err)
{
    cd_text_printf(t, "options ");
    append_options(t, config);
    for (size_t i = 0; i < m->parameter_count; i++) append_parameter(t, &m->parameters[i]);
    for (size_t i = 0; i < m->buffer_count; i++) append_buffer(t, &m->buffers[i]);
    if (t->failed)
        return cd_fail_memory(err, "a description of %zu parameters", m->parameter_count);
    return CDDP_OK;
}

/* The card that is all-gathered: enough to see that something differs, and the counts. */
enum { CARD_COUNT, CARD_DIGEST, CARD_LENGTH, CARD_FIELDS };

static cddp_status gather_cards(const cd_text *mine, const cd_wrapped *m, cddp_group *group,
                                cd_control *all, cddp_error *err)
{
    cd_control_spec spec = {.allocator = m->allocator,
                            .group = group,
                            .dtype = CDDP_I64,
                            .numel = CARD_FIELDS,
                            .device = cd_module_device(m)};
    cddp_status status = CDDP_OK;
    cd_control one = {0};
    CD_TRY_OUT(cd_control_init(&one, &spec, err));
    spec.numel = CARD_FIELDS * (int64_t)cddp_group_size(group);
    CD_TRY_OUT(cd_control_init(all, &spec, err));
    int64_t *card = one.host;
    card[CARD_COUNT] = (int64_t)m->variable_count;
    card[CARD_DIGEST] = (int64_t)cd_hash64(mine->bytes, mine->length, 0);
    card[CARD_LENGTH] = (int64_t)mine->length;
    CD_TRY_OUT(cd_control_allgather(group, &one, all, err));
out:
    cd_control_fini(&one);
    return status;
}

/* No more of a text travels: its length comes from another rank, and is not to be trusted with all
** memory. A model of a hundred thousand parameters describes itself in less. */
#define TEXT_BYTES_MAX ((int64_t)64 << 20)

/* What a rank describes, and to whom. */
typedef struct description {
    const cd_wrapped *module;
    const cd_text *text;
    cddp_group *group;
} description;

/* The text of one rank, on every rank, terminated. Every rank has the same cards, so all of them
** refuse a length, or cut it, alike. */
static cddp_status fetch_text(const description *mine, const int64_t *cards, uint32_t rank,
                              cd_control *fetched, cddp_error *err)
{
    const int64_t sent = cards[rank * CARD_FIELDS + CARD_LENGTH];
    if (sent < 0)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "ranks wrap different models, and rank %u describes its own in %lld bytes",
                       rank, (long long)sent);
    const size_t length = (size_t)(sent < TEXT_BYTES_MAX ? sent : TEXT_BYTES_MAX);
    const cd_text *text = mine->text;
    cd_control_spec spec = {.allocator = mine->module->allocator,
                            .group = mine->group,
                            .dtype = CDDP_U8,
                            .device = cd_module_device(mine->module),
                            .numel = (int64_t)length + 1};
    CD_TRY(cd_control_init(fetched, &spec, err));
    if (cddp_group_rank(mine->group) == rank)
        memcpy(fetched->host, text->bytes, length < text->length ? length : text->length);
    CD_TRY(cd_control_broadcast(mine->group, fetched, rank, err));
    ((char *)fetched->host)[length] = '\0';
    return CDDP_OK;
}

/* Cuts the next line off *rest; "" after the last one. */
static char *next_line(char **rest)
{
    char *line = *rest, *end = strchr(line, '\n');
    *rest = end != NULL ? end + 1 : line + strlen(line);
    if (end != NULL) *end = '\0';
    return line;
}

/* Of options, only the settings that differ are worth showing. */
static void cut_common_options(char *a, char *b)
{
    if (strncmp(a, "options ", 8) == 0 && strncmp(b, "options ", 8) == 0) cd_text_pop_common(a, b);
}

/* ---- what a message shows ---- */

#define SIDE_BYTES 124 /* of either side: both go into one message */
#define DOTS "…"

static bool is_boundary(char c) { return c == ' ' || c == ','; }

/* The part of a line around `at`, in whole words; a word that is too long is cut. */
static void excerpt(const char *line, size_t at, char *shown)
{
    const size_t length = strlen(line), room = SIDE_BYTES - 1 - 2 * strlen(DOTS);
    size_t begin = at, end = at;
    if (length < SIDE_BYTES) {
        memcpy(shown, line, length + 1);
        return;
    }
    while (begin > 0 && !is_boundary(line[begin - 1])) begin--;
    if (at - begin > room / 2) begin = at - room / 2;
    /* words from there on, or as much of the first one as there is room for */
    const size_t after = room - (begin < room / 3 ? begin : room / 3);
    for (size_t i = begin; i <= length && i - begin <= after; i++)
        if (i > at && (line[i] == '\0' || is_boundary(line[i]))) end = i;
    if (end == at) end = begin + after < length ? begin + after : length;
    /* words before it, or the end of the one before it */
    size_t back = begin;
    for (size_t i = begin; i > 0 && end - (i - 1) <= room; i--)
        if (i == 1 || is_boundary(line[i - 2])) back = i - 1;
    if (back == begin && begin > 0 && room - (end - begin) > room / 4)
        back = end > room ? end - room : 0;
    begin = back;
    while ((line[begin] & 0xC0) == 0x80) begin++;
    while (end > begin && (line[end] & 0xC0) == 0x80) end--;
    snprintf(shown, SIDE_BYTES, "%s%.*s%s", begin > 0 ? DOTS : "", (int)(end - begin), line + begin,
             end < length ? DOTS : "");
}

/* The ranks that differ from rank 0. */
typedef struct parting {
    const int64_t *cards;
    uint32_t rank_count;
} parting;

static uint32_t next_parting(const void *self, uint32_t from)
{
    const parting *p = self;
    for (; from < p->rank_count; from++)
        if (p->cards[from * CARD_FIELDS + CARD_DIGEST] != p->cards[CARD_DIGEST]) return from;
    return CD_NO_RANK;
}

static bool is_one_model(const parting *p, uint32_t rank)
{
    for (uint32_t r = rank; r != CD_NO_RANK; r = next_parting(p, r + 1))
        if (p->cards[r * CARD_FIELDS + CARD_DIGEST] != p->cards[rank * CARD_FIELDS + CARD_DIGEST])
            return false;
    return true;
}

/* The ranks that have rank 0's model. */
static uint32_t next_alike(const void *self, uint32_t from)
{
    const parting *p = self;
    for (; from < p->rank_count; from++)
        if (p->cards[from * CARD_FIELDS + CARD_DIGEST] == p->cards[CARD_DIGEST]) return from;
    return CD_NO_RANK;
}

static const char nothing[] = "nothing";

/* One of the two models that are shown. */
typedef struct side {
    char shown[SIDE_BYTES];
    char who[64];
    long long count; /* of parameters that it reduces */
} side;

static const char *have(const side *s) { return strncmp(s->who, "ranks", 5) == 0 ? "have" : "has"; }

/* First the one that differs from most; of as many on either side, rank 0's. */
static cddp_status report_sides(const side *first, const side *second, const char *others,
                                cddp_error *err)
{
    if (first->count != second->count)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "ranks wrap different models: %s %s %lld parameters, %s %lld; "
                       "first difference: "
                       "%s %s %s, %s %s %s%s",
                       first->who, have(first)[3] == 'e' ? "reduce" : "reduces", first->count,
                       second->who, second->count, first->who, have(first), first->shown,
                       second->who, have(second), second->shown, others);
    return cd_fail(err, CDDP_E_MISMATCH, "ranks wrap different models: %s %s %s, %s %s %s%s",
                   first->who, have(first), first->shown, second->who, have(second), second->shown,
                   others);
}

static cddp_status report(char *left, char *right, uint32_t rank, const parting *all,
                          cddp_error *err)
{
    char *a, *b;
    do {
        a = next_line(&left);
        b = next_line(&right);
    } while (strcmp(a, b) == 0 && (*left != '\0' || *right != '\0'));
    cut_common_options(a, b);
    size_t at = 0;
    while (a[at] != '\0' && a[at] == b[at]) at++;
    side zero = {.who = "rank 0", .count = (long long)all->cards[CARD_COUNT]},
         other = {.count = (long long)all->cards[rank * CARD_FIELDS + CARD_COUNT]};
    char others[64 + 24] = "";
    uint32_t parting_count = 0;
    excerpt(a[0] != '\0' ? a : nothing, at, zero.shown);
    excerpt(b[0] != '\0' ? b : nothing, at, other.shown);
    cd_rank_list_print(&(cd_rank_list){all, next_parting}, CD_NO_RANK, other.who, sizeof other.who);
    for (uint32_t r = rank; r != CD_NO_RANK; r = next_parting(all, r + 1)) parting_count++;
    /* different among themselves, too: the first of them is shown */
    if (!is_one_model(all, rank)) {
        snprintf(others, sizeof others, "; %s differ from rank 0", other.who);
        snprintf(other.who, sizeof other.who, "rank %u", rank);
    }
    if (others[0] != '\0' || parting_count * 2 >= all->rank_count)
        return CD_PASS(report_sides(&zero, &other, others, err));
    cd_rank_list_print(&(cd_rank_list){all, next_alike}, CD_NO_RANK, zero.who, sizeof zero.who);
    return CD_PASS(report_sides(&other, &zero, others, err));
}

static cddp_status explain_difference(const description *mine, const int64_t *cards, uint32_t rank,
                                      cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_control left = {0}, right = {0};
    CD_TRY_OUT(fetch_text(mine, cards, 0, &left, err));
    CD_TRY_OUT(fetch_text(mine, cards, rank, &right, err));
    status =
        report(left.host, right.host, rank, &(parting){cards, cddp_group_size(mine->group)}, err);
out:
    cd_control_fini(&left);
    cd_control_fini(&right);
    return status;
}

static cddp_status explain(const cd_wrapped *module, const cd_ddp_config *config, cddp_group *group,
                           cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_text mine = {.allocator = module->allocator};
    cd_control all = {0};
    CD_TRY_OUT(describe(&mine, module, config, err));
    CD_TRY_OUT(gather_cards(&mine, module, group, &all, err));
    const int64_t *cards = all.host;
    const description said = {module, &mine, group};
    for (uint32_t r = 1; r < cddp_group_size(group) && status == CDDP_OK; r++)
        if (cards[r * CARD_FIELDS + CARD_DIGEST] != cards[CARD_DIGEST])
            status = explain_difference(&said, cards, r, err);
out:
    cd_text_fini(&mine);
    cd_control_fini(&all);
    return status;
}

/* ---- the digest ---- */

static uint64_t fold_tensor(uint64_t h, const cddp_tensor *t, bool has_strides)
{
    h = cd_hash_mix(h, (uint64_t)t->dtype << 32 | t->dim_count);
    for (uint32_t i = 0; i < t->dim_count; i++) {
        h = cd_hash_mix(h, (uint64_t)t->sizes[i]);
        if (has_strides) h = cd_hash_mix(h, (uint64_t)t->strides[i]);
    }
    return h;
}

/* Of exactly what the texts say: making texts only to compare them would take longer than all the
** rest of construction. */
static uint64_t fold(const cd_wrapped *m, const cd_ddp_config *config)
{
    char options[512];
    cd_ddp_config_print(config, options, sizeof options);
    uint64_t h =
        cd_hash_mix(cd_hash_mix(cd_hash_text(options), m->parameter_count), m->buffer_count);
    for (size_t i = 0; i < config->caps.list_count; i++) h = cd_hash_mix(h, config->caps.list[i]);
    for (size_t i = 0; i < m->parameter_count; i++) {
        const cd_wrapped_parameter *p = &m->parameters[i];
        const bool bits[] = {p->is_ignored, p->is_delayed, p->requires_grad, p->expect_sparse};
        h = cd_hash_mix(h, p->name_digest);
        for (size_t b = 0; b < (p->is_ignored ? 2 : 4); b++) h = cd_hash_mix(h, bits[b]);
        if (!p->is_ignored) h = fold_tensor(h, &p->tensor.form->like, true);
    }
    for (size_t i = 0; i < m->buffer_count; i++) {
        h = cd_hash_mix(h, cd_hash_text(m->buffers[i].name));
        h = cd_hash_mix(h, m->buffers[i].is_ignored);
        if (!m->buffers[i].is_ignored) h = fold_tensor(h, &m->buffers[i].tensor, false);
    }
    return h;
}

/* The complement turns an order around, so the smallest complement is that of the largest digest:
** whatever ranks differ, smallest and largest do, and every rank sees the same two. */
static cddp_status compare_digests(uint64_t mine, const cd_wrapped *m, cddp_group *group,
                                   bool *agree, cddp_error *err)
{
    cd_control_spec spec = {.allocator = m->allocator,
                            .group = group,
                            .dtype = CDDP_I64,
                            .numel = 2,
                            .device = cd_module_device(m)};
    cddp_status status = CDDP_OK;
    cd_control ends = {0};
    CD_TRY(cd_control_init(&ends, &spec, err));
    int64_t *values = ends.host;
    values[0] = (int64_t)mine;
    values[1] = (int64_t)~mine;
    CD_TRY_OUT(cd_control_allreduce(group, &ends, CDDP_RED_MIN, err));
    *agree = values[0] == ~values[1];
out:
    cd_control_fini(&ends);
    return status;
}

cddp_status cd_verify_across_ranks(const cd_wrapped *module, const cd_ddp_config *config,
                                   cddp_group *group, cddp_error *err)
{
    const cddp_capabilities *k = cddp_group_capabilities(group);
    bool has_min =
        (k->reduce_ops & (1u << CDDP_RED_MIN)) != 0 && (k->dtypes & CDDP_DTYPE_BIT(CDDP_I64)) != 0;
    bool agree = false;
    if (has_min) CD_TRY(compare_digests(fold(module, config), module, group, &agree, err));
    return CD_PASS(agree ? CDDP_OK : explain(module, config, group, err));
}
