/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/shards.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/os.h"
#include "core/trace/rank_end.h"
#include "verify/import/clocks.h"
#include "verify/import/ends.h"
#include "verify/import/leavers.h"
#include "verify/import/notes.h"

#include <stdio.h>
#include <string.h>

#define STALL_NS UINT64_C(30000000000)

typedef struct shard {
    cddp_shard_reader *reader;
    const char *path; /* borrowed */
    uint32_t domain;
    cddp_event event;     /* the next one, valid while pending */
    uint64_t event_count; /* shown so far */
    uint32_t step;        /* of the last of them */
    cd_leaver leaver;
    bool is_pending, has_ended;
    bool has_given_up; /* its recorder failed, and the program went on */
} shard;

struct cd_shards {
    char **paths;  /* (shard_count) */
    shard *shards; /* (shard_count) by generation, then rank */
    size_t shard_count, path_count;
    cd_clocks clocks;
    uint64_t stall_ns;
    size_t *runs; /* (run_count + 1) first shard of each run */
    size_t run_count;
};

bool cd_shards_is_shard(const char *path)
{
    uint64_t magic = 0;
    FILE *file = NULL;
    if (cd_os_open_regular(path, &file, NULL) != CDDP_OK) return false;
    const bool is = fread(&magic, sizeof magic, 1, file) == 1 && magic == CDDP_SHARD_MAGIC;
    fclose(file);
    return is;
}

static const cddp_shard_header *header_of(const shard *s)
{
    return cddp_shard_reader_header(s->reader);
}

/* ---- opening ---- */

static bool comes_first(const shard *a, const shard *b)
{
    const cddp_shard_header *x = header_of(a), *y = header_of(b);
    return x->generation != y->generation ? x->generation < y->generation : x->rank < y->rank;
}

/* Few, and mostly in order already. */
static void sort(cd_shards *s)
{
    for (size_t i = 1; i < s->shard_count; i++) {
        const shard moving = s->shards[i];
        size_t at = i;
        for (; at > 0 && comes_first(&moving, &s->shards[at - 1]); at--)
            s->shards[at] = s->shards[at - 1];
        s->shards[at] = moving;
    }
}

/* Of two generations by one clock. A job that restarted leaves files that a later job without a
** restart does not replace. */
static bool is_stale_restart(const cddp_shard_header *x, const cddp_shard_header *y)
{
    const bool is_one_clock = strncmp(x->host, y->host, sizeof x->host) == 0 &&
                              strncmp(x->boot, y->boot, sizeof x->boot) == 0;
    return is_one_clock && x->generation < y->generation && y->monotonic_ns < x->monotonic_ns;
}

/* Files of two jobs are easily mixed by a wildcard. */
static cddp_status check_pair(const shard *a, const shard *b, cddp_error *err)
{
    const cddp_shard_header *x = header_of(a), *y = header_of(b);
    const bool is_of_runs = x->job >> 48 == CDDP_SHARD_RUN && y->job >> 48 == CDDP_SHARD_RUN;
    if (x->job != 0 && y->job != 0 && x->job != y->job &&
        !(is_of_runs && x->generation != y->generation))
        return cd_fail(err, CDDP_E_MISMATCH, "%s and %s are of different jobs", a->path, b->path);
    if (is_stale_restart(x, y))
        return cd_fail(err, CDDP_E_MISMATCH,
                       "%s is of restart %u and began before %s of restart %u: they are of "
                       "different jobs",
                       b->path, y->generation, a->path, x->generation);
    if (x->generation != y->generation) return CDDP_OK;
    if (x->world_size != y->world_size)
        return cd_fail(err, CDDP_E_MISMATCH, "%s is of a job of %u rank%s, %s of one of %u",
                       a->path, x->world_size, x->world_size == 1 ? "" : "s", b->path,
                       y->world_size);
    if (x->rank == y->rank)
        return cd_fail(err, CDDP_E_MISMATCH, "%s and %s are both of rank %u", a->path, b->path,
                       x->rank);
    return CDDP_OK;
}

