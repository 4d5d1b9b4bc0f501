/* SPDX-License-Identifier: Apache-2.0 */
/* I-INIT: before step 0 every rank holds the same parameters, buffers, names and ignore lists, and
** they are rank 0's.
**
** Judged from   param, buffer, wrap and value at moment 1 (after the initial synchronisation, or in
**               its place); the roots of the broadcasts between the first param and wrap; expected,
**               the plan's initial values.
** Exercised     at least two ranks reported the content of a parameter or buffer at moment 1.
** Blame         who starts from other values than the plan's. Where a broadcast before the start
**               gave ranks other bits this follows from it (I-COLL). Where nobody derived these,
**               the odd ranks; with two ranks both; for another root than 0, the ranks that
**               follow it.
** Limits        ignored parameters and buffers may differ by right (IGN-01); not so those whose
**               reduction is only delayed (DEL-01).
*/
#include "core/check/lists.h"
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"
#include "core/base/hash.h"
#include "core/base/text.h"

#include <string.h>

enum { ABOUT_PARAM, ABOUT_BUFFER, ABOUT_WRAP, ABOUT_VALUE };

typedef struct rank_facts {
    int64_t wraps; /* how often it wrapped: again after a resume */
    /* of the last broadcast after the parameters whose root was another rank than 0 */
    int64_t root, root_group;
    int64_t broadcast; /* of the operation that it posted last: its number + 1; 0: no broadcast */
    bool has_started;  /* its first values were reported */
} rank_facts;

typedef struct state {
    cd_writer writer;
    cd_agree tables;  /* (about, id) → what param, buffer and wrap say */
    cd_agree values;  /* (what, id, wrap) → presence, digest */
    cd_table planned; /* (rank, what, id) → digest that the plan's seed gives */
    cd_table ignored; /* (what, id) → 1 when some rank ignores it */
    cd_ranks ranks;   /* of rank_facts */
    /* (group, sequence) → what a broadcast before the first start delivered */
    cd_agree delivered;
    bool has_digest, has_init_sync;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-INIT", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_agree_init(&s->tables, context->allocator);
    cd_agree_init(&s->values, context->allocator);
    cd_agree_init(&s->delivered, context->allocator);
    cd_table_init(&s->planned, context->allocator, sizeof(int64_t));
    cd_table_init(&s->ignored, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    return CDDP_OK;
}

static void note_ignored(state *s, int64_t what, int64_t id)
{
    int64_t *flag = cd_table_add(&s->ignored, CD_KEY(what, id));
    if (flag != NULL) *flag = 1;
}

/* INI-11: the state to start from is rank 0's. */
static void judge_root(state *s, const cddp_event *e, const rank_facts *r)
{
    const cd_key *key = CD_KEY(ABOUT_WRAP);
    if (r->root == 0 || r->root_group != e->as.wrap.group ||
        !cd_writer_is_first(&s->writer, key, e))
        return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the initial state came from rank %lld of group '%s'",
           (long long)r->root, cd_writer_get_group(&s->writer, r->root_group));
    CD_SAY(f.expected, "broadcasts from rank 0 while the model is wrapped");
    CD_SAY(f.actual, "a broadcast from rank %lld", (long long)r->root);
    CD_SAY(f.advice, "equal replicas are not enough: what rank 0 loaded or was initialised with is "
                     "overwritten (INI-11)");
    cd_writer_hold(&s->writer, key, &f);
}

/* Where these differ, the ranks start apart because of them (I-COLL). */
static void take_delivery(state *s, const cddp_event *e)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    const rank_facts *r = cd_ranks_find(&s->ranks, e->rank);
    if (r == NULL || r->has_started || r->broadcast != d->sequence + 1 || d->status != CDDP_OK ||
        d->digest == 0)
        return;
    cd_agree_push(&s->delivered,
                  &(cd_statement){.key = CD_KEY(d->group, d->sequence), CD_SAYS(d->digest)}, e);
}

