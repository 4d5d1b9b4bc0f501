# SPDX-License-Identifier: Apache-2.0
"""Process groups that say what is posted and how it ends.

A group of torch stands behind each of them and does all the work. Completion is seen by a future in front of
the consumer (`future.then`): what waits for the operation wakes only after its end has been recorded.
"""
from __future__ import annotations

import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work, _create_work_from_future

from . import hashing, parts
from .events import WORD
from .recorder import BACKEND, DTYPES, OK, TIMEOUT, Recorder, get, guarded, say

# cddp_op
OPS = {"allreduce": 0, "broadcast": 1, "allgather": 2, "reduce_scatter": 3, "reduce": 4, "gather": 5, "scatter": 6,
       "alltoall": 7, "send": 8, "recv": 9, "barrier": 10}


# What a program may reduce its gradients by: it gathers them and takes the mean itself, say.
_REDUCING = ("allreduce", "allgather", "reduce", "reduce_scatter", "gather")


class Operation:
    """A collective between its post and its end."""

    __slots__ = ("group", "number", "op", "bucket", "tensors", "results", "on_done", "is_awaited", "is_done", "is_hidden", "digest", "root")

    def __init__(self, group: "RecordedGroup | Channel", number: int, op: str) -> None:
        self.group, self.number, self.op = group, number, op
        self.bucket = -1
        self.tensors: List[torch.Tensor] = []
        self.results: List[torch.Tensor] = []
        self.on_done: Optional[Callable[["Operation", int], None]] = None
        self.is_awaited = False  # whoever posts it waits for it next
        self.digest: Optional[int] = None  # of what enters, where it is known already
        self.is_done = False
        self.is_hidden = False  # its consumer takes no future of ours: its end is inferred
        self.root = -1


# id of a work, or of a future → its operation, while it is under way
_works: Dict[int, Operation] = {}
# Asked at each post: which bucket an all-reduce carries; set by cddp_torch.wrappers.
claim_bucket: Optional[Callable[[Operation], None]] = None
# Forwards of wrapped modules that are under way: their broadcasts, of buffers and of new buckets, are waited for in C++.
forwards = 0
# Called before a rank leaves a group, None: all of them; set by cddp_torch.wrappers.
before_leaving: Optional[Callable[[Recorder, Any], None]] = None


def _flatten(value: Any) -> List[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in _flatten(item)]
    return []


def _reduce_op(args: Tuple[Any, ...], named: Dict[str, Any]) -> int:
    """-1: it has no name here; ranks are compared, and nobody says what it should make."""
    for value in list(args[1:]) + list(named.values()):
        op = getattr(value, "reduceOp", value if isinstance(value, dist.ReduceOp) else None)
        if op is None:
            continue
        name = parts.reduction_name(op)
        if name is None:
            _say_unnamed(op)
        return parts.REDUCTIONS[name] if name is not None else -1
    return 0


_has_unnamed = False


def _say_unnamed(op: Any) -> None:
    global _has_unnamed
    r = get()
    if r is not None and not _has_unnamed:
        _has_unnamed = True
        r.mark("a reduction that has no name here: its result is not judged")
        say("a reduction that has no name here (%s): its result is not judged" % type(op).__name__)


def _root(op: str, args: Tuple[Any, ...], named: Dict[str, Any]) -> int:
    if op not in ("broadcast", "reduce", "gather", "scatter"):
        return -1
    for value in list(args[1:]) + list(named.values()):
        if hasattr(value, "rootRank"):
            return int(value.rootRank)
    for value in args[1:]:
        if isinstance(value, int):
            return value
    return int(named.get("root", 0))


class Channel:
    """Messages from one rank of a group to another, with one tag: a group of two to whoever judges.

    They have their own numbers. Whoever sends or receives in between is then not behind the others of the
    group, and the k-th message that leaves is the k-th that arrives.
    """

    def __init__(self, r: Recorder, group: "RecordedGroup", source: int, target: int, tag: int) -> None:
        self.members = [group.members[i] for i in (source, target) if i >= 0]
        self.label = "messages from %s to rank %d%s%s" % (
            "rank %d" % self.members[0] if source >= 0 else "anyone", self.members[-1],
            ", tag %d" % tag if tag else "", " in " + group.label if group.id else "")
        self.id = hashing.text(self.label) >> 12  # judges take 53 bits
        self.count = self.in_flight = 0
        r.emit("group", self.id, len(self.members), self.members.index(r.rank), _members_digest(self.members),
               WORD["CDDP_ORDER_SAME"], text=self.label)


