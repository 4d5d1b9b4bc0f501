/* SPDX-License-Identifier: Apache-2.0 */
/* lift: the scenario that does what a recorded program did. */
#include "cli/command.h"
#include "cli/lift_wrappers.h"
#include "cli/sources.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/output.h"
#include "core/trace/models.h"
#include "verify/lift/lift.h"

#include <stdio.h>
#include <string.h>

static void take_event(void *self, const cddp_event *event) { cd_lift_push(self, event); }

/* Beside the shards, in the folder that was named. */
static void find_gradients(const cd_args *args, cd_lift *lift)
{
    const char *path = cd_arena_printf(&lift->arena, "%s/rank.0.gradients", args->operands[0]);
    if (args->operand_count == 1 && path != NULL && !cd_os_is_absent(path))
        lift->gradients = args->operands[0];
}

static void push_model(void *self, const cddp_event *event) { cd_models_push(self, event); }

/* Of several wrapped modules the first one trains; the collectives of the others are as any that
** the program posts. */
static cddp_status replay_first(const cd_source *source, cd_lift *lift, cddp_error *err)
{
    const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, lift, take_event, NULL};
    cd_models models;
    const cddp_trace_sink one = {sizeof one, CDDP_TRACE_ABI, &models, push_model, NULL};
    CD_TRY(cd_models_init(&models, source->world_size, NULL, err));
    cd_models_begin(&models, 0, &sink);
    const cddp_status status = cd_source_replay(source, &one, err);
    if (models.count > 1) lift->wrapper_count = (size_t)models.count;
    cd_models_fini(&models);
    return CD_PASS(status);
}

static cddp_status read_run(const cd_args *args, cd_source *source, cd_lift *lift, cddp_error *err)
{
    if (args->operand_count == 0)
        return cd_fail(err, CDDP_E_ARG, "lift what? name a recorded run: run.db, or its shards");
    uint64_t stall_ns = 0;
    CD_TRY(cd_args_time(args, CD_OPTION_stall, &stall_ns, err));
    CD_TRY(cd_source_open(source, (const char *const *)args->operands, args->operand_count, err));
    if (stall_ns != 0 && source->shards == NULL)
        return cd_fail(err, CDDP_E_ARG,
                       "--stall goes with shards: of a store it was decided when they were stored");
    if (stall_ns != 0) cd_shards_set_stall(source->shards, stall_ns);
    CD_TRY(cd_lift_init(lift, source->world_size, source->program, NULL, err));
    find_gradients(args, lift);
    CD_TRY(cd_source_number_steps(source, err));
    if (source->steps != NULL) {
        lift->gradients = NULL; /* they are found by the numbers that were recorded */
        cd_lift_note(lift,
                     cd_arena_printf(&lift->arena,
                                     "steps are numbered from 0 on: the first one that was "
                                     "recorded is %u, the last one %u",
                                     source->steps[0], source->steps[source->step_count - 1]));
    }
    return CD_PASS(replay_first(source, lift, err));
}

/* Several wrappers become as many, or, where no scenario has them together, the first one. notes:
** of several. */
static cddp_status lift_any(const cd_args *args, cd_source *source, cd_lift *lift, cd_text *toml,
                            cd_text *notes, cddp_error *err)
{
    size_t count = 1;
    cddp_error why = CDDP_ERROR_INIT;
    CD_TRY(read_run(args, source, lift, err));
    CD_TRY(cd_lift_count_wrappers(source, &count, err));
    if (count == 1) return CD_PASS(cd_lift_write(lift, toml, err));
    const cddp_status status = cd_lift_wrappers(source, count, toml, notes, &why);
    if (status != CDDP_E_UNSUPPORTED) {
        if (err != NULL) *err = why;
        return status;
    }
    cd_text_fini(notes);
    cd_text_init(notes, false);
    lift->why_apart = cd_arena_strdup(&lift->arena, why.message);
    return CD_PASS(cd_lift_write(lift, toml, err));
}

static cddp_status lift_run(const cd_args *args, cd_source *source, cd_lift *lift, cd_text *toml,
                            cd_text *notes, cddp_error *err)
{
    const char *path = cd_args_text(args, CD_OPTION_output, NULL);
    if (path != NULL) CD_TRY(cd_output_check(path, err));
    CD_TRY(lift_any(args, source, lift, toml, notes, err));
    return path != NULL ? CD_PASS(cd_output_write(path, toml, err)) : CDDP_OK;
}

/* The notes are in the file as comments; whoever lifts sees them at once. */
static int report(cd_cli *cli, const cd_lift *lift, const cd_text *toml, const cd_text *notes)
{
    const char *path = cd_args_text(cli->args, CD_OPTION_output, NULL);
    for (const char *at = cd_text_get(notes); *at != '\0';) {
        const int length = (int)strcspn(at, "\n");
        fprintf(stderr, "cddp-verify: not expressed: %.*s\n", length, at);
        at += length + (at[length] == '\n');
    }
    for (size_t i = 0; i < lift->note_count; i++)
        fprintf(stderr, "cddp-verify: not expressed: %s\n", lift->notes[i]);
    if (path == NULL) return cd_cli_write(cli, toml, CD_EXIT_VERIFIED);
    cd_text text;
    cd_text_init(&text, cli->color_out);
    cd_text_style(&text, CD_STYLE_GREEN, "written");
    cd_text_printf(&text, ": %s; next: cddp-verify run %s\n", path, path);
    const int exit_code = cd_cli_write(cli, &text, CD_EXIT_VERIFIED);
    cd_text_fini(&text);
    return exit_code;
}

int cd_command_lift(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_source source = {.program = ""};
    cd_lift lift = {.rank_count = 0};
    cd_text toml, notes;
    cd_text_init(&toml, false);
    cd_text_init(&notes, false);
    const cddp_status status = lift_run(cli->args, &source, &lift, &toml, &notes, &err);
    const int exit_code =
        status == CDDP_OK ? report(cli, &lift, &toml, &notes) : cd_cli_fail(cli, &err);
    cd_text_fini(&notes);
    cd_lift_fini(&lift);
    cd_text_fini(&toml);
    cd_source_close(&source);
    return exit_code;
}
