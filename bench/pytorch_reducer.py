#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# PyTorch's DDP over Gloo on the lists of reducer_bench: two ranks, one thread each. Prints medians over rounds, of
# the wall clock and of the processor time of the thread that trains.
#     bench/pytorch_reducer.py LIST ROUNDS     LIST: resnet50 tiny mlp; resnet50 reads numels from stdin
import os, sys, tempfile, time, statistics
import torch, torch.distributed as dist, torch.multiprocessing as mp

class Write(torch.autograd.Function):
    """A layer whose backward makes its gradient and writes it once: the floor for any real backward."""
    @staticmethod
    def forward(ctx, x, p):
        ctx.shape = p.shape
        return x + 0
    @staticmethod
    def backward(ctx, g):
        return g, torch.zeros(ctx.shape)

class Model(torch.nn.Module):
    def __init__(self, numels):
        super().__init__()
        self.p = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(n)) for n in numels])
    def forward(self, x):
        for p in self.p:
            x = Write.apply(x, p)
        return x

def step(model, params):
    for p in params:
        p.grad = None
    model(torch.zeros(1, requires_grad=True)).sum().backward()

def rank_main(rank, numels, rounds, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=2)
    plain = Model(numels)
    copies = torch.nn.parallel.DistributedDataParallel(Model(numels))
    views = torch.nn.parallel.DistributedDataParallel(Model(numels), gradient_as_bucket_view=True)
    for _ in range(3):
        step(copies, list(copies.parameters())), step(views, list(views.parameters()))
    sizes = [int(s) // 4 for s in copies._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(", ")]
    buckets = [torch.zeros(s) for s in sizes]
    def bare():
        for w in [dist.all_reduce(b, async_op=True) for b in buckets]:
            w.wait()
    phases = {"local work": lambda: step(plain, list(plain.parameters())), "bare collectives": bare,
              "ddp, copies": lambda: step(copies, list(copies.parameters())), "ddp, views": lambda: step(views, list(views.parameters()))}
    names, times = list(phases), {n: [] for n in phases}
    for r in range(rounds):
        for k in range(len(names)):
            name = names[(k + r) % len(names)]
            dist.barrier()
            wall, processor = time.perf_counter(), time.thread_time()
            phases[name]()
            times[name].append(((time.perf_counter() - wall) * 1e6, (time.thread_time() - processor) * 1e6))
    if rank == 0:
        print(f"PyTorch {torch.__version__}: {len(numels)} tensors, {4e-6 * sum(numels):.2f} MB, {len(sizes)} buckets, {rounds} rounds")
        for k, clock in enumerate(("wall", "processor")):
            m = {n: statistics.median(t[k] for t in pairs) for n, pairs in times.items()}
            for n in names:
                print(f"  {n:18s} {m[n]:10.1f} us {clock}")
            for n in ("ddp, copies", "ddp, views"):
                over = m[n] - m["local work"] - m["bare collectives"]
                print(f"  {clock}, {n} beyond local and collectives: {over:.1f} us, {over / len(numels):.3f} us per tensor")
        sys.stdout.flush()
    # Nobody leaves while the other still talks, and then at once: taking reducers and groups down under an interpreter that ends
    # itself has been seen to wait for ever.
    dist.barrier()
    os._exit(0)

if __name__ == "__main__":
    which, rounds = sys.argv[1], int(sys.argv[2])
    numels = {"tiny": [64] * 1000, "mlp": [1000, 100, 1000, 10]}.get(which) or [int(x) for x in sys.stdin.read().split()]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, args=(numels, rounds, folder), nprocs=2)
