# SPDX-License-Identifier: Apache-2.0
"""What a comm hook promises, and the laws that its results are held to.

A hook of PyTorch is known by where it is defined, one of the program by what it declares: `hook.cddp_law` is
"mean", "sum", "fp16", "bf16" (the mean, rounded in that dtype) or "lossy". Nothing declared: the mean is looked for.
"""
from __future__ import annotations

import math
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .events import WORD
from .recorder import DTYPES, Recorder, bits

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_CASTS = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Promise(NamedTuple):
    """One entry for the hook, and one for the hook that it runs inside."""
    word: str
    cast: Optional[torch.dtype] = None
    is_power_sgd: bool = False
    inner: "Optional[Promise]" = None

    @property
    def is_mean(self) -> bool:
        """Of the bucket's own dtype."""
        return self.word == "MEAN" and self.cast is None

    @property
    def rounds_in(self) -> Optional[torch.dtype]:
        """The coarse dtype of a mean."""
        if self.inner is not None:
            return self.inner.cast or self.cast if self.inner.word == "MEAN" else None
        return self.cast if self.word == "MEAN" else None


def of(hook: Any) -> Promise:
    declared = getattr(hook, "cddp_law", None)
    if declared is None and hasattr(hook, "cddp_averages"):
        declared = "mean" if hook.cddp_averages else "lossy"
    if declared is not None:
        return _declared(str(declared))
    module, name = str(getattr(hook, "__module__", "")), str(getattr(hook, "__name__", ""))
    if name == "allreduce_hook":
        return Promise("MEAN")
    if not module.startswith(_HOOKS):
        return Promise("UNKNOWN")
    if name in ("fp16_compress_hook", "bf16_compress_hook"):
        return Promise("MEAN", _CASTS[name[:4]])
    if name in ("fp16_compress_wrapper_hook", "bf16_compress_wrapper_hook"):
        return Promise("STATED", _CASTS[name[:4]], inner=_inside(hook))
    if name in ("powerSGD_hook", "batched_powerSGD_hook"):
        return Promise("STATED", is_power_sgd=True)
    return Promise("LOCAL" if name == "noop_hook" else "OWN")


def _declared(law: str) -> Promise:
    if law in _CASTS:
        return Promise("MEAN", _CASTS[law])
    words = {"mean": "MEAN", "sum": "SUM", "lossy": "OWN"}
    if law not in words:
        raise ValueError("cddp_law is %r; it is one of %s" % (law, ", ".join(sorted(list(words) + list(_CASTS)))))
    return Promise(words[law])


def _inside(hook: Any) -> Promise:
    for cell in getattr(hook, "__closure__", None) or ():
        if callable(cell.cell_contents):
            return of(cell.cell_contents)
    return Promise("UNKNOWN")


def builtin(name: str) -> Promise:
    return Promise("MEAN", torch.float16 if "FP16" in name else None)


def say(r: Recorder, name: Optional[str], promise: Promise) -> None:
    level, one = 0, promise
    while one is not None:
        cast = DTYPES[one.cast] + 1 if one.cast is not None else 0
        r.emit("hook_in_force", level, WORD["CDDP_PROMISE_" + one.word], cast, text=name if level == 0 else "inner")
        level, one = level + 1, one.inner  # type: ignore[assignment]


def state(r: Recorder, index: int, sides: Tuple[float, float, float], text: str, over_ranks: bool = True) -> None:
    """What is not finite obeys no law, and is reported as such."""
    if not all(math.isfinite(x) for x in sides[:2]):
        sides = (0.0, 0.0, math.inf)
    r.emit("hook_law", index, bits(sides[0]), bits(sides[1]), bits(sides[2]), int(over_ranks), text=text)


def _total(x: torch.Tensor) -> float:
    return float(x.sum())


def state_cast(r: Recorder, index: int, entered: torch.Tensor, result: torch.Tensor, cast: torch.dtype,
               members: int) -> None:
    """See Note [The law of a cast] in record/watch.c."""
    g, m = entered.detach().reshape(-1).double(), result.detach().reshape(-1).double()
    unit, tiny = (2.0 ** -11, 2.0 ** -24) if cast is torch.float16 else (2.0 ** -8, 2.0 ** -133)
    terms, n = (members + 2) * unit, float(g.numel())
    magnitude, got = _total(g.abs()), _total(m.abs())
    bound = (terms / (1 - terms) * magnitude + n * 2.0 ** -50 * (magnitude + got)) / members + 2 * n * tiny
    state(r, index, (_total(g * m.sign()) / members, got / members, bound),
          "the result is the mean of what the ranks gave")


    _state_unbiased(r, index, g, m, unit, tiny, members)


_DRAWN = 4096  # elements of a bucket, at most


