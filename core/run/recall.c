/* SPDX-License-Identifier: Apache-2.0 */
/* What was said, by what was observed. See Note [Recalled judgements] in recall.h. */
#include "core/run/recall.h"

#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/tensor/numbers.h"
#include "core/trace/tracer.h"

#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 20)
#define SAID_MAX ((size_t)1 << 18)    /* events that are kept */
#define ENTRIES_MAX ((size_t)1 << 17) /* half of the index, a power of two */

typedef struct said {
    cddp_event event; /* text: in memory of the recall */
} said;

typedef struct entry {
    uint64_t before, what; /* the key */
    uint32_t first, count; /* of said */
} entry;

struct cd_recall {
    cd_arena memory; /* of the arrays */
    cd_arena texts;  /* of events; what a run that is not kept said is forgotten */
    cd_arena_mark kept_texts;
    const cddp_allocator *allocator;
    entry *entries;  /* (entry_count) kept up to kept_count, then noted in this run */
    uint32_t *index; /* (2 * ENTRIES_MAX) position + 1 of what is kept; open addressing */
    said *said;      /* (said_count) */
    size_t entry_count, entry_capacity, kept_count, said_count, said_capacity, kept_said;
    size_t asked; /* referees, in this run */
    cddp_trace_sink recorder;
    const cddp_trace_sink *target; /* of the rank whose referee is being asked */
    uint64_t digest;
    cd_recall_manner manner;
    bool has_missed, has_news, is_full, is_speaking;
};

/* ---- life ---- */

static void record(void *self, const cddp_event *event);

cddp_status cd_recall_create(cd_recall **recall, cddp_error *err)
{
    cd_recall *r = cd_allocate_zero(NULL, sizeof *r);
    if (r == NULL) return cd_fail_memory(err, "judgements to be recalled");
    cd_arena_init(&r->memory, NULL, MEMORY_BLOCK_BYTES);
    cd_arena_init(&r->texts, NULL, MEMORY_BLOCK_BYTES);
    r->index = cd_allocate_array(NULL, 2 * ENTRIES_MAX, sizeof *r->index);
    if (r->index == NULL) {
        cd_release(NULL, r, sizeof *r);
        return cd_fail_memory(err, "judgements to be recalled");
    }
    r->recorder = (cddp_trace_sink){.size = sizeof r->recorder,
                                    .abi = CDDP_TRACE_ABI,
                                    .self = r,
                                    .event = record};
    *recall = r;
    return CDDP_OK;
}

void cd_recall_destroy(cd_recall *recall)
{
    if (recall == NULL) return;
    cd_release(NULL, recall->index, 2 * ENTRIES_MAX * sizeof *recall->index);
    cd_arena_fini(&recall->texts);
    cd_arena_fini(&recall->memory);
    cd_release(NULL, recall, sizeof *recall);
}

void cd_recall_begin(cd_recall *recall, cd_recall_manner manner)
{
    recall->manner = manner;
    recall->has_missed = recall->is_speaking = false;
    recall->digest = 0;
    recall->asked = 0;
    recall->entry_count = recall->kept_count;
    recall->said_count = recall->kept_said;
    cd_arena_rewind(&recall->texts, recall->kept_texts);
}

bool cd_recall_has_missed(const cd_recall *recall) { return recall->has_missed; }
bool cd_recall_has_news(const cd_recall *recall) { return recall->has_news; }
uint64_t cd_recall_get_digest(const cd_recall *recall) { return recall->digest; }
bool cd_recall_looks(const cd_recall *recall) { return recall->manner == CD_RECALL_LOOKS; }
bool cd_recall_is_speaking(const cd_recall *recall) { return recall->is_speaking; }
bool cd_recall_judges(const cd_recall *recall)
{
    return recall == NULL || recall->manner == CD_RECALL_JUDGES;
}

/* ---- what was said ---- */

static size_t place_of(const cd_recall *r, uint64_t before, uint64_t what)
{
    const size_t mask = 2 * ENTRIES_MAX - 1;
    size_t at = (size_t)cd_hash_mix(before, what) & mask;
    while (r->index[at] != 0) {
        const entry *e = &r->entries[r->index[at] - 1];
        if (e->before == before && e->what == what) break;
        at = (at + 1) & mask;
    }
    return at;
}

