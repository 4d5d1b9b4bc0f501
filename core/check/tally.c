/* SPDX-License-Identifier: Apache-2.0 */
/* Gathering comparisons. The witness is the least in (step, link order, micro-step, rank,
** parameter), so it does not depend on how the events of different ranks interleave. */
#include "core/check/tally.h"

#include "core/trace/tracer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const link_words[CD_LINK_COUNT] = {
    [CD_LINK_MATHEMATICS] = "single-process gradient",
    [CD_LINK_REDUCTION] = "average of the local gradients",
    [CD_LINK_PRECISION] = "one-process local gradient",
    [CD_LINK_UPDATE] = "reference update",
    [CD_LINK_OPTIMIZER] = "reference optimizer state",
    [CD_LINK_BUFFER] = "reference buffer",
    [CD_LINK_PRESENCE] = "reference presence",
    [CD_LINK_FREE] = "free-running reference",
    [CD_LINK_LAW] = "hook's law",
    [CD_LINK_STATISTICS] = "statistics of the whole batch",
    [CD_LINK_COLLECTIVE] = "result of a collective",
    [CD_LINK_SHARE] = "reference update",
    [CD_LINK_FORMULA] = "optimizer's published formula",
    [CD_LINK_DERIVATIVE] = "derivative of the loss",
    [CD_LINK_EVALUATION] = "reference evaluation",
    [CD_LINK_SUM] = "sum of a collective"};

/* Position in the chain of causes. */
static const int link_order[CD_LINK_COUNT] = {
    [CD_LINK_STATISTICS] = -1, /* of the forward: what other ranks then get follows from it */
    [CD_LINK_PRECISION] = 0,
    [CD_LINK_REDUCTION] = 1,
    [CD_LINK_MATHEMATICS] = 2,
    [CD_LINK_PRESENCE] = 3,
    [CD_LINK_LAW] = 4,
    [CD_LINK_BUFFER] = 5,
    [CD_LINK_UPDATE] = 6,
    [CD_LINK_OPTIMIZER] = 7,
    [CD_LINK_FREE] = 8,
    [CD_LINK_SHARE] = 9, /* what an owner stepped wrongly, everybody gets */
    [CD_LINK_COLLECTIVE] = 10,
    /* an error of the model itself is in the run and in its reference alike */
    [CD_LINK_DERIVATIVE] = 0,
    [CD_LINK_FORMULA] = 11,
    [CD_LINK_EVALUATION] = 12, /* nothing follows from it */
    [CD_LINK_SUM] = 1};

const char *cd_link_words(int64_t link)
{
    return link >= 1 && link < CD_LINK_COUNT ? link_words[link] : "reference";
}

void cd_tally_init(cd_tally *tally, const cddp_allocator *allocator)
{
    *tally = (cd_tally){0};
    cd_table_init(&tally->entries, allocator, sizeof(cd_tally_entry));
    cd_table_init(&tally->ranks, allocator, sizeof(int64_t));
    cd_arena_init(&tally->memory, allocator, CD_RANK_SET_BLOCK);
    cd_ranks_init(&tally->judged, allocator, sizeof(int64_t));
    cd_ranks_init(&tally->apart, allocator, sizeof(cd_tally_apart));
}

void cd_tally_fini(cd_tally *tally)
{
    cd_table_fini(&tally->entries);
    cd_table_fini(&tally->ranks);
    cd_arena_fini(&tally->memory);
    cd_ranks_fini(&tally->judged);
    cd_ranks_fini(&tally->apart);
}

static int order_of(const cddp_event *e)
{
    int64_t link = e->as.compare.link;
    return link >= 1 && link < CD_LINK_COUNT ? link_order[link] : CD_LINK_COUNT;
}

static bool precedes(const cddp_event *a, const cddp_event *b)
{
    if (a->step != b->step) return a->step < b->step;
    if (order_of(a) != order_of(b)) return order_of(a) < order_of(b);
    if (a->micro_step != b->micro_step) return a->micro_step < b->micro_step;
    if (order_of(a) == link_order[CD_LINK_STATISTICS] && a->as.compare.param != b->as.compare.param)
        return a->as.compare.param < b->as.compare.param;
    if (a->rank != b->rank) return a->rank < b->rank;
    return a->sequence < b->sequence;
}

