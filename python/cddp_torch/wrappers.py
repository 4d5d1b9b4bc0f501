# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: what is wrapped, its buckets, its forwards, hooks and joins."""
from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import threading
import weakref
from array import array
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

from . import gradients, groups, hashing, inputs as kept_inputs, laws
from .events import KIND, WORD
from .recorder import DTYPES, NOWHERE, Recorder, bits, get, guarded
from .writer import DIGESTS, PRESENT_ONLY, PROJECTIONS, TensorRow, Tensors


class Rows:
    """Tensors of one phase, as the C library reads them."""

    def __init__(self, r: Recorder, kind: str, params: List[Tuple[int, torch.Tensor]],
                 fields: Callable[[int, torch.Tensor], Dict[int, int]]) -> None:
        count = len(params)
        self.kind = kind
        self.rows = (TensorRow * max(count, 1))()
        self.digests = array("Q", bytes(8 * count))
        for position, (variable, tensor) in enumerate(params):
            row = self.rows[position]
            row.numel, row.dtype = tensor.numel(), DTYPES.get(tensor.dtype, 7)
            for field, value in fields(variable, tensor).items():
                row.field[field] = value
        self.call = Tensors(ctypes.sizeof(Tensors), 0, 0, 0, KIND[kind], 0, count, ctypes.addressof(self.rows), 0,
                            self.digests.buffer_info()[0] if count else 0, 0)

    def emit(self, r: Recorder, tensors: List[Optional[torch.Tensor]], content: int, has_plain: bool,
             expected: "Optional[array[int]]" = None) -> None:
        keep: List[torch.Tensor] = []
        if has_plain:
            found = _addresses(tensors, keep)
        else:
            found = [_address(t, keep) for t in tensors]
            content &= ~(DIGESTS | PROJECTIONS)
        addresses = array("Q", found)
        call = self.call
        call.content, call.step, call.micro_step, call.epoch = content, r.now.step, r.now.micro, r.now.epoch
        call.bytes = addresses.buffer_info()[0]
        call.expected = expected.buffer_info()[0] if expected is not None and len(expected) else 0
        if call.count and r.writer is not None and r.writer.takes_digests:
            r.writer.emit_tensors(call)
        elif call.count:
            self._emit_presence(r, list(zip(self.rows, tensors)), bool(content & PRESENT_ONLY))

    def emit_one(self, r: Recorder, position: int, tensor: Optional[torch.Tensor], content: int, has_plain: bool) -> None:
        """One of them, in its own row."""
        if r.writer is not None and not r.writer.takes_digests:
            self._emit_presence(r, [(self.rows[position], tensor)], False)
            return
        count, begin = self.call.count, self.call.tensors
        self.call.count, self.call.tensors = 1, ctypes.addressof(self.rows[position])
        try:
            self.emit(r, [tensor], content, has_plain)
        finally:
            self.call.count, self.call.tensors = count, begin

    def _emit_presence(self, r: Recorder, pairs: List[Tuple[Any, Optional[torch.Tensor]]], only_present: bool) -> None:
        """Without the C library: which tensors are there."""
        place = {"grad_local": 1, "grad_final": 1, "optimizer_touch": 2, "value": 3}[self.kind]
        for row, tensor in pairs:
            if tensor is None and only_present:
                continue
            if self.kind == "grad_local" and tensor is not None:
                row.field[3] = row.field[3] + 1 if row.epoch == r.now.epoch else 1
                row.epoch = r.now.epoch
            fields = list(row.field)
            fields[place] = (1 if self.kind == "optimizer_touch" else 2) if tensor is not None else 0
            if self.kind == "grad_final":
                fields[7] = -1
            if self.kind == "value":
                fields[6] = -1
            r.emit(self.kind, *fields)


_is_contiguous, _data_ptr = torch.Tensor.is_contiguous, torch.Tensor.data_ptr


def _addresses(tensors: List[Optional[torch.Tensor]], keep: List[torch.Tensor]) -> List[int]:
    """Of tensors of this host. Mostly all of them are there and lie as they are: then no line of Python runs for each."""
    try:
        if all(map(_is_contiguous, tensors)):
            found = list(map(_data_ptr, tensors))
            return found if all(found) else [at or NOWHERE for at in found]
    except TypeError:  # one of them is None
        pass
    return [(t.data_ptr() or NOWHERE) if t is not None and t.is_contiguous() else _address(t, keep) for t in tensors]


def _address(tensor: Optional[torch.Tensor], keep: List[torch.Tensor]) -> int:
    """Where its elements lie one after another; 1 where nobody may look at them."""
    if tensor is None:
        return 0
    if tensor.is_sparse or tensor.device.type != "cpu":
        return 1
    plain = tensor.detach().contiguous()
    keep.append(plain)
    return plain.data_ptr() or NOWHERE


class Bucket:
    def __init__(self, index: int, numel: int, dtype: int, params: List[int], content: int) -> None:
        self.index, self.numel, self.dtype, self.params, self.content = index, numel, dtype, params, content
        self.local: Optional[Rows] = None


