# SPDX-License-Identifier: Apache-2.0
"""Writes a shard: by libcddp_trace.so where it is found, by this file where it is not.

The Python writer takes no digests, since a digest must be the same on every rank whoever made it. It writes
the order of everything, and projections of buckets that torch computes.
"""
from __future__ import annotations

import ctypes
import ctypes.util
import glob
import mmap
import os
import socket
import struct
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from .events import FIELDS, KIND, TABLE

HEADER_BYTES = 4096
SLOT_BYTES = 128
TEXT_KIND = 65535
TEXT_BYTES = 112
TEXT_MAX = 65536
MAGIC = 0x3164726168736463
OPEN, CLOSED, FULL = 0, 1, 2
_STEP = 1 << 20
_HERE = os.path.dirname(os.path.abspath(__file__))


_PRIME = 0x9E3779B185EBCA87
_MASK = (1 << 64) - 1
_WORDS = struct.Struct("=15Q").unpack_from


def _seal(value: int, words: Tuple[int, ...]) -> int:
    for word in words:
        value = (value ^ word) * _PRIME & _MASK
    return value


def _end_seal(value: int) -> int:
    return (value ^ value >> 32) & 0xFFFFFFFF or 1


def _sealed(number: int, step: mmap.mmap, at: int) -> int:
    """The sequence of the slot at byte `at`: record/seal.h"""
    return _end_seal(_seal(number, _WORDS(step, at + 8))) << 32 | number & 0xFFFFFFFF


class Options:
    """What a shard's header says of the rank."""

    def __init__(self, path: str, rank: int, world_size: int, generation: int, level: int, job: int,
                 program: str) -> None:
        self.path, self.rank, self.world_size = path, rank, world_size
        self.generation, self.level, self.job, self.program = generation, level, job, program


# ---- the C library ----

class _COptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("path", ctypes.c_char_p), ("rank", ctypes.c_uint32),
                ("world_size", ctypes.c_uint32), ("generation", ctypes.c_uint32), ("level", ctypes.c_uint32),
                ("job", ctypes.c_uint64), ("program", ctypes.c_char_p)]


class TensorRow(ctypes.Structure):
    """cddp_shard_tensor"""
    _fields_ = [("numel", ctypes.c_int64), ("dtype", ctypes.c_int32), ("epoch", ctypes.c_uint32),
                ("address", ctypes.c_uint64), ("address_bytes", ctypes.c_uint64),
                ("field", ctypes.c_int64 * FIELDS)]


class Tensors(ctypes.Structure):
    """cddp_shard_tensors"""
    _fields_ = [("size", ctypes.c_uint32), ("content", ctypes.c_uint32), ("step", ctypes.c_uint32),
                ("micro_step", ctypes.c_uint32), ("kind", ctypes.c_int32), ("epoch", ctypes.c_uint32),
                ("count", ctypes.c_size_t), ("tensors", ctypes.c_void_p), ("bytes", ctypes.c_void_p),
                ("digests", ctypes.c_void_p), ("expected", ctypes.c_void_p)]


DIGESTS, PROJECTIONS, PRESENT_ONLY, REWRITTEN = 1, 2, 4, 8


def _candidates() -> List[str]:
    named = os.environ.get("CDDP_TRACE_LIBRARY")
    if named is not None:
        return [named] if named else []
    found = [os.path.join(_HERE, "libcddp_trace.so")]
    found += sorted(glob.glob(os.path.join(_HERE, "..", "..", "build", "*", "lib", "libcddp_trace.so")))
    system = ctypes.util.find_library("cddp_trace")
    return found + ([system] if system else [])


def find_library() -> Optional[str]:
    """The first library that has the events of this package; CDDP_TRACE_LIBRARY names it, or is empty: none."""
    for path in _candidates():
        if os.sep in path and not os.path.exists(path):
            continue
        try:
            library = ctypes.CDLL(path)
            library.cddp_shard_schema.restype = ctypes.c_uint64
            if library.cddp_shard_schema() == TABLE.schema and hasattr(library, "cddp_shard_emit_tensors"):
                return path
        except (OSError, AttributeError):
            continue
    return None


