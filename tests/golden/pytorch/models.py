#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes models.txt: loss, gradients and order of arrival of whole models, as PyTorch computes them in f64.

The models repeat core/model/zoo with PyTorch's functions. Parameter number p is pattern(i, p) / 8; real inputs are
pattern(i, 90 + k), class inputs (7i + 3) mod classes, real targets pattern(i, 80), class targets (5i + 1) mod classes.
The loss is the sum over samples."""
from common import classes, numbers, tensor
import torch
import torch.nn.functional as F

SAMPLES = 3


class Model:
    def __init__(self, name, shapes):
        self.name, self.arrived, self.hooked = name, [], []
        self.parameters = {n: tensor(s, p, 8).requires_grad_() for p, (n, s) in enumerate(shapes)}
        for n, p in self.parameters.items():
            leaf = p.expand_as(p).grad_fn.next_functions[0][0]
            leaf.register_hook(lambda *_, n=n: self.arrived.append(n))
            self.hooked.append(leaf)

    def __getitem__(self, name):
        return self.parameters[name]

    def linear(self, name, x):
        return F.linear(x, self[name + ".weight"], self.parameters.get(name + ".bias"))

    def conv(self, name, x, stride=1, frozen=False):
        w, b = self[name + ".weight"], self[name + ".bias"]
        if frozen:
            w, b = w.detach(), b.detach()
        return F.conv2d(x, w, b, stride=stride, padding=1)

    def layer_norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self[name + ".weight"], self[name + ".bias"])

    def batch_norm(self, name, x):
        return F.batch_norm(x, None, None, self[name + ".weight"], self[name + ".bias"], True)

    def finish(self, loss):
        loss.backward()
        numbers(f"{self.name}.loss", loss)
        print(f"{self.name}.order", " ".join(self.arrived))
        for n, p in self.parameters.items():
            if p.grad is not None:
                numbers(f"{self.name}.{n}", p.grad)


def pair(name, out, *into):
    return [(name + ".weight", (out, *into)), (name + ".bias", (out,))]


def norm(name, width):
    return [(name + ".weight", (width,)), (name + ".bias", (width,))]


def mlp():
    m = Model("mlp", pair("layers.0", 6, 4) + pair("layers.1", 5, 6) + pair("out", 3, 5))
    x = torch.relu(m.linear("layers.0", tensor((SAMPLES, 4), 90)))
    x = torch.relu(m.linear("layers.1", x))
    m.finish(((m.linear("out", x) - tensor((SAMPLES, 3), 80)) ** 2).sum())


def cnn():
    m = Model("cnn", pair("conv1", 4, 1, 3, 3) + norm("bn1", 4) + pair("conv2", 8, 4, 3, 3) + norm("bn2", 8) + pair("fc", 4, 32))
    x = tensor((SAMPLES, 1, 8, 8), 90)
    for i in "12":
        x = F.avg_pool2d(torch.relu(m.batch_norm("bn" + i, m.conv("conv" + i, x))), 2)
    y = m.linear("fc", x.flatten(1))
    m.finish(F.cross_entropy(y, classes((SAMPLES,), 4, 5, 1), reduction="sum"))


def attention(qkv, heads):
    n, t, w = qkv.shape
    w //= 3
    q, k, v = (part.reshape(n, t, heads, w // heads).transpose(1, 2) for part in qkv.split(w, dim=2))
    score = (q @ k.transpose(-1, -2) / (w // heads) ** 0.5).masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
    return (score.softmax(-1) @ v).transpose(1, 2).reshape(n, t, w)


def transformer():
    shapes = [("tokens.weight", (16, 8)), ("places.weight", (6, 8))]
    for i in range(2):
        b = f"blocks.{i}."
        shapes += norm(b + "norm1", 8) + pair(b + "qkv", 24, 8) + pair(b + "projection", 8, 8)
        shapes += norm(b + "norm2", 8) + pair(b + "up", 32, 8) + pair(b + "down", 8, 32)
    m = Model("transformer", shapes + norm("norm", 8) + [("head.weight", (16, 8))])
    x = F.embedding(classes((SAMPLES, 6), 16, 7, 3), m["tokens.weight"]) + F.embedding(torch.arange(6), m["places.weight"])
    for i in range(2):
        b = f"blocks.{i}."
        x = x + m.linear(b + "projection", attention(m.linear(b + "qkv", m.layer_norm(b + "norm1", x)), 2))
        x = x + m.linear(b + "down", F.gelu(m.linear(b + "up", m.layer_norm(b + "norm2", x))))
    y = m.linear("head", m.layer_norm("norm", x))
    m.finish(F.cross_entropy(y.reshape(-1, 16), classes((SAMPLES * 6,), 16, 5, 1), reduction="sum"))


def tied_lm():
    m = Model("tied_lm", [("tokens.weight", (12, 6))] + pair("hidden", 6, 6))
    x = F.embedding(classes((SAMPLES, 4), 12, 7, 3), m["tokens.weight"])
    y = F.linear(torch.tanh(m.linear("hidden", x)), m["tokens.weight"])
    m.finish(F.cross_entropy(y.reshape(-1, 12), classes((SAMPLES * 4,), 12, 5, 1), reduction="sum"))


def gan(branch):
    shapes = pair("generator.project", 64, 6) + pair("generator.paint", 1, 4, 3, 3)
    shapes += pair("discriminator.look1", 4, 1, 4, 4) + pair("discriminator.look2", 8, 4, 4, 4) + pair("discriminator.judge", 1, 32)
    m = Model(f"gan{branch}", shapes)
    frozen = branch == 1

    def generate():
        x = m.linear("generator.project", tensor((SAMPLES, 6), 91)).reshape(SAMPLES, 4, 4, 4)
        return torch.tanh(m.conv("generator.paint", F.interpolate(torch.relu(x), scale_factor=2, mode="nearest")))

    def judge(image):
        x = torch.relu(m.conv("discriminator.look1", image, 2, frozen))
        x = torch.relu(m.conv("discriminator.look2", x, 2, frozen)).flatten(1)
        w, b = m["discriminator.judge.weight"], m["discriminator.judge.bias"]
        return F.linear(x, w.detach(), b.detach()) if frozen else F.linear(x, w, b)

    def bce(y, label):
        return F.binary_cross_entropy_with_logits(y, torch.full_like(y, label), reduction="sum")

    if frozen:
        m.finish(bce(judge(generate()), 1.0))
    else:
        with torch.no_grad():
            fake = generate()
        real = judge(tensor((SAMPLES, 1, 8, 8), 90))
        both = torch.cat([real, judge(fake)], dim=1)
        target = torch.tensor([[1.0, 0.0]] * SAMPLES, dtype=torch.float64)
        m.finish(F.binary_cross_entropy_with_logits(both, target, reduction="sum"))


def moe():
    shapes = pair("entry", 6, 4) + [("gate.weight", (4, 6))]
    for e in range(4):
        shapes += pair(f"experts.{e}.up", 8, 6) + pair(f"experts.{e}.down", 6, 8)
    m = Model("moe", shapes + pair("exit", 3, 6))
    x = m.linear("entry", tensor((SAMPLES, 4), 90))
    share = F.linear(x, m["gate.weight"]).softmax(1)
    gate, expert = share.max(1)
    mixed = torch.zeros_like(x)
    for e in range(4):
        rows = (expert == e).nonzero().flatten()
        if len(rows) > 0:
            result = m.linear(f"experts.{e}.down", torch.relu(m.linear(f"experts.{e}.up", x[rows])))
            mixed = mixed.index_add(0, rows, result * gate[rows, None])
    m.finish(((m.linear("exit", x + mixed) - tensor((SAMPLES, 3), 80)) ** 2).sum())


print("# made by models.py with torch", torch.__version__)
for make in (mlp, cnn, transformer, tied_lm, lambda: gan(0), lambda: gan(1), moe):
    make()
