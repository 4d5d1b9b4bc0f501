# SPDX-License-Identifier: Apache-2.0
"""Programs of a user, right ones and wrong ones. Each runs on every rank, inside an initialised group."""
import contextlib
import copy
import itertools
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, TensorDataset

import trainers

CLEAN, WRONG, RANKS, SAID = {}, {}, {}, {}


def of(ranks):
    """So many ranks run it; without this, two."""
    def add(call):
        RANKS[call.__name__] = ranks
        return call
    return add


def clean(call):
    CLEAN[call.__name__] = call
    return call


def wrong(*checks, words="", **options):
    """The first finding is of one of these checks, and the report has these words."""
    def add(call):
        WRONG[call.__name__] = (call, checks, words, options)
        return call
    return add


def said(words):
    """A right program; the report has these words of what it does not judge."""
    def add(call):
        SAID[call.__name__] = (call, words)
        return call
    return add


def mlp(width=40):
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, width),
                               torch.nn.ReLU(), torch.nn.Linear(width, 2))


def batch(rank, step, count=6):
    g = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(count, 8, generator=g), torch.randint(0, 2, (count,), generator=g)


def train(rank, ddp, optimizer, steps=4, begin=0, before_step=None):
    for step in range(begin, begin + steps):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x), y).backward()
        if before_step is not None:
            before_step(step)
        optimizer.step()


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)


def small_buckets():
    dist._DEFAULT_FIRST_BUCKET_BYTES = 2048


# ---- right ----

@clean
def plain(rank):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp))


@clean
def several_buckets(rank):
    small_buckets()
    ddp = DDP(mlp(), bucket_cap_mb=0.005)
    train(rank, ddp, sgd(ddp), steps=6)


@clean
def batch_norm(rank):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
    ddp = DDP(model)
    train(rank, ddp, sgd(ddp))


@clean
def accumulation_with_views(rank):
    ddp = DDP(mlp(), gradient_as_bucket_view=True)
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        with ddp.no_sync():
            for micro in range(2):
                x, y = batch(rank, 10 * step + micro)
                F.cross_entropy(ddp(x), y).backward()
        x, y = batch(rank, 10 * step + 5)
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


@clean
def accumulation(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        with ddp.no_sync():
            x, y = batch(rank, 10 * step)
            F.cross_entropy(ddp(x), y).backward()
        x, y = batch(rank, 10 * step + 5)
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Linear(8, 8)
        self.left, self.right = torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)

    def forward(self, x, left):
        x = torch.relu(self.trunk(x))
        return self.left(x) if left else self.right(x)


@clean
def unused_search(rank):
    ddp = DDP(Branches(), find_unused_parameters=True)
    optimizer = sgd(ddp)
    for step in range(5):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x, (rank + step) % 3 == 0), y).backward()
        optimizer.step()


def two_optimizers(ddp):
    heads = list(ddp.module.left.parameters()) + list(ddp.module.right.parameters())
    return torch.optim.SGD(ddp.module.trunk.parameters(), lr=0.1), torch.optim.SGD(heads, lr=0.1)


def alternate(rank, phase, drops):
    ddp = DDP(Branches(), find_unused_parameters=True)
    trunk, heads = two_optimizers(ddp)
    for step in range(6):
        trunk.zero_grad(set_to_none=drops)
        heads.zero_grad(set_to_none=drops)
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x, step % 2 == phase), y).backward()
        trunk.step()
        heads.step()


@clean
def two_optimizers_and_heads_that_alternate(rank):
    alternate(rank, 0, False)


@clean
def two_optimizers_and_heads_that_alternate_and_drop(rank):
    alternate(rank, 0, True)


@clean
def a_head_that_is_never_used(rank):
    alternate(rank, 2, True)


@clean
def uneven_inputs_join(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    with ddp.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            x, y = batch(rank, step)
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()


def joins_twice(rank, momentum):
    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=momentum)
    for epoch in range(2):
        with ddp.join():
            for step in range(2 + rank):
                optimizer.zero_grad()
                F.cross_entropy(ddp(batch(rank, 10 * epoch + step)[0]), batch(rank, step)[1]).backward()
                optimizer.step()


@clean
def joins_in_each_epoch(rank):
    joins_twice(rank, 0.0)


@wrong("I-PARAMEQ", words="momentum")
def joins_in_each_epoch_with_momentum(rank):
    joins_twice(rank, 0.9)


@clean
def second_group(rank):
    other = dist.new_group([0, 1])
    dist.new_group([0])
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        work = dist.all_reduce(torch.full((7,), float(rank)), group=other, async_op=True)
        train(rank, ddp, optimizer, steps=1, begin=step)
        work.wait()


@clean
def many_collectives(rank):
    t = torch.full((4,), float(rank))
    dist.broadcast(t, 0)
    dist.all_gather([torch.empty(4) for _ in range(2)], t)
    dist.reduce(t, 1)
    dist.gather(t, [torch.empty(4) for _ in range(2)] if rank == 0 else None, dst=0)
    dist.scatter(torch.empty(4), [t, t] if rank == 1 else None, src=1)
    dist.all_gather_object([None, None], {"rank": rank})
    dist.broadcast_object_list([rank], src=0)
    dist.monitored_barrier()
    if rank == 0:
        dist.send(t, 1)
    else:
        dist.recv(t, 0)
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp))


def gathers_as_one(rank, sizes):
    """PyTorch 2 has one operation for several tensors, which its coalescing manager calls."""
    world = dist.group.WORLD
    given = [torch.full((size,), float(rank)) for size in sizes]
    taken = [torch.empty(2 * size) for size in sizes]
    if hasattr(dist.ProcessGroup, "allgather_into_tensor_coalesced"):
        world.allgather_into_tensor_coalesced(taken, given).wait()
    else:
        for t, g in zip(taken, given):
            dist.all_gather(list(t.chunk(2)), g)
    assert all(t.tolist() == [0.0] * size + [1.0] * size for t, size in zip(taken, sizes))


@clean
def gathers_several_as_one(rank):
    plain(rank)
    gathers_as_one(rank, (3, 5))
    plain(rank)


@wrong("I-ORDER", words="allgather", limit=6.0)
def gathers_several_of_other_sizes(rank):
    plain(rank)
    gathers_as_one(rank, (3, 5) if rank == 0 else (3, 6))


@clean
def other_reductions(rank):
    plain(rank)
    for op, wanted in ((dist.ReduceOp.MAX, 1.0), (dist.ReduceOp.MIN, 0.0), (dist.ReduceOp.PRODUCT, 0.0)):
        t = torch.tensor([float(rank)])
        dist.all_reduce(t, op=op)
        assert t.item() == wanted


@wrong("I-ORDER", words="allreduce(max)")
def reductions_differ(rank):
    plain(rank)
    dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)


@clean
def scaled_loss(rank):
    """Under PyTorch 1 without CUDA the scaler is there and does nothing; under PyTorch 2 it scales on CPUs, too."""
    if hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    else:
        scaler = torch.cuda.amp.GradScaler(enabled=torch.cuda.is_available())
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        scaler.scale(F.cross_entropy(ddp(x), y)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@clean
def trainer_that_accumulates(rank):
    accelerate(rank)


@clean
def trainer_that_clips(rank):
    accelerate(rank, clips=True, gradient_as_bucket_view=True)


@wrong("I-META", words="inside no_sync")
def trainer_whose_forward_is_outside(rank):
    accelerate(rank, is_outside=True)


def accelerate(rank, clips=False, is_outside=False, **options):
    accelerator = trainers.Accelerator(gradient_accumulation_steps=2, **options)
    inner = mlp()
    model, optimizer = accelerator.prepare(inner, sgd(inner))
    for step in range(8):
        x, y = batch(rank, step)
        outside = F.cross_entropy(model(x), y) if is_outside else None
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y) if outside is None else outside)
            if clips:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


class Lightning(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def training_step(self, x, y):
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@clean
def trainer_with_a_closure(rank):
    trainers.Trainer(max_steps=4).fit(Lightning(), batch)


@wrong("I-PARAMEQ", "I-STEP", words="rank")
def trainer_whose_rank_has_another_rate(rank):
    module = Lightning()
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=0.1 * (1 + rank))
    trainers.Trainer(max_steps=4).fit(module, batch)


def powersgd_of_rank(rank, matrix_rank, change=None):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as p

    def powerSGD_hook(state, bucket):
        return p.powerSGD_hook(state, bucket).then(lambda f: f.value() if change is None else change(f.value(), state))

    powerSGD_hook.__module__ = p.__name__
    ddp = DDP(mlp())
    state = p.PowerSGDState(None, matrix_approximation_rank=matrix_rank, start_powerSGD_iter=2, min_compression_rate=1)
    ddp.register_comm_hook(state, p.powerSGD_hook if change is None else powerSGD_hook)
    train(rank, ddp, sgd(ddp), steps=6)


