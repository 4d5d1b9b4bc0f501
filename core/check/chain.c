/* SPDX-License-Identifier: Apache-2.0 */
/* I-CHAIN: what a step begins with is what the last one left. Values move only as the plan says.
**
** Judged from   value at every moment, per rank: parameters, buffers, gradients, optimizer state
**               with its step counts, and the states of hook, scaler and averager; grad_final and
**               optimizer_touch, between which a gradient must stay as it was reduced; expected,
**               the digest that the live judge derived where a value has to change; of buffers
**               that their authority did not enter with as it left them, the mark
**               CD_TRACER_ENTERED against the collective_post of its broadcasts.
** Exercised     a value was held against what was last accepted of it.
** Blame         the ranks whose value moved; of a buffer that changed behind its broadcast, every
**               rank that has something else than was sent. Their finding names the interval,
**               from the moment at which the value was last accepted to the one at which it was
**               another.
** Limits        the rank's own chain only. Values that come from another rank are accepted here:
**               after the initial broadcast, after a broadcast of buffers and at the end of join,
**               on every rank but the authority (I-INIT, I-BUFEQ and I-PARAMEQ judge them). A
**               buffer that is ignored comes from nobody.
**               A recorded program that rewrites a reduced gradient alike on all ranks may mean
**               it: verify/import/consumed.h judges that.
**               Results of backward, forward, hooks and optimizers are the oracle's to judge;
**               without it the link is counted as not judged. After a break the chain goes on
**               from what was found.
*/
#include "core/check/lists.h"
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "core/base/hash.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <string.h>

/* Where a value was accepted, besides the moments of a value event. */
enum { AT_SEED = -1, AT_REDUCTION = -2, AT_CONSUMED = -3, AT_ZERO_GRAD = -4 };

/* What was last accepted of one tensor of one rank. */
typedef struct link {
    int64_t presence, digest;
    int64_t moment; /* at which, or AT_… */
    uint64_t sequence;
    uint32_t step;
    uint32_t backwards, zeroings; /* of the rank, as far as a gradient has followed them */
    uint64_t touched_sequence;    /* a gradient: an optimizer took it there; 0: none */
    int64_t reduced,
        earlier; /* a gradient: as the last reduction delivered it, and the one before */
    bool is_known;
    bool is_final;    /* a gradient as its reduction left it */
    bool is_open;     /* a gradient: a backward has added to it since */
    bool is_added;    /* likewise, in a program that may reduce it without a word */
    bool is_zeroed;   /* a gradient: filled with zeros, whose digest is not known */
    bool is_consumed; /* a gradient: by an optimizer in backward */
    /* a start that the first synchronisation moved: what was before it. The plan's start, which
    ** comes late, says what it had to be */
    int64_t born;
    bool is_moved;
    bool is_born; /* a start: the rank had it before the first synchronisation */
    /* a buffer: a forward changed it, and nothing has judged that yet; the oracle has, before the
    ** value came */
    bool is_computed, is_judged;
} link;

typedef struct expectation {
    int64_t presence, digest;
    uint32_t step;
    bool is_pending;
    char words[200];
} expectation;

#define SENT_MAX 8

typedef struct rank_facts {
    int64_t group;        /* of the wrapper */
    int64_t authority;    /* of buffers in the forward at hand; -1: none */
    int64_t joined;       /* whose state this rank ended join with, + 1; 0: it did not join */
    uint32_t stepped;     /* + 1: the last step in which an optimizer stepped */
    uint32_t rewritten;   /* + 1: the last step in which the program changed gradients itself */
    uint32_t state_wrong; /* + 1: the last step in which it found optimizer state wrong: I-REF's */
    bool has_law;         /* of an average, by the judge */
    uint32_t backwards;   /* that began so far */
    uint32_t zeroings;    /* of all gradients, and the last of them */
    uint32_t zeroed_step;
    uint64_t zeroed_sequence, backward_sequence;
    uint64_t pending;    /* expected digests without their value */
    bool drops;          /* it dropped them; else it filled them with zeros */
    bool is_rebuilt;     /* after a checkpoint: what a new model is born with is overwritten */
    uint64_t rebuilt_at; /* the last event of that birth; the new model has no gradients */
    /* digests of what the rank broadcast since its last forward, as the root */
    uint64_t sent[SENT_MAX];
    uint32_t sent_count;
    bool is_changed_after; /* buffers entered otherwise than they were broadcast */
    int64_t received_at;   /* the moment at which buffers of a broadcast are shown first, or -1 */
    bool has_init_sync, has_agreement, was_synced, has_expected;
    bool is_recorded; /* what a program does with cddp/record.h */
} rank_facts;

#define OTHERS_MAX 2

typedef struct breach {
    cd_rank_set ranks;
    cddp_event at; /* of the least rank, and of its first tensor */
    uint64_t before;
    int64_t was;                /* digest that was expected */
    bool is_derived;            /* it was, by `words` */
    bool has_stayed;            /* and the plan changes it there */
    uint64_t count;             /* tensors of the least rank */
    int64_t others[OTHERS_MAX]; /* (other_count) ids of the first of these behind `at` */
    uint32_t other_count;
    char words[200];
} breach;

/* A gradient that is not what its reduction delivered, as an optimizer of a recorded program takes
** it. */
typedef struct rewrite {
    int64_t digest; /* of the first rank */
    int64_t ranks, members;
    bool differs; /* on some ranks, or it is an older one */
} rewrite;

/* A buffer that a rank entered its latest forward with, and that came from another one. */
typedef struct received {
    int64_t digest;
    uint32_t step, micro_step;
} received;

/* A buffer that its authority entered with otherwise than it was broadcast. */
typedef struct spread {
    int64_t was; /* the digest with which it was broadcast */
    cd_key breach;
} spread;

