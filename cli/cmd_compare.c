/* SPDX-License-Identifier: Apache-2.0 */
/* compare: a recorded run of W ranks against the recorded run of one process. */
#include "cddp/store.h"
#include "cli/command.h"
#include "cli/report_card.h"
#include "cli/sources.h"
#include "cddp/cddp.h"
#include "core/base/error.h"
#include "core/base/real.h"
#include "verify/compare/compare.h"
#include "verify/report/json.h"
#include "verify/report/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct side {
    cd_source source;
    cd_traced facts;
} side;

typedef struct comparing {
    side one, many;
    cd_comparison_options options;
    cd_comparison comparison;
    int exit_code;
} comparing;

/* ---- reading ---- */

static void take_event(void *self, const cddp_event *event) { cd_traced_push(self, event); }

static cddp_status read_side(side *s, const char *const *paths, size_t path_count, cddp_error *err)
{
    const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &s->facts, take_event, NULL};
    CD_TRY(cd_source_open(&s->source, paths, path_count, err));
    CD_TRY(cd_traced_init(&s->facts, s->source.world_size, NULL, err));
    return CD_PASS(cd_source_replay(&s->source, &sink, err));
}

static cddp_status read_bound(const cd_args *args, double *rtol, cddp_error *err)
{
    const char *text = cd_args_text(args, CD_OPTION_rtol, NULL);
    char *end = NULL;
    *rtol = -1;
    if (text == NULL) return CDDP_OK;
    *rtol = cd_real_parse(text, &end);
    if (end == text || *end != '\0' || !(*rtol >= 0 && *rtol < 1))
        return cd_fail(err, CDDP_E_ARG, "--rtol=%.40s is no number from 0 to 1, as in 1e-5", text);
    return CDDP_OK;
}

/* ---- what to call it ---- */

static const char *headline(const comparing *c)
{
    const cd_comparison *r = &c->comparison;
    if (r->mismatch_count > 0) return "not the same training";
    if (c->exit_code == CD_EXIT_FINDINGS) return "different";
    if (r->gradients > 0 && r->equal_gradients == r->gradients &&
        r->equal_parameters == r->parameters && r->gap_count == 0)
        return "equal bit for bit";
    if (c->exit_code == CD_EXIT_INCONCLUSIVE) return "inconclusive";
    return "alike where both began alike";
}

static const char *const what_words[] = {
    [CD_COMPARISON_NOTHING] = "nothing",
    [CD_COMPARISON_RATE] = "the optimizer's step",
    [CD_COMPARISON_GRADIENT] = "the reduced gradient",
    [CD_COMPARISON_PARAMETER] = "the parameter after the step",
    [CD_COMPARISON_REDUCTION] = "the reduction of the gradient",
    [CD_COMPARISON_LOCAL] = "the local gradients",
    [CD_COMPARISON_PRESENCE] = "the presence of a gradient or parameter",
    [CD_COMPARISON_SPLIT] = "the ranks among each other",
};

/* Steps that began with other bits than the single process: distances, and nothing else. */
typedef struct later {
    const cd_comparison_step *first, *last, *most; /* most: after which it grew most */
    size_t count;
    double growth;
} later;

static later find_later(const cd_comparison *r)
{
    later l = {.first = NULL};
    const cd_comparison_step *before = NULL;
    for (size_t i = 0; i < r->step_count; i++) {
        const cd_comparison_step *s = &r->steps[i];
        if (s->began_equal || s->has_equal_bits || !s->is_begin_shown) continue;
        if (l.first == NULL) l.first = s;
        if (before != NULL && before->distance > 0 && s->distance / before->distance > l.growth) {
            l.growth = s->distance / before->distance;
            l.most = s;
        }
        before = l.last = s;
        l.count++;
    }
    return l;
}

/* ---- text ---- */

