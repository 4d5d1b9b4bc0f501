/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets that leave and return, and the sums that every law is made of.
**
** Note [Bounds of a mean] Shares are divided by the number of ranks, rounded, and added in some
** order, W - 1 additions, in the dtype of the sum: γ(W + 1)·Σ|share|/W, and η for each operation.
** The result is rounded to its own dtype: u·(1 + γ)·Σ|share|/W and η. Each rank states its own
** part, with the size of the weights. The sums here round in f64: n·2^-52 of Σ|weight·number|.
*/
#include "core/oracle/hook_law/state.h"

#include "cddp/device.h"
#include "cddp/hook.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/oracle/emit.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 14)
#define FLIGHTS_MAX ((size_t)1 << 20)

/* ---- life ---- */

cddp_status cd_hook_law_create(const cd_hook_law_options *options, cd_hook_law **law,
                               cddp_error *err)
{
    cd_arena memory;
    cd_arena_init(&memory, options->allocator, MEMORY_BLOCK_BYTES);
    cd_hook_law *l = cd_arena_push(&memory, sizeof *l);
    cd_law_variable *variables =
        cd_arena_array(&memory, options->variable_count + 1, sizeof *variables);
    cddp_tensor *forms = cd_arena_array(&memory, options->variable_count + 1, sizeof *forms);
    const char *words = options->words.options;
    const size_t word_bytes = words != NULL ? strlen(words) + 1 : 0;
    char *kept = cd_arena_array(&memory, word_bytes + 1, sizeof *kept);
    if (memory.exhausted) {
        cd_arena_fini(&memory);
        return cd_fail_memory(err, "the judge of hooks of rank %u", options->rank);
    }
    if (options->variable_count > 0)
        memcpy(forms, options->forms, options->variable_count * sizeof *forms);
    l->memory = memory;
    l->options = *options;
    l->options.forms = forms;
    l->variables = variables;
    l->planned_size = options->world_size;
    l->numbers.allocator = l->scratch.allocator = options->allocator;
    cd_planned_hook_read(&options->words, &l->hook);
    if (options->is_mixed_precision) cd_planned_hook_cast(&l->hook, options->mixed_wire);
    if (word_bytes > 0) memcpy(kept, words, word_bytes);
    l->options.words =
        (cd_planned_words){l->hook.name, l->hook.inner, word_bytes > 0 ? kept : NULL};
    *law = l;
    return CDDP_OK;
}

void cd_hook_law_destroy(cd_hook_law *law)
{
    if (law == NULL) return;
    cd_numbers_fini(&law->numbers);
    cd_numbers_fini(&law->scratch);
    cd_arena_fini(&law->memory);
}

/* ---- parts ---- */

void cd_law_bucket_promise(cd_law_bucket *b, uint32_t flags)
{
    static const struct {
        uint32_t flag;
        const char *followed;
    } laws[] = {{CDDP_HOOK_LAW_TOPK, "topk"},
                {CDDP_HOOK_LAW_POWERSGD, "powersgd"},
                {CDDP_HOOK_LAW_QUANTIZE_PER_TENSOR, "quantize_per_tensor"},
                {CDDP_HOOK_LAW_QUANTIZE_PER_CHANNEL, "quantize_per_channel"}};
    const uint32_t means = CDDP_HOOK_EXACT | CDDP_HOOK_ROUNDED_ONCE | CDDP_HOOK_CASTS_FIRST;
    b->is_mean_promised = (flags & means) != 0;
    b->is_nothing_promised = (flags & CDDP_HOOK_NO_COMM) != 0;
    b->followed = NULL;
    for (size_t i = 0; i < sizeof laws / sizeof laws[0]; i++)
        if ((flags & laws[i].flag) != 0) b->followed = laws[i].followed;
}

double cd_law_weight(const cd_hook_law *law, uint32_t number, int64_t place)
{
    const uint64_t drawn =
        cd_hash_mix(cd_hash_mix(law->options.seed, number + 1), (uint64_t)place + 1);
    return (double)(2 * (int64_t)(drawn >> 61) - 7);
}

