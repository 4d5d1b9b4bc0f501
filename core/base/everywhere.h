/* SPDX-License-Identifier: Apache-2.0 */
/* Marks functions that are also GPU code when nvcc compiles them. */
#pragma once

#ifdef __CUDACC__
#define CD_EVERYWHERE static inline __host__ __device__
#else
#define CD_EVERYWHERE static inline
#endif