/* Layer by layer: from the second one on everybody has what the first culprit spread. */
static int64_t layer_of(const cddp_event_compare *c)
{
    return c->link == CD_LINK_STATISTICS ? c->param + 1 : c->link == CD_LINK_SHARE ? -1 : 0;
}

/* Those that were wrong where it began: who is wrong later, or further down the chain of causes,
** has it from them. */
static void blame(cd_tally *tally, cd_tally_entry *entry, const cddp_event *event)
{
    const cddp_event *w = &entry->witness;
    const bool is_later =
        entry->count > 0 &&
        (event->step > w->step || (event->step == w->step && order_of(event) > order_of(w)));
    const bool is_earlier = entry->count == 0 || event->step < w->step ||
                            (event->step == w->step && order_of(event) < order_of(w));
    if (is_later) return;
    if (is_earlier) entry->who = (cd_rank_set){0};
    cd_rank_set_add(&entry->who, &tally->memory, event->rank);
    entry->rank_count = cd_rank_set_count(&entry->who);
}

void cd_tally_push(cd_tally *tally, const cddp_event *event)
{
    const cddp_event_compare *c = &event->as.compare;
    /* of no tensor of the model */
    if (c->link == CD_LINK_COLLECTIVE || c->link == CD_LINK_NORM || c->link == CD_LINK_SUM) return;
    tally->compared++;
    int64_t *judged = cd_ranks_add(&tally->judged, event->rank);
    if (judged != NULL) (*judged)++;
    if (c->bad == 0) return;
    const int64_t layer = layer_of(c);
    cd_tally_entry *entry = cd_table_add(&tally->entries, CD_KEY(c->shape, layer));
    int64_t *seen = cd_table_add(&tally->ranks, CD_KEY(c->shape, event->rank, layer));
    if (entry == NULL || seen == NULL) return;
    (*seen)++;
    blame(tally, entry, event);
    if (event->step > entry->last_step) entry->last_step = event->step;
    if (entry->count++ != 0 && !precedes(event, &entry->witness)) return;
    entry->witness = *event;
    entry->witness.text = NULL;
    CD_SAY(entry->words, "%s", event->text != NULL ? event->text : "");
}

void cd_tally_push_uncompared(cd_tally *tally, const cddp_event *event)
{
    cd_tally_apart *apart = cd_ranks_add(&tally->apart, event->rank);
    if (apart == NULL) return;
    apart->reduced++;
    apart->own += event->as.uncompared.statistics != 0;
}

static uint32_t count_ranks(const cd_ranks *ranks)
{
    uint32_t count = 0;
    for (size_t i = 0; i < ranks->count; i++) {
        const int64_t *events = cd_ranks_find(ranks, (uint32_t)i);
        count += *events > 0;
    }
    return count;
}

/* How often a rank was left out of comparisons of this kind. An update is compared with what the
** optimizers make of the rank's own gradients: nobody is left out of that. */
static uint64_t count_left_out(const cd_tally_apart *apart, int64_t link)
{
    switch (link) {
    case CD_LINK_MATHEMATICS:
    case CD_LINK_REDUCTION:
    case CD_LINK_PRESENCE:
    case CD_LINK_FREE:
        return apart->reduced;
    case CD_LINK_STATISTICS:
    case CD_LINK_PRECISION:
    case CD_LINK_BUFFER:
        return apart->own;
    default:
        return 0;
    }
}

/* Ranks that nobody asked about this error, or not in the steps in which they would have had it. */
static uint32_t count_apart(const cd_tally *tally, const cd_tally_entry *entry)
{
    const cddp_event_compare *c = &entry->witness.as.compare;
    uint32_t count = 0;
    for (size_t rank = 0; rank < tally->apart.count; rank++) {
        const cd_tally_apart *apart = cd_ranks_find(&tally->apart, (uint32_t)rank);
        count += count_left_out(apart, c->link) > 0 &&
                 cd_table_find(&tally->ranks, CD_KEY(c->shape, (int64_t)rank, layer_of(c))) == NULL;
    }
    return count;
}

