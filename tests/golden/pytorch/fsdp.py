#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains under PyTorch's FullyShardedDataParallel over Gloo and prints what it did, for fsdp_test.c to repeat.

Every strategy of 1.13.1, every prefetch, forward_prefetch and limit_all_gathers, at 2, 3 and 4 ranks, with units of uneven
sizes that are drawn from the configuration's number. loss = sum of <c, p> with whole constants c, so a local gradient is c
bit for bit, and sums are exact. Printed per configuration: what each rank has of each parameter, and its padding. Per
micro-step: gathers, frees and reductions in order. Per step: hashes of each unit's full parameters in forward, of its
gradient, and of its parameters after the step, one rank after the other.

1.13.1 has no hybrid strategies, no use_orig_params and no fully_shard: they are not here.
"""
import contextlib
import random

import numpy as np
import torch
import torch.distributed as dist

from fsdp_harness import FullyShardedDataParallel, fsdp, log, name_units
from ranks import run_ranks

STEPS = 3
STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
PREFETCHES = ["none", "BACKWARD_PRE", "BACKWARD_POST"]
COUNT = len(STRATEGIES) * len(PREFETCHES) * 4


def draw(number, world):
    r = random.Random(number * 8 + world)
    return {"number": number, "world": world, "strategy": number % 3, "prefetch": number // 3 % 3, "forward": number // 9 % 2,
            "limit": number // 18 % 2, "micros": 1 + number % 5 % 3,
            "units": [[r.choice([1, 2, 3, 5, 7, 8, 12, 17]) for _ in range(r.randint(1, 3))] for _ in range(r.randint(3, 5))]}


def constant(place, rank, i, n):
    step, micro = place
    e = np.arange(n)
    return torch.from_numpy((((i + 1) * (e + 3) + 5 * rank + 3 * step + 7 * micro) % 17 - 8).astype(np.float32))


def initial(i, n):
    return torch.from_numpy(((7 * i + np.arange(n)) % 23 - 11).astype(np.float32))


def fnv(tensor):
    h = 0xCBF29CE484222325
    for byte in (tensor.detach().contiguous() + 0.0).numpy().tobytes():  # no negative zeros
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return "%016x" % h


class Unit(torch.nn.Module):
    """Parameters p0, p1, …, which are number `first` and so on of the model, and the units inside."""

    def __init__(self, sizes, first, children=()):
        super().__init__()
        self.first, self.sizes = first, sizes
        for k, n in enumerate(sizes):
            self.register_parameter("p%d" % k, torch.nn.Parameter(initial(first + k, n)))
        self.layers = torch.nn.ModuleList(children)

    def forward(self, x, seen):
        mine = [getattr(self, "p%d" % k) for k in range(len(self.sizes))]
        seen["units"].append(fnv(torch.cat([p.detach().view(-1) for p in mine])))
        for layer in self.layers:
            x = layer(x, seen)
        for k, p in enumerate(mine):
            x = x + (constant(seen["place"], seen["rank"], self.first + k, self.sizes[k]) * p.view(-1)).sum()
        return x


def wrap(c):
    options = {"sharding_strategy": getattr(fsdp.ShardingStrategy, STRATEGIES[c["strategy"]]),
               "backward_prefetch": getattr(fsdp.BackwardPrefetch, PREFETCHES[c["prefetch"]], None),
               "forward_prefetch": bool(c["forward"]), "limit_all_gathers": bool(c["limit"])}
    first, layers = len(c["units"][0]), []
    for sizes in c["units"][1:]:
        layers.append(FullyShardedDataParallel(Unit(sizes, first), **options))
        first += len(sizes)
    root = FullyShardedDataParallel(Unit(c["units"][0], 0, layers), **options)
    return root, name_units(root, ["R"] + [str(k) for k in range(len(layers))])


def parts(flat):
    """parameter:first:count of what this rank has."""
    if not hasattr(flat, "_shard_param_offsets"):
        return "all"
    first = flat._shard_indices[0]
    offsets = flat._shard_param_offsets
    return ",".join("%d:%d:%d" % (first + k, a, b - a + 1) for k, (a, b) in enumerate(offsets)) or "none"


def everywhere(mine):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def train(c, rank):
    """What this rank has and does: parts and paddings, then micro-steps and gradients and parameters of each step."""
    root, wrappers = wrap(c)
    flats = [w._handles[0].flat_param for w in wrappers]
    optimizer = torch.optim.SGD(root.parameters(), lr=0.5)
    units = [(flat._unpadded_unsharded_size.numel(), flat.numel(), "%s+%d" % (parts(flat), getattr(flat, "_shard_numel_padded", 0)))
             for flat in flats]
    steps = []
    for step in range(STEPS):
        micros = []
        for micro in range(c["micros"]):
            seen = {"units": [], "place": (step, micro), "rank": rank}
            log.clear()
            with root.no_sync() if micro + 1 < c["micros"] else contextlib.nullcontext():
                root(torch.zeros(()), seen).backward()
            micros.append((list(log), seen["units"]))
        grads = [flat.grad.clone() for flat in flats]
        optimizer.step()
        optimizer.zero_grad()
        steps.append((micros, grads, [flat.data.clone() for flat in flats]))
    return units, steps


def of_each_unit(ranks):
    return " ".join(fnv(torch.cat(slices)) for slices in zip(*ranks))


def run(c, rank):
    out = ["config %(number)d %(world)d %(strategy)d %(prefetch)d %(forward)d %(limit)d %(micros)d " % c +
           " ".join(",".join(str(n) for n in sizes) for sizes in c["units"])]
    mine = train(c, rank)
    ranks = everywhere(mine)  # once: it costs as much as some gathers of units
    for unit in zip(*[units for units, _ in ranks]):
        out.append("unit %d %d " % unit[0][:2] + " ".join(words for _, _, words in unit))
    for step in zip(*[steps for _, steps in ranks]):
        assert all(micros == step[0][0] for micros, _, _ in step), step
        for number, (order, seen) in enumerate(step[0][0]):
            out.append("order " + (", ".join(order) or "-"))
            if number == 0:
                out.append("seen " + " ".join(seen))
        out.append("grads " + of_each_unit([grads for _, grads, _ in step]))
        out.append("shards " + of_each_unit([data for _, _, data in step]))
    return out


def work(rank, world):
    for number in range(COUNT):
        lines = run(draw(number, world), rank)
        if rank == 0:
            print("\n".join(lines))


if __name__ == "__main__":
    for size in (2, 3, 4):
        run_ranks(size, work)