cddp_status cd_law_reserve(cd_hook_law *law, size_t count, double **numbers, cddp_error *err)
{
    if (count > law->room_count) {
        law->room = cd_arena_array(&law->memory, count, sizeof *law->room);
        law->room_count = law->room != NULL ? count : 0;
        CD_TRY(cd_arena_check(&law->memory, err, "%zu numbers of a bucket", count));
    }
    *numbers = law->room;
    return CDDP_OK;
}

cddp_status cd_law_find_debt(cd_hook_law *law, uint32_t variable, int64_t numel, double **debt,
                             cddp_error *err)
{
    cd_law_variable *v = &law->variables[variable];
    if (v->debt == NULL || v->numel != numel) {
        v->debt = cd_arena_array(&law->memory, (size_t)numel + 1, sizeof *v->debt);
        v->numel = numel;
        CD_TRY(cd_arena_check(&law->memory, err, "the debt of variable %u", variable));
    }
    v->has_slot = true;
    *debt = v->debt;
    return CDDP_OK;
}

static bool is_readable(const cd_hook_law *law, const cd_law_bucket *b)
{
    const cddp_tensor *flat = b->flat;
    if (flat->device == NULL || (flat->device->flags & CDDP_DEVICE_VALUES) == 0 ||
        !cddp_dtype_is_float(flat->dtype) || !cddp_tensor_is_contiguous(flat))
        return false;
    for (uint32_t i = 0; i < b->count; i++)
        if (b->variables[i] >= law->options.variable_count) return false;
    return b->count > 0;
}

static cddp_status find_flight(cd_hook_law *law, uint32_t index, cd_law_flight **flight,
                               cddp_error *err)
{
    if (index >= law->flight_count) {
        const size_t count = ((size_t)index + 8) * 2;
        cd_law_flight *flights = cd_arena_array(&law->memory, count, sizeof *flights);
        CD_TRY(cd_arena_check(&law->memory, err, "%zu buckets of the judge of hooks", count));
        if (law->flight_count > 0)
            memcpy(flights, law->flights, law->flight_count * sizeof *flights);
        law->flights = flights;
        law->flight_count = count;
    }
    *flight = &law->flights[index];
    return CDDP_OK;
}

/* ---- what leaves ---- */

/* Reads what left, as the hook's arithmetic sees it. */
static cddp_status take(cd_hook_law *law, const cd_law_bucket *b, cd_law_flight *f, cddp_error *err)
{
    const int64_t numel = cddp_tensor_numel(b->flat);
    double *room = f->share;
    if (room == NULL || f->room < numel) {
        room = cd_arena_array(&law->memory, (size_t)numel + 1, sizeof *room);
        CD_TRY(cd_arena_check(&law->memory, err, "bucket %u", b->index));
        f->room = numel;
    }
    const bool is_known = law->hook.kind != CD_PLANNED_UNKNOWN || law->hook.is_wrapped;
    const cddp_dtype own = b->flat->dtype, low = is_known ? law->hook.low : b->wire,
                     lower = is_known ? law->hook.lower : b->wire;
    *f = (cd_law_flight){.share = room,
                         .room = f->room,
                         .is_regular = true,
                         .matrices = f->matrices,
                         .matrix_room = f->matrix_room,
                         .factors = f->factors,
                         .factor_room = f->factor_room,
                         .parts = {f->parts[0], f->parts[1]},
                         .part_room = {f->part_room[0], f->part_room[1]},
                         .generation = b->generation,
                         .first_variable = b->variables[0],
                         .numel = numel,
                         .dtype = lower != CDDP_DTYPE_COUNT ? lower : own,
                         .iteration = law->iteration};
    CD_TRY(cd_numbers_read(&law->numbers, b->flat, err));
    for (int64_t i = 0; i < numel; i++) {
        const double once =
            cd_law_round(low != CDDP_DTYPE_COUNT ? low : own, law->numbers.values[i]);
        room[i] = cd_law_round(f->dtype, once);
    }
    return CDDP_OK;
}