/* How often it happened besides, and who was never asked. */
static void advise(const cd_tally *tally, const cd_tally_entry *entry, cddp_finding *f)
{
    const uint32_t apart = count_apart(tally, entry);
    char others[128] = "";
    if (apart > 0)
        CD_SAY(others, "%s%u more %s, %s not compared", entry->count > 1 ? "; " : "", apart,
               apart > 1 ? "ranks, each of which starts from its own values"
                         : "rank, which starts from its own values",
               apart > 1 ? "were" : "was");
    if (entry->count > 1)
        CD_SAY(f->advice, "the same error in %llu more comparisons, up to step %u%s",
               (unsigned long long)entry->count - 1, entry->last_step, others);
    else
        CD_SAY(f->advice, "%s", others);
}

const char *cd_compare_split_name(const char *words, char *name, size_t name_bytes)
{
    const char *colon = strstr(words, ": ");
    if (colon == NULL) {
        snprintf(name, name_bytes, "a tensor");
        return words;
    }
    snprintf(name, name_bytes, "%.*s", (int)(colon - words), words);
    return colon + 2;
}

/* The index-th in the order of the witnesses; NULL past the end. */
static const cd_tally_entry *find_entry(const cd_tally *tally, size_t index)
{
    for (size_t i = 0; i < tally->entries.count; i++) {
        const cd_tally_entry *entry = cd_table_value(&tally->entries, i);
        size_t before = 0;
        for (size_t k = 0; k < tally->entries.count; k++) {
            const cd_tally_entry *other = cd_table_value(&tally->entries, k);
            before += precedes(&other->witness, &entry->witness) ||
                      (k < i && !precedes(&entry->witness, &other->witness));
        }
        if (before == index) return entry;
    }
    return NULL;
}

/* What a rank did with the statistics of a layer spreads to every gradient of the step; what it
** stepped wrongly, to who gets it. */
static bool follows_from_another(const cd_tally *tally, size_t index)
{
    const bool was_sent = find_entry(tally, index)->witness.as.compare.link == CD_LINK_SHARE;
    bool follows = false;
    for (size_t i = 0; i < index; i++) {
        const int64_t link = find_entry(tally, i)->witness.as.compare.link;
        follows = follows || link == CD_LINK_STATISTICS || (was_sent && link == CD_LINK_UPDATE);
    }
    return follows;
}

static bool is_average(int64_t link)
{
    return link == CD_LINK_REDUCTION || link == CD_LINK_MATHEMATICS;
}

/* A local gradient that is not its loss's derivative (link 15) makes the average of all wrong. */
static bool follows_from_a_slope(const cd_tally *tally, const cd_tally_entry *entry)
{
    bool follows = false;
    for (size_t i = 0; i < tally->entries.count; i++) {
        const cddp_event *other =
            &((const cd_tally_entry *)cd_table_value(&tally->entries, i))->witness;
        follows = follows || (other->as.compare.link == CD_LINK_DERIVATIVE &&
                              other->step == entry->witness.step);
    }
    return follows && is_average(entry->witness.as.compare.link);
}

/* What a rank computes from what all of them exchange, and from its own model. */
static bool is_own(int64_t link)
{
    return link == CD_LINK_STATISTICS || link == CD_LINK_PRECISION || link == CD_LINK_BUFFER;
}

/* Where a wrong tensor came about, as far as the trace shows it. */
static bool find_stage(const cd_writer *writer, const cddp_event *w, cddp_fact_stage *stage)
{
    const cddp_event_compare *c = &w->as.compare;
    const cddp_fact_average average = {w->step, w->micro_step, c->param};
    if (!is_own(c->link) && (!is_average(c->link) || c->param < 0)) return false;
    if (!cd_writer_find_stage(writer, &average, stage)) return false;
    if (!is_own(c->link)) return true;
    stage->bucket = -1; /* no average, and it may be of a buffer */
    return stage->is_exchanged;
}