def _channel(r: Recorder, group: "RecordedGroup", op: str, args: Tuple[Any, ...], named: Dict[str, Any]) -> Channel:
    """recv_anysource has no peer."""
    numbers = [int(x) for x in args[1:] if isinstance(x, int)]
    tag = int(named.get("tag", numbers[-1] if numbers else 0))
    peer = -1
    if len(numbers) + sum(name in named for name in ("dstRank", "srcRank", "tag")) == 2:
        peer = int(named.get("dstRank", named.get("srcRank", numbers[0] if numbers else -1)))
    if peer >= len(group.members):
        peer = -1  # the call fails
    me = group.rank()
    for ends in ((peer, me), (me, peer)):  # both, so that each knows of what the other one waits for
        if ends + (tag,) not in group.channels and ends[1] >= 0:
            group.channels[ends + (tag,)] = Channel(r, group, ends[0], ends[1], tag)
    return group.channels[((me, peer) if op == "send" and peer >= 0 else (peer, me)) + (tag,)]


def _operands(op: str, args: Tuple[Any, ...], named: Dict[str, Any]) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
    """What enters, and where the result is."""
    if op in ("allreduce", "broadcast", "reduce", "send", "recv"):
        inputs = _flatten(args[0] if args else next(iter(named.values()), None))
        return inputs, inputs
    if op == "barrier":
        return [], []
    first = args[0] if args else named.get("output_tensors", named.get("output"))
    second = args[1] if len(args) > 1 else named.get("input_tensors", named.get("input"))
    return _flatten(second), _flatten(first)


def _note_post(group: "RecordedGroup", op: str, args: Tuple[Any, ...], named: Dict[str, Any]) -> Optional[Operation]:
    r = get()
    if r is None:
        return None
    inputs, results = _operands(op, args, named)
    with r.lock:
        is_message = op in ("send", "recv")
        place: "RecordedGroup | Channel" = _channel(r, group, op, args, named) if is_message else group
        operation = Operation(place, place.count, op)
        place.count += 1
        place.in_flight += 1
        r.outstanding += 1
        r.has_posted = True
        operation.tensors, operation.results = inputs, results
        if is_message and len(place.members) == 2:
            operation.root = int(op == "send")
        else:
            operation.root = _root(op, args, named)
        if op in _REDUCING and claim_bucket is not None:
            claim_bucket(operation)
        operation.is_awaited = operation.is_awaited or (forwards > 0 and op == "broadcast")
        _say_cause(r, operation)
        r.source(4)
        tensor = inputs[0] if inputs else results[0] if results else None
        numel = sum(t.numel() for t in inputs) if inputs else 0
        if op == "scatter":
            numel = results[0].numel() if results else 0
        r.emit("collective_post", place.id, operation.number, OPS[op],
               _reduce_op(args, named) if op in ("allreduce", "reduce", "reduce_scatter") else 0, operation.root,
               DTYPES.get(tensor.dtype, 7) if tensor is not None else 7, numel,
               operation.digest if operation.digest is not None else _digest_all(r, inputs),
               operation.bucket, -1, place.in_flight)
        return operation


note_post = guarded(_note_post)


def _digest_all(r: Recorder, tensors: List[torch.Tensor]) -> int:
    if not r.wants_digests or not tensors:
        return 0
    if len(tensors) == 1:
        return r.digest(tensors[0])
    digests = [r.digest(t) for t in tensors]
    return hashing.signed(hashing.mix_all(len(digests), digests)) if all(digests) else 0


