# SPDX-License-Identifier: Apache-2.0
"""init_process_group("cddp"): a process group over this project's backends and compositions.

    import cddp_torch.process_group
    torch.distributed.init_process_group("cddp")

CDDP_BACKEND names the transport: gloo (the default), or a composition such as check:gloo, hier:gloo, rr:2:gloo or
fault:seed=7,drop=0.01:gloo. One thread per group runs the operations in the order of their posts, and one completes
their futures in that order. Tensors of another device go through another group: "cpu:cddp,cuda:nccl". So a callback that waits for a later operation of the same group never returns.
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import glob
import os
import queue
import threading
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_int, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work, _create_work_from_future

from . import launch, parts

# Positions in cddp_dtype, cddp_red_op and cddp_op.
_DTYPES = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.complex64: 4, torch.int64: 5,
           torch.int32: 6, torch.uint8: 7, torch.bool: 7}
_OPS = {"allreduce": 0, "broadcast": 1, "allgather": 2, "reduce": 4}
_MOVES = ("broadcast", "allgather")
_UNSUPPORTED = ("allgather_coalesced", "allreduce_coalesced", "_reduce_scatter_base", "reduce_scatter", "gather", "scatter",
                "alltoall", "alltoall_base", "send", "recv", "recv_anysource")


class _Error(ctypes.Structure):
    class Frame(ctypes.Structure):
        _fields_ = [("file", c_char_p), ("function", c_char_p), ("line", c_int)]

    _fields_ = [("status", c_int), ("frame_count", c_uint32), ("frames", Frame * 8), ("message", c_char * 512)]


class _Tensor(ctypes.Structure):
    _fields_ = [("device", c_void_p), ("storage", c_void_p), ("offset", c_int64), ("dtype", c_int),
                ("dim_count", c_uint32), ("sizes", c_int64 * 6), ("strides", c_int64 * 6)]


class _Collective(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("op", c_int), ("reduce_op", c_int), ("root", c_uint32), ("sequence", c_uint64),
                ("tag", c_uint64), ("premultiplier", c_double), ("input", _Tensor), ("output", _Tensor),
                ("counts", c_void_p), ("send_counts", c_void_p), ("stream", c_void_p), ("timeout_ns", c_uint64),
                ("label", c_uint64)]


class _Capabilities(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("ops", c_uint32), ("dtypes", c_uint32), ("reduce_ops", c_uint32), ("devices", c_uint32),
                ("any_device", ctypes.c_bool), ("in_place", ctypes.c_bool), ("is_async", ctypes.c_bool), ("order", c_int)]


class _Options(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("backend", c_char_p), ("timeout_ns", c_uint64), ("prints_plain", ctypes.c_bool)]


def _find_library() -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    named = os.environ.get("CDDP_LIBRARY")
    built = sorted(glob.glob(os.path.join(here, "..", "..", "build", "*", "lib", "libcddp.so")))
    return named or (built[0] if built else "libcddp.so.0")


def _load() -> Any:
    path = _find_library()
    try:
        library = ctypes.CDLL(path)
    except OSError as failure:
        raise RuntimeError("backend cddp needs libcddp.so, which CDDP_LIBRARY may name: %s" % failure)
    library.cddp_device_cpu.restype = c_void_p
    library.cddp_context_group.restype = c_void_p
    library.cddp_context_group.argtypes = [c_void_p]
    library.cddp_group_capabilities.restype = POINTER(_Capabilities)
    library.cddp_group_capabilities.argtypes = [c_void_p]
    library.cddp_init_with.argtypes = [POINTER(_Options), POINTER(c_void_p), POINTER(_Error)]
    library.cddp_group_post.argtypes = [c_void_p, POINTER(_Collective), POINTER(c_void_p), POINTER(_Error)]
    library.cddp_group_barrier.argtypes = [c_void_p, POINTER(_Error)]
    library.cddp_work_wait.argtypes = [c_void_p, c_uint64, POINTER(_Error)]
    library.cddp_fini.argtypes = [c_void_p]
    return library


_library: Any = None
results_agree = False  # does CDDP_BACKEND promise the same bits on all ranks? Known once a group is open


def _check(status: int, error: _Error) -> None:
    if status != 0:
        raise RuntimeError("cddp: " + error.message.decode("utf-8", "replace"))


class _Context:
    """A context of libcddp, which only the group's own thread uses once it is open."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        global _library
        if _library is None:
            _library = _load()
        if rank == 0:
            store.set("cddp/port", str(launch.free_port()))
        port = store.get("cddp/port").decode()
        wanted = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_PORT": port,
                  "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1")}
        kept: Dict[str, Optional[str]] = {name: os.environ.get(name) for name in wanted}
        self.spec = os.environ.get("CDDP_BACKEND", "gloo")
        self.handle, error = c_void_p(), _Error()
        options = _Options(ctypes.sizeof(_Options), self.spec.encode(), int(timeout_s * 1e9), False)
        os.environ.update(wanted)
        try:
            _check(_library.cddp_init_with(byref(options), byref(self.handle), byref(error)), error)
        finally:
            for name, value in kept.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        self.group = _library.cddp_context_group(self.handle)
        capabilities = _library.cddp_group_capabilities(self.group).contents
        self.ops = int(capabilities.ops)
        global results_agree
        results_agree = capabilities.order != 0  # CDDP_ORDER_UNSPECIFIED

    def run(self, op: str, reduction: int, root: int, given: Optional[torch.Tensor], result: torch.Tensor) -> None:
        error, work = _Error(), c_void_p()
        c = _Collective(ctypes.sizeof(_Collective), _OPS[op], reduction, root)
        c.input = _describe(given if given is not None else result)
        c.output = _describe(result)
        _check(_library.cddp_group_post(self.group, byref(c), byref(work), byref(error)), error)
        _check(_library.cddp_work_wait(work, 0, byref(error)), error)

    def barrier(self) -> None:
        error = _Error()
        _check(_library.cddp_group_barrier(self.group, byref(error)), error)

    def close(self) -> None:
        _library.cddp_fini(self.handle)
        self.handle = c_void_p()


