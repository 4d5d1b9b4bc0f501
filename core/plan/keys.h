/* SPDX-License-Identifier: Apache-2.0 */
/* The key table of the scenario language as the program sees it, and how a text becomes a field.
**
** A row says where its value lies: an offset into the plan, into the settings, or into one element
** of a table that repeats. So one function sets every key, and nothing else knows how keys are
** spelled.
*/
#pragma once
#include "cddp/plan.h"
#include "core/base/arena.h"

typedef enum cd_key_scope {
    CD_SCOPE_PLAN,
    CD_SCOPE_RANK,
    CD_SCOPE_wrapper,
    CD_SCOPE_optimizer,
    CD_SCOPE_output,
    CD_SCOPE_group,
    CD_SCOPE_collective,
    CD_SCOPE_when,
    CD_SCOPE_fault,
    CD_SCOPE_finding,
    CD_SCOPE_COUNT
} cd_key_scope;

typedef struct cd_key_row {
    cd_key_scope scope;
    const char *table; /* "ddp", "when", "expect.finding"; "" at the top of the file */
    const char *field;
    cddp_key_type type;
    const char *choices; /* of a CHOICE: "none|zero|keep"; of a TEXT: CDDP_KEY_SETTINGS or NULL */
    const char *initial;
    double low, high;
    size_t offset, width; /* of the field, in bytes */
    const char *doc;
} cd_key_row;

size_t cd_key_count(void);
const cd_key_row *cd_key_row_get(size_t index);
/* NULL when the table has no such field. */
const cd_key_row *cd_key_find(const char *table, const char *field);
/* "ddp.bucket_cap_mb" */
const cd_key_row *cd_key_find_path(const char *path);
bool cd_key_has_table(const char *table);
/* May some ranks have another value? Of an optimizer: what it does with a gradient, but not what it
** owns nor how ranks share it. Epochs are those of all ranks: one that counts them otherwise would
** leave a join context alone. */
bool cd_key_is_per_rank(const cd_key_row *row);
/* May one [[wrapper]] have another value? Not of what the wrappers share: the number of steps, how
** inputs end, and the arithmetic. */
bool cd_key_is_per_wrapper(const cd_key_row *row);
/* Does the key mean anything only in a plan with several wrappers? */
bool cd_key_is_of_wrappers(const cd_key_row *row);
/* The row of a table that is written in place of a text of settings: "hook.comm_state_option";
** NULL. */
const cd_key_row *cd_key_find_settings(const char *table);
/* The field of the table that a person probably meant, or one of that very name in another table;
** NULL. */
const cd_key_row *cd_key_nearest(const char *table, const char *field);
/* "; [fault] has kind, when and at", of a table with few fields; of one with many, how to list
** them; of no table "". */
void cd_key_print_fields(const char *table, char *text, size_t text_bytes);
/* The table that was probably meant; NULL. */
const char *cd_key_nearest_table(const char *table);
/* "ddp.bucket_cap_mb", "when[].sync" into text. */
void cd_key_path(const cd_key_row *row, char *text, size_t text_bytes);

/* A table that repeats: where its elements and their number lie in the plan. */
typedef struct cd_item_table {
    const char *name;
    size_t element_bytes, items_offset, count_offset;
} cd_item_table;
const cd_item_table *cd_item_table_get(cd_key_scope scope);

/* Items in, the field's representation out. Lists take any number of items, everything else exactly
** one. */
typedef struct cd_key_value {
    const char *const *items;
    size_t count;
} cd_key_value;
cddp_status cd_key_parse(const cd_key_row *row, const cd_key_value *value, cd_arena *arena,
                         void *field, cddp_error *err);
/* The inverse: the field as items that cd_key_parse takes; none where it is unset or empty. */
cddp_status cd_key_print(const cd_key_row *row, const void *field, cd_arena *arena,
                         cd_key_value *value, cddp_error *err);
/* The word of a choice at a position. */
void cd_key_print_word(const cd_key_row *row, int64_t position, char *text, size_t text_bytes);
/* The default into the field. */
void cd_key_parse_initial(const cd_key_row *row, void *field);

cddp_status cd_selector_parse(const char *text, cddp_selector *selector, cddp_error *err);
/* what any selector takes */
#define CD_SELECTOR_TEXT_BYTES (CDDP_SELECTOR_TERMS_MAX * sizeof "4294967295-4294967295,")
void cd_selector_print(const cddp_selector *selector, char *text, size_t text_bytes);

/* docs/formats/scenario.md, written by `write` piece by piece. */
void cd_keys_print_document(void (*write)(void *context, const char *text), void *context);
