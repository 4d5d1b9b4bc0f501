/* SPDX-License-Identifier: Apache-2.0 */
/* Rebuilding: buckets are laid out again in the order in which gradients arrived in the first
** synchronised backward. So the first complete bucket is also the first to be sent.
**
**     every rank                         rank 0 → all                       every rank
**     assignment in its arrival order ─▶ indices + bucket count  (n+1 i32) ─▶ the same new layout
**                                        bucket sizes (bucket count i32)
**
** Arrival order may differ between ranks; rank 0's layout is adopted (REB-07), see
** Note [Bucket order is a contract between ranks]. What arrives is checked before it is believed.
**
** Limitations: once per reducer (REB-01); never with a dynamic unused search.
*/
#include "core/ddp/reducer/rebuild.h"

#include "cddp/device.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/trace/tracer.h"

static void reverse(uint32_t *items, size_t count)
{
    for (size_t i = 0; i + 1 < count - i; i++) {
        uint32_t t = items[i];
        items[i] = items[count - 1 - i];
        items[count - 1 - i] = t;
    }
}

/* REB-04; with set_last_bucket_cap the small cap is meant for the bucket that is reduced last, so
** the sequence is turned around before and the list of buckets after (BKT-16). */
static cddp_status plan_layout(cd_reducer *r, cd_bucket_layout *layout, cddp_error *err)
{
    uint64_t limits[2] = {0};
    bool turned = r->config->set_last_bucket_cap;
    if (turned) reverse(r->arrival, r->arrival_count);
    cd_bucket_request request = {.input_count = r->arrival_count,
                                 .indices = r->arrival,
                                 .expect_sparse = r->module->expect_sparse};
    request.limit_count = cd_bucket_caps_rebuild(&r->config->caps, limits, &request.limits);
    cddp_status status = CDDP_OK;
    cd_arena scratch;
    cd_arena_init(&scratch, r->allocator, 0);
    CD_TRY_OUT(cd_wrapped_bucket_inputs(r->module, r->arrival, &scratch, &request.inputs, err));
    CD_TRY_OUT(cd_bucket_assignment_by_size(&request, layout, err));
    if (turned) cd_bucket_layout_reverse(layout);
out:
    if (turned) reverse(r->arrival, r->arrival_count);
    cd_arena_fini(&scratch);
    return status;
}

/* The limit that applied to each adopted bucket: buckets of one (dtype, device) consume the list in
** order (BKT-04). */
static void assign_limits(const cd_reducer *r, cd_bucket_layout *layout)
{
    uint64_t own[2] = {0};
    const uint64_t *limits = NULL;
    size_t limit_count = cd_bucket_caps_rebuild(&r->config->caps, own, &limits);
    size_t n = layout->bucket_count;
    for (size_t k = 0; k < n; k++) {
        size_t b = r->config->set_last_bucket_cap ? n - 1 - k : k, position = 0;
        const cd_variable *v = cd_wrapped_variable(r->module, layout->indices[layout->starts[b]]);
        for (size_t j = 0; j < k; j++) {
            size_t c = r->config->set_last_bucket_cap ? n - 1 - j : j;
            const cd_variable *w =
                cd_wrapped_variable(r->module, layout->indices[layout->starts[c]]);
            const cddp_tensor *one = &v->tensor.form->like, *other = &w->tensor.form->like;
            position +=
                !w->expect_sparse && other->dtype == one->dtype && other->device == one->device;
        }
        if (position >= limit_count) position = limit_count - 1;
        layout->limits[b] = v->expect_sparse ? 0 : limits[position];
    }
}

/* Received numbers become a layout only when they are one. */
static cddp_status adopt(const int32_t *indices, const int32_t *sizes, int32_t bucket_count,
                         bool *seen, cd_bucket_layout *layout, cddp_error *err)
{
    size_t n = layout->capacity, at = 0;
    for (int32_t b = 0; b < bucket_count; b++) {
        if (sizes[b] <= 0 || (size_t)sizes[b] > n - at)
            return cd_fail(
                err, CDDP_E_CORRUPT,
                "rank 0 sent size %d for rebuilt bucket %d of %d, with %zu parameters left; "
                "was the group aborted?",
                sizes[b], b, bucket_count, n - at);
        layout->starts[b] = (uint32_t)at;
        for (int32_t i = 0; i < sizes[b]; i++, at++) {
            int32_t v = indices[at];
            if (v < 0 || (size_t)v >= n || seen[v])
                return cd_fail(
                    err, CDDP_E_CORRUPT,
                    "rank 0 sent variable %d in rebuilt bucket %d; was the group aborted?", v, b);
            seen[v] = true;
            layout->indices[at] = (uint32_t)v;
        }
    }
    if (at != n)
        return cd_fail(
            err, CDDP_E_CORRUPT,
            "rank 0 sent %zu of %zu parameters in %d rebuilt buckets; was the group aborted?", at,
            n, bucket_count);
    layout->starts[bucket_count] = (uint32_t)n;
    layout->bucket_count = (size_t)bucket_count;
    layout->variable_count = n;
    return CDDP_OK;
}

