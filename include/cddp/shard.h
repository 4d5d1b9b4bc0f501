/* SPDX-License-Identifier: Apache-2.0 */
/* A shard: the trace of one rank, in one append-only file that the rank writes while it runs.
**
** The file is mapped. An event is in it as soon as emit returns, whatever happens to the process
** then: a signal, an abort, kill -9. There is no database in the job; `cddp-verify check run.db.*`
** merges the shards of all ranks and judges them. docs/formats/shard.md has the layout byte by
** byte, for programs that write shards without this library.
**
** Lifetime   open → emit… → close. A killed writer leaves a file that can be read.
** Ownership  texts are copied.
** Threads    any thread may emit. A child process that was forked after open writes nothing.
** Errors     emitting cannot fail. A disk that is full ends the recording: the program goes on,
**            flush and close return the error once, and the file says how many events are missing.
*/
#pragma once
#include "cddp/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the layout ---- */

#define CDDP_SHARD_MAGIC UINT64_C(0x3164726168736463) /* "cdshard1" in memory */
#define CDDP_SHARD_VERSION 1u
#define CDDP_SHARD_HEADER_BYTES 4096u
#define CDDP_SHARD_SLOT_BYTES 128u
#define CDDP_SHARD_TEXT UINT16_MAX /* kind of a slot that has a text */
#define CDDP_SHARD_TEXT_BYTES 112u /* in one slot */
#define CDDP_SHARD_TEXT_MAX 65536u /* a longer text is cut */
#define CDDP_SHARD_WORLD_MAX 1048576u

typedef enum cddp_shard_end {
    CDDP_SHARD_OPEN,   /* the writer runs, or was killed */
    CDDP_SHARD_CLOSED, /* every event is in the file */
    CDDP_SHARD_FULL    /* the recording stopped: `failure` says why, `lost` how much is missing */
} cddp_shard_end;

/* The upper 16 bits of a job's number that cddp_run_ranks drew: a restart has another number. */
#define CDDP_SHARD_RUN UINT64_C(0xc0dd)

/* At byte 0. Numbers are those of the machine that wrote them. Texts end in a zero. */
typedef struct cddp_shard_header {
    uint64_t magic; /* written last */
    uint32_t version, header_bytes, slot_bytes;
    uint32_t kind_count; /* of events.def */
    uint64_t schema;     /* cddp_shard_schema() of the writer */
    uint32_t rank, world_size;
    uint32_t generation; /* how often the job was restarted before */
    uint32_t level;      /* cddp_trace_level */
    uint64_t process;
    uint64_t realtime_ns, monotonic_ns; /* both clocks, read when the file was opened */
    uint64_t job;            /* equal on all ranks of a job that has a number; 0: it has none */
    uint64_t lost;           /* events that are missing at the end */
    uint32_t end;            /* cddp_shard_end */
    uint32_t slots;          /* of a closed shard, modulo 2^32; 0: nobody counted */
    char host[64], boot[64]; /* clocks with equal host and boot are the same clock */
    char program[256], version_text[32];
    char failure[256];
    /* of what is said at the beginning, and of lost, end, slots and failure when it was closed; 0:
    ** none */
    uint64_t seal, seal_of_end;
    /* until when the writer's process lived, written once a second: milliseconds since monotonic_ns
    ** in the lower 40 bits, their seal above them; 0: nobody said */
    uint64_t alive;
} cddp_shard_header;

/* Slot i is at CDDP_SHARD_HEADER_BYTES + i · CDDP_SHARD_SLOT_BYTES. */
typedef struct cddp_shard_slot {
    /* i + 1, and in the upper half a seal of the other bytes, or 0; written last. 0: the shard ends
    ** here */
    uint64_t sequence;
    uint16_t kind; /* cddp_event_kind */
    uint16_t level;
    uint32_t step, micro_step;
    uint32_t thread;  /* reserved: 0 */
    uint64_t time_ns; /* monotonic */
    uint64_t text;    /* 1 + the slot where its text begins; 0: none */
    int64_t field[CDDP_EVENT_FIELDS];
} cddp_shard_slot;

/* A text lies in consecutive slots in front of the event that has it. */
typedef struct cddp_shard_text_slot {
    uint64_t sequence;
    uint16_t kind;       /* CDDP_SHARD_TEXT */
    uint16_t byte_count; /* in this slot */
    uint32_t more;       /* bytes in the slots that follow */
    char bytes[CDDP_SHARD_TEXT_BYTES];
} cddp_shard_text_slot;

/* A digest of the kinds and fields of events.def: shards of another version are refused. */
CDDP_API uint64_t cddp_shard_schema(void);

/* ---- writing ---- */

typedef struct cddp_shard cddp_shard;

typedef struct cddp_shard_options {
    uint32_t size;    /* sizeof(cddp_shard_options) known to the writer */
    const char *path; /* of this rank: "run.db.3"; an older shard there is replaced */
    uint32_t rank, world_size, generation;
    uint32_t level;      /* cddp_trace_level: what the events contain */
    uint64_t job;        /* 0: none */
    const char *program; /* a name for people; NULL: none */
} cddp_shard_options;

