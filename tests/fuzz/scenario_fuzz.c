/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a scenario file: a plan, or mistakes with places inside the text; never anything else. */
#include "scenarios/reader/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);

typedef struct places {
    uint32_t lines, complaints;
} places;

static void check_place(void *context, const cd_complaint *complaint)
{
    places *p = context;
    char text[512];
    p->complaints++;
    if (complaint->message == NULL || complaint->line > p->lines + 1) abort();
    (void)cd_complaint_print(complaint, text, sizeof text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    char *text = malloc(byte_count + 1);
    if (text == NULL) return 0;
    places p = {1, 0};
    memcpy(text, bytes, byte_count);
    text[byte_count] = '\0';
    for (const char *c = text; *c != '\0'; c++) p.lines += *c == '\n';
    cd_reader_options options = {.complain = check_place, .context = &p};
    cddp_plan *plan = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_status status = cd_reader_read_text(&options, "fuzz.toml", text, &plan, &err);
    if ((status == CDDP_OK) != (plan != NULL)) abort();
    if (status == CDDP_OK) {
        (void)cddp_plan_digest(plan);
        cddp_status checked = cddp_plan_check(plan, &err);
        if (checked != CDDP_OK && err.message[0] == '\0') abort();
    } else if (err.message[0] == '\0' || (status == CDDP_E_CONFIG && p.complaints == 0)) {
        abort();
    }
    cddp_plan_destroy(plan);
    free(text);
    return 0;
}
