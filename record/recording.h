/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder of this process: one, of one rank. It is the library's only state of a process.
**
** States     UNREAD  nobody asked for a recording yet; CDDP_RECORD was not looked at
**            OFF     there is none, or it was closed
**            ARMED   a recording was asked for; which rank this is, is not known yet
**            WAITS   the program said something, and made no group yet: see
**                    Note [A program without groups]
**            ON      the shard is open
** A child process that is forked goes back from WAITS and ON to ARMED: it may become a rank, and
** opens another shard.
*/
#pragma once
#include "cddp/record.h"
#include "cddp/shard.h"
#include "cddp/world.h"
#include "core/trace/tracer.h"
#include "record/roundings.h"

typedef enum cd_recording_state {
    CD_RECORDING_UNREAD,
    CD_RECORDING_OFF,
    CD_RECORDING_ARMED,
    CD_RECORDING_WAITS,
    CD_RECORDING_ON
} cd_recording_state;

#define CD_RECORDED_PARAMETERS_MAX ((size_t)1 << 24) /* a position beyond is a mistake */

/* What the recorder knows of a parameter, by its position. */
typedef struct cd_recorded_parameter {
    int64_t variable; /* among the reduced ones; -1: not reduced */
    int64_t contributions;
    bool is_known;
    bool is_frozen; /* no gradient changes it, and it is not ignored */
    /* where it lies, see Note [What is looked at]; no device: unknown */
    cddp_tensor storage;
    cddp_tensor gradient;  /* as the program lent it */
    const cddp_grad *slot; /* as a wrapper has it; NULL: there is none */
    int64_t digest;        /* as the program showed it last, or as it was found */
    uint64_t shown_in;     /* which of the wrapper's updates came before that */
    uint64_t stepped_in;   /* and before it was shown after its step */
    int64_t reduced;       /* its gradient, as a wrapper delivered it; 0: none did */
    int64_t start;         /* as the recorder showed where the training starts; 0: it did not */
    int64_t exchanged;     /* for the next forward alone, as the program says; 0: it is not */
    int64_t seen;          /* as it lay there when somebody looked last; 0: nobody knows */
    int64_t probe;         /* of a part of that, at the time of its update; 0: none was taken */
    uint64_t probed_in;    /* which of the wrapper's updates came before that */
    /* of its gradient, as a backward left it that was not reduced; 0: none */
    int64_t local;
    cddp_dtype local_dtype;
    bool is_shown, is_held;
    bool was_cleared; /* its gradient, at a look since zero_grad */
} cd_recorded_parameter;

/* The comm hook in force, and the bucket whose result it delivers at the moment. */
typedef struct cd_recorded_hook {
    int64_t cast; /* the dtype that it rounds the mean in; -1: in that of the bucket */
    int64_t numel;
    double given, got, magnitude; /* over the bucket, see cd_pair */
    bool is_whole;                /* all its gradients are still there */
    cd_roundings roundings;
} cd_recorded_hook;

/* What the recorder knows of a wrapper, or of a program that reduces without one. */
typedef struct cd_recorded_wrapper {
    cd_recorded_parameter *parameters; /* (parameter_count) */
    size_t parameter_count, parameter_capacity;
    cd_recorded_hook hook;
    bool has_wrapper;  /* a wrap event came */
    bool has_reducer;  /* that of a cddp_ddp, which says what it reduced */
    bool has_join;     /* a rank may run out of inputs */
    bool adds_in_hook; /* the hook has what backwards add up, not the gradients */
    bool has_stepped;  /* an optimizer stepped, and no gradient came since */
    bool has_begun;    /* it was looked at before its first step */
    /* a clip or a scaler changed gradients in the step at hand; and whether that was said before */
    bool is_rescaled, has_clipped, has_scaled;
    bool has_added;      /* a backward that was not reduced yet added to gradients */
    bool is_in_pass;     /* the forward that began last records gradients */
    bool is_in_backward; /* it has shown a gradient, and nothing else came since */
    bool awaits_clear;   /* zero_grad was said, and nobody saw it done */
    uint32_t block;      /* of ranks that a comm hook gives the same; 0: all */
    bool has_block;      /* it was not 0 before */
    uint64_t updates;    /* of any optimizer */
    uint64_t looked_at;  /* before which of them a forward has looked */
} cd_recorded_wrapper;

