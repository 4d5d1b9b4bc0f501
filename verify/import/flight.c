/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/flight.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "verify/import/torch_log.h"
#include "verify/import/value.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (INT64_C(1) << 30)
#define RANKS_MAX 65536u
#define GROUPS_MAX 4096u

typedef struct group {
    const char *name, *label;
    uint32_t *members; /* (member_count), ascending */
    size_t member_count, member_capacity;
    int64_t begin; /* the first collective_seq_id that all rings still have; -1: none */
} group;

typedef struct dump {
    uint32_t rank;
    const cd_value *root, *entries;
    bool is_log; /* it stands for what a log said */
} dump;

/* An event with its place, to be put in order of time. */
typedef struct timed {
    cddp_event event;
    uint64_t time_ns;
} timed;

struct cd_flights {
    cd_arena arena;
    dump *dumps; /* (dump_count) by rank */
    size_t dump_count, dump_capacity;
    group *groups; /* (group_count) */
    size_t group_count, group_capacity;
    cd_torch_log log;
    uint32_t world_size;
    size_t entry_count;
};

/* ---- reading ---- */

static cddp_status read_file(cd_arena *arena, const char *path, char **bytes, size_t *byte_count,
                             cddp_error *err)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return cd_fail(err, CDDP_E_IO, "cannot open %s", path);
    long long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    char *data =
        size >= 0 && size < FILE_BYTES_MAX ? cd_arena_array(arena, (size_t)size + 1, 1) : NULL;
    rewind(file);
    const bool is_whole = data != NULL && fread(data, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    if (!is_whole) return cd_fail(err, CDDP_E_IO, "cannot read %s", path);
    *bytes = data;
    *byte_count = (size_t)size;
    return CDDP_OK;
}

bool cd_flights_is_dump(const char *path)
{
    FILE *file = fopen(path, "rb");
    const int first = file != NULL ? fgetc(file) : EOF;
    if (file != NULL) fclose(file);
    if (first == EOF || first == 0x80 || first == '{') return first != EOF;
    cd_arena arena;
    char *bytes = NULL;
    size_t byte_count = 0;
    cd_arena_init(&arena, NULL, 0);
    const bool is =
        read_file(&arena, path, &bytes, &byte_count, NULL) == CDDP_OK && cd_torch_log_is_one(bytes);
    cd_arena_fini(&arena);
    return is;
}

/* The last number in the name of the file: nccl_trace_rank_3, node7_rank_12.json. */
static bool read_rank(const char *path, uint32_t *rank)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const char *found = NULL;
    for (const char *c = name; *c != '\0'; c++)
        if (isdigit((unsigned char)*c) && (c == name || !isdigit((unsigned char)c[-1]))) found = c;
    if (found == NULL) return false;
    const unsigned long number = strtoul(found, NULL, 10);
    *rank = (uint32_t)number;
    return number < RANKS_MAX;
}

/* d->root is NULL where it was a log. */
static cddp_status open_dump(cd_flights *f, const char *path, dump *d, cddp_error *err)
{
    char *bytes = NULL;
    size_t byte_count = 0;
    cd_value *root = NULL;
    cddp_error inner = CDDP_ERROR_INIT;
    *d = (dump){.root = NULL};
    CD_TRY(read_file(&f->arena, path, &bytes, &byte_count, err));
    if (byte_count > 0 && (unsigned char)bytes[0] != 0x80 && bytes[0] != '{' &&
        cd_torch_log_is_one(bytes)) {
        cd_torch_log_read(&f->log, bytes);
        return CDDP_OK;
    }
    const bool is_json = byte_count > 0 && bytes[0] == '{';
    const cddp_status status = is_json
                                   ? cd_json_read(&f->arena, bytes, byte_count, &root, &inner)
                                   : cd_pickle_read(&f->arena, bytes, byte_count, &root, &inner);
    if (status != CDDP_OK) return cd_fail(err, status, "%s: %s", path, inner.message);
    const char *version = cd_value_text(cd_value_find(root, "version"), "");
    if (version[0] == '\0')
        return cd_fail(err, CDDP_E_CORRUPT, "%s is no dump of a flight recorder: it has no version",
                       path);
    if (strncmp(version, "2.", 2) != 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "%s is a dump of version %.20s, and not of 2.x",
                       path, version);
    if (!read_rank(path, &d->rank))
        return cd_fail(err, CDDP_E_ARG, "%s: no rank in the name of the file", path);
    d->root = root;
    return CDDP_OK;
}

