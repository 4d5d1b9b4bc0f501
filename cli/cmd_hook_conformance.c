/* SPDX-License-Identifier: Apache-2.0 */
/* hook-conformance: the battery of hook_battery.c over a hook of this build or of a plugin, and its
** report card. */
#include "cddp/cddp.h"
#include "verify/conformance/hook_battery.h"
#include "verify/conformance/hook_trial.h"
#include "cli/interrupt.h"
#include "cli/plugins.h"
#include "cli/progress.h"
#include "cli/report_card.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static cddp_status find_hook(const cd_cli *cli, const char *name, const cddp_hook **hook,
                             cddp_error *err)
{
    *hook = cddp_registry_find_hook(cli->registry, name);
    if (*hook == NULL)
        return cd_fail(
            err, CDDP_E_ARG,
            "there is no communication hook '%s'; `cddp-verify list hooks` shows those there are",
            name);
    return CDDP_OK;
}

static cddp_status find_limit(const cd_cli *cli, uint64_t *limit_ns, cddp_error *err)
{
    uint64_t seconds = 0;
    *limit_ns = 0;
    CD_TRY(cd_args_budget(cli->args, CD_OPTION_limit, "seconds", &seconds, limit_ns, err));
    if (*limit_ns == 0) *limit_ns = seconds * UINT64_C(1000000000);
    return CDDP_OK;
}

static cddp_status find_subject(const cd_cli *cli, cd_hook_subject *subject, cddp_error *err)
{
    const char *inner = cd_args_text(cli->args, CD_OPTION_inner, NULL);
    if (cli->args->operand_count != 1)
        return cd_fail(err, CDDP_E_ARG,
                       "which hook? name one; `cddp-verify list hooks` shows those there are");
    CD_TRY(find_hook(cli, cli->args->operands[0], &subject->hook, err));
    if (inner != NULL) CD_TRY(find_hook(cli, inner, &subject->inner, err));
    subject->options = cd_args_text(cli->args, CD_OPTION_hook_options, NULL);
    CD_TRY(find_limit(cli, &subject->limit_ns, err));
    return CDDP_OK;
}

static void put_line(cd_text *text, const cd_hook_card *card, cd_hook_law law)
{
    const cd_hook_line *line = &card->lines[law];
    bool failed = line->failed_count > 0;
    cd_text_style(text,
                  failed                  ? CD_STYLE_RED
                  : line->case_count == 0 ? CD_STYLE_YELLOW
                                          : CD_STYLE_GREEN,
                  "  %-8s",
                  failed                  ? "FAILED"
                  : line->case_count == 0 ? "without"
                                          : "passed");
    cd_text_printf(text, "%-14s%s (%" PRIu32 " case%s)\n", cd_hook_law_name(law),
                   cd_hook_law_title(law), line->case_count, line->case_count == 1 ? "" : "s");
    if (!failed) return;
    cd_text_push(text, "            ");
    cd_text_wrap(text, line->first, 12, 110);
}

/* It declares that it loses something and never did: what there is to judge has not begun. */
static bool is_untried(const cd_hook_subject *subject, const cd_hook_card *card)
{
    return card->is_exact && (subject->hook->flags & CDDP_HOOK_LOSSY) != 0 &&
           (subject->hook->flags & CDDP_HOOK_EXACT) == 0;
}