typedef struct cd_recording {
    cd_recording_state state;
    char path[512];
    cddp_record_options options;
    uint32_t process; /* that opened the shard */
    uint64_t run;     /* of cddp_run_ranks, equal on its ranks; 0: a launcher started this one */
    cddp_shard *shard;
    cddp_rank rank; /* the clock of the tracer: the machine's */
    cddp_trace_sink sink;
    struct cddp_tracer tracer;
    cd_recorded_wrapper wrappers[CD_TRACER_WRAPPERS_MAX];
    int64_t said;    /* which wrapper the program's calls are about, plus one; 0: it did not say */
    int64_t group;   /* of the world, as a group event said; -1: none did */
    bool says_steps; /* the program does; else they follow from forwards and backwards */
    bool is_finalized; /* a backward was reduced since the last forward began */
    bool has_forward, is_out_of_memory;
    bool averages;     /* there is a model averager */
    bool is_sharded;   /* there are units of a sharded model */
    uint64_t reduces;  /* wrappers whose backward is to synchronise, a bit each */
    bool had_several;  /* wrappers at once */
    bool is_alone;     /* nobody said its rank, and it made no group */
    bool starts_ranks; /* this process trains in others, by cddp_run_ranks */
    cddp_event *kept;  /* (kept_count), while it WAITS; each owns its text */
    size_t kept_count, kept_capacity;
    int64_t groups;  /* that were made, and not destroyed yet */
    uint32_t unseen; /* the process that made a group of several ranks while nothing was recorded */
    /* The program said that it ended, and a group is still there: the last one takes the recording
    ** with it. */
    bool is_closing;
    cddp_status ended;
    char why[sizeof((cddp_error *)NULL)->message];
    cddp_error failure; /* of a shard that could not be opened */
} cd_recording;

/* The recorder when it is ON, or WAITS, else NULL: what every emit function begins with. */
cd_recording *cd_recording_get(void);
/* The same for a call of the program that is about a wrapper: the one that it said, or the only
** one. With several of them, and nothing said, what follows is about none. */
cd_recording *cd_recording_get_wrapped(void);
/* That of the events that come. */
cd_recorded_wrapper *cd_recording_here(cd_recording *recording);
uint64_t cd_recording_bit(const cd_recording *recording); /* its bit among all wrappers */
/* A parameter of that wrapper. NULL without memory, and where none can have that position. */
cd_recorded_parameter *cd_recording_find(cd_recording *recording, size_t parameter);
/* The tracer of a group or wrapper: its own, or the recorder's; NULL without both. */
struct cddp_tracer *cd_record_attach(cddp_rank *rank, struct cddp_tracer *own);
/* Emits the projection of a gradient, at levels that have content. */
void cd_recording_project(cd_recording *recording, int64_t variable, const cddp_tensor *gradient,
                          bool is_reduced);
extern const cd_tracer_watch cd_recording_watch;
/* Which ranks must agree from here on, where local SGD lets them differ. */
void cd_recording_say_agreement(cd_recording *recording);
/* In each rank that cddp_run_ranks starts, before it opens anything: a number of that run. */
void cd_recording_begin_run(uint64_t run);
/* In a process that starts ranks, before it does: it is none itself. */
void cd_recording_leave_to_ranks(void);
/* An optimizer steps, or the program ends: one that WAITS is ON from now on, or has failed. */
void cd_recording_settle_rank(cd_recording *recording);
/* The program said that it ended, and its groups are still there. */
bool cd_recording_is_closing(void);
/* How it ended; a failure counts that comes behind its word. */
void cd_recording_end_with(cddp_status ended, const char *why);
/* Of a rank whose process died, or was ended with the job: leaves a note beside its shard. */
void cd_recording_note(uint32_t rank, const cddp_rank_result *result);
