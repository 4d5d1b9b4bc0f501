/* SPDX-License-Identifier: Apache-2.0 */
/* Real numbers as text, with a point whatever the locale of the host program is: "2.5" in an option
** is read alike before and after setlocale.
**
** Threads    the host sets its locale while no call into the library is under way.
*/
#pragma once
#include <stddef.h>

/* As strtod in the "C" locale; *end is `text` when there is no number. end may be NULL. */
double cd_real_parse(const char *text, char **end);
/* "%.*g" in the "C" locale. */
void cd_real_print(double number, int precision, char *text, size_t text_bytes);
