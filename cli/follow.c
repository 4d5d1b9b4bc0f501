/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a job that is under way.
**
** A shard is read on from where the last look ended. One that was replaced, or one of a later
** restart, means that the job began anew: everything is read again. A store is read again whenever
** its file has changed.
**
** Times are those of this machine's wall clock: a rank's own clock is read together with the wall
** clock when its shard is opened. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* gethostname */
#include "cli/follow.h"

#include "cddp/shard.h"
#include "cddp/store.h"
#include "cli/folder.h"
#include "cli/provenance.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "db/store.h"
#include "verify/import/notes.h"
#include "verify/import/shards.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S UINT64_C(1000000000)

typedef struct shard {
    cddp_shard_reader *reader;
    char *path;
    dev_t device;
    ino_t inode;
    uint64_t offset; /* from its clock to ours, modulo 2^64 */
    bool is_here;    /* its process runs on this machine */
} shard;

struct cd_follow {
    char **paths; /* (path_count) as given */
    size_t path_count;
    bool is_store;
    shard *shards; /* (shard_count) */
    size_t shard_count, shard_capacity;
    char program[256], host[64], boot[64];
    cd_watch watch;
    bool has_watch;
    struct timespec store_time, wal_time; /* when a store was last read */
    off_t store_bytes, wal_bytes;
    bool has_end; /* the last run of the store */
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* ---- shards ---- */

static void forget(cd_follow *f)
{
    for (size_t i = 0; i < f->shard_count; i++) {
        cddp_shard_reader_close(f->shards[i].reader);
        cd_strfree(NULL, f->shards[i].path);
    }
    f->shard_count = 0;
    if (f->has_watch) cd_watch_fini(&f->watch);
    f->has_watch = false;
}

static const cddp_shard_header *header_of(const shard *s)
{
    return cddp_shard_reader_header(s->reader);
}

/* Takes the reader. */
static cddp_status add_shard(cd_follow *f, const char *path, cddp_shard_reader *reader,
                             const struct stat *facts, cddp_error *err)
{
    const cddp_shard_header *h = cddp_shard_reader_header(reader);
    char *copy = cd_strdup(NULL, path);
    if (copy == NULL || !cd_vec_grow(NULL, (void **)&f->shards, &f->shard_capacity,
                                     f->shard_count + 1, sizeof *f->shards)) {
        cd_strfree(NULL, copy);
        cddp_shard_reader_close(reader);
        return cd_fail_memory(err, "%zu shards", f->shard_count + 1);
    }
    const bool is_same_boot = strcmp(h->host, f->host) == 0 && strcmp(h->boot, f->boot) == 0;
    const uint64_t offset =
        is_same_boot ? now_ns() - cd_os_now_ns() : h->realtime_ns - h->monotonic_ns;
    f->shards[f->shard_count++] = (shard){.reader = reader,
                                          .path = copy,
                                          .device = facts->st_dev,
                                          .inode = facts->st_ino,
                                          .offset = offset,
                                          .is_here = is_same_boot && h->boot[0] != '\0'};
    return CDDP_OK;
}

static bool is_prefix(const cd_follow *f)
{
    return f->path_count == 1 && !cd_shards_is_shard(f->paths[0]);
}

/* While a job begins, shards of the one before it lie beside its own: under one name the newer job
** is shown. */
static bool is_of_other_job(const cd_follow *f, const cddp_shard_header *h)
{
    if (f->shard_count == 0) return false;
    const cddp_shard_header *first = header_of(&f->shards[0]);
    return h->job != 0 && first->job != 0 && h->job != first->job;
}

/* Of the latest restart; a rank that has not begun to write has no shard yet. */
static cddp_status open_shard(cd_follow *f, const char *path, cddp_error *err)
{
    struct stat facts;
    cddp_shard_reader *reader = NULL;
    if (stat(path, &facts) != 0)
        return cd_fail(err, cd_error_of_errno(errno), "cannot read '%s': %s", path,
                       strerror(errno));
    CD_TRY(cddp_shard_reader_open(path, &reader, err));
    const cddp_shard_header *h = cddp_shard_reader_header(reader);
    const cddp_shard_header *first = f->shard_count > 0 ? header_of(&f->shards[0]) : NULL;
    if (first != NULL && h->generation < first->generation) {
        cddp_shard_reader_close(reader);
        return CDDP_OK;
    }
    if (first != NULL && h->generation > first->generation) forget(f);
    if (is_of_other_job(f, h)) {
        const bool is_older = h->realtime_ns < header_of(&f->shards[0])->realtime_ns;
        const cddp_status status =
            is_prefix(f) ? CDDP_OK
                         : cd_fail(err, CDDP_E_MISMATCH, "%s and %s are of different jobs",
                                   f->shards[0].path, path);
        if (!is_prefix(f) || is_older) {
            cddp_shard_reader_close(reader);
            return status;
        }
        forget(f);
    }
    if (f->shard_count > 0 && h->world_size != header_of(&f->shards[0])->world_size) {
        const cddp_status status =
            cd_fail(err, CDDP_E_MISMATCH, "%s and %s are of jobs of different sizes",
                    f->shards[0].path, path);
        cddp_shard_reader_close(reader);
        return status;
    }
    return CD_PASS(add_shard(f, path, reader, &facts, err));
}

/* "run.db.3" and "run.db.3.1", when "run.db" was named. */
static bool is_of_prefix(const char *path, size_t prefix_length)
{
    const char *at = path + prefix_length;
    return at[0] == '.' && at[1 + strspn(at + 1, "0123456789.")] == '\0' && at[1] != '\0';
}

static cddp_status open_prefix(cd_follow *f, const char *prefix, cddp_error *err)
{
    char pattern[4200];
    glob_t matches;
    cddp_status status = CDDP_OK;
    if (snprintf(pattern, sizeof pattern, "%s.[0-9]*", prefix) >= (int)sizeof pattern)
        return cd_fail(err, CDDP_E_ARG, "'%.100s…' is too long", prefix);
    if (glob(pattern, 0, NULL, &matches) != 0) return CDDP_OK;
    for (size_t i = 0; i < matches.gl_pathc && status == CDDP_OK; i++)
        if (is_of_prefix(matches.gl_pathv[i], strlen(prefix)) &&
            cd_shards_is_shard(matches.gl_pathv[i]))
            status = open_shard(f, matches.gl_pathv[i], err);
    globfree(&matches);
    return status;
}

static cddp_status open_shards(cd_follow *f, cddp_error *err)
{
    forget(f);
    if (is_prefix(f)) CD_TRY(open_prefix(f, f->paths[0], err));
    for (size_t i = 0; !is_prefix(f) && i < f->path_count; i++)
        if (!cd_note_is(f->paths[i])) CD_TRY(open_shard(f, f->paths[i], err));
    if (f->shard_count == 0)
        return cd_fail(err, CDDP_E_ARG,
                       "there is no store '%s' and no shard '%s.0': nobody has begun to write",
                       f->paths[0], f->paths[0]);
    const cddp_shard_header *h = header_of(&f->shards[0]);
    snprintf(f->program, sizeof f->program, "%s", h->program);
    cd_text_clean(f->program);
    CD_TRY(cd_watch_init(&f->watch, h->world_size, err));
    f->has_watch = true;
    return CDDP_OK;
}

/* A shard was replaced, or ranks came that were not there before. */
static bool is_new_job(const cd_follow *f)
{
    char pattern[4200];
    glob_t matches;
    for (size_t i = 0; i < f->shard_count; i++) {
        struct stat facts;
        if (stat(f->shards[i].path, &facts) != 0)
            return false; /* it was removed: we have it open */
        if (facts.st_dev != f->shards[i].device || facts.st_ino != f->shards[i].inode) return true;
    }
    if (!is_prefix(f)) return false;
    if (snprintf(pattern, sizeof pattern, "%s.[0-9]*", f->paths[0]) >= (int)sizeof pattern ||
        glob(pattern, 0, NULL, &matches) != 0)
        return false;
    size_t count = 0;
    for (size_t i = 0; i < matches.gl_pathc; i++)
        count += is_of_prefix(matches.gl_pathv[i], strlen(f->paths[0]));
    globfree(&matches);
    return count > f->shard_count && f->shard_count < f->watch.rank_count;
}

static cddp_status read_shard(cd_follow *f, shard *s, cddp_error *err)
{
    bool found = true;
    CD_TRY(cddp_shard_reader_resume(s->reader, err));
    while (found) {
        cddp_event event;
        CD_TRY(cddp_shard_reader_next(s->reader, &event, &found, err));
        if (!found) break;
        event.time_ns += s->offset;
        CD_TRY(cd_watch_push(&f->watch, &event, err));
    }
    const cddp_shard_header *h = header_of(s);
    if (h->rank >= f->watch.rank_count) return CDDP_OK; /* the header was changed meanwhile */
    cd_watch_rank *r = &f->watch.ranks[h->rank];
    r->process = (int64_t)h->process;
    const bool is_known =
        s->is_here && h->end == CDDP_SHARD_OPEN && h->process > 1 && h->process < INT32_MAX;
    r->is_cut |= h->end != CDDP_SHARD_OPEN && !r->has_ended;
    r->is_gone = is_known && !cd_os_process_is_running(r->process);
    r->is_stopped = is_known && cd_os_process_is_stopped(r->process);
    return CDDP_OK;
}

static cddp_status read_shards(cd_follow *f, cddp_error *err)
{
    if (!f->has_watch || is_new_job(f)) CD_TRY(open_shards(f, err));
    for (size_t i = 0; i < f->shard_count; i++) CD_TRY(read_shard(f, &f->shards[i], err));
    return CDDP_OK;
}

/* ---- a store ---- */

typedef struct store_look {
    cd_follow *follow;
    cddp_store *store;
    cddp_trace_sink sink;
    uint64_t written_ns, latest_ns; /* when the file was written; the last time in it */
    cddp_error failure;
    bool failed;
} store_look;

static void take_event(void *self, const cddp_event *event)
{
    store_look *l = self;
    if (event->time_ns > l->latest_ns) l->latest_ns = event->time_ns;
    if (l->failed) return;
    l->failed = cd_watch_push(&l->follow->watch, event, &l->failure) != CDDP_OK;
}

/* When the newest event was. Real processes count from the begin of their run. Virtual time says
** nothing: then the event is as old as the file. */
static uint64_t find_latest(const store_look *l, const cddp_stored_run *run)
{
    uint64_t begin_ns = 0;
    const bool is_real = strcmp(run->provenance.backend, "sim") != 0 &&
                         cd_provenance_read_time(run->provenance.recorded_at, &begin_ns);
    const bool is_sane =
        is_real && l->latest_ns < l->written_ns && begin_ns <= l->written_ns - l->latest_ns;
    return is_sane ? begin_ns + l->latest_ns : l->written_ns;
}

static cddp_status take_run(void *context, const cddp_stored_run *run, cddp_error *err)
{
    store_look *l = context;
    cd_follow *f = l->follow;
    uint32_t size = run->provenance.world_size;
    if (f->has_watch) cd_watch_fini(&f->watch);
    f->has_watch = false;
    /* a store may say anything of its size */
    if (size > run->event_count + 1) size = (uint32_t)run->event_count + 1;
    CD_TRY(cd_watch_init(&f->watch, size, err));
    f->has_watch = true;
    snprintf(f->program, sizeof f->program, "run %lld on %.60s: %.150s", (long long)run->run,
             run->provenance.backend, run->provenance.title);
    cd_text_clean(f->program);
    CD_TRY(cddp_store_each_event(l->store, run->run, CDDP_STORE_RECORDED, &l->sink, err));
    if (l->failed) return cd_fail(err, l->failure.status, "%s", l->failure.message);
    f->has_end = run->complete;
    const uint64_t shift_ns = find_latest(l, run) - l->latest_ns; /* modulo 2^64 */
    for (uint32_t i = 0; i < f->watch.rank_count; i++) f->watch.ranks[i].time_ns += shift_ns;
    return CDDP_OK;
}

static uint64_t wall_ns(const struct timespec *t)
{
    return (uint64_t)t->tv_sec * NS_PER_S + (uint64_t)t->tv_nsec;
}

static bool is_equal(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static cddp_status read_store(cd_follow *f, cddp_error *err)
{
    char path[4200];
    struct stat file = {0}, wal = {0};
    int64_t run = 0;
    snprintf(path, sizeof path, "%s-wal", f->paths[0]);
    if (stat(f->paths[0], &file) != 0)
        return cd_fail(err, cd_error_of_errno(errno), "cannot read '%s': %s", f->paths[0],
                       strerror(errno));
    if (stat(path, &wal) != 0) wal = (struct stat){0};
    if (f->has_watch && is_equal(&file.st_mtim, &f->store_time) &&
        is_equal(&wal.st_mtim, &f->wal_time) && file.st_size == f->store_bytes &&
        wal.st_size == f->wal_bytes)
        return CDDP_OK;
    f->store_time = file.st_mtim;
    f->wal_time = wal.st_mtim;
    f->store_bytes = file.st_size;
    f->wal_bytes = wal.st_size;
    store_look look = {.follow = f, .failure = CDDP_ERROR_INIT};
    look.written_ns = wall_ns(&file.st_mtim);
    if (wall_ns(&wal.st_mtim) > look.written_ns) look.written_ns = wall_ns(&wal.st_mtim);
    look.sink = (cddp_trace_sink){sizeof look.sink, CDDP_TRACE_ABI, &look, take_event, NULL};
    CD_TRY(cddp_store_open(f->paths[0], CDDP_STORE_READ, NULL, &look.store, err));
    cddp_status status = cddp_store_last_run(look.store, &run, err);
    if (status == CDDP_OK) status = cddp_store_each_run(look.store, run, take_run, &look, err);
    cddp_store_close(look.store);
    return status;
}

/* ---- both ---- */

static void read_boot(char *boot, size_t byte_count)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL) return;
    boot[fread(boot, 1, byte_count - 1, file)] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    fclose(file);
}

