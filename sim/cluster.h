/* SPDX-License-Identifier: Apache-2.0 */
/* The structures behind sim/collective.h, shared by the files that work on them: group.c (open,
** close, abort), collective.c (post, start, end), execute.c (data), transport.c (messages), model.c
** (times), report.c (text).
*/
#pragma once
#include "sim/collective.h"

#define CD_WHY_BYTES CDDP_ERROR_MESSAGE_BYTES

typedef enum cd_part_state {
    CD_PART_EMPTY,   /* this member has not posted it */
    CD_PART_QUEUED,  /* posted, waits for a slot or for its predecessor */
    CD_PART_STARTED, /* takes part */
    CD_PART_ENDED,   /* status has the outcome */
    /* given back before it ended: it will never take part, and its tensors must not be touched */
    CD_PART_GONE
} cd_part_state;

/* A chunk on its way, or waiting in the receiver's inbox. */
struct cd_message {
    cd_sim_event event; /* first: arrival */
    cd_message *next;
    cd_coll *coll;
    uint32_t source, target; /* parts of coll */
    int64_t begin, count;    /* elements of the sender */
    uint64_t bytes;
    uint64_t sent_ns, time_ns; /* when it left; when it arrives (or arrived, in a timed graph) */
    cddp_tensor data;          /* a copy, or undefined when there is no content */
    uint32_t source_rank, target_rank;
    uint64_t busy_ns;       /* of a port, on its link */
    bool is_received;       /* passed the receiver's port */
    uint8_t channel, hosts; /* of the sender's action */
};

/* Where a part's program stands, while its operation takes place. */
typedef struct cd_flow {
    cd_program program;
    uint32_t action;
    cddp_tensor work, source; /* flat */
    uint64_t last_arrival_ns;
    /* when all that was sent has left: the operation needs its memory until then */
    uint64_t left_ns;
} cd_flow;

static inline void cd_flow_keep_until(cd_flow *flow, uint64_t left_ns)
{
    if (flow->left_ns < left_ns) flow->left_ns = left_ns;
}

struct cd_part {
    cd_coll *coll;
    cd_member *member;
    uint32_t index; /* in coll */
    cd_part_state state;
    cddp_status status;
    const char *why; /* borrowed from the group, or static */
    cd_sim_rank *waiter;
    cd_part *next; /* in the rank's queue, or among its started parts */
    cddp_collective what;
    uint64_t ordinal; /* of the rank, over all groups: what faults count */
    uint64_t posted_ns, time_ns;
    /* a timed graph's end of this part; messages: it was launched, its host has added, what it sent
    ** has left */
    cd_sim_event end_event;
    uint32_t awaited; /* part index, UINT32_MAX: anybody; meaningful while is_blocked */
    uint8_t awaited_channel;
    bool is_blocked, has_content, is_staged, is_released;
    const cd_fault *death;            /* strikes with the first message on its way, or NULL */
    const cddp_device *stream_device; /* its tensors live on a device with streams, or NULL */
    cddp_stream *joiner;              /* held until this part has ended */
    bool is_followed;                 /* its stream goes on behind its end */
    bool is_awaited;                  /* its owner waited for its end, or polled and saw it */
    bool is_moving;                   /* its data are under way: counted in the rank's transfers */
    bool is_given_back;               /* released by its owner while a stream still holds it */
    /* a planted fault: its start, its end, does not wait or is not waited for */
    bool is_unordered[2];
    uint32_t point; /* with stream_device: of its end on the group's stream */
    uint64_t read;  /* digest of its input when it was first read; 0: not known */
    cd_message *inbox, *inbox_last;
};

struct cd_coll {
    cd_completion completion; /* first */
    cd_comm *comm;
    cd_coll *next; /* among pairs, or free */
    uint64_t ordinal;
    uint32_t size, arrived, ended, released, messages;
    uint32_t pair[2]; /* send and receive: members of the group */
    bool is_pair, is_executed;
    /* (size) made when the first program is described, gone when all parts are released */
    cd_flow *flows;
    /* (size) any_order: the order in which contributions are added; NULL otherwise */
    uint32_t *order;
    cd_part parts[]; /* (size) */
};

struct cd_member {
    cd_comm *comm;
    cd_sim_rank *rank;
    uint32_t index;
    uint64_t posted;    /* collectives */
    uint32_t slots_max; /* 0: any number */
    uint32_t active;    /* started, not ended */
    uint64_t timeout_ns;
    /* timed graph: when the group's stream on this rank is free */
    uint64_t free_ns;
    /* timed graph: its lanes; messages: its connection only */
    uint64_t lane_free_ns[CD_LANE_COUNT];
    bool is_joined, is_closed;
    bool is_observed; /* somebody asks for digests of what parts read */
};

struct cd_comm {
    cd_sim *sim;
    cd_comm *next, *previous;
    cd_comm *next_joining, *previous_joining; /* while joined < size */
    char *name;
    size_t bytes; /* of the block: this struct, members, ranks, name */
    uint32_t id, size, joined, closed;
    uint32_t *ranks;    /* (size) world ranks */
    cd_member *members; /* (size) */
    /* (window_capacity) ring: colls base … base + window_count - 1, NULL when not begun */
    cd_coll **window;
    size_t window_capacity, window_first, window_count;
    uint64_t base;
    cd_coll *free_colls, *pairs, *free_pairs;
    uint64_t pair_count;
    cddp_status failure; /* once failed, every operation does */
    char why[CD_WHY_BYTES];
};