typedef struct state {
    cd_writer writer;
    cd_table links;        /* (rank, what, id) → link */
    cd_table received;     /* (rank, buffer) → received */
    cd_table spreads;      /* (buffer, step, micro-step) → spread */
    cd_table expectations; /* (rank, what, id, moment) → expectation */
    cd_table ordinals;     /* (rank, variable) → ordinal + 1 */
    cd_table ignored;      /* (rank, buffer) → 1: no broadcast may bring it (IGN-02) */
    cd_table sources;      /* (what, id) → ranks that began with the wrong start */
    cd_table breaches;     /* (what, to, from) → breach */
    cd_table rewrites;     /* (parameter, step) → rewrite */
    cd_table apart;        /* step → 1: some gradient was not rewritten alike on all ranks */
    cd_ranks ranks;        /* of rank_facts */
    uint64_t held, derived;
    uint64_t unjudged[CDDP_WHAT_AVERAGER + 1]; /* by what */
} state;

/* All ranks have spoken of what is to be forgotten. */
static void settle_rewrites(void *self)
{
    state *s = self;
    for (size_t i = 0; i < s->rewrites.count; i++) {
        const rewrite *x = cd_table_value(&s->rewrites, i);
        if (x->differs || x->ranks != x->members)
            (void)cd_table_add(&s->apart, CD_KEY(cd_table_key(&s->rewrites, i)->part[1]));
    }
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-CHAIN", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->links, context->allocator, sizeof(link));
    cd_table_init(&s->expectations, context->allocator, sizeof(expectation));
    cd_table_init(&s->received, context->allocator, sizeof(received));
    cd_table_init(&s->spreads, context->allocator, sizeof(spread));
    cd_table_init(&s->ordinals, context->allocator, sizeof(int64_t));
    cd_table_init(&s->ignored, context->allocator, sizeof(int64_t));
    cd_table_init(&s->sources, context->allocator, sizeof(cd_rank_set));
    cd_table_init(&s->breaches, context->allocator, sizeof(breach));
    cd_table_init(&s->rewrites, context->allocator, sizeof(rewrite));
    cd_table_init(&s->apart, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_set_window(&s->rewrites,
                        &(cd_table_window){.horizon = cd_writer_get_horizon(&s->writer),
                                           .before = settle_rewrites,
                                           .self = s});
    return CDDP_OK;
}

static link *find_link(const state *s, uint32_t rank, int64_t what, int64_t id)
{
    return cd_table_find(&s->links, CD_KEY(rank, what, id));
}

/* What zero_grad and a backward did to all gradients of the rank since this one was looked at.
** Whatever a backward adds, a reduction or the oracle says what it makes. */
static void follow(const rank_facts *r, link *l)
{
    /* one that was left shows nothing: it may have made the gradient that was zeroed then */
    const bool was_left = l->zeroings != r->zeroings && l->backwards != r->backwards &&
                          r->zeroed_sequence > r->backward_sequence;
    if (was_left) l->backwards = r->backwards;
    if (l->zeroings != r->zeroings) {
        l->zeroings = r->zeroings;
        l->is_zeroed = !r->drops && (was_left || l->presence != CDDP_PRESENCE_ABSENT);
        if (r->drops) l->presence = CDDP_PRESENCE_ABSENT;
        l->is_open = l->is_added = false;
        l->digest = 0;
        l->moment = AT_ZERO_GRAD;
        l->step = r->zeroed_step;
        l->sequence = r->zeroed_sequence;
    }
    if (l->backwards != r->backwards) {
        l->backwards = r->backwards;
        l->is_open = true;
        l->is_zeroed = l->is_consumed = false;
    }
}

static link *add_link(state *s, const rank_facts *r, uint32_t rank, int64_t what, int64_t id)
{
    link *l = cd_table_add(&s->links, CD_KEY(rank, what, id));
    if (l == NULL || what != CDDP_WHAT_GRADIENT) return l;
    if (!l->is_known) l->zeroings = r->zeroings;
    follow(r, l);
    return l;
}

/* By variable; NULL where the wrapper does not reduce it. */
static link *add_gradient(state *s, const rank_facts *r, uint32_t rank, int64_t variable,
                          int64_t *id)
{
    const int64_t *ordinal =
        variable >= 0 ? cd_table_find(&s->ordinals, CD_KEY(rank, variable)) : NULL;
    if (ordinal == NULL) return NULL;
    *id = *ordinal - 1;
    return add_link(s, r, rank, CDDP_WHAT_GRADIENT, *id);
}

/* ---- a break ---- */

typedef struct found {
    const cddp_event *event;
    int64_t what, id, moment, presence, digest;
} found;

static bool is_before(const cddp_event *e, int64_t id, const breach *b)
{
    if (e->rank != b->at.rank) return e->rank < b->at.rank;
    return id < b->at.as.value.id;
}

static void note_breach(state *s, const found *f, const link *l, const expectation *derived)
{
    const cddp_event *e = f->event;
    const cd_key *key = CD_KEY(f->what, f->moment + ((int64_t)e->step << 8),
                               l->moment + ((int64_t)l->step << 8), e->micro_step);
    const bool is_new = cd_table_find(&s->breaches, key) == NULL;
    breach *b = cd_table_add(&s->breaches, key);
    if (b == NULL) return;
    cd_rank_set_add(&b->ranks, &s->writer.memory, e->rank);
    const bool is_next = !is_new && e->rank == b->at.rank;
    if (is_next) b->count++;
    if (!is_new && e->rank < b->at.rank) {
        b->count = 1;
        b->other_count = 0;
    }
    const bool comes_first = is_new || is_before(e, f->id, b);
    if (is_next && b->other_count < OTHERS_MAX)
        b->others[b->other_count++] = comes_first ? b->at.as.value.id : f->id;
    if (!comes_first) return;
    if (is_new) b->count = 1;
    b->at = *e;
    b->at.text = NULL;
    b->at.as.value = (cddp_event_value){.what = f->what,
                                        .moment = f->moment,
                                        .id = f->id,
                                        .presence = f->presence,
                                        .digest = f->digest};
    b->before = l->sequence;
    b->was = derived != NULL ? derived->digest : l->digest;
    b->is_derived = derived != NULL;
    b->has_stayed = derived != NULL && l->is_known && l->digest == f->digest &&
                    (l->presence == CDDP_PRESENCE_ABSENT) == (f->presence == CDDP_PRESENCE_ABSENT);
    cd_say(b->words, sizeof b->words, "%s",
           derived != NULL                       ? derived->words
           : l->presence == CDDP_PRESENCE_ABSENT ? "absent"
           : l->is_zeroed                        ? "zeros"
                                                 : "");
}

/* Whoever entered with something else than was broadcast has it changed, too. */
static void blame_receiver(state *s, const spread *x, uint32_t rank, const received *r)
{
    breach *b = r->digest != x->was ? cd_table_find(&s->breaches, &x->breach) : NULL;
    if (b != NULL) cd_rank_set_add(&b->ranks, &s->writer.memory, rank);
}

static void note_spread(state *s, const found *f, const link *l)
{
    const cddp_event *e = f->event;
    spread *x = cd_table_add(&s->spreads, CD_KEY(f->id, e->step, e->micro_step));
    if (x == NULL) return;
    *x = (spread){l->digest, *CD_KEY(f->what, f->moment + ((int64_t)e->step << 8),
                                     l->moment + ((int64_t)l->step << 8), e->micro_step)};
    for (uint32_t rank = 0; rank < s->ranks.count; rank++) {
        const received *r = cd_table_find(&s->received, CD_KEY(rank, f->id));
        if (r != NULL && r->step == e->step && r->micro_step == e->micro_step)
            blame_receiver(s, x, rank, r);
    }
}

static void note_entered(state *s, const found *f)
{
    const cddp_event *e = f->event;
    received *r = cd_table_add(&s->received, CD_KEY(e->rank, f->id));
    const spread *x = cd_table_find(&s->spreads, CD_KEY(f->id, e->step, e->micro_step));
    if (r == NULL) return;
    *r = (received){f->digest, e->step, e->micro_step};
    if (x != NULL) blame_receiver(s, x, e->rank, r);
}

static const char *moment_word(int64_t moment)
{
    switch (moment) {
    case AT_SEED:
        return "the plan's initial values";
    case AT_REDUCTION:
        return "reduction";
    case AT_CONSUMED:
        return "optimizer";
    case AT_ZERO_GRAD:
        return "zero_grad";
    default:
        return cddp_event_word(CDDP_FIELD_moment, moment);
    }
}

static void print_place(char *text, size_t text_bytes, int64_t moment, int64_t step)
{
    if (moment == CDDP_MOMENT_BEGIN)
        cd_say(text, text_bytes, "the begin of step %lld", (long long)step);
    else if (moment == CDDP_MOMENT_END)
        cd_say(text, text_bytes, "the end");
    else if (moment == CDDP_MOMENT_JOIN_END)
        cd_say(text, text_bytes, "the end of join after step %lld", (long long)step);
    else
        cd_say(text, text_bytes, "%s of step %lld", moment_word(moment), (long long)step);
}

static const char *name_of(state *s, int64_t what, int64_t id)
{
    switch (what) {
    case CDDP_WHAT_PARAMETER:
    case CDDP_WHAT_GRADIENT:
        return cd_writer_get_ordinal(&s->writer, id);
    case CDDP_WHAT_BUFFER:
        return cd_writer_get_buffer(&s->writer, id);
    default:
        return "";
    }
}

static void print_ranks(state *s, const breach *b, char *text, size_t text_bytes)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, b->at.rank);
    cddp_fact_group group;
    const uint32_t count = cd_rank_set_count(&b->ranks);
    if (count > 1 && r != NULL && cd_writer_find_group(&s->writer, r->group, &group) &&
        (int64_t)count == group.members)
        cd_say(text, text_bytes, "all ranks");
    else
        cd_rank_set_print(&b->ranks, CD_NO_RANK, text, text_bytes);
}

