#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains injected gradients under PyTorch's DDP over Gloo and prints what came out, for ddp_differential_test.c to repeat.

A configuration is drawn from its number. loss = sum over used parameters of <c, p> with constants c, so a local gradient
is c bit for bit. Printed per step: who used what in which order of arrival, the collectives that rank 0 issued, the
buckets that the reducer then has, the used map, which gradients exist, and a hash of the bits of each. One warm interpreter is forked per rank; all
configurations of a world size share its group.

Behind the drawn ones come configurations with uneven inputs under join, some with real layers, whose inputs are on
so coarse a grid that no sum rounds: any order of summation gives the same bits, and some for the casting hooks, whose
gradients have both signs and 48 binades: infinite in f16, subnormal and zero there.

PyTorch refuses its bf16 hook by name without NCCL, and its Gloo cannot add bf16. Here the hook is registered under
another name, and the recording group adds bf16 in Gloo's order (GRD-13) with PyTorch's own addition.
"""
import contextlib
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from ranks import constants, grid, run_ranks

CONFIGURATIONS = 72
JOINS = 18
LAYERS = 6
CASTS = 18
STEPS = 6


def draw(number):
    r = random.Random(number)
    c = {"number": number, "world": 2 + number % 3, "fu": number % 4 == 1, "sg": number % 4 == 2}
    c["views"] = r.random() < 0.5
    c["hook"] = r.choice([0, 0, 1, 2])
    c["zero"] = r.choice([0, 1, 2])  # to none, to zeros, not at all
    # 1.13.1 may assert when a static graph starts inside no_sync; the rule here is NSY-07 and has its own tests.
    c["micro"] = 1 if c["sg"] else r.choice([1, 1, 2, 3])
    count = r.randint(2, 8)
    c["sizes"] = [r.choice([1, 3, 7, 16, 50, 129, 300]) for _ in range(count)]
    c["doubles"] = [r.random() < 0.3 for _ in range(count)] if number % 5 == 0 else [False] * count
    c["cap"] = r.choice([40, 200, 600, 4096])
    # MAIN drops the small first bucket when a capacity is given (BKT-12); 1.13.1 keeps it (BKT-13). So that both have
    # the same limits, the first cap is the capacity wherever there is no per-bucket list.
    c["first"] = r.choice([40, 200]) if c["fu"] else c["cap"]
    full = (1 << count) - 1
    c["masks"] = []
    fixed = [r.randint(1, full) for _ in range(c["world"])]
    for _ in range(STEPS):
        per_rank = []
        for rank in range(c["world"]):
            mask = r.randint(1, full) if c["fu"] else fixed[rank] if c["sg"] else full
            # A parameter used only before the synchronised micro-step is forgotten by 1.13.1 (NSY-05): every seventh
            # configuration does that, and is judged by MAIN's rule (NSY-04) alone.
            earlier = r.randint(1, full) if c["fu"] and number % 7 == 3 else mask
            per_rank.append([earlier] * (c["micro"] - 1) + [mask])
        c["masks"].append(per_rank)
    c["nsy05"] = any(m & ~masks[-1] for step in c["masks"] for masks in step for m in masks)
    c["inputs"], c["divide"], c["layers"], c["joins"], c["spread"] = [STEPS] * c["world"], 1, 0, 0, 0
    return c


def make_plain(c):
    """One micro-step in which everything is used."""
    c.update(fu=False, micro=1, first=c["cap"], nsy05=False, doubles=[False] * len(c["sizes"]))
    full = (1 << len(c["sizes"])) - 1
    c["masks"] = [[[full]] * c["world"]] * STEPS


def draw_any(number):
    c = draw(number)
    r = random.Random(-1 - number)
    if number >= CONFIGURATIONS + JOINS + LAYERS:
        make_plain(c)
        c["spread"], c["sg"] = 1, False
        c["hook"] = 2 + number // 3 % 4  # 2: f16, 3: bf16, 4 and 5: their wrappers around the plain all-reduce
    elif number >= CONFIGURATIONS + JOINS:
        c["layers"], c["sizes"] = 1, [24, 6, 18, 3]
        c["cap"], c["hook"] = r.choice([40, 100, 4096]), r.choice([0, 1])
        make_plain(c)
        c["sg"] = False
    elif number >= CONFIGURATIONS:
        make_plain(c)
        c["inputs"] = [STEPS] + [r.randint(1, STEPS) for _ in range(1, c["world"])]
        c["joins"], c["divide"] = 1, r.choice([0, 1])
    return c


def fnv(tensor):
    h = 0xCBF29CE484222325
    for b in tensor.detach().contiguous().numpy().tobytes():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return "%016x" % h


DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.int64: "i64", torch.int32: "i32",
          torch.bfloat16: "bf16", torch.uint8: "u8", torch.bool: "u8"}


class Done(dist._Work):
    def __init__(self, tensors):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(tensors)

    def wait(self, timeout=None):
        return True

    def get_future(self):
        return self.future


class Recorder(dist.ProcessGroup):
    """The default group, noting what is issued."""

    def __init__(self, group):
        super().__init__(group.rank(), group.size())
        self.group, self.posts = group, []

    def getBackendName(self):
        return "recorded"  # under the name "gloo" the reducer would take it for its own C++ class

    def add_bf16(self, tensor):
        """Gloo's ring: chunk c begins with rank c - 1, then c - 2, and ends with rank c; a chunk is two segments."""
        n, world = tensor.numel(), self.size()
        theirs = [torch.empty(2 * n, dtype=torch.uint8) for _ in range(world)]
        self.group.allgather([theirs], [tensor.view(torch.uint8)]).wait()
        theirs = [t.view(torch.bfloat16) for t in theirs]
        chunk = 2 * -(-(-(-2 * n // (2 * world))) // 2)
        for c in range(world):
            part = slice(min(n, c * chunk), min(n, (c + 1) * chunk))
            total = theirs[(c - 1) % world][part].clone()
            for k in range(2, world + 1):
                total += theirs[(c - k) % world][part]
            tensor[part] = total

    def note(self, op, tensor):
        self.posts.append("%s:%d:%s" % (op, tensor.numel(), DTYPES[tensor.dtype]))

    def allreduce(self, tensors, options):
        self.note("allreduce", tensors[0])
        if tensors[0].dtype == torch.bfloat16:
            self.add_bf16(tensors[0])
            return Done(tensors)
        return self.group.allreduce(tensors, options)

    def broadcast(self, tensors, options):
        self.note("broadcast", tensors[0])
        return self.group.broadcast(tensors, options)

    def allgather(self, outputs, inputs, options):
        self.note("allgather", inputs[0])
        return self.group.allgather(outputs, inputs, options)

    def barrier(self, options):
        self.posts.append("barrier:0:u8")
        return self.group.barrier(options)


def make_recorder(world):
    group = Recorder(dist.distributed_c10d._get_default_group())
    dist.distributed_c10d._pg_group_ranks[group] = {r: r for r in range(world)}
    dist.distributed_c10d._pg_names[group] = "recorded"
    dist.distributed_c10d._pg_map[group] = ("gloo", None)
    return group


class Layered(torch.nn.Module):
    """Two linear layers and a rectifier; the loss is the inner product of the outputs with given numbers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)
        self.p = list(self.parameters())
        with torch.no_grad():
            for i, p in enumerate(self.p):
                p.copy_(grid(p.numel(), i, 9, 8).view_as(p))

    def forward(self, place):
        x, y = grid(8, 1000 + place, 9, 4).view(2, 4), grid(6, 2000 + place, 9, 2).view(2, 3)
        return (self.b(torch.relu(self.a(x))) * y).sum()


class Injected(torch.nn.Module):
    def __init__(self, sizes, doubles):
        super().__init__()
        self.p = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros(n, dtype=torch.float64 if d else torch.float32)) for n, d in zip(sizes, doubles)])

    def forward(self, mask, c):
        loss = 0
        for i, p in enumerate(self.p):
            if mask >> i & 1:
                loss = loss + (p * c[i]).sum().double()
        return loss


HOOKS = [None, default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook,
         default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
         default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)]


def drop(c, parameters):
    for p in parameters:
        if c["zero"] == 0:
            p.grad = None
        elif c["zero"] == 1 and p.grad is not None:
            p.grad.zero_()


def iterate(c, ddp, rank, step, micro):
    """One forward and backward of a rank."""
    if c["layers"]:
        ddp(rank * 100 + step).backward()
        return
    values = [constants(rank, step, micro, i, n, d, c["spread"]) for i, (n, d) in enumerate(zip(c["sizes"], c["doubles"]))]
    ddp(c["masks"][step][rank][micro], values).backward()


def gather_arrivals(c, step, arrivals):
    if not c["joins"]:
        gathered = [None] * c["world"]
        dist.all_gather_object(gathered, arrivals)
        return gathered
    # Under join the others may be gone; all use everything in the same order.
    return [arrivals if step < inputs else [(0, [])] for inputs in c["inputs"]]


def buckets(ddp, parameters):
    """The reducer's buckets as it would hand them to a hook now, from the list that join's shadow reductions use."""
    index = {id(p): str(i) for i, p in enumerate(parameters)}
    return ", ".join(" ".join(index[id(p)] for p in b.parameters()) for b in ddp.reducer._get_zeros_like_grad_buckets())


def train(c, rank, group, out):
    dist._DEFAULT_FIRST_BUCKET_BYTES = c["first"]
    module = Layered() if c["layers"] else Injected(c["sizes"], c["doubles"])
    ddp = DistributedDataParallel(module, bucket_cap_mb=c["cap"] / 1048576.0, find_unused_parameters=c["fu"],
                                  gradient_as_bucket_view=c["views"], static_graph=c["sg"], process_group=group)
    if c["hook"]:
        chosen = HOOKS[c["hook"]]
        ddp.register_comm_hook(group, lambda state, bucket: chosen(state, bucket))
    order = []
    for i, p in enumerate(module.p):
        p.register_hook(lambda g, i=i: order.append(i))
    with ddp.join(divide_by_initial_world_size=bool(c["divide"])) if c["joins"] else contextlib.nullcontext():
        for step in range(c["inputs"][rank]):
            drop(c, module.p)
            masks = c["masks"][step][rank]
            arrivals = []
            group.posts.clear()
            for micro in range(c["micro"]):
                last = micro == c["micro"] - 1
                order.clear()
                with contextlib.nullcontext() if last else ddp.no_sync():
                    iterate(c, ddp, rank, step, micro)
                arrivals.append((masks[micro], list(order)))
            posts = list(group.posts)
            gathered = gather_arrivals(c, step, arrivals)
            if rank != 0:
                continue
            out.append("step %d" % step)
            for r, rank_arrivals in enumerate(gathered):
                for micro, (mask, arrived) in enumerate(rank_arrivals):
                    out.append("arrival %d %d %d %d %s" % (r, micro, mask, len(arrived), " ".join(map(str, arrived))))
            out.append("posts %s" % " ".join(posts))
            out.append("buckets %s" % buckets(ddp, module.p))
            used = ddp.reducer._get_local_used_map().tolist() if c["fu"] else []
            out.append("map %d %s" % (len(used), " ".join(map(str, used))))
            out.append("grads %s" % " ".join("none" if p.grad is None else fnv(p.grad) for p in module.p))
    log = ddp._get_ddp_logging_data()
    if rank == 0:
        out.append("layout %s ; %s" % (log["bucket_sizes"], log.get("rebuilt_per_bucket_param_indices", "")))
        out.append("end")
    del ddp


def run(rank, world):
    group = make_recorder(world)
    for number in range(CONFIGURATIONS + JOINS + LAYERS + CASTS):
        c = draw_any(number)
        if c["world"] != world:
            continue
        out = ["configuration %d world %d fu %d sg %d views %d hook %d zero %d micro %d first %d cap %d nsy05 %d steps %d parameters %d layers %d divide %d join %d spread %d" % (
            number, world, c["fu"], c["sg"], c["views"], c["hook"], c["zero"], c["micro"], c["first"], c["cap"], c["nsy05"], STEPS,
            len(c["sizes"]), c["layers"], c["divide"], c["joins"], c["spread"])]
        out.append("sizes " + " ".join(map(str, c["sizes"])))
        out.append("doubles " + " ".join(str(int(d)) for d in c["doubles"]))
        out.append("inputs " + " ".join(map(str, c["inputs"])))
        train(c, rank, group, out)
        if rank == 0:
            print("\n".join(out), flush=True)


for world in (2, 3, 4):
    run_ranks(world, run)