class Wrapper:
    """One DistributedDataParallel module."""

    def __init__(self, r: Recorder, ddp: DistributedDataParallel, is_late: bool) -> None:
        self.ddp = weakref.ref(ddp)
        self.number = next(_numbers)
        self.hidden: List[groups.Operation] = []
        self.is_late = is_late
        self.group = groups.find(ddp.process_group)
        self.generation = 0
        self.buckets: List[Bucket] = []
        self.hook_name: Optional[str] = None
        self.promise = laws.Promise("MEAN")
        self.errors: Dict[int, int] = {}  # by bucket: what a hook with error feedback kept
        self.entered: Dict[int, torch.Tensor] = {}  # by bucket: what a built-in hook that casts was given
        self.is_builtin_hook = False
        self.in_hook: Optional[int] = None
        self.hook_thread = 0
        self.last_of_hook: Optional[groups.Operation] = None
        self.is_armed = False
        self.launched = 0
        self.done = 0
        self.posted_elements = 0  # of a backward with sparse gradients, whose buckets nobody knows
        self.reduced_elements = 0
        self.failed = False
        self.has_unreduced = False
        self.unreduced: Dict[int, int] = {}  # what the last backward left so: content by variable
        self.forwarded = False  # a forward with gradients since the last backward
        self.is_evaluating = False  # nobody synchronises its buffers, and the next forward says them
        self.is_local = False  # backwards do not synchronise, as far as was said
        self.has_left = False  # its group
        self.left: List[int] = []  # contents of buffers, as the last training forward or broadcast left them
        self.evaluations = 0  # after which they were others
        self.is_loose = False  # a training forward changed them, and no backward came since
        self.is_shadowing = False
        self.shadows = 0
        self.has_join = False
        self.used_local: List[int] = []
        self.used_global: List[int] = []
        self.unused: List[int] = []  # by all ranks, as the rows of final gradients say
        self.snapshot: Optional[List[Any]] = None
        ignored = set(getattr(ddp, "parameters_to_ignore", None) or ())
        named = [(name, p) for name, p in ddp.module.named_parameters()]
        self.params: List[torch.Tensor] = [p for name, p in named if p.requires_grad and name not in ignored]
        self.names = [name for name, p in named if p.requires_grad and name not in ignored]
        self.ordinals = [i for i, (name, p) in enumerate(named) if p.requires_grad and name not in ignored]
        self.trained = len(self.params)  # that are not frozen, as far as was said
        self.index = {id(p): i for i, p in enumerate(self.params)}
        self.buffers = [(name, b) for name, b in ddp.module.named_buffers()]
        self.is_host = all(p.device.type == "cpu" for p in self.params)
        self.has_views = bool(getattr(ddp, "gradient_as_bucket_view", False))
        self.finds_unused = bool(getattr(ddp, "find_unused_parameters", False))
        self.is_static = bool(getattr(ddp, "static_graph", False))
        self.has_hooks = False
        self.hooked = 0  # parameters with tensor hooks, as far as was said
        self.fired: Set[int] = set()
        self.nodes: List[Any] = []
        everything = list(enumerate(self.params))
        self.local = Rows(r, "grad_local", everything, lambda i, p: {0: i, 4: DTYPES.get(p.dtype, 7)})
        self.value = Rows(r, "value", everything,
                          lambda i, p: {0: WORD["CDDP_WHAT_PARAMETER"], 1: WORD["CDDP_MOMENT_AFTER_STEP"],
                                        2: self.ordinals[i], 5: i})
        self.final = Rows(r, "grad_final", everything, lambda i, p: {0: i, 4: -1, 8: DTYPES.get(p.dtype, 7)})
        self.named = named
        self.rivals: List[Wrapper] = []  # that wrapped parameters of this one as well
        self.reductions = 0  # backwards that were reduced, and those of other ranks that it shadowed
        self.ignored = ignored
        self.frozen = [(i, p) for i, (name, p) in enumerate(named) if not p.requires_grad and name not in ignored
                       and p.device.type == "cpu" and p.dtype in DTYPES]
        self.frozen_parts: List[Tuple[Rows, List[torch.Tensor]]] = []
        self.frozen_step = -1  # in which they were said
        self.unowned: Optional[Rows] = None
        self.unowned_key: Tuple[int, ...] = ()  # the optimizers of then, and how many parameters each had
        self.unowned_params: List[torch.Tensor] = []
        self.unowned_step = -1

    # ---- construction ----

    def say(self, r: Recorder) -> None:
        r.use(self.number)
        ddp = self.ddp()
        assert ddp is not None
        if self.is_late:
            r.mark("capture late: the module was wrapped before the recording began")
        r.option("ddp.find_unused_parameters", int(self.finds_unused))
        r.option("ddp.broadcast_buffers", int(bool(ddp.broadcast_buffers)))
        if r.writer is not None and r.writer.takes_digests:  # else nobody shows where a gradient lies
            r.option("ddp.gradient_as_bucket_view", int(self.has_views))
        r.option("ddp.static_graph", int(self.is_static))
        if gradients.is_wanted:  # a scenario of these gradients makes the buckets itself
            _say_caps(r, ddp)
        sparse = {id(m.weight) for m in ddp.module.modules()
                  if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and m.sparse}
        for ordinal, (name, p) in enumerate(self.named):
            variable = self.index.get(id(p), -1)
            r.emit("param", variable, ordinal, p.numel(), DTYPES.get(p.dtype, 7), int(p.requires_grad),
                   int(name in self.ignored), int(id(p) in sparse), _shape(p), hashing.signed(hashing.text(name)),
                   text=name)
        for position, (name, b) in enumerate(self.buffers):
            r.emit("buffer", position, b.numel(), DTYPES.get(b.dtype, 7), int(name in self.ignored), text=name)
        self.has_sparse = bool(sparse)
        r.emit("wrap", len(self.params), len(self.buffers), self.group.id if self.group is not None else 0, 1)
        if r.wants_digests:
            for ordinal, (name, p) in enumerate(self.named):
                r.emit("value", WORD["CDDP_WHAT_PARAMETER"], WORD["CDDP_MOMENT_AFTER_INIT"], ordinal, 2, r.digest(p),
                       self.index.get(id(p), -1), -1)
            self.say_buffers(r, WORD["CDDP_MOMENT_AFTER_INIT"])
        self.read_layout(r)

    def say_buffers(self, r: Recorder, moment: int) -> None:
        if not r.wants_digests:
            return
        for position, (name, b) in enumerate(self.buffers):
            r.emit("value", WORD["CDDP_WHAT_BUFFER"], moment, position, 2, r.digest(b), -1, -1)

    def say_exit(self, r: Recorder) -> None:
        """What the ranks leave with, once: what they do with it afterwards is their own affair."""
        if self.has_left or r.has_end or not r.wants_digests:
            return
        self.has_left = True
        r.use(self.number)
        self.follow_buffers(r)
        self.drop_forward(r)
        rows = Rows(r, "value", list(enumerate(self.params)),
                    lambda i, p: {0: WORD["CDDP_WHAT_PARAMETER"], 1: WORD["CDDP_MOMENT_EXIT"], 2: self.ordinals[i], 5: i})
        rows.emit(r, list(self.params), DIGESTS, self.is_host)
        self._rows_of_frozen(r, self.frozen, WORD["CDDP_MOMENT_EXIT"]).emit(r, [p for _, p in self.frozen], DIGESTS, True)

    def say_frozen(self, r: Recorder) -> None:
        """After a step, once. Of very many bytes a part: the same one on all ranks."""
        if self.frozen_step == r.now.step or not self.frozen:
            return
        self.frozen_step = r.now.step
        if not self.frozen_parts:
            self.frozen_parts = [(self._rows_of_frozen(r, part, WORD["CDDP_MOMENT_AFTER_STEP"]), [p for _, p in part])
                                 for part in _parts_of(self.frozen)]
        rows, params = self.frozen_parts[r.now.step % len(self.frozen_parts)]
        rows.emit(r, list(params), DIGESTS, True)

    def say_unowned(self, r: Recorder, key: Tuple[int, ...], owned: Callable[[], Set[int]]) -> None:
        """After a step, once: trained parameters that no optimizer of this rank has. Another rank may step them."""
        if key != self.unowned_key:  # an optimizer came, or got more parameters
            known = owned()
            pairs = [(i, p) for i, p in enumerate(self.params) if id(p) not in known]
            self.unowned_key, self.unowned_params = key, [p for _, p in pairs]
            self.unowned = Rows(r, "value", pairs, lambda i, p: {
                0: WORD["CDDP_WHAT_PARAMETER"], 1: WORD["CDDP_MOMENT_AFTER_STEP"], 2: self.ordinals[i], 5: i})
        if self.unowned_params and self.unowned is not None and self.unowned_step != r.now.step:
            self.unowned_step = r.now.step
            self.unowned.emit(r, list(self.unowned_params), DIGESTS, self.is_host)

    def _rows_of_frozen(self, r: Recorder, pairs: List[Tuple[int, torch.Tensor]], moment: int) -> Rows:
        """Known by their ordinals alone."""
        return Rows(r, "value", pairs, lambda i, p: {0: WORD["CDDP_WHAT_PARAMETER"], 1: moment, 2: i, 5: -1})

    def keep_buffers(self, r: Recorder) -> bool:
        """Had they changed?"""
        before, self.left = self.left, [r.digest(b) or _version(b) for _, b in self.buffers]
        return bool(before) and before != self.left

    def follow_buffers(self, r: Recorder) -> None:
        """Something else than a training forward or a broadcast changed buffers: mostly an evaluation in train()."""
        if self.keep_buffers(r):
            self._say_evaluation(r)

    def drop_forward(self, r: Recorder) -> None:
        """No backward comes any more for the last forward."""
        if self.is_loose:
            self.is_loose = False
            self._say_evaluation(r)

    def _say_evaluation(self, r: Recorder) -> None:
        self.evaluations += 1
        r.mark("buffers outside training", self.evaluations)

    def read_layout(self, r: Recorder) -> None:
        """The buckets in force, as the reducer has them."""
        ddp = self.ddp()
        if ddp is None or self.has_sparse or self.is_late:
            return
        old = {variable: row for bucket in self.buckets for variable, row in _rows_of(bucket)}
        self.buckets = []
        lines: List[Tuple[int, ...]] = []
        for index, members in enumerate(self._members(ddp)):
            dtype = DTYPES.get(self.params[members[0]].dtype, 7)
            offset, content = 0, 0
            for slot, variable in enumerate(members):
                numel = self.params[variable].numel()
                content = hashing.mix_all(content, (variable, offset, numel))
                lines.append((self.generation, index, slot, variable, offset, numel, dtype, 0))
                offset += numel
            made = Bucket(index, offset, dtype, members, hashing.signed(content))
            made.local = Rows(r, "grad_local", [(v, self.params[v]) for v in members],
                              lambda i, p: {0: i, 4: DTYPES.get(p.dtype, 7)})
            for variable, row in _rows_of(made):
                before = old.get(variable)
                if before is not None:
                    row.epoch, row.field[3] = before.epoch, before.field[3]
            self.buckets.append(made)
        if self.generation > 0:
            adopted = hashing.signed(hashing.mix_all(len(lines), (x for line in lines for x in line[1:])))
            r.emit("rebuild", self.generation, len(self.buckets), 0, adopted, 0)
        for line in lines:
            r.emit("bucket_layout", *line)
        where = {variable: b.index for b in self.buckets for variable in b.params}
        self.unused = []
        self.final = Rows(r, "grad_final", list(enumerate(self.params)),
                          lambda i, p: {0: i, 4: where.get(i, -1), 5: self.generation,
                                        8: DTYPES.get(p.dtype, 7)})

    def _members(self, ddp: Any) -> List[List[int]]:
        return [[self.index[id(p)] for p in bucket.parameters()] for bucket in ddp.reducer._get_zeros_like_grad_buckets()]

    def follow_rebuild(self, r: Recorder) -> None:
        ddp = self.ddp()
        if ddp is None or self.generation > 0 or not self.buckets or not getattr(ddp, "_has_rebuilt_buckets", False):
            return
        self.generation = 1
        self.read_layout(r)

    # ---- gradients ----

    def keep_unreduced(self, r: Recorder) -> None:
        """Another backward may add to them."""
        if self.has_unreduced and r.wants_digests:
            left = ((v, r.digest(p.grad)) for v, p in enumerate(self.params) if p.grad is not None)
            self.unreduced = {v: digest for v, digest in left if digest != 0}

    def look_at_unreduced(self, r: Recorder) -> None:
        """Does the next backward add to what the one before left? Without a zero_grad a program may drop all of them."""
        left, self.unreduced = self.unreduced, {}
        if left and all(self.params[v].grad is None for v in left):
            self.drop_gradients(r, True)
            return
        for v, digest in left.items():
            if r.digest(self.params[v].grad) != digest:
                r.use(self.number)
                r.mark("gradient changed between backwards", v)

    def drop_gradients(self, r: Recorder, to_none: bool) -> None:
        self.has_unreduced = False
        self.unreduced.clear()
        self.fired.clear()
        r.use(self.number)
        self.drop_forward(r)
        r.emit("zero_grad", -1, int(to_none))

    def content(self, r: Recorder, projects: bool) -> int:
        if not r.wants_digests:
            return 0
        return DIGESTS | (PROJECTIONS if projects else 0)

    def emit_local(self, r: Recorder, rows: Rows, variables: List[int], only_present: bool) -> None:
        grads = [self.params[v].grad for v in variables]
        content = self.content(r, True) | (PRESENT_ONLY if only_present else 0)
        rows.emit(r, grads, content, self.is_host and not self.has_sparse)

    def watch_parameters(self) -> None:
        """What a backward reaches, where it need not reach everything. In front of the reducer's own hook."""
        self.has_hooks = True
        for variable, p in enumerate(self.params):
            node = p.expand_as(p).grad_fn.next_functions[0][0]
            self.nodes.append(node)
            node.register_hook(functools.partial(_gradient_came, weakref.ref(self), variable))

    def launch(self, r: Recorder, index: int, buffer: torch.Tensor, is_shadow: bool, sequence: int) -> int:
        r.use(self.number)
        bucket = self.buckets[index]
        self.reductions += index == 0
        if not is_shadow:
            self.launched += 1
            if not self.has_hooks and not self.is_late and bucket.local is not None:
                self.emit_local(r, bucket.local, bucket.params, False)
                self.has_unreduced = True
        if self.has_views and not is_shadow:
            base, size = buffer.data_ptr(), buffer.numel() * buffer.element_size()
            for variable in bucket.params:
                row = self.final.rows[variable]
                row.address, row.address_bytes = base, size
        if keep_payload is not None:
            keep_payload("bucket%d-in" % index, buffer)
        is_last = int(index == len(self.buckets) - 1)
        digest = r.digest(buffer)
        r.emit("bucket_launch", index, self.generation, bucket.numel, bucket.dtype, bucket.content,
               digest, is_last, int(is_shadow), self.group.id if self.group else 0, sequence, 0)
        return digest

    def close_backward(self, r: Recorder) -> bool:
        """After a backward: were all buckets reduced and written back?"""
        has_all = self.launched == len(self.buckets) and self.done == self.launched and self.launched > 0
        if self.has_sparse:
            is_counted = self.reduced_elements == self.posted_elements == sum(p.numel() for p in self.params)
            has_all = is_counted or self.hook_name is not None
        if not has_all or self.failed:
            return False
        self.is_armed = self.has_unreduced = False
        self.unreduced.clear()
        self.fired.clear()
        unused = [i for i, used in enumerate(self.used_global) if used == 0 and self.used_local[i] == 0]
        if unused != self.unused:
            for i in self.unused:
                self.final.rows[i].field[2] = 0
            for i in unused:
                self.final.rows[i].field[2] = 1
            self.unused = unused
        self.used_local, self.used_global = [], []
        self.state_casts(r)
        if r.writer is not None:
            self.final.emit(r, list(map(_grad_of, self.params)), self.content(r, True),
                            self.is_host and not self.has_sparse)
        return True


    def flat(self, index: int) -> torch.Tensor:
        """The gradients of a bucket, one after another."""
        members = [self.params[v] for v in self.buckets[index].params]
        return torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).detach().reshape(-1)
                          for p in members])

    def keep_entered(self, r: Recorder, index: int) -> None:
        if self.promise.rounds_in is not None and r.wants_digests and not self.has_join and not self.has_sparse:
            self.entered[index] = self.flat(index)

    def state_casts(self, r: Recorder) -> None:
        """A built-in hook has no result that anybody could look at before it is written back."""
        for index, entered in sorted(self.entered.items()):
            laws.state_cast(r, index, entered, self.flat(index), self.promise.rounds_in or entered.dtype,
                            len(self.group.members) if self.group is not None else 1)
        self.entered.clear()


