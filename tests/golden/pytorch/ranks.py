# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts that run PyTorch's DDP: ranks over Gloo, and gradients by formula."""
import os
import sys
import tempfile
import traceback

import numpy as np
import torch
import torch.distributed as dist


def constants(rank, step, micro, i, n, double, spread=0):
    """0.5 … 1.5; spread: both signs, over 48 binades."""
    k = np.arange(n, dtype=np.uint64)
    h = k * 7919 + np.uint64(i * 104729 + rank * 1299709 + step * 15485863 + micro * 32452843 + 12345)
    h = (h * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)
    v = 0.5 + (h >> np.uint64(8)).astype(np.float64) / 16777216.0
    if spread:
        binade = ((h >> np.uint64(3)) % np.uint64(48)).astype(np.int32) - 30
        v = np.ldexp(np.where(h & np.uint64(1), -v, v), binade)
    return torch.from_numpy(v if double else v.astype(np.float32))


def grid(n, salt, values, parts):
    """Multiples of 1/parts, `values` of them, the middle one 0."""
    k = np.arange(n, dtype=np.uint64)
    h = (k * np.uint64(7919) + np.uint64(salt * 104729 + 12345)) * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)
    return torch.from_numpy((((h >> np.uint64(16)) % np.uint64(values)).astype(np.float32) - values // 2) / parts)


def run_ranks(world, work):
    """One warm interpreter is forked per rank; work(rank, world) runs in each, inside a Gloo group of all."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    torch.set_num_threads(1)
                    dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=world)
                    work(rank, world)
                    dist.destroy_process_group()
                    code = 0
                except Exception:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            children.append(pid)
        if any([os.waitpid(pid, 0)[1] for pid in children]):
            sys.exit("a rank failed")
