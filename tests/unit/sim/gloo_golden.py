#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Digests of what PyTorch's Gloo backend makes of an all-reduce (sum) over W processes, for gloo_order_test.c.

Usage: python3 gloo_golden.py > gloo_golden.def      (made with torch 1.13.0a0 of Debian 12, libgloo 0.5.0)
"""
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CASES = [(w, n) for w in (2, 3, 4, 5, 8) for n in (1, 7, 1000, 20001)] + [(2, 1500000), (3, 1700001), (4, 3000001)]


def given(rank, n, dtype):
    """Wide exponents, both signs: as in gloo_order_test.c."""
    i = np.arange(n, dtype=np.uint64)
    h = (i + np.uint64(rank) * np.uint64(7919) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    if dtype == np.float32:
        bits = (h & np.uint64(0x807FFFFF)) | ((np.uint64(110) + (h >> np.uint64(40)) % np.uint64(30)) << np.uint64(23))
        return bits.astype(np.uint32).view(np.float32)
    bits = (h & np.uint64(0x800FFFFFFFFFFFFF)) | ((np.uint64(1000) + (h >> np.uint64(52)) % np.uint64(40)) << np.uint64(52))
    return bits.view(np.float64)


def digest(array):
    bits = array.view(np.uint32 if array.dtype == np.float32 else np.uint64).astype(np.uint64)
    weights = np.arange(len(bits), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return int((bits * weights).sum(dtype=np.uint64))


def work(rank, w, n, path, out):
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=w)
    for k, dtype in enumerate((np.float32, np.float64)):
        t = torch.from_numpy(given(rank, n, dtype).copy())
        dist.all_reduce(t)
        out[rank * 2 + k] = digest(t.numpy()) - 2**63
    dist.barrier()
    dist.destroy_process_group()


def main():
    np.seterr(all="ignore")
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Made by gloo_golden.py with torch %s: ranks, elements, digest of f32, digest of f64. */" % torch.__version__)
    for w, n in CASES:
        path = "/tmp/gloo_golden_%d" % os.getpid()
        if os.path.exists(path):
            os.unlink(path)
        out = mp.get_context("spawn").Array("q", 2 * w)
        mp.spawn(work, args=(w, n, path, out), nprocs=w)
        assert len(set(out[0::2])) == 1 and len(set(out[1::2])) == 1, "ranks disagree"
        print("CASE(%d, %d, 0x%016x, 0x%016x)" % (w, n, out[0] + 2**63, out[1] + 2**63))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