static void put_traits(cd_text *text, const cd_hook_subject *subject, const cd_hook_card *card)
{
    uint32_t flags = subject->hook->flags |
                     (subject->inner != NULL ? subject->inner->flags & CDDP_HOOK_STATEFUL : 0);
    cd_text_printf(text, "  %s, %s",
                   is_untried(subject, card)
                       ? "the plain all-reduce bit for bit, although it declares itself lossy"
                   : card->is_exact ? "exact: the plain all-reduce bit for bit"
                   : subject->hook->flags & CDDP_HOOK_ROUNDED_ONCE ? "the exact mean, rounded once"
                                                                   : "lossy",
                   flags & CDDP_HOOK_STATEFUL ? "stateful" : "without saved state");
    if (!card->is_exact)
        cd_text_printf(text, ", off by up to %.2g of the largest mean in one step",
                       card->worst_relative);
    if (card->bytes_factor == 0.0) /* it was not measured */
        cd_text_push(text, "\n");
    else if (!isfinite(card->bytes_factor))
        cd_text_push(text, ", sends nothing\n");
    else if (card->bytes_factor == 1.0)
        cd_text_push(text, ", as many bytes as the plain all-reduce\n");
    else if (card->bytes_factor < 1.0)
        cd_text_printf(text, ", %.2f times the bytes of the plain all-reduce\n",
                       1.0 / card->bytes_factor);
    else
        cd_text_printf(text, ", %.2f times fewer bytes than the plain all-reduce\n",
                       card->bytes_factor);
    for (uint32_t i = 0; i < card->stated_count; i++)
        cd_text_printf(text, "  states: %s (%" PRIu64 " times)\n", card->stated[i].name,
                       card->stated[i].count);
    if (card->judged_count > 0)
        cd_text_printf(text, "  judged by its law and options (%" PRIu64 " comparisons)\n",
                       card->judged_count);
    else
        cd_text_push(text, "  not judged  by a law of its numbers: its table names none "
                           "(CDDP_HOOK_LAW_TOPK and its like in cddp/hook.h)\n");
    if (card->goes_apart)
        cd_text_push(
            text,
            "  lets its ranks go apart, as it says: something else has to average the model\n");
    for (uint32_t ranks = 1, reported = 0; ranks <= CD_TRIAL_RANKS_MAX; ranks++)
        if ((card->skipped & 1u << ranks) != 0)
            cd_text_printf(text, "%s%u", reported++ == 0 ? "  not judged in worlds of " : ", ",
                           ranks);
    if (card->skipped != 0) {
        cd_text_push(text, ": ");
        cd_text_wrap(text, card->skipped_because, 6, 110);
    }
    if (card->not_run[0] != '\0') {
        cd_text_push(text, "  not run   ");
        cd_text_wrap(text, card->not_run, 12, 110);
    }
    for (uint32_t d = 0; d < CDDP_DTYPE_COUNT; d++)
        if (card->refused & CDDP_DTYPE_BIT(d))
            cd_text_printf(text, "  does not take %s\n", cddp_dtype_name((cddp_dtype)d));
    if (card->too_large > 0)
        cd_text_printf(text, "  does not take a bucket of %" PRId64 " elements\n", card->too_large);
}

static void fill_card(cd_card *to, const cd_hook_subject *subject, const cd_hook_card *card)
{
    cd_card_init(to, "hook-conformance", subject->hook->name, false);
    for (int law = 0; law < CD_LAW_COUNT; law++) {
        const cd_hook_line *line = &card->lines[law];
        const bool has_failed = line->failed_count > 0, was_tried = line->case_count > 0;
        cd_card_add_line(to, &(cd_card_line){.state = has_failed  ? CD_CARD_FAILED
                                                      : was_tried ? CD_CARD_PASSED
                                                                  : CD_CARD_SKIPPED,
                                             .name = cd_hook_law_name((cd_hook_law)law),
                                             .title = cd_hook_law_title((cd_hook_law)law),
                                             .message = has_failed  ? line->first
                                                        : was_tried ? ""
                                                                    : "no case is of this law",
                                             .case_count = line->case_count});
    }
    if (is_untried(subject, card))
        cd_card_add_line(to, &(cd_card_line){.state = CD_CARD_OPEN,
                                             .name = "loses",
                                             .title = "what calls itself lossy loses something",
                                             .message = "it never lost anything: --hook-options "
                                                        "may let it begin earlier"});
    if (subject->inner != NULL) cd_card_add_text(to, "inner", subject->inner->name);
    if (subject->options != NULL) cd_card_add_text(to, "options", subject->options);
    cd_card_add_text(to, "exact", card->is_exact ? "yes" : "no");
    cd_card_add_number(to, "largest_relative_error", card->worst_relative);
    cd_card_add_number(to, "times_fewer_bytes", card->bytes_factor);
    cd_card_add_number(to, "comparisons_with_its_law", (double)card->judged_count);
    if (card->not_run[0] != '\0') cd_card_add_text(to, "not_run", card->not_run);
}