/* REB-07: two broadcasts from rank 0. */
static cddp_status agree(cd_reducer *r, cd_bucket_layout *layout, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    size_t n = r->variable_count;
    cd_control_spec spec = {.allocator = r->allocator,
                            .group = r->group,
                            .dtype = CDDP_I32,
                            .device = cd_module_device(r->module),
                            .numel = (int64_t)n + 1};
    cd_control indices = {0}, sizes = {0};
    cd_arena scratch;
    cd_arena_init(&scratch, r->allocator, 0);
    bool *seen = cd_arena_array(&scratch, n, sizeof *seen);
    if (seen == NULL) return cd_fail_memory(err, "a rebuild of %zu parameters", n);
    CD_TRY_OUT(cd_control_init(&indices, &spec, err));
    int32_t *values = indices.host;
    for (size_t i = 0; i < n; i++) values[i] = (int32_t)layout->indices[i];
    values[n] = (int32_t)layout->bucket_count;
    CD_TRY_OUT(cd_control_broadcast(r->group, &indices, 0, err));
    int32_t bucket_count = values[n];
    if (bucket_count < 1 || (size_t)bucket_count > n) {
        status =
            cd_fail(err, CDDP_E_CORRUPT,
                    "rank 0 sent %d rebuilt buckets for %zu parameters; was the group aborted?",
                    bucket_count, n);
        goto out;
    }
    spec.numel = bucket_count;
    CD_TRY_OUT(cd_control_init(&sizes, &spec, err));
    int32_t *mine = sizes.host;
    for (size_t b = 0; b < layout->bucket_count && b < (size_t)bucket_count; b++)
        mine[b] = (int32_t)(layout->starts[b + 1] - layout->starts[b]);
    CD_TRY_OUT(cd_control_broadcast(r->group, &sizes, 0, err));
    CD_TRY_OUT(adopt(values, mine, bucket_count, seen, layout, err));
    assign_limits(r, layout);
out:
    cd_control_fini(&indices);
    cd_control_fini(&sizes);
    cd_arena_fini(&scratch);
    return status;
}

static bool has_accumulated(const cd_reducer *r)
{
    for (size_t v = 0; v < r->variable_count; v++)
        if (cd_wrapped_variable(r->module, v)->grad->kind != CDDP_GRAD_UNDEFINED) return true;
    return false;
}

/* With views a gradient in storage of the caller would move, and the caller would go on writing to
** where it was. */
static cddp_status check_views(const cd_reducer *r, cddp_error *err)
{
    for (size_t v = 0; v < r->variable_count; v++) {
        const cd_variable *x = cd_wrapped_variable(r->module, v);
        const cddp_grad *g = x->grad;
        if (!x->expect_sparse && g->kind == CDDP_GRAD_DENSE &&
            g->value.storage != g->backing.storage)
            return cd_fail(err, CDDP_E_STATE,
                           "gradient_as_bucket_view: the gradient of '%s' lies in the caller's "
                           "storage, and would move into its bucket: make it with "
                           "cddp_grad_define",
                           x->name);
    }
    return CDDP_OK;
}

/* The new set replaces the old one; both exist for a moment, so that a failed allocation leaves the
** reducer as it was, and so that gradients which live in the old slices can move (REB-08). */
static cddp_status install(cd_reducer *r, cd_bucket_layout *layout, cddp_error *err)
{
    bool views = r->config->gradient_as_bucket_view;
    cd_bucket_set fresh = {0}, old = r->buckets;
    cd_bucket_set_spec spec = {.module = r->module,
                               .layout = layout,
                               .generation = old.generation + 1,
                               .for_hook = r->hook != NULL,
                               .for_copies = cd_reducer_copies(r),
                               .dtype = r->config->param_dtype};
    if (views && r->config->strict) CD_TRY(check_views(r, err));
    CD_TRY(cd_bucket_set_init(&fresh, &spec, r->allocator, err));
    *layout = (cd_bucket_layout){0};
    if (views) {
        cddp_status status = cd_bucket_set_lend_backing(&fresh, err);
        if (status != CDDP_OK) {
            cd_bucket_set_fini(&fresh);
            return status;
        }
    }
    r->buckets = fresh;
    cd_bucket_set_fini(&old);
    return CDDP_OK;
}

