# SPDX-License-Identifier: Apache-2.0
"""The recorder of this process: its shard, its steps, and what switches it off.

Everything that runs inside the job goes through `guarded`: a failure of the recorder ends the recording and
never reaches the job.
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import multiprocessing.util
import os
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, TypeVar

import torch

from . import frames, hashing
from .events import KIND, WORD
from .writer import NativeWriter, Options, PythonWriter, open_shard

LEVELS = ("order", "buckets", "digests", "payload")
_TRACE_LEVELS = {"order": WORD["CDDP_TRACE_ORDER"], "buckets": WORD["CDDP_TRACE_ORDER"],
                 "digests": WORD["CDDP_TRACE_DIGEST"], "payload": WORD["CDDP_TRACE_DIGEST"]}
DTYPES = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.complex64: 4,
          torch.int64: 5, torch.int32: 6, torch.uint8: 7, torch.int8: 7, torch.bool: 7, torch.int16: 7}
OK, BACKEND, TIMEOUT, ABORTED = 0, 6, 7, 12
Result = TypeVar("Result")
_no_elements = ctypes.create_string_buffer(64)
NOWHERE = ctypes.addressof(_no_elements)  # where a tensor without elements lies; PyTorch says 0


def bits(value: float) -> int:
    """A double as the int64_t that its field is."""
    return int(struct.unpack("=q", struct.pack("=d", value))[0])



class Steps:
    """Of one wrapped module: a rank may train others beside it, which not all ranks have."""

    __slots__ = ("step", "micro", "epoch", "has_ended", "has_forward", "has_backward")

    def __init__(self, before: "Optional[Steps]") -> None:
        """A module that is wrapped later goes on in the step of the one before."""
        self.step = before.step if before is not None else 0
        self.has_ended = before.has_ended if before is not None else False
        self.micro = 0
        self.epoch = 1  # of gradients: grows when they are dropped
        self.has_forward = self.has_backward = False

    def begin_forward(self, grad: bool) -> None:
        """A step ends with an optimizer's step or zero_grad; the next forward begins another one."""
        if not grad:
            return
        if not self._begin() and self.has_forward:
            self.micro += 1
        self.has_forward = True

    def begin_backward(self) -> None:
        """Or the next backward, of a forward that went past the wrapper."""
        self._begin()
        self.has_backward = True

    def _begin(self) -> bool:
        if not self.has_ended:
            return False
        self.step += 1
        self.micro = 0
        self.has_ended = False
        return True

    def meet_again(self, reductions: int) -> None:
        """Ranks that took unequally many steps go on in the same one. No step is without a reduction."""
        if reductions > self.step + 1 and not self.has_forward and not self.has_backward:
            self.step, self.has_ended = reductions - 1, True

    def end(self) -> None:
        if self.has_forward or self.has_backward:
            self.has_ended = True
            self.has_forward = self.has_backward = False


