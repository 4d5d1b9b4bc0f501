/* SPDX-License-Identifier: Apache-2.0 */
/* Invented results: one of every verdict, with names that are hard to write down. */
#pragma once
#include "verify/report/report.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

static inline void invent_findings(cd_result *r, size_t count)
{
    cddp_finding *findings = cd_arena_push(&r->arena, count * sizeof *findings);
    r->verdict.findings = findings;
    for (size_t i = 0; i < count; i++) {
        cddp_finding f = {.size = sizeof(cddp_finding),
                          .check = i == 0 ? "I-ORDER" : "I-REF",
                          .step = 2,
                          .micro_step = (uint32_t)i,
                          .ranks = (const uint32_t[]){1, 70},
                          .rank_count = 2,
                          .rank = 1,
                          .peer = i == 0 ? 0 : -1,
                          .bucket = i == 0 ? 1 : -1,
                          .param = i == 0 ? -1 : 4,
                          .event_count = i == 0 ? 1 : 0,
                          .events = {{1, 17}}};
        snprintf(f.title, sizeof f.title,
                 "rank 1 launches <bucket 1> where \"rank 0\" launches bucket %zu & more", i);
        snprintf(f.expected, sizeof f.expected, "allreduce of 12 f32");
        snprintf(f.actual, sizeof f.actual, "allreduce of 24 f32 \033[2J\x01\xff\xc2\x9b");
        snprintf(f.advice, sizeof f.advice, "look at the order of gradients");
        if (i > 0) snprintf(f.parameter, sizeof f.parameter, "größer...");
        if (i > 0) f.name = "größer.weight";
        if (i > 0) f.wrapper = "größer";
        findings[r->verdict.finding_count++] = cd_result_copy_finding(r, &f);
    }
    cddp_event event = {.rank = 1, .sequence = 17, .step = 2, .kind = CDDP_EV_bucket_launch};
    cd_result_add_context(r, &event);
}

#define INVENTED_COUNT 6
static inline void invent(cd_result results[INVENTED_COUNT])
{
    static const char *const sources[] = {
        "scenarios/good.toml",   "scenarios/canary/expected.toml", "bad.toml",
        "scenarios/broken.toml", "scenarios/absent.toml",          "scenarios/open.toml"};
    static const int codes[] = {0, 0, 1, 2, 3, 4};
    for (int i = 0; i < INVENTED_COUNT; i++) {
        cd_result *r = &results[i];
        cd_result_init(r);
        r->source = sources[i];
        r->title = "a title with <angle> & \"quotes\"";
        r->backend = "sim";
        r->world_size = 3;
        r->steps = 5;
        r->seed = 7;
        r->verdict.event_count = 1234;
        r->verdict.trace_digest = 0xabc;
        r->verdict.plan_digest = 0xdef;
        r->verdict.time_ns = 5000;
        r->wall_ns = 1234567;
        r->judged = codes[i] != 2 && codes[i] != 3;
        r->verdict.outcome = (cddp_outcome)codes[i];
        r->name = cd_result_verdict_name(codes[i]);
        r->reproduce = "cddp-verify run 'scenarios/it'\\''s.toml'";
        r->shrink = "cddp-verify shrink 'scenarios/it'\\''s.toml'";
        if (codes[i] != 0)
            r->verdict.summary = r->verdict.reason = "a reason with <angle> & \"quotes\"";
        static const cddp_exercise exercise = {"I-ORDER", "12 launches on 3 ranks", 12};
        static const cddp_mark_count mark = {"a rebuild happened", 2};
        r->verdict.exercises = &exercise;
        r->verdict.marks = &mark;
        r->verdict.exercise_count = r->verdict.mark_count = 1;
    }
    results[1].verdict.as_expected = true;
    invent_findings(&results[1], 1);
    invent_findings(&results[2], 3);
    results[3].details = "scenarios/broken.toml:4:1: unknown key\n    find_unused = true\n    ^\n";
    cddp_verdict_rank *ranks = cd_arena_push(&results[5].arena, 3 * sizeof *ranks);
    ranks[2].result = (cddp_rank_result){.end = CDDP_RANK_KILLED};
    snprintf(ranks[2].result.error.message, CDDP_ERROR_MESSAGE_BYTES, "signal 9");
    results[5].verdict.ranks = ranks;
    results[5].verdict.rank_count = 3;
}

static inline void disinvent(cd_result results[INVENTED_COUNT])
{
    for (int i = 0; i < INVENTED_COUNT; i++) cd_result_fini(&results[i]);
}