static void print_digest(char *text, size_t text_bytes, const cddp_event_value *v)
{
    if (v->presence == CDDP_PRESENCE_ABSENT)
        cd_say(text, text_bytes, "absent");
    else
        cd_say(text, text_bytes, "digest %016llx", (unsigned long long)v->digest);
}

/* What the judge knows of how it came about, behind what had to be. */
static const char found_mark[] = "; here it ";

/* Of two tensors that changed places each is wrong. */
static void say_others(state *s, const breach *b, char *text, size_t text_bytes)
{
    for (uint32_t i = 0; i < b->other_count; i++) {
        const char *name = name_of(s, b->at.as.value.what, b->others[i]);
        const size_t used = strlen(text);
        if (name[0] != '\0') cd_say(text + used, text_bytes - used, "; also %s", name);
    }
}

static void report(state *s, const cd_key *key, breach *b)
{
    static const char *const nouns[] = {[CDDP_WHAT_PARAMETER] = "parameter",
                                        [CDDP_WHAT_BUFFER] = "buffer",
                                        [CDDP_WHAT_GRADIENT] = "gradient of",
                                        [CDDP_WHAT_OPTIMIZER] = "optimizer state",
                                        [CDDP_WHAT_HOOK] = "state of the hook",
                                        [CDDP_WHAT_SCALER] = "state of the loss scaler",
                                        [CDDP_WHAT_RANDOM] = "random state",
                                        [CDDP_WHAT_SAMPLER] = "sampler",
                                        [CDDP_WHAT_AVERAGER] = "state of the averager"};
    const cddp_event_value *v = &b->at.as.value;
    const char *name = name_of(s, v->what, v->id);
    const int64_t from = (int64_t)(int8_t)(key->part[2] & 0xff), step = (key->part[2] - from) >> 8;
    char who[96], what[140], number[24] = "", places[2][48];
    cddp_finding f = cd_finding_at(&s->writer, &b->at);
    /* rank 0 gave it to those that did not have it before */
    const cd_rank_set *born =
        from == AT_SEED ? cd_table_find(&s->sources, CD_KEY(v->what, v->id)) : NULL;
    if (born != NULL && cd_rank_set_has(born, 0)) b->ranks = *born;
    cd_finding_set_ranks(&s->writer, &f, &b->ranks);
    cd_finding_add_event(&f, b->at.rank, b->before);
    print_ranks(s, b, who, sizeof who);
    if (v->what == CDDP_WHAT_OPTIMIZER) cd_say(number, sizeof number, "%lld", (long long)v->id);
    const bool is_known = v->what >= 0 && v->what < (int64_t)(sizeof nouns / sizeof nouns[0]);
    cd_say(what, sizeof what, "%s%s%s%s", is_known ? nouns[v->what] : "state",
           name[0] != 0 || number[0] != 0 ? " " : "", name, number);
    if (v->what == CDDP_WHAT_PARAMETER || v->what == CDDP_WHAT_GRADIENT)
        CD_SAY(f.parameter, "%s", name);
    char *how = strstr(b->words, found_mark);
    /* of the gradients that it was fed with, or of what the hook did with its buckets */
    f.is_consequence = (v->what == CDDP_WHAT_SCALER || v->what == CDDP_WHAT_HOOK) && b->is_derived;
    /* gradients are shown there only when they had to move to new buckets */
    const bool is_rebuild = v->what == CDDP_WHAT_GRADIENT && v->moment == CDDP_MOMENT_FORWARD;
    print_place(places[0], sizeof places[0], from, step);
    print_place(places[1], sizeof places[1], v->moment, b->at.step);
    if (from == AT_SEED)
        CD_SAY(f.title, "%s: %s does not start from the plan's initial values%s", who, what,
               cd_writer_get_count(&s->writer, b->count, "tensors"));
    else if (how != NULL)
        CD_SAY(f.title, "%s: %s %s in step %u%s", who, what, how + sizeof found_mark - 1,
               b->at.step, cd_writer_get_count(&s->writer, b->count, "tensors"));
    else
        CD_SAY(f.title, "%s: %s %s between %s and %s%s%s", who, what,
               b->has_stayed ? "stays as it was" : "changed", places[0], places[1],
               is_rebuild ? ", when the buckets were rebuilt" : "",
               cd_writer_get_count(&s->writer, b->count, "tensors"));
    if (how != NULL) *how = '\0';
    if (b->was != 0 && b->words[0] != 0)
        CD_SAY(f.expected, "rank %u: digest %016llx: %s", b->at.rank, (unsigned long long)b->was,
               b->words);
    else if (b->words[0] != 0)
        CD_SAY(f.expected, "rank %u: %s", b->at.rank, b->words);
    else
        CD_SAY(f.expected, "rank %u: digest %016llx, as it was left", b->at.rank,
               (unsigned long long)b->was);
    char actual[64];
    print_digest(actual, sizeof actual, v);
    CD_SAY(f.actual, "rank %u: %s", b->at.rank, actual);
    say_others(s, b, f.actual, sizeof f.actual);
    CD_SAY(f.advice, "%s",
           b->is_derived ? "what it must be follows from the plan and from what was there before"
           : is_rebuild  ? "gradients that are there when buckets are rebuilt keep their values: "
                           "look for what the reducer does with them as it installs new buckets"
                         : "nothing in the plan changes this value there: look for what writes to "
                           "it in that interval");
    cd_writer_report(&s->writer, &f);
}

