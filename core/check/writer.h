/* SPDX-License-Identifier: Apache-2.0 */
/* The writer: writes the findings of a check in one style, the culprit first and both sides shown.
** Names come from the facts that the judge has learnt.
**
** Lifetime   the first member of a check's state; cd_check_begin makes the state, cd_check_end
**            frees it.
** Names      returned borrowed until three more names were asked for.
*/
#pragma once
#include "core/check/agree.h"
#include "core/check/table.h"
#include "cddp/check.h"
#include "cddp/keys.h"

#define CD_WRITER_NAME_BYTES 96
#define CD_WRITER_SCRATCH 4

typedef struct cd_writer {
    cddp_check_context context;
    const char *check;
    /* a check's own key → the earliest finding under it, and all ranks it concerns */
    cd_table held;
    cd_arena memory; /* of sets and lists of ranks */
    size_t state_bytes;
    uint32_t scratch_next;
    char scratch[CD_WRITER_SCRATCH][CD_WRITER_NAME_BYTES];
} cd_writer;

/* Makes a zeroed state whose first member is a writer. */
typedef struct cd_check_spec {
    const char *check;
    size_t state_bytes;
} cd_check_spec;
cddp_status cd_check_begin(const cddp_check_context *context, const cd_check_spec *spec,
                           void **self, cddp_error *err);
void cd_check_end(void *self); /* accepts NULL */

/* Up to where tables may forget. */
cd_horizon *cd_writer_get_horizon(const cd_writer *writer);
/* Tables that forget what lies before the horizon. keeps, which may be NULL, is given the state of
** the check, whose first member the writer is. */
void cd_writer_set_window(const cd_writer *writer, cd_table *table,
                          bool (*keeps)(void *self, const cd_key *key, const void *value));
void cd_writer_set_agree_window(const cd_writer *writer, cd_agree *agree, cd_agree_whole whole);

/* "fc1.weight", or "parameter 3" */
const char *cd_writer_get_parameter(cd_writer *writer, int64_t variable);
/* by position among all parameters */
const char *cd_writer_get_ordinal(cd_writer *writer, int64_t ordinal);
const char *cd_writer_get_buffer(cd_writer *writer, int64_t buffer);
const char *cd_writer_get_group(cd_writer *writer, int64_t group);
/* " (3 tensors)", or "" of one, which is named */
const char *cd_writer_get_count(cd_writer *writer, uint64_t count, const char *words);
/* Facts; false when unknown. */
bool cd_writer_find_group(const cd_writer *writer, int64_t group, cddp_fact_group *found);
bool cd_writer_find_place(const cd_writer *writer, uint32_t rank, int64_t param,
                          cddp_fact_place *found);
bool cd_writer_find_setting(const cd_writer *writer, uint32_t rank, cddp_key key,
                            cddp_fact_setting *found);
/* At which stage a wrong average came about; false when the trace says nothing of it. */
bool cd_writer_find_stage(const cd_writer *writer, const cddp_fact_average *average,
                          cddp_fact_stage *found);
/* Whether a flag is set; false when the rank did not report it. */
bool cd_writer_has_flag(const cd_writer *writer, uint32_t rank, cddp_key flag);
/* Whether the rank says that it has a communication hook, however that is named. */
bool cd_writer_has_hook(const cd_writer *writer, uint32_t rank);
/* Joins a group's number with the block of it to which a rank belongs now, as a part of a key: only
** within blocks must ranks agree. */
int64_t cd_writer_get_block(const cd_writer *writer, int64_t group, uint32_t rank,
                            cddp_agreed what);
/* The same for one parameter, which may have its own agreement. */
int64_t cd_writer_get_parameter_block(const cd_writer *writer, int64_t group, uint32_t rank,
                                      int64_t ordinal);
/* Whether the backend of the group promises equal bits on all ranks. */
bool cd_writer_has_equal_bits(const cd_writer *writer, int64_t group);

/* A finding of this check at an event's place, blaming its rank. */
cddp_finding cd_finding_at(cd_writer *writer, const cddp_event *event);
/* A finding about a disagreement: ranks, witnesses and place from the split. */
cddp_finding cd_finding_of(cd_writer *writer, const cd_split *split);
/* Whom it concerns, in place of who it was before; an empty set: nobody. */
void cd_finding_set_ranks(cd_writer *writer, cddp_finding *finding, const cd_rank_set *ranks);
/* One rank, or -1: nobody. */
void cd_finding_set_rank(cd_writer *writer, cddp_finding *finding, int64_t rank);
void cd_finding_add_event(cddp_finding *finding, uint32_t rank, uint64_t sequence);
void cd_finding_set_parameter(cd_writer *writer, cddp_finding *finding, int64_t variable);
/* The ranks of a stage, and the first of them. */
void cd_finding_set_stage(cd_writer *writer, cddp_finding *finding, const cddp_fact_stage *stage);
/* "rank 1 against ranks 0 and 2", or "… (no reference; majority)", or "rank 0 and rank 1, no
** majority," in front of "disagree". */
void cd_split_print(const cd_split *split, char *text, size_t text_bytes);

bool cd_operation_reduces(int64_t op);
/* "allreduce(sum) of 12 f32" from {op, reduce_op, root, dtype, numel}. */
void cd_operation_print(const int64_t data[5], char *text, size_t text_bytes);

/* Formats into a fixed text; a long one is cut, never overrun. */
void cd_say(char *text, size_t text_bytes, const char *format, ...) CDDP_PRINTF(3, 4);
#define CD_SAY(array, ...) cd_say((array), sizeof(array), __VA_ARGS__)

void cd_writer_report(cd_writer *writer, const cddp_finding *finding);
/* One finding per key, the earliest in (step, micro-step, rank), whatever the order in which events
** come; the ranks of the others at that step and micro-step are added to its own. is_first says
** whether a finding at this event would be the earliest so far; then it is made and held. Held
** findings are reported by cd_check_end. */
bool cd_writer_is_first(cd_writer *writer, const cd_key *key, const cddp_event *event);
void cd_writer_hold(cd_writer *writer, const cd_key *key, const cddp_finding *finding);
/* Borrowed until the next is_first: what is held under the key; NULL: nothing. */
cddp_finding *cd_writer_get_held(cd_writer *writer, const cd_key *key);
void cd_writer_exercise(cd_writer *writer, const char *format, ...) CDDP_PRINTF(2, 3);

/* The table of a check whose file defines begin, event, end and kinds. */
#define CD_CHECK_TABLE(file, name_, title_, rule_)          \
    const cddp_check cd_check_##file = {sizeof(cddp_check), \
                                        CDDP_CHECK_ABI,     \
                                        name_,              \
                                        title_,             \
                                        rule_,              \
                                        begin,              \
                                        event,              \
                                        end,                \
                                        kinds,              \
                                        sizeof kinds / sizeof kinds[0]}

#define CD_CHECK(file, name) extern const cddp_check cd_check_##file;
#include "core/check/checks.def"
#undef CD_CHECK
