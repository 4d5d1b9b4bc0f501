# SPDX-License-Identifier: Apache-2.0
"""Level payload: buckets of the last two steps stay in memory, and are written when something fails.

Files are of numpy's .npy format, version 1: no pickle.
"""
from __future__ import annotations

import ctypes
import os
from typing import Dict, List, Tuple

import torch

from .recorder import Recorder

_NAMES = {torch.float64: "<f8", torch.float32: "<f4", torch.float16: "<f2", torch.int64: "<i8", torch.int32: "<i4",
          torch.uint8: "|u1", torch.bfloat16: "<u2"}


class Payload:
    def __init__(self, r: Recorder) -> None:
        self.recorder = r
        self.kept: Dict[int, List[Tuple[str, torch.Tensor]]] = {}

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        step = self.recorder.now.step
        if tensor.is_sparse:
            return
        self.kept.setdefault(step, []).append((name, tensor.detach().clone()))
        for old in [s for s in self.kept if s < step - 1]:
            del self.kept[old]

    def write(self) -> None:
        r = self.recorder
        for step, tensors in self.kept.items():
            place = os.path.join(r.directory, "payload", "rank.%d" % r.rank, "step.%d" % step)
            os.makedirs(place, exist_ok=True)
            for position, (name, tensor) in enumerate(tensors):
                _write_npy(os.path.join(place, "%03d-%s.npy" % (position, name)), tensor)
        self.kept = {}


def _write_npy(path: str, tensor: torch.Tensor) -> None:
    plain = tensor.cpu().contiguous()
    head = "{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }" % (_NAMES.get(plain.dtype, "|u1"), plain.numel())
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode("latin1"))
        file.write(ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()))