/* What this run noted and an earlier one had said already is dropped. */
void cd_recall_keep(cd_recall *recall)
{
    cd_recall *r = recall;
    r->has_news = r->asked != r->entry_count - r->kept_count; /* of what was not noted, who knows */
    for (size_t i = r->kept_count; i < r->entry_count; i++) {
        const entry e = r->entries[i];
        const size_t at = place_of(r, e.before, e.what);
        if (r->index[at] != 0) continue;
        r->has_news = true;
        r->entries[r->kept_count] = e;
        r->index[at] = (uint32_t)++r->kept_count;
    }
    r->entry_count = r->kept_count;
    r->kept_said = r->said_count;
    r->kept_texts = cd_arena_get_mark(&r->texts);
}

static void record(void *self, const cddp_event *event)
{
    cd_recall *r = self;
    r->target->event(r->target->self, event);
    if (r->is_full) return;
    r->is_full = r->said_count >= SAID_MAX ||
                 !cd_arena_grow(&r->memory, (void **)&r->said, &r->said_capacity, r->said_count + 1,
                                sizeof *r->said);
    if (r->is_full) return;
    said *s = &r->said[r->said_count++];
    s->event = *event;
    s->event.text = event->text != NULL ? cd_arena_strdup(&r->texts, event->text) : NULL;
    r->is_full = event->text != NULL && s->event.text == NULL;
}

/* The referee is asked, and what it emits is noted. */
static void begin_note(cd_recall_rank *n, uint64_t what)
{
    cd_recall *r = n->recall;
    r->asked++;
    r->is_full = r->is_full || r->entry_count >= ENTRIES_MAX ||
                 !cd_arena_grow(&r->memory, (void **)&r->entries, &r->entry_capacity,
                                r->entry_count + 1, sizeof *r->entries);
    if (!r->is_full)
        r->entries[r->entry_count] = (entry){n->before, what, (uint32_t)r->said_count, 0};
    if (n->tracer == NULL) return;
    r->target = n->tracer->sink;
    n->tracer->sink = &r->recorder;
}

static void end_note(cd_recall_rank *n, cddp_status status)
{
    cd_recall *r = n->recall;
    if (n->tracer != NULL) n->tracer->sink = r->target;
    if (r->is_full || status != CDDP_OK) return;
    entry *e = &r->entries[r->entry_count++];
    e->count = (uint32_t)r->said_count - e->first;
}

static void repeat(cd_recall_rank *n, uint64_t what)
{
    cd_recall *r = n->recall;
    if (r->has_missed) return;
    const uint32_t found = r->index[place_of(r, n->before, what)];
    r->has_missed = found == 0;
    if (found == 0) return;
    const entry *e = &r->entries[found - 1];
    r->is_speaking = true;
    for (uint32_t i = 0; i < e->count; i++) {
        cddp_event event = r->said[e->first + i].event;
        cd_tracer_emit(n->tracer, &event);
    }
    r->is_speaking = false;
}

/* ---- digests of what is observed ---- */

typedef enum row {
#define CD_OBSERVED(name, doc, fields) ROW_##name,
#include "core/reference/observed.def"
} row;

typedef struct folding {
    uint64_t h;
    cd_recall_reads *reads; /* NULL: nobody asks for the digests of single tensors */
    bool takes_numbers;     /* by their bits: nobody will ask, whatever the manner */
} folding;

static void fold_number(folding *f, uint64_t value) { f->h = cd_hash_mix(f->h, value); }
static void fold_bytes(folding *f, const void *bytes, size_t count)
{
    f->h = count > 0 ? cd_hash64(bytes, count, f->h) : cd_hash_mix(f->h, 0);
}

static void note_read(cd_recall_reads *reads, const cddp_tensor *tensor, uint64_t digest)
{
    if (reads->count == reads->capacity) return;
    cd_recall_read *r = &reads->items[reads->count++];
    r->tensor = tensor;
    r->digest = digest;
}

/* The bits of a number in host memory: as good as their digest, and there already. A tensor of one
** number is the same whatever its strides, so that a copy of it is folded alike. */
static bool read_number(const cddp_tensor *t, uint64_t *bits)
{
    const bool is_number = t->dim_count == 1 && t->sizes[0] == 1 && t->dtype == CDDP_F32 &&
                           t->device->digest == cddp_device_cpu()->digest && t->storage != NULL;
    uint32_t word = 0;
    if (!is_number || t->offset < 0) return false;
    memcpy(&word, (const unsigned char *)t->storage + t->offset * (int64_t)sizeof word,
           sizeof word);
    *bits = word;
    return true;
}

#define NUMBER_FORM (UINT64_C(1) << 63)

