# SPDX-License-Identifier: Apache-2.0
"""The gradients themselves: what each backward of this rank adds to each parameter.

They go to rank.N.gradients beside the shard, for the model "recorded" (docs/formats/gradients.md). A tensor's own
hook sees a gradient before anything else does, and changes nothing.
"""
from __future__ import annotations

import ctypes
import functools
import os
import struct
import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch

from .recorder import DTYPES, Recorder, get, guarded, say

NAME_BYTES = 192
DIMS_MAX = 6
KEPT = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _rounded(count: int) -> int:
    return (count + 7) & ~7


def _bytes_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()) if plain.numel() else b""


def _padded(data: bytes) -> bytes:
    return data + bytes(_rounded(len(data)) - len(data))


class Gradients:
    """The file of one rank, and of its first wrapped module."""

    def __init__(self, path: str, rank: int, world_size: int, named: List[Tuple[str, torch.Tensor]]) -> None:
        self.path = path
        self.parameters = [p for _, p in named]
        self.came: Dict[int, torch.Tensor] = {}
        for name, p in named:
            if p.dtype not in KEPT or p.dim() > DIMS_MAX or len(name.encode()) >= NAME_BYTES:
                raise ValueError("gradients of '%s' cannot be kept: %s, %d dimensions" % (name, p.dtype, p.dim()))
        described = b"".join(_describe(name, p) for name, p in named)
        initial = b"".join(_padded(_bytes_of(p)) for p in self.parameters)
        begin = 64 + len(described)
        head = struct.pack("<8s4I5Q", b"cddpgrad", 1, rank, world_size, len(named), begin, begin + len(initial),
                           _rounded(len(named)) + len(initial), 0, 0)
        self._file = open(path, "wb", buffering=0)
        self._file.write(head + described + initial)

    def take(self, position: int, gradient: torch.Tensor) -> None:
        if gradient.is_sparse:
            raise ValueError("sparse gradients cannot be kept")
        before = self.came.get(position)
        self.came[position] = gradient.detach().clone() if before is None else before + gradient.detach()

    def end_backward(self) -> None:
        row = [_padded(bytes(int(i in self.came) for i in range(len(self.parameters))))]
        for i, p in enumerate(self.parameters):
            row.append(_padded(_bytes_of(self.came[i])) if i in self.came else
                       bytes(_rounded(p.numel() * p.element_size())))
        self.came = {}
        self._file.write(b"".join(row))

    def drop(self) -> None:
        """Half of the gradients would be taken for all of them."""
        self._file.close()
        os.unlink(self.path)

    def close(self) -> None:
        self._file.close()


def _describe(name: str, p: torch.Tensor) -> bytes:
    sizes = list(p.shape) + [0] * (DIMS_MAX - p.dim())
    return struct.pack("<%ds2I%dqQ" % (NAME_BYTES, DIMS_MAX), name.encode(), DTYPES[p.dtype], p.dim(), *sizes,
                       int(p.requires_grad))


