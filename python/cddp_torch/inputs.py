# SPDX-License-Identifier: Apache-2.0
"""The inputs themselves: what each training forward of this rank got.

They go to rank.N.inputs beside the shard (docs/formats/inputs.md). With the values that parameters began with, which
rank.N.gradients has, a job can be trained again from them: `cddp_torch.compare(model, loss, inputs="cddp-trace")`.
No pickle: tensors, numbers, text, and lists, tuples and dictionaries of these.
"""
from __future__ import annotations

import ctypes
import json
import os
import struct
from typing import Any, Dict, List, Optional, Tuple

import torch

from .recorder import Recorder, say

MAGIC, VERSION, HEAD_BYTES = b"cddpinpt", 1, 64
DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
          "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
          "c64": torch.complex64, "c128": torch.complex128}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_DEPTH_MAX = 32
Forward = Tuple[Tuple[Any, ...], Dict[str, Any]]


def _rounded(count: int) -> int:
    return (count + 7) & ~7


# ---- a value as JSON and tensors ----

def _describe(value: Any, tensors: List[torch.Tensor], depth: int = 0) -> Any:
    if depth > _DEPTH_MAX:
        raise ValueError("an argument with lists %d deep" % depth)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.dtype not in _NAMES:
            raise ValueError("an argument that is a tensor of %s, %s" % (value.dtype, value.layout))
        tensors.append(value)
        return {"tensor": _NAMES[value.dtype], "shape": list(value.shape)}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}  # every bit of it, and those that JSON has no number for
    if type(value) in (list, tuple):
        return {type(value).__name__: [_describe(v, tensors, depth + 1) for v in value]}
    if type(value) is dict and all(type(k) is str for k in value):
        return {"dict": [[k, _describe(v, tensors, depth + 1)] for k, v in value.items()]}
    raise ValueError("an argument of type %s" % type(value).__name__)


def _build(told: Any, take: Any, depth: int = 0) -> Any:
    if depth > _DEPTH_MAX:
        raise ValueError("lists too deep")
    if told is None or type(told) in (bool, int, str):
        return told
    if type(told) is dict and len(told) == 1:
        (kind, inner), = told.items()
        if kind == "float" and type(inner) is str:
            return float.fromhex(inner)
        if kind in ("list", "tuple") and type(inner) is list:
            items = [_build(v, take, depth + 1) for v in inner]
            return items if kind == "list" else tuple(items)
        if kind == "dict" and type(inner) is list and all(
                type(pair) is list and len(pair) == 2 and type(pair[0]) is str for pair in inner):
            return {k: _build(v, take, depth + 1) for k, v in inner}
    if type(told) is dict and sorted(told) == ["shape", "tensor"]:
        return take(told["tensor"], told["shape"])
    raise ValueError("a value of no known kind")


def _bytes_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    data = ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()) if plain.numel() else b""
    return data + bytes(_rounded(len(data)) - len(data))


# ---- files ----

class Inputs:
    """The file of one rank, while it grows."""

    def __init__(self, path: str, rank: int, world_size: int) -> None:
        self.path = path
        self._file = open(path, "wb", buffering=0)
        self._file.write(struct.pack("<8s3I", MAGIC, VERSION, rank, world_size).ljust(HEAD_BYTES, b"\0"))

    def take(self, args: "Tuple[Any, ...]", named: "Dict[str, Any]") -> None:
        tensors: List[torch.Tensor] = []
        told = _describe([list(args), dict(named)], tensors)
        text = json.dumps(told, separators=(",", ":"), allow_nan=False).encode()
        data = b"".join(map(_bytes_of, tensors))
        self._file.write(struct.pack("<2Q", len(text), len(data)) + text + bytes(_rounded(len(text)) - len(text)) + data)

    def drop(self) -> None:
        """A part of the inputs would be taken for all of them."""
        self._file.close()
        os.unlink(self.path)

    def close(self) -> None:
        self._file.close()


