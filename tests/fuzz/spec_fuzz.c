/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as the name of a composed backend: read, or refused with a character that lies in the
** text or just behind it. */
#include "cddp/composition.h"
#include "cddp/self.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);

static cddp_status find_self(void *context, const char *name, const cddp_backend **backend,
                             cddp_error *err)
{
    (void)context;
    (void)name;
    (void)err;
    *backend = cddp_backend_self();
    return CDDP_OK;
}

static cddp_status visit(void *context, const char *name, cddp_error *err)
{
    (void)context;
    (void)err;
    if (strpbrk(name, ":,") != NULL || name[0] == '\0') abort();
    return CDDP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_composition *composition = NULL;
    char *text = calloc(byte_count + 1, 1);
    if (text == NULL) return 0;
    if (byte_count > 0) memcpy(text, bytes, byte_count);
    const cddp_composition_options options = {.size = sizeof options,
                                              .spec = text,
                                              .find = find_self};
    cddp_status looked = cddp_composition_each(text, visit, NULL, &err);
    if (looked != CDDP_OK && err.message[0] == '\0') abort();
    cddp_status opened = cddp_composition_open(&options, &composition, &err);
    if (opened == CDDP_OK &&
        (looked != CDDP_OK || strcmp(cddp_composition_backend(composition)->name,
                                     cddp_composition_is_named(text) ? text : "self") != 0))
        abort();
    if (looked == CDDP_OK && opened != CDDP_OK) abort(); /* self can serve every kind */
    cddp_composition_close(composition);
    free(text);
    return 0;
}
