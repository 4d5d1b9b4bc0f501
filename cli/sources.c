/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/sources.h"

#include "cli/folder.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/output.h"
#include "verify/import/notes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ---- */

static cddp_status add(cd_shard_names *names, const char *path, cddp_error *err)
{
    if (!cd_vec_grow(NULL, (void **)&names->paths, &names->capacity, names->count + 1,
                     sizeof *names->paths))
        return cd_fail_memory(err, "%zu shards", names->count + 1);
    names->paths[names->count] = cd_strdup(NULL, path);
    if (names->paths[names->count] == NULL) return cd_fail_memory(err, "%s", path);
    names->count++;
    return CDDP_OK;
}

#define FIRST_RANKS 64 /* of which one has a shard that can be read */

/* The number of ranks that a shard of a run names, the first that can be read; 0: none can. */
static uint32_t read_world_size(const char *name)
{
    char path[4096];
    cddp_shard_reader *reader = NULL;
    for (uint32_t rank = 0; rank < FIRST_RANKS && reader == NULL; rank++) {
        if (snprintf(path, sizeof path, "%s.%u", name, rank) >= (int)sizeof path) return 0;
        if (cd_shards_is_shard(path) && cddp_shard_reader_open(path, &reader, NULL) != CDDP_OK)
            return 0;
    }
    if (reader == NULL) return 0;
    const uint32_t count = cddp_shard_reader_header(reader)->world_size;
    cddp_shard_reader_close(reader);
    return count;
}

/* run.db.0, run.db.1, … and run.db.0.1, …: what a launcher restarted. */
static cddp_status add_all(cd_shard_names *names, const char *name, cddp_error *err)
{
    const uint32_t count = read_world_size(name);
    char path[4096];
    for (uint32_t rank = 0; rank < count; rank++)
        for (uint32_t generation = 0;; generation++) {
            const int length = generation > 0
                                   ? snprintf(path, sizeof path, "%s.%u.%u", name, rank, generation)
                                   : snprintf(path, sizeof path, "%s.%u", name, rank);
            if (length >= (int)sizeof path || !cd_shards_is_shard(path)) break;
            CD_TRY(add(names, path, err));
        }
    return CDDP_OK;
}

/* "run/rank.1.exit" → "rank.1: signal 9" */
static void print_note(char *text, size_t bytes, const char *path)
{
    char shard[4096];
    cd_note note;
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const size_t used = strlen(text), length = strlen(path) - strlen(".exit");
    snprintf(shard, sizeof shard, "%.*s", (int)length, path);
    if (used + 1 >= bytes || !cd_note_read(shard, &note)) return;
    snprintf(text + used, bytes - used, "%s%.*s: %s %" PRId64 "%s", used > 0 ? ", " : "",
             (int)(strlen(name) - strlen(".exit")), name, note.signal > 0 ? "signal" : "exit code",
             note.signal > 0 ? note.signal : note.code,
             note.is_stopped || note.is_interrupted ? " as the job was ended" : "");
}

/* Ranks that died while they imported, say: whoever started them left notes, and nothing else is
** known. */
static cddp_status fail_without_shards(const char *path, cddp_error *err)
{
    cd_folder notes;
    char ends[160] = "";
    if (cd_folder_read(&notes, &path, 1, cd_note_is, NULL) != CDDP_OK)
        return cd_fail(err, CDDP_E_ARG, "%s is a folder without a recording", path);
    for (size_t i = 0; i < notes.count && i < 4; i++) print_note(ends, sizeof ends, notes.paths[i]);
    const size_t count = notes.count;
    cd_folder_fini(&notes);
    return cd_fail(err, CDDP_E_MISMATCH,
                   "inconclusive: %.120s: the job ended before any of its %zu ranks recorded "
                   "anything (%s). A recording begins with init_process_group: read what the "
                   "program itself printed",
                   path, count, ends);
}

static cddp_status add_folder(cd_shard_names *names, const char *path, cddp_error *err)
{
    cd_folder folder;
    cddp_error missing = CDDP_ERROR_INIT;
    cddp_status status = cd_folder_read(&folder, &path, 1, cd_shards_is_shard, &missing);
    if (status == CDDP_E_ARG) return CD_PASS(fail_without_shards(path, err));
    if (status != CDDP_OK) return cd_fail(err, status, "%s", missing.message);
    for (size_t i = 0; status == CDDP_OK && i < folder.count; i++)
        status = add(names, folder.paths[i], err);
    cd_folder_fini(&folder);
    return status;
}

/* A file of that very name wins over the shards beside it. */
static bool is_name(const char *path)
{
    return access(path, F_OK) != 0 && read_world_size(path) > 0;
}