class Recorder:
    """One per process. `on` is false before the shard is open and after a failure."""

    def __init__(self, directory: str, level: str) -> None:
        if level not in LEVELS:
            raise ValueError("there is no level %r: %s" % (level, ", ".join(LEVELS)))
        self.directory = directory
        self.level = level
        self.on = False
        self.failure: Optional[str] = None
        self.pid = os.getpid()
        self.rank = 0
        self.world_size = 0
        self.writer: Optional[NativeWriter | PythonWriter] = None
        self.now = Steps(None)  # of the module that events are about
        self.steps: Dict[int, Steps] = {0: self.now}
        self.outstanding = 0
        self.has_posted = False
        self.join_depth = 0
        self.main_thread = threading.get_ident()
        self.threads: Dict[int, int] = {}
        # By thread: the last operation that ended there, or was posted there. Not thread-local: a thread
        # of a backend has a new Python state in each callback.
        self.completed: Dict[int, Any] = {}
        self.posted: Dict[int, Any] = {}
        self.continuations: Dict[int, int] = {}  # by thread: how many run now
        self.lock = threading.RLock()
        self._where: Optional[str] = None
        self.has_end = False
        self.model = 0  # whose events these are, of several wrapped modules
        self.closers: List[Callable[[], None]] = []
        self.on_failure: List[Callable[[], None]] = []

    # ---- life ----

    def open(self, rank: int, world_size: int, store: Any = None) -> None:
        if self.on or self.failure is not None:
            return
        os.makedirs(self.directory, exist_ok=True)
        generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)
        name = "rank.%d" % rank if generation == 0 else "rank.%d.%d" % (rank, generation)
        program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
        self.writer = open_shard(Options(os.path.join(self.directory, name), rank, world_size, generation,
                                         _TRACE_LEVELS[self.level], job_number(store), program))
        if not self.writer.takes_digests and self.level in ("digests", "payload"):
            say("libcddp_trace.so was not found: recording at level buckets, without digests")
            self.level = "buckets"
        self.rank, self.world_size = rank, world_size
        self.on = True
        self.emit("rank_begin", world_size)
        self.mark("torch " + str(torch.__version__))
        atexit.register(self.close)
        multiprocessing.util.Finalize(None, self.close, exitpriority=10)
        self._watch_exceptions()

    def _watch_exceptions(self) -> None:
        before = sys.excepthook

        def hook(kind: Any, value: Any, trace: Any) -> None:
            guarded(lambda: self.end(ABORTED, "%s: %s" % (kind.__name__, value)))()
            before(kind, value, trace)

        sys.excepthook = hook

    def end(self, status: int, text: Optional[str]) -> None:
        """The program of this rank ended; the first statement counts."""
        if not self.on or self.has_end:
            return
        self.has_end = True
        if status != OK:
            for keep in self.on_failure:
                keep()
        self.emit("rank_end", status, WORD["CDDP_RANK_RETURNED"] if status == OK else WORD["CDDP_RANK_CRASHED"],
                  0 if status == OK else 1, text=text)

    def close(self) -> None:
        """At exit: callbacks of a backend must be gone before the interpreter is."""
        if not self.on or os.getpid() != self.pid:
            return
        until = time.monotonic() + 2.0
        while self.outstanding > 0 and time.monotonic() < until:
            time.sleep(0.002)
        if self.has_posted:
            time.sleep(0.03)
        guarded(lambda: [closer() for closer in self.closers])()
        guarded(lambda: self.end(OK, None))()
        self.on = False
        if self.writer is not None:
            guarded(self.writer.close)()

    def fail(self, failure: BaseException) -> None:
        """The recording ends here; the job goes on."""
        if not self.on and self.failure is not None:
            return
        self.failure = "%s: %s" % (type(failure).__name__, failure)
        self.on = False
        say("the recording of rank %d ends here: %s" % (self.rank, self.failure))
        if os.environ.get("CDDP_TORCH_DEBUG"):
            import traceback
            traceback.print_exception(type(failure), failure, failure.__traceback__)
        if self.writer is not None and os.getpid() == self.pid:
            try:
                emit = type(self.writer).emit  # the class's own, since the one of the object may be what failed
                emit(self.writer, KIND["mark"], self.now.step, self.now.micro, (0,),  # type: ignore[arg-type]
                     "recorder failed: " + self.failure)
            except Exception:  # nothing is left to be done
                pass

    # ---- events ----

    def emit(self, kind: str, *fields: int, text: Optional[str] = None) -> None:
        if self.on and self.writer is not None:
            self.writer.emit(KIND[kind], self.now.step, self.now.micro, fields, text)

    def mark(self, text: str, value: int = 0) -> None:
        self.emit("mark", value, text=text)

    def use(self, model: int) -> None:
        """What follows of this rank is about this one of several wrapped modules."""
        if model != self.model:
            self.model = model
            self.now = self.steps_of(model)
            self.emit("mark", model, text="wrapped module")

    def option(self, path: str, value: int = 0, real: float = 0.0, text: Optional[str] = None) -> None:
        self.emit("option", hashing.signed(hashing.text(path)), 0, 1, value, bits(real), text=text)

    def source(self, depth: int = 3) -> None:
        """Says the line that what follows comes from, when it is another one than before."""
        found = frames.find(depth)
        if found is None or found[0] == self._where:
            return
        self._where = found[0]
        self.emit("source", found[1], text=found[0])

    def thread_number(self) -> int:
        ident = threading.get_ident()
        number = self.threads.get(ident)
        if number is None:
            number = self.threads[ident] = len(self.threads)
        return number

    # ---- contents ----

    @property
    def wants_buckets(self) -> bool:
        return self.level != "order"

    @property
    def wants_digests(self) -> bool:
        return self.level in ("digests", "payload")

    def digest(self, tensor: Optional[torch.Tensor]) -> int:
        """0 where there is none: below the level, on a device, sparse."""
        if tensor is None or not self.wants_digests or self.writer is None:
            return 0
        if tensor.is_sparse or tensor.device.type != "cpu" or tensor.dtype not in DTYPES:
            return 0
        plain = tensor.detach()
        if not plain.is_contiguous():
            plain = plain.contiguous()
        size = plain.element_size()
        return hashing.signed(self.writer.digest(plain.data_ptr() or NOWHERE, plain.numel() * size, size))

    def project(self, tensor: torch.Tensor) -> "Optional[tuple[float, float]]":
        """Sum and magnitude of a tensor times fixed weights."""
        if tensor.is_sparse or tensor.device.type != "cpu" or tensor.dtype not in _PROJECTED:
            return None
        plain = tensor.detach()
        if not plain.is_contiguous():
            plain = plain.contiguous()
        if self.writer is not None and self.writer.takes_digests:
            return self.writer.project(plain.data_ptr() or NOWHERE, plain.numel(), DTYPES[plain.dtype])
        return _project_by_torch(plain)

    def steps_of(self, model: int) -> Steps:
        found = self.steps.get(model)
        if found is None:
            found = self.steps[model] = Steps(self.now)
        return found


