/* SPDX-License-Identifier: Apache-2.0 */
/* The median of a bench's rounds; sorts them. Insertion is enough for a few hundred numbers. */
#pragma once

static inline double gpu_median(double *numbers, int count)
{
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && numbers[k] < numbers[k - 1]; k--) {
            double t = numbers[k];
            numbers[k] = numbers[k - 1];
            numbers[k - 1] = t;
        }
    return numbers[count / 2];
}