/* ---- groups ---- */

static group *add_group(cd_flights *f, const char *name, const char *label)
{
    for (size_t i = 0; i < f->group_count; i++)
        if (strcmp(f->groups[i].name, name) == 0) return &f->groups[i];
    if (f->group_count >= GROUPS_MAX ||
        !cd_arena_grow(&f->arena, (void **)&f->groups, &f->group_capacity, f->group_count + 1,
                       sizeof *f->groups))
        return NULL;
    group *g = &f->groups[f->group_count++];
    *g = (group){.name = name, .label = label, .begin = -1};
    return g;
}

static bool add_member(cd_flights *f, group *g, uint32_t rank)
{
    size_t at = 0;
    while (at < g->member_count && g->members[at] < rank) at++;
    if (at < g->member_count && g->members[at] == rank) return true;
    if (rank >= RANKS_MAX || !cd_arena_grow(&f->arena, (void **)&g->members, &g->member_capacity,
                                            g->member_count + 1, sizeof *g->members))
        return false;
    for (size_t i = g->member_count; i > at; i--) g->members[i] = g->members[i - 1];
    g->members[at] = rank;
    g->member_count++;
    if (rank >= f->world_size) f->world_size = rank + 1;
    return true;
}

/* Ranks are a text, "[0, 1]", or a list. Whatever else the text has is passed over. */
static bool add_members(cd_flights *f, group *g, const cd_value *ranks)
{
    for (size_t i = 0; i < cd_value_count(ranks); i++) {
        const int64_t rank = cd_value_number(cd_value_get(ranks, i), -1);
        if (rank < 0 || rank >= RANKS_MAX || !add_member(f, g, (uint32_t)rank)) return false;
    }
    for (const char *c = cd_value_text(ranks, ""); *c != '\0';) {
        char *end = NULL;
        const unsigned long rank = isdigit((unsigned char)*c) ? strtoul(c, &end, 10) : 0;
        if (end == NULL) {
            c++;
            continue;
        }
        if (rank >= RANKS_MAX || !add_member(f, g, (uint32_t)rank)) return false;
        c = end;
    }
    return true;
}

static const char *group_of(const cd_value *entry)
{
    const cd_value *g = cd_value_find(entry, "process_group");
    return cd_value_text(cd_value_get(g, 0), cd_value_text(g, "0"));
}

static bool is_message(const cd_value *entry)
{
    return cd_value_number(cd_value_find(entry, "is_p2p"), 0) != 0;
}

static bool read_groups(cd_flights *f, const dump *d)
{
    const cd_value *config = cd_value_find(d->root, "pg_config");
    if (d->rank >= f->world_size) f->world_size = d->rank + 1;
    for (size_t i = 0; config != NULL && config->kind == CD_VALUE_MAP && i + 1 < config->count;
         i += 2) {
        const char *name = cd_value_text(config->items[i], "");
        const char *label = cd_value_text(cd_value_find(config->items[i + 1], "desc"), "");
        if (label[0] == '\0' || strcmp(label, "undefined") == 0) label = name;
        group *g = add_group(f, name, label);
        if (g == NULL || !add_members(f, g, cd_value_find(config->items[i + 1], "ranks")))
            return false;
    }
    for (size_t i = 0; i < cd_value_count(d->entries); i++) {
        const char *name = group_of(cd_value_get(d->entries, i));
        group *g = add_group(f, name, name);
        if (g == NULL || !add_member(f, g, d->rank)) return false;
    }
    return true;
}