/* Blames the stage at which a wrong average came about. what: of the title, in place of "X differs
** from the average". */
static bool blame_stage(cd_writer *writer, const cd_tally_entry *entry, const char *name,
                        cddp_finding *f, char what[160])
{
    const size_t what_bytes = 160;
    cddp_fact_stage stage;
    if (!find_stage(writer, &entry->witness, &stage)) return false;
    switch (stage.stage) {
    case CDDP_STAGE_LOCAL:
        /* of all of them: what is missing or doubled says more */
        if (stage.rank_count >= entry->rank_count) return false;
        cd_say(what, what_bytes, "the local gradient of %s is wrong, and so is the average", name);
        f->is_consequence = true;
        break;
    case CDDP_STAGE_PACKED:
        cd_say(what, what_bytes, "what was packed of %s is not the gradient%s", name,
               stage.is_stale ? " but what was packed before" : "");
        break;
    case CDDP_STAGE_LAUNCHED:
        cd_say(what, what_bytes, "the bucket of %s changes between packing and launch", name);
        break;
    case CDDP_STAGE_STARTED:
        cd_say(what, what_bytes,
               stage.has_majority ? "the step starts from other values than most, and so %s differs"
                                  : "each starts the step from other values, and so %s differs",
               name);
        f->is_consequence = true;
        break;
    case CDDP_STAGE_JOINED:
        cd_say(what, what_bytes, "after joining, the share of %s is not zeros", name);
        break;
    case CDDP_STAGE_SETTLED:
        cd_say(what, what_bytes, "the result of the bucket of %s changes before it is written back",
               name);
        break;
    case CDDP_STAGE_WRITTEN:
        cd_say(what, what_bytes, "%s is not what its bucket delivered", name);
        break;
    case CDDP_STAGE_CHANGED:
        cd_say(what, what_bytes, "%s changes after it was written back", name);
        break;
    case CDDP_STAGE_UNKNOWN:
    case CDDP_STAGE_REDUCED:
        return false;
    }
    cd_finding_set_stage(writer, f, &stage);
    return true;
}

/* The rank that steps a share, which the words of the comparison name at their end; -1: none. */
static int64_t owner_of(const char *words)
{
    static const char mark[] = ", in what rank ";
    const char *at = NULL;
    for (const char *next = strstr(words, mark); next != NULL; next = strstr(next + 1, mark))
        at = next;
    return at != NULL ? strtoll(at + sizeof mark - 1, NULL, 10) : -1;
}

static bool was_wrong(const cd_writer *writer, const cddp_event *at, uint32_t rank)
{
    static const int64_t links[] = {CD_LINK_PRECISION, CD_LINK_REDUCTION, CD_LINK_MATHEMATICS,
                                    CD_LINK_UPDATE, CD_LINK_OPTIMIZER};
    const cddp_facts *facts = writer->context.facts;
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        const cddp_fact_judged of = {rank, at->step, links[i], at->as.compare.param};
        if (facts->judged(facts->self, &of) == CDDP_JUDGED_WRONG) return true;
    }
    return false;
}

/* What one rank steps for all others: they have its error from it. Where it was seen to be wrong
** itself, this follows. Where all others complain, it is the one. */
static bool blame_owner(const cd_tally *tally, cd_writer *writer, const cd_tally_entry *entry,
                        cddp_finding *f)
{
    const int64_t owner = owner_of(entry->words);
    if (entry->witness.as.compare.link != CD_LINK_SHARE || owner < 0 || owner >= CD_RANKS_MAX)
        return false;
    bool was_any = was_wrong(writer, &entry->witness, (uint32_t)owner);
    /* who goes by a wrong average takes a right share for wrong */
    for (uint32_t r = cd_rank_set_next(&entry->who, 0); r != CD_NO_RANK && !was_any;
         r = cd_rank_set_next(&entry->who, r + 1))
        was_any = was_wrong(writer, &entry->witness, r);
    if (was_any) {
        f->is_consequence = true;
        return false;
    }
    if (cd_rank_set_has(&entry->who, (uint32_t)owner) || entry->rank_count < 2 ||
        entry->rank_count + 1 != count_ranks(&tally->judged))
        return false;
    cd_finding_set_rank(writer, f, owner);
    f->rank = (int32_t)owner;
    return true;
}

static bool is_everybody(const cd_tally *tally, const cd_tally_entry *entry, const cddp_finding *f,
                         bool is_staged)
{
    const uint32_t judged = count_ranks(&tally->judged);
    if (judged < 2) return false;
    if (is_staged) return f->rank_count == judged;
    return entry->rank_count == judged && count_apart(tally, entry) == 0;
}

