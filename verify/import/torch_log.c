/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/torch_log.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define BEGIN "Detected mismatch between collectives on ranks. Rank "
#define OTHER "but Rank "
#define MESSAGE_BYTES_MAX 4096
#define RANK_MAX 65535u

bool cd_torch_log_is_one(const char *text) { return strstr(text, BEGIN) != NULL; }

/* Where words begin between two places; NULL: not there. */
static const char *find(const char *at, const char *end, const char *words)
{
    const char *found = strstr(at, words);
    return found != NULL && found < end ? found : NULL;
}

static void put(cd_torch_log *log, cd_value *map, const char *key, cd_value *value)
{
    cd_value *name = cd_value_push_text(log->arena, key, strlen(key));
    if (name != NULL && value != NULL && cd_value_add(log->arena, map, name))
        (void)cd_value_add(log->arena, map, value);
}

static cd_value *number(cd_torch_log *log, int64_t n)
{
    cd_value *value = cd_value_push(log->arena, CD_VALUE_NUMBER);
    if (value != NULL) value->number = n;
    return value;
}

static cd_value *list_of(cd_torch_log *log, cd_value *item)
{
    cd_value *list = cd_value_push(log->arena, CD_VALUE_LIST);
    if (list != NULL && item != NULL) (void)cd_value_add(log->arena, list, item);
    return list;
}

/* OpType=_ALLGATHER_BASE; before PyTorch 1.13 the other side is the word alone. */
static cd_value *read_name(cd_torch_log *log, const char *at, const char *end)
{
    static const char field[] = "OpType=", words[] = "collective: ";
    char name[48];
    size_t length = 0;
    const char *found = find(at, end, field);
    const char *c = found != NULL ? found + sizeof field - 1 : find(at, end, words);
    if (found == NULL && c != NULL) c += sizeof words - 1;
    for (; c != NULL && c < end && (isupper((unsigned char)*c) || *c == '_'); c++)
        if (length < sizeof name) name[length++] = (char)tolower((unsigned char)*c);
    return length > 0 ? cd_value_push_text(log->arena, name, length) : NULL;
}

static cd_value *read_shape(cd_torch_log *log, const char *at, const char *end)
{
    static const char field[] = "TensorShape=[";
    const char *found = find(at, end, field);
    cd_value *shape = found != NULL ? cd_value_push(log->arena, CD_VALUE_LIST) : NULL;
    for (const char *c = found + (shape != NULL ? sizeof field - 1 : 0);
         shape != NULL && c < end && *c != ']';) {
        char *after = NULL;
        const int64_t size = isdigit((unsigned char)*c) ? strtoll(c, &after, 10) : 0;
        if (after != NULL) (void)cd_value_add(log->arena, shape, number(log, size));
        c = after != NULL ? after : c + 1;
    }
    return shape;
}

static cd_value *read_dtype(cd_torch_log *log, const char *at, const char *end)
{
    static const char field[] = "TensorDtypes=";
    const char *found = find(at, end, field);
    const char *begin = found != NULL ? found + sizeof field - 1 : end, *c = begin;
    while (c < end && isalnum((unsigned char)*c)) c++;
    return found != NULL ? cd_value_push_text(log->arena, begin, (size_t)(c - begin)) : NULL;
}

/* One side of a mismatch: "3 is running collective: CollectiveFingerPrint(OpType=ALLREDUCE, …". */
static void read_side(cd_torch_log *log, const char *at, const char *end, bool is_own)
{
    const unsigned long rank = isdigit((unsigned char)*at) ? strtoul(at, NULL, 10) : RANK_MAX + 1;
    cd_value *name = rank <= RANK_MAX ? read_name(log, at, end) : NULL;
    cd_value *entry = name != NULL ? cd_value_push(log->arena, CD_VALUE_MAP) : NULL;
    size_t i = 0;
    if (entry == NULL) return;
    put(log, entry, "profiling_name", name);
    put(log, entry, "collective_seq_id", number(log, 1));
    put(log, entry, "input_sizes", list_of(log, read_shape(log, at, end)));
    put(log, entry, "input_dtypes", list_of(log, read_dtype(log, at, end)));
    while (i < log->count && log->ranks[i].rank != rank) i++;
    if (i < log->count && (log->ranks[i].is_own || !is_own)) return;
    if (i == log->count && !cd_arena_grow(log->arena, (void **)&log->ranks, &log->capacity,
                                          log->count + 1, sizeof *log->ranks))
        return;
    log->count += i == log->count;
    log->ranks[i] = (cd_torch_log_rank){(uint32_t)rank, is_own, entry};
}

void cd_torch_log_read(cd_torch_log *log, const char *text)
{
    for (const char *at = strstr(text, BEGIN); at != NULL;) {
        const char *mine = at + strlen(BEGIN), *next = strstr(mine, BEGIN);
        size_t length = 0;
        while (length < MESSAGE_BYTES_MAX && mine[length] != '\0' && mine + length != next)
            length++;
        const char *end = mine + length, *other = find(mine, end, OTHER);
        read_side(log, mine, other != NULL ? other : end, true);
        if (other != NULL) read_side(log, other + strlen(OTHER), end, false);
        at = next;
    }
}

const cd_value *cd_torch_log_make_dump(const cd_torch_log *log, size_t index)
{
    cd_torch_log to = *log;
    cd_value *root = cd_value_push(log->arena, CD_VALUE_MAP);
    if (root == NULL) return NULL;
    put(&to, root, "version", cd_value_push_text(log->arena, "log", 3));
    put(&to, root, "entries", list_of(&to, log->ranks[index].entry));
    return root;
}
