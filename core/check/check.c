/* SPDX-License-Identifier: Apache-2.0 */
/* The judge: dispatch by event kind, the verdict's raw material, and the merge of per-rank traces.
**
** Invariants
** J1  an event reaches exactly the checks whose kinds name it (all checks for a plugin without
**     kinds)
** J2  a check that has begun is ended exactly once, even when another one failed to begin
** J3  after an allocation failed, end reports it: a judge without memory never finds nothing wrong
** J4  the facts are those of the trace up to the event that a check is shown
** J5  ids and counts in events that reach a check are small enough to be walked to and added: a
**     store may hold anything
** J6  operations of a group are numbered on when it is opened again, as after a resume
*/
#include "core/check/check.h"

#include "core/base/arena.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/os_fault.h"
#include "core/check/deviation.h"
#include "core/check/facts.h"
#include "core/check/table.h"
#include "core/check/writer.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    const cddp_check *check;
} rows[] = {
#define CD_CHECK(file, name) {name, &cd_check_##file},
#include "core/check/checks.def"
#undef CD_CHECK
};

size_t cd_checks_count(void) { return sizeof rows / sizeof rows[0]; }

const cddp_check *cd_check_get(size_t index)
{
    return index < cd_checks_count() ? rows[index].check : NULL;
}

const cddp_check *cd_check_find(const char *name)
{
    for (size_t i = 0; i < cd_checks_count(); i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].check;
    return NULL;
}

/* Held per check until the findings are sorted; findings_per_check of them are kept. */
#define FINDINGS_HELD_MAX 4096
#define MEMORY_BLOCK_BYTES ((size_t)1 << 16)

/* One finding for all ranks of which a check says the same at one place. */
typedef struct held {
    cddp_finding finding; /* as said of the least of them; its list of ranks is made at the end */
    cd_rank_set ranks;
    uint16_t cause; /* its slot */
    bool differs;   /* what was expected or seen is not the same on all of them */
} held;

typedef struct slot {
    const cddp_check *check;
    void *self;
    cd_judge_exercise exercise;
    uint32_t kept;
    bool is_guest; /* a plugin's */
} slot;

/* The fields of a kind: those of which every value is tame, and those that stand for yes and no. */
typedef struct field_masks {
    uint16_t free, flags; /* bit i: field i */
} field_masks;
_Static_assert(CDDP_EVENT_FIELDS <= 16, "a bit per field");

struct cd_judge {
    cddp_trace_sink sink;
    cd_facts facts;
    cd_table closed;      /* (group, rank) → operations of it before it was closed */
    cddp_allocator table; /* what checks allocate from: notes failures (J3) */
    const cddp_allocator *allocator;
    cd_arena own;    /* this struct */
    cd_arena memory; /* from table: the arrays below, and what findings refer to */
    slot *slots;     /* (slot_count) */
    size_t slot_count;
    uint32_t *listeners; /* slots by kind; kind k: offsets[k] … offsets[k + 1] */
    uint32_t offsets[CDDP_EV_COUNT + 1];
    field_masks masks[CDDP_EV_COUNT];
    held *findings;   /* (finding_count) */
    uint32_t *sorted; /* (finding_count) after end */
    size_t finding_count, finding_capacity, shown_count;
    uint32_t world;   /* ranks of which the trace speaks */
    cddp_wait *waits; /* (wait_count) in ascending order of rank */
    size_t wait_count, wait_capacity;
    uint32_t findings_per_check;
    uint32_t replica_slot; /* the first check that compares replicas after a step */
    uint32_t order_slot;   /* the first that compares what ranks launch */
    bool out_of_memory, ended;
};

static const cddp_allocator *inner_of(const cd_judge *j)
{
    return j->allocator != NULL ? j->allocator : cddp_allocator_default();
}

static void *judge_allocate(void *context, size_t bytes)
{
    cd_judge *j = context;
    void *block = inner_of(j)->allocate(inner_of(j)->context, bytes);
    if (block == NULL) j->out_of_memory = true;
    return block;
}