_nothing = ctypes.create_string_buffer(16)  # where a tensor without elements lies


def _describe(t: torch.Tensor) -> _Tensor:
    d = _Tensor(_library.cddp_device_cpu(), t.data_ptr() or ctypes.addressof(_nothing), 0, _DTYPES[t.dtype], 1)
    d.sizes[0], d.strides[0] = t.numel(), 1
    return d


Call = Callable[[], Any]


class CddpGroup(dist.ProcessGroup):
    """Its operations run on a thread, one after the other."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._context = _Context(store, rank, size, timeout.total_seconds())
        self._rank, self._size = rank, size
        self._posted: "queue.SimpleQueue[Optional[Tuple[Call, Any]]]" = queue.SimpleQueue()
        self._ended: "queue.SimpleQueue[Optional[Tuple[Any, Any, Any]]]" = queue.SimpleQueue()
        self._failure: Optional[BaseException] = None
        self.others: Dict[str, Any] = {}  # by kind of device: the group of its tensors
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._transport, self._completion)]
        for thread in self._threads:
            thread.start()
        _groups.append(self)

    # ---- its threads ----

    def _transport(self) -> None:
        while True:
            entry = self._posted.get()
            if entry is None:
                self._ended.put(None)
                return
            call, future = entry
            value, failure = None, self._failure
            if failure is None:
                try:
                    value = call()
                except BaseException as raised:
                    failure = self._failure = raised  # the ranks are not in step any more
            self._ended.put((future, value, failure))

    def _completion(self) -> None:
        while True:
            entry = self._ended.get()
            if entry is None:
                return
            future, value, failure = entry
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(value)

    def close(self) -> None:
        self._posted.put(None)
        self._threads[0].join(10.0)
        self._threads[1].join(1.0)
        if not self._threads[0].is_alive():
            self._context.close()

    def _post(self, call: Call) -> Any:
        future: Any = torch.futures.Future()
        self._posted.put((call, future))
        work = _create_work_from_future(future)
        _works[id(work)] = future
        return work

    # ---- what it says of itself ----

    def getBackendName(self) -> str:
        return "cddp"

    def name(self) -> str:
        return "cddp"

    def _get_backend_name(self) -> str:
        return "cddp"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    # ---- operations ----

    def _refuse(self, op: str, why: str = "") -> None:
        raise RuntimeError("process group cddp (%s) has no %s%s" % (self._context.spec, op, why))

    def _flat(self, op: str, tensor: torch.Tensor) -> torch.Tensor:
        if not self._context.ops >> _OPS[op] & 1:
            self._refuse(op)
        is_known = tensor.dtype in _DTYPES or op in _MOVES
        if tensor.is_sparse or tensor.device.type != "cpu" or not is_known:
            self._refuse(op, " of %s%s tensors on %s" % ("sparse " if tensor.is_sparse else "", tensor.dtype,
                                                       tensor.device.type))
        flat = tensor.detach().contiguous().view(-1)
        return flat if tensor.dtype in _DTYPES else flat.view(torch.uint8)  # what only moves is moved as bytes

    def _reduction(self, op: str, tensor: torch.Tensor, opts: Any) -> int:
        if tensor.dtype == torch.bool:
            self._refuse(op, " of torch.bool tensors")
        if opts is None:
            return 0
        name = parts.reduction_name(opts.reduceOp)
        if name is not None and name != "PREMUL_SUM":  # its factor is not to be had
            return parts.REDUCTIONS[name]
        self._refuse(op, " with %s" % (name or opts.reduceOp))
        return -1

    def _each(self, op: str, reduction: int, root: int, tensors: List[torch.Tensor]) -> Any:
        flats = [self._flat(op, t) for t in tensors]

        def call() -> Any:
            for tensor, flat in zip(tensors, flats):
                self._context.run(op, reduction, root, None, flat)
                if flat.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape))
            return list(tensors)

        return self._post(call)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        return self._each("allreduce", self._reduction("allreduce", tensors[0], opts), 0, tensors)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        return self._each("reduce", self._reduction("reduce", tensors[0], opts), opts.rootRank, tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        return self._each("broadcast", 0, opts.rootRank if opts is not None else 0, tensors)

    def _gather(self, given: torch.Tensor, take: Callable[[torch.Tensor], Any]) -> Any:
        flat = self._flat("allgather", given)
        result = torch.empty(flat.numel() * self._size, dtype=flat.dtype)

        def call() -> Any:
            self._context.run("allgather", 0, 0, flat, result)
            return take(result)

        return self._post(call)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if len(inputs) != 1:
            self._refuse("allgather", " of several tensors")

        def take(result: torch.Tensor) -> Any:
            for output, part in zip(outputs[0], result.chunk(self._size) if result.numel() else outputs[0]):
                output.detach().copy_(part.view(output.dtype).view(output.shape))
            return [list(outputs[0])]

        return self._gather(inputs[0], take)

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        def take(result: torch.Tensor) -> Any:
            output.detach().copy_(result.view(output.dtype).view(output.shape))
            return [output]

        return self._gather(input, take)

    def barrier(self, opts: Any = None) -> Any:
        def call() -> List[torch.Tensor]:
            self._context.barrier()
            return []

        return self._post(call)


def _missing(op: str) -> Callable[..., Any]:
    def call(self: CddpGroup, *args: Any, **named: Any) -> Any:
        self._refuse(op)

    call.__name__ = op
    return call


def _device_of(value: Any) -> Optional[str]:
    if isinstance(value, torch.Tensor):
        return str(value.device.type)
    if isinstance(value, (list, tuple)):
        return next((found for found in map(_device_of, value) if found is not None), None)
    return None


def _by_device(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def run(self: CddpGroup, *args: Any, **named: Any) -> Any:
        other = self.others.get(_device_of(args + tuple(named.values())) or "") if self.others else None
        return call(self, *args, **named) if other is None else getattr(other, call.__name__)(*args, **named)

    return run


for _name in _UNSUPPORTED:
    setattr(CddpGroup, _name, _missing(_name))
for _name in _UNSUPPORTED + ("allreduce", "reduce", "broadcast", "allgather", "_allgather_base"):
    setattr(CddpGroup, _name, _by_device(getattr(CddpGroup, _name)))

_groups: List[CddpGroup] = []
_works: Dict[int, Any] = {}
_real_wait = Work.wait


def _wait(self: Any, *args: Any, **named: Any) -> Any:
    """A work that is made of a future does not raise what the future has."""
    value = _real_wait(self, *args, **named)
    future = _works.pop(id(self), None)
    if future is not None:
        future.value()
    return value


def _close_all() -> None:
    while _groups:
        _groups.pop().close()


def _create(store: Any, rank: int, size: int, timeout: Any) -> CddpGroup:
    return CddpGroup(store, rank, size, timeout)


_default_others: Dict[str, str] = {}  # of the default group; new groups have the same


def _split(backend: Any) -> Optional[Dict[str, str]]:
    """"cpu:cddp,cuda:nccl" by device; None: it has no part of cddp, or is one word. Version 1 of PyTorch knows no such names,
    and version 2 takes a part of a group from C++ only. So the group as a whole is ours, and the others stand behind it."""
    pairs = [part.strip().split(":") for part in str(backend).lower().split(",")] if backend is not None else []
    if not any(len(pair) == 2 and pair[1] == "cddp" for pair in pairs):
        return None
    by_device = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    if len(by_device) != len(pairs) or [d for d, b in by_device.items() if b == "cddp"] != ["cpu"]:
        raise RuntimeError("backend '%s': cddp has the tensors of CPUs, and each other device one backend: cpu:cddp,cuda:nccl" % backend)
    del by_device["cpu"]
    return by_device


def _dispatching(call: Callable[..., Any], new_group: Callable[..., Any], position: int) -> Callable[..., Any]:
    """init_process_group, and new_group."""
    is_default = position == 0

    @functools.wraps(call)
    def run(*args: Any, **named: Any) -> Any:
        backend = args[position] if len(args) > position else named.get("backend")
        others = _split(backend)
        if others is not None and len(args) > position:
            args = args[:position] + ("cddp",) + args[position + 1:]
        elif others is not None:
            named["backend"] = "cddp"
        group = call(*args, **named)
        if is_default:
            _default_others.clear()
            _default_others.update(others or {})
            group = dist.group.WORLD
        elif backend is None:
            others = _default_others
        ranks = None if is_default else args[0] if args else named.get("ranks")
        for device, other in (others or {}).items():
            made = new_group(ranks, backend=other)  # every rank makes it, members or not
            inner = getattr(group, "_real", group)  # behind a recorder's
            if isinstance(inner, CddpGroup):
                inner.others[device] = made
        return None if is_default else group

    return run


def register() -> None:
    real_new = dist.new_group
    for name, position in (("init_process_group", 0), ("new_group", 2)):
        dispatching = _dispatching(getattr(dist, name), real_new, position)
        setattr(dist, name, dispatching)
        setattr(dist.distributed_c10d, name, dispatching)
    if not hasattr(dist.Backend, "CDDP"):
        try:
            dist.Backend.register_backend("cddp", _create, devices=["cpu"])
        except TypeError:  # torch 1.x knows no devices
            dist.Backend.register_backend("cddp", _create)
        Work.wait = _wait
        atexit.register(_close_all)


register()
