/* SPDX-License-Identifier: Apache-2.0 */
/* Findings and their wording. */
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/check/facts.h"
#include "core/trace/setting.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct held_finding {
    cddp_finding finding;
    cd_rank_set ranks;
    uint32_t step, micro_step, rank;
    bool is_known, is_made;
} held_finding;

cddp_status cd_check_begin(const cddp_check_context *context, const cd_check_spec *spec,
                           void **self, cddp_error *err)
{
    cd_arena memory;
    cd_arena_init(&memory, context->allocator, CD_RANK_SET_BLOCK);
    cd_writer *writer = cd_arena_push(&memory, spec->state_bytes);
    if (writer == NULL) return cd_fail_memory(err, "check %s", spec->check);
    writer->context = *context;
    writer->check = spec->check;
    writer->memory = memory;
    cd_table_init(&writer->held, context->allocator, sizeof(held_finding));
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
}

cd_horizon *cd_writer_get_horizon(const cd_writer *writer)
{
    return cd_facts_get_horizon(writer->context.facts);
}

void cd_writer_set_window(const cd_writer *writer, cd_table *table,
                          bool (*keeps)(void *self, const cd_key *key, const void *value))
{
    cd_table_set_window(table, &(cd_table_window){.horizon = cd_writer_get_horizon(writer),
                                                  .keeps = keeps,
                                                  .self = (void *)(uintptr_t)writer});
}

void cd_writer_set_agree_window(const cd_writer *writer, cd_agree *agree, cd_agree_whole whole)
{
    cd_agree_set_window(agree, &(cd_agree_window){.facts = writer->context.facts, .whole = whole});
}

bool cd_writer_find_group(const cd_writer *writer, int64_t group, cddp_fact_group *found)
{
    const cddp_facts *facts = writer->context.facts;
    return facts->group(facts->self, group, found);
}

bool cd_writer_find_place(const cd_writer *writer, uint32_t rank, int64_t param,
                          cddp_fact_place *found)
{
    const cddp_facts *facts = writer->context.facts;
    return facts->place(facts->self, rank, param, found);
}

bool cd_writer_find_setting(const cd_writer *writer, uint32_t rank, cddp_key key,
                            cddp_fact_setting *found)
{
    const cddp_facts *facts = writer->context.facts;
    return facts->setting(facts->self, rank, cd_setting_path(key), 0, found);
}

bool cd_writer_find_stage(const cd_writer *writer, const cddp_fact_average *average,
                          cddp_fact_stage *found)
{
    const cddp_facts *facts = writer->context.facts;
    return facts->stage(facts->self, average, found);
}

bool cd_writer_has_flag(const cd_writer *writer, uint32_t rank, cddp_key flag)
{
    cddp_fact_setting setting;
    return cd_writer_find_setting(writer, rank, flag, &setting) && setting.value != 0;
}

bool cd_writer_has_hook(const cd_writer *writer, uint32_t rank)
{
    cddp_fact_setting replaced = {.text = NULL}, name = {.text = NULL},
                      word = {.value = CDDP_COMM_HOOK_NO};
    (void)cd_writer_find_setting(writer, rank, CDDP_KEY_ddp_comm_hook, &replaced);
    (void)cd_writer_find_setting(writer, rank, CDDP_KEY_hook_name, &name);
    (void)cd_writer_find_setting(writer, rank, CDDP_KEY_hook_comm_hook, &word);
    if (replaced.text != NULL && strcmp(replaced.text, "no") == 0) return false;
    return (replaced.text != NULL && replaced.text[0] != '\0') ||
           (name.text != NULL && name.text[0] != '\0') || word.value != CDDP_COMM_HOOK_NO;
}

static int64_t join_block(const cd_writer *writer, int64_t group, uint32_t rank, cddp_agreed what,
                          int64_t ordinal)
{
    const cddp_facts *facts = writer->context.facts;
    return group + (facts->block(facts->self, rank, what, ordinal) << 32);
}

int64_t cd_writer_get_block(const cd_writer *writer, int64_t group, uint32_t rank, cddp_agreed what)
{
    return join_block(writer, group, rank, what, -1);
}

int64_t cd_writer_get_parameter_block(const cd_writer *writer, int64_t group, uint32_t rank,
                                      int64_t ordinal)
{
    return join_block(writer, group, rank, CDDP_AGREED_PARAMETERS, ordinal);
}

static const char *name_of(cd_writer *writer, cddp_named what, int64_t id, const char *word)
{
    char *text = writer->scratch[writer->scratch_next++ % CD_WRITER_SCRATCH];
    const cddp_facts *facts = writer->context.facts;
    const char *name = facts->name(facts->self, what, id);
    if (name != NULL)
        cd_say(text, CD_WRITER_NAME_BYTES, "%s", name);
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
    return name_of(writer, CDDP_NAMED_VARIABLE, variable, "parameter");
}
const char *cd_writer_get_ordinal(cd_writer *writer, int64_t ordinal)
{
    return name_of(writer, CDDP_NAMED_ORDINAL, ordinal, "parameter");
}
const char *cd_writer_get_buffer(cd_writer *writer, int64_t buffer)
{
    return name_of(writer, CDDP_NAMED_BUFFER, buffer, "buffer");
}