/* The form is mixed apart from what came before, so that the processor does both at once. */
static void fold_tensor(folding *f, const cddp_tensor *t)
{
    uint64_t digest = 0, form;
    if (t->device == NULL) {
        fold_number(f, 1);
        return;
    }
    if (f->takes_numbers && read_number(t, &digest)) {
        f->h = cd_hash_mix(f->h ^ NUMBER_FORM, digest);
        return;
    }
    const bool is_known = t->device->digest(t, &digest, NULL) == CDDP_OK;
    form = (uint64_t)t->dtype << 32 | (uint64_t)t->dim_count << 1 | is_known;
    for (uint32_t d = 0; d < t->dim_count; d++) form = cd_hash_mix(form, (uint64_t)t->sizes[d]);
    f->h = cd_hash_mix(cd_hash_mix(f->h, form), digest);
    if (f->reads != NULL && is_known) note_read(f->reads, t, digest);
}

static void fold_gradient(folding *f, const cddp_grad *g)
{
    fold_number(f, (uint64_t)g->kind);
    if (g->kind == CDDP_GRAD_UNDEFINED) return;
    fold_tensor(f, &g->value);
    if (g->kind != CDDP_GRAD_SPARSE) return;
    const cddp_tensor rows = cddp_rows_tensor(&g->rows);
    folding quiet = {f->h, NULL, f->takes_numbers}; /* nobody asks for the digest of rows */
    fold_tensor(&quiet, &rows);
    f->h = quiet.h;
}

#define FOLD(type) static void fold_##type(folding *f, const type *v)
FOLD(bool) { fold_number(f, *v); }
FOLD(uint32_t) { fold_number(f, *v); }
FOLD(int64_t) { fold_number(f, (uint64_t)*v); }
FOLD(size_t) { fold_number(f, *v); }
FOLD(double) { fold_number(f, (uint64_t)cd_f64_bits(*v)); }
FOLD(cddp_dtype) { fold_number(f, (uint64_t)*v); }
FOLD(cd_observed_tensor) { fold_tensor(f, &v->copy); }
FOLD(cd_observed_tensors)
{
    fold_number(f, v->count);
    for (size_t i = 0; i < v->count; i++) fold_tensor(f, &v->items[i]);
}
FOLD(cd_observed_gradient) { fold_gradient(f, &v->copy); }
FOLD(cd_observed_gradients)
{
    fold_number(f, v->count);
    for (size_t i = 0; i < v->count; i++) fold_gradient(f, &v->items[i]);
}
FOLD(cd_observed_variables) { fold_bytes(f, v->items, v->count * sizeof *v->items); }
FOLD(cd_observed_ranks) { fold_bytes(f, v->items, v->count * sizeof *v->items); }
FOLD(cd_observed_reals) { fold_bytes(f, v->items, v->count * sizeof *v->items); }
FOLD(cd_observed_bytes) { fold_bytes(f, v->blob->bytes, v->blob->used); }
FOLD(cd_observed_hook) { fold_number(f, (uint64_t)v->flags << 1 | v->is_present); }
FOLD(cd_observed_optimized)
{
    fold_number(f, v->count);
    for (size_t i = 0; i < v->count; i++) {
        const cd_oracle_optimized *o = &v->items[i];
        fold_number(f, o->parameter);
        fold_number(f, o->optimizer);
        fold_number(f, o->steps);
        fold_number(f, (uint64_t)o->is_held << 1 | o->is_present);
        fold_bytes(f, o->settings, sizeof o->settings);
        for (size_t s = 0; s < CD_FORMULA_SLOTS_MAX; s++) fold_tensor(f, &o->slots[s]);
    }
}
FOLD(cd_observed_buckets)
{
    fold_number(f, v->count);
    for (size_t i = 0; i < v->count; i++)
        fold_bytes(f, v->items[i].parameters, v->items[i].count * sizeof *v->items[i].parameters);
}
FOLD(cd_observed_places)
{
    fold_bytes(f, v->variables, v->count * sizeof *v->variables);
    fold_bytes(f, v->offsets, v->count * sizeof *v->offsets);
    fold_bytes(f, v->lengths, v->count * sizeof *v->lengths);
}

