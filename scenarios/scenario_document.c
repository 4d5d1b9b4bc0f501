/* SPDX-License-Identifier: Apache-2.0 */
/* Prints docs/formats/scenario.md from the key table. A test compares it with the page in the
** tree. */
#include "core/plan/keys.h"

#include <stdio.h>

static void write_text(void *context, const char *text) { fputs(text, context); }

int main(void)
{
    cd_keys_print_document(write_text, stdout);
    return ferror(stdout) ? 1 : 0;
}
