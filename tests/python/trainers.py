# SPDX-License-Identifier: Apache-2.0
"""Trainers that wrap inside, in the calls of Accelerate and of Lightning: neither is to be had here."""
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class WrappedOptimizer(torch.optim.Optimizer):
    """As accelerate.optimizer.AcceleratedOptimizer: an optimizer that has one, and steps when gradients are whole."""

    def __init__(self, optimizer, accelerator):
        self.optimizer, self.accelerator = optimizer, accelerator

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def state(self):
        return self.optimizer.state

    def zero_grad(self, set_to_none=None):
        if self.accelerator.sync_gradients:
            self.optimizer.zero_grad(set_to_none=bool(set_to_none))

    def step(self, closure=None):
        if self.accelerator.sync_gradients:
            self.optimizer.step(closure)


class Accelerator:
    """prepare, accumulate, backward, clip_grad_norm_, as in accelerate.Accelerator."""

    def __init__(self, gradient_accumulation_steps=1, **options):
        self.every, self.count, self.options = gradient_accumulation_steps, 0, options
        self.sync_gradients = True

    def prepare(self, model, optimizer):
        return DDP(model, **self.options), WrappedOptimizer(optimizer, self)

    @contextmanager
    def accumulate(self, model):
        self.count += 1
        self.sync_gradients = self.count % self.every == 0
        if self.sync_gradients:
            yield
        else:
            with model.no_sync():
                yield

    def backward(self, loss):
        (loss / self.every).backward()

    def clip_grad_norm_(self, parameters, limit):
        if self.sync_gradients:
            torch.nn.utils.clip_grad_norm_(parameters, limit)


class Forwarding(torch.nn.Module):
    """As Lightning's module between DDP and the user's: its forward is training_step."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *batch):
        return self.module.training_step(*batch)


class Trainer:
    """As lightning.Trainer: the forward and the backward run in a closure, inside optimizer.step."""

    def __init__(self, max_steps, **options):
        self.max_steps, self.options = max_steps, options

    def fit(self, module, batches):
        wrapped = DDP(Forwarding(module), **self.options)
        optimizer = module.configure_optimizers()
        for step in range(self.max_steps):
            batch = batches(dist.get_rank(), step)

            def closure():
                loss = wrapped(*batch)
                optimizer.zero_grad()
                loss.backward()
                return loss

            optimizer.step(closure=closure)