static cddp_status group_runs(cd_shards *s, cddp_error *err)
{
    s->runs = cd_allocate_array(NULL, s->shard_count + 1, sizeof *s->runs);
    if (s->runs == NULL) return cd_fail_memory(err, "%zu shards", s->shard_count);
    for (size_t i = 0; i < s->shard_count; i++) {
        if (i > 0) CD_TRY(check_pair(&s->shards[i - 1], &s->shards[i], err));
        const bool is_first = i == 0 || header_of(&s->shards[i])->generation !=
                                            header_of(&s->shards[i - 1])->generation;
        if (is_first) s->runs[s->run_count++] = i;
    }
    s->runs[s->run_count] = s->shard_count;
    return CDDP_OK;
}

/* The beginning of every shard, for the clocks of several hosts. */
static cddp_status read_clocks(cd_shards *s, cddp_error *err)
{
    for (size_t i = 0; i < s->shard_count && s->clocks.domain_count > 1; i++) {
        bool found = true, is_enough = false;
        while (found && !is_enough) {
            cddp_event event;
            CD_TRY(cddp_shard_reader_next(s->shards[i].reader, &event, &found, err));
            if (found)
                CD_TRY(cd_clocks_push(&s->clocks, s->shards[i].domain, &event, &is_enough, err));
        }
    }
    cd_clocks_settle(&s->clocks);
    return CDDP_OK;
}

static cddp_status open_all(cd_shards *s, const char *const *paths, cddp_error *err)
{
    for (size_t i = 0; i < s->shard_count; i++) {
        shard *one = &s->shards[i];
        s->paths[i] = cd_strdup(NULL, paths[i]);
        if (s->paths[i] == NULL) return cd_fail_memory(err, "%s", paths[i]);
        one->path = s->paths[i];
        CD_TRY(cddp_shard_reader_open(paths[i], &one->reader, err));
    }
    sort(s);
    CD_TRY(group_runs(s, err));
    for (size_t i = 0; i < s->shard_count; i++)
        CD_TRY(cd_clocks_add(&s->clocks, header_of(&s->shards[i]), &s->shards[i].domain, err));
    return CD_PASS(read_clocks(s, err));
}

cddp_status cd_shards_open(const char *const *paths, size_t path_count, cd_shards **shards,
                           cddp_error *err)
{
    cd_shards *s = cd_allocate_zero(NULL, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "%zu shards", path_count);
    s->path_count = path_count;
    s->paths = cd_allocate_array(NULL, path_count, sizeof *s->paths);
    s->shards = cd_allocate_array(NULL, path_count, sizeof *s->shards);
    s->shard_count = s->paths != NULL && s->shards != NULL ? path_count : 0;
    s->stall_ns = STALL_NS;
    cd_clocks_init(&s->clocks, NULL);
    const cddp_status status = s->shard_count > 0 ? open_all(s, paths, err)
                                                  : cd_fail_memory(err, "%zu shards", path_count);
    if (status == CDDP_OK)
        *shards = s;
    else
        cd_shards_close(s);
    return status;
}

void cd_shards_close(cd_shards *s)
{
    if (s == NULL) return;
    for (size_t i = 0; i < s->shard_count; i++) {
        cddp_shard_reader_close(s->shards[i].reader);
        cd_strfree(NULL, s->paths[i]);
    }
    cd_clocks_fini(&s->clocks);
    cd_release(NULL, s->runs, (s->shard_count + 1) * sizeof *s->runs);
    cd_release(NULL, s->paths, s->path_count * sizeof *s->paths);
    cd_release(NULL, s->shards, s->path_count * sizeof *s->shards);
    cd_release(NULL, s, sizeof *s);
}

/* ---- reading ---- */

void cd_shards_set_stall(cd_shards *shards, uint64_t stall_ns) { shards->stall_ns = stall_ns; }

uint64_t cd_shards_get_stall(const cd_shards *shards) { return shards->stall_ns; }

size_t cd_shards_run_count(const cd_shards *shards) { return shards->run_count; }

static bool is_same_host(const cddp_shard_header *a, const cddp_shard_header *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->boot, b->boot) == 0;
}

