/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapper's record, for the files of this folder only.
**
** Ownership  the record and its tables lie in `arena`; units own their tensors.
*/
#pragma once
#include "core/comm/control.h"
#include "core/fsdp/unit.h"
#include "core/fsdp/wrap.h"
#include "cddp/trace.h"

typedef enum cd_fsdp_phase {
    CD_FSDP_IDLE,     /* between iterations */
    CD_FSDP_FORWARD,  /* a unit ran with gradients */
    CD_FSDP_BACKWARD, /* a pre-backward was called */
} cd_fsdp_phase;

/* What the iteration at hand did with a unit. */
typedef struct cd_fsdp_progress {
    uint32_t in_forward; /* 1 between pre- and post-forward */
    bool grad_mode;      /* of that forward */
    bool was_full;       /* before that forward */
    bool needs_backward; /* a pre-backward may follow */
    bool needs_unshard;  /* … which has to gather: a target of prefetch (FSH-10) */
    bool in_backward, has_run_backward;
    int64_t post_position; /* in the order of post-forwards, -1: not there */
    uint64_t shard;        /* digest of it, as its forwards computed with it */
    bool has_shard;        /* … and its backward may follow */
} cd_fsdp_progress;

/* A list of units that grows, and repeats itself each iteration. */
typedef struct cd_fsdp_order {
    uint32_t *units; /* (capacity) of the arena */
    size_t capacity, count;
    size_t at;        /* of the iteration at hand */
    bool is_recorded; /* it ended once */
} cd_fsdp_order;

struct cddp_fsdp {
    cd_arena arena; /* of the object itself and its tables */
    const cddp_allocator *allocator;
    struct cddp_tracer *tracer;
    cddp_group *group, *replicate_group;
    cd_fsdp_memory memory;
    cd_fsdp_tree tree;
    uint32_t *unit_of_module; /* (tree.count) */
    cd_fsdp_unit *units;      /* (unit_count) the root is unit 0 */
    uint32_t unit_count;

    /* parameters and buffers, by position in the options */
    cddp_parameter *parameters; /* (parameter_count) names are copies; no storage of ours */
    int64_t *unit_of;           /* (parameter_count) -1: ignored */
    uint32_t *member_of;        /* (parameter_count) */
    uint32_t *first_of;         /* (parameter_count) the first name of a shared one */
    size_t parameter_count;
    cddp_buffer *buffers; /* (buffer_count) */
    cddp_tensor *buffer_copies;
    size_t buffer_count;
    cddp_dtype buffer_dtype;
    bool has_cast_buffers;

    cd_fsdp_ahead ahead;
    bool is_offloaded;
    const cddp_device *host; /* of offloaded shards: cpu, or its storage from the allocator */
    cddp_device host_table;
    cddp_fsdp_prefetch backward_prefetch;
    bool forward_prefetch;
    int64_t prefetch_numel, live_numel_max;
    cddp_fsdp_order_check order_check;

    cd_fsdp_phase phase;
    uint64_t iteration;
    uint32_t running_forwards; /* of units, inside each other */
    uint32_t no_sync_depth;
    cd_fsdp_progress *progress; /* (unit_count) */
    uint32_t *post_forward;     /* (unit_count) of the iteration: first post-forwards */
    size_t post_forward_count;
    cd_fsdp_order forward, backward;   /* as checked */
    bool compares_reductions;          /* no synchronised backward has ended */
    cd_control one, all, all_replicas; /* of order checks */
    /* what operation was next in group and replicate_group when it was made: unlike those of other
    ** wrappers */
    uint64_t numbers[2];
    bool has_clipped;   /* by a norm and to a limit that ranks have compared */
    uint32_t *reducing; /* (unit_count) reductions in flight, oldest first */
    size_t reducing_count;
    cddp_error failure; /* of an iteration: final */

    uint64_t gathers, reductions, replica_reductions, order_checks, limit_waits;
};

/* units.c: what create does */
cddp_status cd_fsdp_make_units(cddp_fsdp *f, const cddp_fsdp_options *options, cddp_error *err);
cddp_status cd_fsdp_compare(cddp_fsdp *f, const cddp_fsdp_options *options, cddp_error *err);
cddp_status cd_fsdp_cut(cddp_fsdp *f, const cddp_fsdp_options *options, cddp_error *err);

/* order.c */
/* Before a gather or a reduction is posted. */
cddp_status cd_fsdp_compare_order(cddp_fsdp *f, uint32_t unit, bool reduces, cddp_error *err);
/* Of what is not a unit: a number that all ranks have in common. `what` it is of. */
cddp_status cd_fsdp_compare_number(cddp_fsdp *f, uint64_t number, const char *what,
                                   cddp_error *err);
/* The next unit of an order: recorded the first time, compared with the record afterwards. */
cddp_status cd_fsdp_follow(cddp_fsdp *f, cd_fsdp_order *order, uint32_t unit, const char *what,
                           cddp_error *err);
/* The order ends here, in this iteration. */
cddp_status cd_fsdp_end_order(cddp_fsdp *f, cd_fsdp_order *order, const char *what,
                              cddp_error *err);

/* report.c */
void cd_fsdp_report_cut(const cddp_fsdp *f);
/* Of shards, or of their gradients. */
cddp_status cd_fsdp_report_gaps(const cddp_fsdp *f, bool of_gradients, cddp_error *err);
/* The full parameters of a unit, as a pass begins to compute with them. */
cddp_status cd_fsdp_report_read(const cddp_fsdp *f, const cd_fsdp_unit *unit,
                                cddp_event_enum_unit_pass pass, cddp_error *err) CDDP_MUST_CHECK;

/* "unit 'encoder.0'", or "the root": for messages. Borrowed until destroy. */
const char *cd_fsdp_unit_words(const cddp_fsdp *f, uint32_t unit);
/* After a failed collective: nothing goes on, on no rank (F4). Returns status. */
cddp_status cd_fsdp_give_up(cddp_fsdp *f, cddp_status status, const cddp_error *err);
/* Between iterations, and not after a failure. `call` names the caller. */
cddp_status cd_fsdp_check_idle(const cddp_fsdp *f, const char *call, cddp_error *err);