/* A hook casts and divides by functions of its device. What these do wrongly is no hook's mistake:
** then nothing is said of the hook. Asked once for each dtype and number of ranks. */
static cddp_status try_device(cd_hook_law *law, const cddp_device *device, cddp_dtype dtype,
                              cddp_error *err)
{
    enum { COUNT = 16 };
    const int64_t count = COUNT, n = law->options.world_size;
    double whole[COUNT];
    void *storage = NULL;
    char name[96];
    cd_comparison c = {.numel = COUNT, .element = -1, .exact = true};
    cddp_status status = CDDP_OK;
    if (law->tried_dtype == dtype && law->tried_ranks == n) return CDDP_OK;
    for (int64_t i = 0; i < count; i++) whole[i] = (double)(i + 1);
    CD_TRY(device->allocate(device, dtype, count, &storage, err));
    const cddp_tensor t = cddp_tensor_of(device, storage, 0, dtype, &count, 1);
    CD_TRY_OUT(cd_numbers_write(&law->scratch, &t, whole, err));
    CD_TRY_OUT(device->divide(&t, &t, n, NULL, err));
    CD_TRY_OUT(cd_numbers_read(&law->scratch, &t, err));
    for (int64_t i = 0; i < count; i++) {
        const double expected = cd_law_round(dtype, whole[i] / (double)n);
        if (law->scratch.values[i] == expected || c.bad++ > 0) continue;
        c.element = i;
        c.expected = expected;
        c.actual = law->scratch.values[i];
        c.shape = CD_SHAPE_UNEXPLAINED;
    }
    law->tried_dtype = dtype;
    law->tried_ranks = n;
    law->is_device_wrong = c.bad > 0;
    cd_text_format(name, sizeof name, "1 to 16 in %s", cddp_dtype_name(dtype));
    cd_text_format(c.words, sizeof c.words, "device %s does not divide by %lld", device->name,
                   (long long)n);
    if (c.bad > 0)
        cd_comparison_emit(&(cd_comparison_place){law->options.tracer, CD_LINK_PRECISION, -1, name},
                           &c);
out:
    device->release(device, dtype, count, storage);
    return status;
}

/* The digest of shares as they are summed: divided before, unless the sum is. */
static cddp_status digest_divided(cd_hook_law *law, const cd_law_flight *f, uint64_t *digest,
                                  cddp_error *err)
{
    const double ranks = f->ranks != 0 ? f->ranks : law->options.world_size;
    double *divided;
    CD_TRY(cd_law_reserve(law, (size_t)f->numel + 1, &divided, err));
    for (int64_t i = 0; i < f->numel; i++)
        divided[i] =
            law->hook.divides_after ? f->share[i] : cd_law_round(f->dtype, f->share[i] / ranks);
    return CD_PASS(cd_law_digest(law, f->dtype, divided, f->numel, digest, err));
}

/* The digest of what travels as it is beside factors; 0 where all of the bucket is factors. */
static cddp_status digest_rest(cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                               uint64_t *digest, cddp_error *err)
{
    double *rest;
    int64_t count = 0;
    CD_TRY(cd_law_reserve(law, (size_t)f->numel + 1, &rest, err));
    for (uint32_t v = 0; v < b->count; v++) {
        if (cd_law_is_matrix(law, b, f, v)) continue;
        memcpy(rest + count, f->share + b->offsets[v], (size_t)b->lengths[v] * sizeof *rest);
        count += b->lengths[v];
    }
    if (count > 0) CD_TRY(cd_law_digest(law, f->dtype, rest, count, digest, err));
    return CDDP_OK;
}

typedef struct departure {
    int64_t bytes;
    uint64_t posted;
} departure;