static void put_list(cd_text *text, const char *label, const char *const *lines, size_t count)
{
    for (size_t i = 0; i < count && i < 20; i++) {
        cd_text_printf(text, "  %-10s", i == 0 ? label : "");
        cd_text_wrap(text, lines[i], 12, 110);
    }
    if (count > 20) cd_text_printf(text, "  %-10s… and %zu more\n", "", count - 20);
}

static void put_differences(cd_text *text, const comparing *c)
{
    const cd_comparison *r = &c->comparison;
    if (r->difference_count == 0) return;
    const cd_comparison_difference *d = &r->differences[0];
    cd_text_style(text, CD_STYLE_RED, "  first     ");
    cd_text_printf(text, "step %" PRIu32 ", %s%s%s\n", d->step, what_words[d->what],
                   d->tensor[0] != '\0' ? " of " : "", d->tensor);
    cd_text_printf(text, "  one       %s\n  many      %s\n", d->one, d->many);
    if (d->hint[0] != '\0') cd_text_printf(text, "  hint      %s\n", d->hint);
    if (r->difference_count > 1)
        cd_text_printf(text,
                       "  also      %zu more differences, the last steps' follow from the first\n",
                       r->difference_count - 1);
}

static void put_began(cd_text *text, const comparing *c)
{
    const cd_comparison *r = &c->comparison;
    for (size_t i = 0; i < r->step_count && !r->is_exact; i++) {
        const cd_comparison_step *s = &r->steps[i];
        if (!s->began_equal || s->has_equal_bits) continue;
        cd_text_printf(text, "  began     step %" PRIu32 " with equal parameters: ", s->number);
        if (!s->has_local)
            cd_text_printf(text, "local gradients were not recorded\n");
        else if (c->options.rtol < 0)
            cd_text_printf(text,
                           "local gradients are %.3g away (%s); no bound was given, so nothing is "
                           "judged (--rtol)\n",
                           s->local, s->local_tensor[0] != '\0' ? s->local_tensor : "none");
        else
            cd_text_printf(text, "local gradients at most %.3g away, --rtol %g allows%s%s%s\n",
                           s->local, c->options.rtol, s->local > 0 ? " (" : "", s->local_tensor,
                           s->local > 0 ? ")" : "");
    }
}

static void put_distance(cd_text *text, const cd_comparison_step *s)
{
    if (s->has_distance)
        cd_text_printf(text, "%.3g at step %" PRIu32, s->distance, s->number);
    else
        cd_text_printf(text, "not recorded at step %" PRIu32, s->number);
    if (s->tensor[0] != '\0') cd_text_printf(text, " (%s)", s->tensor);
}

static void put_jump(cd_text *text, const cd_comparison *r)
{
    if (r->jump == NULL) return;
    cd_text_style(text, CD_STYLE_YELLOW, "  jump      ");
    cd_text_printf(text, "the first one is at step %" PRIu32 ": the distance was ",
                   r->jump->number);
    put_distance(text, r->jump - 1);
    cd_text_printf(text, ", and is ");
    put_distance(text, r->jump);
    cd_text_printf(text, "\n            look there first: what does a step hand on to the next? "
                         "gradients, moments, the rate\n");
}

static void put_later(cd_text *text, const cd_comparison *r)
{
    const later l = find_later(r);
    if (l.count == 0) return;
    cd_text_printf(text,
                   "  later     %zu step%s began with other bits and %s not judged: distance ",
                   l.count, l.count == 1 ? "" : "s", l.count == 1 ? "is" : "are");
    put_distance(text, l.first);
    if (l.count > 1) {
        cd_text_printf(text, ", ");
        put_distance(text, l.last);
    }
    cd_text_printf(text, "\n");
    if (l.most != NULL)
        cd_text_printf(text, "  growth    at most %.3g times in one step, at step %" PRIu32 "\n",
                       l.growth, l.most->number);
}

