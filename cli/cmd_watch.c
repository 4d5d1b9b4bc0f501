/* SPDX-License-Identifier: Apache-2.0 */
/* watch: a job while it runs, page by page. */
#include "cli/command.h"
#include "cli/follow.h"
#include "cli/interrupt.h"
#include "core/base/error.h"
#include "core/base/os.h"

#define SLICE_NS UINT64_C(50000000) /* between two looks at Ctrl-C */

typedef struct watch_command {
    cd_cli *cli;
    cd_follow *follow;
    cd_watch_page page;
    uint64_t interval_ns;
    bool is_once, is_json;
    int exit_code; /* of the last page */
} watch_command;

static cddp_status read_arguments(watch_command *c, cddp_error *err)
{
    static const char *const formats[] = {"text", "json", NULL};
    const cd_args *args = c->cli->args;
    int format = 0;
    if (args->operand_count == 0)
        return cd_fail(err, CDDP_E_ARG, "watch what? name a store, or the shards of a job");
    CD_TRY(cd_args_choice(args, CD_OPTION_format, formats, &format, err));
    CD_TRY(cd_args_time(args, CD_OPTION_interval, &c->interval_ns, err));
    CD_TRY(cd_args_time(args, CD_OPTION_stall, &c->page.stall_ns, err));
    c->is_json = format == 1;
    c->is_once = cd_args_has(args, CD_OPTION_once);
    c->page.source = args->operands[0];
    return CDDP_OK;
}

/* On a terminal a page replaces the one before; else an empty line parts them. */
static void show(watch_command *c, const cd_watch *watch, bool is_first)
{
    cd_text text;
    cd_text_init(&text, c->cli->color_out && !c->is_json);
    if (!c->is_once && c->cli->color_out && !c->is_json)
        cd_text_push(&text, "\033[H\033[2J");
    else if (!is_first)
        cd_text_push(&text, "\n");
    c->page.program = cd_follow_program(c->follow);
    (c->is_json ? cd_watch_print_json : cd_watch_print)(watch, &c->page, &text);
    const bool is_wrong = cd_watch_is_stalled(watch, &c->page) || cd_watch_is_dead(watch);
    c->exit_code = is_wrong ? CD_EXIT_FINDINGS : CD_EXIT_VERIFIED;
    c->exit_code = cd_cli_write(c->cli, &text, c->exit_code);
    cd_text_fini(&text);
}

static void rest(uint64_t duration_ns)
{
    const uint64_t end_ns = cd_os_now_ns() + duration_ns;
    for (uint64_t now_ns = cd_os_now_ns(); now_ns < end_ns && !cd_interrupt_requested();
         now_ns = cd_os_now_ns())
        cd_os_sleep_ns(end_ns - now_ns < SLICE_NS ? end_ns - now_ns : SLICE_NS);
}

static cddp_status watch(watch_command *c, cddp_error *err)
{
    const cd_watch *seen = NULL;
    CD_TRY(cd_follow_open((const char *const *)c->cli->args->operands, c->cli->args->operand_count,
                          &c->follow, err));
    for (bool is_first = true;; is_first = false) {
        const uint64_t began_ns = cd_os_now_ns();
        CD_TRY(cd_follow_read(c->follow, &seen, err));
        show(c, seen, is_first);
        /* whoever read the pages has gone, or nobody can */
        if (ferror(stdout) != 0) return CDDP_OK;
        if (c->is_once || cd_watch_is_over(seen) || cd_interrupt_requested()) return CDDP_OK;
        /* reading takes at most half of the time */
        const uint64_t took_ns = cd_os_now_ns() - began_ns;
        rest(took_ns > c->interval_ns / 2 ? took_ns : c->interval_ns - took_ns);
        if (cd_interrupt_requested()) return CDDP_OK;
    }
}

int cd_command_watch(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    watch_command c = {.cli = cli,
                       .interval_ns = UINT64_C(1000000000),
                       .page.stall_ns = UINT64_C(30000000000)};
    cddp_status status = read_arguments(&c, &err);
    cd_interrupt_begin();
    if (status == CDDP_OK) status = watch(&c, &err);
    cd_follow_close(c.follow);
    if (status != CDDP_OK) return cd_cli_fail(cli, &err);
    return c.exit_code;
}