bool cd_source_is_shards(const char *path) { return cd_shards_is_shard(path) || is_name(path); }

static cddp_status find_all(cd_shard_names *names, const char *const *paths, size_t path_count,
                            cddp_error *err)
{
    bool is = path_count > 1;
    for (size_t i = 0; i < path_count; i++)
        is = is || cd_folder_is(paths[i]) || cd_source_is_shards(paths[i]);
    for (size_t i = 0; is && i < path_count; i++) {
        if (cd_note_is(paths[i])) continue;
        if (is_name(paths[i]))
            CD_TRY(add_all(names, paths[i], err));
        else if (cd_folder_is(paths[i]))
            CD_TRY(add_folder(names, paths[i], err));
        else
            CD_TRY(add(names, paths[i], err));
    }
    return CDDP_OK;
}

cddp_status cd_shard_names_find(cd_shard_names *names, const char *const *paths, size_t path_count,
                                cddp_error *err)
{
    *names = (cd_shard_names){.count = 0};
    const cddp_status status = find_all(names, paths, path_count, err);
    if (status != CDDP_OK) cd_shard_names_fini(names);
    return CD_PASS(status);
}

void cd_shard_names_fini(cd_shard_names *names)
{
    for (size_t i = 0; i < names->count; i++) cd_strfree(NULL, names->paths[i]);
    cd_release(NULL, names->paths, names->capacity * sizeof *names->paths);
    *names = (cd_shard_names){.count = 0};
}

/* "run.db.3" and "run.db.3.1" without their numbers. */
static bool cut_numbers(char *path, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        char *dot = strrchr(path, '.');
        if (dot == NULL || dot[1] == '\0' || dot[1 + strspn(dot + 1, "0123456789")] != '\0')
            return false;
        *dot = '\0';
    }
    return true;
}

bool cd_shard_names_explain(const cd_shard_names *names, const cd_shards_run *run, uint32_t rank,
                            cddp_error *why)
{
    char name[4096], path[4200];
    struct stat facts;
    FILE *file = NULL;
    if (names->count == 0) return false;
    /* restarts are the last of a rank's */
    const char *one = names->paths[run->generation > 0 ? names->count - 1 : 0];
    if (snprintf(name, sizeof name, "%s", one) >= (int)sizeof name ||
        !cut_numbers(name, run->generation > 0 ? 2 : 1))
        return false;
    snprintf(path, sizeof path, run->generation > 0 ? "%s.%" PRIu32 ".%" PRIu32 : "%s.%" PRIu32,
             name, rank, run->generation);
    if (lstat(path, &facts) != 0) return false;
    if (cd_os_open_regular(path, &file, why) != CDDP_OK) return true;
    const bool is_empty = getc(file) == EOF;
    fclose(file);
    if (cd_shards_is_shard(path))
        (void)cd_fail(why, CDDP_E_ARG, "'%s' was not named", path);
    else
        (void)cd_fail(why, CDDP_E_CORRUPT, "'%s' is %s", path, is_empty ? "empty" : "no shard");
    return true;
}

static cddp_status check_shard(const char *path, const char *shard, cddp_error *err)
{
    char note[4096];
    CD_TRY(cd_output_check_input(path, shard, err));
    if (snprintf(note, sizeof note, "%s.exit", shard) >= (int)sizeof note) return CDDP_OK;
    return CD_PASS(cd_output_check_input(path, note, err));
}

cddp_status cd_sources_check_output(const char *path, const char *operand, cddp_error *err)
{
    cd_shard_names names;
    cddp_status status = CDDP_OK;
    /* what is no recording, the command refuses in its own words */
    if (access(path, F_OK) != 0 || cd_shard_names_find(&names, &operand, 1, NULL) != CDDP_OK)
        return CDDP_OK;
    for (size_t i = 0; status == CDDP_OK && i < names.count; i++)
        status = check_shard(path, names.paths[i], err);
    cd_shard_names_fini(&names);
    return CD_PASS(status);
}

/* ---- a run ---- */

static cddp_status take_size(void *context, const cddp_stored_run *run, cddp_error *err)
{
    cd_source *s = context;
    (void)err;
    s->world_size = run->provenance.world_size;
    s->level = run->provenance.level;
    return CDDP_OK;
}

static cddp_status open_shards(cd_source *s, const cd_shard_names *names, cddp_error *err)
{
    cd_shards_run facts;
    CD_TRY(cd_shards_open((const char *const *)names->paths, names->count, &s->shards, err));
    s->shard_run = cd_shards_run_count(s->shards) - 1;
    cd_shards_get(s->shards, s->shard_run, &facts);
    s->world_size = facts.world_size;
    s->level = facts.level;
    s->program = facts.program;
    return CDDP_OK;
}

