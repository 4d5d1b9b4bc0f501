#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the constant tables of core/tensor/math.c and math_code.h, rounded from 60 digits (needs mpmath)."""
from mpmath import mp, mpf, pi, erf, exp, sqrt, factorial, log

mp.dps = 60


def split(x):
    high = float(x)
    return high, float(x - mpf(high))


def row(*values):
    return "{" + ", ".join(float(v).hex() for v in values) + "},"


print("/* erf_table: erf(c) high, low, 2/sqrt(pi) exp(-c*c) at c = 0, 1/4, … 6 */")
for i in range(25):
    c = mpf(i) / 4
    high, low = split(erf(c))
    print("   ", row(high, low, 2 / sqrt(pi) * exp(-c * c)))
print("/* 2/sqrt(pi) low part */", split(2 / sqrt(pi))[1].hex())
print("/* pi */", *[v.hex() for v in split(pi)])
print("/* sine_table: (-1)^k pi^(2k+1)/(2k+1)!, k = 1 … 10 */")
print("   ", ", ".join(float((-1) ** k * pi ** (2 * k + 1) / factorial(2 * k + 1)).hex() for k in range(1, 11)))
print("/* cosine_table: (-1)^k pi^(2k)/(2k)!, k = 1 … 11 */")
print("   ", ", ".join(float((-1) ** k * pi ** (2 * k) / factorial(2 * k)).hex() for k in range(1, 12)))
print("/* pi^2/2 low part */", split(-pi**2 / 2)[1].hex())
high = float(int(log(2) * 2**32)) / 2**32
print("/* ln 2: 32 bits, rest */", high.hex(), float(log(2) - mpf(high)).hex())