def _say_cause(r: Recorder, operation: Operation) -> None:
    """Posted by a thread of the backend, or in a continuation: as something completed."""
    ident = threading.get_ident()
    before, r.posted[ident] = r.posted.get(ident), operation
    if ident != r.main_thread:
        done = r.completed.get(ident)
    elif r.continuations.get(ident, 0) > 0 and before is not None and before.is_done:
        done = before  # it had completed already, so that its continuation ran at once
    else:
        r.thread_number()
        return
    if done is not None:
        r.emit("cause", r.thread_number(), done.group.id, done.number)


def _note_done(operation: Operation, failure: Optional[BaseException]) -> None:
    r = get()
    if r is None:
        return
    with r.lock:
        group = operation.group
        operation.is_done = True
        group.in_flight -= 1
        r.outstanding -= 1
        r.completed[threading.get_ident()] = operation
        status = OK
        if failure is not None:
            status = TIMEOUT if "imed out" in str(failure) or "imeout" in str(failure) else BACKEND
        digest = _digest_all(r, operation.results) if status == OK else 0
        r.emit("collective_done", group.id, operation.number, status, digest, 0, 0, 0)
        if failure is not None:
            r.emit("error", status, text="%s #%d: %s" % (operation.op, operation.number, failure))
            for keep in r.on_failure:
                keep()
        if operation.on_done is not None:
            operation.on_done(operation, digest if status == OK else -1)
        operation.tensors, operation.results = [], []


note_done = guarded(_note_done)


def _observe(operation: Operation, work: Any) -> Any:
    """The work that its consumer gets: it ends after the record of its end."""
    try:
        future = work.get_future()
    except (RuntimeError, NotImplementedError):
        return _WatchedWork(operation, work)
    keep = [0]

    def record(done: Any) -> Any:
        _works.pop(keep[0], None)
        try:
            value = done.value()
        except BaseException as failure:
            note_done(operation, failure)
            raise
        note_done(operation, None)
        return value

    observed = _create_work_from_future(_real_then(future, record))
    if not observed.is_completed():
        keep[0] = id(observed)
        _works[keep[0]] = operation
    return observed


def _until_done(operation: Optional[Operation], call: Callable[[], Any]) -> Any:
    """A call that ends with its operation."""
    try:
        value = call()
    except BaseException as failure:
        if operation is not None:
            note_done(operation, failure)
        raise
    if operation is not None:
        note_done(operation, None)
    return value


class _WatchedWork:
    """A work without a future (send, receive): its end is seen when it is waited for."""

    def __init__(self, operation: Operation, work: Any) -> None:
        self._operation: Optional[Operation] = operation
        self._work = work

    def wait(self, *args: Any, **named: Any) -> Any:
        operation, self._operation = self._operation, None
        if operation is not None:
            say_wait(operation)
        return _until_done(operation, lambda: self._work.wait(*args, **named))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@guarded
def say_wait(operation: Operation) -> None:
    r = get()
    if r is not None:
        with r.lock:
            if not operation.is_done:
                r.emit("collective_wait", operation.group.id, operation.number)


_real_then = torch._C.Future.then


def _patch_continuations() -> None:
    """What a continuation posts is known as such, also where it runs at once on the thread that trains."""

    def then(self: Any, callback: Callable[[Any], Any]) -> Any:
        if get() is None:
            return _real_then(self, callback)

        def run(future: Any) -> Any:
            r = get()
            if r is None:
                return callback(future)
            ident = threading.get_ident()
            r.continuations[ident] = r.continuations.get(ident, 0) + 1
            try:
                return callback(future)
            finally:
                r.continuations[ident] -= 1

        return _real_then(self, run)

    torch._C.Future.then = then


def _patch_waits() -> None:
    """Who starts to wait is seen where Python does it; a wait of C++ is not."""
    real_wait = Work.wait
    future_class = torch._C.Future
    real_future_wait = future_class.wait

    def wait(self: Any, *args: Any, **named: Any) -> Any:
        operation = _works.get(id(self))
        if operation is not None:
            say_wait(operation)
        return real_wait(self, *args, **named)

    def wait_future(self: Any, *args: Any, **named: Any) -> Any:
        # A future does not say whose it is. In a continuation it is that of the last post there.
        r = get()
        ident = threading.get_ident()
        if r is not None and (ident != r.main_thread or r.continuations.get(ident, 0) > 0):
            operation = r.posted.get(ident)
            if operation is not None:
                say_wait(operation)
        return real_future_wait(self, *args, **named)

    Work.wait = wait
    future_class.wait = wait_future


