/* SPDX-License-Identifier: Apache-2.0 */
/* The event kinds of a file, and one view per kind with named columns.
**
** A store explains its numbers: `kind` and `field` are events.def as rows, `enumeration` names
** statuses, dtypes and operations. Kinds are found by name, so that a file with fewer or
** differently numbered kinds reads right. Fields are only ever added at the end of a row.
**
** Not here: tables (schema.sql) and the views over several kinds (views.sql). */
#include "db/kinds.h"

#include "cddp/backend.h"
#include "core/base/error.h"
#include "core/trace/event.h"
#include "core/trace/setting.h"
#include "db/seal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *cd_field_type_name(cddp_field_type type)
{
    static const char *const names[] = {
        [CDDP_FIELD_count] = "count",   [CDDP_FIELD_index] = "index",
        [CDDP_FIELD_bytes] = "bytes",   [CDDP_FIELD_flag] = "flag",
        [CDDP_FIELD_ns] = "ns",         [CDDP_FIELD_digest] = "digest",
        [CDDP_FIELD_f64] = "f64",       [CDDP_FIELD_status] = "status",
        [CDDP_FIELD_dtype] = "dtype",   [CDDP_FIELD_op] = "op",
        [CDDP_FIELD_redop] = "redop",   [CDDP_FIELD_param] = "param",
        [CDDP_FIELD_bucket] = "bucket", [CDDP_FIELD_rank] = "rank",
        [CDDP_FIELD_group] = "group",   [CDDP_FIELD_key] = "key",
#define CDDP_EVENT_ENUM(name, words) [CDDP_FIELD_##name] = #name,
#include "cddp/events.def"
    };
    return names[type];
}

/* ---- the views ---- */

/* Columns that every ev_* view has; a field of the same name is prefixed with its kind's. */
static bool is_base_column(const char *name)
{
    static const char *const base[] = {"run",  "t",     "rank", "seq",
                                       "step", "micro", "text", "parameter"};
    for (size_t i = 0; i < sizeof base / sizeof base[0]; i++)
        if (strcmp(base[i], name) == 0) return true;
    return false;
}

static void print_column(sqlite3_str *text, const cddp_event_info *info, uint32_t position,
                         bool *named)
{
    const cddp_field_info *field = &info->fields[position];
    switch (field->type) {
    case CDDP_FIELD_digest:
        sqlite3_str_appendf(text, "printf('%%016x', e.f%u)", position);
        break;
    case CDDP_FIELD_f64:
        /* A NaN is stored as the integer of its bits, because SQLite has no NaN. */
        sqlite3_str_appendf(text, "CASE typeof(e.f%u) WHEN 'real' THEN e.f%u ELSE 'nan' END",
                            position, position);
        break;
    case CDDP_FIELD_status:
    case CDDP_FIELD_dtype:
    case CDDP_FIELD_op:
    case CDDP_FIELD_redop:
    case CDDP_FIELD_key:
#define CDDP_EVENT_ENUM(name, words) case CDDP_FIELD_##name:
#include "cddp/events.def"
        sqlite3_str_appendf(
            text,
            "coalesce((SELECT name FROM enumeration WHERE type = '%s' AND value = e.f%u), e.f%u)",
            cd_field_type_name(field->type), position, position);
        break;
    case CDDP_FIELD_count:
    case CDDP_FIELD_index:
    case CDDP_FIELD_bytes:
    case CDDP_FIELD_flag:
    case CDDP_FIELD_ns:
    case CDDP_FIELD_param:
    case CDDP_FIELD_bucket:
    case CDDP_FIELD_rank:
    case CDDP_FIELD_group:
    default:
        sqlite3_str_appendf(text, "e.f%u", position);
        break;
    }
    const char *prefix = is_base_column(field->name) ? info->name : "";
    sqlite3_str_appendf(text, " AS \"%s%s%s\"", prefix, prefix[0] != '\0' ? "_" : "", field->name);
    if (field->type == CDDP_FIELD_param && !*named) {
        sqlite3_str_appendf(
            text,
            ", (SELECT name FROM parameter p WHERE p.run = r.id AND p.param = e.f%u) AS parameter",
            position);
        *named = true;
    }
    /* Groups are opened in the first events of a run, so that the search ends soon. */
    if (field->type == CDDP_FIELD_group)
        sqlite3_str_appendf(
            text,
            ", (SELECT x.value FROM event g JOIN text x ON x.id = g.text WHERE g.id > r.id << 40 "
            "AND g.id < (r.id + 1) << 40 AND g.kind = (SELECT id FROM kind WHERE name = 'group') "
            "AND g.f0 = e.f%u LIMIT 1) AS group_name",
            position);
}

