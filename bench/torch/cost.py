#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What recording costs: the median step of two ranks at each level, against the same job without a recording.

    bench/torch/cost.py [REPEATS] [MODEL…]

Runs of all levels are interleaved, so that what else the machine does meets all of them; of each level the
least median counts. A level that costs more than it may is named, and the exit code is 1.
"""
import os
import shutil
import statistics
import struct
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "..", "tests", "python"), os.path.join(HERE, "..", "..", "python")]

import torch  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import harness  # noqa: E402

LEVELS = (None, "order", "buckets", "digests")
MAY_COST = {"cnn": {"order": 1.05, "buckets": 1.10, "digests": 1.15}, "linears": {}, "tiny": {"digests": 1.5}}
STEPS = {"cnn": 12, "linears": 6, "tiny": 40}


class Tiny(torch.nn.Module):
    """1000 parameters of 32 numbers."""

    def __init__(self):
        super().__init__()
        self.all = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(32)) for _ in range(1000))

    def forward(self, x):
        return torch.stack(list(self.all)).mul(x).sum()


def make(name):
    if name == "cnn":
        layers = []
        for a, b in ((3, 64), (64, 128), (128, 256), (256, 512)):
            layers += [torch.nn.Conv2d(a, b, 3, padding=1), torch.nn.BatchNorm2d(b), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
        return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(512 * 4, 256)), torch.randn(8, 3, 32, 32)
    if name == "linears":
        return torch.nn.Sequential(*[torch.nn.Linear(1020, 1020) for _ in range(12)]), torch.randn(16, 1020)
    return Tiny(), torch.randn(1000, 32)


def job(rank, name, place):
    model, x = make(name)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    times, work = [], []
    for step in range(STEPS[name] + 3):
        began, worked = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        ddp(x).pow(2).mean().backward()
        optimizer.step()
        if step >= 3:
            times.append(time.perf_counter() - began)
            work.append(time.process_time() - worked)
    if rank == 0:
        with open(os.path.join(place, "times"), "wb") as file:
            file.write(struct.pack("2d", statistics.median(times), statistics.median(work)))


def measure(name, level):
    place = tempfile.mkdtemp()
    try:
        codes = harness.run(job, place, level=level, limit=300.0, name=name, place=place)
        if codes != [0, 0]:
            sys.exit(harness.logs(place))
        with open(os.path.join(place, "times"), "rb") as file:
            return struct.unpack("2d", file.read())
    finally:
        shutil.rmtree(place)


def main():
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    failed = False
    for name in sys.argv[2:] or list(MAY_COST):
        best = {level: (float("inf"), float("inf")) for level in LEVELS}
        for _ in range(repeats):
            for level in LEVELS:
                best[level] = tuple(map(min, best[level], measure(name, level)))
        for level in LEVELS:
            ratio, work = best[level][0] / best[None][0], best[level][1] / best[None][1]
            allowed = MAY_COST[name].get(level)
            failed |= allowed is not None and ratio > allowed
            print("%-8s %-8s %8.2f ms  %.3f  of processor time %.3f%s" % (
                name, level or "none", 1e3 * best[level][0], ratio, work,
                "  may be %.2f" % allowed if allowed else ""), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
