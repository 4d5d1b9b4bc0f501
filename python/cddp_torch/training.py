# SPDX-License-Identifier: Apache-2.0
"""What a training loop does around DDP: backward, optimizers, clipping, scalers, samplers."""
from __future__ import annotations

import functools
import itertools
import math
import weakref
from array import array
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Set, Tuple

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from . import hashing, wrappers
from .events import WORD
from .recorder import Recorder, bits, get, guarded
from .writer import DIGESTS, REWRITTEN

# ---- backward ----


def _patch_backward() -> None:
    real = torch.autograd.backward

    @functools.wraps(real)
    def backward(*args: Any, **named: Any) -> Any:
        r = get()
        if r is None:
            return real(*args, **named)
        guarded(wrappers.begin_backward)(r)
        try:
            return real(*args, **named)
        finally:
            guarded(wrappers.end_backward)(r)

    torch.autograd.backward = backward


# ---- optimizers ----

class _Optimizer:
    """What is known of one optimizer: the numbers of its parameters."""

    def __init__(self, r: Recorder, number: int, optimizer: Any) -> None:
        self.number = number
        self.count = 0
        self.custody = 0
        self.parts: List[_Part] = []
        self.outside: List[Any] = []  # of no wrapper
        self.clip = 1.0
        self.norm = math.nan
        self.learn(r, optimizer)

    def learn(self, r: Recorder, optimizer: Any) -> None:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if len(params) == self.count and self.custody == wrappers.custody and self.parts:
            return
        self.count, self.custody = len(params), wrappers.custody
        owned = {id(p) for p in params}
        self.parts = [_Part(r, self.number, w, owned) for w in wrappers.wrappers]
        self.parts = [part for part in self.parts if part.params]
        wrapped = {id(p) for part in self.parts for p in part.params}
        self.outside = [p for p in params if id(p) not in wrapped]


class _Part:
    """The parameters of an optimizer that belong to one wrapper."""

    def __init__(self, r: Recorder, number: int, w: wrappers.Wrapper, owned: Set[int]) -> None:
        self.wrapper = w
        self.variables = [i for i, p in enumerate(w.params) if id(p) in owned and wrappers.keeps(w, p)]
        self.params = [w.params[i] for i in self.variables]
        pairs = list(zip(self.variables, self.params))
        self.touch = wrappers.Rows(r, "optimizer_touch", pairs,
                                   lambda i, p: {0: number, 1: i, 5: w.ordinals[i]})
        self.value = wrappers.Rows(r, "value", pairs,
                                   lambda i, p: {0: WORD["CDDP_WHAT_PARAMETER"], 1: WORD["CDDP_MOMENT_AFTER_STEP"],
                                                 2: w.ordinals[i], 5: i})
        self.is_whole = self.variables == list(range(len(w.params)))


_optimizers: "weakref.WeakKeyDictionary[Any, _Optimizer]" = weakref.WeakKeyDictionary()
_numbers = itertools.count()  # of optimizers: one that is gone keeps its own
_wrapped_classes: Set[Any] = set()
_step_depth = 0
# What the program did to gradients since the last backward: norm, factor.
_clips: List[Tuple[float, float]] = []
_is_rewritten = False


def _known(r: Recorder, optimizer: Any) -> _Optimizer:
    known = _optimizers.get(optimizer)
    if known is None:
        known = _optimizers[optimizer] = _Optimizer(r, next(_numbers), optimizer)
    known.learn(r, optimizer)
    return known


def _say_step(r: Recorder, optimizer: Any) -> None:
    global _is_rewritten
    known = _known(r, optimizer)
    if wrappers.wrappers and torch.distributed.get_world_size() > 1:
        outside = sum(p.grad is not None for p in known.outside)
        if outside > 0:
            r.use(wrappers.wrappers[0].number)
            r.emit("mark", outside, text="outside_parameters")
    if not known.parts:
        return
    lr = optimizer.param_groups[0].get("lr", 0.0) if optimizer.param_groups else 0.0
    norm, factor = _clips[-1] if _clips else (math.nan, 1.0)
    r.source(4)
    for part in known.parts:
        w = part.wrapper
        r.use(w.number)
        r.emit("optimizer_step", known.number, 0, bits(float(lr)), bits(1.0), bits(factor), bits(norm), 1,
               text=type(optimizer).__name__.lower())
        content = DIGESTS if r.wants_digests else 0
        expected: "Optional[array[int]]" = None
        if content and not w.has_unreduced and len(w.final.digests) == len(w.params):
            finals = w.final.digests
            expected = finals if part.is_whole else array("Q", [finals[i] for i in part.variables])
        part.touch.emit(r, [p.grad for p in part.params], content | (REWRITTEN if _is_rewritten else 0),
                        w.is_host and not w.has_sparse, expected)
    _clips.clear()
    _is_rewritten = False


