# SPDX-License-Identifier: Apache-2.0
"""What the scripts that make model numbers share: inputs by formula, results as hexadecimal floats.

The tests in C repeat the formula, so only results are stored. Everything is f64 on one thread.
"""
import os

os.environ["ATEN_CPU_CAPABILITY"] = "default"
import torch  # noqa: E402

torch.set_num_threads(1)


def pattern(index, salt):
    return ((index * 37 + salt * 101) % 64 - 31) / 16


def tensor(shape, salt, divisor=1, dtype=torch.float64):
    numel = 1
    for size in shape:
        numel *= size
    return torch.tensor([pattern(i, salt) / divisor for i in range(numel)], dtype=dtype).reshape(shape)


def classes(shape, count, factor, start):
    numel = 1
    for size in shape:
        numel *= size
    return torch.tensor([(i * factor + start) % count for i in range(numel)]).reshape(shape)


def numbers(key, t):
    values = t.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    print(key, " ".join(float(v).hex() for v in values.double().flatten()))