/* ---- what may change without an expected digest ---- */

static bool has_setting(state *s, uint32_t rank, cddp_key key)
{
    cddp_fact_setting setting;
    return cd_writer_find_setting(&s->writer, rank, key, &setting) &&
           (setting.value != 0 || setting.real > 0);
}

static bool follows_the_grid(const link *l, int64_t moment)
{
    return l->moment == CDDP_MOMENT_AFTER_STEP &&
           (moment == CDDP_MOMENT_BEGIN || moment == CDDP_MOMENT_CHECKPOINT ||
            moment == CDDP_MOMENT_JOIN_END || moment == CDDP_MOMENT_END);
}

/* Buffers are another rank's at the first moment that shows them after a broadcast, and from then
** on this rank's own. */
static void note_received(rank_facts *r, int64_t moment)
{
    if (r->was_synced && r->received_at < 0) r->received_at = moment;
    if (r->received_at != moment) r->was_synced = false;
}

static bool ends_join(const rank_facts *r, int64_t moment)
{
    return r->joined != 0 && (moment == CDDP_MOMENT_END || moment == CDDP_MOMENT_JOIN_END);
}

/* A recorded program does not say. */
static bool hands_state_on(state *s, uint32_t rank)
{
    cddp_fact_setting setting;
    return !cd_writer_find_setting(&s->writer, rank, CDDP_KEY_join_broadcast_optimizer_state,
                                   &setting) ||
           setting.value != 0;
}

/* Another rank's values are accepted, and another check compares them. */
static bool is_received(state *s, const rank_facts *r, const found *f)
{
    const uint32_t rank = f->event->rank;
    const bool is_copied = f->what == CDDP_WHAT_PARAMETER || f->what == CDDP_WHAT_BUFFER;
    if (f->what == CDDP_WHAT_BUFFER && cd_table_find(&s->ignored, CD_KEY(rank, f->id)) != NULL)
        return false;
    if (f->moment == CDDP_MOMENT_AFTER_INIT) return r->has_init_sync && rank != 0 && is_copied;
    if (ends_join(r, f->moment)) {
        const bool is_own = r->joined - 1 == (int64_t)rank;
        if (f->what == CDDP_WHAT_SCALER) return false; /* nothing hands it on */
        if (f->what == CDDP_WHAT_OPTIMIZER) return !is_own && hands_state_on(s, rank);
        /* a joined rank's hook takes part in what it shadows */
        return !is_own || !is_copied;
    }
    if (f->what != CDDP_WHAT_BUFFER || !r->was_synced) return false;
    return r->authority != (int64_t)rank;
}

