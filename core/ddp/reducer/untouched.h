/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of buckets that the program may not write to, and does; and gradients that it adds to when
** nobody takes it any more.
**
** Note [Who may write to a bucket]
** From mark_ready to the end of the backward a bucket belongs to the reducer, its hook and the
** operations in flight. With gradient_as_bucket_view the program can still write to it, and the
** result is then not what the program showed: nobody but the program is to blame. So where a
** recorder watches a program with views, digests of slices are kept whenever the program gets
** control back, and compared when the library has it again. A difference is a mark, which I-HB
** judges.
**     mark_ready → launch                of every slice
**     a stage of a hook → the next one   of slices that no operation in flight writes. A hook of
**                                        the program's may go on in another thread: nothing is kept
**     post → end of an operation         digest_read and digest_written of cddp/backend.h
** On Gloo and MPI an operation that is watched works in a copy, so that what is written while it
** computes is seen as well. With a backend that works in place it is not: digests cannot tell it
** from the sum. Nowhere is seen what is written and taken back between two looks.
**
** Note [Gradients beside their buckets]
** Without views a gradient is copied when it is marked ready, and the result is written over it.
** What the program adds to it in between is lost. The gradient is looked at then and when its
** bucket is waited for: all of them in the first iteration, and each in one of sixteen, drawn. A
** program that marks gradients too early does so in many steps.
**
** Lifetime   of an iteration. Without a recorder nothing is read.
** Threads    the rank's.
*/
#pragma once
#include "core/ddp/reducer/reducer.h"

/* Does a recorder want to know who writes to the bucket? */
bool cd_untouched_is_watched(const cd_reducer *reducer, const cd_bucket *bucket);
/* As it is marked ready. */
void cd_untouched_keep_gradient(cd_reducer *reducer, size_t variable);
/* Before results are written over the gradients of the bucket. */
void cd_untouched_compare_gradients(cd_reducer *reducer, const cd_bucket *bucket);
/* digest: of the slice as it was marked ready; 0: it is filled later. */
void cd_untouched_keep_ready(cd_reducer *reducer, size_t variable, int64_t digest);
/* The slice as it is launched. */
void cd_untouched_compare_ready(const cd_reducer *reducer, size_t variable, int64_t digest);
/* Behind a stage of the bucket's hook, and before the next one. */
void cd_untouched_keep(cd_reducer *reducer, const cd_bucket *bucket);
void cd_untouched_compare(cd_reducer *reducer, const cd_bucket *bucket);