_PART_BYTES = 256 << 20


def _parts_of(pairs: List[Tuple[int, torch.Tensor]]) -> List[List[Tuple[int, torch.Tensor]]]:
    parts: List[List[Tuple[int, torch.Tensor]]] = [[]]
    size = 0
    for i, p in pairs:
        more = p.numel() * p.element_size()
        if size + more > _PART_BYTES and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append((i, p))
        size += more
    return parts


def _version(b: torch.Tensor) -> int:
    return 0 if b.is_inference() else b._version


def _rows_of(bucket: Bucket) -> Iterator[Tuple[int, Any]]:
    if bucket.local is not None:
        for position, variable in enumerate(bucket.params):
            yield variable, bucket.local.rows[position]


def _say_caps(r: Recorder, ddp: Any) -> None:
    """PyTorch 1 has a small first bucket in any case, PyTorch 2 where no cap was asked for."""
    cap, first = int(ddp.bucket_bytes_cap), int(torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)
    is_default = bool(getattr(ddp, "bucket_bytes_cap_default", cap == 25 << 20))
    is_new = hasattr(ddp, "bucket_bytes_cap_default")
    r.mark("bucket cap in bytes", 0 if is_default else cap)
    r.mark("first bucket in bytes", cap if is_new and not is_default else first)