static void take_wrap(state *s, const cddp_event *e)
{
    const cddp_event_wrap *w = &e->as.wrap;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r != NULL) {
        judge_root(s, e, r);
        *r = (rank_facts){.wraps = r->wraps + 1, .has_started = r->has_started};
    }
    s->has_init_sync = s->has_init_sync || w->init_sync != 0;
    cd_agree_push(&s->tables,
                  &(cd_statement){.key = CD_KEY(ABOUT_WRAP, w->group),
                                  CD_SAYS(w->params, w->buffers, w->init_sync)},
                  e);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_param) {
        const cddp_event_param *p = &e->as.param;
        rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
        if (r != NULL) r->root = 0;
        const bool is_delayed =
            e->text != NULL &&
            cd_lists_find(&s->writer, e->rank, CDDP_KEY_ddp_delay_all_reduce_named_params,
                          e->text) == CD_LISTED;
        if (p->ignored && !is_delayed) note_ignored(s, 0, p->ordinal);
        cd_agree_push(&s->tables,
                      &(cd_statement){.key = CD_KEY(ABOUT_PARAM, p->ordinal),
                                      CD_SAYS(p->numel, p->dtype, p->shape, p->name,
                                              p->requires_grad | p->ignored << 1 | p->sparse << 2,
                                              p->param)},
                      e);
    } else if (e->kind == CDDP_EV_buffer) {
        const cddp_event_buffer *b = &e->as.buffer;
        if (b->ignored) note_ignored(s, 1, b->buffer);
        cd_agree_push(&s->tables,
                      &(cd_statement){.key = CD_KEY(ABOUT_BUFFER, b->buffer),
                                      CD_SAYS(b->numel, b->dtype, (int64_t)cd_hash_text(e->text),
                                              b->ignored)},
                      e);
    } else if (e->kind == CDDP_EV_wrap) {
        take_wrap(s, e);
    } else if (e->kind == CDDP_EV_collective_post) {
        const cddp_event_collective_post *c = &e->as.collective_post;
        rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
        if (r != NULL && c->op == CDDP_OP_BROADCAST && c->root != 0)
            r->root = c->root, r->root_group = c->group;
        if (r != NULL) r->broadcast = c->op == CDDP_OP_BROADCAST ? c->sequence + 1 : 0;
    } else if (e->kind == CDDP_EV_collective_done) {
        take_delivery(s, e);
    } else if (e->kind == CDDP_EV_expected && e->as.expected.moment == CDDP_MOMENT_AFTER_INIT) {
        const cddp_event_expected *x = &e->as.expected;
        int64_t *digest = cd_table_add(&s->planned, CD_KEY(e->rank, x->what, x->id));
        if (digest != NULL) *digest = x->digest;
    } else if (e->kind == CDDP_EV_value && e->as.value.moment == CDDP_MOMENT_AFTER_INIT &&
               e->as.value.what <= CDDP_WHAT_BUFFER) {
        const cddp_event_value *v = &e->as.value;
        if (v->digest != 0) s->has_digest = true;
        rank_facts *r = cd_ranks_find(&s->ranks, e->rank);
        if (r != NULL) r->has_started = true;
        /* a recorder says it once more where the first forward ran on something else */
        cd_agree_restate(&s->values,
                         &(cd_statement){.key = CD_KEY(v->what, v->id, r != NULL ? r->wraps : 0),
                                         CD_SAYS(v->presence, v->digest)},
                         e);
    }
}

static void say_flags(int64_t flags, char *text, size_t text_bytes)
{
    cd_say(text, text_bytes, "%s%s%s", (flags & 1) ? "trainable" : "frozen",
           (flags & 2) ? ", ignored" : "", (flags & 4) ? ", sparse" : "");
}

static void say_parameter(const cd_variant *of, char *text, size_t text_bytes)
{
    const int64_t *x = of->data;
    char flags[64];
    say_flags(x[4], flags, sizeof flags);
    if (x[4] & 2) /* whatever shape it has */
        cd_say(text, text_bytes, "rank %u: %s, name digest %016llx", of->rank, flags,
               (unsigned long long)x[3]);
    else
        cd_say(text, text_bytes, "rank %u: %lld element%s of %s, %s, name digest %016llx", of->rank,
               (long long)x[0], cd_plural((uint64_t)x[0]), cddp_dtype_name((cddp_dtype)x[1]), flags,
               (unsigned long long)x[3]);
}

static void report_table(state *s, const cd_split *split)
{
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    const int64_t *x = split->right.data, *y = split->odd.data;
    int64_t id = split->key->part[1];
    if (split->key->part[0] == ABOUT_PARAM) {
        const char *what = x[3] != y[3]                   ? "name"
                           : ((x[4] ^ y[4]) & 2) != 0     ? "flags"
                           : x[0] != y[0] || x[2] != y[2] ? "shape"
                           : x[1] != y[1]                 ? "dtype"
                                                          : "flags";
        CD_SAY(f.parameter, "%s", cd_writer_get_ordinal(&s->writer, id));
        f.param = (int32_t)y[5];
        say_parameter(&split->right, f.expected, sizeof f.expected);
        say_parameter(&split->odd, f.actual, sizeof f.actual);
        CD_SAY(f.title, "%s disagree on the %s of parameter %lld, %s", who, what, (long long)id,
               f.parameter);
        CD_SAY(f.advice, "ranks must build the same model%s",
               strcmp(what, "dtype") == 0 ? "; dtypes are not verified at construction (INI-09)"
                                          : "");
    } else if (split->key->part[0] == ABOUT_BUFFER) {
        CD_SAY(f.title, "%s disagree on buffer %s", who, cd_writer_get_buffer(&s->writer, id));
        CD_SAY(f.expected, "rank %u: %lld element%s of %s%s", split->right.rank, (long long)x[0],
               cd_plural((uint64_t)x[0]), cddp_dtype_name((cddp_dtype)x[1]),
               x[3] ? ", ignored" : "");
        CD_SAY(f.actual, "rank %u: %lld element%s of %s%s", split->odd.rank, (long long)y[0],
               cd_plural((uint64_t)y[0]), cddp_dtype_name((cddp_dtype)y[1]),
               y[3] ? ", ignored" : "");
    } else {
        CD_SAY(f.title, "%s disagree on how many parameters and buffers are wrapped", who);
        CD_SAY(f.expected, "rank %u: %lld parameter%s, %lld buffer%s%s", split->right.rank,
               (long long)x[0], cd_plural((uint64_t)x[0]), (long long)x[1],
               cd_plural((uint64_t)x[1]), x[2] ? "" : ", no initial sync");
        CD_SAY(f.actual, "rank %u: %lld parameter%s, %lld buffer%s%s", split->odd.rank,
               (long long)y[0], cd_plural((uint64_t)y[0]), (long long)y[1],
               cd_plural((uint64_t)y[1]), y[2] ? "" : ", no initial sync");
    }
    cd_writer_report(&s->writer, &f);
}