static void *judge_resize(void *context, void *block, size_t bytes_old, size_t bytes_new)
{
    cd_judge *j = context;
    void *grown = inner_of(j)->resize(inner_of(j)->context, block, bytes_old, bytes_new);
    if (grown == NULL) j->out_of_memory = true;
    return grown;
}

static void judge_release(void *context, void *block, size_t bytes)
{
    cd_judge *j = context;
    inner_of(j)->release(inner_of(j)->context, block, bytes);
}

static slot *slot_of(cd_judge *j, const char *check)
{
    for (size_t i = 0; i < j->slot_count; i++)
        if (j->slots[i].check->name == check) return &j->slots[i];
    for (size_t i = 0; i < j->slot_count; i++)
        if (strcmp(j->slots[i].check->name, check) == 0) return &j->slots[i];
    return NULL;
}

/* A finding without a list concerns the rank that it blames. */
static void add_ranks(cd_judge *j, held *h, const cddp_finding *f)
{
    const bool is_listed = f->ranks != NULL && f->rank_count > 0;
    for (size_t i = 0; is_listed && i < f->rank_count; i++)
        cd_rank_set_add(&h->ranks, &j->memory, f->ranks[i]);
    if (!is_listed && f->rank >= 0) cd_rank_set_add(&h->ranks, &j->memory, (uint32_t)f->rank);
}

/* A name that was cut is looked up again, by its beginning. */
static const char *whole_name(const cd_judge *j, const cddp_finding *f)
{
    static const cddp_named named[] = {CDDP_NAMED_VARIABLE, CDDP_NAMED_ORDINAL};
    const size_t shown = sizeof f->parameter - 4; /* before the dots */
    if (f->name != NULL) return f->name;
    if (f->param < 0 || strlen(f->parameter) + 1 < sizeof f->parameter) return NULL;
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        const char *name = j->facts.port.name(j->facts.port.self, named[i], f->param);
        if (name != NULL && strncmp(name, f->parameter, shown) == 0) return name;
    }
    return NULL;
}

/* A title that leaves room for the ranks says the same of every rank. */
static bool is_same_claim(const cddp_finding *a, const cddp_finding *b)
{
    return a->step == b->step && a->micro_step == b->micro_step && a->bucket == b->bucket &&
           a->param == b->param && a->peer == b->peer && strcmp(a->title, b->title) == 0 &&
           strcmp(a->parameter, b->parameter) == 0;
}

static held *find_claim(cd_judge *j, uint16_t cause, const cddp_finding *finding)
{
    if (strstr(finding->title, CDDP_FINDING_WHO) == NULL) return NULL;
    for (size_t i = j->finding_count; i > 0; i--) {
        held *h = &j->findings[i - 1];
        if (h->cause == cause && is_same_claim(&h->finding, finding)) return h;
    }
    return NULL;
}

static void keep(cd_judge *j, held *h, const cddp_finding *finding)
{
    h->finding = *finding;
    h->finding.ranks = NULL;
    h->finding.rank_count = 0;
    const char *name = whole_name(j, finding);
    h->finding.name = name != NULL ? cd_arena_strdup(&j->memory, name) : NULL;
}

static void take_finding(void *reporter, const cddp_finding *finding)
{
    cd_judge *j = reporter;
    slot *s = slot_of(j, finding->check);
    if (s == NULL) return;
    const uint16_t cause = (uint16_t)(s - j->slots);
    cddp_finding whole = {0};
    memcpy(&whole, finding, finding->size < sizeof whole ? finding->size : sizeof whole);
    whole.size = sizeof whole;
    whole.check = s->check->name;
    held *same = find_claim(j, cause, &whole);
    if (same != NULL) {
        same->differs = same->differs || strcmp(same->finding.actual, whole.actual) != 0 ||
                        strcmp(same->finding.expected, whole.expected) != 0;
        add_ranks(j, same, &whole);
        if (whole.rank >= 0 && whole.rank < same->finding.rank) keep(j, same, &whole);
        return;
    }
    if (s->exercise.findings++ >= FINDINGS_HELD_MAX) return;
    if (!cd_arena_grow(&j->memory, (void **)&j->findings, &j->finding_capacity,
                       j->finding_count + 1, sizeof *j->findings))
        return;
    held *h = &j->findings[j->finding_count++];
    *h = (held){.cause = cause};
    keep(j, h, &whole);
    add_ranks(j, h, &whole);
}

