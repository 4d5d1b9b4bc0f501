/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as `option` events have them: a key of cddp/keys.def is named by the digest of its path,
** so a trace that was stored before a key was added reads right. */
#pragma once
#include "cddp/keys.h"
#include "core/trace/tracer.h"

const char *cd_setting_path(cddp_key key); /* "ddp.static_graph" */
int64_t cd_setting_id(cddp_key key);
int32_t cd_setting_find(int64_t id); /* the cddp_key; -1 when this version has none */
cddp_key_type cd_setting_type(cddp_key key);
/* The position of a word among the choices of a key; -1 when it is none of them. */
int64_t cd_setting_find_word(cddp_key key, const char *word);

/* One value of a key; a list has `items` of them, and one event with items 0 when it is empty. */
typedef struct cd_setting {
    cddp_key key;
    int64_t item, items;
    int64_t value;    /* of a flag or a whole number */
    double real;      /* of a number */
    const char *text; /* of a text, a choice or an item of a list of texts; NULL */
} cd_setting;
void cd_setting_emit(struct cddp_tracer *tracer, const cd_setting *setting);