void cd_shards_get(const cd_shards *s, size_t run, cd_shards_run *found)
{
    const size_t first = s->runs[run], end = s->runs[run + 1];
    const cddp_shard_header *h = header_of(&s->shards[first]);
    cd_shards_run r = {.generation = h->generation,
                       .world_size = h->world_size,
                       .level = h->level,
                       .rank_count = (uint32_t)(end - first),
                       .missing = h->world_size,
                       .cut = h->world_size,
                       .failure = "",
                       .program = h->program};
    for (size_t i = first; i < end; i++) {
        h = header_of(&s->shards[i]);
        if (r.missing == r.world_size && h->rank != i - first) r.missing = (uint32_t)(i - first);
        if (h->level < r.level) r.level = h->level;
        if (h->end == CDDP_SHARD_FULL && r.cut == r.world_size) {
            r.cut = h->rank;
            r.lost = h->lost;
            r.failure = h->failure;
        }
        r.identity = cd_hash_mix(r.identity, h->realtime_ns);
        r.identity = cd_hash_mix(r.identity, ((uint64_t)h->rank << 32) ^ h->process);
        size_t other = first;
        while (other < i && !is_same_host(header_of(&s->shards[other]), h)) other++;
        r.host_count += other == i;
    }
    if (r.missing == r.world_size && r.rank_count < r.world_size) r.missing = r.rank_count;
    *found = r;
}

/* A rank that ended well while others went on did not. */
static void take_early_end(const shard *one, cddp_event *e)
{
    if (e->kind != CDDP_EV_rank_end || !one->leaver.has_left_early) return;
    e->as.rank_end = (cddp_event_rank_end){.status = CDDP_E_ABORTED, .end = CDDP_RANK_CRASHED};
    e->text = one->leaver.has_exited
                  ? "it left without cddp_record_close, while the other ranks went on"
                  : "it closed its recording (cddp_record_close), while the other ranks went on";
}

static cddp_status advance(const cd_shards *s, shard *one, cddp_error *err)
{
    CD_TRY(cddp_shard_reader_next(one->reader, &one->event, &one->is_pending, err));
    if (!one->is_pending) return CDDP_OK;
    take_early_end(one, &one->event);
    one->event.time_ns = cd_clocks_time(&s->clocks, one->domain, one->event.time_ns);
    one->has_ended |= one->event.kind == CDDP_EV_rank_end;
    one->has_given_up |= cd_watch_is_failure(&one->event);
    return CDDP_OK;
}

/* Shards are in the order of their ranks, and the first of several stays. */
static shard *find_least(shard *shards, size_t count)
{
    shard *least = NULL;
    for (size_t i = 0; i < count; i++)
        if (shards[i].is_pending &&
            (least == NULL || shards[i].event.time_ns < least->event.time_ns))
            least = &shards[i];
    return least;
}

static void emit_frame(const cddp_trace_sink *sink, cddp_event *event)
{
    event->rank = UINT32_MAX;
    sink->event(sink->self, event);
}

typedef enum whereabouts { IS_GONE, IS_RUNNING, IS_ELSEWHERE } whereabouts;

/* Only the machine that it ran on can know. */
static whereabouts find_process(const cddp_shard_header *h)
{
    char boot[sizeof h->boot];
    cd_os_read_boot(boot, sizeof boot);
    if (boot[0] == '\0' || strcmp(boot, h->boot) != 0) return IS_ELSEWHERE;
    return cd_os_process_is_running((int64_t)h->process) ? IS_RUNNING : IS_GONE;
}

static bool lacks_end(const shard *s)
{
    return !s->has_ended && header_of(s)->end == CDDP_SHARD_OPEN;
}

/* Only a job in which some ranks have an end and others have none is read a second time. */
static cddp_status find_leavers(shard *shards, size_t count, cddp_error *err)
{
    cd_leaver *leavers = NULL;
    size_t open = 0;
    for (size_t i = 0; i < count; i++) {
        open += header_of(&shards[i])->end == CDDP_SHARD_OPEN;
        shards[i].leaver = (cd_leaver){.work = 0};
    }
    if (open == 0 || open == count) return CDDP_OK;
    leavers = cd_allocate_array(NULL, count, sizeof *leavers);
    cddp_status status = leavers != NULL ? CDDP_OK : cd_fail_memory(err, "%zu ranks", count);
    for (size_t i = 0; status == CDDP_OK && i < count; i++) {
        shard *one = &shards[i];
        cd_note note;
        cddp_shard_reader_rewind(one->reader);
        for (;;) {
            status = cddp_shard_reader_next(one->reader, &one->event, &one->is_pending, err);
            if (status != CDDP_OK || !one->is_pending) break;
            cd_leaver_push(&leavers[i], &one->event);
        }
        leavers[i].is_open = header_of(one)->end == CDDP_SHARD_OPEN && !leavers[i].has_ended &&
                             !leavers[i].has_failed && !cd_note_read(one->path, &note) &&
                             find_process(header_of(one)) != IS_RUNNING;
    }
    if (status == CDDP_OK) cd_leavers_settle(leavers, count);
    for (size_t i = 0; status == CDDP_OK && i < count; i++) shards[i].leaver = leavers[i];
    cd_release(NULL, leavers, count * sizeof *leavers);
    return CD_PASS(status);
}

