/* SPDX-License-Identifier: Apache-2.0 */
/* Events as log lines. A component is the part of the program that an event tells about; its level
** says who cares: error and warn for what went wrong, info for what happens once a step, debug for
** what happens per gradient. */
#include "cli/log_sink.h"

#include "core/base/error.h"
#include "core/trace/event.h"

#include <stdio.h>
#include <string.h>

enum { RUN, DDP, COMM, HOOK, TRAIN, ORACLE, SIM, MEMORY };
static const char *const components[CD_LOG_COMPONENT_COUNT] = {"run",   "ddp",    "comm", "hook",
                                                               "train", "oracle", "sim",  "memory"};

/* Kinds without a row are debug lines of the run. */
static const struct {
    uint8_t kind, component, level;
} rows[] = {
    {CDDP_EV_run_begin, RUN, CD_LOG_INFO},
    {CDDP_EV_run_end, RUN, CD_LOG_INFO},
    {CDDP_EV_rank_begin, RUN, CD_LOG_INFO},
    {CDDP_EV_rank_end, RUN, CD_LOG_INFO},
    {CDDP_EV_mark, RUN, CD_LOG_INFO},
    {CDDP_EV_error, RUN, CD_LOG_ERROR},
    {CDDP_EV_wrap, DDP, CD_LOG_INFO},
    {CDDP_EV_rebuild, DDP, CD_LOG_INFO},
    {CDDP_EV_bucket_layout, DDP, CD_LOG_DEBUG},
    {CDDP_EV_forward_begin, DDP, CD_LOG_INFO},
    {CDDP_EV_forward_end, DDP, CD_LOG_DEBUG},
    {CDDP_EV_backward_begin, DDP, CD_LOG_DEBUG},
    {CDDP_EV_backward_end, DDP, CD_LOG_INFO},
    {CDDP_EV_grad_local, DDP, CD_LOG_DEBUG},
    {CDDP_EV_mark_ready, DDP, CD_LOG_DEBUG},
    {CDDP_EV_unsynced_grad, DDP, CD_LOG_WARN},
    {CDDP_EV_bucket_launch, DDP, CD_LOG_DEBUG},
    {CDDP_EV_bucket_skip, DDP, CD_LOG_DEBUG},
    {CDDP_EV_bucket_done, DDP, CD_LOG_DEBUG},
    {CDDP_EV_used_local, DDP, CD_LOG_DEBUG},
    {CDDP_EV_used_global, DDP, CD_LOG_DEBUG},
    {CDDP_EV_grad_final, DDP, CD_LOG_DEBUG},
    {CDDP_EV_no_sync, DDP, CD_LOG_DEBUG},
    {CDDP_EV_buffer_sync, DDP, CD_LOG_DEBUG},
    {CDDP_EV_join_notify, DDP, CD_LOG_DEBUG},
    {CDDP_EV_join_end, DDP, CD_LOG_INFO},
    {CDDP_EV_hook_call, HOOK, CD_LOG_DEBUG},
    {CDDP_EV_hook_done, HOOK, CD_LOG_DEBUG},
    {CDDP_EV_hook_law, HOOK, CD_LOG_DEBUG},
    {CDDP_EV_group, COMM, CD_LOG_INFO},
    {CDDP_EV_group_close, COMM, CD_LOG_INFO},
    {CDDP_EV_collective_post, COMM, CD_LOG_DEBUG},
    {CDDP_EV_collective_done, COMM, CD_LOG_DEBUG},
    {CDDP_EV_collective_wait, COMM, CD_LOG_DEBUG},
    {CDDP_EV_waiting_for, COMM, CD_LOG_WARN},
    {CDDP_EV_group_abort, COMM, CD_LOG_WARN},
    {CDDP_EV_store_key, COMM, CD_LOG_DEBUG},
    {CDDP_EV_store_wait, COMM, CD_LOG_DEBUG},
    {CDDP_EV_store_done, COMM, CD_LOG_INFO},
    {CDDP_EV_memory, MEMORY, CD_LOG_DEBUG},
    {CDDP_EV_touch, MEMORY, CD_LOG_DEBUG},
    {CDDP_EV_order, MEMORY, CD_LOG_DEBUG},
    {CDDP_EV_optimizer_step, TRAIN, CD_LOG_INFO},
    {CDDP_EV_optimizer_touch, TRAIN, CD_LOG_DEBUG},
    {CDDP_EV_checkpoint, TRAIN, CD_LOG_INFO},
    {CDDP_EV_stop, TRAIN, CD_LOG_DEBUG},
    {CDDP_EV_samples, TRAIN, CD_LOG_DEBUG},
    {CDDP_EV_compare, ORACLE, CD_LOG_DEBUG},
    {CDDP_EV_uncompared, ORACLE, CD_LOG_DEBUG},
    {CDDP_EV_unjudged, ORACLE, CD_LOG_DEBUG},
    {CDDP_EV_owed, ORACLE, CD_LOG_DEBUG},
    {CDDP_EV_contribution, ORACLE, CD_LOG_DEBUG},
    {CDDP_EV_choice, SIM, CD_LOG_DEBUG},
    {CDDP_EV_fault, SIM, CD_LOG_WARN},
    {CDDP_EV_message, SIM, CD_LOG_DEBUG},
    {CDDP_EV_compute, SIM, CD_LOG_DEBUG},
};