/* Staging storage of devices that make their own; host memory comes from the block. */
typedef struct cd_staging {
    struct cd_staging *next;
    const cddp_device *device;
    cddp_dtype dtype;
    int64_t numel;
    void *storage;
    uint64_t serial; /* in the order of making */
} cd_staging;

typedef struct cd_link_fault {
    const cd_fault *fault;
    uint64_t until_ns; /* UINT64_MAX: for good */
    bool is_spent;     /* one-message faults */
    bool has_met;      /* a message that it acts on */
    /* A delayed message is not overtaken within its operation: (world_size) by receiver, of
    ** link_delay; of the one message of link_reorder. */
    uint64_t *late_ns;
    const cd_coll *held_coll;
    uint32_t held_target;
    uint64_t held_ns;
} cd_link_fault;

struct cd_cluster {
    cd_comm *comms;   /* the newest first */
    cd_comm *joining; /* those of them that lack members, the newest first */
    cd_message *free_messages;
    cd_staging *free_staging, *used_staging;
    uint64_t staging_serial;
    uint64_t *send_port_free_ns, *receive_port_free_ns; /* (port_count) */
    /* the last result of cd_link_busy_ns: consecutive chunks often have one size */
    const cd_link *last_link;
    uint64_t last_bytes, last_busy_ns;
    cd_link_fault *link_faults; /* (fault_count) */
    uint32_t *peers;            /* (2 · world_size) scratch of report.c */
    uint32_t link_fault_count;
};

static inline bool cd_message_suits(const cd_message *message, uint32_t source, uint8_t channel)
{
    return source == UINT32_MAX || (message->source == source && message->channel == channel);
}
static inline cd_flow *cd_flow_of(const cd_part *part) { return &part->coll->flows[part->index]; }
static inline uint32_t cd_coll_rank(const cd_coll *coll, uint32_t part)
{
    return coll->comm->ranks[coll->is_pair ? coll->pair[part] : part];
}

/* collective.c */
void cd_part_end(cd_part *part, cddp_status status, const char *why);
void cd_part_reached(cd_part *part); /* its stream has reached it */
void cd_part_joined(cd_part *part);  /* its stream has waited for it */
void cd_part_forget(cd_part *part);  /* releases it whatever its state */
/* its rank died or gave it back: it ends without anybody hearing of it */
void cd_part_lose(cd_part *part);
void cd_rank_start_queued(cd_sim *sim, cd_sim_rank *rank);
void cd_coll_reclaim(cd_coll *coll); /* frees it when nothing refers to it any more */

/* group.c */
cd_coll *cd_comm_make_coll(cd_comm *comm, uint32_t size);
cd_coll *cd_comm_get_coll(cd_comm *comm, uint64_t ordinal); /* NULL: out of memory */
cd_coll *cd_comm_get_pair(cd_comm *comm, const cddp_collective *what, uint32_t me, uint32_t *part);
void cd_comm_trim(cd_comm *comm);
void cd_coll_drop_flows(cd_coll *coll);
void cd_comm_fail(cd_comm *comm, cddp_status status, const char *why);

/* execute.c: data. Every function fails with the device's own error, or returns CDDP_OK without
** touching anything when there is no content. */
bool cd_part_describe_program(cd_part *part); /* false: out of memory */
cddp_status cd_part_prepare(cd_part *part, cddp_error *err);
cddp_status cd_part_apply(cd_part *part, const cd_action *action, const cddp_tensor *data,
                          int64_t count, cddp_error *err);
cddp_status cd_part_finish(cd_part *part, cddp_error *err);
void cd_part_unprepare(cd_part *part);
cddp_status cd_coll_execute(cd_coll *coll, cddp_error *err); /* all of it at once; parts agree */
bool cd_coll_agrees(const cd_coll *coll);
cddp_tensor cd_flat(const cddp_tensor *tensor, int64_t begin, int64_t count);
int64_t cd_numel(const cddp_tensor *tensor);
cddp_status cd_staging_take(cd_sim *sim, const cddp_tensor *like, int64_t numel,
                            cddp_tensor *tensor, cddp_error *err);
void cd_staging_give(cd_sim *sim, const cddp_tensor *tensor, int64_t numel);

/* transport.c */
cd_message *cd_message_make(cd_sim *sim, cd_coll *coll);
void cd_message_free(cd_sim *sim, cd_message *message, bool lost);
cd_message *cd_inbox_take(cd_part *part, const cd_action *awaited);
void cd_inbox_clear(cd_part *part, bool lost);
void cd_inbox_push(cd_part *part, cd_message *message);
void cd_part_progress(cd_part *part);

/* When what source sends to target now arrives, where planted faults hold it back. False: never. */
bool cd_link_pass(const cd_sim *sim, uint32_t source, uint32_t target, uint64_t *arrival_ns);
/* Does a planted fault hold back what source sends to target now? */
bool cd_link_is_cut(const cd_sim *sim, uint32_t source, uint32_t target);

/* model.c */
void cd_coll_time(cd_coll *coll); /* sets time_ns of every part */

/* strike.c */
/* nothing happens on a device without bits */
void cd_tensor_flip_bit(const cddp_tensor *tensor, uint64_t bit);
