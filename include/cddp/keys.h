/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a plan and the words that they take, as C names: both come from cddp/keys.def, which
** the parser reads too.
**
**     CDDP_KEY_ddp_static_graph     a key
**     CDDP_ZERO_GRAD_KEEP           a word of train.zero_grad, of type cddp_plan_train_zero_grad
*/
#pragma once
#include "cddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_KEY_SETTINGS \
    "key=value,…" /* the form of a text that a file may also write as a table */

typedef enum cddp_key_type {
    CDDP_KEY_FLAG,
    CDDP_KEY_INTEGER,
    CDDP_KEY_UNSIGNED,
    CDDP_KEY_NUMBER,
    CDDP_KEY_TEXT,
    CDDP_KEY_CHOICE, /* one of the words in `choices` */
    CDDP_KEY_SELECTOR,
    CDDP_KEY_TEXTS,
    CDDP_KEY_NUMBERS,
    CDDP_KEY_UNSIGNEDS
} cddp_key_type;

/* A field of a choice is an int64_t that has one of these values; where it may be left out,
** CDDP_PLAN_UNSET too. */
#define CDDP_WORD(constant, word) CDDP_##constant,
#define CDDP_ENUM_CHOICE(name, ...) typedef enum cddp_plan_##name{__VA_ARGS__} cddp_plan_##name;
#define CDDP_ENUM_FLAG(name, ...)
#define CDDP_ENUM_INTEGER(name, ...)
#define CDDP_ENUM_UNSIGNED(name, ...)
#define CDDP_ENUM_NUMBER(name, ...)
#define CDDP_ENUM_TEXT(name, ...)
#define CDDP_ENUM_SELECTOR(name, ...)
#define CDDP_ENUM_TEXTS(name, ...)
#define CDDP_ENUM_NUMBERS(name, ...)
#define CDDP_ENUM_UNSIGNEDS(name, ...)
#define CDDP_KEY_ROOT(field, type, choices, initial, low, high, doc)
#define CDDP_KEY_PLAN(table, field, type, choices, initial, low, high, doc) \
    CDDP_ENUM_##type(table##_##field, choices)
#define CDDP_KEY_RANK CDDP_KEY_PLAN
#define CDDP_KEY_ITEM CDDP_KEY_PLAN
#include "cddp/keys.def"
#undef CDDP_KEY_ROOT
#undef CDDP_KEY_PLAN
#undef CDDP_KEY_RANK
#undef CDDP_KEY_ITEM
#undef CDDP_WORD
#undef CDDP_ENUM_CHOICE
#undef CDDP_ENUM_FLAG
#undef CDDP_ENUM_INTEGER
#undef CDDP_ENUM_UNSIGNED
#undef CDDP_ENUM_NUMBER
#undef CDDP_ENUM_TEXT
#undef CDDP_ENUM_SELECTOR
#undef CDDP_ENUM_TEXTS
#undef CDDP_ENUM_NUMBERS
#undef CDDP_ENUM_UNSIGNEDS

typedef enum cddp_key {
#define CDDP_KEY_ROOT(field, type, choices, initial, low, high, doc) CDDP_KEY_##field,
#define CDDP_KEY_PLAN(table, field, type, choices, initial, low, high, doc) \
    CDDP_KEY_##table##_##field,
#define CDDP_KEY_RANK CDDP_KEY_PLAN
#define CDDP_KEY_ITEM CDDP_KEY_PLAN
#include "cddp/keys.def"
#undef CDDP_KEY_ROOT
#undef CDDP_KEY_PLAN
#undef CDDP_KEY_RANK
#undef CDDP_KEY_ITEM
    CDDP_KEY_COUNT
} cddp_key;

#ifdef __cplusplus
}
#endif