def _shape(p: torch.Tensor) -> int:
    return hashing.signed(hashing.mix_all(1 + p.dim(), p.shape))


def _gradient_came(wrapper: "weakref.ref[Wrapper]", variable: int, inputs: Any, outputs: Any) -> None:
    """The engine accumulated a gradient; the reducer has not seen it yet."""
    w, r = wrapper(), get()
    if w is None or r is None or (outputs and outputs[0] is None) or not _is_about(w, w.params[variable]):
        return
    guarded(_take_gradient)(r, w, variable)


def _take_gradient(r: Recorder, w: Wrapper, variable: int) -> None:
    r.use(w.number)
    _begin_of_its_own(r, w)
    w.fired.add(variable)
    w.has_unreduced = True
    row, p = w.local.rows[variable], w.params[variable]
    if row.epoch != r.now.epoch:
        row.epoch, row.field[3] = r.now.epoch, 0
    row.field[3] += 1
    grad = p.grad
    presence = 0 if grad is None else 3 if grad.is_sparse else 2
    total = r.project(grad) if grad is not None and r.wants_digests else None
    r.emit("grad_local", variable, presence, r.digest(grad), row.field[3], DTYPES.get(p.dtype, 7), 0)
    if total is not None and grad is not None:
        r.emit("projection", variable, 0, bits(total[0]), bits(total[1]), grad.numel(), DTYPES.get(grad.dtype, 7))


_requires_grad, _hooks_of = operator.attrgetter("requires_grad"), operator.attrgetter("_backward_hooks")
_later_hooks_of = (operator.attrgetter("_post_accumulate_grad_hooks")
                   if hasattr(torch.Tensor, "_post_accumulate_grad_hooks") else None)
_grad_of = operator.attrgetter("grad")

# ---- all of them ----

keep_payload: Optional[Callable[[str, torch.Tensor], None]] = None  # level payload
wrappers: List[Wrapper] = []
_numbers = itertools.count()
_nesting = 0

# A module may be wrapped again, or be a part of two wrapped modules. Then a parameter belongs to the wrapper that was
# made last, or whose forward came last: its steps and gradients are said of that one alone.
_ended: List[Wrapper] = []  # another one has all that they had
_keepers: Dict[int, Wrapper] = {}  # by id of a parameter that several wrappers have
custody = 0  # grows when a parameter goes to another wrapper
restarts = 0  # how often a module was wrapped, or a wrapped one loaded a state: epochs may begin anew


def keeps(w: Wrapper, p: torch.Tensor) -> bool:
    return _keepers.get(id(p), w) is w


def add(w: Wrapper) -> None:
    """A module has been wrapped: who else wrapped its parameters?"""
    global restarts
    restarts += 1
    own = {id(p) for _, p in w.named}
    for old in wrappers + _ended:
        if any(id(p) in own for p in old.params):
            w.rivals.append(old)
            old.rivals.append(w)
    wrappers.append(w)
    if w.rivals:
        _take_over(w)


def _take_over(w: Wrapper) -> None:
    """What follows is about this one."""
    global custody
    custody += 1
    shared = {id(p) for old in w.rivals for _, p in old.named}
    _keepers.update((id(p), w) for _, p in w.named if id(p) in shared)
    if w in _ended:
        _ended.remove(w)
        wrappers.append(w)
    for old in w.rivals:
        has_nothing = not old.forwarded and not any(keeps(old, p) for p in old.params)
        if old in wrappers and (old.ddp() is None or has_nothing):
            wrappers.remove(old)
            _ended.append(old)


def _follow_custody(w: Wrapper) -> None:
    """Before a training forward. A wrapper that is gone trains nothing any more."""
    if w in _ended or any(old in wrappers and (old.ddp() is None or any(_keepers.get(id(p)) is old for p in w.params))
                          for old in w.rivals):
        _take_over(w)


def say_exits(r: Recorder, group: Any) -> None:
    """Of the modules of this group, None: of all groups."""
    for w in wrappers:
        if group is None or w.group is group:
            w.say_exit(r)


def of(ddp: Any) -> Optional[Wrapper]:
    for w in wrappers:
        if w.ddp() is ddp:
            return w
    return next((w for w in _ended if w.ddp() is ddp), None)


def _bound(total: Tuple[float, float], numel: int, dtype: int, members: int) -> float:
    """See Note [Projections of a mean] in verify/import/means.h: here of a sum."""
    unit = 2.0 ** -24 if dtype == 1 else 2.0 ** -53
    tiny = 2.0 ** -149 if dtype == 1 else 2.0 ** -1074
    terms = (members + 2) * unit
    return (terms / (1 - terms) + 8 * numel * 2.0 ** -53) * total[1] + 2 * numel * members * tiny