/* Rings lose their oldest entries. */
static void find_begins(cd_flights *f)
{
    for (size_t k = 0; k < f->group_count; k++) {
        group *g = &f->groups[k];
        for (size_t i = 0; i < f->dump_count; i++) {
            int64_t least = -1;
            const cd_value *entries = f->dumps[i].entries;
            for (size_t e = 0; e < cd_value_count(entries); e++) {
                const cd_value *entry = cd_value_get(entries, e);
                const int64_t number =
                    cd_value_number(cd_value_find(entry, "collective_seq_id"), -1);
                if (is_message(entry) || strcmp(group_of(entry), g->name) != 0) continue;
                if (least < 0 || number < least) least = number;
            }
            if (least > g->begin) g->begin = least;
        }
    }
}

/* ---- life ---- */

static const dump *find_dump(const cd_flights *f, uint32_t rank)
{
    for (size_t i = 0; i < f->dump_count; i++)
        if (f->dumps[i].rank == rank) return &f->dumps[i];
    return NULL;
}

/* In the order of their ranks. */
static cddp_status add_dump(cd_flights *f, const dump *d, cddp_error *err)
{
    size_t at = f->dump_count;
    if (d->root == NULL || !cd_arena_grow(&f->arena, (void **)&f->dumps, &f->dump_capacity,
                                          f->dump_count + 1, sizeof *f->dumps))
        return cd_fail_memory(err, "the dump of rank %u", d->rank);
    for (; at > 0 && f->dumps[at - 1].rank > d->rank; at--) f->dumps[at] = f->dumps[at - 1];
    f->dumps[at] = *d;
    f->dumps[at].entries = cd_value_find(d->root, "entries");
    f->entry_count += cd_value_count(f->dumps[at].entries);
    f->dump_count++;
    return CDDP_OK;
}

static cddp_status read_all(cd_flights *f, const char *const *paths, size_t count, cddp_error *err)
{
    for (size_t i = 0; i < count; i++) {
        dump d;
        CD_TRY(open_dump(f, paths[i], &d, err));
        if (d.root == NULL) continue;
        if (find_dump(f, d.rank) != NULL)
            return cd_fail(err, CDDP_E_MISMATCH, "%s is another dump of rank %u", paths[i], d.rank);
        CD_TRY(add_dump(f, &d, err));
    }
    for (size_t i = 0; i < f->log.count; i++) {
        const dump d = {.rank = f->log.ranks[i].rank,
                        .root = cd_torch_log_make_dump(&f->log, i),
                        .is_log = true};
        if (find_dump(f, d.rank) == NULL) CD_TRY(add_dump(f, &d, err));
    }
    CD_TRY(cd_arena_check(&f->arena, err, "%zu dumps", count));
    if (f->dump_count == 0 && count > 0)
        return cd_fail(err, CDDP_E_CORRUPT, "%s: the mismatch in it names no rank and operation",
                       paths[0]);
    for (size_t i = 0; i < f->dump_count; i++)
        if (!read_groups(f, &f->dumps[i]))
            return cd_fail(err, CDDP_E_CORRUPT, "the process groups of rank %u are damaged",
                           f->dumps[i].rank);
    find_begins(f);
    return CDDP_OK;
}

cddp_status cd_flights_open(const char *const *paths, size_t path_count, cd_flights **flights,
                            cddp_error *err)
{
    cd_flights *f = cd_allocate_zero(NULL, sizeof *f);
    if (f == NULL) return cd_fail_memory(err, "%zu dumps", path_count);
    cd_arena_init(&f->arena, NULL, 1 << 16);
    f->log.arena = &f->arena;
    const cddp_status status = read_all(f, paths, path_count, err);
    if (status == CDDP_OK)
        *flights = f;
    else
        cd_flights_close(f);
    return CD_PASS(status);
}

void cd_flights_close(cd_flights *f)
{
    if (f == NULL) return;
    cd_arena_fini(&f->arena);
    cd_release(NULL, f, sizeof *f);
}

