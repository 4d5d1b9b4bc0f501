/* SPDX-License-Identifier: Apache-2.0 */
/* The models that a scenario may name (models.def, docs/models.md): parameters, forward, loss.
**
**     cd_graph_begin → cd_batch_make → cd_model_forward → (cd_graph_reachable) → cd_model_loss
**     → cd_graph_backward → (the optimizer, over model->module->parameters)
**
** Lifetime   create → use with any number of graphs, one after the other → destroy.
** Threads    one thread.
** Errors     an unknown model, option or value is CDDP_E_CONFIG, with the accepted ones in the
**            message.
*/
#pragma once
#include "core/model/batch.h"

typedef enum cd_field_kind { CD_FIELD_NONE, CD_FIELD_REAL, CD_FIELD_CLASS } cd_field_kind;

/* One input or target of a sample. */
typedef struct cd_field {
    const char *name;
    cd_field_kind kind;
    uint32_t dim_count; /* without the sample dimension */
    int64_t sizes[CDDP_DIMS_MAX];
    int64_t class_count; /* CLASS: values are i64 in 0 … class_count-1 */
    /* CLASS targets: a sample's last positions may be ignored, how many depends on its id */
    bool ragged;
} cd_field;

/* A part of the model whose number of runs a batch may change ("module=2" in a scenario). */
typedef struct cd_unit {
    char *name;
    uint8_t uses; /* by default */
} cd_unit;

typedef struct cd_outputs {
    cd_value *values[CD_MODEL_OUTPUTS_MAX]; /* NULL: not produced by this forward */
    uint32_t count;
} cd_outputs;

typedef struct cd_model_type cd_model_type; /* type.h */

struct cd_model {
    const cd_model_type *type;
    cd_arena arena; /* the model itself, its state, options and unit names */
    const cddp_allocator *allocator;
    cd_module *module;
    cddp_dtype dtype;         /* of parameters */
    cddp_dtype compute_dtype; /* of activations: f64 for f64, else f32 */
    void *state;              /* the type's own record, filled from the options */
    char *options;            /* copy that texts in the record point into */
    cd_field inputs[CD_BATCH_FIELDS_MAX];
    /* synchronised batch norm: the graph's callbacks must reach the other ranks */
    bool exchanges_statistics;
    bool leaves_parts_out; /* a batch decides which layers of the whole model run */
    bool routes_by_values; /* and it does so by its numbers and those of parameters */
    uint32_t input_count;
    cd_field targets[CD_MODEL_OUTPUTS_MAX]; /* one per output, same name */
    uint32_t output_count;
    cd_unit *units; /* (unit_count) */
    size_t unit_count, unit_capacity;
    uint64_t seed; /* of dropout */
    /* whose gradients it has, and no other number of ranks may train it; 0: of no job */
    uint32_t recorded_ranks;
};

typedef struct cd_model_options {
    const char *name; /* a row of models.def */
    /* "key=value,key=value"; NULL: defaults. Lists are "4:8:3", shapes "3x4" */
    const char *options;
    cddp_dtype dtype;
    bool dyadic;               /* initial parameters on a dyadic grid (exact inputs) */
    bool channels_last;        /* parameters of four dimensions have their channels innermost */
    const cddp_device *device; /* borrowed until destroy */
    const cddp_allocator *allocator; /* borrowed until destroy; NULL: the heap */
    const cd_prng *prng;             /* initial parameters */
    const cd_prng *masks;            /* dropout; NULL: prng */
} cd_model_options;

cddp_status cd_model_create(const cd_model_options *options, cd_model **model,
                            cddp_error *err) CDDP_MUST_CHECK;

/* Runs the model; outputs has an entry per output. training: dropout draws, batch norm uses batch
** statistics. */
cddp_status cd_model_forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                             cd_outputs *outputs, cddp_error *err) CDDP_MUST_CHECK;
/* The loss over the outputs whose bit is set in mask (bit i: output i); UINT32_MAX: all. A
** scalar. */
cddp_status cd_model_loss(cd_model *model, cd_graph *graph, const cd_batch *batch,
                          const cd_outputs *outputs, uint32_t mask, cd_value **loss,
                          cddp_error *err) CDDP_MUST_CHECK;

int64_t cd_model_find_output(const cd_model *model, const char *name); /* -1 */
int64_t cd_model_find_unit(const cd_model *model, const char *name);   /* -1 */

void cd_model_destroy(cd_model *model); /* accepts NULL */

/* ---- the catalogue ---- */

size_t cd_model_type_count(void);
const char *cd_model_type_name(size_t index);    /* NULL past the end */
const char *cd_model_type_summary(size_t index); /* NULL past the end */
/* The i-th option of a model: "widths=4:8:3  sizes of the layers, input first"; false past the
** end. */
bool cd_model_type_option(size_t type, size_t option, const char **name, const char **initial,
                          const char **doc);