#define CD_OBSERVED_FIELD(type, name, judge, how) fold_##type(&f, &observed->name);
#define CD_OBSERVED(name, doc, fields)                                                        \
    static uint64_t digest_##name(const cd_observed_##name *observed, cd_recall_reads *reads) \
    {                                                                                         \
        folding f = {ROW_##name + 1, reads, ROW_##name != ROW_look};                          \
        fields return f.h;                                                                    \
    }
#include "core/reference/observed.def"
#undef CD_OBSERVED_FIELD

/* ---- what was read ---- */

static bool is_same(const cddp_tensor *a, const cddp_tensor *b)
{
    bool is = a->storage == b->storage && a->offset == b->offset && a->device == b->device &&
              a->dtype == b->dtype && a->dim_count == b->dim_count;
    for (uint32_t d = 0; is && d < a->dim_count; d++)
        is = a->sizes[d] == b->sizes[d] && a->strides[d] == b->strides[d];
    return is;
}

/* Tensors are asked for in the order in which they were read. */
static bool find_read(void *self, const cddp_tensor *tensor, int64_t *digest)
{
    cd_recall_reads *reads = self;
    if (reads->next >= reads->count) return false;
    const cd_recall_read *r = &reads->items[reads->next];
    if (!is_same(r->tensor, tensor)) return false;
    *digest = (int64_t)r->digest;
    reads->next++;
    return true;
}

cddp_status cd_recall_reads_init(cd_recall_reads *reads, cd_arena *memory, size_t capacity,
                                 cddp_error *err)
{
    *reads = (cd_recall_reads){.reader = {reads, find_read}, .capacity = capacity};
    reads->items = cd_arena_array(memory, capacity + 1, sizeof *reads->items);
    return CD_PASS(cd_arena_check(memory, err, "the digests of %zu tensors", capacity));
}

/* ---- where a rank is ---- */

/* Any gradients that arrived were a set; what comes now ends it. */
static void close_arrivals(cd_recall_rank *n)
{
    if (n->arrived == 0) return;
    n->before = cd_hash_mix(n->before, n->arrived);
    n->arrived = 0;
    memset(n->arrivals, 0, n->parameter_count * sizeof *n->arrivals);
}

/* See Note [Recalled judgements]: a set over parameters, an order for each. */
static void advance_set(cd_recall_rank *n, size_t parameter, uint64_t what)
{
    uint64_t *last = &n->arrivals[parameter];
    n->arrived -= *last;
    *last = cd_hash_mix(*last, what);
    n->arrived += *last;
}

void cd_recall_end(cd_recall_rank *rank)
{
    if (rank->recall == NULL) return;
    close_arrivals(rank);
    rank->recall->digest += cd_hash_mix(rank->before, rank->rank);
}

/* ---- a function per row ---- */

typedef cddp_status (*ask_fn)(cd_referee *referee, const void *observed, cddp_error *err);

static cddp_status judge(cd_recall_rank *n, uint64_t what, ask_fn ask, const void *observed,
                         cddp_error *err)
{
    if (n->recall->manner == CD_RECALL_REPEATS) repeat(n, what);
    if (n->recall->manner != CD_RECALL_JUDGES) return CDDP_OK;
    begin_note(n, what);
    n->recall->is_speaking = true;
    const cddp_status status = ask(n->referee, observed, err);
    n->recall->is_speaking = false;
    end_note(n, status);
    return status;
}

static cddp_status pass_on(cd_recall_rank *n, row r, uint64_t what, ask_fn ask,
                           const void *observed, cddp_error *err)
{
    const bool is_set = r == ROW_accumulated && n->parameter < n->parameter_count;
    if (!is_set) close_arrivals(n);
    CD_TRY(judge(n, what, ask, observed, err));
    if (is_set)
        advance_set(n, n->parameter, what);
    else
        n->before = cd_hash_mix(n->before, what);
    return CDDP_OK;
}

/* The digests of a look are asked for once more: see cd_recall_reads. */
static cd_recall_reads *find_reads(cd_recall_rank *n, row r)
{
    n->reads.count = n->reads.next = 0;
    return r == ROW_look && n->recall->manner == CD_RECALL_LOOKS ? &n->reads : NULL;
}

#define CD_OBSERVED(name, doc, fields)                                                        \
    static cddp_status ask_##name(cd_referee *referee, const void *observed, cddp_error *err) \
    {                                                                                         \
        return CD_PASS(cd_referee_##name(referee, observed, err));                            \
    }                                                                                         \
    cddp_status cd_recalled_##name(cd_recall_rank *rank, const cd_observed_##name *observed,  \
                                   cddp_error *err)                                           \
    {                                                                                         \
        const bool has_keys = rank->recall != NULL;                                           \
        const uint64_t what =                                                                 \
            has_keys ? digest_##name(observed, find_reads(rank, ROW_##name)) : 0;             \
        return CD_PASS(has_keys ? pass_on(rank, ROW_##name, what, ask_##name, observed, err)  \
                                : cd_referee_##name(rank->referee, observed, err));           \
    }
#include "core/reference/observed.def"
