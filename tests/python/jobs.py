# SPDX-License-Identifier: Apache-2.0
"""Scripts of a user: `jobs.py NAME` runs one of them on the rank that the environment names."""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import programs  # noqa: E402


def powersgd(buckets):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as p
    if buckets > 1:
        programs.small_buckets()
    widths = [48, 64, 80, 64, 48, 1]
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.Tanh())]
    ddp = DDP(torch.nn.Sequential(*layers), bucket_cap_mb=0.012 if buckets > 1 else 25)
    ddp.register_comm_hook(p.PowerSGDState(None, start_powerSGD_iter=2), p.powerSGD_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.0001)
    g = torch.Generator().manual_seed(dist.get_rank())
    for step in range(6):
        optimizer.zero_grad()
        ddp(torch.randn(8, 48, generator=g)).pow(2).mean().backward()
        optimizer.step()


def order_of_two():
    """Which of two operations completed first, and which then."""
    ended = []
    futures = [dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done, k=k: ended.append(k))
               for k in range(2)]
    for future in futures:
        future.wait()
    return ended


def only_late(rank):
    """Right only when the operations complete in the order of their posts."""
    if order_of_two() != [0, 1]:
        raise RuntimeError("completed out of order")


def counts_completions(rank):
    """Ends well in every order, with numbers that depend on it."""
    dist.all_reduce(torch.tensor([float(order_of_two()[0])]))


def tells_time(rank):
    """No two runs are alike, whatever the order."""
    for _ in range(2):
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        dist.all_reduce(torch.tensor([time.monotonic_ns() % 1000003], dtype=torch.int64))


def never_ends(rank):
    dist.all_reduce(torch.ones(3))
    time.sleep(3600)


def polls(rank):
    work = dist.all_reduce(torch.ones(3), async_op=True)
    while not work.is_completed():
        pass
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    while not future.done():
        pass


def polls_and_posts(rank):
    """What it does while it waits depends on the answer; both answers are right."""
    work = dist.all_reduce(torch.ones(3), async_op=True)
    has_looked = work.is_completed()
    other = dist.all_reduce(torch.ones(5), async_op=True)
    if not has_looked:
        work.wait()
    while not other.is_completed():
        time.sleep(0.001)


def asks_for_ever(rank):
    if rank == 1:
        sys.exit(0)
    else:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        while not work.is_completed():
            pass


def operations(rank):
    """Every operation of backend cddp, and how it refuses the others."""
    size = dist.get_world_size()
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8):
        t = torch.arange(6).to(dtype).view(2, 3).t()  # not contiguous
        dist.all_reduce(t)
        assert t.tolist() == (size * torch.arange(6)).view(2, 3).t().tolist(), t
    t = torch.tensor([rank + 1.0, -rank])
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    assert t.tolist() == [size, 0]
    t = torch.full((4,), float(rank))
    dist.broadcast(t, 1)
    assert t.tolist() == [1.0] * 4
    t = torch.full((4,), 1.0)
    dist.reduce(t, 2)
    assert rank != 2 or t.tolist() == [float(size)] * 4
    parts = [torch.empty(2, 2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2, 2), float(rank)))
    assert [p[0, 0].item() for p in parts] == list(range(size))
    dist.all_reduce(torch.empty(0))
    works = [dist.all_reduce(torch.ones(k + 1), async_op=True) for k in range(20)]
    for work in works:
        work.wait()
    pair = dist.new_group([0, 2])
    if rank != 1:
        t = torch.ones(2)
        dist.all_reduce(t, group=pair)
        assert t.tolist() == [2.0, 2.0]
    for call in (lambda: dist.reduce_scatter(torch.ones(2), [torch.ones(2)] * size), lambda: dist.send(t, 1 - min(rank, 1)),
                 lambda: dist.gather(torch.ones(2), [torch.ones(2)] * size if rank == 0 else None, dst=0),
                 lambda: dist.scatter(torch.ones(2), [torch.ones(2)] * size if rank == 0 else None, src=0),
                 lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size))):
        try:
            call()
        except RuntimeError as refusal:
            print(refusal, flush=True)
        else:
            raise AssertionError("not refused")


def dispatches(rank):
    """A group of Gloo has the tensors of CUDA and of no device, where any are; the transport of cddp those of CPUs."""
    for group in (dist.group.WORLD, dist.new_group([0, 1])):
        assert sorted(group.others) == ["cuda", "meta"], group.others
        t = torch.ones(3)
        dist.all_reduce(t, group=group)
        assert t.tolist() == [2.0] * 3
        other = group.others["cuda"]
        dist.all_reduce(t, group=other)
        assert t.tolist() == [4.0] * 3 and other is not group

        class Taken:
            def allreduce(self, tensors, opts=None):
                return "there"

            send = allgather = allreduce

        group.others["meta"] = Taken()
        nothing = torch.empty(2, device="meta")
        assert group.allreduce([nothing]) == group.send([nothing], 0) == group.allgather([[nothing]], [nothing]) == "there"
    if rank == 0:
        assert not dist.new_group([0], backend="cddp").others
    else:
        dist.new_group([0], backend="cddp")


def print_sum(rank):
    ddp = DDP(programs.mlp())
    programs.train(rank, ddp, programs.sgd(ddp), steps=5)
    if rank == 0:
        with open(os.environ["SUM"], "w") as file:
            for p in ddp.parameters():
                file.write(p.detach().numpy().tobytes().hex() + "\n")


def main():
    name = sys.argv[1]
    if name == "alone":
        print("no group")
        return
    if "cddp" in os.environ.get("BACKEND", ""):
        import cddp_torch.process_group  # noqa: F401
    dist.init_process_group(os.environ.get("BACKEND", "gloo"))
    torch.manual_seed(0)
    own = {"specimen": lambda rank: powersgd(4), "one_bucket": lambda rank: powersgd(1), "only_late": only_late,
           "never_ends": never_ends, "polls": polls,
           "counts_completions": counts_completions, "tells_time": tells_time,
           "polls_and_posts": polls_and_posts, "asks_for_ever": asks_for_ever, "print_sum": print_sum,
           "operations": operations, "dispatches": dispatches}
    call = own.get(name) or programs.CLEAN.get(name) or programs.WRONG[name][0]
    call(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