def _post(op: str, method: Optional[str] = None) -> Callable[..., Any]:
    name = method or op

    def call(self: "RecordedGroup", *args: Any, **named: Any) -> Any:
        # Threads post in the order in which the record has their posts. Ends are recorded without this lock.
        with self.posting:
            operation = note_post(self, op, args, named)
            if operation is not None and operation.is_awaited:
                say_wait(operation)
            work = getattr(self._real, name)(*args, **named)
        if operation is None or work is None or operation.is_hidden:
            return work
        observed = guarded(_observe)(operation, work)
        return work if observed is None else observed

    call.__name__ = name
    return call


class RecordedGroup(dist.ProcessGroup):
    """A group of torch, and a record of what goes through it."""

    def __init__(self, real: Any, number: int, name: str, members: List[int], backend: str) -> None:
        super().__init__(real.rank(), real.size())
        self._real = real
        self._name = "cddp:" + backend  # DDP's logger casts what calls itself gloo or nccl
        self.id = number
        self.label = name
        self.members = members
        self.count = 0
        self.in_flight = 0
        self.backend = backend
        self.posting = threading.RLock()
        self.channels: Dict[Tuple[int, ...], Channel] = {}

    def getBackendName(self) -> str:
        return self._name

    def name(self) -> str:
        return self._name

    def _get_backend_name(self) -> str:
        return self._name

    def rank(self) -> int:
        return int(self._real.rank())

    def size(self) -> int:
        return int(self._real.size())

    allreduce = _post("allreduce")
    allreduce_coalesced = _post("allreduce", "allreduce_coalesced")
    broadcast = _post("broadcast")
    allgather = _post("allgather")
    allgather_coalesced = _post("allgather", "allgather_coalesced")
    _allgather_base = _post("allgather", "_allgather_base")
    reduce_scatter = _post("reduce_scatter")
    _reduce_scatter_base = _post("reduce_scatter", "_reduce_scatter_base")
    reduce = _post("reduce")
    gather = _post("gather")
    scatter = _post("scatter")
    alltoall = _post("alltoall")
    alltoall_base = _post("alltoall", "alltoall_base")
    send = _post("send")
    recv = _post("recv")
    recv_anysource = _post("recv", "recv_anysource")
    barrier = _post("barrier")

    def monitored_barrier(self, *args: Any, **named: Any) -> Any:
        operation = note_post(self, "barrier", (), {})
        return _until_done(operation, lambda: self._real.monitored_barrier(*args, **named))


for _name, _op in (("allgather_into_tensor_coalesced", "allgather"), ("reduce_scatter_tensor_coalesced", "reduce_scatter")):
    if hasattr(dist.ProcessGroup, _name):  # of PyTorch 2
        setattr(RecordedGroup, _name, _post(_op, _name))
parts.forward_the_rest(RecordedGroup)


# ---- putting them in place ----

_groups_made = 0


def _members_digest(members: List[int]) -> int:
    return hashing.signed(hashing.mix_all(len(members), members))


def _label(number: int) -> str:
    return "world" if number == 0 else "group %d" % number if number < 1 << 20 else "local group %x" % number


def _promises_same_bits(backend: str) -> bool:
    own = sys.modules.get("cddp_torch.process_group")
    return backend in ("gloo", "nccl", "mpi", "ucc") or (backend == "cddp" and own is not None and own.results_agree)


def _say_group(r: Recorder, number: int, members: List[int], backend: str) -> None:
    if r.rank not in members:
        return
    r.emit("group", number, len(members), members.index(r.rank), _members_digest(members),
           WORD["CDDP_ORDER_SAME" if _promises_same_bits(backend) else "CDDP_ORDER_UNSPECIFIED"], text=_label(number))