@clean
def powersgd_of_rank_2(rank):
    powersgd_of_rank(rank, 2)


@clean
def powersgd_of_rank_4(rank):
    powersgd_of_rank(rank, 4)


@wrong("I-HOOK", words="gradient + old error = output + new error")
def powersgd_of_rank_2_is_scaled(rank):
    powersgd_of_rank(rank, 2, lambda result, state: result * 1.25)


@wrong("I-HOOK", words="the output is the projection of the mean")
def powersgd_of_rank_4_moves_into_its_error(rank):
    def change(result, state):
        for error in state.error_dict.values():
            error += 0.25 * result
        return result * 0.75
    powersgd_of_rank(rank, 4, change)


def powersgd_that_forgets(rank, ranks):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as p
    ddp = DDP(mlp())
    state = p.PowerSGDState(None, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, p.powerSGD_hook)
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=5)
    for error in state.error_dict.values():
        if rank in ranks:
            error.zero_()
    train(rank, ddp, optimizer, steps=2, begin=5)


@wrong("I-HOOK", words="rank 1: the error that the comm hook keeps of bucket 0 changed between two calls")
def powersgd_that_forgets_on_rank_1(rank):
    powersgd_that_forgets(rank, [1])


@said("nor why the error that the comm hook keeps changed 1 time between its calls, alike on all ranks")
def powersgd_that_begins_anew(rank):
    powersgd_that_forgets(rank, [0, 1])


@clean
def powersgd_one_bucket(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as p
    ddp = DDP(mlp())
    ddp.register_comm_hook(p.PowerSGDState(None, start_powerSGD_iter=2), p.powerSGD_hook)
    train(rank, ddp, sgd(ddp), steps=5)


@clean
def fp16_hook(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    small_buckets()
    ddp = DDP(mlp(), bucket_cap_mb=0.005)
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(rank, ddp, sgd(ddp))


@clean
def averaging_hook(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    ddp = DDP(mlp())
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    train(rank, ddp, sgd(ddp))


@clean
def hook_and_unused_search(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    ddp = DDP(Branches(), find_unused_parameters=True)
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x, (rank + step) % 2 == 0), y).backward()
        optimizer.step()


@clean
def builtin_hook(rank):
    small_buckets()
    ddp = DDP(mlp(), bucket_cap_mb=0.005)
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    train(rank, ddp, sgd(ddp))


@clean
def clipped(rank):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp),
          before_step=lambda step: torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.05))


@clean
def clipped_in_parts(rank):
    ddp = DDP(mlp())

    def clip(step):
        params = list(ddp.parameters())
        torch.nn.utils.clip_grad_norm_(params[:2], 0.01)
        torch.nn.utils.clip_grad_norm_(params[2:], 0.02)

    train(rank, ddp, sgd(ddp), before_step=clip)


@clean
def clipped_twice_in_double(rank):
    ddp = DDP(mlp().double())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x.double()), y).backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.05)
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.03, norm_type=1.0)
        optimizer.step()


@clean
def static_graph(rank):
    ddp = DDP(mlp(), static_graph=True)
    train(rank, ddp, sgd(ddp), steps=5)


@clean
def two_wrappers_that_freeze_in_turn(rank):
    """A discriminator is frozen while the generator goes backward through it."""
    made = DDP(torch.nn.Linear(4, 8))
    judge = DDP(torch.nn.Linear(8, 1), broadcast_buffers=False)
    optimizers = sgd(made), sgd(judge)
    for step in range(4):
        fake = made(batch(rank, step)[0][:, :4])
        optimizers[1].zero_grad()
        (judge(batch(rank, step)[0]) - judge(fake.detach())).mean().backward()
        optimizers[1].step()
        for p in judge.parameters():
            p.requires_grad_(False)
        optimizers[0].zero_grad()
        judge(fake).mean().backward()
        optimizers[0].step()
        for p in judge.parameters():
            p.requires_grad_(True)


@clean
def two_forwards_and_one_backward(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        x = batch(rank, step)[0]
        optimizer.zero_grad()
        (ddp(x) - ddp(x + 0.1)).pow(2).mean().backward()
        optimizer.step()


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(20, 16), torch.nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.embedding(tokens)))


@clean
def tied_weights(rank):
    ddp = DDP(Tied())
    optimizer = sgd(ddp)
    for step in range(4):
        tokens = torch.randint(0, 20, (6,), generator=torch.Generator().manual_seed(9 * rank + step))
        optimizer.zero_grad()
        F.cross_entropy(ddp(tokens), (tokens + 1) % 20).backward()
        optimizer.step()


@clean
def gradient_penalty(rank):
    ddp = DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    optimizer = sgd(ddp)
    for step in range(4):
        x = batch(rank, step)[0].requires_grad_(True)
        optimizer.zero_grad()
        out = ddp(x).sum()
        slope, = torch.autograd.grad(out, x, create_graph=True)
        (0.01 * out.pow(2) + (slope.norm(dim=1) - 1).pow(2).mean()).backward()
        optimizer.step()


def steps_a_part(rank, begin):
    """The optimizer of rank 1 has the parameters from this one on."""
    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(list(ddp.parameters())[begin if rank == 1 else 0:], lr=0.1)
    for step in range(4):
        x, y = batch(rank, step)
        ddp.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


@wrong("I-PARAMEQ", words="rank 1")
def optimizer_lacks_a_layer_on_rank_1(rank):
    steps_a_part(rank, 2)


@wrong("I-PARAMEQ", words="rank 1")
def optimizer_has_the_last_bias_alone_on_rank_1(rank):
    steps_a_part(rank, 5)


@clean
def optimizers_of_layers_in_turn(rank):
    ddp = DDP(mlp())
    head, rest = torch.optim.SGD(ddp.module[4].parameters(), lr=0.1), torch.optim.Adam(
        list(ddp.module[0].parameters()) + list(ddp.module[2].parameters()), lr=0.01)
    for step in range(6):
        x, y = batch(rank, step)
        ddp.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        (head if step % 2 else rest).step()


@clean
def two_wrappers(rank):
    first, second = DDP(mlp(16)), DDP(mlp(24))
    one, two = sgd(first), sgd(second)
    for step in range(4):
        x, y = batch(rank, step)
        one.zero_grad()
        F.cross_entropy(first(x), y).backward()
        one.step()
        two.zero_grad()
        F.cross_entropy(second(x), y).backward()
        two.step()


@clean
def loader_with_workers(rank):
    data = TensorDataset(torch.randn(41, 8), torch.randint(0, 2, (41,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=6, sampler=sampler, num_workers=2)
    held_out = DataLoader(data, batch_size=6, sampler=DistributedSampler(data))
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        ddp.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
        scheduler.step()
        ddp.eval()
        with torch.no_grad():
            for x, y in held_out:
                ddp(x)


@clean
def frozen_and_ignored(rank):
    model = mlp()
    model[0].weight.requires_grad_(False)
    DDP._set_params_and_buffers_to_ignore_for_model(model, ["4.bias"])
    ddp = DDP(model)
    train(rank, ddp, torch.optim.Adam([p for n, p in ddp.module.named_parameters() if n != "4.bias"]))


@clean
def channels_last_and_double(rank):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                                torch.nn.Linear(4 * 36, 2)).double().to(memory_format=torch.channels_last)
    ddp = DDP(model)
    optimizer = torch.optim.AdamW(ddp.parameters())
    for step in range(3):
        g = torch.Generator().manual_seed(100 * rank + step)
        ddp(torch.randn(2, 3, 8, 8, generator=g, dtype=torch.float64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@clean
def group_twice(rank):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp), steps=2)
    del ddp
    dist.barrier()
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(3))


@clean
def group_made_anew_for_one_module(rank, begin=None):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp), steps=2)
    model = ddp.module
    del ddp
    dist.barrier()
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("gloo")
    ddp = DDP(model)
    if begin is not None:
        begin(model)
    train(rank, ddp, sgd(ddp), steps=2)


@wrong("I-PARAMEQ", "I-CHAIN", words="rank 1")
def group_made_anew_and_a_parameter_written(rank):
    def write(model):
        if rank == 1:
            model[0].bias.data.add_(1)
    group_made_anew_for_one_module(rank, write)