/* Shown again in one step: a further optimizer has the parameter as well, or the same one steps
** once more, which is I-ONCE's. Or a recorded program changed it by right at the begin of the
** step. */
static bool is_stepped_again(const state *s, const found *f, const link *l)
{
    const bool is_shown =
        l->moment == CDDP_MOMENT_AFTER_STEP || l->moment == CDDP_MOMENT_AFTER_AVERAGE;
    if (f->what != CDDP_WHAT_PARAMETER || !is_shown) return false;
    const link *gradient = find_link(s, f->event->rank, CDDP_WHAT_GRADIENT, f->id);
    return gradient != NULL && gradient->touched_sequence > l->sequence;
}

/* The results of arithmetic: the oracle's to judge. */
static bool is_computed(state *s, const rank_facts *r, const found *f, const link *l)
{
    const uint32_t rank = f->event->rank, step = f->event->step;
    const bool has_stepped = r->stepped == step + 1;
    switch (f->moment) {
    case CDDP_MOMENT_FORWARD:
        if (f->what == CDDP_WHAT_GRADIENT) return l->is_open; /* shown after a rebuild alone */
        /* a trace without the moment after the forward */
        return l->moment == CDDP_MOMENT_FORWARD || l->moment == CDDP_MOMENT_AFTER_INIT;
    case CDDP_MOMENT_AFTER_BACKWARD:
        return f->what == CDDP_WHAT_GRADIENT && l->is_open;
    case CDDP_MOMENT_BEFORE_STEP:
        return f->what == CDDP_WHAT_GRADIENT && (l->is_open || r->rewritten == step + 1 ||
                                                 has_setting(s, rank, CDDP_KEY_amp_enable) ||
                                                 has_setting(s, rank, CDDP_KEY_clip_max_norm));
    case CDDP_MOMENT_AFTER_UPDATE:
        return has_stepped && (f->what == CDDP_WHAT_PARAMETER || f->what == CDDP_WHAT_OPTIMIZER);
    case CDDP_MOMENT_AFTER_AVERAGE:
        /* or what a recorded program changed by right behind its step, and showed once more */
        return (r->has_agreement || l->moment == CDDP_MOMENT_AFTER_STEP) &&
               f->what == CDDP_WHAT_PARAMETER;
    case CDDP_MOMENT_AFTER_STEP:
        /* hook, scaler and averager move in a step; a trace without the moments in between */
        return f->what == CDDP_WHAT_HOOK || f->what == CDDP_WHAT_SCALER ||
               f->what == CDDP_WHAT_AVERAGER || l->step != step ||
               l->moment == CDDP_MOMENT_AFTER_INIT ||
               (l->moment == CDDP_MOMENT_BEGIN && has_stepped && f->what == CDDP_WHAT_PARAMETER) ||
               is_stepped_again(s, f, l);
    case CDDP_MOMENT_BEGIN:
        /* kept from a backward that was left in the middle */
        if (f->what == CDDP_WHAT_GRADIENT) return l->is_open;
        /* fall through */
    default:
        return f->what == CDDP_WHAT_PARAMETER && follows_the_grid(l, f->moment) &&
               has_setting(s, rank, CDDP_KEY_model_exact) &&
               !has_setting(s, rank, CDDP_KEY_model_device); /* the first word: with numbers */
    }
}

/* ---- a link ---- */

static bool has_no_values(state *s, uint32_t rank)
{
    cddp_fact_setting setting;
    return cd_writer_find_setting(&s->writer, rank, CDDP_KEY_model_device, &setting) &&
           setting.value == CDDP_MODEL_DEVICE_SHAPE;
}

/* DEL-04: a forward of the wrapper leaves slices of zeros, one that evaluates too. */
static bool is_delayed(state *s, const found *f)
{
    return f->event->text != NULL &&
           cd_lists_find(&s->writer, f->event->rank, CDDP_KEY_ddp_delay_all_reduce_named_params,
                         f->event->text) == CD_LISTED;
}

static bool is_same(state *s, const link *l, const found *f)
{
    if (f->what == CDDP_WHAT_GRADIENT) {
        const bool was = l->presence != CDDP_PRESENCE_ABSENT,
                   is = f->presence != CDDP_PRESENCE_ABSENT;
        if (l->is_consumed && !is && f->moment == CDDP_MOMENT_BEGIN) return true; /* OIB-01 */
        /* there, and nobody can say more: a digest without values shows no zeros */
        if (l->is_zeroed && is && has_no_values(s, f->event->rank)) return true;
        if (l->is_zeroed && is) return f->presence == CDDP_PRESENCE_ZERO;
        if (!was && f->presence == CDDP_PRESENCE_ZERO && f->moment == CDDP_MOMENT_FORWARD)
            return is_delayed(s, f);
        if (was != is || !is) return was == is;
    }
    return l->digest == f->digest;
}

static void accept(link *l, const found *f)
{
    const link old = *l;
    *l = (link){.presence = f->presence,
                .digest = f->digest,
                .moment = f->moment,
                .sequence = f->event->sequence,
                .step = f->event->step,
                .backwards = old.backwards,
                .zeroings = old.zeroings,
                .is_known = true,
                .is_consumed = old.is_consumed,
                .is_moved = old.is_moved,
                .is_born = old.is_born,
                .is_computed = old.is_computed,
                .reduced = old.reduced,
                .earlier = old.earlier,
                .born = old.born};
}

/* The expected digest comes first, and is for one value only. One of an update was for a value that
** the rank did not have then: its own elements came with another layout. */
static expectation *take_expectation(state *s, rank_facts *r, const found *f)
{
    if (r->pending == 0) return NULL;
    expectation *x =
        cd_table_find(&s->expectations, CD_KEY(f->event->rank, f->what, f->id, f->moment));
    if (x == NULL || !x->is_pending) return NULL;
    x->is_pending = false;
    r->pending--;
    const bool is_of_step = f->moment == CDDP_MOMENT_AFTER_UPDATE;
    return is_of_step && x->step != f->event->step ? NULL : x;
}

