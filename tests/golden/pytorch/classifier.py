#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A small classifier trained by two ranks over Gloo with PyTorch's PowerSGD at rank 1, from ten seeds, for classifier_test.c
to train too. Printed per seed: the loss over all samples after training, and how many are classified rightly.

Eight inputs, sixteen hidden units, four classes whose centres overlap; the seed makes samples, first weights and PyTorch's
random factors. The other side draws its factors itself: what is compared is where training ends, not its way.
"""
import torch
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as psgd
from torch.nn.parallel import DistributedDataParallel

from ranks import grid, run_ranks

SEEDS, STEPS, SAMPLES, BATCH = 10, 120, 128, 8
RATE = 0.25


def sample(seed, s):
    return grid(8, seed * 1000 + s % 4, 32, 32) + grid(8, seed * 1000 + 100 + s, 32, 16), s % 4


def batch(seed, ids):
    rows = [sample(seed, s) for s in ids]
    return torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])


def run(rank, world):
    for seed in range(1, SEEDS + 1):
        module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        with torch.no_grad():
            for i, p in enumerate(module.parameters()):
                p.copy_(grid(p.numel(), seed * 1000 + 900 + i, 32, 32).view_as(p))
        ddp = DistributedDataParallel(module)
        state = psgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, random_seed=seed)
        ddp.register_comm_hook(state, psgd.powerSGD_hook)
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
        for step in range(STEPS):
            x, y = batch(seed, [((step * world + rank) * BATCH + j) % SAMPLES for j in range(BATCH)])
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
        if rank == 0:
            x, y = batch(seed, range(SAMPLES))
            with torch.no_grad():
                out = module(x)
            print("seed %d loss %s right %d" % (seed, float(F.cross_entropy(out, y)).hex(), int((out.argmax(1) == y).sum())))


run_ranks(2, run)
