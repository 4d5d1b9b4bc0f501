/* SPDX-License-Identifier: Apache-2.0 */
/* Where functions are compiled: marks those that are also GPU code when nvcc compiles them, and
** those that stay apart from their callers. */
#pragma once

#ifdef __CUDACC__
#define CD_EVERYWHERE static inline __host__ __device__
#else
#define CD_EVERYWHERE static inline
#endif

/* The rare case of a function that is called often: it is no part of it, so that the usual case
** saves no registers for it. */
#if defined(__GNUC__)
#define CD_APART __attribute__((noinline))
#else
#define CD_APART
#endif