/* All ranks, or a block of them, add up what each divided. */
static cddp_status leave_as_mean(cd_hook_law *law, cd_law_flight *f, departure *d, cddp_error *err)
{
    d->bytes = law->hook.is_reproducible || f->ranks > 1
                   ? -1
                   : f->numel * (int64_t)cddp_dtype_bytes(f->dtype);
    if (f->ranks == 1) {
        d->bytes = 0;
        return CDDP_OK;
    }
    if (law->hook.is_reproducible) return CDDP_OK;
    CD_TRY(cd_law_begin_mean(law, f, err));
    return CD_PASS(digest_divided(law, f, &d->posted, err));
}

static cddp_status leave(cd_hook_law *law, const cd_law_bucket *b, cd_law_flight *f, departure *d,
                         cddp_error *err)
{
    const cd_planned_hook *h = &law->hook;
    const bool has_started = f->iteration >= h->start;
    const int64_t width = (int64_t)cddp_dtype_bytes(f->dtype);
    switch (h->kind) {
    case CD_PLANNED_NOTHING:
        f->ranks = 1;
        d->bytes = 0;
        return CDDP_OK;
    case CD_PLANNED_TOPK:
        d->bytes = cd_planned_k(h, f->numel) * (4 + width);
        cd_law_begin_gathered(law, f);
        return CD_PASS(cd_law_send_largest(law, b, f, &d->posted, err));
    case CD_PLANNED_CODES:
        d->bytes =
            h->row != 0 ? (f->numel / (int64_t)h->row + 1) * (8 + (int64_t)h->row) : 8 + f->numel;
        cd_law_begin_gathered(law, f);
        return CD_PASS(cd_law_send_codes(law, f, &d->posted, err));
    case CD_PLANNED_LOW_RANK:
        if (!has_started) return CD_PASS(leave_as_mean(law, f, d, err));
        f->is_compressed = true;
        f->is_fed_back = (f->iteration - h->start) % h->feedback_every == 0;
        d->bytes = cd_law_low_rank_bytes(law, b, f);
        CD_TRY(cd_law_correct(law, b, f, err));
        CD_TRY(cd_law_begin_stages(law, b, f, err));
        return CD_PASS(digest_rest(law, b, f, &d->posted, err));
    case CD_PLANNED_LOCAL:
        /* a block of all ranks needs no group, and sends as before */
        if (has_started && h->block != law->options.world_size)
            f->ranks = h->block != 0 ? (uint32_t)h->block : 1;
        return CD_PASS(leave_as_mean(law, f, d, err));
    case CD_PLANNED_UNKNOWN:
        f->ranks = b->is_nothing_promised ? 1 : 0;
        d->bytes = -1;
        return CDDP_OK;
    case CD_PLANNED_MEAN:
        break;
    }
    return CD_PASS(leave_as_mean(law, f, d, err));
}

/* Slices in the parameter's logical order: what left in its own dtype, a result in that of the
** gradient. */
static cddp_status state_slices(cd_hook_law *law, const cd_law_bucket *b, bool left,
                                cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    for (uint32_t i = 0; i < b->count && !b->is_shadow; i++) {
        const cddp_tensor *form = &law->options.forms[b->variables[i]];
        const bool is_complex = form->dtype == CDDP_C64;
        const cddp_dtype dtype = left && !is_complex ? b->flat->dtype : form->dtype;
        const double *values = law->numbers.values + b->offsets[i];
        double *rounded;
        uint64_t digest = 0;
        CD_TRY(cd_law_reserve(law, (size_t)b->lengths[i] + 1, &rounded, err));
        const cd_arena_mark mark = cd_arena_get_mark(&law->memory);
        double *bytes = cd_arena_array(&law->memory, (size_t)b->lengths[i] + 1, sizeof *bytes);
        CD_TRY(cd_arena_check(&law->memory, err, "variable %u", b->variables[i]));
        const cddp_tensor flat =
            cddp_tensor_of(cpu, bytes, 0, is_complex ? CDDP_F32 : dtype, &b->lengths[i], 1);
        for (int64_t k = 0; k < b->lengths[i]; k++) rounded[k] = cd_law_round(dtype, values[k]);
        CD_TRY(cd_numbers_write(&law->scratch, &flat, rounded, err));
        cddp_tensor view = *form;
        view.device = cpu;
        view.dtype = dtype;
        view.storage = bytes;
        view.offset = 0;
        CD_TRY(cpu->digest(&view, &digest, err));
        cd_arena_rewind(&law->memory, mark);
        CD_EMIT(law->options.tracer, bucket_slice, NULL, .param = b->variables[i],
                .bucket = b->index, .digest = (int64_t)digest, .dtype = dtype, .left = left);
    }
    return CDDP_OK;
}