const char *cd_writer_get_group(cd_writer *writer, int64_t group)
{
    cddp_fact_group facts;
    if (cd_writer_find_group(writer, group, &facts) && facts.name[0] != '\0') return facts.name;
    char *text = writer->scratch[writer->scratch_next++ % CD_WRITER_SCRATCH];
    cd_say(text, CD_WRITER_NAME_BYTES, "%lld", (long long)group);
    return text;
}

bool cd_writer_has_equal_bits(const cd_writer *writer, int64_t group)
{
    cddp_fact_group facts;
    return cd_writer_find_group(writer, group, &facts) && facts.order != CDDP_ORDER_UNSPECIFIED;
}

void cd_say(char *text, size_t text_bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int wanted = cd_vformat(text, text_bytes, format, args);
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

void cd_finding_set_stage(cd_writer *writer, cddp_finding *finding, const cddp_fact_stage *stage)
{
    cd_rank_set ranks = {0};
    for (size_t i = 0; i < stage->rank_count; i++)
        cd_rank_set_add(&ranks, &writer->memory, stage->ranks[i]);
    cd_finding_set_ranks(writer, finding, &ranks);
    finding->rank = stage->rank_count > 0 ? (int32_t)stage->ranks[0] : -1;
    finding->bucket = (int32_t)stage->bucket;
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
    if (split->odd.sequence != CD_NO_SEQUENCE)
        cd_finding_add_event(&f, split->odd.rank, split->odd.sequence);
    if (split->right.sequence != CD_NO_SEQUENCE)
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

/* A rank that says two things at one place stands on both sides: it is one of the odd ones. */
static uint32_t next_of_others(const void *self, uint32_t from)
{
    const cd_split *split = self;
    uint32_t rank = cd_rank_set_next(&split->right.ranks, from);
    while (rank != CD_NO_RANK && cd_rank_set_has(&split->odd_ranks, rank))
        rank = cd_rank_set_next(&split->right.ranks, rank + 1);
    return rank;
}

void cd_split_print(const cd_split *split, char *text, size_t text_bytes)
{
    char odd[96], right[96];
    cd_rank_set_print(&split->odd_ranks, split->odd.rank, odd, sizeof odd);
    cd_rank_list_print(&(cd_rank_list){split, next_of_others}, CD_NO_RANK, right, sizeof right);
    if (next_of_others(split, 0) == CD_NO_RANK)
        cd_say(text, text_bytes, "%s, twice in one step,", odd);
    else if (split->has_culprit)
        cd_say(text, text_bytes, "%s against %s%s", odd, right,
               split->has_reference ? "" : " (no reference; majority)");
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
    cd_horizon_freeze(cd_facts_get_horizon(writer->context.facts));
    writer->context.report(writer->context.reporter, finding);
}

/* Negative: the event stands before the place of the finding. */
static int compare_place(const cddp_event *event, const held_finding *held)
{
    if (event->step != held->step) return event->step < held->step ? -1 : 1;
    if (event->micro_step != held->micro_step) return event->micro_step < held->micro_step ? -1 : 1;
    return 0;
}

bool cd_writer_is_first(cd_writer *writer, const cd_key *key, const cddp_event *event)
{
    held_finding *h = cd_table_add(&writer->held, key);
    cd_horizon_freeze(cd_facts_get_horizon(writer->context.facts));
    if (h == NULL) return false;
    const int order = h->is_known ? compare_place(event, h) : -1;
    if (order > 0) return false;
    if (order < 0) h->ranks = (cd_rank_set){0};
    cd_rank_set_add(&h->ranks, &writer->memory, event->rank);
    if (order == 0 && event->rank >= h->rank) return false;
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

cddp_finding *cd_writer_get_held(cd_writer *writer, const cd_key *key)
{
    held_finding *h = cd_table_find(&writer->held, key);
    return h != NULL && h->is_made ? &h->finding : NULL;
}

void cd_writer_exercise(cd_writer *writer, const char *format, ...)
{
    char how[160];
    va_list args;
    va_start(args, format);
    cd_vformat(how, sizeof how, format, args);
    va_end(args);
    const size_t word = strcspn(how + 2, " "); /* "1 reductions repeated" */
    if (strncmp(how, "1 ", 2) == 0 && word > 1 && how[1 + word] == 's')
        memmove(how + 1 + word, how + 2 + word, strlen(how + 2 + word) + 1);
    writer->context.exercised(writer->context.reporter, writer->check, how);
}
