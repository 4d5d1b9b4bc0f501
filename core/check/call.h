/* SPDX-License-Identifier: Apache-2.0 */
/* In which function of a comm hook a rank ended, as its world said it in the text of rank_end. */
#pragma once
#include <stddef.h>

/* From "… in save of hook topk: …" it takes "save of hook topk"; of the function run, whose events
** say more, "hook topk". "": the text names none. */
void cd_call_take(const char *text, char *call, size_t call_bytes);
