/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/value.h"

#include <string.h>

cd_value *cd_value_push(cd_arena *arena, cd_value_kind kind)
{
    cd_value *v = cd_arena_array(arena, 1, sizeof *v);
    if (v != NULL) v->kind = kind;
    return v;
}

cd_value *cd_value_push_text(cd_arena *arena, const char *bytes, size_t byte_count)
{
    cd_value *v = cd_value_push(arena, CD_VALUE_TEXT);
    char *text = cd_arena_array(arena, byte_count + 1, 1);
    if (v == NULL || text == NULL) return NULL;
    if (byte_count > 0) memcpy(text, bytes, byte_count);
    v->text = text;
    return v;
}

bool cd_value_add(cd_arena *arena, cd_value *container, cd_value *item)
{
    if (!cd_arena_grow(arena, (void **)&container->items, &container->capacity,
                       container->count + 1, sizeof(cd_value *)))
        return false;
    container->items[container->count++] = item;
    return true;
}

const cd_value *cd_value_find(const cd_value *map, const char *key)
{
    if (map == NULL || map->kind != CD_VALUE_MAP) return NULL;
    for (size_t i = 0; i + 1 < map->count; i += 2)
        if (map->items[i]->kind == CD_VALUE_TEXT && strcmp(map->items[i]->text, key) == 0)
            return map->items[i + 1];
    return NULL;
}

const cd_value *cd_value_get(const cd_value *list, size_t index)
{
    return index < cd_value_count(list) ? list->items[index] : NULL;
}

size_t cd_value_count(const cd_value *list)
{
    return list != NULL && list->kind == CD_VALUE_LIST ? list->count : 0;
}

int64_t cd_value_number(const cd_value *v, int64_t otherwise)
{
    if (v == NULL) return otherwise;
    if (v->kind == CD_VALUE_REAL && v->real > -9e18 && v->real < 9e18) return (int64_t)v->real;
    return v->kind == CD_VALUE_NUMBER ? v->number : otherwise;
}

const char *cd_value_text(const cd_value *v, const char *otherwise)
{
    return v != NULL && v->kind == CD_VALUE_TEXT ? v->text : otherwise;
}