/* A rank waits once; of two checks that say so the first is kept. */
static void take_wait(void *reporter, const cddp_wait *wait)
{
    cd_judge *j = reporter;
    size_t at = j->wait_count;
    while (at > 0 && j->waits[at - 1].rank >= wait->rank) at--;
    if (at < j->wait_count && j->waits[at].rank == wait->rank) return;
    if (!cd_arena_grow(&j->memory, (void **)&j->waits, &j->wait_capacity, j->wait_count + 1,
                       sizeof *j->waits))
        return;
    const size_t bytes = wait->peer_count * sizeof *wait->peers;
    uint32_t *peers = cd_arena_push(&j->memory, bytes + 1);
    const char *name = cd_arena_strdup(&j->memory, wait->name != NULL ? wait->name : "");
    if (peers == NULL || name == NULL) return;
    if (bytes > 0) memcpy(peers, wait->peers, bytes);
    memmove(&j->waits[at + 1], &j->waits[at], (j->wait_count++ - at) * sizeof *j->waits);
    j->waits[at] = (cddp_wait){.size = 0};
    memcpy(&j->waits[at], wait, wait->size < sizeof *wait ? wait->size : sizeof *wait);
    j->waits[at].size = sizeof *wait;
    j->waits[at].name = name;
    j->waits[at].peers = peers;
}

static void take_exercise(void *reporter, const char *check, const char *how)
{
    cd_judge *j = reporter;
    slot *s = slot_of(j, check);
    if (s == NULL) return;
    if (s->exercise.count++ == 0) cd_say(s->exercise.how, sizeof s->exercise.how, "%s", how);
}

/* The value that a check sees (J5): ids that it may walk to, numbers that it may add. */
static int64_t tame(cddp_field_type type, int64_t value)
{
    bool is_id = type == CDDP_FIELD_param || type == CDDP_FIELD_bucket;
    int64_t limit = is_id ? CD_IDS_MAX : INT64_C(1) << 53;
    if (type == CDDP_FIELD_digest || type == CDDP_FIELD_f64 || type == CDDP_FIELD_key) return value;
    if (type == CDDP_FIELD_flag) return value != 0;
    if (value >= limit) return limit - 1;
    return value < -limit ? -limit : value;
}

static field_masks masks_of(const cddp_event_info *info)
{
    field_masks m = {0, 0};
    for (uint32_t i = 0; i < info->field_count; i++) {
        const cddp_field_type type = info->fields[i].type;
        const bool is_free =
            type == CDDP_FIELD_digest || type == CDDP_FIELD_f64 || type == CDDP_FIELD_key;
        m.free = (uint16_t)(m.free | (unsigned)is_free << i);
        m.flags = (uint16_t)(m.flags | (unsigned)(type == CDDP_FIELD_flag) << i);
    }
    return m;
}

/* Almost every event is tame: small numbers are, whatever they mean, unless they stand for yes and
** no. So is -1, which stands for none. One comparison says so of all fields together. */
static bool is_small(field_masks m, uint32_t field_count, const cddp_event *event)
{
    uint64_t numbers = 0, flags = 0;
    for (uint32_t i = 0; i < field_count; i++) {
        const uint64_t value = (uint64_t)event->as.field[i];
        numbers |= (value + 1) & (((uint64_t)m.free >> i & 1) - 1);
        flags |= value & (0 - ((uint64_t)m.flags >> i & 1));
    }
    return numbers < CD_IDS_MAX && flags <= 1;
}