/* "all ranks", or those of the finding. */
static void print_blamed(const cddp_finding *f, cd_writer *writer, char *text, size_t text_bytes)
{
    cd_rank_set who = {0};
    for (size_t i = 0; i < f->rank_count; i++) cd_rank_set_add(&who, &writer->memory, f->ranks[i]);
    cd_rank_set_print(&who, (uint32_t)f->rank, text, text_bytes);
}

static void say_sides(const cd_tally_entry *entry, const char *name, cddp_finding *f)
{
    const cddp_event_compare *c = &entry->witness.as.compare;
    const double bound = cd_f64_of(c->bound);
    /* Whether there is something is no value. */
    if (c->shape == CD_SHAPE_PRESENCE) {
        const bool is_there = cd_f64_of(c->actual) != 0;
        CD_SAY(f->expected, cd_f64_of(c->expected) != 0 ? "there is one for %s" : "none for %s",
               name);
        CD_SAY(f->actual, is_there ? "rank %u has one" : "rank %u has none", entry->witness.rank);
        return;
    }
    if (bound > 0)
        CD_SAY(f->expected, "%s[%lld] = %.17g, within %.3g", name, (long long)c->element,
               cd_f64_of(c->expected), bound);
    else
        CD_SAY(f->expected, "%s[%lld] = %.17g, bit for bit", name, (long long)c->element,
               cd_f64_of(c->expected));
    char away[80] = "";
    /* Sizes and counters have no ulps. */
    if (c->ulps > 0)
        CD_SAY(away, ", %lld ulp%s away; %lld element%s beyond the bound", (long long)c->ulps,
               c->ulps == 1 ? "" : "s", (long long)c->bad, c->bad == 1 ? "" : "s");
    /* what one rank gave is wrong in the average of all */
    bool is_witness = false;
    for (size_t i = 0; i < f->rank_count; i++)
        is_witness = is_witness || f->ranks[i] == entry->witness.rank;
    CD_SAY(f->actual, "%srank %u: %.17g%s",
           is_witness || f->rank_count == 0 ? "" : "in the average, as on ", entry->witness.rank,
           cd_f64_of(c->actual), away);
}

bool cd_tally_get(const cd_tally *tally, cd_writer *writer, size_t index, cddp_finding *finding)
{
    const cd_tally_entry *entry = find_entry(tally, index);
    if (entry == NULL) return false;
    const cddp_event_compare *c = &entry->witness.as.compare;
    cddp_finding f = cd_finding_at(writer, &entry->witness);
    cd_finding_set_ranks(writer, &f, &entry->who);
    f.is_consequence = follows_from_another(tally, index) || follows_from_a_slope(tally, entry);
    bool is_buffer = c->link == CD_LINK_BUFFER || c->link == CD_LINK_STATISTICS;
    const char *words = entry->words;
    const char *name = is_buffer ? cd_writer_get_buffer(writer, c->param)
                                 : cd_writer_get_parameter(writer, c->param);
    if (!is_buffer) cd_finding_set_parameter(writer, &f, c->param);
    if (c->param < 0) {
        words = cd_compare_split_name(entry->words, f.parameter, sizeof f.parameter);
        name = f.parameter;
    }
    char who[96] = "all ranks", what[160];
    const bool is_staged = blame_stage(writer, entry, name, &f, what);
    const bool is_owner = blame_owner(tally, writer, entry, &f);
    if (!is_staged)
        CD_SAY(what,
               is_owner ? "the share of %s that it steps for all differs from the %s"
                        : "%s differs from the %s",
               name, cd_link_words(c->link));
    if (!is_owner && is_everybody(tally, entry, &f, is_staged))
        f.rank = -1;
    else
        print_blamed(&f, writer, who, sizeof who);
    /* what a device makes wrongly is nobody's who computes with it */
    const bool is_device = strncmp(words, "device ", 7) == 0;
    f.is_cause = is_device;
    if (is_device && c->param < 0)
        CD_SAY(f.title, "%s: %s", who, words);
    else
        CD_SAY(f.title, "%s: %s: %s", who, what,
               words[0] != '\0' ? words : "no simple explanation");
    say_sides(entry, name, &f);
    advise(tally, entry, &f);
    *finding = f;
    return true;
}
