/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps windows by the reduction they were computed for, and limits failed ones. */
#include "core/oracle/share.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#define WINDOWS_MAX CD_FAILED_REFERENCES_MAX
/* for all windows of a shelf together, unless a single one has more */
#define WINDOW_ELEMENTS_MAX ((size_t)1 << 18)
/* local gradients that are recomputed to explain an error */
#define EXPLAIN_VALUES_MAX (UINT64_C(1) << 23)

void cd_share_init(cd_oracle_share *share, const cddp_allocator *allocator, bool is_single)
{
    *share = (cd_oracle_share){.allocator = allocator, .is_single = is_single};
}

void cd_share_fini(cd_oracle_share *share)
{
    for (size_t s = 0; s < 2; s++) {
        cd_shelf *shelf = &share->shelves[s];
        for (size_t i = 0; i < shelf->count; i++) cd_window_fini(&shelf->windows[i]);
        cd_release(share->allocator, shelf->windows, shelf->count * sizeof *shelf->windows);
    }
    cd_share_init(share, share->allocator, share->is_single);
}

static size_t shelf_index(const cd_oracle_share *share, uint32_t step)
{
    return share->is_single ? 0 : step % 2;
}

/* As many windows as the size of the model allows; a form has a term per rank. */
static size_t windows_for(const cd_oracle_share *share, const cd_start *start)
{
    size_t elements = start->offsets[start->parameter_count];
    if (start->parameter_count > 0 && (start->values[0].device->flags & CDDP_DEVICE_EXACT) != 0)
        elements *= start->world_size;
    size_t count = elements > 0 ? WINDOW_ELEMENTS_MAX / elements : 1;
    if (share->is_single || count < 1) return 1;
    return count < WINDOWS_MAX ? count : WINDOWS_MAX;
}

static cddp_status open_shelf(cd_oracle_share *share, cd_shelf *shelf, const cd_start *start,
                              cddp_error *err)
{
    if (shelf->windows != NULL) return CDDP_OK;
    size_t count = windows_for(share, start);
    shelf->windows = cd_allocate_array(share->allocator, count, sizeof *shelf->windows);
    if (shelf->windows == NULL) return cd_fail_memory(err, "%zu references", count);
    shelf->count = count;
    for (size_t i = 0; i < count; i++) cd_window_init(&shelf->windows[i], share->allocator);
    return CDDP_OK;
}

static bool is_over(const cd_shelf *shelf, const cd_window *w)
{
    return w->step != shelf->step || w->micro_first != shelf->micro_first ||
           w->micro_step != shelf->micro_step;
}

/* The window of this reduction; else one of a finished reduction, so that agreeing ranks need one
** window; else the least recently used. */
static cd_window *pick_window(cd_shelf *shelf, const cd_start *start,
                              const cd_oracle_reduction *reduction)
{
    cd_window *oldest = NULL, *over = NULL;
    for (size_t i = 0; i < shelf->count; i++) {
        cd_window *w = &shelf->windows[i];
        if (cd_window_holds(w, start, reduction)) return w;
        if (over == NULL && w->used > 0 && is_over(shelf, w)) over = w;
        if (oldest == NULL || w->used < oldest->used) oldest = w;
    }
    return over != NULL ? over : oldest;
}

cddp_status cd_share_find(cd_oracle_share *share, const cd_start *start,
                          const cd_oracle_reduction *reduction, cd_window **window, cddp_error *err)
{
    cd_shelf *shelf = &share->shelves[shelf_index(share, reduction->step)];
    CD_TRY(open_shelf(share, shelf, start, err));
    bool is_another = shelf->step != reduction->step ||
                      shelf->micro_first != reduction->micro_first ||
                      shelf->micro_step != reduction->micro_step;
    if (is_another) {
        shelf->failed = 0;
        shelf->step = reduction->step;
        shelf->micro_first = reduction->micro_first;
        shelf->micro_step = reduction->micro_step;
    }
    cd_window *w = pick_window(shelf, start, reduction);
    *window = shelf->latest = NULL;
    if (!cd_window_holds(w, start, reduction)) {
        if (shelf->failed >= CD_FAILED_REFERENCES_MAX) return CDDP_OK;
        share->computed++;
        w->rounds = shelf->rounds;
        CD_TRY(cd_window_compute(w, start, reduction, err));
        shelf->rounds = w->rounds;
    }
    w->used = ++share->clock;
    *window = shelf->latest = w;
    return CDDP_OK;
}

const cd_window *cd_share_latest(const cd_oracle_share *share, uint32_t step)
{
    return share->shelves[shelf_index(share, step)].latest;
}

const cd_window *cd_share_previous(const cd_oracle_share *share, const cd_window *window)
{
    if (window->step == 0 || share->is_single) return NULL;
    const cd_shelf *shelf = &share->shelves[shelf_index(share, window->step - 1)];
    for (size_t i = 0; i < shelf->count; i++) {
        const cd_window *w = &shelf->windows[i];
        if (w->is_valid && w->step + 1 == window->step && !w->has_failed) return w;
    }
    return NULL;
}

static bool is_known_wrong(const cd_shelf *shelf, uint64_t digest)
{
    bool is_known = false;
    for (uint32_t i = 0; i < shelf->wrong_count; i++)
        is_known = is_known || shelf->wrong[i] == digest;
    return is_known;
}

bool cd_share_judges_statistics(const cd_oracle_share *share, uint32_t step, uint64_t digest)
{
    const cd_shelf *shelf = &share->shelves[shelf_index(share, step)];
    return shelf->wrong_step != step || shelf->wrong_count < CD_FAILED_REFERENCES_MAX ||
           is_known_wrong(shelf, digest);
}

void cd_share_note_wrong_statistics(cd_oracle_share *share, uint32_t step, uint64_t digest)
{
    cd_shelf *shelf = &share->shelves[shelf_index(share, step)];
    if (shelf->wrong_step != step) shelf->wrong_count = 0;
    shelf->wrong_step = step;
    if (shelf->wrong_count < CD_FAILED_REFERENCES_MAX && !is_known_wrong(shelf, digest))
        shelf->wrong[shelf->wrong_count++] = digest;
}

void cd_share_note_failed(cd_oracle_share *share, cd_window *window)
{
    if (!window->has_failed) share->shelves[shelf_index(share, window->step)].failed++;
    window->has_failed = true;
}

/* Releases the locals of other windows, which can gather them again. */
static void make_room(cd_oracle_share *share, uint64_t values)
{
    uint64_t held = 0;
    for (int release = 0; release < 2; release++) {
        for (size_t s = 0; s < 2; s++) {
            const cd_shelf *shelf = &share->shelves[s];
            for (size_t i = 0; i < shelf->count; i++) {
                cd_window *w = &shelf->windows[i];
                if (release == 0 && w->has_locals)
                    held +=
                        (uint64_t)w->locals.numel * w->locals.rank_count * w->locals.micro_count;
                if (release == 1) cd_window_release_locals(w);
            }
        }
        if (held + values <= EXPLAIN_VALUES_MAX) return;
    }
}

cddp_status cd_share_gather(cd_oracle_share *share, cd_window *window, const cd_start *start,
                            const cd_oracle_reduction *reduction, cddp_error *err)
{
    uint64_t micros = reduction->micro_step - reduction->micro_first + 1;
    uint64_t values = start->offsets[start->parameter_count] * start->world_size * micros;
    if (values > EXPLAIN_VALUES_MAX) return CDDP_OK;
    if (!window->has_locals) make_room(share, values);
    CD_TRY(cd_window_gather(window, start, reduction, err));
    return CDDP_OK;
}