class NativeWriter:
    """The shard of the C library. Emitting keeps the GIL, digesting gives it back."""

    takes_digests = True

    def __init__(self, library: str, options: Options) -> None:
        free = ctypes.CDLL(library)
        keep = ctypes.PyDLL(library)
        error = ctypes.create_string_buffer(4096)
        o = _COptions(ctypes.sizeof(_COptions), os.fsencode(options.path), options.rank, options.world_size,
                      options.generation, options.level, options.job, options.program.encode())
        self._shard = ctypes.c_void_p()
        free.cddp_shard_open.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        if free.cddp_shard_open(ctypes.addressof(o), ctypes.addressof(self._shard), ctypes.addressof(error)) != 0:
            raise OSError("cannot record into " + options.path)
        self._emit = keep.cddp_shard_emit
        self._emit.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._emit.restype = None
        self._digest = free.cddp_shard_digest
        self._digest.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self._digest.restype = ctypes.c_uint64
        self._project = free.cddp_shard_project
        self._project.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p]
        self._project.restype = ctypes.c_bool
        self._tensors = free.cddp_shard_emit_tensors
        self._tensors.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._tensors.restype = None
        self._close = free.cddp_shard_close
        self._close.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._pack = struct.Struct("=QQQIIIHH%dq" % FIELDS).pack
        self._texts: Dict[str, Any] = {}
        self._padding = tuple((0,) * (FIELDS - n) for n in range(FIELDS + 1))

    def emit(self, kind: int, step: int, micro: int, fields: Tuple[int, ...], text: Optional[str]) -> None:
        address = 0
        if text is not None:
            kept = self._texts.get(text)
            if kept is None:
                data = ctypes.create_string_buffer(text.encode(errors="replace")[:TEXT_MAX])
                kept = (data, ctypes.addressof(data))
                if len(self._texts) < 4096:
                    self._texts[text] = kept
            address = kept[1]
        self._emit(self._shard, self._pack(0, 0, address, 0, step, micro, kind, 0, *fields,
                                           *self._padding[len(fields)]))

    def digest(self, address: int, byte_count: int, element_bytes: int) -> int:
        return int(self._digest(address, byte_count, element_bytes))

    def project(self, address: int, numel: int, dtype: int) -> Optional[Tuple[float, float]]:
        total, magnitude = ctypes.c_double(), ctypes.c_double()
        known = self._project(address, numel, dtype, ctypes.addressof(total), ctypes.addressof(magnitude))
        return (total.value, magnitude.value) if known else None

    def emit_tensors(self, tensors: Tensors) -> None:
        self._tensors(self._shard, ctypes.addressof(tensors))

    def close(self) -> None:
        shard, self._shard = self._shard, ctypes.c_void_p()
        self._close(shard, None)


# ---- without it ----