typedef struct start {
    const state *s;
    int64_t what, id;
} start;

static cddp_judgement judge_start(void *self, uint32_t rank, const cd_variant *said)
{
    const start *x = self;
    const int64_t *digest = cd_table_find(&x->s->planned, CD_KEY(rank, x->what, x->id));
    if (digest == NULL || *digest == 0) return CDDP_JUDGED_UNKNOWN;
    return *digest == said->data[1] ? CDDP_JUDGED_RIGHT : CDDP_JUDGED_WRONG;
}

/* Of the first model only: a later one starts from a checkpoint. */
static void ask_plan(state *s)
{
    for (size_t i = 0; i < s->values.entries.count; i++) {
        const cd_agree_entry *entry = cd_table_value(&s->values.entries, i);
        const cd_key key = *cd_table_key(&s->values.entries, i);
        start x = {s, key.part[0], key.part[1]};
        if (entry->first.next == 0 || key.part[2] > 1) continue;
        cd_agree_set_right(&s->values, &key, &(cd_agree_judge){&x, judge_start});
    }
}

/* All differing values in one finding: the first is named, the rest counted. */
static void report_values(state *s)
{
    cd_split split, first = {0};
    uint64_t count = 0;
    for (size_t cursor = 0; cd_agree_next(&s->values, &cursor, &split);) {
        if (cd_table_find(&s->ignored, CD_KEY(split.key->part[0], split.key->part[1])) != NULL)
            continue;
        if (count++ == 0) first = split;
    }
    if (count == 0) return;
    cddp_finding f = cd_finding_of(&s->writer, &first);
    char who[160];
    size_t cursor = 0;
    cd_split odd;
    cd_split_print(&first, who, sizeof who);
    f.is_consequence = cd_agree_next(&s->delivered, &cursor, &odd);
    bool is_buffer = first.key->part[0] == 1;
    const char *name = is_buffer ? cd_writer_get_buffer(&s->writer, first.key->part[1])
                                 : cd_writer_get_ordinal(&s->writer, first.key->part[1]);
    if (!is_buffer) CD_SAY(f.parameter, "%s", name);
    CD_SAY(f.title, "%s start with different values of %s %s%s", who,
           is_buffer ? "buffer" : "parameter", name,
           cd_writer_get_count(&s->writer, count, "tensors in all"));
    CD_SAY(f.expected, "rank %u: digest %016llx", first.right.rank,
           (unsigned long long)first.right.data[1]);
    CD_SAY(f.actual, "rank %u: digest %016llx", first.odd.rank,
           (unsigned long long)first.odd.data[1]);
    CD_SAY(
        f.advice, "%s",
        s->has_init_sync
            ? "the initial synchronisation broadcasts rank 0's values to all: it left these out, "
              "or they changed after it"
            : "without the initial synchronisation equal starting values are the caller's "
              "responsibility (INI-14)");
    cd_writer_report(&s->writer, &f);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->has_digest && s->values.shared_count > 0)
        cd_writer_exercise(&s->writer, "%llu initial tensors compared across ranks",
                           (unsigned long long)s->values.shared_count);
    cd_split split;
    for (size_t cursor = 0; cd_agree_next(&s->tables, &cursor, &split);) report_table(s, &split);
    ask_plan(s);
    report_values(s);
    cd_agree_fini(&s->tables);
    cd_agree_fini(&s->values);
    cd_agree_fini(&s->delivered);
    cd_table_fini(&s->planned);
    cd_table_fini(&s->ignored);
    cd_ranks_fini(&s->ranks);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_param,   CDDP_EV_buffer,          CDDP_EV_wrap,
                                 CDDP_EV_value,   CDDP_EV_collective_post, CDDP_EV_collective_done,
                                 CDDP_EV_expected};

CD_CHECK_TABLE(init, "I-INIT", "all ranks start from the same model",
               "State (parameters, buffers, name tables, ignore lists) agrees on all ranks before "
               "step 0, and is rank 0's.");
