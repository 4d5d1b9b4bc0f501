# SPDX-License-Identifier: Apache-2.0
"""The child of a rank of `cddp-verify --backend torch-gloo`: it has a process group, and does what the socket says.

A request is a struct, counts, and bytes (backends/torch/torch_backend.c). Each is started when it has been read;
replies go out in the order of the requests.
"""
from __future__ import annotations

import datetime
import os
import queue
import socket
import struct
import sys
import threading
import warnings
from typing import Any, Callable, List, Optional, Tuple

warnings.simplefilter("ignore")  # warnings about its sources would stand in the middle of a report
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from . import launch  # noqa: E402

SOCKET = 3
MAGIC = 0x63647470
_REQUEST = struct.Struct("=6I3Q")
_REPLY = struct.Struct("=2IQ")
_OK, _BACKEND, _TIMEOUT, _UNSUPPORTED = 0, 6, 7, 8  # positions in cddp_status
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32,
          torch.uint8)
OPS = ("allreduce", "broadcast", "allgather", "reduce_scatter", "reduce", "gather", "scatter", "alltoall", "send", "recv",
       "barrier")
REDUCTIONS = {0: "SUM", 2: "MIN", 3: "MAX", 4: "PRODUCT", 6: "BAND", 7: "BOR", 8: "BXOR"}
# PyTorch 1.13's Gloo ends its process in an all-gather without elements. With 1 such operations are not handed to it.
_ANSWERS_EMPTY = os.environ.get("CDDP_TORCH_ANSWERS_EMPTY") == "1"
Finish = Callable[[], bytes]


class Call:
    """One operation, with what its result is made of."""

    def __init__(self, op: int, dtype: int, reduction: int, root: int, tag: int, data: bytes, output_bytes: int,
                 counts: "Optional[Tuple[int, ...]]", send_counts: "Optional[Tuple[int, ...]]") -> None:
        self.op, self.root, self.tag = OPS[op], root, tag
        self.dtype, self.reduction = DTYPES[dtype], reduction
        self.counts, self.send_counts = counts, send_counts
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        reduces = self.op in ("allreduce", "reduce", "reduce_scatter")
        # What only moves is moved as bytes where the group does not know the dtype.
        self.width = 1
        if not reduces and self.dtype in (torch.bfloat16, torch.complex64):
            self.width = torch.empty(0, dtype=self.dtype).element_size()
            self.dtype = torch.uint8
        self.input = self._tensor(data)
        self.output_count = output_bytes // torch.empty(0, dtype=self.dtype).element_size()

    def is_empty(self) -> bool:
        """The same on all ranks; in an exchange of explicit counts a rank may have nothing alone."""
        is_own = self.op == "alltoall" and self.counts is not None
        return not is_own and not any(self.counts or ()) and self.input.numel() == 0 and self.output_count == 0

    def _tensor(self, data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=self.dtype) if data else torch.empty(0, dtype=self.dtype)

    def _count(self, counts: "Tuple[int, ...]") -> List[int]:
        return [n * self.width for n in counts]

    def start(self) -> Finish:
        if _ANSWERS_EMPTY and self.op != "barrier" and self.is_empty():
            return lambda: b""
        return getattr(self, "_" + self.op)()

    def _red(self) -> Any:
        if self.reduction not in REDUCTIONS:
            raise RuntimeError("reduction %d is unsupported" % self.reduction)
        return getattr(dist.ReduceOp, REDUCTIONS[self.reduction])

    def _after(self, work: Any, result: "Callable[[], torch.Tensor]") -> Finish:
        def finish() -> bytes:
            if work is not None:
                work.wait()
            return to_bytes(result())
        return finish

    def _allreduce(self) -> Finish:
        return self._after(dist.all_reduce(self.input, op=self._red(), async_op=True), lambda: self.input)

    def _reduce(self) -> Finish:
        work = dist.reduce(self.input, self.root, op=self._red(), async_op=True)
        return self._after(work, lambda: self.input if self.rank == self.root else self.input[:0])

    def _broadcast(self) -> Finish:
        return self._after(dist.broadcast(self.input, self.root, async_op=True), lambda: self.input)

    def _allgather(self) -> Finish:
        """Shares of different sizes are padded, as users of PyTorch do."""
        counts = self._count(self.counts) if self.counts else [self.input.numel()] * self.size
        most = max(counts)
        mine = torch.zeros(most, dtype=self.dtype)
        mine[:self.input.numel()] = self.input
        parts = [torch.empty(most, dtype=self.dtype) for _ in range(self.size)]
        work = dist.all_gather(parts, mine, async_op=True)
        return self._after(work, lambda: torch.cat([p[:n] for p, n in zip(parts, counts)]))

    def _reduce_scatter(self) -> Finish:
        counts = self._count(self.counts) if self.counts else [self.output_count] * self.size
        result = torch.empty(counts[self.rank], dtype=self.dtype)
        work = dist.reduce_scatter(result, list(self.input.split(counts)), op=self._red(), async_op=True)
        return self._after(work, lambda: result)

    def _gather(self) -> Finish:
        parts = [torch.empty_like(self.input) for _ in range(self.size)] if self.rank == self.root else None
        work = dist.gather(self.input, parts, dst=self.root, async_op=True)
        return self._after(work, lambda: torch.cat(parts) if parts is not None else self.input[:0])

    def _scatter(self) -> Finish:
        result = torch.empty(self.output_count, dtype=self.dtype)
        parts = list(self.input.split(self.output_count)) if self.rank == self.root and self.output_count else None
        if parts is None and self.rank == self.root:
            parts = [self.input] * self.size
        return self._after(dist.scatter(result, parts, src=self.root, async_op=True), lambda: result)

    def _alltoall(self) -> Finish:
        result = torch.empty(self.output_count, dtype=self.dtype)
        work = dist.all_to_all_single(result, self.input, self._count(self.counts) if self.counts else None,
                                      self._count(self.send_counts) if self.send_counts else None, async_op=True)
        return self._after(work, lambda: result)

    def _send(self) -> Finish:
        return self._after(dist.isend(self.input, self.root, tag=self.tag & 0x7fffffff), lambda: self.input[:0])

    def _recv(self) -> Finish:
        result = torch.empty(self.output_count, dtype=self.dtype)
        return self._after(dist.irecv(result, self.root, tag=self.tag & 0x7fffffff), lambda: result)

    def _barrier(self) -> Finish:
        return self._after(dist.barrier(async_op=True), lambda: torch.empty(0, dtype=torch.uint8))