cd_flights_facts cd_flights_get(const cd_flights *f)
{
    cd_flights_facts facts = {.world_size = f->world_size,
                              .dump_count = (uint32_t)f->dump_count,
                              .missing = f->world_size,
                              .entry_count = f->entry_count,
                              .version = ""};
    if (f->dump_count > 0)
        facts.version = cd_value_text(cd_value_find(f->dumps[0].root, "version"), "");
    for (uint32_t rank = f->world_size; rank > 0; rank--)
        if (find_dump(f, rank - 1) == NULL) facts.missing = rank - 1;
    return facts;
}

/* ---- events ---- */

static int64_t op_of(const char *name)
{
    static const struct {
        const char *part;
        cddp_op op;
    } ops[] = {{"all_reduce", CDDP_OP_ALLREDUCE},
               {"allreduce", CDDP_OP_ALLREDUCE},
               {"reduce_scatter", CDDP_OP_REDUCE_SCATTER},
               {"all_gather", CDDP_OP_ALLGATHER},
               {"allgather", CDDP_OP_ALLGATHER},
               {"all_to_all", CDDP_OP_ALLTOALL},
               {"alltoall", CDDP_OP_ALLTOALL},
               {"broadcast", CDDP_OP_BROADCAST},
               {"barrier", CDDP_OP_BARRIER},
               {"gather", CDDP_OP_GATHER},
               {"scatter", CDDP_OP_SCATTER},
               {"reduce", CDDP_OP_REDUCE},
               {"send", CDDP_OP_SEND},
               {"recv", CDDP_OP_RECV}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (strstr(name, ops[i].part) != NULL) return ops[i].op;
    return CDDP_OP_BARRIER; /* an operation that this program does not know: like itself alone */
}

static int64_t dtype_of(const char *name)
{
    static const struct {
        const char *name;
        cddp_dtype dtype;
    } dtypes[] = {{"Double", CDDP_F64},    {"Float", CDDP_F32},        {"Half", CDDP_F16},
                  {"BFloat16", CDDP_BF16}, {"ComplexFloat", CDDP_C64}, {"Long", CDDP_I64},
                  {"Int", CDDP_I32}};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(name, dtypes[i].name) == 0) return dtypes[i].dtype;
    return CDDP_U8;
}

static int64_t numel_of(const cd_value *sizes)
{
    int64_t total = 0;
    for (size_t i = 0; i < cd_value_count(sizes); i++) {
        const cd_value *shape = cd_value_get(sizes, i);
        int64_t numel = 1;
        for (size_t k = 0; k < cd_value_count(shape); k++) {
            const int64_t size = cd_value_number(cd_value_get(shape, k), 0);
            if (size < 0 || (size > 0 && numel > (INT64_C(1) << 50) / size)) return -1;
            numel *= size;
        }
        total += numel;
    }
    return total;
}

/* "nccl:send 0->1", "nccl:recv 1<-0": the other one. */
static int64_t peer_of(const char *name)
{
    const char *arrow = strstr(name, "->");
    if (arrow == NULL) arrow = strstr(name, "<-");
    return arrow != NULL ? strtoll(arrow + 2, NULL, 10) : -1;
}

typedef struct lines {
    timed *events; /* (count) of one rank */
    size_t count, capacity;
    const char *where;
    cd_arena *arena;
    bool is_short;
} lines;

