/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/lists.h"

#include "core/base/pattern.h"

#include <string.h>

#define LIST_BYTES 192
#define WHOLE_MAX 190 /* a value of this many bytes may have been cut where it was told */

static const char *const keys[CD_LIST_COUNT] = {
    [CD_LIST_IGNORED] = "model.ignore=", [CD_LIST_DELAYED] = "ddp.delay_all_reduce_named_params="};

typedef struct reported {
    bool is_whole[CD_LIST_COUNT];
    char text[CD_LIST_COUNT][LIST_BYTES]; /* "a.*,b" */
} reported;

void cd_lists_init(cd_lists *lists, const cddp_allocator *allocator)
{
    cd_ranks_init(&lists->ranks, allocator, sizeof(reported));
}
void cd_lists_fini(cd_lists *lists) { cd_ranks_fini(&lists->ranks); }

void cd_lists_learn(cd_lists *lists, const cddp_event *event)
{
    if (event->kind != CDDP_EV_option || event->text == NULL) return;
    for (size_t i = 0; i < CD_LIST_COUNT; i++) {
        if (strncmp(event->text, keys[i], strlen(keys[i])) != 0) continue;
        const char *value = event->text + strlen(keys[i]);
        reported *t = cd_ranks_add(&lists->ranks, event->rank);
        if (t == NULL) return;
        t->is_whole[i] = strlen(value) < WHOLE_MAX;
        if (t->is_whole[i]) memcpy(t->text[i], value, strlen(value) + 1);
    }
}

cd_listed cd_lists_find(const cd_lists *lists, uint32_t rank, cd_list which, const char *name)
{
    const reported *t = cd_ranks_find(&lists->ranks, rank);
    if (t == NULL || !t->is_whole[which]) return CD_LIST_UNKNOWN;
    for (const char *at = t->text[which]; *at != '\0';) {
        char pattern[LIST_BYTES];
        size_t bytes = strcspn(at, ",");
        memcpy(pattern, at, bytes);
        pattern[bytes] = '\0';
        if (cd_pattern_matches(pattern, name)) return CD_LISTED;
        at += bytes + (at[bytes] == ',');
    }
    return CD_NOT_LISTED;
}