def _owned() -> Set[int]:
    """Parameters that an optimizer has which stepped already."""
    return {id(p) for known in _optimizers.values() for part in known.parts for p in part.params}


def _say_values(r: Recorder, optimizer: Any) -> None:
    known = _optimizers.get(optimizer)
    if r.wants_digests:
        for part in known.parts if known is not None else []:
            r.use(part.wrapper.number)
            part.value.emit(r, list(part.params), DIGESTS, part.wrapper.is_host)
            part.wrapper.say_frozen(r)
            part.wrapper.say_unowned(r, tuple(n for k in _optimizers.values() for n in (k.number, k.count)), _owned)
    for part in known.parts if known is not None else []:
        r.steps_of(part.wrapper.number).end()
    if not wrappers.wrappers:
        r.now.end()
    _remember_payload(r)


def _remember_payload(r: Recorder) -> None:
    for keep in after_step:
        keep(r)


after_step: List[Callable[[Recorder], None]] = []


def wrap_class(cls: Any) -> None:
    """`step` of this class of optimizers, once; schedulers and programs may wrap it again."""
    if cls in _wrapped_classes or not hasattr(cls, "step"):
        return
    _wrapped_classes.add(cls)
    real = cls.step

    @functools.wraps(real)
    def step(self: Any, *args: Any, **named: Any) -> Any:
        global _step_depth
        r = get()
        if r is None or _step_depth > 0:
            return real(self, *args, **named)
        has_closure = bool(args and args[0] is not None) or named.get("closure") is not None
        _step_depth += 1
        try:
            if not has_closure:
                guarded(_say_step)(r, self)
            value = real(self, *args, **named)
            if has_closure:
                guarded(_say_step)(r, self)
        finally:
            _step_depth -= 1
        guarded(_say_values)(r, self)
        return value

    cls.step = step


def _patch_optimizers() -> None:
    cls = torch.optim.Optimizer
    real_init, real_zero = cls.__init__, cls.zero_grad
    zero_default = _default_of(real_zero, "set_to_none", False)
    module_zero = torch.nn.Module.zero_grad
    module_default = _default_of(module_zero, "set_to_none", False)

    @functools.wraps(real_init)
    def __init__(self: Any, *args: Any, **named: Any) -> None:
        guarded(wrap_class)(type(self))
        real_init(self, *args, **named)

    @functools.wraps(real_zero)
    def zero_grad(self: Any, *args: Any, **named: Any) -> Any:
        value = real_zero(self, *args, **named)
        r = get()
        if r is not None:
            guarded(_say_zero)(r, bool(args[0] if args else named.get("set_to_none", zero_default)), self)
        return value

    @functools.wraps(module_zero)
    def zero_grad_of_module(self: Any, *args: Any, **named: Any) -> Any:
        value = module_zero(self, *args, **named)
        r = get()
        if r is not None and any(self in (w.ddp(), getattr(w.ddp(), "module", None)) for w in wrappers.wrappers):
            guarded(_say_zero)(r, bool(args[0] if args else named.get("set_to_none", module_default)), None)
        return value

    cls.__init__, cls.zero_grad = __init__, zero_grad
    torch.nn.Module.zero_grad = zero_grad_of_module


def _default_of(call: Any, name: str, otherwise: Any) -> Any:
    import inspect
    try:
        return inspect.signature(call).parameters[name].default
    except (KeyError, ValueError):
        return otherwise


def _say_zero(r: Recorder, to_none: bool, optimizer: Any) -> None:
    if optimizer is not None and not _known(r, optimizer).parts:
        return
    for w in wrappers.wrappers:
        if optimizer is None or any(part.wrapper is w for part in _known(r, optimizer).parts):
            steps = r.steps_of(w.number)
            # A forward without a backward, of an evaluation say, is no step; nor is a probe through the module inside.
            if steps.has_backward and steps.has_forward:
                steps.end()
            steps.epoch += 1
            w.drop_gradients(r, to_none)


# ---- what changes gradients after a backward ----

