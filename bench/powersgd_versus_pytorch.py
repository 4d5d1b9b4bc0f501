#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PowerSGD on ResNet-50's gradients, ours and PyTorch's hook backward by backward on one core.

    powersgd_versus_pytorch.py BUILD/bench/powersgd_bench [ROUNDS] [--limits]

Both have one rank, so that collectives cost next to nothing, the same buckets, error feedback and warm start. They take turns, so
that what else the machine does hits both; the first backwards of each are left out, and the best of the others counts. Quote the
ratio of the processor's clock: it is of all threads, and other programs are not in it.

With --limits a rank at which ours does not take less ends with 1. Without PyTorch it ends with 77.
"""
import os
import subprocess
import sys
import tempfile
import time

WARM_UP = 5  # two backwards before the start, one that makes the factors, and two in memory that is there


class Bucket:
    """The methods that powerSGD_hook calls on a GradBucket."""

    def __init__(self, torch, index, shapes, is_last):
        self.i, self.shapes, self.last = index, shapes, is_last
        self.flat = torch.zeros(sum(s.numel() for s in shapes))

    def buffer(self):
        return self.flat

    def gradients(self):
        return [view.view(s) for view, s in zip(self.flat.split([s.numel() for s in self.shapes]), self.shapes)]

    def index(self):
        return self.i

    def is_last(self):
        return self.last


def buckets_of(torch, program):
    rows = {}
    for line in subprocess.check_output([program, "--print"], text=True).splitlines():
        bucket, *sizes = map(int, line.split())
        rows.setdefault(bucket, []).append(torch.Size(sizes))
    return [Bucket(torch, i, shapes, i == len(rows) - 1) for i, shapes in rows.items()]


class Theirs:
    def __init__(self, torch, program, rank):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as psgd

        self.hook, self.buckets = psgd.powerSGD_hook, buckets_of(torch, program)
        self.state = psgd.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)

    def backward(self):
        for b in self.buckets:
            b.flat.uniform_(-0.5, 0.5)
        wall, processor = time.perf_counter(), time.process_time()
        for b in self.buckets:  # one after the other: with two under way its continuations may wait for each other for ever
            self.hook(self.state, b).wait()
        return (time.perf_counter() - wall) * 1e3, (time.process_time() - processor) * 1e3


class Ours:
    def __init__(self, program, rank):
        self.child = subprocess.Popen([program, "--turns", str(rank)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def backward(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline().split()
        if len(answer) != 2:
            sys.exit(f"powersgd_bench gave no time; it ended with {self.child.wait()}")
        return tuple(map(float, answer))

    def close(self):
        self.child.stdin.close()
        self.child.wait()


def measure(torch, program, rank, rounds):
    us, them, times = Ours(program, rank), Theirs(torch, program, rank), []
    for r in range(-WARM_UP, rounds):
        pair = us.backward(), them.backward()
        if r >= 0:
            times.append(pair)
    us.close()
    return [[min(t[side][clock] for t in times) for side in (0, 1)] for clock in (0, 1)]


def main():
    arguments = [a for a in sys.argv[1:] if a != "--limits"]
    if len(arguments) not in (1, 2) or (len(arguments) == 2 and not arguments[1].isdigit()):
        print(__doc__, file=sys.stderr)
        return 2
    program, rounds, has_limits = arguments[0], int(arguments[1]) if len(arguments) == 2 else 11, "--limits" in sys.argv
    os.environ["OMP_NUM_THREADS"] = "1"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the child inherits it: the same core
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        print("skipped: no PyTorch")
        return 77
    torch.set_num_threads(1)
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=0, world_size=1)
        print(f"ResNet-50's list, PyTorch {torch.__version__}, {rounds} rounds, best milliseconds of a backward")
        for rank in (1, 2, 4):
            wall, processor = measure(torch, program, rank, max(rounds, 1))
            is_kept = processor[0] < processor[1]
            missed += not is_kept
            for name, (us, them) in (("processor", processor), ("wall", wall)):
                verdict = "" if name == "wall" else "   kept" if is_kept else "   MISSED: not below 1"
                print(f"  rank {rank}, {name:9s}  ours {us:8.2f}  PyTorch {them:8.2f}  ratio {us / them:.3f}{verdict}")
            sys.stdout.flush()
        dist.destroy_process_group()
    print("verdict:", "a limit is missed" if missed else "all limits are kept")
    return 1 if has_limits and missed else 0


if __name__ == "__main__":
    sys.exit(main())
