/* SPDX-License-Identifier: Apache-2.0 */
/* The tape: values and the nodes that made them, for as long as one iteration lasts.
**
** A value is a tensor with the node that computed it; a node keeps what its backward needs and has
** an edge to the node of every input that wants a gradient. Accumulation nodes, one per parameter,
** are the leaves (AccumulateGrad in PyTorch). Everything lives in one arena that cd_graph_begin
** rewinds, so a steady iteration allocates nothing.
**
** On devices without values (symbol, shape) the graph has the same nodes and edges and no
** arithmetic: values have sizes and no storage. On devices that compute layers themselves
** (cddp_device.layers) values are in the device's memory, i64 tensors and what ops keep for
** themselves in the host's. On other devices whose values the host cannot touch at once the tape
** holds copies: a parameter is read when it is first used, its gradient is written when it is
** accumulated.
**
** Lifetime   create → (begin → forward → backward)* → destroy. Values and nodes are borrowed until
**            the next begin. The module outlives the graph.
** Threads    one thread.
*/
#pragma once
#include "core/base/arena.h"
#include "core/model/module.h"
#include "core/model/tape.h"

typedef struct cd_graph cd_graph;
typedef struct cd_node cd_node;
typedef struct cd_op cd_op;
typedef struct cd_segment cd_segment; /* checkpoint.h */

/* A gradient on its way through the graph. DENSE without storage: defined, on a device without
** arithmetic. */
typedef struct cd_gradient {
    cddp_grad_kind kind;
    bool owned; /* made by the engine: may be added to in place */
    cddp_tensor value;
    cddp_tensor rows; /* SPARSE: (row_count) i64, strictly increasing */
} cd_gradient;

typedef struct cd_value {
    cddp_tensor tensor;
    cd_node *node;   /* grad_fn; NULL: wants no gradient */
    uint32_t output; /* which output of the node */
    uint32_t leaf;   /* the parameter whose value it is, or its cast, + 1; 0: of none */
    uint64_t place;  /* the graph's when it was made */
    /* For whoever crosses: what it is once it left its place, and where it entered one. */
    struct cd_value *left, *entered;
    uint64_t entered_at;
} cd_value;

typedef struct cd_edge {
    cd_node *node; /* NULL: nobody wants this gradient */
    uint32_t output;
} cd_edge;

#define CD_SEQUENCE_ACCUMULATE UINT64_MAX /* leaves go first, as in PyTorch */

struct cd_node {
    const cd_op *op;    /* NULL: accumulation node */
    uint64_t sequence;  /* order of creation; later nodes go back first */
    uint32_t index;     /* position in graph->nodes */
    uint32_t parameter; /* accumulation nodes */
    uint32_t edge_count, output_count;
    cd_edge *edges;       /* (edge_count) one per input */
    uint32_t *leaves;     /* (edge_count) as cd_value.leaf; NULL without the callback `use` */
    cddp_tensor *inputs;  /* (edge_count) saved; NULL where the graph does not compute */
    cddp_tensor *outputs; /* (output_count) saved; NULL where the graph does not compute */
    void *state;          /* what the op keeps between forward and backward, in the arena */
    bool released;        /* its saved tensors were freed by a backward without retain_graph */
    /* made inside a non-reentrant checkpoint: saved tensors come from recomputing */
    cd_segment *segment;
};