def write(directory: str, rank: int, world_size: int, forwards: "List[Forward]") -> str:
    """Inputs that a program has itself, as a file of rank `rank`: per forward its arguments, and those by name."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "rank.%d.inputs" % rank)
    made = Inputs(path, rank, world_size)
    for number, (args, named) in enumerate(forwards):
        try:
            made.take(args, named)
        except ValueError as failure:
            made.drop()
            raise ValueError("forward %d has %s, which a file of inputs cannot have" % (number, failure))
    made.close()
    return path


class File:
    """One that was written: the arguments of each forward."""

    def __init__(self, path: str) -> None:
        self._path = path
        with open(path, "rb") as file:
            self._data = file.read()
        if len(self._data) < HEAD_BYTES or self._data[:8] != MAGIC:
            raise ValueError("'%s' is no file of inputs" % path)
        version, self.rank, self.world_size = struct.unpack_from("<3I", self._data, 8)
        if version != VERSION:
            raise ValueError("'%s' has version %d, this package reads %d" % (path, version, VERSION))
        self._places: List[Tuple[int, int, int]] = []
        at = HEAD_BYTES
        while at + 16 <= len(self._data):
            text, data = struct.unpack_from("<2Q", self._data, at)
            end = at + 16 + _rounded(text) + data
            if end > len(self._data):
                break  # the process was killed while it wrote
            self._places.append((at + 16, text, data))
            at = end

    def __len__(self) -> int:
        """Forwards."""
        return len(self._places)

    def forward(self, number: int) -> "Forward":
        """The arguments of a forward, and those by name."""
        if not 0 <= number < len(self):
            raise IndexError("forward %d of %d" % (number, len(self)))
        at, text, data = self._places[number]
        place, end = [at + _rounded(text)], at + _rounded(text) + data

        def take(dtype: Any, shape: Any) -> torch.Tensor:
            if dtype not in DTYPES or type(shape) is not list or any(type(n) is not int or n < 0 for n in shape):
                raise ValueError("a tensor of %s, %s" % (dtype, shape))
            element = torch.empty(0, dtype=DTYPES[dtype]).element_size()
            count, begin = 1, place[0]
            for n in shape:
                count *= n
            if count * element > end - begin:
                raise ValueError("a tensor that is larger than what was written")
            place[0] += _rounded(count * element)
            if count == 0:
                return torch.empty(shape, dtype=DTYPES[dtype])
            return torch.frombuffer(bytearray(self._data[begin:begin + count * element]), dtype=DTYPES[dtype]).reshape(shape)

        try:
            args, named = _build(json.loads(self._data[at:at + text].decode()), take)
            if type(args) is not list or type(named) is not dict or place[0] != end:
                raise ValueError("other parts than arguments")
        except (ValueError, TypeError, RecursionError) as failure:
            raise ValueError("forward %d of '%s' cannot be read: %s" % (number, self._path, failure))
        return tuple(args), named


# ---- in a recording ----

current: Optional[Inputs] = None
is_wanted = False
_model: Optional[int] = None  # whose they are: of the module that was wrapped first


def begin(r: Recorder, wrapper: Any) -> None:
    """Called when a module has been wrapped."""
    global current, _model
    if not is_wanted or current is not None or wrapper.is_late:
        return
    try:
        current = Inputs(os.path.join(r.directory, "rank.%d.inputs" % r.rank), r.rank, r.world_size)
    except OSError as failure:
        say("no inputs are kept: %s" % failure)
        return
    _model = wrapper.number
    r.closers.append(_close)


def _close() -> None:
    if current is not None:
        current.close()


def take(wrapper: Any, inputs: Any) -> None:
    """Of a training forward, before the module sees them."""
    global current, is_wanted
    if current is None or wrapper.number != _model:
        return
    try:
        current.take(*inputs)
    except (ValueError, OSError, RuntimeError) as failure:  # RuntimeError: of tensors that have no content
        say("no inputs are kept: %s" % failure)
        current.drop()
        current, is_wanted = None, False


__all__ = ["File", "Inputs", "write"]
