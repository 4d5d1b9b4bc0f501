/* SPDX-License-Identifier: Apache-2.0 */
/* See Note [One reading for two events] in reading.h. */
#include "core/ddp/parts/reading.h"

#include "core/base/hash.h"
#include "core/ddp/parts/bucket.h"
#include "core/tensor/digest.h"
#include "core/trace/points.h"

static bool is_same(const cddp_tensor *a, const cddp_tensor *b)
{
    return a->storage == b->storage && a->offset == b->offset && a->dtype == b->dtype &&
           a->device == b->device && cddp_tensor_numel(a) == cddp_tensor_numel(b) &&
           cddp_tensor_is_contiguous(a) && cddp_tensor_is_contiguous(b);
}

bool cd_reading_may_be_shared(const struct cddp_tracer *tracer, const cd_bucket *bucket)
{
    return !CD_POINTS_STRIKE && cd_tracer_wants_digest(tracer) && !bucket->is_sparse &&
           (bucket->flat.device->flags & CDDP_DEVICE_ASYNC) == 0;
}

/* The digest of a tensor that has the bucket's elements, and those of its slices. */
static int64_t read_slices(const cd_bucket_set *set, const cd_bucket *bucket,
                           const cddp_tensor *whole, int64_t *slices)
{
    cd_digest_pass pass;
    uint64_t folded = 0;
    cd_digest_pass_begin(&pass, whole);
    for (uint32_t i = 0; whole->dtype == bucket->flat.dtype && i < bucket->variable_count; i++) {
        const uint32_t slot = bucket->first_slot + i;
        const cddp_tensor slice = cd_bucket_set_view_of(set, set->layout.indices[slot], whole);
        const uint64_t digest = cd_digest_pass_part(&pass, &slice);
        set->slice_digests[slot] = (int64_t)digest;
        folded = cd_hash_mix(folded, digest);
    }
    *slices = (int64_t)folded;
    return (int64_t)cd_digest_pass_end(&pass);
}

static bool read_bucket(void *self, const cddp_tensor *tensor, int64_t *digest)
{
    cd_reading *reading = self;
    if (!is_same(tensor, &reading->bucket->flat)) return false;
    if (reading->set != NULL) { /* as it is now */
        reading->digest =
            read_slices(reading->set, reading->bucket, &reading->bucket->flat, &reading->slices);
        reading->is_known = true;
    } else if (!reading->is_known) {
        return false;
    } else {
        reading->is_known = false;
    }
    *digest = reading->digest;
    return true;
}

void cd_reading_begin_post(cd_bucket *bucket, struct cddp_tracer *tracer, int64_t digest)
{
    bucket->reading = (cd_reading){.reader = {&bucket->reading, read_bucket},
                                   .bucket = bucket,
                                   .digest = digest,
                                   .is_known = true};
    tracer->reader = &bucket->reading.reader;
}

void cd_reading_begin_wait(const cd_bucket_set *set, cd_bucket *bucket, struct cddp_tracer *tracer)
{
    bucket->reading =
        (cd_reading){.reader = {&bucket->reading, read_bucket}, .set = set, .bucket = bucket};
    tracer->reader = &bucket->reading.reader;
}

void cd_reading_end(struct cddp_tracer *tracer) { tracer->reader = NULL; }

int64_t cd_reading_take_result(const cd_bucket_set *set, cd_bucket *bucket, int64_t *slices)
{
    cd_reading *reading = &bucket->reading;
    const cddp_tensor *result = &bucket->future.result;
    const bool is_read = reading->set == set && reading->is_known && is_same(result, &bucket->flat);
    if (!is_read) reading->digest = read_slices(set, bucket, result, &reading->slices);
    reading->is_known = false;
    *slices = reading->slices;
    return reading->digest;
}