static cddp_status make_view(cd_sql *sql, int stored, const cddp_event_info *info, cddp_error *err)
{
    bool named = false;
    sqlite3_str *text = sqlite3_str_new(sql->db);
    sqlite3_str_appendf(text,
                        "DROP VIEW IF EXISTS ev_%s; CREATE VIEW ev_%s AS SELECT r.id AS run, e.t, "
                        "e.rank, e.seq, e.step, e.micro",
                        info->name, info->name);
    for (uint32_t i = 0; i < info->field_count; i++) {
        sqlite3_str_appendall(text, ", ");
        print_column(text, info, i, &named);
    }
    sqlite3_str_appendf(
        text,
        ", (SELECT value FROM text x WHERE x.id = e.text) AS text FROM run r JOIN event e "
        "ON e.id > r.id << 40 AND e.id < (r.id + 1) << 40 AND e.kind = %d",
        stored);
    char *command = sqlite3_str_finish(text);
    if (command == NULL) return CD_PASS(cd_sql_fail(sql, SQLITE_NOMEM, err));
    cddp_status status = cd_sql_exec(sql, command, err);
    sqlite3_free(command);
    return status;
}

/* ---- rows ---- */

static cddp_status add_name(cd_sql *sql, sqlite3_stmt *insert, const char *type, int64_t value,
                            const char *name, cddp_error *err)
{
    cd_sql_bind_text(insert, 1, type);
    sqlite3_bind_int64(insert, 2, value);
    cd_sql_bind_text(insert, 3, name);
    return CD_PASS(cd_sql_run(sql, insert, err));
}

static cddp_status fill_enumerations(cd_sql *sql, cddp_error *err)
{
    sqlite3_stmt *insert = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(
        cd_sql_prepare(sql, "INSERT OR REPLACE INTO enumeration VALUES (?, ?, ?)", &insert, err));
    for (int i = 0; i < CDDP_STATUS_COUNT; i++)
        CD_TRY_OUT(add_name(sql, insert, "status", i, cddp_status_text((cddp_status)i), err));
    for (int i = 0; i < CDDP_DTYPE_COUNT; i++)
        CD_TRY_OUT(add_name(sql, insert, "dtype", i, cddp_dtype_name((cddp_dtype)i), err));
    for (int i = 0; i < CDDP_OP_COUNT; i++)
        CD_TRY_OUT(add_name(sql, insert, "op", i, cddp_op_name((cddp_op)i), err));
    for (int i = 0; i < CDDP_RED_COUNT; i++)
        CD_TRY_OUT(add_name(sql, insert, "redop", i, cddp_red_op_name((cddp_red_op)i), err));
    for (int type = 0; type < CDDP_FIELD_TYPE_COUNT; type++)
        for (int i = 0; cddp_event_word((cddp_field_type)type, i) != NULL; i++)
            CD_TRY_OUT(add_name(sql, insert, cd_field_type_name((cddp_field_type)type), i,
                                cddp_event_word((cddp_field_type)type, i), err));
    for (int i = 0; i < CDDP_KEY_COUNT; i++)
        CD_TRY_OUT(add_name(sql, insert, "key", cd_setting_id((cddp_key)i),
                            cd_setting_path((cddp_key)i), err));
out:
    sqlite3_finalize(insert);
    return status;
}

static cddp_status add_fields(cd_sql *sql, int stored, const cddp_event_info *info, cddp_error *err)
{
    sqlite3_stmt *insert = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_sql_prepare(sql, "INSERT OR IGNORE INTO field VALUES (?, ?, ?, ?, ?)", &insert, err));
    for (uint32_t i = 0; i < info->field_count; i++) {
        sqlite3_bind_int(insert, 1, stored);
        sqlite3_bind_int(insert, 2, (int)i);
        cd_sql_bind_text(insert, 3, info->fields[i].name);
        cd_sql_bind_text(insert, 4, cd_field_type_name(info->fields[i].type));
        cd_sql_bind_text(insert, 5, info->fields[i].doc);
        CD_TRY_OUT(cd_sql_run(sql, insert, err));
    }
    CD_TRY_OUT(make_view(sql, stored, info, err));
out:
    sqlite3_finalize(insert);
    return status;
}

static cddp_status add_kind(cd_sql *sql, int stored, const cddp_event_info *info, cddp_error *err)
{
    sqlite3_stmt *insert = NULL;
    CD_TRY(cd_sql_prepare(sql, "INSERT INTO kind VALUES (?, ?, ?)", &insert, err));
    sqlite3_bind_int(insert, 1, stored);
    cd_sql_bind_text(insert, 2, info->name);
    cd_sql_bind_text(insert, 3, info->doc);
    cddp_status status = cd_sql_run(sql, insert, err);
    sqlite3_finalize(insert);
    if (status == CDDP_OK) status = add_fields(sql, stored, info, err);
    return status;
}