static void put_facts(cd_text *text, const comparing *c)
{
    const cd_comparison *r = &c->comparison;
    cd_text_printf(text, "  samples   %" PRIu64 " in both, the same in every step\n", r->samples);
    if (r->gradients > 0)
        cd_text_printf(text,
                       "  bits      %" PRIu64 " of %" PRIu64 " gradients and %" PRIu64
                       " of %" PRIu64 " parameters after a step are equal bit for bit%s\n",
                       r->equal_gradients, r->gradients, r->equal_parameters, r->parameters,
                       r->is_exact ? ", as comm hook reproducible promises" : "");
    if (r->first_bits[0] != '\0')
        cd_text_printf(text, "  differ    first at step %" PRIu32 ", %s\n", r->first_bits_step,
                       r->first_bits);
    if (r->unheld[0] != '\0')
        cd_text_printf(text, "  reduction not held to a bound: %s\n", r->unheld);
    else if (r->reductions > 0)
        cd_text_printf(text,
                       "  reduction %" PRIu64 " of %" PRIu64
                       " within gamma·Σ|g_r|/W of the mean of the "
                       "recorded local gradients\n",
                       r->held, r->reductions);
    put_began(text, c);
    put_later(text, r);
    put_jump(text, r);
}

static void print_text(cd_text *text, const comparing *c)
{
    const cd_comparison *r = &c->comparison;
    const cd_style style = c->exit_code == 0   ? CD_STYLE_GREEN
                           : c->exit_code == 1 ? CD_STYLE_RED
                                               : CD_STYLE_YELLOW;
    cd_text_style(text, style, "%s", headline(c));
    cd_text_printf(text, ": %s against %s\n", c->options.many, c->options.one);
    put_list(text, "because", (const char *const *)r->mismatches, r->mismatch_count);
    put_differences(text, c);
    put_list(text, "missing", (const char *const *)r->gaps, r->gap_count);
    if (r->mismatch_count == 0 && r->step_count > 0) put_facts(text, c);
    cd_text_printf(text, "  run       %" PRIu32 " rank%s against 1, %zu step%s, %zu parameter%s\n",
                   c->many.facts.rank_count, c->many.facts.rank_count == 1 ? "" : "s",
                   r->step_count, r->step_count == 1 ? "" : "s", r->tensor_count,
                   r->tensor_count == 1 ? "" : "s");
}

/* ---- JSON ---- */

static void put_number(cd_json *json, const char *key, double value)
{
    cd_json_key(json, key);
    cd_json_number(json, value);
}

static void print_lines(cd_json *json, const char *key, const char *const *lines, size_t count)
{
    cd_json_key(json, key);
    cd_json_open(json, '[');
    for (size_t i = 0; i < count && i < 20; i++) cd_json_text(json, lines[i]);
    cd_json_close(json, ']');
}

static void print_differences(cd_json *json, const cd_comparison *r)
{
    cd_json_put_integer(json, "difference_count", (int64_t)r->difference_count);
    cd_json_key(json, "differences");
    cd_json_open(json, '[');
    for (size_t i = 0; i < r->difference_count && i < 20; i++) {
        const cd_comparison_difference *d = &r->differences[i];
        cd_json_open(json, '{');
        cd_json_put_integer(json, "step", d->step);
        cd_json_put_text(json, "what", what_words[d->what]);
        cd_json_put_text(json, "parameter", d->tensor);
        cd_json_put_text(json, "one", d->one);
        cd_json_put_text(json, "many", d->many);
        cd_json_put_text(json, "hint", d->hint);
        cd_json_close(json, '}');
    }
    cd_json_close(json, ']');
}

static void print_steps(cd_json *json, const cd_comparison *r)
{
    cd_json_key(json, "steps");
    cd_json_open(json, '[');
    for (size_t i = 0; i < r->step_count; i++) {
        const cd_comparison_step *s = &r->steps[i];
        cd_json_open(json, '{');
        cd_json_put_integer(json, "step", s->number);
        cd_json_put_flag(json, "began_equal", s->began_equal);
        cd_json_put_flag(json, "equal_gradients", s->has_equal_bits);
        put_number(json, "distance", s->distance);
        cd_json_put_text(json, "parameter", s->tensor);
        if (s->has_local) put_number(json, "local_distance", s->local);
        cd_json_close(json, '}');
    }
    cd_json_close(json, ']');
}

