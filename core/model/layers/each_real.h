/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles a kernels header once per element type. A layer defines KERNELS as the header's path
** before it includes this file. In the header, REAL is the type and K(name) the name with its
** suffix, _f32 or _f64. M(exp) is the function of that type in core/tensor/math.h. ROOT is the
** square root, which IEEE 754 rounds correctly everywhere. Included once by each layer's .c file.
*/
#include "core/tensor/math.h"

#include <math.h>

#define REAL float
#define K(name) name##_f32
#define M(name) cd_##name##_f32
#define ROOT sqrtf
#include KERNELS
#undef REAL
#undef K
#undef M
#undef ROOT

#define REAL double
#define K(name) name##_f64
#define M(name) cd_##name
#define ROOT sqrt
#include KERNELS
#undef REAL
#undef K
#undef M
#undef ROOT
#undef KERNELS