def _state_unbiased(r: Recorder, index: int, g: torch.Tensor, m: torch.Tensor, unit: float, tiny: float,
                    members: int) -> None:
    """See Note [The law of roundings without a preference] in record/watch.c. Elements with one significand round alike."""
    stride = g.numel() // _DRAWN + 1
    g, m = g[::stride], m[::stride]
    size = g.abs()
    magnitude, got = _total(size), _total(m.abs())
    bound = math.inf
    if members <= 24 and 16 * got >= magnitude > 0:
        _, alike = torch.unique(torch.frexp(size).mantissa, return_inverse=True)
        groups = torch.zeros(int(alike.max()) + 1, dtype=torch.float64).scatter_add_(0, alike, size)
        if groups.numel() >= 8:
            spread = float(groups.norm())
            bound = (9 * math.sqrt(members + 2) * unit * spread + 2.0 ** -22 * (magnitude + got)) / members
            bound += 2 * g.numel() * tiny
    state(r, index, (_total(g * m.sign()) / members, got / members, bound),
          "roundings of the mean prefer neither side")


class PowerSGD:
    """A bucket on its way through PowerSGD with error feedback.

    M_r is what rank r gave and the error that it kept, m the result, e_r the error that it keeps now. Nothing is lost:
    M_r = m + e_r, where adding and subtracting round once each. And m is the orthogonal projection of the mean of M_r, so
    the sum of <m, e_r> over the ranks is 0. Rounding leaves (2 N + W + 10) u |m| |M_r| per rank: P of N rows is normalised
    within (N + 4) u, M_r^T P is rounded N times, its sum W + 1 times, their product once.

    Above rank 1, N becomes N sqrt(R), and the product has R terms. Columns of P are orthogonal as far as the rounding lets
    them be, which depends on the gradients. So P is read from the hook's state: with E = P^T P - I the sum over the ranks
    is up to W |E| |m|^2 more. Where |E| is large, nothing is stated.
    """

    def __init__(self, index: int, hook_state: Any, buffer: torch.Tensor, rows: int,
                 gradients: Sequence[torch.Tensor] = ()) -> None:
        self.index, self.hook_state, self.rows = index, hook_state, rows
        self.rank = int(hook_state.matrix_approximation_rank)
        self.shapes = [tuple(g.shape) for g in gradients]
        self.old = old = hook_state.error_dict.get(index)
        self.given = buffer.detach().double() + (old.detach().double() if old is not None else 0.0)
        self.magnitude = _total(buffer.detach().double().abs()) + (_total(old.detach().double().abs())
                                                                  if old is not None else 0.0)

    @staticmethod
    def is_judged(hook_state: Any, is_batched: bool = False) -> bool:
        wanted = {"use_error_feedback": True, "orthogonalization_epsilon": 0}
        rank = getattr(hook_state, "matrix_approximation_rank", None)
        if rank != 1:
            if is_batched or not isinstance(rank, int) or not hasattr(hook_state, "p_memory_dict"):
                return False
            wanted["batch_tensors_with_same_shape"] = False
        has_started = getattr(hook_state, "iter", 0) >= getattr(hook_state, "start_powerSGD_iter", math.inf)
        return has_started and all(getattr(hook_state, name, None) == value for name, value in wanted.items())

    def _skew(self) -> Optional[float]:
        """|P^T P - I| over all matrices of the bucket; None: P is not there, or has another form."""
        if self.rank == 1:
            return 0.0
        memory = self.hook_state.p_memory_dict.get(self.index)
        if memory is None or memory.device.type != "cpu":
            return None
        at, total = 0, 0.0
        flat = memory.detach().reshape(-1).double()
        for shape in self.shapes:
            n = shape[0] if shape else 1
            m = torch.Size(shape).numel() // max(n, 1)
            rank = min(n, m, self.rank)
            if len(shape) < 2 or (n + m) * rank * self.hook_state.min_compression_rate >= n * m:
                continue
            p = flat[at:at + n * rank].reshape(-1, rank)
            if p.shape[0] != n:
                return None
            total += float((p.t() @ p - torch.eye(rank, dtype=p.dtype)).pow(2).sum())
            at += n * rank
        return math.sqrt(total) if at == flat.numel() else None

    def end(self, r: Recorder, result: torch.Tensor, members: int) -> None:
        kept = self.hook_state.error_dict.get(self.index)
        skew = self._skew()
        if kept is None or kept.numel() != result.numel() or skew is None or not skew < 0.1:
            return
        m, e = result.detach().reshape(-1).double(), kept.detach().double()
        unit = 2.0 ** -24 if result.dtype is torch.float32 else 2.0 ** -53
        signs = torch.ones_like(m)
        signs[1::2] = -1.0
        size = self.magnitude + _total(m.abs()) + _total(e.abs())
        state(r, self.index, (_total(self.given * signs), _total((m + e) * signs), (2 * unit + m.numel() * 2.0 ** -50) * size),
              "gradient + old error = output + new error", over_ranks=False)
        root = math.sqrt(self.rank)
        terms = 2 * self.rows * root + members + (2 * self.rank * root if self.rank > 1 else 0) + 10
        bound = terms * unit * float(m.norm()) * float(self.given.norm()) + 1.1 * skew * float(m.norm()) ** 2
        state(r, self.index, (_total(m * e), 0.0, bound + 1e-40), "the output is the projection of the mean")


def rows_of(gradients: List[torch.Tensor]) -> int:
    """The most rows of a matrix of the bucket; as one square matrix it has fewer than both sides."""
    return max([g.shape[0] if g.dim() > 0 else 1 for g in gradients] + [1])


__all__ = ["PowerSGD", "Promise", "builtin", "of", "rows_of", "say", "state", "state_cast"]