def _maps() -> Any:
    """The dictionaries of torch.distributed by group: of its module in 1.x, of its world in 2.x."""
    c10d = dist.distributed_c10d
    world = getattr(c10d, "_world", None)
    if world is not None and hasattr(world, "pg_map"):
        names = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "pg_coalesce_state")
        return [getattr(world, name) for name in names if hasattr(world, name)], world
    return [c10d._pg_map, c10d._pg_names, c10d._pg_group_ranks], None


def _backend_name(real: Any) -> str:
    entry = _maps()[0][0].get(real)
    return str(entry[0]) if entry else "unknown"


def _wrap(r: Recorder, real: Any, number: int, members: List[int]) -> RecordedGroup:
    group = RecordedGroup(real, number, _label(number), members, _backend_name(real))
    maps, world = _maps()
    for entries in maps:
        if real in entries:
            entries[group] = entries[real]
    if world is not None and hasattr(world, "tags_to_pg"):
        for groups in world.tags_to_pg.values():
            if real in groups:
                groups.append(group)
    return group


def _wrap_default(r: Recorder) -> None:
    c10d = dist.distributed_c10d
    real = c10d._get_default_group()
    if isinstance(real, RecordedGroup):
        return
    r.open(real.rank(), real.size(), c10d._get_default_store())
    if not r.on:
        return
    global _groups_made
    number = _groups_made
    _groups_made += 1
    group = _wrap(r, real, number, list(range(real.size())))
    _say_group(r, number, group.members, group.backend)
    c10d._update_default_pg(group)


wrap_default = guarded(_wrap_default)


_local_groups: Dict[Tuple[int, ...], int] = {}  # by members: how many


def _begin_group(r: Recorder, ranks: Optional[List[int]], backend: Optional[str], is_local: bool) -> Tuple[int, List[int]]:
    """Said before the group is made: where ranks name other members, nobody comes back from that."""
    global _groups_made
    members = sorted(ranks) if ranks is not None else list(range(r.world_size))
    r.source(5)
    if is_local:  # only members call, so no common count has a number for it
        count = _local_groups[tuple(members)] = _local_groups.get(tuple(members), 0) + 1
        number = hashing.text("local group %d of %s" % (count, members)) >> 12
    else:
        number = _groups_made
        _groups_made += 1
        r.mark("new_group", (_members_digest(members) & (1 << 36) - 1) << 16 | min(len(members), 0xffff))
    _say_group(r, number, members, str(backend) if backend else _backend_name(dist.distributed_c10d._get_default_group()))
    return number, members


def _end_group(r: Recorder, real: Any, begun: Tuple[int, List[int]]) -> Any:
    if not isinstance(real, dist.ProcessGroup) or isinstance(real, RecordedGroup):
        return real  # this rank is no member
    return _wrap(r, real, begun[0], begun[1])


def patch(current: Callable[[], Optional[Recorder]]) -> None:
    c10d = dist.distributed_c10d
    real_init, real_new, real_destroy = c10d.init_process_group, c10d.new_group, c10d.destroy_process_group

    def init_process_group(*args: Any, **named: Any) -> Any:
        value = real_init(*args, **named)
        r = current()
        if r is not None:
            wrap_default(r)
        return value

    def new_group(*args: Any, **named: Any) -> Any:
        r = get()
        if r is None:
            return real_new(*args, **named)
        ranks = args[0] if args else named.get("ranks")
        is_local = bool(args[4] if len(args) > 4 else named.get("use_local_synchronization", False))
        begun = guarded(_begin_group)(r, ranks, args[2] if len(args) > 2 else named.get("backend"), is_local)
        value = real_new(*args, **named)
        group = guarded(_end_group)(r, value, begun) if begun is not None else None
        return value if group is None else group

    def destroy_process_group(*args: Any, **named: Any) -> Any:
        r = get()
        group = args[0] if args else named.get("group")
        if r is not None and before_leaving is not None:
            guarded(before_leaving)(r, None if group is dist.group.WORLD else group)
        return real_destroy(*args, **named)

    for module in (c10d, dist):
        module.init_process_group = init_process_group
        module.new_group = new_group
        module.destroy_process_group = destroy_process_group
    guarded(_patch_waits)()
    guarded(_patch_continuations)()


def find(group: Any) -> Optional[RecordedGroup]:
    return group if isinstance(group, RecordedGroup) else None


