#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes layers.txt: outputs and gradients of every layer, as PyTorch computes them in f64.

The loss is the inner product of the output with pattern(i, 50). Operand k is pattern(i, k)."""
from common import classes, numbers, tensor
import torch
import torch.nn.functional as F


def run(name, shapes, layer, scale=1):
    operands = [tensor(shape, k, scale).requires_grad_() for k, shape in enumerate(shapes)]
    y = layer(*operands)
    numbers(f"{name}.y", y)
    (y * tensor(y.shape, 50)).sum().backward()
    for k, operand in enumerate(operands):
        grad = operand.grad
        numbers(f"{name}.{k}", torch.zeros_like(operand) if grad is None else grad.to_dense())


def attention(heads, causal):
    def layer(qkv):
        n, t, w = qkv.shape
        w //= 3
        q, k, v = (part.reshape(n, t, heads, w // heads).transpose(1, 2) for part in qkv.split(w, dim=2))
        score = q @ k.transpose(-1, -2) / (w // heads) ** 0.5
        if causal:
            score = score.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        return (score.softmax(-1) @ v).transpose(1, 2).reshape(n, t, w)

    return layer


def cross_entropy(y):
    target = classes(y.shape[:-1], 4, 5, 1)
    target[target == 3] = -100
    flat = F.cross_entropy(y.reshape(-1, y.shape[-1]), target.flatten(), reduction="none")
    return flat.reshape(y.shape[0], -1).sum(1)


def per_sample(loss):
    def layer(y):
        return loss(y, (tensor(y.shape, 60) + 2) / 4, reduction="none").flatten(1).sum(1)

    return layer


def main():
    print("# made by layers.py with torch", torch.__version__)
    run("linear", [(3, 4), (5, 4), (5,)], F.linear)
    run("linear_positions", [(3, 2, 4), (5, 4), (5,)], F.linear)
    run("conv2d", [(2, 2, 5, 4), (3, 2, 3, 3), (3,)], lambda x, w, b: F.conv2d(x, w, b, padding=1))
    run("conv2d_stride", [(2, 2, 6, 7), (3, 2, 2, 3), (3,)], lambda x, w, b: F.conv2d(x, w, b, stride=2))
    run("average_pool", [(2, 3, 4, 6)], lambda x: F.avg_pool2d(x, 2))
    run("upsample", [(2, 3, 2, 3)], lambda x: F.interpolate(x, scale_factor=2, mode="nearest"))
    run("relu", [(3, 7)], F.relu)
    run("gelu", [(3, 7)], F.gelu)
    run("tanh", [(3, 7)], torch.tanh)
    run("sigmoid", [(3, 7)], torch.sigmoid)
    run("layer_norm", [(3, 2, 5), (5,), (5,)], lambda x, w, b: F.layer_norm(x, (5,), w, b))
    for name, shape, training in (("batch_norm", (4, 3), True), ("batch_norm_images", (2, 3, 2, 3), True),
                                  ("batch_norm_evaluation", (2, 3, 2, 3), False)):
        mean, var = tensor((3,), 70), tensor((3,), 71) + 2.5
        run(name, [shape, (3,), (3,)], lambda x, w, b: F.batch_norm(x, mean, var, w, b, training))
        numbers(f"{name}.running_mean", mean)
        numbers(f"{name}.running_var", var)
    run("attention", [(2, 3, 12)], attention(2, False))
    run("causal_attention", [(2, 4, 9)], attention(1, True))
    index = classes((3, 4), 6, 5, 2)
    run("embedding", [(6, 3)], lambda table: F.embedding(index, table))
    run("embedding_bag", [(6, 3)], lambda table: F.embedding_bag(index, table, mode="sum"))
    run("embedding_bag_sparse", [(6, 3)], lambda table: F.embedding_bag(index, table, mode="sum", sparse=True))
    run("squared_error", [(3, 4)], per_sample(F.mse_loss))
    run("bce_with_logits", [(3, 4)], per_sample(F.binary_cross_entropy_with_logits))
    run("cross_entropy", [(3, 4)], cross_entropy)
    run("cross_entropy_positions", [(3, 2, 4)], cross_entropy)


main()