_RUN = 0xc0dd << 48  # CDDP_SHARD_RUN: a restart of the job has another number


def job_number(store: Any) -> int:
    """Equal on all ranks, and another one for each job, so that what an earlier job left in the folder is never mixed with it.

    torchrun says "none", or what its user says each time. So ranks draw a number, and the first one to come to the
    store where all of them met sets it. No rank waits for another one.
    """
    named = os.environ.get("CDDP_TORCH_JOB")
    if named:  # drawn by `python -m cddp_torch run -n`
        return hashing.text(named)
    if store is not None:
        try:
            found = store.compare_set("cddp_torch/job", "", os.urandom(6).hex())
            return _RUN | int(found, 16)
        except (RuntimeError, ValueError, TypeError, AttributeError):  # a store that has no such operation
            pass
    named = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return hashing.text(named) if named not in ("", "none") else 0


_PROJECTED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@functools.lru_cache(maxsize=64)
def _weights(numel: int) -> torch.Tensor:
    """As record/projection.h has them: of the place in a block of 1024, times of the block."""
    i = torch.arange(numel, dtype=torch.int64)
    return _weight(i % 1024) * _weight(i // 1024 + 7)


def _weight(i: torch.Tensor) -> torch.Tensor:
    mixed = ((i * 2654435769) & 0xFFFFFFFF) >> 9
    return 1.0 + mixed.to(torch.float64) * (2.0 ** -23 * 0.41421356)


def _project_by_torch(tensor: torch.Tensor) -> "tuple[float, float]":
    terms = tensor.reshape(-1).to(torch.float64) * _weights(tensor.numel())
    return float(terms.sum()), float(terms.abs().sum())


def say(text: str) -> None:
    sys.stderr.write("cddp_torch: %s\n" % text)


# ---- the one of this process ----

current: Optional[Recorder] = None


def get() -> Optional[Recorder]:
    """The recorder while it records, in the process that it belongs to."""
    r = current
    return r if r is not None and r.on and r.pid == os.getpid() else None


_guards: Dict[Any, Callable[..., Any]] = {}  # of functions of modules, which are guarded in each step


def guarded(call: Callable[..., Result]) -> Callable[..., Optional[Result]]:
    """None, and no recording any more, where the recorder itself fails."""
    known = _guards.get(call)
    if known is not None:
        return known

    @functools.wraps(call)
    def run(*args: Any, **named: Any) -> Optional[Result]:
        try:
            return call(*args, **named)
        except Exception as failure:
            if current is not None:
                current.fail(failure)
            return None

    if "<" not in getattr(call, "__qualname__", "<") and not hasattr(call, "__self__"):
        _guards[call] = run
    return run
