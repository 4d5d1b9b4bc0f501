/* SPDX-License-Identifier: Apache-2.0 */
/* A C interface to toml++: a document as a flat list of leaves and tables. No C++ type or
** exception crosses it. A path joins keys with dots and brackets, so a key has only the characters
** of TOML's bare keys. A quoted key with other characters is a syntax error here ("when[7]" = 1
** would otherwise be an element that does not exist). Other syntax errors are a key of more than
** 128 parts, values nested more than 16 deep, and text with a zero byte. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cd_toml_kind {
    CD_TOML_TEXT,
    CD_TOML_INTEGER,
    CD_TOML_NUMBER,
    CD_TOML_FLAG,
    CD_TOML_OTHER /* dates, times, arrays of arrays or of mixed kinds */
} cd_toml_kind;

typedef struct cd_toml_leaf {
    const char *path;  /* "when[2].sync" */
    cd_toml_kind kind; /* of the value, or of all items of an array */
    bool is_array;
    const char *const *items; /* (item_count) as text; one for a plain value */
    size_t item_count;
    uint32_t line, column;             /* of the key, 1-based */
    uint32_t value_line, value_column; /* of the value */
} cd_toml_leaf;

typedef struct cd_toml_table {
    const char *path; /* "ddp", "when[2]" */
    bool is_element;  /* of an array of tables */
    uint32_t line, column;
} cd_toml_table;

/* Everything is borrowed for the call. A table comes before its content; false ends the walk. */
typedef struct cd_toml_visitor {
    void *context;
    bool (*table)(void *context, const cd_toml_table *table);
    bool (*leaf)(void *context, const cd_toml_leaf *leaf);
} cd_toml_visitor;

typedef enum cd_toml_result {
    CD_TOML_OK,
    CD_TOML_SYNTAX,
    CD_TOML_NO_MEMORY,
    CD_TOML_STOPPED
} cd_toml_result;

typedef struct cd_toml_error {
    uint32_t line, column;
    char message[256];
} cd_toml_error;

cd_toml_result cd_toml_parse(const char *text, size_t text_bytes, const cd_toml_visitor *visitor,
                             cd_toml_error *error);

#ifdef __cplusplus
}
#endif