/* What a hook posts that gives its rank's share as it is, or divided. */
static cddp_status state_whole(cd_hook_law *law, const cd_law_flight *f, cddp_error *err)
{
    uint64_t digests[2] = {0, 0};
    CD_TRY(cd_law_digest(law, f->dtype, f->share, f->numel, &digests[0], err));
    CD_TRY(digest_divided(law, f, &digests[1], err));
    for (int i = 0; i < 2; i++)
        CD_EMIT(law->options.tracer, mark, CD_TRACER_WHOLE_SHARE,
                .value = (int64_t)(digests[i] & CD_SUM_SIGHT_BITS));
    return CDDP_OK;
}

static bool has_law(const cd_hook_law *law, const cd_law_bucket *b)
{
    return law->hook.kind != CD_PLANNED_UNKNOWN || b->is_mean_promised || b->is_nothing_promised;
}

cddp_status cd_hook_law_launch(cd_hook_law *law, const cd_law_bucket *b, cddp_error *err)
{
    cd_law_flight *f;
    departure d = {0, 0};
    law->is_blind = law->is_blind || !is_readable(law, b) || b->index >= FLIGHTS_MAX;
    if (!is_readable(law, b) || b->index >= FLIGHTS_MAX) return CDDP_OK;
    if (b->followed != NULL && law->hook.kind == CD_PLANNED_UNKNOWN && !law->hook.is_wrapped)
        cd_planned_hook_follow(&law->hook, b->followed, law->options.words.options);
    law->is_unnamed = law->options.is_static && (b->generation == 0 || b->is_first_again);
    law->layouts += b->generation != law->generation;
    law->rebuilds += b->generation > law->generation;
    law->generation = b->generation;
    if (b->ranks != 0) law->options.world_size = b->ranks;
    CD_TRY(find_flight(law, b->index, &f, err));
    CD_TRY(take(law, b, f, err));
    for (uint32_t i = 0; i < b->count; i++) law->variables[b->variables[i]].dtype = f->dtype;
    CD_TRY(try_device(law, b->flat->device, f->dtype, err));
    if (law->is_device_wrong) return CDDP_OK;
    CD_TRY(state_slices(law, b, true, err));
    f->has_law = has_law(law, b);
    if (f->has_law) {
        CD_TRY(leave(law, b, f, &d, err));
        /* how a plugin's hook puts its share on the wire is its own */
        if (law->hook.is_followed) d = (departure){-1, 0};
        CD_EMIT(law->options.tracer, bucket_law, law->hook.name, .bucket = b->index,
                .generation = b->generation, .bytes = d.bytes, .posted = (int64_t)d.posted,
                .ranks = f->ranks, .shadow = b->is_shadow);
        const bool is_own_mean = law->hook.kind == CD_PLANNED_UNKNOWN
                                     ? b->is_mean_promised
                                     : law->hook.is_followed && law->hook.kind == CD_PLANNED_MEAN;
        if (is_own_mean && !b->is_shadow) CD_TRY(state_whole(law, f, err));
    }
    f->is_open = true;
    law->iteration += b->is_last;
    return CDDP_OK;
}

/* ---- what returns ---- */

