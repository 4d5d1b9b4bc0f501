/* SPDX-License-Identifier: Apache-2.0 */
/* What PyTorch calls otherwise, or records in another form: hooks by their Python names, sizes of
** parameters as a digest, caps of buckets as the layout that they made. */
#include "verify/lift/lift.h"

#include "core/base/hash.h"

#include <string.h>

static const struct {
    const char *torch, *here;
} hooks[] = {
    {"allreduce_hook", "allreduce"},
    {"ALLREDUCE", "allreduce"},
    {"fp16_compress_hook", "fp16_compress"},
    {"FP16_COMPRESS", "fp16_compress"},
    {"bf16_compress_hook", "bf16_compress"},
    {"powerSGD_hook", "powersgd"},
    {"batched_powerSGD_hook", "batched_powersgd"},
    {"quantization_pertensor_hook", "quantize_per_tensor"},
    {"quantization_perchannel_hook", "quantize_per_channel"},
    {"noop_hook", "noop"},
};

const char *cd_lift_translate_hook(const char *name)
{
    for (size_t i = 0; i < sizeof hooks / sizeof hooks[0]; i++)
        if (strcmp(hooks[i].torch, name) == 0) return hooks[i].here;
    return name;
}

bool cd_lift_knows_hook(const char *name)
{
    for (size_t i = 0; i < sizeof hooks / sizeof hooks[0]; i++)
        if (strcmp(hooks[i].torch, name) == 0 || strcmp(hooks[i].here, name) == 0) return true;
    return false;
}

/* As cddp_torch digests sizes. */
static bool is_shape(int64_t digest, const int64_t *sizes, uint32_t count)
{
    uint64_t d = 1 + (uint64_t)count;
    for (uint32_t i = 0; i < count; i++) d = cd_hash_mix(d, (uint64_t)sizes[i]);
    return (int64_t)d == digest;
}

/* The digest is known, and so is the product: few sizes come into question. */
static bool search(const cd_lift_parameter *p, int64_t *sizes, uint32_t at, uint32_t count,
                   int64_t left)
{
    if (at + 1 == count) {
        sizes[at] = left;
        return is_shape(p->shape, sizes, count);
    }
    for (int64_t d = 1; d <= left / d; d++) {
        if (left % d != 0) continue;
        sizes[at] = d;
        if (search(p, sizes, at + 1, count, left / d)) return true;
        sizes[at] = left / d;
        if (search(p, sizes, at + 1, count, d)) return true;
    }
    return false;
}

uint32_t cd_lift_find_sizes(const cd_lift_parameter *p, int64_t sizes[CD_LIFT_DIMS_MAX])
{
    if (p->numel <= 0 || p->numel > INT64_C(1) << 32) return 0;
    for (uint32_t count = 1; count <= CD_LIFT_DIMS_MAX; count++)
        if (search(p, sizes, 0, count, p->numel)) return count;
    return 0;
}

void cd_lift_take_slot(cd_lift *l, const cddp_event *e)
{
    const cddp_event_bucket_layout *b = &e->as.bucket_layout;
    if (e->rank != 0 || l->wrapper_count > 1 || b->bucket < 0) return;
    if (b->generation != l->generation) l->slot_count = 0;
    l->generation = b->generation;
    if (cd_arena_grow(&l->arena, (void **)&l->slots, &l->slot_capacity, l->slot_count + 1,
                      sizeof *l->slots))
        l->slots[l->slot_count++] = (struct cd_lift_slot){b->bucket, b->param};
}

void cd_lift_take_mark(cd_lift *l, const cddp_event *e)
{
    if (e->rank != 0 || e->text == NULL || e->as.mark.value <= 0) return;
    if (strcmp(e->text, "bucket cap in bytes") == 0) l->bucket_cap = e->as.mark.value;
    if (strcmp(e->text, "first bucket in bytes") == 0) l->first_bucket = e->as.mark.value;
}