def _say_rewrite(r: Recorder, params: List[Any], norm: float, factor: float, text: str) -> None:
    global _is_rewritten
    owned = {id(p) for p in params}
    r.source(4)
    for w in wrappers.wrappers:
        inside = [i for i, p in enumerate(w.params) if id(p) in owned]
        if inside:
            r.use(w.number)
            r.emit("rewrite", -1, bits(norm), bits(factor), len(inside), len(inside) if w.has_unreduced else 0,
                   text=text)
            _is_rewritten = True


def _patch_clipping() -> None:
    import torch.nn.utils as utils
    import torch.nn.utils.clip_grad as clip_grad
    real_norm, real_value = clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_

    @functools.wraps(real_norm)
    def clip_grad_norm_(parameters: Any, max_norm: Any, *args: Any, **named: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        total = real_norm(parameters, max_norm, *args, **named)
        r = get()
        if r is not None:
            guarded(_note_clip)(r, parameters, float(max_norm), float(total))
        return total

    @functools.wraps(real_value)
    def clip_grad_value_(parameters: Any, *args: Any, **named: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        value = real_value(parameters, *args, **named)
        r = get()
        if r is not None:
            guarded(_say_rewrite)(r, parameters, math.nan, math.nan, "clip_grad_value_")
        return value

    for module in (utils, clip_grad):
        module.clip_grad_norm_, module.clip_grad_value_ = clip_grad_norm_, clip_grad_value_


def _note_clip(r: Recorder, parameters: List[Any], max_norm: float, total: float) -> None:
    factor = min(1.0, max_norm / (total + 1e-6)) if math.isfinite(total) else math.nan
    _say_rewrite(r, parameters, total, factor, "clip_grad_norm_")
    _clips.append((total, factor))


def _patch_scaler() -> None:
    classes = []
    for path in ("torch.cuda.amp.grad_scaler", "torch.amp.grad_scaler"):
        try:
            module = __import__(path, fromlist=["GradScaler"])
            classes.append(module.GradScaler)
        except (ImportError, AttributeError):
            continue
    for cls in classes:
        if "_unscale_grads_" in cls.__dict__:
            _patch_scaler_class(cls)


def _patch_scaler_class(cls: Any) -> None:
    real = cls._unscale_grads_

    @functools.wraps(real)
    def _unscale_grads_(self: Any, optimizer: Any, *args: Any, **named: Any) -> Any:
        value = real(self, optimizer, *args, **named)
        r = get()
        if r is not None:
            params = [p for group in optimizer.param_groups for p in group["params"]]
            guarded(_say_rewrite)(r, params, math.nan, math.nan, "unscale")
        return value

    cls._unscale_grads_ = _unscale_grads_


# ---- samples ----

class _Sampler:
    """What is known of a DistributedSampler, or of several that followed one another over one data set."""

    def __init__(self, number: int, sampler: Any) -> None:
        self.number = number
        self.sampler, self.dataset = weakref.ref(sampler), _reference(sampler.dataset)
        self.passes = 0
        self.run = 0  # grows when epochs are gone through from the beginning again
        self.is_set = False  # set_epoch was called since the last pass began
        self.is_complete = False  # the last pass
        self.restarts = 0  # as they were when it began

    def begin(self) -> None:
        """An epoch may come again where the model was put back, or where a few batches were only tried."""
        is_restarted = self.restarts != wrappers.restarts
        was_tried = not self.is_complete and (is_restarted or (self.is_set and self.passes == 1))
        if self.passes > 0 and (was_tried or (self.is_set and is_restarted)):
            self.run += 1
        self.passes += 1
        self.is_set = self.is_complete = False
        self.restarts = wrappers.restarts


class _Pass:
    """One iteration over a loader with a DistributedSampler: its batches in the order they are used."""

    def __init__(self, known: _Sampler, sampler: Any) -> None:
        self.known = known
        self.epoch = known.number * 1000000 + known.passes
        known.begin()
        self.number = known.number
        self.stream = known.number | known.run << 20
        self.batches: Deque[List[int]] = deque()
        self.position = 0
        self.replicas, self.rank = sampler.num_replicas, sampler.rank
        self.length = len(sampler.dataset)
        self.state = hashing.signed(hashing.mix(int(sampler.seed) & (2 ** 63 - 1), int(sampler.epoch)))
        self.shuffles = bool(sampler.shuffle)
        self.is_said = False


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # a list, say
        return lambda: None


_samplers: List[_Sampler] = []
_pending: List[Tuple[_Pass, List[int], int]] = []

_ROWS_MAX = 32  # of a batch that are said
_ROW_BYTES_MIN = 16  # below that, different samples often are the same
_BATCH_SAMPLERS_MAX = 8  # inside one another

# Of the batch that was taken last, who said which samples it has. None: no loader.
_SHARDED, _WHOLE, _OWN = "each rank has its part", "a pass goes through all samples", "the program's own order"
_last_batch: Optional[str] = None
_workers = 0  # of the loader that the batch came from, where each of them iterates over the data set itself
_said_workers = 0
_has_samplers = False  # a training forward got a batch of a DistributedSampler


def _known_sampler(sampler: Any) -> _Sampler:
    """A new one for each epoch goes on where the one before it was."""
    for known in _samplers:
        if known.sampler() is sampler:
            return known
    for known in _samplers:
        if known.sampler() is None and known.dataset() is sampler.dataset:
            known.sampler = weakref.ref(sampler)
            known.is_set = True
            return known
    _samplers.append(_Sampler(len(_samplers), sampler))
    return _samplers[-1]


def _find_sampler(loader: Any) -> Tuple[Any, bool]:
    """The innermost one, and whether all of them are PyTorch's own. Batch samplers may stand around one another."""
    at = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    is_plain = True
    for _ in range(_BATCH_SAMPLERS_MAX):
        if isinstance(at, DistributedSampler):
            return at, is_plain and type(at).__iter__ is DistributedSampler.__iter__
        inner = getattr(at, "sampler", None)
        inner = getattr(at, "batch_sampler", None) if inner is None else inner
        if inner is None:
            break
        is_plain, at = is_plain and type(at) is BatchSampler, inner
    return at, is_plain


def _takes_all(sampler: Any) -> bool:
    """A pass of it goes through all samples, whatever other ranks do."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and getattr(sampler, "_num_samples", None) is None
    return type(sampler) is SequentialSampler


def _begin_pass(loader_iter: Any) -> None:
    loader = getattr(loader_iter, "_cddp_loader", None)
    if loader is None:
        return
    sampler, is_plain = _find_sampler(loader)
    loader_iter._cddp_pass = None
    loader_iter._cddp_workers = loader.num_workers if isinstance(loader.dataset, IterableDataset) else 0
    if not isinstance(sampler, DistributedSampler):
        loader_iter._cddp_kind = _WHOLE if is_plain and _takes_all(sampler) else None
        return
    loader_iter._cddp_kind = _SHARDED if is_plain else _OWN
    if is_plain:
        loader_iter._cddp_pass = _Pass(_known_sampler(sampler), sampler)


def _take_batch(loader_iter: Any) -> None:
    global _last_batch, _workers
    _last_batch = getattr(loader_iter, "_cddp_kind", None)
    _workers = getattr(loader_iter, "_cddp_workers", 0)
    current = getattr(loader_iter, "_cddp_pass", None)
    if current is None or not current.batches:
        return
    indices = current.batches.popleft()
    r = get()
    if _pending and r is not None:  # nobody ran a forward on the one before
        r.mark("batch not used", len(_pending[0][1]))
    del _pending[:]
    _pending.append((current, indices, current.position))
    current.position += len(indices)


def _end_pass(loader_iter: Any) -> None:
    current = getattr(loader_iter, "_cddp_pass", None)
    if current is not None:
        current.known.is_complete = True


def _find_rows(value: Any) -> Optional[torch.Tensor]:
    """Of what a forward gets, the first tensor that has one row for each sample."""
    if isinstance(value, torch.Tensor):
        is_plain = value.device.type == "cpu" and value.layout is torch.strided and value.dim() > 1
        return value if is_plain and value.numel() * value.element_size() >= _ROW_BYTES_MIN * value.shape[0] else None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return next((found for found in map(_find_rows, items) if found is not None), None)


def _say_own_samples(r: Recorder, inputs: Any) -> None:
    rows = _find_rows(inputs)
    if rows is None or not r.wants_digests or rows.shape[0] == 0:
        return
    r.mark("own batch", rows.shape[0])
    for row in rows.detach()[:_ROWS_MAX]:
        r.mark("own sample", r.digest(row))


def _content_of(r: Recorder, value: Any, found: List[int]) -> int:
    """Appends the digests of all tensors, of their first rows. How many bytes they are; -1: nobody knows all of it."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout is not torch.strided or value.requires_grad:
            return -1
        rows = value.detach()[:_ROWS_MAX] if value.dim() > 0 else value.detach()
        found.append(r.digest(rows))
        return rows.numel() * rows.element_size() if found[-1] != 0 or rows.numel() == 0 else -1
    if value is None or isinstance(value, (bool, int, float, str)):
        found.append(hashing.text(repr(value)))
        return 0
    items = list(value.values()) if type(value) is dict else list(value) if type(value) in (tuple, list) else None
    sizes = [_content_of(r, item, found) for item in items] if items is not None else [-1]
    return -1 if -1 in sizes else sum(sizes)


def _say_stream(r: Recorder, inputs: Any) -> None:
    """Nobody says which samples these are. Then they are what the forward gets, all of it."""
    global _said_workers
    found: List[int] = []
    if _workers != _said_workers:
        _said_workers = _workers
        r.mark("stream workers", _workers)
    if r.wants_digests and _content_of(r, list(inputs), found) >= _ROW_BYTES_MIN:
        r.mark("own stream", hashing.signed(hashing.mix_all(len(found), found)))


def _say_unsharded(r: Recorder, inputs: Any) -> None:
    global _has_samplers
    if _last_batch == _WHOLE:
        _say_own_samples(r, inputs)
    elif _last_batch == _OWN and not _has_samplers:
        r.mark("own order of samples")
    _has_samplers = _has_samplers or _last_batch in (_SHARDED, _OWN)
    if _last_batch is None and not _has_samplers:
        _say_stream(r, inputs)


def _say_samples(r: Recorder, inputs: Any) -> None:
    global _last_batch, _workers
    if r.world_size > 1:
        _say_unsharded(r, inputs)
    _last_batch, _workers = None, 0
    while _pending:
        current, indices, position = _pending.pop()
        if not current.is_said:
            r.mark("sampler replicas", current.replicas << 24 | current.rank)
        if current.shuffles and not current.is_said:
            r.emit("seed", current.stream, WORD["CDDP_POLICY_SHARED"], current.state, text="sampler")
        current.is_said = True
        total, weight = 0, 0.0
        for offset, index in enumerate(indices):
            is_padding = (position + offset) * current.replicas + current.rank >= current.length
            total += hashing.mix(0, int(index) & (2 ** 63 - 1))
            weight += 0.0 if is_padding else 1.0
            r.emit("sample", int(index), bits(0.0 if is_padding else 1.0), current.epoch)
        r.emit("samples", current.epoch, len(indices), 0, hashing.signed(total & (2 ** 64 - 1)), bits(weight))


def _forget_samples(r: Recorder) -> None:
    global _last_batch
    _last_batch = None
    del _pending[:]


def _patch_loaders() -> None:
    cls = _BaseDataLoaderIter
    real_init, real_next_index, real_next = cls.__init__, cls._next_index, cls.__next__
    real_reset = cls._reset

    @functools.wraps(real_init)
    def __init__(self: Any, loader: DataLoader, *args: Any, **named: Any) -> None:
        self._cddp_loader = loader
        if get() is not None:
            guarded(_begin_pass)(self)
        real_init(self, loader, *args, **named)

    @functools.wraps(real_reset)
    def _reset(self: Any, loader: Any, *args: Any, **named: Any) -> Any:
        if get() is not None and not (len(args) > 0 and args[0] or named.get("first_iter")):
            guarded(_begin_pass)(self)  # persistent workers
        return real_reset(self, loader, *args, **named)

    @functools.wraps(real_next_index)
    def _next_index(self: Any) -> Any:
        index = real_next_index(self)
        current = getattr(self, "_cddp_pass", None)
        if current is not None:
            current.batches.append(index if isinstance(index, list) else [index])
        return index

    @functools.wraps(real_next)
    def __next__(self: Any) -> Any:
        try:
            batch = real_next(self)
        except StopIteration:
            guarded(_end_pass)(self)
            raise
        if get() is not None:
            guarded(_take_batch)(self)
        return batch

    cls.__init__, cls._next_index, cls.__next__, cls._reset = __init__, _next_index, __next__, _reset
    wrappers.before_training_forward.append(_say_samples)
    wrappers.before_other_forward.append(_forget_samples)


def _patch_epochs() -> None:
    real = DistributedSampler.set_epoch

    @functools.wraps(real)
    def set_epoch(self: Any, *args: Any, **named: Any) -> Any:
        for known in _samplers:
            if known.sampler() is self:
                known.is_set = True
        return real(self, *args, **named)

    DistributedSampler.set_epoch = set_epoch


def patch() -> None:
    for part in (_patch_backward, _patch_optimizers, _patch_clipping, _patch_scaler, _patch_loaders, _patch_epochs):
        guarded(part)()