/* Of a forward, or of a layer that ran again in the backward; the oracle's link 6 is about it. */
static bool is_forward_result(const found *f, const link *l)
{
    if (f->what != CDDP_WHAT_BUFFER) return false;
    return f->moment == CDDP_MOMENT_AFTER_FORWARD ||
           (f->moment == CDDP_MOMENT_AFTER_BACKWARD && l->is_judged);
}

static void judge_link(state *s, rank_facts *r, const found *f, link *l)
{
    const expectation *x = take_expectation(s, r, f);
    if (x != NULL) {
        const bool is_absent = f->what == CDDP_WHAT_GRADIENT && x->presence == CDDP_PRESENCE_ABSENT;
        s->derived++;
        const bool differs =
            f->what == CDDP_WHAT_GRADIENT && is_absent != (f->presence == CDDP_PRESENCE_ABSENT)
                ? true
                : !is_absent && x->digest != f->digest;
        const bool is_reported = f->what == CDDP_WHAT_OPTIMIZER &&
                                 f->moment == CDDP_MOMENT_AFTER_UPDATE &&
                                 r->state_wrong == f->event->step + 1;
        if (differs && !is_reported && !is_received(s, r, f)) note_breach(s, f, l, x);
    } else if (!l->is_known) {
        return;
    } else if (is_same(s, l, f)) {
        s->held++;
        if (f->moment == CDDP_MOMENT_AFTER_INIT) l->is_born = true;
    } else if (is_received(s, r, f)) {
        if (f->what == CDDP_WHAT_BUFFER && f->moment == CDDP_MOMENT_FORWARD) note_entered(s, f);
        return;
    } else if (f->moment == CDDP_MOMENT_AFTER_INIT && r->is_recorded) {
        return; /* the first forward ran on something else */
    } else if (f->moment == CDDP_MOMENT_AFTER_INIT) {
        l->is_moved = true;
        l->born = l->digest;
    } else if (is_forward_result(f, l)) {
        l->is_computed = !l->is_judged;
    } else if (is_computed(s, r, f, l)) {
        s->unjudged[f->what] += f->moment != CDDP_MOMENT_AFTER_AVERAGE || !r->has_law;
    } else {
        note_breach(s, f, l, NULL);
        if (f->what == CDDP_WHAT_BUFFER && f->moment == CDDP_MOMENT_FORWARD && r->is_changed_after)
            note_spread(s, f, l);
    }
}

/* In a trace without a judge nothing says where the plan starts. */
static void note_moved_start(state *s, const found *next, link *l)
{
    const link before = {.moment = CDDP_MOMENT_BEFORE_INIT,
                         .digest = l->born,
                         .sequence = l->sequence};
    l->is_moved = false;
    note_breach(s,
                &(found){next->event, next->what, next->id, CDDP_MOMENT_AFTER_INIT, l->presence,
                         l->digest},
                &before, NULL);
}

static void take_value(state *s, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    const bool is_born =
        v->moment == CDDP_MOMENT_BEFORE_INIT || v->moment == CDDP_MOMENT_AFTER_INIT;
    if (r != NULL && r->is_rebuilt && (is_born || v->moment == CDDP_MOMENT_RESUME))
        r->rebuilt_at = e->sequence;
    if (r == NULL || (is_born && r->is_rebuilt) || v->what < 0 || v->what > CDDP_WHAT_AVERAGER)
        return;
    if (v->digest == 0 && v->presence != CDDP_PRESENCE_ABSENT) return; /* below this level */
    if (v->moment == CDDP_MOMENT_EXIT) return; /* after the training: verify/import/declared.h */
    /* exchanged for a forward alone: the next one that is shown must be as the last step left it */
    if (v->what == CDDP_WHAT_PARAMETER && r->is_recorded &&
        (v->moment == CDDP_MOMENT_FORWARD || v->moment == CDDP_MOMENT_ADAPTED))
        return;
    if (v->moment == CDDP_MOMENT_CHECKPOINT) r->is_rebuilt = true;
    link *l = add_link(s, r, e->rank, v->what, v->id);
    if (l == NULL) return;
    if (v->what == CDDP_WHAT_GRADIENT && l->sequence < r->rebuilt_at)
        *l = (link){.presence = CDDP_PRESENCE_ABSENT,
                    .step = e->step,
                    .backwards = r->backwards,
                    .zeroings = r->zeroings,
                    .is_known = true};
    const found f = {e, v->what, v->id, v->moment, v->presence, v->digest};
    if (v->what == CDDP_WHAT_BUFFER) note_received(r, v->moment);
    if (l->is_moved) note_moved_start(s, &f, l);
    if (v->moment == CDDP_MOMENT_BEGIN && l->is_computed) {
        s->unjudged[v->what]++;
        l->is_computed = false;
    }
    judge_link(s, r, &f, l);
    accept(l, &f);
}

static void copy_words(expectation *x, const char *text)
{
    const size_t length = text != NULL ? strlen(text) : 0, room = sizeof x->words - 1,
                 used = length < room ? length : room;
    memcpy(x->words, text != NULL ? text : "", used);
    x->words[used] = '\0';
}

/* Of initial values it comes late: the judge is made when the model is. */
static void take_expected(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_expected *x = &e->as.expected;
    const cd_key *key = CD_KEY(e->rank, x->what, x->id, x->moment);
    if (x->moment == CDDP_MOMENT_AFTER_INIT) {
        link *l = find_link(s, e->rank, x->what, x->id);
        if (l == NULL || l->moment != CDDP_MOMENT_AFTER_INIT) return;
        s->derived++;
        l->is_moved = false;
        if (l->digest == x->digest) return;
        expectation seed = {.digest = x->digest, .presence = x->presence};
        copy_words(&seed, e->text);
        const link origin = {.moment = AT_SEED, .sequence = e->sequence};
        note_breach(s, &(found){e, x->what, x->id, x->moment, l->presence, l->digest}, &origin,
                    &seed);
        cd_rank_set *born = l->is_born ? cd_table_add(&s->sources, CD_KEY(x->what, x->id)) : NULL;
        if (born != NULL) cd_rank_set_add(born, &s->writer.memory, e->rank);
        return;
    }
    expectation *kept = cd_table_add(&s->expectations, key);
    if (kept == NULL) return;
    r->pending += !kept->is_pending;
    *kept = (expectation){.presence = x->presence,
                          .digest = x->digest,
                          .step = e->step,
                          .is_pending = true};
    copy_words(kept, e->text);
}