static void print_json(cd_text *text, const comparing *c)
{
    const cd_comparison *r = &c->comparison;
    cd_json json;
    cd_json_begin(&json, text);
    cd_json_open(&json, '{');
    cd_json_put_text(&json, "tool", "cddp-verify");
    cd_json_put_text(&json, "version", cddp_version());
    cd_json_put_integer(&json, "format", 1);
    cd_json_put_text(&json, "comparison", headline(c));
    cd_json_put_integer(&json, "exit_code", c->exit_code);
    cd_json_put_text(&json, "one", c->options.one);
    cd_json_put_text(&json, "many", c->options.many);
    cd_json_put_integer(&json, "ranks", c->many.facts.rank_count);
    if (c->options.rtol >= 0) put_number(&json, "rtol", c->options.rtol);
    print_lines(&json, "mismatches", (const char *const *)r->mismatches, r->mismatch_count);
    print_lines(&json, "missing", (const char *const *)r->gaps, r->gap_count);
    print_differences(&json, r);
    cd_json_put_integer(&json, "samples", (int64_t)r->samples);
    cd_json_put_integer(&json, "gradients", (int64_t)r->gradients);
    cd_json_put_integer(&json, "equal_gradients", (int64_t)r->equal_gradients);
    cd_json_put_integer(&json, "parameters", (int64_t)r->parameters);
    cd_json_put_integer(&json, "equal_parameters", (int64_t)r->equal_parameters);
    cd_json_put_integer(&json, "reductions", (int64_t)r->reductions);
    cd_json_put_integer(&json, "reductions_held", (int64_t)r->held);
    cd_json_put_text(&json, "not_held_because", r->unheld);
    print_steps(&json, r);
    if (r->jump != NULL) cd_json_put_integer(&json, "jump_step", r->jump->number);
    cd_json_close(&json, '}');
    cd_text_push(text, "\n");
}

/* ---- JUnit, SARIF and pages: as a result that has findings ---- */

static void add_line(cd_text *text, const char *line) { cd_text_printf(text, "%s\n", line); }

/* A difference breaks what I-REF is about: training equals that of one process. */
static cddp_status add_findings(cd_result *result, const comparing *c, cddp_error *err)
{
    const cd_comparison *r = &c->comparison;
    const size_t count = r->difference_count < 20 ? r->difference_count : 20;
    cddp_finding *findings = cd_arena_push(&result->arena, (count + 1) * sizeof *findings);
    if (findings == NULL) return cd_fail_memory(err, "%zu findings", count);
    for (size_t i = 0; i < count; i++) {
        const cd_comparison_difference *d = &r->differences[i];
        cddp_finding *f = &findings[i];
        *f = (cddp_finding){.size = sizeof *f,
                            .check = "I-REF",
                            .step = d->step,
                            .rank = -1,
                            .peer = -1,
                            .bucket = -1,
                            .param = -1,
                            .is_consequence = i > 0};
        snprintf(f->parameter, sizeof f->parameter, "%s", d->tensor);
        snprintf(f->title, sizeof f->title, "not as one process has it: %s", what_words[d->what]);
        snprintf(f->expected, sizeof f->expected, "%s", d->one);
        snprintf(f->actual, sizeof f->actual, "%s", d->many);
        snprintf(f->advice, sizeof f->advice, "%s", d->hint);
    }
    result->verdict.findings = findings;
    result->verdict.finding_count = count;
    return CDDP_OK;
}

