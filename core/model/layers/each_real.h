/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles a kernels header once per element type: before including this file a layer defines
** KERNELS as the header's path. There REAL is the type and K(name) the name with its suffix, _f32
** or _f64; M(exp) is our own function of that type (core/tensor/math.h) and ROOT the square root,
** which IEEE 754 rounds correctly everywhere. Included once by each layer's .c file.
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
