/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a scenario file: the result is a plan, or every mistake of the file at once.
**
** Ownership  returns owned plans; the text is copied into them for provenance.
** Errors     CDDP_E_IO when the file cannot be read; otherwise CDDP_E_CONFIG with the number of
**            mistakes. `complain` gets each mistake with its place.
*/
#pragma once
#include "core/plan/plan.h"

typedef struct cd_complaint {
    const char *file;
    uint32_t line, column; /* 1-based; 0: the file as a whole */
    /* "unknown key 'find_unused' in [ddp]; did you mean 'find_unused_parameters'?" */
    const char *message;
    const char *source_line; /* the offending line without its end, or NULL */
} cd_complaint;

typedef struct cd_reader_options {
    const cddp_allocator *allocator;
    /* does: receives one mistake; texts are borrowed for the call. May be NULL. Called in the
    ** order of the file. */
    void (*complain)(void *context, const cd_complaint *complaint);
    void *context;
    /* (set_count) "key=value" of the command line, applied over the file */
    const char *const *sets;
    size_t set_count;
    /* (optional) called when: the plan has no contradiction, and no error is expected. does:
    ** reports other mistakes of the plan, as cd_plan_find_contradictions does. */
    size_t (*examine)(void *context, const cddp_plan *plan, cd_contradiction_fn report,
                      void *report_context);
} cd_reader_options;

cddp_status cd_reader_read_file(const cd_reader_options *options, const char *path,
                                cddp_plan **plan, cddp_error *err);
/* name is used for the file in messages. */
cddp_status cd_reader_read_text(const cd_reader_options *options, const char *name,
                                const char *text, cddp_plan **plan, cddp_error *err);

/* "file:3:7: message\n    find_unused = true\n    ^\n"; always terminated. Returns the length it
** wanted. */
size_t cd_complaint_print(const cd_complaint *complaint, char *text, size_t text_bytes);
