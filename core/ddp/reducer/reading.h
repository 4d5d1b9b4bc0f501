/* SPDX-License-Identifier: Apache-2.0 */
/* One reading of a bucket's memory that two events report.
**
** Note [One reading for two events]
** A bucket that is launched without a comm hook is posted at once, and a result that a wait brought
** is reported at once. Between the two no other code of the rank runs. So both events report what
** was read once. Each is read by itself wherever somebody could write
** between them: behind a hook, on a device with streams, and in the build of the self-test, which
** writes there.
**
** A result is read together with its slices, and their digests are kept. A slice that is written
** back at once, with nobody asked in between, has the digest that was read; the gradient that was
** copied from it is read by itself.
**
** Where nobody is asked at all before the result is written back, that reading copies it into the
** gradients: both are read from the cache. A gradient is read behind its copy. It has the digest of
** its slice if it has the same bytes. A gradient that is its slice is not read again at all.
**
** Lifetime   begin → the call that posts or waits → end, in the rank's thread. What a wait brought
**            is taken once.
*/
#pragma once
#include "core/ddp/parts/bucket.h"
#include "core/trace/tracer.h"

/* Of a reducer; while a bucket is posted or waited for. */
typedef struct cd_reader {
    cd_tracer_reader reader;
    cd_bucket *bucket;
    const cd_bucket_set *set; /* its slices are read; NULL: a post */
    /* By its variables, all of which may be copied (cd_digest_may_copy): the reading copies them.
    ** NULL: they are copied later, or never. */
    const cddp_copy_pair *pairs;
    bool has_views; /* its gradients are its slices */
} cd_reader;

/* May two events of this bucket, which no hook handles, report one reading? */
bool cd_reading_may_be_shared(const struct cddp_tracer *tracer, const cd_bucket *bucket);

/* The next post of the bucket reports this digest. */
void cd_reader_begin_post(cd_reader *reader, cd_bucket *bucket, struct cddp_tracer *tracer,
                          int64_t digest);
/* Whoever reads as->bucket until the end reads its slices, too. */
void cd_reader_begin_wait(cd_reader *reader, const cd_reader *as, struct cddp_tracer *tracer);
void cd_reader_end(cd_reader *reader, struct cddp_tracer *tracer);

/* The digest of the bucket's result; bucket->reading.slices is that of its slices. What a wait has
** just read is taken. */
int64_t cd_reading_take_result(const cd_bucket_set *set, cd_bucket *bucket);