static cddp_status make_result(cd_result *result, const comparing *c, cddp_error *err)
{
    const cd_comparison *r = &c->comparison;
    cd_text details;
    char title[600];
    cd_text_init(&details, false);
    snprintf(title, sizeof title, "%s against %s", c->options.many, c->options.one);
    for (size_t i = 0; i < r->mismatch_count && i < 20; i++) add_line(&details, r->mismatches[i]);
    for (size_t i = 0; i < r->gap_count && i < 20; i++) add_line(&details, r->gaps[i]);
    if (r->mismatch_count == 0 && r->step_count > 0) put_facts(&details, c);
    cd_result_set_failure(result, c->exit_code, headline(c), cd_text_get(&details));
    result->verdict.proven = c->exit_code == 0 ? result->verdict.summary : "";
    if (c->exit_code == 0) result->verdict.reason = "";
    result->source = cd_result_copy(result, c->options.many);
    result->title = cd_result_copy(result, title);
    result->backend = "recorded";
    result->world_size = c->many.facts.rank_count;
    result->steps = (uint32_t)r->step_count;
    const bool has_text = !details.failed;
    cd_text_fini(&details);
    if (!has_text) return cd_fail_memory(err, "a report");
    return CD_PASS(add_findings(result, c, err));
}

static int report_result(cd_cli *cli, const cd_report_target *target, const comparing *c)
{
    cd_result result;
    cddp_error err = CDDP_ERROR_INIT;
    cd_result_init(&result);
    const cddp_status status = make_result(&result, c, &err);
    const cd_report whole = {.results = &result,
                             .count = 1,
                             .registry = cli->registry,
                             .exit_code = c->exit_code,
                             .quiet = cd_args_has(cli->args, CD_OPTION_quiet),
                             .verbose = cd_args_has(cli->args, CD_OPTION_verbose)};
    const int exit_code =
        status == CDDP_OK ? cd_report_send(cli, target, &whole) : cd_cli_fail(cli, &err);
    cd_result_fini(&result);
    return exit_code;
}

/* ---- the command ---- */

static int report(cd_cli *cli, const cd_report_target *target, const comparing *c)
{
    if (target->format != CD_FORMAT_TEXT && target->format != CD_FORMAT_JSON)
        return report_result(cli, target, c);
    cd_text text;
    cd_report_card_begin(cli, target, &text);
    if (target->format == CD_FORMAT_JSON)
        print_json(&text, c);
    else
        print_text(&text, c);
    const int exit_code = cd_report_write(cli, target, &text, c->exit_code);
    cd_text_fini(&text);
    return exit_code;
}

static cddp_status compare(cd_cli *cli, comparing *c, cd_report_target *target, cddp_error *err)
{
    const char *const *operands = (const char *const *)cli->args->operands;
    const size_t count = cli->args->operand_count;
    if (count < 2)
        return cd_fail(err, CDDP_E_ARG,
                       "compare what? name the run of one process, then the run of W ranks");
    CD_TRY(cd_report_target_read(cli->args, target, err));
    CD_TRY(cd_report_target_check(target, err));
    CD_TRY(read_bound(cli->args, &c->options.rtol, err));
    c->options.one = operands[0];
    c->options.many = operands[1];
    CD_TRY(read_side(&c->one, operands, 1, err));
    CD_TRY(read_side(&c->many, operands + 1, count - 1, err));
    CD_TRY(cd_compare(&c->one.facts, &c->many.facts, &c->options, &c->comparison, err));
    c->exit_code = cd_comparison_exit_code(&c->comparison, &c->options);
    return CDDP_OK;
}

int cd_command_compare(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_report_target target;
    comparing c;
    memset(&c, 0, sizeof c);
    const cddp_status status = compare(cli, &c, &target, &err);
    const int exit_code = status == CDDP_OK ? report(cli, &target, &c) : cd_cli_fail(cli, &err);
    cd_comparison_fini(&c.comparison);
    cd_traced_fini(&c.one.facts);
    cd_traced_fini(&c.many.facts);
    cd_source_close(&c.one.source);
    cd_source_close(&c.many.source);
    return exit_code;
}