def _claim(operation: groups.Operation) -> None:
    """Which bucket this all-reduce carries: without a hook they are posted in order of their index."""
    r = get()
    if r is None:
        return
    tensor = operation.tensors[0] if operation.tensors else None
    if operation.op == "allreduce":
        _find_bucket(r, operation, tensor)
    if operation.bucket < 0 and tensor is not None and tensor.is_floating_point() and depth_of_backward() == 0:
        r.mark("own reduction", sum(t.numel() for t in operation.tensors))


def _find_bucket(r: Recorder, operation: groups.Operation, tensor: Optional[torch.Tensor]) -> None:
    for w in wrappers:
        if w.group is not operation.group or tensor is None:
            continue
        if w.in_hook is not None and w.hook_thread == threading.get_ident():
            r.use(w.number)
            operation.bucket = w.in_hook
            w.last_of_hook = operation
            return
        cause = r.completed.get(threading.get_ident())
        if cause is not None and cause.bucket >= 0 and threading.get_ident() != r.main_thread:
            r.use(w.number)
            operation.bucket = cause.bucket  # a continuation goes on with what it continues
            return
        is_hooked = w.hook_name is not None and not w.is_builtin_hook
        if w.has_sparse and w.is_armed and tensor.dtype is not torch.int32:
            _count_elements(w, operation, tensor.numel())
            return
        if not w.is_shadowing and (not w.is_armed or depth_of_backward() == 0):
            continue
        if not is_hooked and w.launched < len(w.buckets) and tensor.numel() == w.buckets[w.launched].numel and (
                w.is_builtin_hook or DTYPES.get(tensor.dtype, 7) == w.buckets[w.launched].dtype):
            _carry(r, w, operation, tensor)
            return
        if (w.finds_unused or w.is_static) and tensor.dtype == torch.int32 and tensor.numel() == len(w.params):
            _carry_used_map(r, w, operation, tensor)
            return


def _count_elements(w: Wrapper, operation: groups.Operation, numel: int) -> None:
    w.posted_elements += numel

    def done(ended: groups.Operation, digest: int) -> None:
        w.reduced_elements += numel if digest != -1 else 0

    operation.on_done = done


def _carry(r: Recorder, w: Wrapper, operation: groups.Operation, tensor: torch.Tensor) -> None:
    index, shadow = w.launched, w.is_shadowing
    digest = w.launch(r, index, tensor, shadow, operation.number)
    if not w.is_builtin_hook:
        operation.digest = digest
    if shadow:
        w.launched += 1
    operation.bucket = index
    operation.is_awaited = index == len(w.buckets) - 1  # the end of the backward waits for all of them
    bucket, generation, members = w.buckets[index], w.generation, len(operation.group.members)
    if w.is_builtin_hook:
        operation.is_hidden = True
        if not shadow:
            w.keep_entered(r, index)
        w.hidden.append(operation)
        r.emit("hook_call", index, generation, int(index == len(w.buckets) - 1), bucket.numel * tensor.element_size(),
               bucket.dtype, text=w.hook_name)
    # At level digests each gradient has its own projection, before and after.
    before = r.project(tensor) if r.level == "buckets" and not w.is_builtin_hook and not w.has_join else None

    def done(ended: groups.Operation, digest: int) -> None:
        w.done += 1
        r.use(w.number)
        if digest == -1 and ended.results:
            w.failed = True
            return
        if shadow:
            return
        if w.is_builtin_hook:
            r.emit("hook_done", index, bucket.numel * tensor.element_size(), bucket.dtype, 0, 0, text=w.hook_name)
            r.emit("bucket_done", index, generation, 0, bucket.dtype, 0)
            return
        if keep_payload is not None and ended.results:
            keep_payload("bucket%d-out" % index, ended.results[0])
        r.emit("bucket_done", index, generation, digest, bucket.dtype, 0)
        after = r.project(ended.results[0]) if before is not None else None
        if before is not None and after is not None:
            laws.state(r, index, (before[0], after[0] / members, _bound(before, bucket.numel, bucket.dtype, members)),
                       "the result is the sum of what the ranks gave")

    operation.on_done = done


def _carry_used_map(r: Recorder, w: Wrapper, operation: groups.Operation, tensor: torch.Tensor) -> None:
    w.used_local = tensor.tolist()
    if w.is_shadowing:
        return
    r.use(w.number)
    for i, used in enumerate(w.used_local):
        if not used and i not in w.fired:  # what it gives to the reduction is nothing
            r.emit("grad_local", i, WORD["CDDP_PRESENCE_ABSENT"], 0, 0, DTYPES.get(w.params[i].dtype, 7), 0)
    for i, used in enumerate(w.used_local):
        r.emit("used_local", i, used)

    def done(ended: groups.Operation, digest: int) -> None:
        r.use(w.number)
        w.used_global = ended.results[0].tolist()
        for i, used in enumerate(w.used_global):
            r.emit("used_global", i, used)

    operation.on_done = done


groups.claim_bucket = _claim
groups.before_leaving = say_exits


def depth_of_backward() -> int:
    return _nesting


def _is_about(w: Wrapper, p: torch.Tensor) -> bool:
    """May a gradient that comes to this parameter be of a forward of this wrapper?"""
    return w.forwarded or keeps(w, p)


def _snapshot(w: Wrapper) -> List[Any]:
    return [(id(p.grad), p.grad._version) if p.grad is not None and _is_about(w, p) else None for p in w.params]


def begin_backward(r: Recorder) -> None:
    global _nesting
    _nesting += 1
    if _nesting > 1:
        return
    if not wrappers:
        r.now.begin_backward()
    r.source(4)
    for w in wrappers:
        if w.forwarded:
            r.steps_of(w.number).begin_backward()
        w.look_at_unreduced(r)
        w.launched = w.done = w.posted_elements = w.reduced_elements = 0
        w.failed = False
        needs = not w.has_hooks and (not w.is_armed or len(wrappers) > 1)
        w.snapshot = _snapshot(w) if needs else None
        if w.forwarded or len(wrappers) == 1:
            ddp = w.ddp()
            if ddp is not None:
                _follow_no_sync(r, ddp, w)
            r.use(w.number)
            r.emit("backward_begin", int(w.is_armed))


def end_backward(r: Recorder) -> None:
    global _nesting
    _nesting = max(_nesting - 1, 0)
    if _nesting > 0:
        return
    gradients.end_backward()
    for w in wrappers:
        finalized = False
        was_begun = w.forwarded or len(wrappers) == 1
        for operation in w.hidden:
            groups.note_done(operation, None)
        w.hidden = []
        r.use(w.number)
        if w.is_armed and w.close_backward(r):
            finalized = True
        elif not w.is_late or not w.is_armed:
            _note_local(r, w)
            w.keep_unreduced(r)
        if was_begun:
            r.emit("backward_end", int(finalized))
        w.forwarded = w.is_loose = False
        w.snapshot = None


def _begin_of_its_own(r: Recorder, w: Wrapper) -> None:
    """A backward of a forward that went past the wrapper reached its parameters."""
    steps = r.steps_of(w.number)
    if not w.forwarded and not steps.has_backward:
        steps.begin_backward()


