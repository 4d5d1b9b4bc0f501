/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of powers behind a p-norm, as the oracle computes them: Σ|x|^p, or the largest |x| (p = ∞).
** It judges core/tensor/p_norm.h, and shares nothing with it.
**
** Note [Roundings of a p-norm] For p = 1, 2 and ∞ a term is exact or rounds once. Else the run's
** is exp(p · ln x): p · |ln x| is off by at most 4 units of it, of 2^-53, and so is the term,
** relatively; the root is off by a p-th of what the sum is, and rounds alike. Of n terms n
** additions round. All in all that is below (n + 4 · (p + 1) · (L + 64)) units, where L is the
** largest |ln x|.
**
** Errors     none.
*/
#pragma once

double cd_power_term(double p, double x);
void cd_power_add(double p, double *sum, double term); /* a NaN stays */
double cd_power_root(double p, double sum);
/* Relative roundings of 2^-53 besides those of additions; largest: of |ln x| over all x ≠ 0. */
double cd_power_roundings(double p, double largest);
/* What terms that vanish, as |x|^p < 2^-1074, may add to a norm of so many elements. */
double cd_power_underflow(double p, double elements);
