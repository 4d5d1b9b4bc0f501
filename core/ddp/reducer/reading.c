/* SPDX-License-Identifier: Apache-2.0 */
/* See Note [One reading for two events] in reading.h. */
#include "core/ddp/reducer/reading.h"

#include "core/base/hash.h"
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

/* Of a tensor that has the bucket's elements. written: what each slice is, by its place in the
** bucket; NULL: nobody asks. */
static void read_slices(const cd_bucket_set *set, cd_bucket *bucket, const cddp_tensor *whole,
                        cd_digest_written *written)
{
    cd_digest_pass pass;
    uint64_t folded = 0;
    cd_digest_pass_begin(&pass, whole);
    for (uint32_t i = 0; whole->dtype == bucket->flat.dtype && i < bucket->variable_count; i++) {
        const uint32_t slot = bucket->first_slot + i;
        const cddp_tensor slice = cd_bucket_set_view_of(set, set->layout.indices[slot], whole);
        int64_t *nonfinite = written != NULL ? &written[i].nonfinite : NULL;
        const uint64_t digest = cd_digest_pass_part(&pass, &slice, nonfinite);
        if (written != NULL) written[i].digest = digest;
        set->slice_digests[slot] = (int64_t)digest;
        folded = cd_hash_mix(folded, digest);
    }
    bucket->reading.slices = (int64_t)folded;
    bucket->reading.digest = (int64_t)cd_digest_pass_end(&pass);
}

/* Likewise, of the bucket, and copies its slices into the gradients. false: a copy failed. It is
** tried again when the result is written back, and the error is reported there. */
static bool copy_slices(const cd_reader *reader)
{
    const cd_bucket_set *set = reader->set;
    cd_bucket *bucket = reader->bucket;
    cd_digest_pass pass;
    uint64_t folded = 0;
    cd_digest_pass_begin(&pass, &bucket->flat);
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        uint64_t digest = 0;
        if (cd_digest_pass_copy(&pass, &reader->pairs[i], &digest, &set->written[i], NULL) !=
            CDDP_OK)
            return false;
        set->slice_digests[bucket->first_slot + i] = (int64_t)digest;
        folded = cd_hash_mix(folded, digest);
    }
    bucket->reading.slices = (int64_t)folded;
    bucket->reading.digest = (int64_t)cd_digest_pass_end(&pass);
    return true;
}

static void read_result(const cd_reader *reader)
{
    cd_bucket *bucket = reader->bucket;
    const bool copies = reader->pairs != NULL && !cd_bucket_is_overwritten(bucket);
    bucket->reading.is_copied = copies && copy_slices(reader);
    if (!bucket->reading.is_copied)
        read_slices(reader->set, bucket, &bucket->flat,
                    reader->has_views ? reader->set->written : NULL);
    bucket->reading.has_written = bucket->reading.is_copied || reader->has_views;
    bucket->reading.is_known = true;
}

static bool read_bucket(void *self, const cddp_tensor *tensor, int64_t *digest)
{
    const cd_reader *reader = self;
    cd_reading *reading = &reader->bucket->reading;
    if (!is_same(tensor, &reader->bucket->flat)) return false;
    if (reader->set == NULL) {
        *digest = reading->digest;
        const bool is_known = reading->is_known;
        reading->is_known = false; /* it is true of one post */
        return is_known;
    }
    read_result(reader);
    *digest = reading->digest;
    return true;
}

static void begin(cd_reader *reader, const cd_reader *as, struct cddp_tracer *tracer)
{
    *reader = *as;
    reader->reader = (cd_tracer_reader){reader, read_bucket};
    tracer->reader = &reader->reader;
}

void cd_reader_begin_post(cd_reader *reader, cd_bucket *bucket, struct cddp_tracer *tracer,
                          int64_t digest)
{
    bucket->reading = (cd_reading){.digest = digest, .is_known = true};
    begin(reader, &(cd_reader){.bucket = bucket}, tracer);
}

void cd_reader_begin_wait(cd_reader *reader, const cd_reader *as, struct cddp_tracer *tracer)
{
    as->bucket->reading = (cd_reading){.is_known = false};
    begin(reader, as, tracer);
}

void cd_reader_end(cd_reader *reader, struct cddp_tracer *tracer)
{
    if (reader->set == NULL) reader->bucket->reading.is_known = false;
    tracer->reader = NULL;
}

int64_t cd_reading_take_result(const cd_bucket_set *set, cd_bucket *bucket)
{
    cd_reading *reading = &bucket->reading;
    const cddp_tensor *result = &bucket->future.result;
    if (!reading->is_known || !is_same(result, &bucket->flat))
        read_slices(set, bucket, result, NULL);
    reading->is_known = false;
    return reading->digest;
}