def _note_local(r: Recorder, w: Wrapper) -> None:
    """Gradients that a backward left unreduced: inside no_sync, or of buckets that were never launched."""
    launched = {v for b in w.buckets[:w.launched] for v in b.params} if w.is_armed else set()
    if w.has_hooks:
        ready = [v for v in sorted(w.fired) if v not in launched]
    elif w.snapshot is not None:
        now = _snapshot(w)
        ready = [v for v in range(len(w.params)) if now[v] is not None and now[v] != w.snapshot[v]]
        ready = [v for v in ready if v not in launched]
    else:
        ready = [v for v, p in enumerate(w.params) if v not in launched and p.grad is not None and bool(p.grad.any())]
    if not ready:
        return
    _begin_of_its_own(r, w)
    w.has_unreduced = True
    for v in ready:
        if not w.has_hooks:
            guarded(_emit_one)(r, w, v)
        if w.is_armed and w.buckets:
            place = next(((b.index, b.params.index(v)) for b in w.buckets if v in b.params), (-1, -1))
            r.emit("mark_ready", v, place[0], place[1], WORD["CDDP_PATH_RECIPROCAL"], 0, 0, 0)


def _emit_one(r: Recorder, w: Wrapper, variable: int) -> None:
    for b in w.buckets:
        if variable in b.params and b.local is not None and not w.has_hooks:
            b.local.emit_one(r, b.params.index(variable), w.params[variable].grad, w.content(r, True),
                             w.is_host and not w.has_sparse)
            return
    _take_gradient(r, w, variable)


# ---- patches ----

def _follow_no_sync(r: Recorder, ddp: Any, w: Wrapper) -> None:
    """The context manager sets a flag of the module; so does many a program itself."""
    is_local = not ddp.require_backward_grad_sync
    if is_local != w.is_local:
        w.is_local = is_local
        r.use(w.number)
        r.emit("no_sync", int(is_local), int(is_local))


def _say_no_sync(ddp: Any) -> None:
    r, w = get(), of(ddp)
    if r is not None and w is not None:
        guarded(_follow_no_sync)(r, ddp, w)


def _say_tensor_hooks(r: Recorder, w: Wrapper) -> None:
    """What they make of a gradient comes before it is seen here."""
    if _later_hooks_of is None:
        count = sum(map(bool, map(_hooks_of, w.params)))
    else:
        count = sum(bool(a or b) for a, b in zip(map(_hooks_of, w.params), map(_later_hooks_of, w.params)))
    if count > w.hooked:
        w.hooked = count
        r.mark("tensor hooks", count)


def _say_frozen(r: Recorder, w: Wrapper) -> None:
    """After construction; on all ranks alike it is the program's affair."""
    trained = sum(map(_requires_grad, w.params))
    if trained != w.trained:
        w.trained = trained
        r.mark("frozen parameters", len(w.params) - trained)


def _begin_forward(r: Recorder, ddp: DistributedDataParallel, w: Wrapper, inputs: Any) -> bool:
    grad = torch.is_grad_enabled()
    sync = grad and bool(ddp.require_backward_grad_sync)
    if r.join_depth > 0:
        w.has_join = True
    r.use(w.number)
    r.now.begin_forward(grad)
    r.source(4)
    _follow_no_sync(r, ddp, w)
    w.follow_buffers(r)
    r.emit("forward_begin", 0, int(sync), int(grad), 0)
    if grad:
        if w.rivals:
            _follow_custody(w)
        w.forwarded = True
        _say_tensor_hooks(r, w)
        _say_frozen(r, w)
        kept_inputs.take(w, inputs)
        for say in before_training_forward:
            say(r, inputs)
    else:
        for forget in before_other_forward:
            forget(r)
    if w.has_join:
        r.emit("join_notify", 1, -1)
    if not grad and not ddp.training and not ddp.broadcast_buffers:
        w.say_buffers(r, WORD["CDDP_MOMENT_FORWARD"])
        _follow_mode(ddp, True)
    return sync


before_training_forward: List[Callable[[Recorder, Any], None]] = []
before_other_forward: List[Callable[[Recorder], None]] = []


_evaluation: Any = None  # the hook of a forward that goes past the wrapper


def _follow_mode(module: Any, training: bool) -> None:
    """Programs evaluate the module inside as well. Its first forward then says what buffers it has."""
    global _evaluation
    r = get()
    for w in wrappers if r is not None and r.wants_digests else []:
        ddp = w.ddp()
        if ddp is not None and (module is ddp or module is ddp.module):
            w.is_evaluating = not training and bool(w.buffers) and not ddp.broadcast_buffers
    is_wanted = any(w.is_evaluating for w in wrappers)
    if is_wanted and _evaluation is None:
        _evaluation = torch.nn.modules.module.register_module_forward_pre_hook(guarded(_say_evaluation))
    elif not is_wanted and _evaluation is not None:
        _evaluation.remove()
        _evaluation = None


def _say_evaluation(module: Any, inputs: Any) -> None:
    r = get()
    for w in wrappers if r is not None and not torch.is_grad_enabled() else []:
        ddp = w.ddp()
        if w.is_evaluating and ddp is not None and module is ddp.module and not module.training:
            assert r is not None
            r.use(w.number)
            r.source(4)
            r.emit("forward_begin", 0, 0, 0, 0)
            w.say_buffers(r, WORD["CDDP_MOMENT_FORWARD"])
            r.emit("forward_end", -1, 0)
            _follow_mode(module, True)


def _end_forward(r: Recorder, w: Wrapper, sync: bool) -> None:
    r.use(w.number)
    w.follow_rebuild(r)
    if torch.is_grad_enabled():
        w.is_loose |= w.keep_buffers(r)
    else:
        w.follow_buffers(r)
    if sync:
        w.is_armed = True
        w.used_local, w.used_global = [], []
    r.emit("forward_end", -1, int(sync))


def _begin_construction(r: Recorder, args: Tuple[Any, ...], named: Dict[str, Any]) -> Optional[List[Any]]:
    """Hooks of ours come in front of the reducer's only when they are there before it."""
    module = args[0] if args else named.get("module")
    if module is None or not r.on:
        return None
    needs = any(bool(named.get(key)) for key in ("find_unused_parameters", "gradient_as_bucket_view", "static_graph"))
    needs = needs or gradients.is_wanted  # in their order of arrival, from which buckets are built anew
    needs = needs or len(args) > 7
    needs = needs or any(bool(getattr(m, "sparse", False)) for m in module.modules())
    if not needs:
        return None
    found: List[Any] = []
    for p in module.parameters():
        if p.requires_grad:
            node = p.expand_as(p).grad_fn.next_functions[0][0]
            slot: List[Any] = []
            node.register_hook(functools.partial(_slot_fired, slot))
            found.append((p, node, slot))
    return found


def _slot_fired(slot: List[Any], inputs: Any, outputs: Any) -> None:
    if slot:
        _gradient_came(slot[0], slot[1], inputs, outputs)