def phases(rank, bypasses):
    """Unfrozen, and wrapped again while the first wrapper is still there; then with another head."""
    model = mlp()
    for p in model[0].parameters():
        p.requires_grad_(False)
    ddp = DDP(model)
    optimizer = sgd(model)
    train(rank, ddp, optimizer, steps=2)
    for p in model[0].parameters():
        p.requires_grad_(True)
    ddp = DDP(model)
    train(rank, ddp, optimizer, steps=2, begin=2)
    if bypasses:
        optimizer.zero_grad()
        F.cross_entropy(model(batch(rank, 4)[0]), batch(rank, 4)[1]).backward()
        optimizer.step()
    model[4] = torch.nn.Linear(40, 2)
    ddp = DDP(model, find_unused_parameters=True)
    train(rank, ddp, sgd(ddp), steps=2, begin=5)


@clean
def wraps_again_in_each_phase(rank):
    phases(rank, False)


@wrong("I-ONCE", words="no forward of this step went through the wrapper")
def wraps_again_and_bypasses_the_wrapper(rank):
    phases(rank, True)


@clean
def two_wrappers_of_one_module_in_turn(rank):
    model = mlp()
    one, other = DDP(model), DDP(model, gradient_as_bucket_view=True)
    optimizer = sgd(model)
    for begin, ddp in enumerate((one, other, one, other)):
        train(rank, ddp, optimizer, steps=2, begin=2 * begin)


@clean
def two_wrappers_of_one_trunk(rank):
    trunk = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
    both = [DDP(torch.nn.Sequential(trunk, torch.nn.Linear(16, 2))) for _ in range(2)]
    optimizers = [sgd(ddp) for ddp in both]
    for step in range(6):
        train(rank, both[step % 2], optimizers[step % 2], steps=1, begin=step)


@said("optimizers took 18 reduced gradients more than once, alike on all ranks")
def two_optimizers_that_share_parameters(rank):
    ddp = DDP(mlp())
    optimizer, decay = sgd(ddp), torch.optim.SGD(ddp.parameters(), lr=1e-3, weight_decay=0.1)
    for step in range(3):
        train(rank, ddp, optimizer, steps=1, begin=step)
        decay.step()


def steps_again(rank, ranks, steps):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(3):
        train(rank, ddp, optimizer, steps=1, begin=step)
        if rank in ranks and step in steps:
            optimizer.step()


@said("optimizers took 18 reduced gradients more than once, alike on all ranks")
def steps_twice_always(rank):
    steps_again(rank, [0, 1], range(3))


@wrong("I-STEP", words="ranks 0 and 1: an optimizer steps twice in one step, on the same gradients")
def steps_twice_once(rank):
    steps_again(rank, [0, 1], [1])


@wrong("I-STEP", words="rank 1: an optimizer steps twice in one step, on the same gradients")
def steps_twice_on_rank_1(rank):
    steps_again(rank, [1], range(3))