/* ---- gradients between their values ---- */

static void take_final(state *s, const rank_facts *r, const cddp_event *e)
{
    const cddp_event_grad_final *g = &e->as.grad_final;
    int64_t id;
    link *l = add_gradient(s, r, e->rank, g->param, &id);
    if (l == NULL || (g->digest == 0 && g->presence != CDDP_PRESENCE_ABSENT)) return;
    /* UNU-05: what no rank used stays as it was before the backward. Of ranks that drift apart the
    ** oracle does not know what they use. */
    if (g->globally_unused && r->has_agreement && l->is_known &&
        l->presence == CDDP_PRESENCE_ABSENT && g->presence != CDDP_PRESENCE_ABSENT) {
        const found f = {e, CDDP_WHAT_GRADIENT, id, AT_REDUCTION, g->presence, g->digest};
        note_breach(s, &f, l, NULL);
    }
    if (g->presence == CDDP_PRESENCE_SPARSE) {
        l->is_open = true; /* its rows are in no digest of this event */
        l->presence = CDDP_PRESENCE_SPARSE;
        return;
    }
    *l = (link){.presence = g->presence,
                .digest = g->digest,
                .moment = AT_REDUCTION,
                .sequence = e->sequence,
                .step = e->step,
                .backwards = l->backwards,
                .zeroings = l->zeroings,
                .earlier = l->reduced,
                .reduced = g->digest,
                .is_known = true,
                .is_final = true};
}

/* A backward of such a program may have no begin: what its zero_grad left, or what it showed at the
** begin of a step, says nothing of what the backward left. */
static void take_local(state *s, const rank_facts *r, const cddp_event *e)
{
    int64_t id;
    link *l = r->is_recorded ? add_gradient(s, r, e->rank, e->as.grad_local.param, &id) : NULL;
    if (l != NULL)
        l->is_added = l->is_known && (l->moment == CDDP_MOMENT_BEGIN || l->moment == AT_ZERO_GRAD);
}

/* What an optimizer adds, as weight decay, may be written into the gradient. Then all ranks do it
** alike, and nobody here knows what it must be. */
static void note_rewrite(state *s, const rank_facts *r, const found *f, const link *l)
{
    cddp_fact_group group;
    rewrite *x = r->is_recorded && l->moment == AT_REDUCTION && l->step == f->event->step &&
                         cd_writer_find_group(&s->writer, r->group, &group)
                     ? cd_table_add(&s->rewrites, CD_KEY(f->id, f->event->step))
                     : NULL;
    if (x == NULL) return;
    if (x->ranks++ == 0) x->digest = f->digest;
    x->members = group.members;
    x->differs |= x->digest != f->digest || f->digest == l->earlier;
}

static bool is_meant(const state *s, const cd_key *key, const breach *b)
{
    const cddp_event_value *v = &b->at.as.value;
    const int64_t step = b->at.step, reduced = AT_REDUCTION + (step << 8);
    const rank_facts *r = cd_ranks_find(&s->ranks, b->at.rank);
    return r != NULL && r->is_recorded && v->what == CDDP_WHAT_GRADIENT &&
           v->moment == AT_CONSUMED && v->presence == CDDP_PRESENCE_VALUE &&
           key->part[2] == reduced && cd_table_find(&s->apart, CD_KEY(step)) == NULL;
}

static void take_touch(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    int64_t id = 0;
    if (t->touched) r->stepped = e->step + 1;
    link *l = add_gradient(s, r, e->rank, t->param, &id);
    if (l != NULL && t->touched) l->touched_sequence = e->sequence;
    if (l == NULL || !l->is_known || l->is_open || l->is_added) return;
    if (!t->touched && l->presence == CDDP_PRESENCE_VALUE && l->moment == CDDP_MOMENT_BEFORE_STEP &&
        l->step == e->step) {
        const found none = {e, CDDP_WHAT_GRADIENT, id, AT_CONSUMED, CDDP_PRESENCE_ABSENT, 0};
        note_breach(s, &none, l, NULL);
    }
    if (!t->touched || t->gradient == 0) return;
    const found f = {e, CDDP_WHAT_GRADIENT, id, AT_CONSUMED, CDDP_PRESENCE_VALUE, t->gradient};
    if (l->digest == t->gradient) {
        s->held++;
    } else {
        note_breach(s, &f, l, NULL);
        note_rewrite(s, r, &f, l);
    }
    l->is_consumed = l->is_final; /* nothing was shown before: in backward */
}

static void take_zero_grad(const cddp_event *e, rank_facts *r)
{
    r->zeroings++;
    r->drops = e->as.zero_grad.to_none != 0;
    r->zeroed_step = e->step;
    r->zeroed_sequence = e->sequence;
}

/* ---- events ---- */

/* Only the root of a broadcast has an input. */
static void take_post(const cddp_event *e, rank_facts *r)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    if (c->op != CDDP_OP_BROADCAST || c->digest == 0) return;
    r->sent[r->sent_count++ % SENT_MAX] = (uint64_t)c->digest & CD_SUM_SIGHT_BITS;
}

/* What entered is not among what was sent: it changed behind its broadcast. */
static void take_mark(const cddp_event *e, rank_facts *r)
{
    bool was_sent = r->sent_count == 0; /* nothing is known */
    r->is_recorded |= e->text != NULL && strcmp(e->text, CD_TRACER_RECORDED) == 0;
    if (e->text == NULL || strcmp(e->text, CD_TRACER_ENTERED) != 0) return;
    for (uint32_t i = 0; i < r->sent_count && i < SENT_MAX; i++)
        was_sent = was_sent || r->sent[i] == (uint64_t)e->as.mark.value;
    r->is_changed_after = r->is_changed_after || !was_sent;
}