static bool is_tame(const cddp_event_info *info, const cddp_event *event)
{
    for (uint32_t i = 0; i < info->field_count; i++)
        if (tame(info->fields[i].type, event->as.field[i]) != event->as.field[i]) return false;
    return true;
}

/* Where a group had been closed before (J6): the event, numbered on. */
static bool number_on(const cd_judge *j, const cddp_event *event, cddp_event *numbered)
{
    int64_t group, *sequence;
    *numbered = *event;
    switch (event->kind) {
    case CDDP_EV_collective_post:
        group = event->as.collective_post.group;
        sequence = &numbered->as.collective_post.sequence;
        break;
    case CDDP_EV_collective_share:
        group = event->as.collective_share.group;
        sequence = &numbered->as.collective_share.sequence;
        break;
    case CDDP_EV_collective_done:
        group = event->as.collective_done.group;
        sequence = &numbered->as.collective_done.sequence;
        break;
    case CDDP_EV_collective_wait:
        group = event->as.collective_wait.group;
        sequence = &numbered->as.collective_wait.sequence;
        break;
    case CDDP_EV_bucket_launch:
        group = event->as.bucket_launch.group;
        sequence = &numbered->as.bucket_launch.sequence;
        break;
    default:
        return false;
    }
    const int64_t *before = cd_table_find(&j->closed, CD_KEY(group, event->rank));
    if (before == NULL) return false;
    *sequence += *before;
    return true;
}

static void note_close(cd_judge *j, const cddp_event *event)
{
    int64_t *before = cd_table_add(&j->closed, CD_KEY(event->as.group_close.group, event->rank));
    if (before != NULL && *before < INT64_C(1) << 53) *before += event->as.group_close.sequence;
}

static void judge_event(void *self, const cddp_event *event)
{
    cd_judge *j = self;
    const cddp_event_info *info = cddp_event_describe(event->kind);
    cddp_event tamed, numbered;
    if (info == NULL || j->ended) return;
    if (event->rank != UINT32_MAX && event->rank >= j->world) j->world = event->rank + 1;
    if (!is_small(j->masks[event->kind], info->field_count, event) && !is_tame(info, event)) {
        tamed = *event;
        for (uint32_t i = 0; i < info->field_count; i++)
            tamed.as.field[i] = tame(info->fields[i].type, event->as.field[i]);
        event = &tamed;
    }
    if (j->closed.count > 0 && number_on(j, event, &numbered)) event = &numbered;
    cd_facts_learn(&j->facts, event);
    for (uint32_t i = j->offsets[event->kind]; i < j->offsets[event->kind + 1]; i++) {
        const slot *s = &j->slots[j->listeners[i]];
        if (s->is_guest) cd_os_guest_enter("check ", s->check->name);
        s->check->event(s->self, event);
        if (s->is_guest) cd_os_guest_enter(NULL, NULL);
    }
    if (event->kind == CDDP_EV_group_close) note_close(j, event);
}

/* Calls for every kind that a slot wants, each once: counts it, or writes the slot where the kind's
** next one goes. */
static void sort_in(cd_judge *j, uint32_t slot_index, uint32_t *next)
{
    const cddp_check *check = j->slots[slot_index].check;
    bool seen[CDDP_EV_COUNT] = {false};
    for (uint32_t i = 0; i < (check->kinds != NULL ? check->kind_count : CDDP_EV_COUNT); i++) {
        const uint32_t kind = check->kinds != NULL ? check->kinds[i] : i;
        if (kind >= CDDP_EV_COUNT || seen[kind]) continue;
        seen[kind] = true;
        if (j->listeners != NULL) j->listeners[next[kind]] = slot_index;
        next[kind]++;
    }
}