/* What is known of the process of each rank; found by ends.h from it: who hung. */
static cddp_status settle_ends(const cd_shards *s, const shard *shards, size_t count, cd_ends *ends,
                               cddp_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const shard *one = &shards[i];
        const uint64_t alive_ns = cddp_shard_reader_alive(one->reader);
        cd_ends_rank *r = &ends->ranks[header_of(one)->rank];
        cd_note note = {.code = -1};
        r->is_running = find_process(header_of(one)) == IS_RUNNING;
        if (alive_ns != 0) {
            const uint64_t until_ns = cd_clocks_time(&s->clocks, one->domain, alive_ns);
            r->has_pulse = true;
            if (until_ns > r->until_ns) r->until_ns = until_ns;
        }
        if (one->has_ended)
            r->left = CD_LEFT_BY_END;
        else if (one->has_given_up || !lacks_end(one))
            r->left = CD_LEFT_BY_CUT;
        else if (cd_note_read(one->path, &note) && !note.is_stopped && !note.is_interrupted)
            r->left = CD_LEFT_BY_DEATH;
    }
    return CD_PASS(cd_ends_settle(ends, err));
}

/* A process that was killed cannot say so. Its parent can; or others came to their end, and this
** one did not; or the others waited for it after it had gone. Of a job that was ended as a whole it
** says what each rank did then. */
static void emit_end(const shard *s, const cd_ends *ends, uint64_t time_ns, bool is_over,
                     const cddp_trace_sink *sink)
{
    const whereabouts where = find_process(header_of(s));
    const uint32_t rank = header_of(s)->rank;
    const cd_ends_rank *r = &ends->ranks[rank];
    char doing[300];
    cd_note note = {.code = -1};
    const bool has_note = cd_note_read(s->path, &note);
    cddp_event event = {.time_ns = time_ns,
                        .sequence = s->event_count,
                        .rank = rank,
                        .step = s->step,
                        .kind = CDDP_EV_rank_end,
                        .text = where == IS_GONE
                                    ? "its recording stops without an end: it was killed, it "
                                      "crashed, or it left by _exit"
                                    : "its recording stops without an end: it was killed or "
                                      "crashed, or it still runs on its machine"};
    event.as.rank_end = (cddp_event_rank_end){.status = CDDP_E_ABORTED, .end = CDDP_RANK_KILLED};
    cd_ends_print(ends, rank, doing, sizeof doing);
    const bool is_ended = note.is_interrupted || (note.is_stopped && r->has_pulse) ||
                          s->leaver.was_ended || (!has_note && (!is_over || where == IS_RUNNING));
    /* It left with 0 where nobody missed it: its end was not recorded, and that is all. */
    const bool has_left =
        has_note && note.signal == 0 && note.code == 0 && !is_over && !ends->has_hung;
    /* its recorder failed, and the program went on */
    if (s->has_given_up && (has_note ? note.signal == 0 && note.code == 0 : !is_over)) return;
    const bool is_still =
        where == IS_RUNNING && cd_os_process_is_stopped((int64_t)header_of(s)->process);
    if (is_still || (r->is_early && has_note && note.is_stopped)) {
        event.as.rank_end.detail = CD_RANK_STOPPED;
        event.text = is_still ? "its process stands still (SIGSTOP)"
                              : "its process stood still (SIGSTOP) until the job was ended";
    } else if (r->is_early) {
        event.text =
            "its process was gone, or stood still (SIGSTOP), long before the ranks that waited";
    } else if (r->is_hung) {
        event.as.rank_end = (cddp_event_rank_end){.status = CDDP_E_TIMEOUT, .end = CDDP_RANK_HUNG};
        event.text = doing;
    } else if (is_ended || has_left) {
        event.as.rank_end.end = CDDP_RANK_INTERRUPTED;
        event.text =
            has_left ? "its process left with exit code 0 before the end of its recording" : doing;
    } else if (has_note) {
        cd_note_fill(&note, &event);
    }
    sink->event(sink->self, &event);
}