/* To the trace, and to a hook whose state is kept by bucket (REB-10). */
static cddp_status show_layout(const cd_reducer *r, cddp_error *err)
{
    cd_reducer_emit_layout(r);
    if (r->hook == NULL || r->hook->rebuilt == NULL) return CDDP_OK;
    cd_tracer_call(r->tracer, r->hook->name, "rebuilt");
    const cddp_status status =
        r->hook->rebuilt(r->hook_self, (uint32_t)r->buckets.bucket_count, err);
    cd_tracer_call(r->tracer, NULL, NULL);
    return CD_PASS(status);
}

cddp_status cd_reducer_forget_layout(cd_reducer *r, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_bucket_layout layout = {0};
    if (r->buckets.generation == 0) return CDDP_OK;
    CD_TRY_OUT(cd_bucket_layout_init(&layout, r->variable_count, r->allocator, err));
    CD_TRY_OUT(cd_reducer_plan_first_layout(r, &layout, err));
    CD_TRY_OUT(install(r, &layout, err));
    r->growth_count++;
    CD_TRY_OUT(show_layout(r, err));
out:
    cd_bucket_layout_fini(&layout);
    return status;
}

static cddp_status rebuild(cd_reducer *r, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    uint64_t arrival = 0;
    for (size_t i = 0; i < r->arrival_count; i++) arrival = cd_hash_mix(arrival, r->arrival[i]);
    bool accumulating = has_accumulated(r);
    cd_bucket_layout layout = {0};
    CD_TRY_OUT(cd_bucket_layout_init(&layout, r->variable_count, r->allocator, err));
    CD_TRY_OUT(plan_layout(r, &layout, err));
    CD_TRY_OUT(agree(r, &layout, err));
    uint64_t adopted = cd_bucket_layout_digest(&layout);
    CD_TRY_OUT(install(r, &layout, err));
    r->growth_count++;
    if (accumulating)
        CD_EMIT(r->tracer, mark, "rebuild_during_accumulation", .value = (int64_t)r->iteration);
    CD_EMIT(r->tracer, rebuild, NULL, .generation = r->buckets.generation,
            .buckets = (int64_t)r->buckets.bucket_count, .arrival = (int64_t)arrival,
            .adopted = (int64_t)adopted, .accumulating = accumulating);
    CD_TRY_OUT(show_layout(r, err));
    r->has_rebuilt = true;
    r->arrival_count = 0;
out:
    cd_bucket_layout_fini(&layout);
    return status;
}

cddp_status cd_reducer_rebuild_buckets(cd_reducer *r, bool *rebuilt, cddp_error *err)
{
    CD_TRY(cd_reducer_leave_unfinished(r, err));
    *rebuilt = false;
    if (!cd_reducer_should_rebuild(r) || r->arrival_count == 0) return CDDP_OK;
    CD_ASSERT(r->ready_count == 0); /* ERR-14: an unfinished reduction was refused above */
    cddp_status status = CDDP_OK;
    if (r->arrival_count != r->variable_count) /* REB-06 */
        status = cd_fail(
            err, CDDP_E_STATE,
            "buckets cannot be rebuilt: %zu of %zu parameters arrived in the first backward",
            r->arrival_count, r->variable_count);
    if (status == CDDP_OK) status = rebuild(r, err);
    if (status != CDDP_OK)
        return CD_PASS(cd_reducer_fail(r, status, err)); /* do peers have the layout? */
    *rebuilt = true;
    cd_reducer_reset_iteration(r);
    cd_reducer_audit(r);
    return CDDP_OK;
}

void cd_reducer_push_all_arrivals(cd_reducer *r)
{
    if (!cd_reducer_should_rebuild(r) || r->arrival_count > 0) return;
    for (size_t v = 0; v < r->variable_count; v++) r->arrival[r->arrival_count++] = (uint32_t)v;
}