/* The slots that want each kind, in causal order (J1). */
static cddp_status build_listeners(cd_judge *j, cddp_error *err)
{
    uint32_t next[CDDP_EV_COUNT] = {0};
    for (uint32_t s = 0; s < j->slot_count; s++) sort_in(j, s, next);
    for (uint32_t kind = 0; kind < CDDP_EV_COUNT; kind++) {
        j->offsets[kind + 1] = j->offsets[kind] + next[kind];
        j->masks[kind] = masks_of(cddp_event_describe(kind));
    }
    const size_t count = j->offsets[CDDP_EV_COUNT];
    j->listeners = cd_arena_array(&j->memory, count, sizeof *j->listeners);
    if (j->listeners == NULL) return cd_fail_memory(err, "%zu listeners", count);
    memcpy(next, j->offsets, sizeof next);
    for (uint32_t s = 0; s < j->slot_count; s++) sort_in(j, s, next);
    return CDDP_OK;
}

/* By its function: a registry holds copies of the tables. */
static bool is_plugins(const cddp_check *check)
{
    const cddp_check *own = cd_check_find(check->name);
    return own == NULL || own->event != check->event;
}

static cddp_status begin_slot(cd_judge *j, const cddp_check *check, cddp_error *err)
{
    if (check == NULL || check->begin == NULL || check->event == NULL || check->end == NULL)
        return cd_fail(err, CDDP_E_ARG, "check %s lacks begin, event or end",
                       check != NULL ? check->name : "(null)");
    slot *s = &j->slots[j->slot_count];
    *s = (slot){.check = check, .exercise = {.check = check->name}, .is_guest = is_plugins(check)};
    cddp_check_context context = {.size = sizeof context,
                                  .allocator = &j->table,
                                  .reporter = j,
                                  .report = take_finding,
                                  .exercised = take_exercise,
                                  .facts = &j->facts.port,
                                  .wait = take_wait};
    if (s->is_guest) cd_os_guest_enter("check ", check->name);
    const cddp_status status = check->begin(&context, &s->self, err);
    if (s->is_guest) cd_os_guest_enter(NULL, NULL);
    if (status != CDDP_OK) return CD_PASS(status);
    j->slot_count++;
    return CDDP_OK;
}

/* Past the last where there is none. */
static uint32_t find_slot(const cd_judge *j, const char *name)
{
    uint32_t i = 0;
    while (i < j->slot_count && strcmp(j->slots[i].check->name, name) != 0) i++;
    return i;
}

cddp_status cd_judge_create(const cd_judge_options *options, cd_judge **judge, cddp_error *err)
{
    size_t count = options->checks != NULL ? options->check_count : cd_checks_count();
    cddp_status status = CDDP_OK;
    cd_arena own;
    cd_arena_init(&own, options->allocator, 0);
    cd_judge *j = cd_arena_push(&own, sizeof *j);
    if (j == NULL) return cd_fail_memory(err, "a judge");
    j->own = own;
    j->allocator = options->allocator;
    j->table = (cddp_allocator){sizeof j->table, j, judge_allocate, judge_resize, judge_release};
    j->sink = (cddp_trace_sink){sizeof j->sink, CDDP_TRACE_ABI, j, judge_event, NULL};
    cd_arena_init(&j->memory, &j->table, MEMORY_BLOCK_BYTES);
    cd_facts_init(&j->facts, &j->table);
    cd_table_init(&j->closed, &j->table, sizeof(int64_t));
    j->findings_per_check = options->findings_per_check != 0 ? options->findings_per_check : 16;
    j->slots = cd_arena_array(&j->memory, count, sizeof *j->slots);
    CD_TRY_OUT(cd_arena_check(&j->memory, err, "%zu checks", count));
    for (size_t i = 0; i < count; i++)
        CD_TRY_OUT(
            begin_slot(j, options->checks != NULL ? options->checks[i] : cd_check_get(i), err));
    CD_TRY_OUT(build_listeners(j, err));
    /* By name: a registry may hold copies of the tables. */
    j->replica_slot = find_slot(j, cd_check_parameq.name);
    j->order_slot = find_slot(j, cd_check_content.name);
    *judge = j;
    return CDDP_OK;
out:
    cd_judge_destroy(j);
    return status;
}