/* A thread without signals writes once a second that the process lives, until close. */
CDDP_API cddp_status cddp_shard_open(const cddp_shard_options *options, cddp_shard **shard,
                                     cddp_error *err) CDDP_MUST_CHECK;
/* rank, sequence and level of the event are the shard's to set. time_ns 0: now. NULL: does
** nothing. */
CDDP_API void cddp_shard_emit(cddp_shard *shard, const cddp_event *event);
/* The same as a sink for a tracer, whose times are replaced. Returns borrowed until close. */
CDDP_API const cddp_trace_sink *cddp_shard_sink(cddp_shard *shard);
/* The first failure since the last call that returned one. */
CDDP_API cddp_status cddp_shard_flush(cddp_shard *shard, cddp_error *err) CDDP_MUST_CHECK;
/* Accepts NULL. */
CDDP_API cddp_status cddp_shard_close(cddp_shard *shard, cddp_error *err);

/* For producers in other languages: the time of a shard; the digest that a tensor of the cpu
** device has, from its contiguous bytes; the number of a kind of event by its name, or -1. */
CDDP_API uint64_t cddp_shard_now_ns(void);
CDDP_API uint64_t cddp_shard_digest(const void *bytes, size_t byte_count, size_t element_bytes);
CDDP_API int32_t cddp_shard_kind(const char *name);

/* Many tensors at once: what a phase of a step did to each parameter, without a call for each. */
typedef struct cddp_shard_tensor {
    int64_t numel;
    int32_t dtype;                    /* cddp_dtype */
    uint32_t epoch;                   /* set by emit_tensors: of its last contribution */
    uint64_t address, address_bytes;  /* of the bucket that it may be a view of; 0: none */
    int64_t field[CDDP_EVENT_FIELDS]; /* of its event; what follows from its content is filled in */
} cddp_shard_tensor;

typedef enum cddp_shard_content {
    CDDP_SHARD_DIGESTS = 1,      /* of each tensor */
    CDDP_SHARD_PROJECTIONS = 2,  /* an event `projection` after that of each f32 or f64 gradient */
    CDDP_SHARD_PRESENT_ONLY = 4, /* no event for absent tensors, nor for those with zeros only */
    CDDP_SHARD_REWRITTEN = 8     /* an event `rewrite` has said why digests are not as expected */
} cddp_shard_content;

typedef struct cddp_shard_tensors {
    uint32_t size;    /* sizeof(cddp_shard_tensors) known to the writer */
    uint32_t content; /* cddp_shard_content, added up */
    uint32_t step, micro_step;
    int32_t kind;   /* of grad_local, grad_final, optimizer_touch and value */
    uint32_t epoch; /* grows when gradients are dropped: contributions count from there */
    size_t count;
    cddp_shard_tensor *tensors; /* (count) */
    const uint64_t *bytes;      /* (count) addresses of contiguous elements in memory; 0: absent */
    uint64_t *digests;          /* (count) are stored there; NULL: they are not */
    /* (count) of an optimizer_touch: the digests before, 0: not known; a gradient with another one
    ** was changed by the program, which is said once in front of it, and
    ** its projection follows. NULL: none are known */
    const uint64_t *expected;
} cddp_shard_tensors;

/* Emits an event of this kind for each tensor, in order. NULL: does nothing. */
CDDP_API void cddp_shard_emit_tensors(cddp_shard *shard, const cddp_shard_tensors *tensors);
/* Sum of weight times element, and of the absolute values of these, as in the event `projection`.
** False: the dtype has none. */
CDDP_API bool cddp_shard_project(const void *bytes, int64_t numel, int32_t dtype, double *sum,
                                 double *magnitude);

/* ---- reading ---- */

typedef struct cddp_shard_reader cddp_shard_reader;

/* Refuses what is no shard, or one of another version, in one sentence that names the file. */
CDDP_API cddp_status cddp_shard_reader_open(const char *path, cddp_shard_reader **reader,
                                            cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_shard_reader_close(cddp_shard_reader *reader); /* accepts NULL */
/* Returns borrowed until close. Texts end in a zero, whatever the file says. */
CDDP_API const cddp_shard_header *cddp_shard_reader_header(const cddp_shard_reader *reader);
/* Until when the writer's process is known to have lived, on the clock of events; 0: unknown. */
CDDP_API uint64_t cddp_shard_reader_alive(const cddp_shard_reader *reader);
/* The next event: its rank is the header's, its sequence counts from 0, its text is borrowed until
** the next call. *found is false at the end, and stays so. */
CDDP_API cddp_status cddp_shard_reader_next(cddp_shard_reader *reader, cddp_event *event,
                                            bool *found, cddp_error *err) CDDP_MUST_CHECK;
/* After the end: reads the header again, and goes on with what was written since. */
CDDP_API cddp_status cddp_shard_reader_resume(cddp_shard_reader *reader,
                                              cddp_error *err) CDDP_MUST_CHECK;
/* Begins again with the first event. */
CDDP_API void cddp_shard_reader_rewind(cddp_shard_reader *reader);

#ifdef __cplusplus
}
#endif