static void take_compare(state *s, const cddp_event *e, rank_facts *r)
{
    if (e->as.compare.link == CDDP_LINK_OPTIMIZER && e->as.compare.bad > 0)
        r->state_wrong = e->step + 1;
    if (e->as.compare.link != CDDP_LINK_BUFFER) return;
    link *l = find_link(s, e->rank, CDDP_WHAT_BUFFER, e->as.compare.param);
    if (l == NULL) return;
    l->is_computed = false;
    l->is_judged = e->as.compare.bad == 0;
}

static void learn(state *s, const cddp_event *e, rank_facts *r)
{
    int64_t *ordinal, *ignored;
    switch (e->kind) {
    case CDDP_EV_buffer:
        ignored = e->as.buffer.ignored
                      ? cd_table_add(&s->ignored, CD_KEY(e->rank, e->as.buffer.buffer))
                      : NULL;
        if (ignored != NULL) *ignored = 1;
        return;
    case CDDP_EV_param:
        if (e->as.param.param < 0) return;
        ordinal = cd_table_add(&s->ordinals, CD_KEY(e->rank, e->as.param.param));
        if (ordinal != NULL) *ordinal = e->as.param.ordinal + 1;
        return;
    case CDDP_EV_wrap:
        r->group = e->as.wrap.group;
        r->has_init_sync = e->as.wrap.init_sync != 0;
        return;
    case CDDP_EV_hook_law:
        if (e->as.hook_law.bucket < 0) r->has_law = true;
        return;
    case CDDP_EV_agreement:
        r->has_agreement = true;
        return;
    case CDDP_EV_forward_begin:
        /* an evaluation may have synchronised, and nothing has shown that yet */
        r->was_synced = r->was_synced && r->received_at < 0;
        if (!r->was_synced) r->sent_count = 0;
        r->is_changed_after = false;
        return;
    case CDDP_EV_buffer_sync:
        r->authority = e->as.buffer_sync.authority;
        r->was_synced = true;
        r->received_at = -1;
        return;
    case CDDP_EV_join_end:
        r->joined = e->as.join_end.authority + 1;
        return;
    default:
        if (!e->as.optimizer_step.skipped) r->stepped = e->step + 1;
        return;
    }
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    switch (e->kind) {
    case CDDP_EV_value:
        take_value(s, e);
        return;
    case CDDP_EV_expected:
        take_expected(s, r, e);
        return;
    case CDDP_EV_grad_local:
        take_local(s, r, e);
        return;
    case CDDP_EV_grad_final:
        take_final(s, r, e);
        return;
    case CDDP_EV_optimizer_touch:
        take_touch(s, r, e);
        return;
    case CDDP_EV_backward_begin:
        r->backwards++;
        r->backward_sequence = e->sequence;
        return;
    case CDDP_EV_zero_grad:
        take_zero_grad(e, r);
        return;
    case CDDP_EV_rewrite:
        r->rewritten = e->step + 1;
        return;
    case CDDP_EV_compare:
        take_compare(s, e, r);
        return;
    case CDDP_EV_collective_post:
        take_post(e, r);
        return;
    case CDDP_EV_mark:
        take_mark(e, r);
        return;
    default:
        learn(s, e, r);
        return;
    }
}

/* What nobody held against anything is said with its number. */
static void exercise(state *s)
{
    char gaps[96] = "";
    for (int64_t what = 0; what <= CDDP_WHAT_AVERAGER; what++) {
        const size_t used = strlen(gaps);
        if (s->unjudged[what] == 0) continue;
        cd_say(gaps + used, sizeof gaps - used, "%s %llu %s",
               used > 0 ? "," : "; not judged:", (unsigned long long)s->unjudged[what],
               cddp_event_word(CDDP_FIELD_what, what));
    }
    cd_writer_exercise(&s->writer, "%llu values as they were left, %llu as the plan moves them%s",
                       (unsigned long long)s->held, (unsigned long long)s->derived, gaps);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    for (size_t i = 0; i < s->links.count; i++)
        s->unjudged[CDDP_WHAT_BUFFER] += ((const link *)cd_table_value(&s->links, i))->is_computed;
    if (s->held + s->derived > 0) exercise(s);
    settle_rewrites(s);
    for (size_t i = 0; i < s->breaches.count; i++) {
        const cd_key *key = cd_table_key(&s->breaches, i);
        breach *b = cd_table_value(&s->breaches, i);
        if (!is_meant(s, key, b)) report(s, key, b);
    }
    cd_table_fini(&s->links);
    cd_table_fini(&s->received);
    cd_table_fini(&s->spreads);
    cd_table_fini(&s->expectations);
    cd_table_fini(&s->ordinals);
    cd_table_fini(&s->ignored);
    cd_table_fini(&s->sources);
    cd_table_fini(&s->breaches);
    cd_table_fini(&s->rewrites);
    cd_table_fini(&s->apart);
    cd_ranks_fini(&s->ranks);
    cd_check_end(s);
}

static const uint16_t kinds[] = {
    CDDP_EV_param,      CDDP_EV_wrap,          CDDP_EV_value,           CDDP_EV_expected,
    CDDP_EV_agreement,  CDDP_EV_forward_begin, CDDP_EV_buffer_sync,     CDDP_EV_backward_begin,
    CDDP_EV_grad_local, CDDP_EV_grad_final,    CDDP_EV_optimizer_step,  CDDP_EV_optimizer_touch,
    CDDP_EV_zero_grad,  CDDP_EV_join_end,      CDDP_EV_compare,         CDDP_EV_hook_law,
    CDDP_EV_rewrite,    CDDP_EV_buffer,        CDDP_EV_collective_post, CDDP_EV_mark};

CD_CHECK_TABLE(chain, "I-CHAIN", "a step begins with what the last one left",
               "Parameters, gradients, buffers and optimizer state change only where the plan "
               "says: from the initial values through every moment of every step to the end.");