def to_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes()) if tensor.numel() else b""


class Line:
    def __init__(self) -> None:
        self._socket = socket.socket(fileno=SOCKET)

    def read(self, count: int) -> bytes:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            n = self._socket.recv_into(view[at:])
            if n == 0:
                os._exit(0)  # the rank has closed the group, or is gone
            at += n
        return bytes(data)

    def words(self) -> str:
        return self.read(struct.unpack("=Q", self.read(8))[0]).decode()

    def reply(self, status: int, data: bytes) -> None:
        try:
            self._socket.sendall(_REPLY.pack(status, 0, len(data)) + data)
        except OSError:
            os._exit(0)


def _status_of(failure: BaseException) -> int:
    text = str(failure).lower()
    if "imed out" in text or "timeout" in text:
        return _TIMEOUT
    wanting = ("not support", "unsupported", "has no ", "invalid scalar type", "cannot use reduceop")
    return _UNSUPPORTED if any(words in text for words in wanting) else _BACKEND


def _complete(line: Line, started: "queue.SimpleQueue[Any]") -> None:
    while True:
        finish, failure = started.get()
        try:
            if failure is not None:
                raise failure
            data = finish()
        except BaseException as raised:
            line.reply(_status_of(raised), str(raised).encode())
        else:
            line.reply(_OK, data)


def _requests(line: Line) -> None:
    started: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
    threading.Thread(target=_complete, args=(line, started), daemon=True).start()
    size = dist.get_world_size()
    while True:
        magic, op, dtype, reduction, root, has_counts, tag, input_bytes, output_bytes = _REQUEST.unpack(line.read(_REQUEST.size))
        if magic != MAGIC:
            os._exit(1)
        tables = [struct.unpack("=%dq" % size, line.read(8 * size)) if has_counts >> bit & 1 else None for bit in (0, 1)]
        try:
            call = Call(op, dtype, reduction, root, tag, line.read(input_bytes), output_bytes, tables[0], tables[1])
            started.put((call.start(), None))
        except BaseException as failure:
            started.put((None, failure))


def _join(backend: str, address: str, rank: str, size: str, timeout_s: str) -> None:
    host, _, port = address.rpartition(":")
    if backend == "cddp":
        os.environ["MASTER_ADDR"] = host
        from . import process_group  # noqa: F401
    dist.init_process_group(backend, init_method="tcp://%s:%s" % (host, port), rank=int(rank), world_size=int(size),
                            timeout=datetime.timedelta(seconds=min(float(timeout_s), 1e6)))


def main() -> int:
    try:
        line = Line()
    except OSError:
        sys.stderr.write("python -m cddp_torch serve: cddp-verify starts this one, for --backend torch-gloo\n")
        return 2
    torch.set_num_threads(1)
    launch.store_that_every_build_has()
    while True:
        word, *rest = line.words().split()
        try:
            answer = "ready"
            if word == "port":
                answer = "%s:%d" % (rest[0], launch.free_port())
            elif word == "join":
                _join(*rest)
            elif word == "probe" and not dist.is_available():
                raise RuntimeError("this torch has no distributed package")
        except BaseException as failure:
            line.reply(_BACKEND, ("%s: %s" % (type(failure).__name__, failure)).encode())
            continue
        line.reply(_OK, answer.encode())
        if word == "join":
            _requests(line)