static void write_line(void *context, const char *line, size_t length)
{
    (void)context;
    fwrite(line, 1, length, stderr);
}

static void log_event(void *self, const cddp_event *event)
{
    char text[1024];
    cd_log_sink *l = self;
    size_t i = 0;
    while (i < sizeof rows / sizeof rows[0] && rows[i].kind != event->kind) i++;
    bool known = i < sizeof rows / sizeof rows[0];
    const cd_log *log = &l->logs[known ? rows[i].component : RUN];
    cd_log_level level = known ? (cd_log_level)rows[i].level : CD_LOG_DEBUG;
    if (level > log->level) return;
    cd_event_print(event, text, sizeof text);
    cd_log_place place = {event->time_ns, event->rank == UINT32_MAX ? -1 : (int64_t)event->rank,
                          event->step};
    /* Rank and step stand in their own columns. */
    const char *words = strstr(text, cddp_event_describe(event->kind)->name);
    cd_log_write(log, level, place, "%s", words != NULL ? words : text);
}

static bool is_component(const char *name, size_t length)
{
    for (size_t i = 0; i < CD_LOG_COMPONENT_COUNT; i++)
        if (strlen(components[i]) == length && memcmp(components[i], name, length) == 0)
            return true;
    return false;
}

cddp_status cd_log_sink_init(cd_log_sink *log, const char *spec, cddp_error *err)
{
    *log = (cd_log_sink){.sink = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, log, log_event, NULL}};
    for (const char *at = spec; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        size_t length = strcspn(at, ",");
        const char *colon = memchr(at, ':', length);
        if (colon != NULL && !is_component(at, (size_t)(colon - at)))
            return cd_fail(err, CDDP_E_ARG,
                           "--log: there is no component '%.*s'; there are run, ddp, comm, hook, "
                           "train, oracle, sim and memory",
                           (int)(colon - at), at);
    }
    for (size_t i = 0; i < CD_LOG_COMPONENT_COUNT; i++) {
        cd_log_level level = CD_LOG_ERROR;
        if (!cd_log_parse(spec, components[i], &level))
            return cd_fail(
                err, CDDP_E_ARG,
                "--log: '%.60s' is not COMPONENT:LEVEL,...; levels are error, warn, info and debug",
                spec);
        log->logs[i] = (cd_log){.write = write_line, .level = level, .component = components[i]};
    }
    return CDDP_OK;
}
