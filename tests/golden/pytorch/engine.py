#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes engine.txt: what PyTorch's engine does with three linear layers, checkpointed, sunk, used twice.

Per case: the order in which parameters fire, which gradients are defined afterwards, and the gradients. Parameter p is
pattern(i, p) / 8, x is pattern(i, 90), the loss the inner product of an output with pattern(i, 50)."""
from common import numbers, tensor
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Sink(torch.autograd.Function):
    """The identity node that DDP puts behind a module's outputs: undefined gradients stay undefined."""

    @staticmethod
    def forward(ctx, *inputs):
        ctx.set_materialize_grads(False)
        return tuple(i.clone() for i in inputs)

    @staticmethod
    def backward(ctx, *grads):
        return grads


class Case:
    def __init__(self, name):
        self.name, self.order = name, []
        self.p = [tensor((3, 3) if i % 2 == 0 else (3,), i, 8).requires_grad_() for i in range(6)]
        self.leaves = [p.expand_as(p).grad_fn.next_functions[0][0] for p in self.p]
        for i, leaf in enumerate(self.leaves):
            leaf.register_hook(lambda *_, i=i: self.order.append(i))
        self.x = tensor((2, 3), 90)

    def layer(self, i, x):
        return F.linear(x, self.p[2 * i], self.p[2 * i + 1])

    def part(self, *layers):
        def run(x):
            for i in layers:
                x = self.layer(i, x)
            return x

        return run

    def loss(self, y):
        return (y * tensor((2, 3), 50)).sum()

    def finish(self):
        print(f"{self.name}.order", *self.order)
        print(f"{self.name}.defined", *(int(p.grad is not None) for p in self.p))
        for i, p in enumerate(self.p):
            if p.grad is not None:
                numbers(f"{self.name}.{i}", p.grad)


def run(name, body):
    case = Case(name)
    body(case)
    case.finish()


def plain(c):
    c.loss(c.part(0, 1, 2)(c.x)).backward()


def checkpointed(reentrant):
    return lambda c: c.loss(checkpoint(c.part(1, 2), c.layer(0, c.x), use_reentrant=reentrant)).backward()


def twice_checkpointed(reentrant):
    def body(c):
        x = checkpoint(c.part(1), c.layer(0, c.x), use_reentrant=reentrant)
        c.loss(checkpoint(c.part(1), x, use_reentrant=reentrant)).backward()

    return body


def nested(c):
    def outer(x):
        return checkpoint(c.part(2), c.layer(1, x), use_reentrant=True)

    c.loss(checkpoint(outer, c.layer(0, c.x), use_reentrant=True)).backward()


def used_twice(c):
    c.loss(c.part(0, 1, 1)(c.x)).backward()


def retained(c):
    loss = c.loss(c.part(0, 1, 2)(c.x))
    loss.backward(retain_graph=True)
    loss.backward()


def sunk(c):
    x = c.layer(0, c.x)
    a, b = Sink.apply(c.layer(1, x), c.layer(2, x))
    c.loss(a).backward()


def sunk_checkpoint(c):
    x = c.layer(0, c.x)
    a, b = Sink.apply(c.layer(1, x), checkpoint(c.part(2), x, use_reentrant=True))
    c.loss(a).backward()


def not_sunk(c):
    x = c.layer(0, c.x)
    a, b = c.layer(1, x), c.layer(2, x)
    c.loss(a).backward()


def two_forwards(c):
    (c.loss(c.part(0, 1, 2)(c.x)) + c.loss(c.part(0, 1, 2)(c.x))).backward()


def main():
    print("# made by engine.py with torch", torch.__version__)
    run("plain", plain)
    run("reentrant", checkpointed(True))
    run("non_reentrant", checkpointed(False))
    run("reentrant_twice", twice_checkpointed(True))
    run("non_reentrant_twice", twice_checkpointed(False))
    run("nested", nested)
    run("used_twice", used_twice)
    run("retained", retained)
    run("sunk", sunk)
    run("sunk_checkpoint", sunk_checkpoint)
    run("not_sunk", not_sunk)
    run("two_forwards", two_forwards)


main()
