/* SPDX-License-Identifier: Apache-2.0 */
/* How a named model is written: one file in zoo/ that fills a cd_model_type, and one row in
** models.def.
**
** build registers parameters, buffers, units and the fields of a batch. forward makes the outputs.
** losses turns one output into one number per sample. A table declares the options and binds each
** to a field of the type's record, so that unknown and unused options cannot exist.
*/
#pragma once
#include "core/base/error.h"
#include "core/model/model.h"

typedef enum cd_option_kind {
    CD_OPTION_INTEGER,  /* int64_t in low … high */
    CD_OPTION_CHOICE,   /* int64_t: position in "a|b|c" */
    CD_OPTION_REAL,     /* double in low … high */
    CD_OPTION_INTEGERS, /* cd_integers, "4:8:3", each in low … high */
    CD_OPTION_TEXT      /* const char * into the model's copy */
} cd_option_kind;

#define CD_INTEGERS_MAX 64
typedef struct cd_integers {
    int64_t items[CD_INTEGERS_MAX];
    uint32_t count;
} cd_integers;

typedef struct cd_option {
    const char *name;
    cd_option_kind kind;
    size_t offset; /* of the field in the type's record */
    const char *initial;
    const char *choices; /* CHOICE */
    double low, high;
    const char *doc;
} cd_option;

struct cd_model_type {
    const char *name;
    const char *summary;
    const cd_option *options; /* (option_count) */
    size_t option_count;
    size_t state_bytes;
    cddp_status (*build)(cd_model *model, cddp_error *err);
    cddp_status (*forward)(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err);
    /* One number per sample from output i; target is undefined for CD_FIELD_NONE. */
    cddp_status (*losses)(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                          const cddp_tensor *target, cd_value **losses, cddp_error *err);
    void (*release)(
        cd_model *model); /* what its state owns outside the arena (optional: nothing) */
};

#define CD_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Fills the type's record from "key=value,…" and the defaults. text is cut into pieces and lives as
** long as state. */
cddp_status cd_options_parse(const cd_model_type *type, char *text, void *state,
                             cddp_error *err) CDDP_MUST_CHECK;

/* For build: what forward takes and gives. */
cddp_status cd_model_add_input(cd_model *model, const cd_field *field,
                               cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_model_add_output(cd_model *model, const cd_field *target,
                                cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_model_add_unit(cd_model *model, const char *name, uint8_t uses,
                              cddp_error *err) CDDP_MUST_CHECK;
/* How often unit i runs in this batch. */
uint8_t cd_model_unit_uses(const cd_model *model, const cd_batch *batch, size_t unit);
