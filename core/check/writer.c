/* SPDX-License-Identifier: Apache-2.0 */
/* Names, findings and their wording. */
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "core/base/alloc.h"
#include "core/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME_VARIABLE, NAME_ORDINAL, NAME_BUFFER };

typedef struct known_name {
    uint32_t reporter; /* the least rank that told it */
    char text[CD_WRITER_NAME_BYTES];
} known_name;

typedef struct held_finding {
    cddp_finding finding;
    cd_rank_set ranks;
    uint32_t step, micro_step, rank;
    bool is_known, is_made;
} held_finding;

cddp_status cd_check_begin(const cddp_check_context *context, const cd_check_spec *spec,
                           void **self, cddp_error *err)
{
    cd_writer *writer = cd_allocate_zero(context->allocator, spec->state_bytes);
    if (writer == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for check %s", spec->check);
    writer->context = *context;
    writer->check = spec->check;
    writer->state_bytes = spec->state_bytes;
    cd_table_init(&writer->names, context->allocator, sizeof(known_name));
    cd_table_init(&writer->groups, context->allocator, sizeof(cd_group_facts));
    cd_arena_init(&writer->memory, context->allocator, CD_RANK_SET_BLOCK);
    cd_table_init(&writer->held, context->allocator, sizeof(held_finding));
    cd_ranks_init(&writer->agreements, context->allocator, (CD_AGREED_COUNT + 1) * sizeof(int64_t));
    cd_table_init(&writer->exceptions, context->allocator, 2 * sizeof(int64_t));
    *self = writer;
    return CDDP_OK;
}

void cd_check_end(void *self)
{
    cd_writer *writer = self;
    if (writer == NULL) return;
    for (size_t i = 0; i < writer->held.count; i++) {
        held_finding *h = cd_table_value(&writer->held, i);
        if (!h->is_made) continue;
        for (size_t k = 0; k < h->finding.rank_count; k++)
            cd_rank_set_add(&h->ranks, &writer->memory, h->finding.ranks[k]);
        cd_finding_set_ranks(writer, &h->finding, &h->ranks);
        cd_writer_report(writer, &h->finding);
    }
    cd_table_fini(&writer->held);
    cd_arena_fini(&writer->memory);
    cd_ranks_fini(&writer->agreements);
    cd_table_fini(&writer->exceptions);
    cd_table_fini(&writer->names);
    cd_table_fini(&writer->groups);
    cd_release(writer->context.allocator, writer, writer->state_bytes);
}

static void learn_name(cd_writer *writer, const cd_key *key, const cddp_event *event)
{
    known_name *name = event->text != NULL ? cd_table_add(&writer->names, key) : NULL;
    if (name == NULL || (name->text[0] != '\0' && name->reporter <= event->rank)) return;
    name->reporter = event->rank;
    CD_SAY(name->text, "%s", event->text);
}

static void learn_group(cd_writer *writer, const cddp_event *event)
{
    bool is_new = cd_writer_find_group(writer, event->as.group.group) == NULL;
    cd_group_facts *facts = cd_table_add(&writer->groups, CD_KEY(event->as.group.group));
    if (facts == NULL || (!is_new && facts->reporter <= event->rank)) return;
    facts->reporter = event->rank;
    facts->members = event->as.group.members;
    facts->order = event->as.group.order;
    CD_SAY(facts->name, "%s", event->text != NULL ? event->text : "");
}

void cd_writer_learn(cd_writer *writer, const cddp_event *event)
{
    if (event->kind == CDDP_EV_param) {
        if (event->as.param.param >= 0)
            learn_name(writer, CD_KEY(NAME_VARIABLE, event->as.param.param), event);
        learn_name(writer, CD_KEY(NAME_ORDINAL, event->as.param.ordinal), event);
    } else if (event->kind == CDDP_EV_buffer) {
        learn_name(writer, CD_KEY(NAME_BUFFER, event->as.buffer.buffer), event);
    } else if (event->kind == CDDP_EV_group) {
        learn_group(writer, event);
    } else if (event->kind == CDDP_EV_agreement) {
        const cddp_event_agreement *a = &event->as.agreement;
        int64_t *sizes = cd_ranks_add(&writer->agreements, event->rank);
        if (sizes == NULL) return;
        if (a->ordinal > 0) {
            int64_t *own = cd_table_add(&writer->exceptions, CD_KEY(event->rank, a->ordinal - 1));
            if (own == NULL) return;
            own[0] = a->parameters;
            own[1] = sizes[CD_AGREED_COUNT];
            return;
        }
        sizes[CD_AGREED_COUNT]++;
        sizes[CD_AGREED_GRADIENTS] = a->gradients;
        sizes[CD_AGREED_PARAMETERS] = a->parameters;
        sizes[CD_AGREED_STATE] = a->state;
    }
}

int64_t cd_writer_get_block(const cd_writer *writer, int64_t group, uint32_t rank, cd_agreed what)
{
    const int64_t *sizes = cd_ranks_find(&writer->agreements, rank);
    int64_t block = sizes != NULL && sizes[what] > 0 ? (int64_t)rank / sizes[what] : 0;
    return group + (block << 32);
}

int64_t cd_writer_get_parameter_block(const cd_writer *writer, int64_t group, uint32_t rank,
                                      int64_t ordinal)
{
    const int64_t *sizes = cd_ranks_find(&writer->agreements, rank);
    const int64_t *own =
        sizes != NULL ? cd_table_find(&writer->exceptions, CD_KEY(rank, ordinal)) : NULL;
    if (own == NULL || own[1] != sizes[CD_AGREED_COUNT])
        return cd_writer_get_block(writer, group, rank, CD_AGREED_PARAMETERS);
    return group + ((own[0] > 0 ? (int64_t)rank / own[0] : 0) << 32);
}

static const char *name_of(cd_writer *writer, int64_t kind, int64_t id, const char *word)
{
    char *text = writer->scratch[writer->scratch_next++ % CD_WRITER_SCRATCH];
    const known_name *name = cd_table_find(&writer->names, CD_KEY(kind, id));
    if (name != NULL && name->text[0] != '\0')
        cd_say(text, CD_WRITER_NAME_BYTES, "%s", name->text);
    else
        cd_say(text, CD_WRITER_NAME_BYTES, "%s %lld", word, (long long)id);
    return text;
}

const char *cd_writer_get_count(cd_writer *writer, uint64_t count, const char *words)
{
    char *text = writer->scratch[writer->scratch_next++ % CD_WRITER_SCRATCH];
    text[0] = '\0';
    if (count != 1)
        cd_say(text, CD_WRITER_NAME_BYTES, " (%llu %s)", (unsigned long long)count, words);
    return text;
}

const char *cd_writer_get_parameter(cd_writer *writer, int64_t variable)
{
    return name_of(writer, NAME_VARIABLE, variable, "parameter");
}
const char *cd_writer_get_ordinal(cd_writer *writer, int64_t ordinal)
{
    return name_of(writer, NAME_ORDINAL, ordinal, "parameter");
}
const char *cd_writer_get_buffer(cd_writer *writer, int64_t buffer)
{
    return name_of(writer, NAME_BUFFER, buffer, "buffer");
}

const cd_group_facts *cd_writer_find_group(const cd_writer *writer, int64_t group)
{
    return cd_table_find(&writer->groups, CD_KEY(group));
}

const char *cd_writer_get_group(cd_writer *writer, int64_t group)
{
    const cd_group_facts *facts = cd_writer_find_group(writer, group);
    if (facts != NULL && facts->name[0] != '\0') return facts->name;
    char *text = writer->scratch[writer->scratch_next++ % CD_WRITER_SCRATCH];
    cd_say(text, CD_WRITER_NAME_BYTES, "%lld", (long long)group);
    return text;
}

bool cd_writer_has_equal_bits(const cd_writer *writer, int64_t group)
{
    const cd_group_facts *facts = cd_writer_find_group(writer, group);
    return facts != NULL && facts->order != CDDP_ORDER_UNSPECIFIED;
}

void cd_say(char *text, size_t text_bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(text, text_bytes, format, args);
    va_end(args);
    /* A cut text ends in dots, so that nobody takes it for the whole. */
    if (wanted >= (int)text_bytes && text_bytes > 4) memcpy(text + text_bytes - 4, "...", 4);
}

/* ranks: as many as it has members */
static void list_ranks(const cd_rank_set *set, uint32_t *ranks)
{
    for (uint32_t r = cd_rank_set_next(set, 0); r != CD_NO_RANK; r = cd_rank_set_next(set, r + 1))
        *ranks++ = r;
}

void cd_finding_set_ranks(cd_writer *writer, cddp_finding *finding, const cd_rank_set *ranks)
{
    const uint32_t count = cd_rank_set_count(ranks);
    uint32_t *list = cd_arena_push(&writer->memory, (count + 1) * sizeof *list);
    if (list != NULL) list_ranks(ranks, list);
    finding->ranks = list;
    finding->rank_count = list != NULL ? count : 0;
}

void cd_finding_set_rank(cd_writer *writer, cddp_finding *finding, int64_t rank)
{
    cd_rank_set one = {0};
    if (rank >= 0 && rank < CD_RANKS_MAX) cd_rank_set_add(&one, &writer->memory, (uint32_t)rank);
    cd_finding_set_ranks(writer, finding, &one);
}

cddp_finding cd_finding_at(cd_writer *writer, const cddp_event *event)
{
    cddp_finding f = {.size = sizeof f,
                      .check = writer->check,
                      .step = event->step,
                      .micro_step = event->micro_step,
                      .rank = -1,
                      .peer = -1,
                      .bucket = -1,
                      .param = -1};
    if (event->rank != UINT32_MAX) {
        f.rank = (int32_t)event->rank;
        cd_finding_set_rank(writer, &f, event->rank);
    }
    cd_finding_add_event(&f, event->rank, event->sequence);
    return f;
}

cddp_finding cd_finding_of(cd_writer *writer, const cd_split *split)
{
    cddp_finding f = {.size = sizeof f,
                      .check = writer->check,
                      .step = split->step,
                      .micro_step = split->micro_step,
                      .rank = -1,
                      .peer = -1,
                      .bucket = -1,
                      .param = -1};
    cd_rank_set ranks = {0};
    cd_rank_set_unite(&ranks, &writer->memory, &split->odd_ranks);
    if (split->has_culprit) {
        f.rank = (int32_t)split->odd.rank;
        f.peer = (int32_t)split->right.rank;
    } else {
        cd_rank_set_unite(&ranks, &writer->memory, &split->right.ranks);
    }
    cd_finding_set_ranks(writer, &f, &ranks);
    cd_finding_add_event(&f, split->odd.rank, split->odd.sequence);
    cd_finding_add_event(&f, split->right.rank, split->right.sequence);
    return f;
}

void cd_finding_add_event(cddp_finding *finding, uint32_t rank, uint64_t sequence)
{
    if (finding->event_count >= CDDP_FINDING_EVENTS_MAX) return;
    finding->events[finding->event_count].rank = rank;
    finding->events[finding->event_count++].sequence = sequence;
}

void cd_finding_set_parameter(cd_writer *writer, cddp_finding *finding, int64_t variable)
{
    finding->param = (int32_t)variable;
    if (variable >= 0) CD_SAY(finding->parameter, "%s", cd_writer_get_parameter(writer, variable));
}

void cd_split_print(const cd_split *split, char *text, size_t text_bytes)
{
    char odd[96], right[96];
    cd_rank_set_print(&split->odd_ranks, split->odd.rank, odd, sizeof odd);
    cd_rank_set_print(&split->right.ranks, CD_NO_RANK, right, sizeof right);
    if (split->has_culprit)
        cd_say(text, text_bytes, "%s against %s", odd, right);
    else
        cd_say(text, text_bytes, "%s and %s, no majority,", right, odd);
}

bool cd_operation_reduces(int64_t op)
{
    return op == CDDP_OP_ALLREDUCE || op == CDDP_OP_REDUCE || op == CDDP_OP_REDUCE_SCATTER;
}

void cd_operation_print(const int64_t data[5], char *text, size_t text_bytes)
{
    char reduce[24] = "", root[40] = "", size[48] = "";
    if (data[1] >= 0) CD_SAY(reduce, "(%s)", cddp_red_op_name((cddp_red_op)data[1]));
    if (data[2] >= 0) CD_SAY(root, " root %lld", (long long)data[2]);
    if (data[3] >= 0)
        CD_SAY(size, " of %lld %s", (long long)data[4], cddp_dtype_name((cddp_dtype)data[3]));
    cd_say(text, text_bytes, "%s%s%s%s", cddp_op_name((cddp_op)data[0]), reduce, root, size);
}

void cd_writer_report(cd_writer *writer, const cddp_finding *finding)
{
    writer->context.report(writer->context.reporter, finding);
}

static bool precedes(const cddp_event *event, const held_finding *held)
{
    if (event->step != held->step) return event->step < held->step;
    if (event->micro_step != held->micro_step) return event->micro_step < held->micro_step;
    return event->rank < held->rank;
}

bool cd_writer_is_first(cd_writer *writer, const cd_key *key, const cddp_event *event)
{
    held_finding *h = cd_table_add(&writer->held, key);
    if (h == NULL) return false;
    cd_rank_set_add(&h->ranks, &writer->memory, event->rank);
    if (h->is_known && !precedes(event, h)) return false;
    h->is_known = true;
    h->step = event->step;
    h->micro_step = event->micro_step;
    h->rank = event->rank;
    return true;
}

void cd_writer_hold(cd_writer *writer, const cd_key *key, const cddp_finding *finding)
{
    held_finding *h = cd_table_add(&writer->held, key);
    if (h == NULL) return;
    h->finding = *finding;
    h->is_made = true;
}

void cd_writer_exercise(cd_writer *writer, const char *format, ...)
{
    char how[160];
    va_list args;
    va_start(args, format);
    vsnprintf(how, sizeof how, format, args);
    va_end(args);
    writer->context.exercised(writer->context.reporter, writer->check, how);
}