/* The callbacks of the program around the model. Every function may be NULL. */
typedef struct cd_graph_callbacks {
    void *context;
    /* The post-accumulate hook (RED-04): fires once per accumulation node and backward, with an
    ** undefined slot too (UNU-03). */
    cddp_status (*ready)(void *context, uint32_t parameter, cddp_grad *grad, cddp_error *err);
    /* Which of the gradients that could be accumulated now goes first; returns an index < count.
    ** options are parameter indices; option 0 is the one the engine would take. Not called for a
    ** single option. */
    uint32_t (*choose)(void *context, const uint64_t *options, uint32_t count);
    /* Replaces every firing: nothing is accumulated and ready is not called. The callback's owner
    ** performs the firings later, in its own order, with cd_grad_accumulate and ready. */
    cddp_status (*collect)(void *context, uint32_t parameter, const cd_gradient *arrived,
                           cddp_error *err);
    /* The tensor that forward computes with in place of the parameter (a low-precision copy,
    ** MIX-02); gradients accumulate in its dtype. */
    const cddp_tensor *(*forward_parameter)(void *context, uint32_t parameter);
    /* A parameter is about to be read, in forward or in backward. forward_parameter may answer
    ** otherwise from now on: in backward a node reads what it answers then. */
    cddp_status (*use)(void *context, uint32_t parameter, bool in_backward, cddp_error *err);
    /* An operation of a forward reads a value: *read is what it reads in its place, which may be
    ** the value itself. */
    cddp_status (*cross)(void *context, cd_value *value, cd_value **read, cddp_error *err);
    /* On devices without arithmetic: writes the gradient that one firing of this parameter
    ** contributes (atoms on symbol, nothing on shape). dst has the parameter's sizes. */
    cddp_status (*fresh)(void *context, uint32_t parameter, const cddp_tensor *dst,
                         cddp_error *err);
    /* The stream on which the engine accumulates a parameter's gradient, where gradients live on a
    ** device with streams; NULL, or without the callback: the default one. Numbers on the tape stay
    ** as they are until the next begin. */
    cddp_stream *(*stream)(void *context, uint32_t parameter);
    /* Synchronised batch norm: statistics of all ranks. mine (count) f64, all (rank_count, count)
    ** f64 in rank order. The last number of a rank is its count of values per channel. sums (count)
    ** f64 is summed over ranks in place, in rank order. They are on the graph's device, or the
    ** host's. rank_count 0 or 1: a single process. */
    uint32_t rank_count;
    /* Receives the statistics that a layer then uses: its running mean's buffer, (channels) mean
    ** and Σ(x-mean)². (optional) */
    cddp_status (*combined)(void *context, uint32_t buffer, const double *mean,
                            const double *spread, int64_t channels, cddp_error *err);
    cddp_status (*allgather)(void *context, const cddp_tensor *mine, const cddp_tensor *all,
                             cddp_error *err);
    cddp_status (*allreduce)(void *context, const cddp_tensor *sums, cddp_error *err);
} cd_graph_callbacks;

struct cd_graph {
    cd_module *module;
    const cddp_device *device; /* of values on the tape: the module's, or cpu when it is staged */
    const cddp_allocator *allocator;
    const cddp_layers *layers; /* of the device, or NULL: kernels run on the host */
    cd_tape tape;              /* device memory of values, where layers is not NULL */
    bool on_host;              /* a kernel runs over copies: tensors are the host's meanwhile */
    cd_arena own;              /* the graph itself and its arrays, for its whole life */
    cd_arena arena;            /* the tape, until the next begin */
    cddp_allocator scratch;    /* allocates from the arena; whoever uses it rewinds to a mark */
    cd_graph_callbacks callbacks;
    cd_node **nodes; /* (node_count) in order of creation; grows, kept between iterations */
    size_t node_count, node_capacity;
    cd_node **accumulate;  /* (parameter_count) accumulation node of each parameter, or NULL */
    cd_value **parameters; /* (parameter_count) value of each parameter, or NULL */
    /* (parameter_count) what each value is a copy of; NULL when the tape needs no copies */
    cddp_tensor *staged;
    bool is_far; /* the tape's device is not the module's */
    uint64_t sequence;
    uint64_t place;                             /* numbered by the callbacks' owner; begins at 0 */
    uint64_t op_count;                          /* forwards of operations so far */
    const struct cd_backward_options *backward; /* of the innermost backward that runs, or NULL */
    bool inside_grad;                           /* that backward is a cd_graph_grad */
    bool grad_enabled;                          /* false under no_grad */
    bool training;                              /* dropout and batch norm */
    /* non-reentrant checkpoint being recorded or recomputed */
    cd_segment *segment;
    bool recomputes; /* a checkpointed part runs again, inside of backward */
};