static void end_checks(cd_judge *j)
{
    if (j->ended) return;
    j->ended = true;
    for (size_t i = 0; i < j->slot_count; i++) {
        if (j->slots[i].is_guest) cd_os_guest_enter("check ", j->slots[i].check->name);
        j->slots[i].check->end(j->slots[i].self);
        if (j->slots[i].is_guest) cd_os_guest_enter(NULL, NULL);
    }
}

void cd_judge_destroy(cd_judge *judge)
{
    if (judge == NULL) return;
    end_checks(judge);
    cd_facts_fini(&judge->facts);
    cd_table_fini(&judge->closed);
    cd_arena_fini(&judge->memory);
    cd_arena_fini(&judge->own);
}

const cddp_trace_sink *cd_judge_get_sink(cd_judge *judge) { return &judge->sink; }

static int compare_u64(uint64_t a, uint64_t b) { return a < b ? -1 : a > b; }

/* Where a finding stands in the causal order: with its check, or just before the first check on
** replicas, or on the order of launches. */
static uint64_t cause_of(const cd_judge *j, uint32_t finding)
{
    const held *h = &j->findings[finding];
    if (h->finding.is_cause) return 2 * (uint64_t)j->order_slot;
    return h->finding.is_consequence ? 2 * (uint64_t)j->replica_slot : 2 * (uint64_t)h->cause + 1;
}

/* Step, causal order of the checks, micro-step, rank, parameter, order of report. */
static int compare_findings(const cd_judge *j, uint32_t a, uint32_t b)
{
    const cddp_finding *x = &j->findings[a].finding, *y = &j->findings[b].finding;
    int order = compare_u64(x->step, y->step);
    if (order == 0) order = compare_u64(cause_of(j, a), cause_of(j, b));
    if (order == 0) order = compare_u64(x->micro_step, y->micro_step);
    if (order == 0)
        order = compare_u64((uint64_t)((int64_t)x->rank + 1), (uint64_t)((int64_t)y->rank + 1));
    if (order == 0)
        order = compare_u64((uint64_t)((int64_t)x->param + 1), (uint64_t)((int64_t)y->param + 1));
    return order != 0 ? order : compare_u64(a, b);
}

/* Insertion sort: findings are few, and come nearly in order. Then only the first ones of each
** check stay. */
static void sort_findings(cd_judge *j)
{
    for (size_t i = 0; i < j->finding_count; i++) {
        size_t at = i;
        for (; at > 0 && compare_findings(j, (uint32_t)i, j->sorted[at - 1]) < 0; at--)
            j->sorted[at] = j->sorted[at - 1];
        j->sorted[at] = (uint32_t)i;
    }
    size_t stayed = 0;
    for (size_t i = 0; i < j->finding_count; i++) {
        slot *s = &j->slots[j->findings[j->sorted[i]].cause];
        if (s->kept++ < j->findings_per_check) j->sorted[stayed++] = j->sorted[i];
    }
    j->shown_count = stayed;
}

/* ---- who ---- */

/* The ranks in place of each CDDP_FINDING_WHO. */
static void name_ranks(char *text, size_t text_bytes, const char *who)
{
    char whole[512] = "";
    const char *from = text, *gap = strstr(text, CDDP_FINDING_WHO);
    if (gap == NULL) return;
    for (; gap != NULL; gap = strstr(from, CDDP_FINDING_WHO)) {
        const size_t used = strlen(whole);
        cd_say(whole + used, sizeof whole - used, "%.*s%s", (int)(gap - from), from, who);
        from = gap + strlen(CDDP_FINDING_WHO);
    }
    const size_t used = strlen(whole);
    cd_say(whole + used, sizeof whole - used, "%s", from);
    cd_say(text, text_bytes, "%s", whole);
}

/* Of several ranks that differ in it: whose side is shown. */
static void name_side(char *text, size_t text_bytes, int32_t rank)
{
    char side[160];
    if (strncmp(text, "rank ", 5) == 0) return;
    CD_SAY(side, "%s", text);
    cd_say(text, text_bytes, "rank %d: %s", rank, side);
}