/* Ranks that left a note and no shard: they failed before they had a group. Of one that left with 0
** nothing says that it had none: its shard was not brought here. */
static void emit_absent(const shard *shards, size_t count, uint64_t time_ns,
                        const cddp_trace_sink *sink)
{
    const cddp_shard_header *h = header_of(&shards[0]);
    const char *slash = strrchr(shards[0].path, '/');
    const int folder = slash != NULL ? (int)(slash - shards[0].path) + 1 : 0;
    for (uint32_t rank = 0, at = 0; rank < h->world_size; rank++) {
        char path[4096], generation[16] = "";
        cd_note note;
        cddp_event event = {.time_ns = time_ns, .rank = rank};
        if (at < count && header_of(&shards[at])->rank == rank) {
            at++;
            continue;
        }
        if (h->generation > 0) snprintf(generation, sizeof generation, ".%u", h->generation);
        snprintf(path, sizeof path, "%.*srank.%u%s", folder, shards[0].path, rank, generation);
        if (!cd_note_read(path, &note)) continue;
        if (note.signal <= 0 && note.code == 0 && !note.is_stopped && !note.is_interrupted)
            continue;
        cd_note_fill(&note, &event);
        sink->event(sink->self, &event);
    }
}

static cddp_status replay(cd_shards *s, size_t run, cd_ends *ends, const cddp_trace_sink *sink,
                          cddp_error *err)
{
    shard *shards = &s->shards[s->runs[run]];
    const size_t count = s->runs[run + 1] - s->runs[run];
    cd_shards_run facts;
    cd_shards_get(s, run, &facts);
    cddp_event frame = {.kind = CDDP_EV_run_begin, .level = (uint16_t)facts.level};
    frame.text = facts.program;
    frame.as.run_begin = (cddp_event_run_begin){.world_size = facts.world_size,
                                                .plan = (int64_t)facts.identity,
                                                .level = facts.level};
    emit_frame(sink, &frame);
    CD_TRY(find_leavers(shards, count, err));
    for (size_t i = 0; i < count; i++) {
        cddp_shard_reader_rewind(shards[i].reader);
        shards[i].has_ended = shards[i].has_given_up = false;
        shards[i].event_count = 0;
        CD_TRY(advance(s, &shards[i], err));
    }
    bool is_complete = facts.missing == facts.world_size, is_over = false;
    for (shard *one = find_least(shards, count); one != NULL; one = find_least(shards, count)) {
        frame.time_ns = one->event.time_ns;
        one->event_count++;
        one->step = one->event.step;
        CD_TRY(cd_ends_push(ends, &one->event, err));
        sink->event(sink->self, &one->event);
        CD_TRY(advance(s, one, err));
    }
    for (size_t i = 0; i < count; i++) {
        is_complete &= shards[i].has_ended;
        is_over |= shards[i].has_ended;
    }
    CD_TRY(settle_ends(s, shards, count, ends, err));
    for (size_t i = 0; i < count; i++)
        if (lacks_end(&shards[i])) emit_end(&shards[i], ends, frame.time_ns, is_over, sink);
    if (!is_complete) emit_absent(shards, count, frame.time_ns, sink);
    frame.kind = CDDP_EV_run_end;
    frame.sequence = 1;
    frame.text = NULL;
    memset(&frame.as, 0, sizeof frame.as);
    frame.as.run_end.complete = is_complete;
    emit_frame(sink, &frame);
    return CDDP_OK;
}

cddp_status cd_shards_replay(cd_shards *s, size_t run, const cddp_trace_sink *sink, cddp_error *err)
{
    cd_ends ends;
    CD_TRY(cd_ends_init(&ends, header_of(&s->shards[s->runs[run]])->world_size, s->stall_ns, err));
    const cddp_status status = replay(s, run, &ends, sink, err);
    cd_ends_fini(&ends);
    return CD_PASS(status);
}