cddp_status cd_kinds_fill(cd_sql *sql, cddp_error *err)
{
    CD_TRY(fill_enumerations(sql, err));
    for (int i = 0; i < CDDP_EV_COUNT; i++)
        CD_TRY(add_kind(sql, i, cddp_event_describe((uint32_t)i), err));
    return CDDP_OK;
}

/* ---- reading and extending ---- */

static cddp_status read_kinds(cd_sql *sql, cd_kind_map *map, cddp_error *err)
{
    sqlite3_stmt *statement = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_sql_prepare(sql, "SELECT id, name FROM kind ORDER BY id", &statement, err));
    for (bool row = true;;) {
        CD_TRY_OUT(cd_sql_step(sql, statement, &row, err));
        if (!row) break;
        int64_t stored = sqlite3_column_int64(statement, 0);
        int32_t ours = cd_event_find(cd_sql_text(statement, 1));
        if (stored < 0 || stored >= CD_KINDS_STORED_MAX) {
            status = cd_fail(err, CDDP_E_CORRUPT,
                             "'%s' numbers an event kind %" PRId64 "; 0 to %d are possible",
                             sql->path, stored, CD_KINDS_STORED_MAX - 1);
            goto out;
        }
        if (ours < 0) continue;
        map->ours[stored] = (int16_t)ours;
        map->stored[ours] = (int16_t)stored;
    }
out:
    sqlite3_finalize(statement);
    return status;
}

/* Every stored field must have the name and type of our field at that position. */
static cddp_status check_fields(cd_sql *sql, const cd_kind_map *map, uint32_t counts[CDDP_EV_COUNT],
                                cddp_error *err)
{
    sqlite3_stmt *statement = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_sql_prepare(sql,
                          "SELECT kind, position, name, type FROM field ORDER BY kind, position",
                          &statement, err));
    for (bool row = true;;) {
        CD_TRY_OUT(cd_sql_step(sql, statement, &row, err));
        if (!row) break;
        int64_t stored = sqlite3_column_int64(statement, 0),
                position = sqlite3_column_int64(statement, 1);
        if (stored < 0 || stored >= CD_KINDS_STORED_MAX || map->ours[stored] < 0) continue;
        const cddp_event_info *info = cddp_event_describe((uint32_t)map->ours[stored]);
        if (position < 0 || position >= info->field_count ||
            strcmp(info->fields[position].name, cd_sql_text(statement, 2)) != 0 ||
            strcmp(cd_field_type_name(info->fields[position].type), cd_sql_text(statement, 3)) !=
                0) {
            status = cd_fail(err, CDDP_E_UNSUPPORTED,
                             "'%s' was written by another version of cddp: its event '%s' has a "
                             "field '%.40s' of "
                             "type '%.20s' at position %" PRId64,
                             sql->path, info->name, cd_sql_text(statement, 2),
                             cd_sql_text(statement, 3), position);
            goto out;
        }
        counts[map->ours[stored]]++;
    }
out:
    sqlite3_finalize(statement);
    return status;
}

cddp_status cd_kinds_read(cd_sql *sql, cd_kind_map *map, cddp_error *err)
{
    cd_kind_map found;
    uint32_t counts[CDDP_EV_COUNT] = {0};
    memset(&found, 0xff, sizeof found);
    CD_TRY(read_kinds(sql, &found, err));
    CD_TRY(check_fields(sql, &found, counts, err));
    *map = found;
    return CDDP_OK;
}

cddp_status cd_kinds_extend(cd_sql *sql, void *argument, cddp_error *err)
{
    (void)argument;
    cd_kind_map map;
    uint32_t counts[CDDP_EV_COUNT] = {0};
    int64_t next = 0;
    memset(&map, 0xff, sizeof map);
    CD_TRY(read_kinds(sql, &map, err));
    CD_TRY(check_fields(sql, &map, counts, err));
    CD_TRY(cd_sql_number(sql, "SELECT max(id) + 1 FROM kind", &next, err));
    bool is_extended = false;
    for (int i = 0; i < CDDP_EV_COUNT; i++) {
        const cddp_event_info *info = cddp_event_describe((uint32_t)i);
        if (map.stored[i] < 0) {
            if (next >= CD_KINDS_STORED_MAX)
                return cd_fail(err, CDDP_E_LIMIT,
                               "'%s' has no room for more event kinds; write to a new file",
                               sql->path);
            CD_TRY(add_kind(sql, (int)next++, info, err));
            is_extended = true;
        } else if (counts[i] < info->field_count) {
            CD_TRY(add_fields(sql, map.stored[i], info, err));
            is_extended = true;
        }
    }
    return CD_PASS(is_extended ? cd_seal_add_kinds(sql, err) : CDDP_OK);
}
