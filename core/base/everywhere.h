/* SPDX-License-Identifier: Apache-2.0 */
/* For functions that are GPU code too where nvcc reads them. */
#pragma once

#ifdef __CUDACC__
#define CD_EVERYWHERE static inline __host__ __device__
#else
#define CD_EVERYWHERE static inline
#endif
