#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our data parallelism beside PyTorch's on one GPU, by turns in one run: pytorch_gpu.py step_bench [ROUNDS]

Both train the same shapes with one rank over NCCL, buckets of 25 MiB, gradients that are copied from numbers on the device; medians of
rounds are compared, each without the local work of its side. Quote the ratios; times are this machine's.

    pytorch_gpu.py --shapes resnet50|gpt2|mlp     the shapes alone, for step_bench's stdin; needs no PyTorch
Exit code 77: there is no PyTorch, or it sees no GPU, or step_bench sees none.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time


def resnet50():
    def conv(out, inp, k):
        return [(out, inp, k, k), (out,), (out,)]

    shapes, inp = conv(64, 3, 7), 64
    for stage, blocks in enumerate([3, 4, 6, 3]):
        width = 64 << stage
        for b in range(blocks):
            shapes += conv(width, inp, 1) + conv(width, width, 3) + conv(4 * width, width, 1)
            if b == 0:
                shapes += conv(4 * width, inp, 1)
            inp = 4 * width
    return shapes + [(1000, 2048), (1000,)]


def gpt2():
    w = 768
    block = [(w,), (w,), (w, 3 * w), (3 * w,), (w, w), (w,), (w,), (w,), (w, 4 * w), (4 * w,), (4 * w, w), (w,)]
    return [(50257, w), (1024, w)] + 12 * block + [(w,), (w,)]


LISTS = {"resnet50": resnet50, "gpt2": gpt2, "mlp": lambda: [(100, 10), (100,), (10, 100), (10,)]}
NAMES = ("local_host", "local", "ddp_host", "ddp")


def text_of(shapes):
    return "".join(" ".join(map(str, s)) + "\n" for s in shapes)


def ours(program, shapes, hook, options, rounds):
    done = subprocess.run([program, hook, options, str(rounds)], input=text_of(shapes), text=True, stdout=subprocess.PIPE)
    if done.returncode == 77:
        print(done.stdout.strip())
        sys.exit(77)
    done.check_returncode()
    return dict(zip(NAMES, map(float, done.stdout.split())))


def theirs(torch, shapes, hook, rounds):
    class Write(torch.autograd.Function):
        """A layer whose backward copies its gradient: the floor for any real backward."""

        @staticmethod
        def forward(ctx, x, parameter, numbers):
            ctx.numbers = numbers
            return x + 0

        @staticmethod
        def backward(ctx, g):
            return g, ctx.numbers.clone(), None

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.p = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(s, device="cuda")) for s in shapes])
            self.numbers = [torch.rand(s, device="cuda") - 0.5 for s in shapes]

        def forward(self, x):
            for p, n in zip(self.p, self.numbers):
                x = Write.apply(x, p, n)
            return x

    def step(model, parameters):
        for p in parameters:
            p.grad = None
        model(torch.zeros(1, device="cuda", requires_grad=True)).sum().backward()

    plain = Model()
    ddp = torch.nn.parallel.DistributedDataParallel(Model(), device_ids=[0])
    if hook is not None:
        ddp.register_comm_hook(*hook())
    sides = [(plain, list(plain.parameters())), (ddp, list(ddp.parameters()))]
    times = {name: [] for name in NAMES}
    for r in range(-5, rounds):
        for which, side in enumerate(sides):
            torch.cuda.synchronize()
            wall, host = time.perf_counter(), time.process_time()
            step(*side)
            host = time.process_time() - host
            torch.cuda.synchronize()
            wall = time.perf_counter() - wall
            if r >= 0:
                times[NAMES[2 * which]].append(host * 1e6)
                times[NAMES[2 * which + 1]].append(wall * 1e6)
    return {name: statistics.median(t) for name, t in times.items()}


def least(runs):
    """The best of alternating runs, number by number: other load of the machine only adds time."""
    return {name: min(r[name] for r in runs) for name in NAMES}


def tell(what, us, them, key):
    print(f"  {what}: ours {us:.1f} us, PyTorch's {them:.1f} us, ratio {us / them:.3f}" if them > 0 else f"  {what}: ours {us:.1f} us, PyTorch's {them:.1f} us", key)


def compare(torch, program, name, rounds):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as psgd

    shapes = LISTS[name]()

    def powersgd():
        return psgd.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2), psgd.powerSGD_hook

    cases = [("DDP", "-", "", None), ("PowerSGD rank 2", "powersgd", "matrix_approximation_rank=2,start_powerSGD_iter=2", powersgd)]
    for title, hook, options, their_hook in cases:
        us, them = [], []
        for _ in range(2):
            us.append(ours(program, shapes, hook, options, rounds))
            them.append(theirs(torch, shapes, their_hook, rounds))
        us, them = least(us), least(them)
        print(f"{name}, {title}: {len(shapes)} tensors, PyTorch {torch.__version__}, {rounds} rounds")
        tell("host time beyond local work", us["ddp_host"] - us["local_host"], them["ddp_host"] - them["local_host"], "(wanted for DDP: at most 0.2)" if hook == "-" else "")
        tell("iteration", us["ddp"], them["ddp"], "(wanted: at most 1)")
        tell("iteration beyond local work", us["ddp"] - us["local"], them["ddp"] - them["local"], "(wanted for PowerSGD: below 1)" if hook != "-" else "")
        sys.stdout.flush()


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--shapes" and sys.argv[2] in LISTS:
        sys.stdout.write(text_of(LISTS[sys.argv[2]]()))
        return 0
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("--"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        print("skipped: no PyTorch")
        return 77
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        print(f"skipped: PyTorch {torch.__version__} sees no GPU, or was built without NCCL")
        return 77
    rounds = int(sys.argv[2]) if len(sys.argv) == 3 else 30
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", init_method="file://" + os.path.join(folder, "store"), rank=0, world_size=1)
        for name in ("resnet50", "gpt2"):
            compare(torch, sys.argv[1], name, rounds)
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