def _end_construction(r: Recorder, ddp: DistributedDataParallel, slots: Optional[List[Any]]) -> None:
    if not r.on or of(ddp) is not None:
        return
    w = Wrapper(r, ddp, False)
    if groups.find(ddp.process_group) is None:
        w.is_late = True
    if slots is not None:
        for p, node, slot in slots:
            variable = w.index.get(id(p))
            if variable is not None:
                slot.extend((weakref.ref(w), variable))
                w.nodes.append(node)
        w.has_hooks = True
    if w.number == 0:
        r.closers.append(lambda: say_exits(r, None))
    add(w)
    r.source(4)
    w.say(r)
    gradients.begin(r, w)
    kept_inputs.begin(r, w)


_OPTIONS = ("matrix_approximation_rank", "start_powerSGD_iter", "min_compression_rate", "use_error_feedback", "warm_start",
            "orthogonalization_epsilon", "batch_tensors_with_same_shape")


def _say_options(r: Recorder, state: Any) -> None:
    for option in _OPTIONS:
        value = getattr(state, option, None)
        if isinstance(value, (bool, int, float)):
            r.emit("hook_option", bits(float(value)), text=option)


def _wrap_hook(r: Recorder, ddp: DistributedDataParallel, state: Any, hook: Callable[..., Any]) -> Callable[..., Any]:
    known = of(ddp)
    if known is None:
        return hook
    w: Wrapper = known
    name = getattr(hook, "__name__", type(hook).__name__)
    w.hook_name = name
    w.promise = laws.of(hook)
    r.use(w.number)
    laws.say(r, name, w.promise)
    if name in ("powerSGD_hook", "batched_powerSGD_hook"):
        _say_options(r, state)

    def recorded(state: Any, bucket: Any) -> Any:
        active = get()
        token = guarded(_begin_hook)(active, w, state, bucket) if active is not None else None
        try:
            future = hook(state, bucket)
        finally:
            w.in_hook = None
        if token is not None and token.is_last and w.last_of_hook is not None:
            groups.say_wait(w.last_of_hook)  # the end of the backward waits for all of them
        if active is None or token is None:
            return future
        observed = guarded(_observe_hook)(active, w, token, future)
        return future if observed is None else observed

    functools.update_wrapper(recorded, hook) if hasattr(hook, "__name__") else None
    recorded.__annotations__ = dict(getattr(hook, "__annotations__", {}))
    return recorded


class _HookCall:
    def __init__(self, index: int, is_shadow: bool, is_last: bool) -> None:
        self.index, self.is_shadow, self.is_last = index, is_shadow, is_last
        self.before: Optional[Tuple[float, float]] = None  # the projection of what entered
        self.entered: Optional[torch.Tensor] = None
        self.power_sgd: Optional[laws.PowerSGD] = None


def _say_local(r: Recorder, w: Wrapper, state: Any) -> None:
    """From an iteration on, post-local SGD reduces within subgroups, and the others have other gradients."""
    start = getattr(state, "start_localSGD_iter", None)
    if start is None or getattr(state, "iter", 0) < start or w.group is None:
        return
    subgroup = groups.find(getattr(state, "subgroup", None))
    members = subgroup.members if subgroup is not None and getattr(state, "post_local_gradient_allreduce", True) else []
    count = len(members)
    is_block = count > 0 and members == list(range(members[0], members[0] + count)) and members[0] % count == 0
    block = count if is_block else 1
    r.emit("agreement", block, block, block, 0)


def _begin_hook(r: Recorder, w: Wrapper, state: Any, bucket: Any) -> Optional[_HookCall]:
    index, buffer = bucket.index(), bucket.buffer()
    if index >= len(w.buckets):
        return None
    if w.hook_name == "post_localSGD_hook":
        _say_local(r, w, state)
    w.launch(r, index, buffer, w.is_shadowing, w.group.count if w.group else 0)
    if w.is_shadowing:
        w.launched += 1
    is_last = getattr(bucket, "is_last", None)
    r.emit("hook_call", index, w.generation, int(is_last()) if is_last is not None else 0,
           buffer.numel() * buffer.element_size(), w.buckets[index].dtype, text=w.hook_name)
    w.in_hook, w.hook_thread = index, threading.get_ident()
    w.last_of_hook = None
    call = _HookCall(index, w.is_shadowing, index == len(w.buckets) - 1)
    # A joined rank states nothing, so no law over all ranks can be stated under join.
    if w.is_shadowing or w.has_join or not r.wants_buckets or buffer.device.type != "cpu":
        w.errors.clear()  # what follows is not looked at
        return call
    if w.promise.is_mean:
        call.before = r.project(buffer)
    elif r.wants_digests and w.promise.rounds_in is not None:
        call.entered = buffer.detach().clone()
    elif r.wants_digests and w.promise.is_power_sgd and laws.PowerSGD.is_judged(state, w.hook_name != "powerSGD_hook"):
        call.power_sgd = laws.PowerSGD(index, state, buffer, _rows(w, bucket), bucket.gradients())
        left = w.errors.pop(index, 0)
        if left != 0 and r.digest(call.power_sgd.old) != left:
            r.mark("hook error changed", index)
        call.power_sgd.old = None
    return call


def _rows(w: Wrapper, bucket: Any) -> int:
    return bucket.buffer().numel() if w.hook_name == "batched_powerSGD_hook" else laws.rows_of(bucket.gradients())


def _observe_hook(r: Recorder, w: Wrapper, call: _HookCall, future: Any) -> Any:
    def record(done: Any) -> Any:
        value = done.value()
        guarded(_end_hook)(w, call, value)
        return value

    return groups._real_then(future, record)


def _end_hook(w: Wrapper, call: _HookCall, value: Any) -> None:
    r = get()
    if r is None:
        return
    with r.lock:
        w.done += 1
        r.use(w.number)
        if call.is_shadow:
            return
        result = value[0] if isinstance(value, (list, tuple)) else value
        bucket = w.buckets[call.index]
        if keep_payload is not None:
            keep_payload("bucket%d-out" % call.index, result)
        r.emit("hook_done", call.index, result.numel() * result.element_size(), DTYPES.get(result.dtype, 7),
               r.digest(result), 0, text=w.hook_name)
        if w.group is not None:
            _state_laws(r, w, call, result, len(w.group.members))
        r.emit("bucket_done", call.index, w.generation, r.digest(result), bucket.dtype, 0)


def _state_laws(r: Recorder, w: Wrapper, call: _HookCall, result: torch.Tensor, members: int) -> None:
    bucket = w.buckets[call.index]
    if call.power_sgd is not None:
        call.power_sgd.end(r, result, members)
        w.errors[call.index] = r.digest(call.power_sgd.hook_state.error_dict.get(call.index))
    if call.entered is not None and result.numel() == call.entered.numel():
        laws.state_cast(r, call.index, call.entered, result, w.promise.rounds_in or result.dtype, members)
    after = r.project(result) if call.before is not None else None
    if call.before is not None and after is not None:  # the hook was given undivided gradients, and gives their mean
        laws.state(r, call.index, (call.before[0] / members, after[0] / members,
                                   _bound(call.before, bucket.numel, bucket.dtype, members) / members),
                   "the result is the mean of what the ranks gave")