static int report(cd_cli *cli, const cd_report_target *target, const cd_hook_subject *subject,
                  const cd_hook_card *card)
{
    uint32_t cases = 0, failed = 0;
    cd_text text;
    cd_report_card_begin(cli, target, &text);
    for (int law = 0; law < CD_LAW_COUNT; law++) {
        cases += card->lines[law].case_count;
        failed += card->lines[law].failed_count > 0;
        put_line(&text, card, (cd_hook_law)law);
    }
    put_traits(&text, subject, card);
    bool good = failed == 0 && card->lines[CD_LAW_RUNS].case_count > 0,
         is_cut = failed == 0 && cd_interrupt_requested(),
         untried = is_cut || (good && is_untried(subject, card));
    cd_text_style(&text,
                  untried ? CD_STYLE_YELLOW
                  : good  ? CD_STYLE_GREEN
                          : CD_STYLE_RED,
                  untried ? "inconclusive"
                  : good  ? "conforms"
                          : "does not conform");
    cd_text_printf(&text, "  hook %s%s%s%s: %" PRIu32 " cases", subject->hook->name,
                   subject->inner != NULL ? " around " : "",
                   subject->inner != NULL ? subject->inner->name : "",
                   subject->options != NULL ? " with options" : "", cases);
    if (failed > 0)
        cd_text_printf(&text, ", %" PRIu32 " law%s broken", failed, failed == 1 ? "" : "s");
    if (card->ended_count > 0)
        cd_text_printf(&text, ", %" PRIu32 " processes did not come to the end", card->ended_count);
    if (cd_interrupt_requested())
        cd_text_push(&text, ", then it was interrupted");
    else if (card->lines[CD_LAW_RUNS].case_count == 0)
        cd_text_push(&text, ", takes no dtype at all");
    if (untried && !is_cut)
        cd_text_push(
            &text, ", none of which saw it lose anything: --hook-options may let it begin earlier");
    cd_text_push(&text, "\n");
    cd_card whole;
    fill_card(&whole, subject, card);
    return cd_report_card_send(cli, target, &whole, &text,
                               untried ? "inconclusive"
                               : good  ? "conforms"
                                       : "does not conform",
                               untried ? CD_EXIT_INCONCLUSIVE
                               : good  ? CD_EXIT_VERIFIED
                                       : CD_EXIT_FINDINGS,
                               NULL);
}

static void pass_on(void *context, const char *bytes, size_t byte_count)
{
    (void)context;
    fwrite(bytes, 1, byte_count, stderr);
}

/* Of the subject's context. */
typedef struct watcher {
    const cd_cli *cli;
    cd_progress progress;
    bool has_begun;
} watcher;

static void show_progress(void *context, size_t done, size_t total, const char *law)
{
    watcher *w = context;
    if (!w->has_begun) cd_progress_begin(&w->progress, w->cli, total);
    w->has_begun = true;
    cd_progress_show(&w->progress, done, law);
}

int cd_command_hook_conformance(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    watcher w = {.cli = cli};
    cd_hook_subject subject = {.output = pass_on,
                               .progress = show_progress,
                               .interrupted = cd_interrupt_requested,
                               .context = &w};
    cd_hook_card card;
    cd_report_target target;
    cddp_status status = cd_report_target_read(cli->args, &target, &err);
    if (status == CDDP_OK) status = cd_report_target_check(&target, &err);
    if (status == CDDP_OK) status = find_subject(cli, &subject, &err);
    if (status == CDDP_OK) cd_interrupt_begin();
    if (status == CDDP_OK) status = cd_hook_battery_run(&subject, &card, &err);
    if (status == CDDP_E_ABORTED && cd_interrupt_requested()) status = CDDP_OK;
    cd_progress_end(&w.progress);
    return status == CDDP_OK ? report(cli, &target, &subject, &card) : cd_cli_fail(cli, &err);
}