@clean
def closure(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(3):
        x, y = batch(rank, step)

        def again():
            optimizer.zero_grad()
            loss = F.cross_entropy(ddp(x), y)
            loss.backward()
            return loss

        optimizer.step(again)


@clean
def flag_in_place_of_no_sync(rank):
    """As nanoGPT does it."""
    ddp = DDP(mlp())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for step in range(4):
        for micro in range(3):
            ddp.require_backward_grad_sync = micro == 2
            x, y = batch(rank, 10 * step + micro)
            loss = F.cross_entropy(ddp(x), y) / 3
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@of(3)
@clean
def messages_to_one(rank):
    """They are no operations of the group: others of it may go on meanwhile."""
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(3):
        train(rank, ddp, optimizer, steps=1, begin=step)
        if rank == 0:
            for source in (1, 2) if step < 2 else (None, None):
                dist.recv(torch.empty(4), source)
        else:
            dist.send(torch.ones(4), 0)


@of(3)
@clean
def messages_in_a_ring(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(3):
        got = torch.empty(4)
        works = [dist.isend(torch.full((4,), float(rank)), (rank + 1) % 3), dist.irecv(got, (rank - 1) % 3)]
        for work in works:
            work.wait()
        assert got[0].item() == (rank - 1) % 3
        train(rank, ddp, optimizer, steps=1, begin=step)


def in_pairs(rank, model, **options):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    torch.manual_seed(rank // 2)
    ddp = DDP(model(), process_group=groups[rank // 2])
    train(rank, ddp, sgd(ddp, **options))


@of(4)
@clean
def groups_start_from_other_values(rank):
    in_pairs(rank, mlp)


@of(4)
@clean
def groups_train_other_models(rank):
    in_pairs(rank, lambda: mlp(16 + 8 * (rank // 2)))


@of(3)
@clean
def a_rank_outside_of_the_group(rank):
    group = dist.new_group([0, 1])
    if rank < 2:
        ddp = DDP(mlp(), process_group=group)
        train(rank, ddp, sgd(ddp))


@clean
def uneven_inputs_of_several_joinables(rank):
    from torch.distributed.algorithms.join import Join
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    with Join([ddp]):
        for step in range(3 + rank):
            optimizer.zero_grad()
            x, y = batch(rank, step)
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()


class Odd(torch.nn.Module):
    """A parameter without elements, one without dimensions, one that is used twice."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = torch.nn.GRU(8, 8, batch_first=True), torch.nn.Linear(8, 2)
        self.scale, self.nothing = torch.nn.Parameter(torch.tensor(1.5)), torch.nn.Parameter(torch.empty(0))

    def forward(self, x):
        for _ in range(2):
            x = self.cell(x[:, None, :].repeat(1, 3, 1))[0][:, -1]
        return self.out(x) * self.scale + self.nothing.sum()


@clean
def odd_parameters(rank):
    ddp = DDP(Odd())
    train(rank, ddp, sgd(ddp))


@clean
def zeroed_between_forward_and_backward(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        x, y = batch(rank, step)
        loss = F.cross_entropy(ddp(x), y) + ddp(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def zero_redundancy(rank):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    ddp = DDP(mlp())
    train(rank, ddp, ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.SGD, lr=0.1))


def evaluates_inside(rank, ranks):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
    ddp = DDP(model, broadcast_buffers=False)
    optimizer = sgd(ddp)
    for epoch in range(2):
        ddp.train()
        train(rank, ddp, optimizer, steps=2, begin=2 * epoch)
        ddp.eval()
        if rank in ranks:
            with torch.no_grad():
                model(batch(rank, 99)[0])


@clean
def evaluates_inside_on_rank_0(rank):
    evaluates_inside(rank, (0,))


def normalised():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))


def evaluates(rank, evaluate, **options):
    ddp = DDP(normalised(), **options)
    optimizer = sgd(ddp)
    for epoch in range(2):
        ddp.train()
        train(rank, ddp, optimizer, steps=2, begin=2 * epoch)
        evaluate(ddp)
    return ddp


@clean
def evaluates_on_all_ranks_and_saves(rank):
    def evaluate(ddp):
        ddp.eval()
        with torch.no_grad():
            ddp(batch(rank, 99)[0])
    ddp = evaluates(rank, evaluate)
    if rank == 0:
        torch.save(ddp.module.state_dict(), os.devnull)
    dist.barrier()


@clean
def evaluates_in_train_mode_on_all_ranks(rank):
    def evaluate(ddp):
        with torch.no_grad():
            ddp(batch(rank, 99)[0])
    evaluates(rank, evaluate)


@clean
def forward_on_rank_0_without_backward(rank):
    """To draw something, say: no step begins or ends there."""
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for epoch in range(2):
        train(rank, ddp, optimizer, steps=2, begin=2 * epoch)
        if rank == 0:
            ddp(batch(0, 99)[0])


@clean
def loads_the_best_weights_on_all_ranks(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=2)
    best = copy.deepcopy(ddp.state_dict())
    train(rank, ddp, optimizer, steps=2, begin=2)
    ddp.load_state_dict(best)


def freezes(rank, ranks):
    ddp = DDP(mlp(), find_unused_parameters=True)
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=2)
    ddp.module[0].weight.requires_grad_(rank not in ranks)
    train(rank, ddp, optimizer, steps=2, begin=2)


@clean
def freezes_on_all_ranks(rank):
    freezes(rank, (0, 1))


def reduces_again(rank, change):
    ddp = DDP(mlp())

    def reduce(step):
        for p in ddp.parameters():
            change(p)

    train(rank, ddp, sgd(ddp), before_step=reduce)


@clean
def averages_what_is_averaged(rank):
    def change(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    reduces_again(rank, change)


@clean
def sums_copies_of_gradients(rank):
    """For statistics."""
    reduces_again(rank, lambda p: dist.all_reduce(p.grad.clone()))


@clean
def makes_a_sum_of_the_mean(rank):
    """As fairseq does it, beside a reduction of numbers for the log."""
    ddp = DDP(mlp())

    def scale(step):
        dist.all_reduce(torch.ones(6))
        for p in ddp.parameters():
            p.grad.mul_(dist.get_world_size())

    train(rank, ddp, sgd(ddp), before_step=scale)


def with_memory(rank, remember, frozen=True):
    """A model with a part that no gradient changes; after each backward `remember` may do so."""
    model = mlp()
    model[0].weight.requires_grad_(not frozen)
    model.register_buffer("memory", torch.zeros(4))
    ddp = DDP(model, broadcast_buffers=False)
    train(rank, ddp, torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], lr=0.1),
          before_step=lambda step: remember(ddp.module, step))


@clean
def momentum_encoder(rank):
    """As MoCo and BYOL do it."""
    with_memory(rank, lambda model, step: model[0].weight.data.mul_(0.99).add_(model[2].weight.data[:, :8], alpha=0.01))


@clean
def remembers_the_step_in_a_buffer(rank):
    with_memory(rank, lambda model, step: model.memory.data.fill_(float(step)))


def loads(rank, data, **options):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for epoch in range(2):
        for x, y in DataLoader(data, batch_size=6, **options):
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()


def numbered(begin, end):
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(60, 8, generator=g), torch.randint(0, 2, (60,), generator=g)
    return TensorDataset(x[begin:end], y[begin:end])


@clean
def shuffles_its_own_files(rank):
    loads(rank, numbered(24 * rank, 24 * rank + 24), shuffle=True)


@clean
def augments_what_it_shuffles(rank):
    """Nobody knows whether samples are the same, so nothing is said."""
    def noisy(rows):
        x, y = zip(*rows)
        return torch.stack(x) + 0.1 * torch.randn(len(x), 8), torch.stack(y)
    torch.manual_seed(rank)
    loads(rank, numbered(0, 24), shuffle=True, collate_fn=noisy)


class Stream(IterableDataset):
    def __init__(self, rank, step, inputs=None):
        self.rank, self.step = rank, step
        self.x = numbered(0, 36).tensors[0] if inputs is None else inputs

    def __iter__(self):
        for i in range(self.rank, len(self.x), self.step):
            yield self.x[i], i % 2


@clean
def iterates_its_own_share(rank):
    loads(rank, Stream(rank, 2))


class ByWorkers(Stream):
    def __iter__(self):
        here = torch.utils.data.get_worker_info()
        yield from list(super().__iter__())[here.id::here.num_workers]


@clean
def iterates_by_workers(rank):
    loads(rank, ByWorkers(rank, 2), num_workers=2)


@wrong("I-DATA", words="each of the 2 workers of a DataLoader gives the same batches")
def iterates_twice_by_workers(rank):
    loads(rank, Stream(rank, 2), num_workers=2)


@clean
def iterates_over_zeros(rank):
    """Samples that are equal by nature are nothing to compare."""
    loads(rank, Stream(0, 1, torch.zeros(36, 8)))


@wrong("I-DATA", words="what the first 12 forwards get is the same")
def iterates_the_whole_stream(rank):
    loads(rank, Stream(0, 1))


@clean
def full_batch_on_all_ranks(rank):
    """One batch, again and again."""
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for _ in range(5):
        train(0, ddp, optimizer, steps=1)


@wrong("I-DATA", words="all ranks train on the same samples, in the same order")
def loops_over_the_same_batches(rank):
    ddp = DDP(mlp())
    train(0, ddp, sgd(ddp), steps=4)


def sampled(rank, passes, loader_of=None, replicas=2):
    """passes(loader, sampler, ddp): the loaders to go through, one after another."""
    data = numbered(0, 24)
    sampler = DistributedSampler(data, num_replicas=replicas, rank=rank)
    loader = DataLoader(data, batch_size=4, sampler=sampler) if loader_of is None else loader_of(data, sampler)
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for batches in passes(loader, sampler, ddp):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()


def in_batches(data, sampler):
    return DataLoader(data, batch_sampler=BatchSampler(sampler, 4, False))


def three_epochs(sets):
    def passes(loader, sampler, ddp):
        for epoch in range(3):
            if sets:
                sampler.set_epoch(epoch)
            yield loader
    return passes


@clean
def batch_sampler_with_epochs(rank):
    sampled(rank, three_epochs(True), in_batches)


@wrong("I-SEED", words="does not advance")
def batch_sampler_without_epochs(rank):
    sampled(rank, three_epochs(False), in_batches)


@wrong("I-SEED", words="does not advance")
def batches_of_batches_without_epochs(rank):
    """The dataset takes a list of lists."""
    class Rows(torch.utils.data.Dataset):
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return len(self.data)

        def __getitem__(self, rows):
            x, y = zip(*[self.data[i] for i in rows])
            return torch.stack(x), torch.stack(y)
    sampled(rank, three_epochs(False), lambda data, sampler: DataLoader(
        Rows(data), batch_size=None, sampler=BatchSampler(sampler, 4, False)))


def two_tries(loader, sampler, ddp):
    for tried, batches in enumerate(loader):
        if tried == 2:
            return
        yield [batches]


@clean
def tries_two_batches_and_then_trains(rank):
    """As whoever looks for a learning rate: everything is put back, and the first epoch comes again."""
    def passes(loader, sampler, ddp):
        kept = copy.deepcopy(ddp.state_dict())
        yield from two_tries(loader, sampler, ddp)
        ddp.load_state_dict(kept)
        yield from three_epochs(True)(loader, sampler, ddp)
    sampled(rank, passes)


@wrong("I-SEED", words="does not advance")
def tries_two_batches_and_never_sets_the_epoch(rank):
    def passes(loader, sampler, ddp):
        yield from two_tries(loader, sampler, ddp)
        yield from three_epochs(False)(loader, sampler, ddp)
    sampled(rank, passes)


@wrong("I-SEED", words="does not advance")
def sets_the_first_epoch_each_time(rank):
    def passes(loader, sampler, ddp):
        for _ in range(3):
            sampler.set_epoch(0)
            yield loader
    sampled(rank, passes)


def new_samplers(rank, seeds):
    def passes(loader, sampler, ddp):
        data = loader.dataset
        for seed in seeds:
            yield DataLoader(data, batch_size=4, sampler=DistributedSampler(data, num_replicas=2, rank=rank, seed=seed))
    sampled(rank, passes)


@clean
def new_sampler_in_each_epoch(rank):
    new_samplers(rank, [0, 1, 2])


@wrong("I-SEED", words="does not advance")
def new_sampler_in_each_epoch_with_one_seed(rank):
    new_samplers(rank, [0, 0, 0])


@wrong("I-DATA", words="nobody trains on the samples that a DistributedSampler has for rank 2 of 3")
def sampler_of_three_ranks_on_two(rank):
    sampled(rank, three_epochs(True), replicas=3)


@said("nor why 12 samples that a loader gave reached no forward")
def takes_two_batches_and_trains_on_one(rank):
    data = numbered(0, 48)
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    batches = iter(DataLoader(data, 4, sampler=DistributedSampler(data, 2, rank, shuffle=False)))
    for _ in range(3):
        x, y = next(batches)
        if rank == 1:
            x, y = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


@said("nor that ranks used other numbers of samples in 2 steps")
def batches_of_other_sizes(rank):
    sampled(rank, lambda loader, sampler, ddp: [itertools.islice(loader, 2)],
            lambda data, sampler: DataLoader(data, batch_size=6 - 2 * rank, sampler=sampler))


class Twice(DistributedSampler):
    def __iter__(self):
        return iter([i for i in super().__iter__() for _ in range(2)])


@said("a sampler has its own order of them")
def sampler_that_repeats_on_purpose(rank):
    sampled(rank, three_epochs(True), lambda data, sampler: DataLoader(
        data, batch_size=4, sampler=Twice(data, num_replicas=2, rank=rank)))


# ---- wrong ----

@wrong("I-DATA", words="all ranks train on the same samples, in the same order")
def shuffles_with_one_seed_and_no_sampler(rank):
    loads(rank, numbered(0, 24), shuffle=True)


@wrong("I-DATA", words="all ranks train on the same samples, in the same order")
def reads_all_files_in_order(rank):
    loads(rank, numbered(0, 24), num_workers=1)


@wrong("I-PARAMEQ", words="rank 0 and rank 1, no majority, hold different values of 0.weight")
def overwrites_a_frozen_parameter(rank):
    def write(model, step):
        if rank == 1 and step == 2:
            model[0].weight.data.add_(0.01)
    with_memory(rank, write)


@wrong("I-PARAMEQ", words="0.weight")
def momentum_encoder_that_drifts(rank):
    with_memory(rank, lambda model, step: model[0].weight.data.add_(0.01 * rank))


@wrong("I-PARAMEQ", words="0.weight")
def unfreezes_behind_the_wrapper(rank):
    """The wrapper reduces no gradient of it."""
    model = mlp()
    model[0].weight.requires_grad_(False)
    ddp = DDP(model)
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=2)
    model[0].weight.requires_grad_(True)
    train(rank, ddp, optimizer, steps=2, begin=2)


@wrong("I-ONCE", words="2 times as large")
def reduces_gradients_again(rank):
    reduces_again(rank, lambda p: dist.all_reduce(p.grad))


@wrong("I-ONCE", words="0.weight is reduced twice")
def reduces_gradients_again_as_one(rank):
    ddp = DDP(mlp())

    def reduce(step):
        flat = torch.cat([p.grad.reshape(-1) for p in ddp.parameters()])
        dist.all_reduce(flat)
        at = 0
        for p in ddp.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.05)

    train(rank, ddp, sgd(ddp), before_step=reduce)


def accumulates(rank, is_last):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(3):
            ddp.require_backward_grad_sync = is_last(step, micro)
            x, y = batch(rank, 10 * step + micro)
            (F.cross_entropy(ddp(x), y) / 3).backward()
        optimizer.step()


@wrong("I-ONCE", words="rank 1: the optimizer steps on a local gradient")
def reduces_early_on_rank_1(rank):
    accumulates(rank, lambda step, micro: micro == (1 if rank == 1 and step == 1 else 2))


@wrong("I-ONCE", words="ranks 0 and 1: the optimizer steps on a local gradient")
def reduces_early(rank):
    accumulates(rank, lambda step, micro: micro == 1)


@wrong("I-ORDER", words="in evaluate", limit=8.0)
def evaluates_through_the_wrapper_on_rank_0(rank):
    """The wrapper broadcasts buffers before a forward."""
    def evaluate(ddp):
        if rank == 0:
            ddp.eval()
            with torch.no_grad():
                ddp(batch(0, 99)[0])
    evaluates(rank, evaluate)


@wrong("I-PARAMEQ", "I-STEP", words="rank 1")
def skips_a_step(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(5):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x), y).backward()
        if not (rank == 1 and step == 2):
            optimizer.step()


@wrong("I-STEP", words="rank 1 leaves out optimizer 1 in step 2, where rank 0 steps")
def leaves_out_one_of_two_optimizers(rank):
    ddp = DDP(Branches(), find_unused_parameters=True)
    trunk, heads = two_optimizers(ddp)
    for step in range(5):
        trunk.zero_grad()
        heads.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x, True), y).backward()
        trunk.step()
        if not (rank == 1 and step == 2):
            heads.step()


@wrong("I-ONCE", words="no forward of this step went through the wrapper")
def bypasses_the_wrapper_once(rank):
    model = mlp()
    ddp = DDP(model)
    optimizer = sgd(ddp)
    for step in range(5):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy((model if step == 2 else ddp)(x), y).backward()
        optimizer.step()


@wrong("I-ONCE", words="no forward of this step went through the wrapper")
def bypasses_the_wrapper_always(rank):
    model = mlp()
    train(rank, model, sgd(DDP(model)))


@wrong("I-PARAMEQ", "I-STEP", words="rank 0")
def skips_the_last_step(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(5):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x), y).backward()
        if rank == 1 or step < 4:
            optimizer.step()
    dist.barrier()


@wrong("I-META", words="a backward runs inside no_sync, its forward ran outside it")
def backward_alone_in_no_sync(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        loss = F.cross_entropy(ddp(x), y)
        with ddp.no_sync():
            loss.backward()
        optimizer.step()


@wrong("I-META", "I-ONCE", words="a backward runs outside no_sync, its forward ran inside it")
def forward_alone_in_no_sync(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        with ddp.no_sync():
            loss = F.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()


@wrong("I-ONCE", words="steps on a local gradient")
def no_sync_everywhere(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        with ddp.no_sync():
            F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


@wrong("I-ONCE", words="steps on a local gradient")
def second_backward(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        out = ddp(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        out.pow(2).mean().backward()
        optimizer.step()


class Ordered(torch.nn.Module):
    def __init__(self, names):
        super().__init__()
        for name in names:
            setattr(self, name, torch.nn.Linear(8, 8))

    def forward(self, x):
        return self.a(x) + self.b(x)


@wrong("I-INIT", words="parameter")
def other_registration_order(rank):
    ddp = DDP(Ordered("ab" if rank == 0 else "ba"))
    optimizer = sgd(ddp)
    for step in range(2):
        optimizer.zero_grad()
        ddp(batch(rank, step)[0]).pow(2).mean().backward()
        optimizer.step()


def epochs(rank, workers, says_epoch, data_rank=None, epoch_offset=0):
    data = TensorDataset(torch.randn(24, 8), torch.randint(0, 2, (24,)))
    sampler = DistributedSampler(data, num_replicas=2, rank=rank if data_rank is None else data_rank)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=workers)
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for epoch in range(2):
        if says_epoch:
            sampler.set_epoch(epoch + epoch_offset)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()


@wrong("I-SEED", words="does not advance")
def epoch_never_set(rank):
    epochs(rank, 0, False)


@wrong("I-SEED", words="does not advance")
def epoch_never_set_with_workers(rank):
    epochs(rank, 2, False)


@wrong("I-DATA", words="again")
def same_samples_on_all_ranks(rank):
    epochs(rank, 0, True, data_rank=0)


@wrong("I-STEP", words="disagree on the learning rate")
def rates_differ(rank):
    ddp = DDP(mlp())
    train(rank, ddp, torch.optim.SGD(ddp.parameters(), lr=0.1 if rank == 0 else 0.2))


@wrong("I-STEP", words="disagree on the learning rate")
def scheduler_on_one_rank(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(4):
        train(rank, ddp, optimizer, steps=1, begin=step)
        if rank == 0:
            scheduler.step()


@wrong("I-STEP", words="changes gradients that are not reduced yet")
def clips_before_the_reduction(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(3):
        optimizer.zero_grad()
        with ddp.no_sync():
            x, y = batch(rank, 10 * step)
            F.cross_entropy(ddp(x), y).backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)
        x, y = batch(rank, 10 * step + 1)
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


@wrong("I-STEP", words="changes gradients that are not reduced yet")
def clips_values_in_no_sync(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(3):
        optimizer.zero_grad()
        with ddp.no_sync():
            x, y = batch(rank, 10 * step)
            F.cross_entropy(ddp(x), y).backward()
            torch.nn.utils.clip_grad_value_(ddp.parameters(), 0.001)
        x, y = batch(rank, 10 * step + 1)
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


@wrong("I-PARAMEQ", "I-CHAIN", words="rank 1")
def writes_a_parameter(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        train(rank, ddp, optimizer, steps=1, begin=step)
        if rank == 1 and step == 1:
            with torch.no_grad():
                ddp.module[0].weight.add_(0.01)


@wrong("I-PARAMEQ", words="step 2")
def writes_a_gradient(rank):
    ddp = DDP(mlp())

    def write(step):
        if rank == 1 and step == 2:
            ddp.module[0].weight.grad.add_(0.5)

    train(rank, ddp, sgd(ddp), before_step=write)


@wrong("I-ORDER", "I-LIVE", words="collective #", limit=12.0)
def extra_collective(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        if rank == 1 and step == 2:
            dist.broadcast(torch.zeros(3), 0, async_op=True)
        train(rank, ddp, optimizer, steps=1, begin=step)


@wrong("I-ORDER", words="programs.py", limit=8.0)
def two_collectives_exchanged(rank):
    a, b = torch.ones(64), torch.ones(64)
    if rank == 0:
        dist.all_reduce(a)
        dist.broadcast(b, 0)
    else:
        dist.broadcast(b, 0)
        dist.all_reduce(a)


@wrong("I-ORDER", words="allreduce(sum) of 32 f32")
def sizes_differ(rank):
    """Gloo ends the process when sizes do not match."""
    dist.all_reduce(torch.ones(16 + 16 * rank))


@wrong("I-ORDER", words="f64", limit=8.0)
def dtypes_differ(rank):
    dist.all_reduce(torch.ones(8, dtype=torch.float64 if rank else torch.float32))


@wrong("I-FAIL", words="signal 9")
def is_killed(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=2)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train(rank, ddp, optimizer, steps=2)


@wrong("I-FAIL", words="signal 11")
def dies_of_a_fault(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=1)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    train(rank, ddp, optimizer, steps=2)


@wrong("I-FAIL", "I-LIVE", words="rank 1")
def exits_silently(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=2)
    if rank == 1:
        os._exit(3)
    train(rank, ddp, optimizer, steps=2)


@wrong("I-FAIL", "I-LIVE", "I-ORDER", words="rank 1")
def raises(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=2)
    if rank == 1:
        raise ValueError("no more data")
    train(rank, ddp, optimizer, steps=2)


@wrong("I-ORDER", "I-LIVE", words="rank 1", grace=1.0)
def leaves_early(rank):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp), steps=3 if rank == 0 else 2)
    if rank == 1:
        sys.exit(0)


@wrong("I-ORDER", "I-ONCE", "I-LIVE", "I-FAIL", words="rank", limit=10.0)
def other_branch_without_search(rank):
    ddp = DDP(Branches())
    optimizer = sgd(ddp)
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x, rank == 0), y).backward()
        optimizer.step()


def scaled_hook(factor, state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0] * factor)


def hook_of(factor):
    def hook(state, bucket):
        return scaled_hook(factor, state, bucket)
    hook.cddp_averages = True
    return hook


@wrong("I-HOOK", words="the hook breaks its law over all ranks")
def hook_sums(rank):
    ddp = DDP(mlp())
    ddp.register_comm_hook(None, hook_of(1.0))
    train(rank, ddp, sgd(ddp))


@wrong("I-HOOK", words="the hook breaks its law over all ranks")
def hook_divides_twice(rank):
    small_buckets()
    ddp = DDP(mlp(), bucket_cap_mb=0.005)
    ddp.register_comm_hook(None, hook_of(0.25))
    train(rank, ddp, sgd(ddp))


def plain_hook(before=None, after=None, law=None):
    """The mean, with what `before` does to what this rank gives, and `after` to the result."""
    def hook(state, bucket):
        given = bucket.buffer() if before is None else before(bucket)
        def end(f):
            result = f.value()[0] / dist.get_world_size()
            return result if after is None else after(bucket.index(), result)
        return dist.all_reduce(given, async_op=True).get_future().then(end)
    if law is not None:
        hook.cddp_law = law
    return hook


def hooked(rank, hook, steps=5, **options):
    small_buckets()
    ddp = DDP(mlp(), bucket_cap_mb=0.005, **options)
    ddp.register_comm_hook(None, hook)
    train(rank, ddp, sgd(ddp), steps=steps)


@clean
def undeclared_mean_hook(rank):
    hooked(rank, plain_hook())


@clean
def undeclared_mean_hook_with_views(rank):
    hooked(rank, plain_hook(), gradient_as_bucket_view=True)


@clean
def declared_sum_hook(rank):
    """Its loss is divided by the samples of all ranks."""
    small_buckets()
    ddp = DDP(mlp(), bucket_cap_mb=0.005)
    ddp.register_comm_hook(None, plain_hook(after=lambda index, result: result * 2, law="sum"))
    train(rank, ddp, sgd(ddp))


@clean
def fp16_hook_by_hand(rank):
    def hook(state, bucket):
        half = bucket.buffer().to(torch.float16).div_(2)
        return dist.all_reduce(half, async_op=True).get_future().then(lambda f: f.value()[0].to(torch.float32))
    hook.cddp_law = "fp16"
    hooked(rank, hook)


@wrong("I-HOOK", words="roundings of the mean prefer neither side")
def fp16_hook_a_little_too_large(rank):
    def hook(state, bucket):
        half = bucket.buffer().to(torch.float16).div_(2)
        return dist.all_reduce(half, async_op=True).get_future().then(lambda f: f.value()[0].to(torch.float32) * 1.0015)
    hook.cddp_law = "fp16"
    hooked(rank, hook)


@clean
def fp16_wrapper_hook(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    hooked(rank, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))


@clean
def builtin_allreduce(rank):
    small_buckets()
    ddp = DDP(mlp(), bucket_cap_mb=0.005)
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    train(rank, ddp, sgd(ddp))


@clean
def join_by_active_ranks(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    with ddp.join(divide_by_initial_world_size=False):
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            x, y = batch(rank, step)
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()


@clean
def join_with_hook(rank):
    ddp = DDP(mlp())
    ddp.register_comm_hook(None, plain_hook())
    optimizer = sgd(ddp)
    with ddp.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            x, y = batch(rank, step)
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()


@wrong("I-HOOK", words="nobody divides by 2")
def undeclared_hook_sums(rank):
    hooked(rank, plain_hook(after=lambda index, result: result * 2))


@wrong("I-HOOK", words="divided by 3, not by 2")
def undeclared_hook_divides_by_one_more(rank):
    hooked(rank, plain_hook(after=lambda index, result: result * 2 / 3))


@wrong("I-HOOK", words="without what rank 1 gave")
def undeclared_hook_drops_a_rank(rank):
    hooked(rank, plain_hook(before=lambda bucket: bucket.buffer() * (1 - rank)))


@wrong("I-HOOK", words="nobody divides by 2")
def undeclared_hook_divides_in_the_first_bucket_only(rank):
    hooked(rank, plain_hook(after=lambda index, result: result if index == 0 else result * 2))


@wrong("I-HOOK", words="minus the mean of what the ranks gave")
def undeclared_hook_negates(rank):
    hooked(rank, plain_hook(after=lambda index, result: -result))


@wrong("I-HOOK", words="minus the mean of what the ranks gave")
def hook_negates_what_enters(rank):
    hooked(rank, plain_hook(before=lambda bucket: -bucket.buffer()), gradient_as_bucket_view=True)


@clean
def hook_that_negates_twice(rank):
    hooked(rank, plain_hook(before=lambda bucket: -bucket.buffer(), after=lambda index, result: -result))


@wrong("I-HOOK", words="the mean of the backward before")
def undeclared_hook_is_stale(rank):
    kept, calls = {}, {}  # once the buckets are rebuilt: before and after it the same number is another bucket

    def after(index, result):
        before = kept.get(index)
        kept[index] = result.clone()
        calls[index] = calls.get(index, 0) + 1
        return before if calls[index] > 2 else result

    small_buckets()
    ddp = DDP(mlp(), bucket_cap_mb=25)
    ddp.register_comm_hook(None, plain_hook(after=after))
    train(rank, ddp, sgd(ddp), steps=5)


@wrong("I-HOOK", words="breaks its law")
def declared_hook_halves_an_element(rank):
    def after(index, result):
        result[int(result.abs().argmax())] /= 2
        return result
    hooked(rank, plain_hook(after=after, law="mean"))


@wrong("I-HOOK", words="breaks its law")
def fp16_hook_divides_by_one_more(rank):
    hooked(rank, plain_hook(after=lambda index, result: result * 2 / 3, law="fp16"))


@wrong("I-HOOK", words="nobody divides by 2")
def join_hook_divides_by_active_ranks(rank):
    """Of two ranks one is left: its hook divides by one."""
    def hook(state, bucket):
        active = torch.ones(1)
        active *= float(bool(bucket.buffer().abs().sum() > 0))
        dist.all_reduce(active)
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(
            lambda f: f.value()[0] / float(active))
    ddp = DDP(mlp())
    ddp.register_comm_hook(None, hook)
    optimizer = sgd(ddp)
    with ddp.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            x, y = batch(rank, step)
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()


@wrong("I-BUFEQ", words="evaluation")
def evaluates_inside_with_other_buffers(rank):
    evaluates_inside(rank, (0, 1))


@of(4)
@wrong("I-PARAMEQ", words="rank 2 and rank 3")
def second_of_two_groups_differs(rank):
    in_pairs(rank, mlp, weight_decay=0.1 * (rank == 3))


@wrong("I-GROUP", words="make different groups in call 1 of new_group", limit=6.0)
def groups_in_another_order(rank):
    lists = [[0, 1], [0]]
    for members in lists if rank == 0 else lists[::-1]:
        dist.new_group(members)


@wrong("I-LIVE", words="wait for one another", limit=8.0)
def both_receive_first(rank):
    plain(rank)
    t = torch.ones(3)
    dist.recv(t, 1 - rank)
    dist.send(t, 1 - rank)


@wrong("I-ORDER", words="root", limit=8.0)
def roots_differ(rank):
    plain(rank)
    dist.broadcast(torch.ones(3), rank)


@wrong("I-PARAMEQ", words="step 2")
def loads_on_rank_0_only(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    state = {name: value + 0.01 for name, value in ddp.state_dict().items()}
    train(rank, ddp, optimizer, steps=2)
    if rank == 0:
        ddp.load_state_dict(state)
    train(rank, ddp, optimizer, steps=2, begin=2)


@wrong("I-PARAMEQ", words="step 2")
def loses_momentum_on_rank_1(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=2)
    if rank == 1:
        optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=2, begin=2)


@wrong("I-SEED", words="disagree on shared random stream 'sampler'")
def epochs_differ(rank):
    epochs(rank, 0, True, epoch_offset=rank)


@wrong("I-STEP", words="disagree on the clip coefficient")
def clips_on_one_rank(rank):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp), before_step=lambda step: rank == 1 or torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.05))


@clean
def probes_through_the_module_on_rank_0(rank):
    """A further backward between two steps, and one zero_grad more than on the other rank."""
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        train(rank, ddp, optimizer, steps=1, begin=step)
        if rank == 0 and step == 1:
            ddp.module(batch(0, 70)[0]).sum().backward()
        if rank == 0:
            optimizer.zero_grad()


@clean
def trains_a_copy_on_rank_0(rank):
    """Beside the common model: its backwards are no steps of the wrapper."""
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    copied = copy.deepcopy(ddp.module)
    for step in range(4):
        train(rank, ddp, optimizer, steps=1, begin=step)
        for turn in range(2 if rank == 0 else 0):
            loss = copied(batch(0, 70 + turn)[0]).sum()
            for p, g in zip(copied.parameters(), torch.autograd.grad(loss, list(copied.parameters()))):
                p.data.sub_(g)
            copied(batch(0, 80 + turn)[0]).sum().backward()


def beside_the_world(rank, change):
    """Ranks 0 and 1 train a second model in each step, so that they take more steps than rank 2."""
    group = dist.new_group([0, 1])
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    if rank < 2:
        second = DDP(mlp(), process_group=group)
        other = sgd(second)
    for step in range(4):
        train(rank, ddp, optimizer, steps=1, begin=step)
        if rank < 2:
            train(rank, second, other, steps=1, begin=step)
            change(second, step)


@of(3)
@clean
def second_wrapper_of_two_ranks_beside_the_world(rank):
    beside_the_world(rank, lambda second, step: None)


@of(3)
@wrong("I-PARAMEQ", words="rank 0 and rank 1, no majority, hold different values of 0.bias")
def second_wrapper_of_two_ranks_drifts(rank):
    beside_the_world(rank, lambda second, step: second.module[0].bias.data.add_(rank * (step == 1)))


@clean
def one_of_two_optimizers_is_replaced(rank):
    ddp = DDP(mlp())
    params = list(ddp.parameters())
    both = [torch.optim.SGD(params[:2], lr=0.1), torch.optim.SGD(params[2:], lr=0.1)]
    for step in range(5):
        if step == 2:
            both[0] = None
            both[0] = torch.optim.Adam(params[:2], lr=1e-3)
        for optimizer in both:
            optimizer.zero_grad()
        F.cross_entropy(ddp(batch(rank, step)[0]), batch(rank, step)[1]).backward()
        for optimizer in both:
            optimizer.step()


@wrong("I-ONCE", words="it was added after the reduction had been finalised")
def regularises_behind_the_reduction(rank):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp), before_step=lambda step: ddp.module[0].weight.pow(2).sum().backward())


@wrong("I-STEP", words="gradients are dropped before the step")
def keeps_gradients_on_rank_1(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        if rank == 0 or step != 2:
            optimizer.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


@wrong("I-NONE", words="whether 4.bias has a gradient")
def drops_a_gradient_on_rank_1(rank):
    ddp = DDP(mlp())

    def drop(step):
        if rank == 1:
            ddp.module[4].bias.grad = None
    train(rank, ddp, sgd(ddp), before_step=drop)


@wrong("I-PARAMEQ", "I-ONCE", words="0.weight")
def gradients_without_backward(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    params = list(ddp.parameters())
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        for p, gradient in zip(params, torch.autograd.grad(F.cross_entropy(ddp(x), y), params)):
            p.grad = gradient
        optimizer.step()


UNJUDGED = {}


def unjudged(words):
    """Nothing can be held against it: inconclusive, and the report says what is missing."""
    def add(call):
        UNJUDGED[call.__name__] = (call, words)
        return call
    return add


statistics_moved = unjudged("why buffers changed outside of training steps, on some ranks alone (evaluate in eval()")


@statistics_moved
def evaluates_inside_in_train_mode_on_rank_0(rank):
    def evaluate(ddp):
        if rank == 0:
            with torch.no_grad():
                ddp.module(batch(0, 99)[0])
    evaluates(rank, evaluate)


@statistics_moved
def evaluates_in_train_mode_on_rank_0(rank):
    def evaluate(ddp):
        if rank == 0:
            with torch.no_grad():
                ddp(batch(0, 99)[0])
    evaluates(rank, evaluate, broadcast_buffers=False)


@statistics_moved
def evaluates_with_gradients_on_rank_0(rank):
    def evaluate(ddp):
        if rank == 0:
            ddp(batch(0, 99)[0])
    evaluates(rank, evaluate, broadcast_buffers=False)


@statistics_moved
def writes_a_buffer_on_rank_1(rank):
    """Through .data, which leaves its version as it was."""
    def write(model, step):
        if rank == 1 and step == 1:
            model.memory.data.add_(1)
    with_memory(rank, write)


@unjudged("a DataLoader without a DistributedSampler gives several ranks the same ones")
def shuffles_without_a_sampler(rank):
    torch.manual_seed(rank)
    loads(rank, numbered(0, 24), shuffle=True)


@unjudged("why parameters changed after the last step, and not alike on all ranks")
def writes_a_frozen_parameter_at_the_end(rank):
    kept = []
    with_memory(rank, lambda model, step: kept.append(model))
    if rank == 1:
        kept[-1][0].weight.data.add_(0.01)


@unjudged("why parameters are frozen on some ranks alone")
def freezes_on_rank_1(rank):
    freezes(rank, (1,))


@unjudged("why parameters changed after the last step, and not alike on all ranks")
def writes_a_parameter_at_the_end(rank):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp))
    if rank == 1:
        with torch.no_grad():
            ddp.module[0].weight.add_(0.01)


@unjudged("what a program all-reduces itself is not judged")
def reduces_itself_inside_no_sync(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(3):
        optimizer.zero_grad()
        with ddp.no_sync():
            x, y = batch(rank, step)
            F.cross_entropy(ddp(x), y).backward()
        for p in ddp.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        optimizer.step()


def windows(rank, before_backward=None, backwards=lambda step: 2):
    """Backwards that add up before each reduction."""
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        for micro in range(backwards(step)):
            if before_backward is not None:
                before_backward(ddp, step, micro)
            x, y = batch(rank, 10 * step + micro)
            with ddp.no_sync() if micro + 1 < backwards(step) else contextlib.nullcontext():
                (F.cross_entropy(ddp(x), y) / backwards(step)).backward()
        optimizer.step()


@clean
def windows_of_other_lengths_on_all_ranks(rank):
    windows(rank, backwards=lambda step: 1 + step % 3)


@unjudged("why gradients that a backward inside no_sync had left were dropped before any reduction")
def clears_in_a_window(rank):
    windows(rank, lambda ddp, step, micro: ddp.zero_grad())


@unjudged("why gradients that a backward inside no_sync had left were dropped before any reduction")
def clears_in_a_window_by_hand(rank):
    def clear(ddp, step, micro):
        for p in ddp.parameters():
            p.grad = None
    windows(rank, clear)


@unjudged("what changed a gradient between two backwards that add up")
def drops_one_in_a_window(rank):
    def drop(ddp, step, micro):
        if (rank, step, micro) == (1, 2, 1):
            ddp.module[2].bias.grad = None
    windows(rank, drop)


@unjudged("what changed a gradient between two backwards that add up")
def scales_in_a_window(rank):
    def scale(ddp, step, micro):
        if (step, micro) == (1, 1):
            for p in ddp.parameters():
                p.grad.data.mul_(0.5)
    windows(rank, scale)


@unjudged("why ranks add up other numbers of backwards before one reduction")
def windows_of_other_lengths_by_rank(rank):
    windows(rank, backwards=lambda step: 3 if (rank, step) == (1, 2) else 2)


@unjudged("what a program all-reduces itself is not judged")
def averages_parameters_itself(rank):
    """Local SGD by hand: every second step ends with the average of the ranks."""
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        with ddp.no_sync():
            x, y = batch(rank, step)
            F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        for p in ddp.parameters() if step % 2 == 1 else ():
            dist.all_reduce(p.data)
            p.data /= 2


@unjudged("why gradients that a backward inside no_sync had left were dropped before any reduction")
def probes_before_each_step(rank):
    """As SAM does: the first backward finds where to look, and the second one is reduced."""
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(3):
        x, y = batch(rank, step)
        with ddp.no_sync():
            F.cross_entropy(ddp(x), y).backward()
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@clean
def messages_around_a_ring(rank):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp), steps=2)
    given, taken = torch.full((3,), float(rank)), torch.zeros(3)
    for work in [dist.isend(given, 1 - rank), dist.irecv(taken, 1 - rank)]:
        work.wait()


@clean
def joins_twice_with_two_reductions_in_a_step(rank):
    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for epoch in range(2):
        with ddp.join():
            for step in range(2 + rank):
                optimizer.zero_grad()
                for micro in range(2):
                    x, y = batch(rank, 10 * epoch + 2 * step + micro)
                    (F.cross_entropy(ddp(x), y) / 2).backward()
                optimizer.step()


@of(3)
@wrong("I-LIVE", words="rank 0 waits in broadcast #4 of group 'group 1'", limit=6.0)
def leaves_out_a_step_of_the_wrapper_of_two(rank):
    """Where buckets are built anew in the forward, it waits where no line of Python does."""
    pair = dist.new_group([0, 1])
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    if rank < 2:
        other = DDP(mlp(), process_group=pair)
        second = sgd(other)
    for step in range(3):
        train(rank, ddp, optimizer, steps=1, begin=step)
        if rank == 0 or (rank == 1 and step != 1):
            train(rank, other, second, steps=1, begin=step)


@wrong("I-STEP", words="stepped 3 times")
def leaves_out_a_step_on_rank_1(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x), y).backward()
        if (rank, step) != (1, 2):
            optimizer.step()


@wrong("I-ONCE", words="local gradient")
def leaves_the_last_window_in_no_sync(rank):
    """Five batches, in windows of two."""
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(5):
        x, y = batch(rank, step)
        with ddp.no_sync() if step % 2 == 0 else contextlib.nullcontext():
            (F.cross_entropy(ddp(x), y) / 2).backward()
        if step % 2 == 1 or step == 4:
            optimizer.step()
            optimizer.zero_grad()


lawless = unjudged("cddp_law of a Python function")


@unjudged("what a program all-reduces itself is not judged")
def gathers_gradients_inside_no_sync(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        with ddp.no_sync():
            F.cross_entropy(ddp(x), y).backward()
        for p in ddp.parameters():
            parts = [torch.zeros_like(p.grad) for _ in range(2)]
            dist.all_gather(parts, p.grad)
            p.grad.copy_((parts[0] + parts[1]) / 2)
        optimizer.step()


@unjudged("what a program all-reduces itself is not judged")
def reduces_to_rank_0_inside_no_sync(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        with ddp.no_sync():
            F.cross_entropy(ddp(x), y).backward()
        for p in ddp.parameters():
            dist.reduce(p.grad, 0)
            dist.broadcast(p.grad.div_(2), 0)
        optimizer.step()


@unjudged("parameters equal that an optimizer has and no wrapper reduces")
def head_outside_of_the_wrapper(rank):
    torch.manual_seed(rank)
    head = torch.nn.Linear(2, 2)
    torch.manual_seed(0)
    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(list(ddp.parameters()) + list(head.parameters()), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        F.cross_entropy(head(ddp(x)), y).backward()
        optimizer.step()


@unjudged("an optimizer of torch.optim that has every trained parameter")
def steps_the_head_alone(rank):
    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(ddp.module[4].parameters(), lr=0.1)
    for step in range(4):
        x, y = batch(rank, step)
        ddp.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


@unjudged("what the program itself made of gradients between their reduction and the optimizer")
def adds_to_reduced_gradients(rank):
    ddp = DDP(mlp())

    def add(step):
        for p in ddp.parameters():
            p.grad.add_(0.3)
    train(rank, ddp, sgd(ddp), before_step=add)


@lawless
def hook_halves_an_element(rank):
    def after(index, result):
        result[int(result.abs().argmax())] /= 2
        return result
    hooked(rank, plain_hook(after=after))


@lawless
def hook_exchanges_elements(rank):
    def after(index, result):
        return result.roll(1)
    hooked(rank, plain_hook(after=after))


@lawless
def hook_keeps_the_largest(rank):
    def before(bucket):
        flat = bucket.buffer()
        return torch.where(flat.abs() >= flat.abs().mean(), flat, torch.zeros_like(flat))
    hooked(rank, plain_hook(before=before))


def never_drops_gradients(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(4):
        x, y = batch(rank, step)
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()


@wrong("I-GRADEQ", "I-HOOK", words="rank")
def hook_without_communication(rank):
    def hook(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
    ddp = DDP(mlp())
    ddp.register_comm_hook(None, hook)
    train(rank, ddp, sgd(ddp))


@wrong("I-RANGE", words="not finite")
def steps_on_nan(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        loss = F.cross_entropy(ddp(x), y)
        if rank == 1 and step == 1:
            loss = loss * float("nan")
        loss.backward()
        optimizer.step()


@wrong("I-BUFEQ", words="evaluation")
def evaluates_with_other_buffers(rank):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
    ddp = DDP(model, broadcast_buffers=False)
    train(rank, ddp, sgd(ddp))
    ddp.eval()
    with torch.no_grad():
        ddp(batch(0, 99)[0])


@wrong("I-GROUP", words="group", limit=6.0)
def groups_differ(rank):
    group = dist.new_group([0, 1] if rank == 0 else [1])
    if rank == 0:
        dist.all_reduce(torch.ones(2), group=group)


# ---- failures that are lifted: how the other rank waits, in words of the report ----

LIFTED = {}


def lifted(words):
    def add(call):
        LIFTED[call.__name__] = (call, words)
        return call
    return add


@lifted("which a planted fault stopped")
def sleeps(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, steps=2)
    if rank == 1:
        signal.pause()
    train(rank, ddp, optimizer, steps=2)


@lifted("which a planted fault stopped")
def sleeps_before_a_barrier(rank):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp), steps=2)
    if rank == 1:
        signal.pause()
    dist.barrier()


@lifted("which was killed (signal 9)")
def is_killed_after_a_backward(rank):
    ddp = DDP(mlp())

    def kill(step):
        if rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    train(rank, ddp, sgd(ddp), steps=4, before_step=kill)


@unjudged("what the program itself made of gradients between their reduction and the optimizer")
def adds_after_a_clip(rank):
    ddp = DDP(mlp())

    def clip_and_add(step):
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.05)
        for p in ddp.parameters():
            p.grad.add_(0.01)
    train(rank, ddp, sgd(ddp), before_step=clip_and_add)


@unjudged("what the program itself made of gradients between their reduction and the optimizer")
def scales_one_gradient(rank):
    ddp = DDP(mlp())
    train(rank, ddp, sgd(ddp), before_step=lambda step: next(ddp.parameters()).grad.mul_(0.5))


@unjudged("local SGD is not judged")
def post_local_sgd(rank):
    import torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook as p
    import torch.distributed.algorithms.model_averaging.averagers as averagers
    from torch.distributed.optim import PostLocalSGDOptimizer
    ddp = DDP(mlp())
    alone = [dist.new_group([r]) for r in range(2)][rank]
    ddp.register_comm_hook(p.PostLocalSGDState(None, alone, start_localSGD_iter=2), p.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=2)
    train(rank, ddp, PostLocalSGDOptimizer(torch.optim.SGD(ddp.parameters(), lr=0.1), averager), steps=6)


class Sparse(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = torch.nn.Embedding(20, 8, sparse=True), torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.words(x).mean(1))


@unjudged("both sides of a reduction")
def sparse_gradients(rank):
    ddp = DDP(Sparse())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(rank)
    for step in range(4):
        optimizer.zero_grad()
        F.cross_entropy(ddp(torch.randint(0, 20, (6, 3), generator=g)), batch(rank, step)[1]).backward()
        optimizer.step()


@unjudged("an optimizer's step")
def optimizer_of_a_copy(rank):
    model = mlp()
    train(rank, DDP(copy.deepcopy(model)), sgd(model))


@unjudged("what the program itself made of gradients between their reduction and the optimizer")
def zeroes_before_the_step(rank):
    ddp = DDP(mlp())
    optimizer = sgd(ddp)
    train(rank, ddp, optimizer, before_step=lambda step: optimizer.zero_grad(set_to_none=False))


def cancels_the_last_layer(rank):
    """As DINO does it."""
    ddp = DDP(mlp())

    def cancel(step):
        for p in ddp.module[4].parameters():
            p.grad = None if step < 2 else p.grad
    train(rank, ddp, sgd(ddp), before_step=cancel)


# ---- right, with a line about what was not judged ----

def clamps_each_gradient(rank):
    """By a hook of each tensor, so before the reduction."""
    ddp = DDP(mlp())
    for p in ddp.module.parameters():
        p.register_hook(lambda g: g.clamp(-0.01, 0.01))
    train(rank, ddp, sgd(ddp))


def scaled_by_hand(rank, factor=0.5):
    ddp = DDP(mlp())

    def scale(step):
        for p in ddp.parameters():
            p.grad.mul_(factor)

    train(rank, ddp, sgd(ddp), before_step=scale)


def scaled_after_a_clip(rank, factor=0.5):
    ddp = DDP(mlp())

    def scale(step):
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.05)
        for p in ddp.parameters():
            p.grad.mul_(factor)

    train(rank, ddp, sgd(ddp), before_step=scale)