static void add(lines *l, uint64_t time_ns, const cddp_event *event)
{
    if (!cd_arena_grow(l->arena, (void **)&l->events, &l->capacity, l->count + 1,
                       sizeof *l->events)) {
        l->is_short = true;
        return;
    }
    size_t at = l->count++;
    /* in order of time; what happened at once stays in its order */
    for (; at > 0 && l->events[at - 1].time_ns > time_ns; at--) l->events[at] = l->events[at - 1];
    l->events[at] = (timed){*event, time_ns};
}
#define ADD(l, time, name, words, ...)        \
    add((l), (time),                          \
        &(cddp_event){.kind = CDDP_EV_##name, \
                      .text = (words),        \
                      .as.name = (cddp_event_##name){__VA_ARGS__}})

/* The innermost line that is not of torch. */
static void add_source(lines *l, uint64_t time_ns, const cd_value *frames)
{
    const cd_value *found = cd_value_get(frames, 0);
    for (size_t i = 0; i < cd_value_count(frames); i++) {
        const cd_value *frame = cd_value_get(frames, i);
        if (strstr(cd_value_text(cd_value_find(frame, "filename"), ""), "/torch/") != NULL)
            continue;
        found = frame;
        break;
    }
    if (found == NULL) return;
    const int64_t line = cd_value_number(cd_value_find(found, "line"), 0);
    const char *text =
        cd_arena_printf(l->arena, "%s:%lld in %s",
                        cd_value_text(cd_value_find(found, "filename"), "?"), (long long)line,
                        cd_value_text(cd_value_find(found, "name"), "?"));
    if (text == NULL || (l->where != NULL && strcmp(l->where, text) == 0)) return;
    l->where = text;
    ADD(l, time_ns, source, text, .line = line);
}

typedef struct open_wait {
    int64_t group, number; /* -1: none */
    uint64_t time_ns;
} open_wait;

static void add_entry(const cd_flights *f, lines *l, const cd_value *entry, int64_t *numbers,
                      open_wait *waits)
{
    const char *name = cd_value_text(cd_value_find(entry, "profiling_name"), "");
    const char *state = cd_value_text(cd_value_find(entry, "state"), "");
    const char *group_name = group_of(entry);
    size_t id = 0;
    while (id < f->group_count && strcmp(f->groups[id].name, group_name) != 0) id++;
    const bool is_p2p = is_message(entry);
    const int64_t sequence = cd_value_number(cd_value_find(entry, "collective_seq_id"), 0);
    if (id == f->group_count || (!is_p2p && sequence < f->groups[id].begin)) return;
    const uint64_t posted = (uint64_t)cd_value_number(cd_value_find(entry, "time_created_ns"), 0);
    const int64_t ended = cd_value_number(cd_value_find(entry, "time_discovered_completed_ns"), 0);
    const cd_value *dtypes = cd_value_find(entry, "input_dtypes");
    const int64_t number = numbers[id]++;
    add_source(l, posted, cd_value_find(entry, "frames"));
    ADD(l, posted, collective_post, NULL, .group = (int64_t)id, .sequence = number,
        .op = op_of(name), .root = is_p2p ? peer_of(name) : -1,
        .dtype = dtype_of(cd_value_text(cd_value_get(dtypes, 0), cd_value_text(dtypes, ""))),
        .numel = numel_of(cd_value_find(entry, "input_sizes")), .bucket = -1, .address = -1,
        .in_flight = 1);
    const bool is_done = strcmp(state, "completed") == 0 || ended > 0 ||
                         cd_value_number(cd_value_find(entry, "retired"), 0) != 0;
    const uint64_t done = ended > 0 && (uint64_t)ended > posted ? (uint64_t)ended : posted;
    if (is_done) {
        ADD(l, done, collective_done, NULL, .group = (int64_t)id, .sequence = number,
            .duration = (int64_t)(done - posted));
    } else if (waits->number < 0) {
        *waits = (open_wait){(int64_t)id, number, posted};
    }
}

static void emit(const cddp_trace_sink *sink, cddp_event event, uint32_t rank, uint64_t *sequence)
{
    event.rank = rank;
    event.sequence = (*sequence)++;
    sink->event(sink->self, &event);
}
#define EMIT(sink, rank, sequence, name, words, ...)                \
    emit((sink),                                                    \
         (cddp_event){.kind = CDDP_EV_##name,                       \
                      .text = (words),                              \
                      .as.name = (cddp_event_##name){__VA_ARGS__}}, \
         (rank), (sequence))

/* As the rank's own dump has them: ranks that made a group of different members are a finding.
** Where it says nothing, or leaves itself out, they are those of all dumps together. */
static group members_of(cd_flights *f, const group *g, uint32_t rank, const dump *d)
{
    group own = {.name = g->name, .label = g->label};
    bool has_itself = false;
    const cd_value *config = d != NULL ? cd_value_find(d->root, "pg_config") : NULL;
    const cd_value *entry = config != NULL ? cd_value_find(config, g->name) : NULL;
    if (entry == NULL || !add_members(f, &own, cd_value_find(entry, "ranks"))) return *g;
    for (size_t i = 0; i < own.member_count; i++) has_itself |= own.members[i] == rank;
    return has_itself ? own : *g;
}

static void emit_groups(cd_flights *f, const cddp_trace_sink *sink, uint32_t rank,
                        uint64_t *sequence)
{
    for (size_t i = 0; i < f->group_count; i++) {
        const group found = members_of(f, &f->groups[i], rank, find_dump(f, rank)), *g = &found;
        uint64_t members = g->member_count;
        int64_t mine = -1;
        for (size_t k = 0; k < g->member_count; k++) {
            members = cd_hash_mix(members, g->members[k]);
            if (g->members[k] == rank) mine = (int64_t)k;
        }
        if (mine < 0) continue;
        EMIT(sink, rank, sequence, group, g->label, .group = (int64_t)i,
             .members = (int64_t)g->member_count, .group_rank = mine,
             .members_digest = (int64_t)members, .order = CDDP_ORDER_SAME);
    }
}

/* In JSON they are texts. */
static int64_t status_of(const cd_value *status, const char *key)
{
    const cd_value *v = cd_value_find(status, key);
    const char *text = cd_value_text(v, NULL);
    return text != NULL ? strtoll(text, NULL, 10) : cd_value_number(v, -1);
}

/* pg_status counts by the number of a group, which entries have beside its name. NULL: no group. */
static const group *group_of_status(const cd_flights *f, const char *id)
{
    const char *name = id;
    for (size_t k = 0; k < f->dump_count; k++)
        for (size_t i = 0; i < cd_value_count(f->dumps[k].entries); i++) {
            const cd_value *e = cd_value_get(f->dumps[k].entries, i);
            if (cd_value_number(cd_value_find(e, "pg_id"), -1) == strtoll(id, NULL, 10))
                name = group_of(e);
        }
    for (size_t i = 0; i < f->group_count; i++)
        if (strcmp(f->groups[i].name, name) == 0) return &f->groups[i];
    return NULL;
}

/* How far the rank came by its own word, in the group in which it waits, else in the first one. */
typedef struct progress {
    const group *group; /* NULL: it does not say */
    int64_t enqueued, completed;
} progress;

static progress read_status(const cd_flights *f, const dump *d)
{
    const cd_value *all = cd_value_find(d->root, "pg_status");
    progress found = {.group = NULL};
    for (size_t i = 0; all != NULL && all->kind == CD_VALUE_MAP && i + 1 < all->count; i += 2) {
        const cd_value *status = all->items[i + 1];
        const progress p = {.group = group_of_status(f, cd_value_text(all->items[i], "")),
                            .enqueued = status_of(status, "last_enqueued_collective"),
                            .completed = status_of(status, "last_completed_collective")};
        if (p.group == NULL || p.enqueued < 0 || p.completed < 0) continue;
        if (found.group == NULL || p.enqueued > p.completed) found = p;
        if (p.enqueued > p.completed) break;
    }
    return found;
}

/* A rank whose recorder kept no entries, and which waits by its status: it did what the first rank
** did that kept them, as far as it came. Else it would stand there as the one who never came. */
static void add_entries_of_another(const cd_flights *f, lines *l, const progress *p,
                                   int64_t *numbers, open_wait *waits)
{
    for (size_t k = 0; k < f->dump_count && waits->number < 0; k++)
        for (size_t i = 0; i < cd_value_count(f->dumps[k].entries); i++) {
            const cd_value *e = cd_value_get(f->dumps[k].entries, i);
            const int64_t number = cd_value_number(cd_value_find(e, "collective_seq_id"), -1);
            if (is_message(e) || strcmp(group_of(e), p->group->name) != 0 || number > p->enqueued)
                continue;
            add_entry(f, l, e, numbers, waits);
        }
}

static const char *end_of(cd_flights *f, const dump *d, const progress *p, bool is_waiting)
{
    if (d->is_log) return "its log ends with a mismatch";
    const bool has_entries = cd_value_count(d->entries) > 0;
    const char *words = is_waiting ? "an operation of its dump had not completed"
                                   : "nothing of its dump was under way";
    if (p->group == NULL || (is_waiting && has_entries)) return words;
    const char *made =
        p->enqueued > p->completed
            ? cd_arena_printf(&f->arena,
                              "%s, and by its status it had enqueued collective %" PRId64
                              " of group '%.60s' and completed %" PRId64,
                              has_entries ? "no entry of its dump was under way"
                                          : "its dump has no entries",
                              p->enqueued, p->group->label, p->completed)
            : cd_arena_printf(&f->arena,
                              "%s; by its status collective %" PRId64
                              " of group '%.60s' was its last",
                              words, p->enqueued, p->group->label);
    return made != NULL ? made : words;
}

static cddp_status replay_rank(cd_flights *f, uint32_t rank, const cddp_trace_sink *sink,
                               cddp_error *err)
{
    const dump *d = find_dump(f, rank);
    uint64_t sequence = 0;
    open_wait waits = {-1, -1, 0};
    const cd_arena_mark mark = cd_arena_get_mark(&f->arena);
    lines l = {.arena = &f->arena};
    EMIT(sink, rank, &sequence, rank_begin, NULL, .world_size = f->world_size);
    emit_groups(f, sink, rank, &sequence);
    if (d == NULL && f->log.count > 0) {
        EMIT(sink, rank, &sequence, rank_end, "no log says what it did", .status = CDDP_E_ABORTED,
             .end = CDDP_RANK_INTERRUPTED);
        return CDDP_OK;
    }
    if (d == NULL) {
        EMIT(sink, rank, &sequence, rank_end, "it left no dump; it may be the one that failed",
             .status = CDDP_E_TIMEOUT, .end = CDDP_RANK_HUNG);
        return CDDP_OK;
    }
    int64_t *numbers = cd_arena_array(&f->arena, f->group_count + 1, sizeof *numbers);
    for (size_t i = 0; numbers != NULL && i < cd_value_count(d->entries); i++)
        add_entry(f, &l, cd_value_get(d->entries, i), numbers, &waits);
    const progress status = read_status(f, d);
    const bool is_behind = status.group != NULL && status.enqueued > status.completed &&
                           cd_value_count(d->entries) == 0;
    if (numbers != NULL && is_behind) add_entries_of_another(f, &l, &status, numbers, &waits);
    CD_TRY(cd_arena_check(&f->arena, err, "the dump of rank %u", rank));
    for (size_t i = 0; i < l.count; i++) {
        l.events[i].event.time_ns = l.events[i].time_ns;
        emit(sink, l.events[i].event, rank, &sequence);
    }
    const bool is_waiting = waits.number >= 0, is_hung = is_waiting || is_behind;
    if (is_waiting)
        EMIT(sink, rank, &sequence, collective_wait, NULL, .group = waits.group,
             .sequence = waits.number);
    EMIT(sink, rank, &sequence, rank_end, end_of(f, d, &status, is_waiting),
         .status = is_hung ? CDDP_E_TIMEOUT : CDDP_E_ABORTED,
         .end = is_hung ? CDDP_RANK_HUNG : CDDP_RANK_INTERRUPTED);
    cd_arena_rewind(&f->arena, mark);
    return CDDP_OK;
}

cddp_status cd_flights_replay(cd_flights *f, const cddp_trace_sink *sink, cddp_error *err)
{
    uint64_t sequence = 0;
    EMIT(sink, UINT32_MAX, &sequence, run_begin, "dumps of a flight recorder",
         .world_size = f->world_size);
    for (uint32_t rank = 0; rank < f->world_size; rank++) CD_TRY(replay_rank(f, rank, sink, err));
    EMIT(sink, UINT32_MAX, &sequence, run_end, NULL, .status = CDDP_E_TIMEOUT);
    return CDDP_OK;
}
