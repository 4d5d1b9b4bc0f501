/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/lists.h"

#include "core/base/pattern.h"
#include "core/trace/setting.h"

cd_listed cd_lists_find(const cd_writer *writer, uint32_t rank, cddp_key list, const char *name)
{
    const cddp_facts *facts = writer->context.facts;
    const char *path = cd_setting_path(list);
    cddp_fact_setting item;
    if (!facts->setting(facts->self, rank, path, 0, &item)) return CD_LIST_UNKNOWN;
    const int64_t items = item.items;
    for (int64_t i = 0; i < items; i++) {
        if (!facts->setting(facts->self, rank, path, i, &item)) return CD_LIST_UNKNOWN;
        if (item.text != NULL && cd_pattern_matches(item.text, name)) return CD_LISTED;
    }
    return CD_NOT_LISTED;
}