static void finish_finding(cd_judge *j, held *h)
{
    cddp_finding *f = &h->finding;
    const uint32_t count = cd_rank_set_count(&h->ranks);
    uint32_t *ranks = count > 0 ? cd_arena_push(&j->memory, count * sizeof *ranks) : NULL;
    char who[96] = "all ranks";
    f->ranks = ranks;
    f->rank_count = ranks != NULL ? count : 0;
    for (uint32_t r = cd_rank_set_next(&h->ranks, 0); ranks != NULL && r != CD_NO_RANK;
         r = cd_rank_set_next(&h->ranks, r + 1))
        *ranks++ = r;
    if (strstr(f->title, CDDP_FINDING_WHO) == NULL) return;
    const bool is_all = count > 1 && count >= j->world;
    if (!is_all) cd_rank_set_print(&h->ranks, CD_NO_RANK, who, sizeof who);
    name_ranks(f->title, sizeof f->title, who);
    if (h->differs) {
        name_side(f->expected, sizeof f->expected, f->rank);
        name_side(f->actual, sizeof f->actual, f->rank);
    }
    if (is_all) f->rank = -1;
}

/* The first finding says in which option ranks differ, where they do: that is mostly its cause. */
static void name_deviation(cd_judge *j)
{
    cd_deviation d;
    char advice[sizeof j->findings[0].finding.advice];
    if (j->shown_count == 0 || !cd_deviation_find(&j->facts, &j->memory, &d)) return;
    cddp_finding *f = &j->findings[j->sorted[0]].finding;
    cd_say(advice, sizeof advice, "%s", f->advice);
    const char *gap = advice[0] != '\0' ? "; " : "";
    if (d.count > 2)
        CD_SAY(f->advice, "%s, and %u more options differ between ranks%s%s", d.words, d.count - 1,
               gap, advice);
    else
        CD_SAY(f->advice, "%s%s%s%s", d.words,
               d.count > 1 ? ", and one more option differs between ranks" : "", gap, advice);
}

cddp_status cd_judge_end(cd_judge *judge, cddp_error *err)
{
    if (judge->ended) return cd_fail(err, CDDP_E_STATE, "the judge has already ended");
    end_checks(judge);
    for (size_t i = 0; i < judge->finding_count; i++) finish_finding(judge, &judge->findings[i]);
    judge->sorted = cd_arena_array(&judge->memory, judge->finding_count, sizeof *judge->sorted);
    if (judge->out_of_memory)
        return cd_fail_memory(err, "the judge of the trace; it was not judged");
    sort_findings(judge);
    name_deviation(judge);
    if (judge->out_of_memory)
        return cd_fail_memory(err, "the judge of the trace; it was not judged");
    return CDDP_OK;
}

size_t cd_judge_finding_count(const cd_judge *judge) { return judge->shown_count; }

const cddp_finding *cd_judge_get_finding(const cd_judge *judge, size_t index)
{
    CD_ASSERT(index < judge->shown_count);
    return &judge->findings[judge->sorted[index]].finding;
}

uint64_t cd_judge_get_place(const cd_judge *judge, size_t index)
{
    CD_ASSERT(index < judge->shown_count);
    return cause_of(judge, judge->sorted[index]);
}

size_t cd_judge_wait_count(const cd_judge *judge) { return judge->wait_count; }

const cddp_wait *cd_judge_get_wait(const cd_judge *judge, size_t index)
{
    CD_ASSERT(index < judge->wait_count);
    return &judge->waits[index];
}

size_t cd_judge_exercise_count(const cd_judge *judge) { return judge->slot_count; }

const cd_judge_exercise *cd_judge_get_exercise(const cd_judge *judge, size_t index)
{
    CD_ASSERT(index < judge->slot_count);
    return &judge->slots[index].exercise;
}

cddp_status cd_judge_push_trace(cd_judge *judge, const cd_memory_sink *trace, cddp_error *err)
{
    cd_merge_input input = {trace, 1, judge->allocator};
    CD_TRY(cd_trace_merge(&input, &judge->sink, err));
    return CDDP_OK;
}