static cddp_status open_store(cd_source *s, const char *path, cddp_error *err)
{
    CD_TRY(cddp_store_open(path, CDDP_STORE_READ, NULL, &s->store, err));
    CD_TRY(cddp_store_last_run(s->store, &s->run, err));
    return CD_PASS(cddp_store_each_run(s->store, s->run, take_size, s, err));
}

cddp_status cd_source_open(cd_source *source, const char *const *paths, size_t path_count,
                           cddp_error *err)
{
    cd_shard_names names;
    *source = (cd_source){.program = ""};
    CD_TRY(cd_shard_names_find(&names, paths, path_count, err));
    cddp_status status =
        names.count > 0 ? open_shards(source, &names, err) : open_store(source, paths[0], err);
    if (status == CDDP_OK && source->world_size == 0)
        status = cd_fail(err, CDDP_E_CORRUPT, "%s has a run without ranks", paths[0]);
    cd_shard_names_fini(&names);
    if (status != CDDP_OK) cd_source_close(source);
    return CD_PASS(status);
}

void cd_source_close(cd_source *source)
{
    cd_shards_close(source->shards);
    cddp_store_close(source->store);
    cd_release(NULL, source->steps, source->step_capacity * sizeof *source->steps);
    *source = (cd_source){.program = ""};
}

static cddp_status replay(const cd_source *source, const cddp_trace_sink *sink, cddp_error *err)
{
    if (source->shards != NULL)
        return CD_PASS(cd_shards_replay(source->shards, source->shard_run, sink, err));
    return CD_PASS(
        cddp_store_each_event(source->store, source->run, CDDP_STORE_RECORDED, sink, err));
}

/* ---- steps ---- */

/* The first that is not below step. */
static size_t find_step(const cd_source *source, uint32_t step)
{
    size_t low = 0, high = source->step_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (source->steps[middle] < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

typedef struct numbering {
    cd_source *source;
    const cddp_trace_sink *to;
    bool is_out_of_memory;
} numbering;

/* What comes before the first pass has step 0, whatever number the program begins with. */
static bool is_of_pass(uint16_t kind)
{
    return kind == CDDP_EV_forward_begin || kind == CDDP_EV_grad_local ||
           kind == CDDP_EV_optimizer_step;
}

static void take_step(void *self, const cddp_event *event)
{
    numbering *n = self;
    cd_source *s = n->source;
    if (event->rank >= s->world_size || !is_of_pass(event->kind)) return;
    const size_t at = find_step(s, event->step);
    if (at < s->step_count && s->steps[at] == event->step) return;
    if (!cd_vec_grow(NULL, (void **)&s->steps, &s->step_capacity, s->step_count + 1,
                     sizeof *s->steps)) {
        n->is_out_of_memory = true;
        return;
    }
    memmove(s->steps + at + 1, s->steps + at, (s->step_count++ - at) * sizeof *s->steps);
    s->steps[at] = event->step;
}

static void number_step(void *self, const cddp_event *event)
{
    const numbering *n = self;
    cddp_event numbered = *event;
    const size_t at = find_step(n->source, event->step);
    if (event->rank < n->source->world_size)
        numbered.step = (uint32_t)(at < n->source->step_count ? at : n->source->step_count - 1);
    n->to->event(n->to->self, &numbered);
}

cddp_status cd_source_number_steps(cd_source *source, cddp_error *err)
{
    numbering n = {.source = source};
    const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &n, take_step, NULL};
    CD_TRY(replay(source, &sink, err));
    if (n.is_out_of_memory) return cd_fail_memory(err, "%zu steps", source->step_count);
    /* a step without a pass is one, where the others have their numbers */
    const size_t count = source->step_count;
    const bool is_plain =
        count == 0 || (source->steps[0] == 0 && source->steps[count - 1] < 2 * count + 8);
    if (!is_plain) return CDDP_OK;
    cd_release(NULL, source->steps, source->step_capacity * sizeof *source->steps);
    source->steps = NULL;
    source->step_count = source->step_capacity = 0;
    return CDDP_OK;
}

/* Behind the last pass comes nothing new. */
cddp_status cd_source_replay(const cd_source *source, const cddp_trace_sink *sink, cddp_error *err)
{
    numbering n = {.source = (cd_source *)(uintptr_t)source, .to = sink};
    const cddp_trace_sink numbered = {sizeof numbered, CDDP_TRACE_ABI, &n, number_step, NULL};
    return CD_PASS(replay(source, source->steps != NULL ? &numbered : sink, err));
}
