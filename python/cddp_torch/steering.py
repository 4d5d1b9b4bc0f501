# SPDX-License-Identifier: Apache-2.0
"""One rank under a scheduler: each post waits for its turn, and each completion comes when the scheduler lets it.

The scheduler (schedules.py) is the transport: it gets what the ranks give, pairs the k-th operations of a group,
and says which of them completes next and where. As in Gloo, two threads per group run completions with their
callbacks, and an operation begins when one of them is free.
"""
from __future__ import annotations

import os
import threading
from multiprocessing.connection import Client
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work, _create_work_from_future

from . import frames, parts
from .groups import _maps

COMPLETION_THREADS = 2  # per group, as in PyTorch's Gloo
_REDUCTIONS = ("SUM", "MIN", "MAX", "PRODUCT")

_place = threading.local()
_address = ""
_rank = 0
_thread_count = 0
_pending: Dict[Tuple[int, int], "_Operation"] = {}
_groups: Dict[Any, "SteeredGroup"] = {}
_works: Dict[int, torch.futures.Future] = {}
_group_count = 0
_has_builtin_hook = False  # its C++ reads a result that Python cannot make


def _line() -> Any:
    """The connection of this thread; the scheduler answers one thread at a time."""
    global _thread_count
    line = getattr(_place, "line", None)
    if line is None:
        thread = threading.current_thread()
        # The program's own have names, however early they come here; PyTorch's are counted.
        name = "main" if thread is threading.main_thread() else thread.name
        if isinstance(thread, threading._DummyThread):  # type: ignore[attr-defined]
            _thread_count += 1
            name = "thread %d" % _thread_count
        line = _place.line = Client(_address, "AF_UNIX")
        role = getattr(_place, "role", name)
        line.send(("hello", _rank, role, threading.get_native_id()))
    return line


def pack(tensor: torch.Tensor) -> Tuple[str, Tuple[int, ...], bytes]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() > 0 else b""
    return str(flat.dtype).replace("torch.", ""), tuple(tensor.shape), data


def unpack(packed: Tuple[str, Tuple[int, ...], bytes]) -> torch.Tensor:
    dtype, shape, data = packed
    if not data:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)


class _Operation:
    __slots__ = ("future", "outputs", "value")

    def __init__(self, future: Any, outputs: List[torch.Tensor], value: Any) -> None:
        self.future, self.outputs, self.value = future, outputs, value


def _post(group: "SteeredGroup", op: str, detail: str, root: int, inputs: List[torch.Tensor],
          outputs: List[torch.Tensor], value: Any) -> Any:
    source = frames.find(3)
    line = _line()
    line.send(("post", group.id, op, detail, root, [pack(t) for t in inputs], source[0] if source else ""))
    future: Any = torch.futures.Future()
    number = line.recv()
    _pending[(group.id, number)] = _Operation(future, outputs, value)
    work = _create_work_from_future(future)
    _works[id(work)] = future
    future.add_done_callback(lambda done, key=id(work): _works.pop(key, None))
    return work


def _complete(group: "SteeredGroup", index: int) -> None:
    """The life of a completion thread."""
    _place.role = "completion thread %d of group %d" % (index, group.id)
    line = _line()
    line.send(("idle", group.id, index))
    while True:
        try:
            number, packed = line.recv()
        except (EOFError, OSError):
            return
        operation = _pending.pop((group.id, number))
        with torch.no_grad():
            for output, result in zip(operation.outputs, packed):
                output.copy_(unpack(result).reshape(output.shape))
        operation.future.set_result(operation.value)
        operation = None  # type: ignore[assignment]
        line.send(("idle", group.id, index))


def _wait_for_change() -> None:
    """A thread that asks again and again gives the others their turn."""
    line = _line()
    line.send(("poll",))
    line.recv()


def _away(op: str, call: Callable[[], Any]) -> Any:
    """A call that may wait for other ranks without the scheduler; "" where nothing escapes from it."""
    line = _line()
    line.send(("escape", op))
    line.recv()
    try:
        return call()
    finally:
        line.send(("returned",))
        line.recv()


def _escape(op: str) -> Callable[..., Any]:
    def call(self: "SteeredGroup", *args: Any, **named: Any) -> Any:
        def go() -> Any:
            work = getattr(self._real, op)(*args, **named)
            # What nobody controls ends here, so that the order of the rest does not depend on it.
            if work is not None and op not in ("send", "recv", "recv_anysource"):
                work.wait()
            return work

        return _away(op, go)

    call.__name__ = op
    return call


_OPERATIONS = ("allreduce_coalesced", "allgather_coalesced", "_reduce_scatter_base", "reduce_scatter", "gather",
               "scatter", "alltoall", "alltoall_base", "send", "recv", "recv_anysource", "monitored_barrier")


