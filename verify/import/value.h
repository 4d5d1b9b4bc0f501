/* SPDX-License-Identifier: Apache-2.0 */
/* Data that came from outside, as numbers, texts, lists and maps: what pickles and JSON have in
** common. Everything lies in an arena.
**
** Errors     a NULL value stands for "not there" in every function.
*/
#pragma once
#include "core/base/arena.h"

typedef enum cd_value_kind {
    CD_VALUE_NONE,
    CD_VALUE_NUMBER,
    CD_VALUE_REAL,
    CD_VALUE_TEXT,
    CD_VALUE_LIST, /* tuples too */
    CD_VALUE_MAP   /* items: key, value, key, value … */
} cd_value_kind;

typedef struct cd_value cd_value;
struct cd_value {
    cd_value_kind kind;
    int64_t number; /* flags too */
    double real;
    const char *text;
    cd_value **items; /* (count) */
    size_t count, capacity;
};

cd_value *cd_value_push(cd_arena *arena, cd_value_kind kind); /* NULL: no memory */
/* Copies; what follows a zero is left out. */
cd_value *cd_value_push_text(cd_arena *arena, const char *bytes, size_t byte_count);
bool cd_value_add(cd_arena *arena, cd_value *container, cd_value *item);
const cd_value *cd_value_find(const cd_value *map, const char *key);
const cd_value *cd_value_get(const cd_value *list, size_t index);
size_t cd_value_count(const cd_value *list); /* 0 when it is none */
int64_t cd_value_number(const cd_value *value, int64_t otherwise);
const char *cd_value_text(const cd_value *value, const char *otherwise);

/* Reads a pickle of plain data. One that names a class or a function is refused: nothing of it is
** looked up, and nothing is called. The value lies in the arena. */
cddp_status cd_pickle_read(cd_arena *arena, const char *bytes, size_t byte_count, cd_value **value,
                           cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_json_read(cd_arena *arena, const char *bytes, size_t byte_count, cd_value **value,
                         cddp_error *err) CDDP_MUST_CHECK;
