#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's own debug mode says of defects of docs/zoo.md: each is trained over Gloo with TORCH_DISTRIBUTED_DEBUG=DETAIL.

    detail.py [TAG…]     runs them and compares what comes out with detail.json; 1 when it differs
    detail.py --write    writes detail.json

"silent": the job ends as if nothing were wrong. "raises: …": some rank failed, with these words. "hangs": nobody said anything for
so long that the job was ended here.
"""
import copy
import datetime
import json
import os
import pathlib
import re
import sys
import tempfile
import traceback

FILE = pathlib.Path(__file__).resolve().parent / "detail.json"
WORLD, LIMIT = 2, 40
OF_TORCH = "1.13"


def mlp(torch, norm=False):
    torch.manual_seed(1)
    layers = [torch.nn.Linear(4, 6)] + ([torch.nn.BatchNorm1d(6)] if norm else []) + [torch.nn.ReLU(), torch.nn.Linear(6, 2)]
    return torch.nn.Sequential(*layers)


class TwoHeads:
    """Made where torch is there: a trunk with two heads, of which `take` says which run."""

    def __new__(cls, torch):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(1)
                self.trunk, self.a, self.b = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2), torch.nn.Linear(6, 2)

            def forward(self, x, take="ab"):
                h = self.trunk(x)
                return [head(h) for name, head in (("a", self.a), ("b", self.b)) if name in take]

        return Model()


class Job:
    """One rank of a job: a model, its wrapper, its optimizer and its data."""

    def __init__(self, rank, model=None, lr=0.1, **options):
        import torch
        import torch.distributed as dist
        self.torch, self.dist, self.rank = torch, dist, rank
        self.model = model if model is not None else mlp(torch)
        self.ddp = torch.nn.parallel.DistributedDataParallel(self.model, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def batch(self, step=0, samples=4):
        generator = self.torch.Generator().manual_seed(100 * step + self.rank)
        return self.torch.randn(samples, 4, generator=generator)

    def train(self, steps=3, forward=None):
        for step in range(steps):
            self.optimizer.zero_grad()
            (forward or self.ddp)(self.batch(step)).square().mean().backward()
            self.optimizer.step()


def opposite_groups(rank):
    import torch
    import torch.distributed as dist
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if rank == 0 else reversed(groups):
        dist.all_reduce(torch.ones(3), group=group)


def other_registration(rank):
    import torch
    torch.manual_seed(1)
    names = ["a", "b"] if rank == 0 else ["b", "a"]
    model = torch.nn.ModuleDict({n: torch.nn.Linear(4, 4) for n in names})
    job = Job(rank, torch.nn.Sequential(*[model[n] for n in names]))
    job.train()


def unused(rank, steps, **options):
    import torch
    job = Job(rank, TwoHeads(torch), **options)
    for step in range(steps):
        job.optimizer.zero_grad()
        sum(o.square().mean() for o in job.ddp(job.batch(step), "a")).backward()
        job.optimizer.step()


def output_outside_the_loss(rank):
    import torch
    job = Job(rank, TwoHeads(torch))
    for step in range(3):
        job.ddp(job.batch(step))[0].square().mean().backward()
        job.optimizer.step()


def sparse_unused(rank):
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = torch.nn.Embedding(8, 4, sparse=True), torch.nn.Linear(4, 2)

        def forward(self, x, use):
            return self.head(x + self.table(torch.zeros(4, dtype=torch.long)) if use else x)

    job = Job(rank, Model(), find_unused_parameters=True)
    for step in range(3):
        job.optimizer.zero_grad(set_to_none=True)
        job.ddp(job.batch(step), rank == 0 or step != 1).square().mean().backward()


def flag_around_backward(rank):
    job = Job(rank)
    for step in range(3):
        job.optimizer.zero_grad()
        for micro in range(2):
            with job.ddp.no_sync() if micro == 1 else open(os.devnull):  # the forward of the last one decides
                loss = job.ddp(job.batch(2 * step + micro)).square().mean()
            loss.backward()
        job.optimizer.step()


def first_synchronises(rank):
    job = Job(rank)
    for step in range(3):
        job.optimizer.zero_grad()
        job.ddp(job.batch(2 * step)).square().mean().backward()
        with job.ddp.no_sync():
            job.ddp(job.batch(2 * step + 1)).square().mean().backward()
        job.optimizer.step()


def second_backward(rank):
    job = Job(rank)
    loss = job.ddp(job.batch()).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    job.optimizer.step()


def ready_twice(rank):
    import torch
    from torch.utils.checkpoint import checkpoint

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.layer = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            x = checkpoint(self.layer, x, use_reentrant=True)
            return checkpoint(self.layer, x, use_reentrant=True)

    Job(rank, Model()).train()


def replaced_parameter(rank):
    import torch
    job = Job(rank)
    job.model[0].weight = torch.nn.Parameter(job.model[0].weight.detach().clone())
    job.optimizer = torch.optim.SGD(job.model.parameters(), lr=0.1)
    job.train()


def unequal_batches(rank):
    job = Job(rank)
    for step in range(3):
        job.optimizer.zero_grad()
        job.ddp(job.batch(step, 2 + 4 * rank)).square().mean().backward()
        job.optimizer.step()


def hooked(work, scale=1.0):
    """A comm hook that reduces what `work` makes of the bucket."""
    def hook(state, bucket):
        import torch.distributed as dist
        tensor = work(bucket.buffer())
        return dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0].to(bucket.buffer().dtype) * scale)

    def run(rank):
        job = Job(rank)
        job.ddp.register_comm_hook(None, hook)
        job.train()

    return run


def local_hook(rank):
    import torch
    job = Job(rank)

    def hook(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    job.ddp.register_comm_hook(None, hook)
    job.train()


def two_forwards(rank):
    import torch
    job = Job(rank, mlp(torch, norm=True))
    job.model.eval()  # the statistics of the buffers are used
    job.model[1].weight.requires_grad_(True)
    (job.ddp(job.batch(0)).square().mean() + job.ddp(job.batch(1)).square().mean()).backward()


def replaced_buffer(rank):
    import torch
    job = Job(rank, mlp(torch, norm=True))
    for step in range(3):
        job.model[1].running_mean = job.model[1].running_mean + rank
        job.optimizer.zero_grad()
        job.ddp(job.batch(step)).square().mean().backward()
        job.optimizer.step()


def drifted(rank):
    import torch
    job = Job(rank)
    with torch.no_grad():
        job.model[0].weight += rank  # what an initial broadcast would have undone
    job.train()


def skipped_step(rank):
    job = Job(rank)
    for step in range(3):
        job.optimizer.zero_grad()
        job.ddp(job.batch(step)).square().mean().backward()
        if not (rank == 1 and step == 1):
            job.optimizer.step()


def skipped_backward(rank):
    job = Job(rank)
    for step in range(3):
        loss = job.ddp(job.batch(step)).square().mean()
        if not (rank == 1 and step == 1):
            loss.backward()
        job.optimizer.step()


def stops_early(rank):
    Job(rank).train(3 - rank)


def forward_on_one_rank(rank):
    import torch
    job = Job(rank, mlp(torch, norm=True))
    job.train(1)
    if rank == 0:
        job.ddp(job.batch(7))
    job.train(2)


def other_count(rank):
    import torch
    import torch.distributed as dist
    dist.all_reduce(torch.ones(100 + 100 * rank))


def scaled_losses(rank):
    job = Job(rank)
    for step in range(3):
        job.optimizer.zero_grad()
        (job.ddp(job.batch(step)).square().mean() * (1 + rank)).backward()
        job.optimizer.step()


def clipped(rank, place):
    import torch
    import torch.distributed as dist
    job = Job(rank)
    for step in range(3):
        job.optimizer.zero_grad()
        if place == "before":
            hooks = [p.register_hook(lambda g: g / max(1.0, float(g.norm()) * 10)) for p in job.model.parameters()]
            job.ddp(job.batch(step)).square().mean().backward()
            for hook in hooks:
                hook.remove()
        else:
            job.ddp(job.batch(step)).square().mean().backward()
            norm = sum(p.grad.square().sum() for p in job.model.parameters())
            if place == "world":
                dist.all_reduce(norm)
            for p in job.model.parameters():
                p.grad *= min(1.0, 0.1 / float(norm.sqrt()))
        job.optimizer.step()


def sampled(rank, samples, epochs):
    import torch
    from torch.utils.data import DistributedSampler
    job = Job(rank)
    data = torch.randn(samples, 4, generator=torch.Generator().manual_seed(3))
    sampler = DistributedSampler(data, WORLD, rank, shuffle=True)
    for _ in range(epochs):  # without set_epoch
        for i in sampler:
            job.optimizer.zero_grad()
            job.ddp(data[i:i + 1]).square().mean().backward()
            job.optimizer.step()


def partial_window(rank):
    job = Job(rank)
    for micros in (2, 2, 1):
        job.optimizer.zero_grad()
        for micro in range(micros):
            (job.ddp(job.batch(micro)).square().mean() / 2).backward()
        job.optimizer.step()


def overflow(rank):
    import torch

    def run(state, bucket):
        import torch.distributed as dist
        half = (bucket.buffer() * 40000).half()
        return dist.all_reduce(half, async_op=True).get_future().then(lambda f: f.value()[0].float() / 40000 / WORLD)

    job = Job(rank, torch.nn.Sequential(torch.nn.Linear(4, 2)))
    job.ddp.register_comm_hook(None, run)
    job.train()


DEFECTS = {
    "ZOO-05": opposite_groups,
    "ZOO-07": other_registration,
    "ZOO-21": lambda rank: unused(rank, 1),
    "ZOO-22": output_outside_the_loss,
    "ZOO-25": sparse_unused,
    "ZOO-28": flag_around_backward,
    "ZOO-29": first_synchronises,
    "ZOO-36": second_backward,
    "ZOO-37": ready_twice,
    "ZOO-43": lambda rank: (lambda job: job.train(forward=job.model))(Job(rank)),
    "ZOO-45": replaced_parameter,
    "ZOO-50": unequal_batches,
    "ZOO-57": hooked(lambda t: t),
    "ZOO-59": overflow,
    "ZOO-60": hooked(lambda t: t.half().float() / WORLD),
    "ZOO-65": local_hook,
    "ZOO-68": hooked(lambda t: t / WORLD, 1 / WORLD),
    "ZOO-69": two_forwards,
    "ZOO-70": replaced_buffer,
    "ZOO-75": drifted,
    "ZOO-80": skipped_step,
    "ZOO-81": skipped_backward,
    "ZOO-82": stops_early,
    "ZOO-84": forward_on_one_rank,
    "ZOO-111": other_count,
    "ZOO-124": scaled_losses,
    "ZOO-127": lambda rank: clipped(rank, "world"),
    "ZOO-130": lambda rank: clipped(rank, "before"),
    "ZOO-150": lambda rank: sampled(rank, 7, 1),
    "ZOO-151": lambda rank: sampled(rank, 8, 2),
    "ZOO-155": partial_window,
}


def rank_main(tag, rank, folder):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=datetime.timedelta(seconds=LIMIT // 3))
    try:
        DEFECTS[tag](rank)
        said = "silent"
    except Exception as error:  # pylint: disable=broad-except
        traceback.print_exc(file=sys.stderr)
        said = "raises: " + re.sub(r"\s+", " ", str(error))
    pathlib.Path(folder, f"rank.{rank}").write_text(said, encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # nobody waits for a peer that has gone


def short(said):
    """The first words: addresses, paths and numbers of processes differ from run to run."""
    words = re.sub(r"\[\S*third_party/gloo\S*\] *|\[[0-9.a-f:]+\](:\d+)?", "", said)
    words = re.split(r"(?<=[a-z])[.:;,] (?=[A-Z(])", words.removeprefix("raises: "))[0]
    return "raises: " + words[:90].strip()


def judge(tag):
    import subprocess
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen([sys.executable, __file__, "--rank", tag, str(rank), folder], env=environment, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) for rank in range(WORLD)]
        for one in ranks:
            try:
                one.wait(LIMIT)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        files = [pathlib.Path(folder, f"rank.{rank}") for rank in range(WORLD)]
        said = [f.read_text(encoding="utf-8") if f.is_file() else "hangs" for f in files]
    raised = [s for s in said if s.startswith("raises")]
    # the rank that explains it best: not the one that only lost its peer
    raised.sort(key=lambda s: ("closed by peer" in s or "timed out" in s.lower(), s))
    if raised and all("timed out" in s.lower() or "closed by peer" in s or "Timed out" in s for s in raised):
        return "hangs, until the time-out of Gloo"
    return short(raised[0]) if raised else "hangs" if "hangs" in said else "silent"


def main():
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    import torch
    if not torch.__version__.startswith(OF_TORCH):
        print(f"skipped: what is kept is of PyTorch {OF_TORCH}, and this is {torch.__version__}")
        return 77
    wanted = [a for a in sys.argv[1:] if a != "--write"] or list(DEFECTS)
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    said = copy.copy(kept["said"])
    for tag in wanted:
        said[tag] = judge(tag)
        if said[tag] != kept["said"].get(tag):
            print(f"{tag}: was '{kept['said'].get(tag)}', is '{said[tag]}'")
    if "--write" in sys.argv:
        FILE.write_text(json.dumps({"torch": OF_TORCH, "said": dict(sorted(said.items(), key=lambda i: int(i[0][4:])))}, indent=1) + "\n",
                        encoding="utf-8")
        return 0
    return 1 if said != kept["said"] else 0


if __name__ == "__main__":
    sys.exit(main())