static cddp_status copy_paths(cd_follow *f, const char *const *paths, size_t path_count,
                              cddp_error *err)
{
    f->paths = cd_allocate_array(NULL, path_count, sizeof *f->paths);
    if (f->paths == NULL) return cd_fail_memory(err, "%zu names", path_count);
    f->path_count = path_count;
    for (size_t i = 0; i < path_count; i++) {
        char inside[4096];
        /* in a folder of cddp_torch the shards are called rank.0, rank.1, … */
        const bool is_folder = cd_folder_is(paths[i]);
        if (is_folder && snprintf(inside, sizeof inside, "%s/rank", paths[i]) >= (int)sizeof inside)
            return cd_fail(err, CDDP_E_ARG, "'%.100s…' is too long", paths[i]);
        if ((f->paths[i] = cd_strdup(NULL, is_folder ? inside : paths[i])) == NULL)
            return cd_fail_memory(err, "%zu names", path_count);
    }
    return CDDP_OK;
}

cddp_status cd_follow_open(const char *const *paths, size_t path_count, cd_follow **follow,
                           cddp_error *err)
{
    cd_follow *f = cd_allocate_zero(NULL, sizeof *f);
    if (f == NULL) return cd_fail_memory(err, "watching %zu files", path_count);
    gethostname(f->host, sizeof f->host - 1);
    read_boot(f->boot, sizeof f->boot);
    const cddp_status status = copy_paths(f, paths, path_count, err);
    if (status != CDDP_OK) {
        cd_follow_close(f);
        return status;
    }
    f->is_store =
        path_count == 1 && !cd_os_is_absent(f->paths[0]) && !cd_shards_is_shard(f->paths[0]);
    *follow = f;
    return CDDP_OK;
}

void cd_follow_close(cd_follow *f)
{
    if (f == NULL) return;
    forget(f);
    cd_release(NULL, f->shards, f->shard_capacity * sizeof *f->shards);
    for (size_t i = 0; i < f->path_count; i++) cd_strfree(NULL, f->paths[i]);
    cd_release(NULL, f->paths, f->path_count * sizeof *f->paths);
    cd_release(NULL, f, sizeof *f);
}

cddp_status cd_follow_read(cd_follow *f, const cd_watch **watch, cddp_error *err)
{
    CD_TRY(f->is_store ? read_store(f, err) : read_shards(f, err));
    if (f->is_store) {
        const bool is_open = cd_store_is_open(f->paths[0]);
        f->watch.is_whole = f->has_end;
        f->watch.is_growing = !f->has_end && is_open;
        f->watch.is_abandoned = !f->has_end && !is_open;
    }
    CD_TRY(cd_watch_settle(&f->watch, now_ns(), err));
    *watch = &f->watch;
    return CDDP_OK;
}

const char *cd_follow_program(const cd_follow *f) { return f->program; }
