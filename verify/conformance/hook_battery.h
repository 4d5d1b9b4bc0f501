/* SPDX-License-Identifier: Apache-2.0 */
/* The laws that a comm hook is held to, each tried on many small worlds (hook_trial.h).
**
** Each law is tried in processes that are forked for it, with a limit on their time. A hook that
** crashes, leaves or never returns is a finding of the law that was being tried, and the other laws
** are tried all the same.
**
** Lifetime   the card is the caller's.
** Errors     a broken law is a line of the card; run fails only when no trial can be made.
*/
#pragma once
#include "verify/conformance/hook_trial.h"

typedef enum cd_hook_law {
    CD_LAW_RUNS,      /* every rank ends, with a result of the right size */
    CD_LAW_UNTOUCHED, /* nothing is written outside the bucket, nor after completion */
    /* all ranks get the same bits; those of a block, where the hook says so (agreement) */
    CD_LAW_REPLICAS,
    CD_LAW_AGAIN,    /* the same run gives the same bits */
    CD_LAW_ORDER,    /* so does any order in which operations complete */
    CD_LAW_DECLARED, /* a hook that is not the pre-divided all-reduce bit for bit says so */
    CD_LAW_ROUNDED,  /* what promises the exact mean, rounded once, gives it */
    CD_LAW_DIVISOR,  /* W ranks that are alike give what one gives */
    /* every element gets through in the end, at about its size, whichever backward brought it */
    CD_LAW_ARRIVES,
    CD_LAW_KEPT,    /* what is owed is sent, once */
    CD_LAW_STATED,  /* what the hook itself promises (cddp_tracer_law) is so */
    CD_LAW_JUDGED,  /* what comes out is what the judge's own law makes of what enters */
    CD_LAW_DRAWS,   /* random numbers are shared or distinct, as declared, and advance */
    CD_LAW_PHASE,   /* all buckets of a backward are in the same phase */
    CD_LAW_RANGE,   /* W gradients of half of what f16 holds do not overflow (GRD-11) */
    CD_LAW_VISIBLE, /* what is not finite on one rank is seen by all, as a loss scaler needs it */
    CD_LAW_RESUME,  /* saved, made anew and loaded it goes on bit for bit */
    CD_LAW_FOREIGN, /* a state that was saved for another model is refused, with the reason */
    CD_LAW_REBUILD, /* what is owed follows its parameter into other buckets (REB-10) */
    CD_LAW_NO_SYNC, /* a gradient that came in parts is reduced as the whole */
    /* what has no gradient counts as zeros, and a bucket that is left out changes no other */
    CD_LAW_UNUSED,
    CD_LAW_JOIN,  /* ranks without inputs count as ranks with zeros */
    CD_LAW_LARGE, /* a large bucket is treated as a small one (hook_large.h) */
    CD_LAW_BYTES, /* no more bytes travel than the declared wire dtype takes */
    CD_LAW_COUNT
} cd_hook_law;

typedef struct cd_hook_line {
    uint32_t case_count, failed_count;
    char first[320]; /* what was seen at the first failure */
} cd_hook_line;

typedef struct cd_hook_subject {
    const cddp_hook *hook, *inner;
    const char *options;
    uint64_t limit_ns; /* how long one law may take, each time that it is tried; 0: a minute */
    /* what the hook prints; NULL: it is dropped */
    void (*output)(void *context, const char *bytes, size_t byte_count);
    /* several times a second: what is being tried, and how much of all is done; NULL: nobody asks
    */
    void (*progress)(void *context, size_t done, size_t total, const char *law);
    /* asked several times a second; true: CDDP_E_ABORTED, the card has what was tried. May be NULL.
    */
    bool (*interrupted)(void);
    void *context;
} cd_hook_subject;

typedef struct cd_hook_card {
    cd_hook_line lines[CD_LAW_COUNT];
    uint64_t judged_count; /* comparisons of the judge's own laws */
    uint64_t draw_count;   /* random numbers that the hook reported */
    bool is_exact;         /* the pre-divided all-reduce, bit for bit, in every case */
    bool goes_apart;       /* it said that not all ranks would get the same */
    uint32_t refused;      /* CDDP_DTYPE_BIT of dtypes that the hook does not take */
    /* elements of the smallest bucket that it refused, of a dtype that it takes; 0: none */
    int64_t too_large;
    /* bit n: a world of n ranks, which the options are not for, as every rank says at creation */
    uint32_t skipped;
    uint32_t ended_count; /* processes that the hook ended, or that were stopped */
    uint32_t late_count;  /* of these, those that took too long */
    char not_run[120];    /* the laws that are not tried any more after that; "": all were */
    char skipped_because[280];
    /* (stated_count) its own laws, and how often they were judged */
    cd_stated_law stated[CD_TRIAL_STATED_MAX];
    uint32_t stated_count;
    double worst_relative; /* largest |out - mean| ÷ largest |mean| of one step, f32, two ranks */
    /* bytes of a plain all-reduce ÷ bytes of this hook, f32, two ranks; where it sends more than
    ** one, while gradients are not zero: what zeros take would hide it */
    double bytes_factor;
} cd_hook_card;

const char *cd_hook_law_name(cd_hook_law law);  /* "replicas" */
const char *cd_hook_law_title(cd_hook_law law); /* one line for the card */

cddp_status cd_hook_battery_run(const cd_hook_subject *subject, cd_hook_card *card,
                                cddp_error *err);