def write(directory: str, rank: int, world_size: int, named: "List[Tuple[str, torch.Tensor]]",
          backwards: "List[List[Optional[torch.Tensor]]]") -> str:
    """Gradients that a program has itself, as a file of rank `rank`: per backward one tensor, or None, per parameter."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "rank.%d.gradients" % rank)
    g = Gradients(path, rank, world_size, named)
    for number, row in enumerate(backwards):
        if len(row) != len(named):
            g.drop()
            raise ValueError("backward %d has %d gradients for %d parameters" % (number, len(row), len(named)))
        for position, gradient in enumerate(row):
            if gradient is None:
                continue
            name, p = named[position]
            if gradient.shape != p.shape or gradient.dtype != p.dtype:
                g.drop()
                raise ValueError("the gradient of '%s' in backward %d is %s of %s; the parameter is %s of %s" % (
                    name, number, gradient.dtype, list(gradient.shape), p.dtype, list(p.shape)))
            g.take(position, gradient)
        g.end_backward()
    g.close()
    return path


class File:
    """One that was written: parameters by name, and their gradients."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._data = file.read()
        if len(self._data) < 64 or self._data[:8] != b"cddpgrad":
            raise ValueError("'%s' is no file of gradients" % path)
        version, self.rank, self.world_size, count, begin, self._rows, self._bytes = struct.unpack_from(
            "<4I3Q", self._data, 8)
        if version != 1:
            raise ValueError("'%s' has version %d, this package reads 1" % (path, version))
        dtypes = {number: dtype for dtype, number in DTYPES.items() if dtype in KEPT}
        self.parameters: List[Tuple[str, Any, Tuple[int, ...]]] = []
        self._offsets: List[int] = []
        at = _rounded(count)
        try:
            for i in range(count):
                name, dtype, dims, *sizes = struct.unpack_from("<%ds2I%dqQ" % (NAME_BYTES, DIMS_MAX), self._data,
                                                               64 + 256 * i)
                shape = tuple(sizes[:dims])
                self.parameters.append((name.split(b"\0")[0].decode(), dtypes[dtype], shape))
                self._offsets.append(at)
                at += _rounded(torch.Size(shape).numel() * torch.empty(0, dtype=dtypes[dtype]).element_size())
        except (struct.error, KeyError, UnicodeDecodeError):
            raise ValueError("'%s' describes a parameter that cannot be" % path)
        if at != self._bytes or begin != 64 + 256 * count or len(self._data) < self._rows:
            raise ValueError("'%s' is cut off, or has rows of another size than its parameters" % path)

    def __len__(self) -> int:
        """Backwards."""
        return (len(self._data) - self._rows) // self._bytes

    def _tensor(self, begin: int, position: int) -> torch.Tensor:
        _, dtype, shape = self.parameters[position]
        count = torch.Size(shape).numel()
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        size = count * torch.empty(0, dtype=dtype).element_size()
        return torch.frombuffer(bytearray(self._data[begin:begin + size]), dtype=dtype).reshape(shape)

    def initial(self) -> "Dict[str, torch.Tensor]":
        """The values that the parameters began with."""
        shift = self._rows - self._bytes
        return {name: self._tensor(shift + self._offsets[i], i) for i, (name, _, _) in enumerate(self.parameters)}

    def load(self, module: torch.nn.Module) -> None:
        """Gives a module the values that the parameters began with. Both have the same parameters."""
        named = dict(module.named_parameters())
        for name, dtype, shape in self.parameters:
            p = named.pop(name, None)
            if p is None or p.dtype != dtype or tuple(p.shape) != shape:
                raise ValueError("the recording has a parameter '%s', %s of %s, and the module %s" % (
                    name, dtype, list(shape), "has none of that name" if p is None else
                    "has it as %s of %s" % (p.dtype, list(p.shape))))
        if named:
            raise ValueError("the module has a parameter '%s', and the recording has none of that name" % next(iter(named)))
        own = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.initial().items():
                own[name].copy_(value)

    def gradients(self, backward: int) -> "Dict[str, torch.Tensor]":
        """What a backward added, by name; a parameter that got nothing is absent."""
        if not 0 <= backward < len(self):
            raise IndexError("backward %d of %d" % (backward, len(self)))
        row = self._rows + backward * self._bytes
        return {name: self._tensor(row + self._offsets[i], i) for i, (name, _, _) in enumerate(self.parameters)
                if self._data[row + i]}


# ---- in a recording ----

current: Optional[Gradients] = None
is_wanted = False


def begin(r: Recorder, wrapper: Any) -> None:
    """Called when a module has been wrapped: all ranks have the same values now."""
    global current
    if not is_wanted or current is not None or wrapper.is_late:
        return
    path = os.path.join(r.directory, "rank.%d.gradients" % r.rank)
    try:
        current = Gradients(path, r.rank, r.world_size, wrapper.named)
    except (ValueError, OSError) as failure:
        say("no gradients are kept: %s" % failure)
        return
    kept = weakref.ref(current)
    for position, p in enumerate(current.parameters):
        if p.requires_grad:
            p.register_hook(functools.partial(_came, kept, position))
    r.closers.append(_close)


def _close() -> None:
    if current is not None:
        current.close()


def _came(kept: Any, position: int, gradient: torch.Tensor) -> None:
    g, r = kept(), get()
    if g is not None and g is current and r is not None:
        guarded(_take)(g, position, gradient)


def _take(g: Gradients, position: int, gradient: torch.Tensor) -> None:
    try:
        g.take(position, gradient)
    except ValueError as failure:
        _give_up(g, str(failure))


def _give_up(g: Gradients, why: str) -> None:
    global current, is_wanted
    say("no gradients are kept: %s" % why)
    g.drop()
    current, is_wanted = None, False


def end_backward() -> None:
    """A backward that gave this module nothing, of another one, is none of its."""
    if current is not None and current.came:
        try:
            current.end_backward()
        except OSError as failure:
            _give_up(current, str(failure))


__all__ = ["File", "Gradients", "write"]