class SteeredGroup(dist.ProcessGroup):
    """A group whose operations complete when the scheduler says so."""

    def __init__(self, real: Any, number: int) -> None:
        super().__init__(real.rank(), real.size())
        self._real = real
        self.id = number

    def getBackendName(self) -> str:
        return "cddp:steered"  # DDP's logger casts what calls itself gloo or nccl

    def name(self) -> str:
        return self.getBackendName()

    def _get_backend_name(self) -> str:
        return self.getBackendName()

    def rank(self) -> int:
        return int(self._real.rank())

    def size(self) -> int:
        return int(self._real.size())

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        name = _reduction(opts)
        if name is None or _has_builtin_hook or any(t.is_sparse for t in tensors):
            return _escape("allreduce")(self, tensors, *([] if opts is None else [opts]))
        return _post(self, "allreduce", name, -1, tensors, list(tensors), list(tensors))

    def reduce(self, tensors: Any, opts: Any) -> Any:
        name = _reduction(opts)
        if name is None:
            return _escape("reduce")(self, tensors, opts)
        mine = list(tensors) if self.rank() == opts.rootRank else []
        return _post(self, "reduce", name, opts.rootRank, tensors, mine, list(tensors))

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        root = opts.rootRank if opts is not None else 0
        return _post(self, "broadcast", "", root, tensors, list(tensors), list(tensors))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        flat = [t for each in outputs for t in each]
        return _post(self, "allgather", "", -1, inputs, flat, [list(each) for each in outputs])

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        parts = list(output.view(-1).chunk(self.size()))
        return _post(self, "allgather", "", -1, [input], parts, [output])

    def barrier(self, opts: Any = None) -> Any:
        return _post(self, "barrier", "", -1, [], [], [])


def _reduction(opts: Any) -> Optional[str]:
    """None: one that the scheduler does not make."""
    name = parts.reduction_name(opts.reduceOp) if opts is not None else "SUM"
    return name if name in _REDUCTIONS else None


for _name in _OPERATIONS:
    if hasattr(dist.ProcessGroup, _name) or _name == "monitored_barrier":
        setattr(SteeredGroup, _name, _escape(_name))


parts.forward_the_rest(SteeredGroup)


# ---- putting them in place ----

def _wrap(real: Any, number: int, members: List[int]) -> SteeredGroup:
    group = SteeredGroup(real, number)
    line = _line()
    known = [int(t) for t in os.listdir("/proc/self/task")]
    line.send(("group", number, members, known))
    line.recv()
    maps, world = _maps()
    for entries in maps:
        if real in entries:
            entries[group] = entries[real]
    if world is not None and hasattr(world, "tags_to_pg"):
        for groups in world.tags_to_pg.values():
            if real in groups:
                groups.append(group)
    _groups[real] = group
    for index in range(COMPLETION_THREADS):
        threading.Thread(target=_complete, args=(group, index), daemon=True).start()
    return group


def _patch() -> None:
    c10d = dist.distributed_c10d
    real_init, real_new = c10d.init_process_group, c10d.new_group

    def init_process_group(*args: Any, **named: Any) -> Any:
        global _group_count
        value = _away("", lambda: real_init(*args, **named))
        real = c10d._get_default_group()
        c10d._update_default_pg(_wrap(real, _group_count, list(range(real.size()))))
        _group_count += 1
        return value

    def new_group(*args: Any, **named: Any) -> Any:
        global _group_count
        number = _group_count
        _group_count += 1
        ranks = args[0] if args else named.get("ranks")
        value = _away("", lambda: real_new(*args, **named))
        if not isinstance(value, dist.ProcessGroup) or isinstance(value, SteeredGroup):
            return value
        return _wrap(value, number, sorted(ranks) if ranks is not None else list(range(dist.get_world_size())))

    for module in (c10d, dist):
        module.init_process_group = init_process_group
        module.new_group = new_group
    from torch.nn.parallel import DistributedDataParallel
    real_register = DistributedDataParallel._register_builtin_comm_hook

    def register(self: Any, *args: Any, **named: Any) -> Any:
        global _has_builtin_hook
        _has_builtin_hook = True
        return real_register(self, *args, **named)

    DistributedDataParallel._register_builtin_comm_hook = register
    real_completed = Work.is_completed

    def is_completed(self: Any) -> Any:
        if id(self) in _works and not real_completed(self):
            _wait_for_change()
        return real_completed(self)

    Work.is_completed = is_completed
    real_done = torch._C.Future.done

    def done(self: Any) -> Any:
        if not real_done(self):
            _wait_for_change()
        return real_done(self)

    torch._C.Future.done = done


def run(address: str, rank: int, command: List[str]) -> None:
    """Runs the script as the main program of this rank; returns when it has ended well."""
    global _address, _rank
    _address, _rank = address, rank
    torch.set_num_threads(1)
    _line()
    _patch()
    parts.run_as_main(command)