class PythonWriter:
    """The same file by mmap and struct, one slot at a time."""

    takes_digests = False

    def __init__(self, options: Options) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._texts: Dict[str, Any] = {}
        self._next = 0
        self._lost = 0
        self._is_full = False
        if os.path.exists(options.path):
            with open(options.path, "rb") as old:
                head = old.read(8)
            if head and head != struct.pack("=Q", MAGIC):
                raise OSError(options.path + " exists and is no shard; it is not overwritten")
            os.unlink(options.path)
        if os.path.exists(options.path + ".exit"):  # how a process of an older job ended
            os.unlink(options.path + ".exit")
        self._fd = os.open(options.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.posix_fallocate(self._fd, 0, HEADER_BYTES)
        self._header = mmap.mmap(self._fd, HEADER_BYTES)
        self._step: Optional[mmap.mmap] = None
        self._begin, self._used, self._size = HEADER_BYTES, 0, 0
        self._pack = struct.Struct("=HHIIIQQ%dq" % FIELDS).pack_into
        self._write_header(options)

    def _write_header(self, o: Options) -> None:
        head = self._header
        struct.pack_into("=IIIIQIIII", head, 8, 1, HEADER_BYTES, SLOT_BYTES, len(KIND), TABLE.schema, o.rank,
                         o.world_size, o.generation, o.level)
        struct.pack_into("=QQQQQI", head, 48, os.getpid(), time.time_ns(), time.monotonic_ns(), o.job, 0, OPEN)
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                boot = file.read().strip()
        except OSError:
            boot = ""
        for at, room, value in ((96, 64, socket.gethostname()), (160, 64, boot), (224, 256, o.program),
                                (480, 32, "python")):
            data = value.encode()[:room - 1]
            head[at:at + len(data)] = data
        begin = _seal(MAGIC, struct.unpack_from("=9Q", head, 8))
        struct.pack_into("=Q", head, 768, _end_seal(_seal(begin, struct.unpack_from("=52Q", head, 96))))
        struct.pack_into("=Q", head, 0, MAGIC)

    def _take(self) -> Optional[int]:
        if self._is_full:
            return None
        if self._step is None or self._used + SLOT_BYTES > self._size:
            begin = self._begin + self._size
            try:
                os.posix_fallocate(self._fd, begin, _STEP)
                step = mmap.mmap(self._fd, _STEP, offset=begin)
            except OSError as failure:
                self._is_full = True
                text = str(failure).encode()[:255]
                self._header[512:512 + len(text)] = text
                struct.pack_into("=I", self._header, 88, FULL)
                return None
            if self._step is not None:
                self._step.close()
            self._step, self._begin, self._size, self._used = step, begin, _STEP, 0
        at = self._used
        self._used += SLOT_BYTES
        return at

    def _keep_text(self, text: str) -> int:
        slot = self._texts.get(text)
        if slot is not None:
            return int(slot)
        data = text.encode(errors="replace")[:TEXT_MAX]
        first, rest = self._next + 1, len(data)
        for begin in range(0, max(len(data), 1), TEXT_BYTES):
            part = data[begin:begin + TEXT_BYTES]
            at = self._take()
            if at is None:
                return 0
            rest -= len(part)
            assert self._step is not None
            struct.pack_into("=HHI", self._step, at + 8, TEXT_KIND, len(part), rest)
            self._step[at + 16:at + 16 + len(part)] = part
            self._next += 1
            struct.pack_into("=Q", self._step, at, _sealed(self._next, self._step, at))
        if len(self._texts) < 4096:
            self._texts[text] = first
        return first

    def emit(self, kind: int, step: int, micro: int, fields: Tuple[int, ...], text: Optional[str]) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            slot = self._keep_text(text) if text is not None else 0
            at = self._take()
            if at is None:
                self._lost += 1
                struct.pack_into("=Q", self._header, 80, self._lost)
                return
            assert self._step is not None
            self._pack(self._step, at + 8, kind, 0, step, micro, 0, time.monotonic_ns(), slot, *fields,
                       *(0,) * (FIELDS - len(fields)))
            self._next += 1
            struct.pack_into("=Q", self._step, at, _sealed(self._next, self._step, at))

    def digest(self, address: int, byte_count: int, element_bytes: int) -> int:
        return 0

    def project(self, address: int, numel: int, dtype: int) -> Optional[Tuple[float, float]]:
        return None

    def emit_tensors(self, tensors: Tensors) -> None:
        raise NotImplementedError("digests need libcddp_trace.so")

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            how = FULL if self._is_full else CLOSED
            count = self._next & 0xFFFFFFFF
            struct.pack_into("=I", self._header, 92, count)
            seal = _seal(struct.unpack_from("=Q", self._header, 768)[0], (self._lost, count << 32 | how))
            seal = _seal(seal, struct.unpack_from("=32Q", self._header, 512))
            struct.pack_into("=Q", self._header, 776, _end_seal(seal))
            struct.pack_into("=I", self._header, 88, how)
            end = self._begin + self._used
            self._is_full = True
            if self._step is not None:
                self._step.close()
            self._header.close()
            os.ftruncate(self._fd, end)
            os.close(self._fd)


def open_shard(options: Options) -> "NativeWriter | PythonWriter":
    library = find_library()
    if library is not None:
        return NativeWriter(library, options)
    return PythonWriter(options)


