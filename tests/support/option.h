/* SPDX-License-Identifier: Apache-2.0 */
/* Settings for traces that are written by hand. */
#pragma once
#include "core/trace/setting.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CD_TEST_OPTIONS_MAX 8

/* The events with which a rank reports "path=value", items of a list separated by commas. Their
** texts lie in storage. */
typedef struct cd_test_options {
    cddp_event events[CD_TEST_OPTIONS_MAX]; /* (count) without place and time */
    size_t count;
    char storage[256];
} cd_test_options;

static inline cddp_key cd_test_key(const char *assignment)
{
    const size_t length = strcspn(assignment, "=");
    for (int key = 0; key < CDDP_KEY_COUNT; key++) {
        const char *path = cd_setting_path((cddp_key)key);
        if (strlen(path) == length && memcmp(path, assignment, length) == 0) return (cddp_key)key;
    }
    abort();
}

static inline void cd_test_options_init(cd_test_options *o, const char *assignment)
{
    const cddp_key key = cd_test_key(assignment);
    const cddp_key_type type = cd_setting_type(key);
    const bool is_list = type == CDDP_KEY_TEXTS || type == CDDP_KEY_NUMBERS;
    const bool has_text =
        type == CDDP_KEY_TEXT || type == CDDP_KEY_TEXTS || type == CDDP_KEY_CHOICE;
    const char *value = strchr(assignment, '=') + 1;
    *o = (cd_test_options){0};
    strncpy(o->storage, value, sizeof o->storage - 1);
    for (char *at = o->storage; o->count == 0 || *at != '\0';) {
        cddp_event *e = &o->events[o->count];
        const size_t length = is_list ? strcspn(at, ",") : strlen(at);
        const bool is_last = at[length] == '\0';
        at[length] = '\0';
        *e = (cddp_event){.kind = CDDP_EV_option, .text = has_text ? at : NULL};
        e->as.option = (cddp_event_option){.key = cd_setting_id(key), .item = (int64_t)o->count++};
        if (type == CDDP_KEY_FLAG) e->as.option.value = strcmp(at, "true") == 0;
        if (type == CDDP_KEY_UNSIGNED) e->as.option.value = strtoll(at, NULL, 10);
        if (type == CDDP_KEY_CHOICE) e->as.option.value = cd_setting_find_word(key, at);
        if (type == CDDP_KEY_NUMBER || type == CDDP_KEY_NUMBERS)
            e->as.option.real = cd_f64_bits(strtod(at, NULL));
        at += length + !is_last;
    }
    for (size_t i = 0; i < o->count; i++)
        o->events[i].as.option.items = is_list && value[0] == '\0' ? 0 : (int64_t)o->count;
}