def patch(current: Callable[[], Optional[Recorder]]) -> None:
    cls = DistributedDataParallel
    real_init, real_forward, real_no_sync = cls.__init__, cls.forward, cls.no_sync
    real_hook, real_builtin = cls.register_comm_hook, cls._register_builtin_comm_hook
    real_buffers = cls._sync_buffers

    @functools.wraps(real_init)
    def __init__(self: Any, *args: Any, **named: Any) -> None:
        r = current()
        slots = guarded(_begin_construction)(r, args, named) if r is not None else None
        real_init(self, *args, **named)
        if r is not None:
            guarded(_end_construction)(r, self, slots)

    @functools.wraps(real_forward)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        r, w = get(), of(self)
        if r is None or w is None:
            return real_forward(self, *args, **named)
        sync = guarded(_begin_forward)(r, self, w, (args, named))
        groups.forwards += 1
        try:
            output = real_forward(self, *args, **named)
        finally:
            groups.forwards -= 1
        guarded(_end_forward)(r, w, bool(sync))
        return output

    @functools.wraps(real_no_sync)
    @contextmanager
    def no_sync(self: Any) -> Iterator[None]:
        try:
            with real_no_sync(self):
                _say_no_sync(self)
                yield
        finally:
            _say_no_sync(self)

    @functools.wraps(real_hook)
    def register_comm_hook(self: Any, state: Any, hook: Any) -> Any:
        r = get()
        wrapped = guarded(_wrap_hook)(r, self, state, hook) if r is not None else None
        return real_hook(self, state, hook if wrapped is None else wrapped)

    @functools.wraps(real_builtin)
    def _register_builtin_comm_hook(self: Any, kind: Any) -> Any:
        w, r = of(self), get()
        if w is not None and r is not None:
            w.is_builtin_hook, w.hook_name = True, str(kind).rsplit(".", 1)[-1]
            r.use(w.number)
            w.promise = laws.builtin(w.hook_name)
            guarded(laws.say)(r, w.hook_name, w.promise)
        return real_builtin(self, kind)

    @functools.wraps(real_buffers)
    def _sync_buffers(self: Any) -> Any:
        value = real_buffers(self)
        r, w = get(), of(self)
        if r is not None and w is not None and w.buffers:
            guarded(_say_buffer_sync)(r, self, w)
        return value

    cls.__init__, cls.forward, cls.no_sync = __init__, forward, no_sync
    cls.register_comm_hook, cls._register_builtin_comm_hook = register_comm_hook, _register_builtin_comm_hook
    cls._sync_buffers = _sync_buffers
    _patch_mode()
    _patch_load()
    _patch_join(cls)


def _patch_mode() -> None:
    real_train = torch.nn.Module.train

    @functools.wraps(real_train)
    def train(self: Any, mode: bool = True) -> Any:
        value = real_train(self, mode)
        guarded(_follow_mode)(self, mode)
        return value

    torch.nn.Module.train = train


def _patch_load() -> None:
    real_load = torch.nn.Module.load_state_dict

    @functools.wraps(real_load)
    def load_state_dict(self: Any, *args: Any, **named: Any) -> Any:
        global restarts
        for w in wrappers:
            ddp = w.ddp()
            restarts += ddp is not None and (self is ddp or self is ddp.module)
        return real_load(self, *args, **named)

    torch.nn.Module.load_state_dict = load_state_dict


def _say_buffer_sync(r: Recorder, ddp: Any, w: Wrapper) -> None:
    r.use(w.number)
    w.keep_buffers(r)
    hook = getattr(ddp, "buffer_hook", None)
    after = hook is not None and "POST" in str(getattr(hook, "buffer_comm_hook_location", ""))
    authority = 0
    if w.has_join:
        authority = int(getattr(ddp, "_authoritative_rank", -1))
        authority = -1 if authority is None else authority
    r.emit("buffer_sync", authority if not w.has_join else -1,
           WORD["CDDP_LOCATION_AFTER_FORWARD"] if after else WORD["CDDP_LOCATION_BEFORE_FORWARD"])
    if not after:
        w.say_buffers(r, WORD["CDDP_MOMENT_FORWARD"])


def _patch_join(cls: Any) -> None:
    real_match, real_final = cls._match_all_reduce_for_bwd_pass, cls._sync_final_model

    @functools.wraps(real_match)
    def _match_all_reduce_for_bwd_pass(self: Any) -> Any:
        r, w = get(), of(self)
        if r is None or w is None:
            return real_match(self)
        guarded(_begin_shadow)(r, w)
        try:
            return real_match(self)
        finally:
            w.is_shadowing = False

    @functools.wraps(real_final)
    def _sync_final_model(self: Any, is_last_joiner: bool) -> Any:
        value = real_final(self, is_last_joiner)
        r, w = get(), of(self)
        if r is not None and w is not None:
            r.use(w.number)
            guarded(r.emit)("join_end", int(is_last_joiner), int(getattr(self, "_authoritative_rank", -1)), w.shadows)
            w.shadows = 0
        return value

    cls._match_all_reduce_for_bwd_pass, cls._sync_final_model = _match_all_reduce_for_bwd_pass, _sync_final_model
    _patch_join_context()


def _patch_join_context() -> None:
    """DDP.join makes such a context, and so does a program for several joinables at once."""
    from torch.distributed.algorithms.join import Join
    real_init, real_enter, real_exit = Join.__init__, Join.__enter__, Join.__exit__
    divides: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()

    @functools.wraps(real_init)
    def __init__(self: Any, *args: Any, **named: Any) -> None:
        real_init(self, *args, **named)
        divides[self] = bool(named.get("divide_by_initial_world_size", True))

    @functools.wraps(real_enter)
    def __enter__(self: Any) -> Any:
        r = get()
        if r is not None and self._enable:
            r.join_depth += 1
            guarded(_say_join)(r, self, divides.get(self, True))
        return real_enter(self)

    @functools.wraps(real_exit)
    def __exit__(self: Any, *args: Any) -> Any:
        try:
            return real_exit(self, *args)
        finally:
            r = get()
            if r is not None and self._enable:
                r.join_depth -= 1
                guarded(_end_join)(r, self)

    Join.__init__, Join.__enter__, Join.__exit__ = __init__, __enter__, __exit__


def _say_join(r: Recorder, context: Any, divides: bool) -> None:
    for joinable in context._joinables:
        w = of(joinable)
        if w is not None:
            r.use(w.number)
            r.option("join.enable", 1)
            r.option("join.divide_by_initial_world_size", int(divides))


def _end_join(r: Recorder, context: Any) -> None:
    """A rank that joined took fewer steps than the others. All of them have had as many reductions."""
    for w in map(of, context._joinables):
        if w is not None:
            r.steps_of(w.number).meet_again(w.reductions)


def _begin_shadow(r: Recorder, w: Wrapper) -> None:
    r.use(w.number)
    w.has_join = True
    w.shadows += 1
    w.follow_rebuild(r)
    w.launched = w.done = 0
    w.is_shadowing = True
    r.emit("join_notify", 0, -1)


