/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a trace store: one sentence, or a store whose events can be read to their end. */
#define _POSIX_C_SOURCE 200809L
#include "cddp/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);

static void take_event(void *self, const cddp_event *event)
{
    uint64_t *sum = self;
    const cddp_event_info *info = cddp_event_describe(event->kind);
    if (info == NULL) abort();
    for (uint32_t i = 0; i < info->field_count; i++) *sum += (uint64_t)event->as.field[i];
    if (event->text != NULL) *sum += strlen(event->text);
}

static cddp_status take_finding(void *context, const cddp_finding *finding, cddp_error *err)
{
    (void)err;
    *(uint64_t *)context += strlen(finding->title) + strlen(finding->check);
    return CDDP_OK;
}

static cddp_status take_pair(void *context, const char *name, const char *text, cddp_error *err)
{
    (void)err;
    *(uint64_t *)context += strlen(name) + strlen(text);
    return CDDP_OK;
}

typedef struct reading {
    cddp_store *store;
    uint64_t sum;
} reading;

static cddp_status take_run(void *context, const cddp_stored_run *run, cddp_error *err)
{
    reading *r = context;
    cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &r->sum, take_event, NULL};
    r->sum += strlen(run->provenance.scenario) + strlen(run->provenance.schedule) + strlen(run->outcome.verdict);
    (void)cddp_store_each_event(r->store, run->run, CDDP_STORE_RECORDED, &sink, err);
    (void)cddp_store_each_event(r->store, run->run, CDDP_STORE_MERGED, &sink, err);
    (void)cddp_store_each_finding(r->store, run->run, take_finding, &r->sum, err);
    (void)cddp_store_each_exercised(r->store, run->run, take_pair, &r->sum, err);
    return CDDP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/cddp-fuzz-%ld.db", (long)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) return 0;
    ssize_t written = write(fd, bytes, byte_count);
    close(fd);
    reading r = {0};
    cddp_error err = CDDP_ERROR_INIT;
    if (written == (ssize_t)byte_count) {
        if (cddp_store_open(path, CDDP_STORE_READ, NULL, &r.store, &err) == CDDP_OK) (void)cddp_store_each_run(r.store, 0, take_run, &r, &err);
        else if (err.message[0] == '\0') abort();
        cddp_store_close(r.store);
    }
    unlink(path);
    return 0;
}