void cd_law_state(const cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                  uint32_t number, const char *text, const cd_law_sum *sum)
{
    /* an overflow is I-RANGE's */
    const bool can_say = isfinite(sum->given) && isfinite(sum->got) && isfinite(sum->bound);
    if (!can_say)
        CD_EMIT(law->options.tracer, unjudged,
                "a bucket of the comm hook has numbers that are not "
                "finite",
                .link = CDDP_LINK_LAW, .count = 1);
    CD_EMIT(law->options.tracer, bucket_sum, text, .bucket = b->index, .generation = b->generation,
            .number = number, .given = cd_f64_bits(can_say ? sum->given : 0),
            .got = cd_f64_bits(can_say ? sum->got : 0),
            .bound = cd_f64_bits(can_say ? sum->bound : INFINITY), .ranks = f->ranks);
}

/* Magnitudes that a bound of a mean is made of. */
typedef struct size_of_sum {
    double weights, given, got, count;
} size_of_sum;

static void add_range(const cd_hook_law *law, const double *share, const double *result,
                      int64_t first, int64_t count, uint32_t number, cd_law_sum *sum,
                      size_of_sum *size)
{
    for (int64_t i = first; i < first + count; i++) {
        const double w = cd_law_weight(law, number, i);
        sum->given += w * share[i];
        sum->got += w * result[i];
        size->weights += fabs(w);
        size->given += fabs(w * share[i]);
        size->got += fabs(w * result[i]);
    }
    size->count += (double)count;
}

/* See Note [Bounds of a mean] */
static double bound_of_mean(const cd_hook_law *law, const cd_law_flight *f, cddp_dtype result,
                            const size_of_sum *size)
{
    const uint32_t ranks = f->ranks != 0 ? f->ranks : law->options.world_size;
    const cddp_dtype sum = law->hook.kind == CD_PLANNED_CODES ? CDDP_F32 : f->dtype;
    const double gamma = cd_gamma(sum, ranks + 1u);
    const double part = size->given / ranks;
    /* the same numbers, summed in the same order; but decoded codes are rounded once more */
    if (ranks == 1 && law->hook.kind != CD_PLANNED_CODES) return 0;
    return part * (gamma + cd_dtype_roundoff(result) * (1 + gamma)) +
           size->weights * (2 * cd_dtype_underflow(sum) + cd_dtype_underflow(result)) +
           0x1p-51 * size->count * (part + size->got / ranks);
}

static void judge_mean(const cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                       const double *result)
{
    const uint32_t ranks = f->ranks != 0 ? f->ranks : law->options.world_size;
    for (uint32_t number = CD_LAW_MEAN; number < CD_LAW_MEAN + 2; number++) {
        cd_law_sum sum = {0, 0, 0};
        size_of_sum size = {0, 0, 0, 0};
        for (uint32_t i = 0; i < b->count; i++)
            if (!cd_law_is_matrix(law, b, f, i))
                add_range(law, f->share, result, b->offsets[i], b->lengths[i], number, &sum, &size);
        sum.given /= ranks;
        sum.bound = bound_of_mean(law, f, b->flat->dtype, &size);
        if (size.count > 0)
            cd_law_state(law, b, f, number, "the result is the mean of what the ranks send", &sum);
    }
}

cddp_status cd_hook_law_deliver(cd_hook_law *law, const cd_law_bucket *b, cddp_error *err)
{
    if (!is_readable(law, b) || b->index >= law->flight_count) return CDDP_OK;
    cd_law_flight *f = &law->flights[b->index];
    if (!f->is_open || cddp_tensor_numel(b->flat) != f->numel) return CDDP_OK;
    f->is_open = false;
    CD_TRY(cd_numbers_read(&law->numbers, b->flat, err));
    CD_TRY(state_slices(law, b, false, err));
    if (!f->has_law) {
        CD_EMIT(law->options.tracer, unjudged, "the judge knows no law of the plan's comm hook",
                .link = CDDP_LINK_LAW, .count = 1);
        return CDDP_OK;
    }
    cd_law_owe_stated(law, b, f, law->numbers.values);
    CD_TRY(cd_law_end_stages(law, b, f, law->numbers.values, err));
    judge_mean(law, b, f, law->numbers.values);
    if (f->is_compressed) CD_TRY(cd_law_judge_low_rank(law, b, f, law->numbers.values, err));
    return CDDP_OK;
}