/* Borrows module and allocator until destroy. */
cddp_status cd_graph_create(cd_module *module, const cddp_allocator *allocator, cd_graph **graph,
                            cddp_error *err) CDDP_MUST_CHECK;
/* copies; NULL: none */
void cd_graph_set_callbacks(cd_graph *graph, const cd_graph_callbacks *callbacks);
/* A new tape. Several forwards may follow before a backward (FWD-08): begin only when the old tape
** is over. */
void cd_graph_begin(cd_graph *graph);
/* True where layers compute numbers. */
bool cd_graph_computes(const cd_graph *graph);

/* Zeroed memory until the next begin. */
cddp_status cd_graph_push(cd_graph *graph, size_t bytes, void **memory,
                          cddp_error *err) CDDP_MUST_CHECK;
/* A tensor in the tape, zeroed, without storage where the graph does not compute. i64 tensors
** always have storage. */
cddp_status cd_graph_tensor(cd_graph *graph, cddp_dtype dtype, const int64_t *sizes,
                            uint32_t dim_count, cddp_tensor *tensor,
                            cddp_error *err) CDDP_MUST_CHECK;
/* The same in memory that the host may write, whatever the graph's device; cd_graph_place brings it
** to where values are: the tensor itself, or a copy on the tape's device. */
cddp_status cd_graph_host_tensor(cd_graph *graph, cddp_dtype dtype, const int64_t *sizes,
                                 uint32_t dim_count, cddp_tensor *tensor,
                                 cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_graph_place(cd_graph *graph, const cddp_tensor *host, cddp_tensor *placed,
                           cddp_error *err) CDDP_MUST_CHECK;
/* For ops of a graph with layers: a tensor of any dtype on its device, zeroed; filled from the host
** where values is not NULL. */
cddp_status cd_graph_give(cd_graph *graph, cddp_dtype dtype, const int64_t *sizes,
                          uint32_t dim_count, const void *values, cddp_tensor *tensor,
                          cddp_error *err) CDDP_MUST_CHECK;
/* A value that wants no gradient: an input, a target. The tensor is borrowed until the next
** begin. */
cddp_status cd_graph_input(cd_graph *graph, const cddp_tensor *tensor, cd_value **value,
                           cddp_error *err) CDDP_MUST_CHECK;
/* The value of a parameter in the dtype in which layers compute: f16 and bf16 pass through a cast
** to f32. */
cddp_status cd_graph_parameter(cd_graph *graph, uint32_t parameter, cd_value **value,
                               cddp_error *err) CDDP_MUST_CHECK;
/* The same value without history. */
cddp_status cd_graph_detach(cd_graph *graph, const cd_value *value, cd_value **detached,
                            cddp_error *err) CDDP_MUST_CHECK;

/* What an operation reads in place of this value. See the callback `cross`. */
cddp_status cd_graph_read(cd_graph *graph, cd_value *value, cd_value **read,
                          cddp_error *err) CDDP_MUST_CHECK;

/* The tensor behind a parameter's value on this tape: what its gradient is laid out like. */
const cddp_tensor *cd_graph_source(const cd_graph *graph, uint32_t parameter);

typedef struct cd_record {
    const cd_op *op;
    cd_value *const *inputs; /* (input_count); an absent optional input is NULL */
    uint32_t input_count;
    cd_value *const *outputs; /* (output_count) */
    uint32_t output_count;
    void *state;
} cd_record;
/* Puts a node on the tape and makes the outputs its own, when gradients are enabled and wanted. */
cddp_status cd_graph_record(cd_graph *graph, const cd_record *record,
                            cddp_error *err) CDDP_MUST_CHECK;

/* RED-03: which parameters are reachable from these outputs along next-edges. reachable:
** (parameter_count). */
cddp_status cd_graph_reachable(cd_graph *graph, cd_value *const *outputs, uint32_t output_count,
                               bool *reachable, cddp_error *err) CDDP_MUST_CHECK;

void cd_graph_audit(const cd_graph *graph); /* asserts the invariants of graph.c */
void cd_graph_destroy(cd_graph *graph);     /* accepts NULL */
