# SPDX-License-Identifier: Apache-2.0
"""The same gradients through PyTorch's DDP and through this project's, in one call.

    import cddp_torch
    result = cddp_torch.compare(model, loss)        # loss(model, rank, step) → a scalar
    print(result)
    cddp_torch.compare(model, loss, inputs="cddp-trace")    # loss(output, rank, step), on what a job's forwards got

PyTorch trains in real processes over Gloo, and each rank keeps its gradients. `cddp-verify lift` makes a scenario of
them (model "recorded"), which `cddp-verify run` trains on the simulator and judges by the oracle. Then both traces
are laid side by side: layouts of buckets, the reducer's operations, used maps, and the bits of each gradient.
"""
from __future__ import annotations

import copy
import datetime
import os
import shutil
import sqlite3
import subprocess
import tempfile
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from . import gradients, inputs as kept_inputs, ranks as processes
from .conformance import find_verifier

Loss = Callable[[Any, int, int], torch.Tensor]
FIRST_BUCKET = 1 << 20
LIMIT_S = 120.0


class Difference(NamedTuple):
    """The first place where the two are not the same."""
    rank: int
    step: int
    what: str
    torch: str
    cddp: str

    def __str__(self) -> str:
        return "rank %d, step %d, %s: PyTorch %s, cddp %s" % self


class Part(NamedTuple):
    name: str
    count: int  # type: ignore[assignment]  # compared
    differences: "List[Difference]"

    @property
    def is_same(self) -> bool:
        return self.count > 0 and not self.differences

    def __str__(self) -> str:
        if self.differences:
            return "%d of %d differ; first: %s" % (len(self.differences), self.count, self.differences[0])
        return "%d, all the same" % self.count if self.count else "none"


class Comparison(NamedTuple):
    """`ok`: all parts are the same, and the oracle has verified both runs."""
    ranks: int
    steps: int
    layouts: Part
    operations: Part
    used_maps: Part
    gradients: Part
    torch_verdict: str
    cddp_verdict: str
    recording: Optional[str]  # the folder, where one was named
    scenario: Optional[str]

    @property
    def parts(self) -> "Tuple[Part, ...]":
        return (self.layouts, self.operations, self.used_maps, self.gradients)

    @property
    def ok(self) -> bool:
        is_same = all(not part.differences for part in self.parts) and self.layouts.count > 0 and self.gradients.count > 0
        return is_same and self.torch_verdict.startswith("verified") and self.cddp_verdict.startswith("verified")

    def __str__(self) -> str:
        lines = ["%s: PyTorch %s and cddp, %d ranks, %d steps" % (
            "the same" if self.ok else "NOT the same", torch.__version__, self.ranks, self.steps)]
        lines += ["  %-11s %s" % (part.name, part) for part in self.parts]
        lines += ["  %-11s PyTorch's run: %s" % ("judged", self.torch_verdict), "  %-11s cddp's run: %s" % ("", self.cddp_verdict)]
        if self.scenario is not None:
            lines.append("  again       cddp-verify run %s" % self.scenario)
        return "\n".join(lines)


# ---- the two runs ----

def _wrap(model: torch.nn.Module, options: Dict[str, Any], first_bucket_bytes: int) -> Any:
    dist._DEFAULT_FIRST_BUCKET_BYTES = first_bucket_bytes
    return DDP(model, **options)


def _train(model: Any, loss: Loss, o: "_Options", rank: int) -> None:
    import cddp_torch

    cddp_torch.record(o.place, "digests", gradients=True)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=LIMIT_S))
    torch.manual_seed(o.seed)
    module = copy.deepcopy(model) if isinstance(model, torch.nn.Module) else model()
    if o.begin is not None:
        gradients.File(o.begin).load(module)
    ddp = _wrap(module, o.ddp, o.first_bucket_bytes)
    if o.builtin_hook is not None:
        ddp.register_comm_hook(None, o.builtin_hook)
    optimizer = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], lr=o.lr)
    for step in range(o.steps):
        optimizer.zero_grad(set_to_none=True)
        for micro in range(o.micro_steps):
            number = step * o.micro_steps + micro
            if micro + 1 < o.micro_steps:
                with ddp.no_sync():
                    loss(ddp, rank, number).backward()
            else:
                loss(ddp, rank, number).backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
    if cddp_torch.failure() is not None:
        raise RuntimeError("the recording ended early: %s" % cddp_torch.failure())


class _Options(NamedTuple):
    place: str
    steps: int
    micro_steps: int
    seed: int
    lr: float
    first_bucket_bytes: int
    ddp: Dict[str, Any]
    builtin_hook: Any
    begin: Optional[str] = None  # a file with the values that the parameters begin with


def _verify(verify: str, *arguments: str) -> Tuple[int, str]:
    done = subprocess.run([verify] + list(arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    return done.returncode, done.stdout


def _verdict(code: int, report: str) -> str:
    first = {0: "verified", 1: "findings", 4: "inconclusive"}.get(code, "not judged")
    because = [line.strip() for line in report.splitlines() if line.startswith("  I-")]
    if code == 0:
        return first
    return "%s: %s" % (first, because[0] if because else report.strip().splitlines()[0] if report.strip() else "no report")


# ---- side by side ----

def _rows(store: str, query: str) -> List[Tuple[Any, ...]]:
    with sqlite3.connect(store) as c:
        return list(c.execute(query))


def _by(rows: List[Tuple[Any, ...]]) -> "Dict[Tuple[Any, ...], List[Tuple[Any, ...]]]":
    """By rank and step, in their order."""
    found: Dict[Tuple[Any, ...], List[Tuple[Any, ...]]] = {}
    for row in rows:
        found.setdefault(row[:2], []).append(row[2:])
    return found


Words = Callable[[Tuple[Any, ...]], str]


def _compare(name: str, a: List[Tuple[Any, ...]], b: List[Tuple[Any, ...]], what: Words, how: Words) -> Part:
    left, right, count = _by(a), _by(b), 0
    differences: List[Difference] = []
    for key in sorted(set(left) | set(right)):
        x, y = left.get(key, []), right.get(key, [])
        for i in range(max(len(x), len(y))):
            one, other = x[i] if i < len(x) else None, y[i] if i < len(y) else None
            count += 1
            if one != other:
                shown = one if one is not None else other
                assert shown is not None
                differences.append(Difference(int(key[0]), int(key[1]), what(shown), how(one) if one is not None else "has none",
                                              how(other) if other is not None else "has none"))
    return Part(name, count, differences)


_LAYOUTS = "SELECT rank, generation, bucket, slot, parameter, offset, numel, dtype FROM ev_bucket_layout ORDER BY rank, seq"
# What a bucket carries, and the used map: an all-reduce of int32 with as many elements as there are parameters.
_OPERATIONS = """SELECT rank, step, op, dtype, numel, bucket FROM ev_collective_post WHERE bucket >= 0 ORDER BY rank, seq"""
_USED = """SELECT rank, step, 0, parameter, used FROM ev_used_local UNION ALL
SELECT rank, step, 1, parameter, used FROM ev_used_global ORDER BY 1, 2, 3, 4"""
_GRADIENTS = """SELECT rank, step, parameter, presence, digest, dtype FROM ev_grad_final g WHERE seq =
(SELECT max(seq) FROM ev_grad_final f WHERE f.run = g.run AND f.rank = g.rank AND f.step = g.step AND f.param = g.param)
ORDER BY rank, step, parameter"""


def _side_by_side(a: str, b: str) -> "Tuple[Part, ...]":
    def pair(query: str) -> "Tuple[List[Tuple[Any, ...]], List[Tuple[Any, ...]]]":
        return _rows(a, query), _rows(b, query)

    return (
        _compare("layouts", *pair(_LAYOUTS), what=lambda r: "layout's slot %s of bucket %s" % (r[1], r[0]),
                 how=lambda r: "%s at %s" % (r[2], r[3])),
        _compare("operations", *pair(_OPERATIONS), what=lambda r: "operation of bucket %s" % r[3],
                 how=lambda r: "%s of %s %s" % (r[0], r[2], r[1])),
        _compare("used maps", *pair(_USED), what=lambda r: ("local", "global")[r[0]] + " use of " + r[1],
                 how=lambda r: str(r[2])),
        _compare("gradients", *pair(_GRADIENTS), what=lambda r: "gradient of " + r[0],
                 how=lambda r: "%s %s" % (r[1], r[2]) if r[1] == "value" else r[1]))


def of(directory: str) -> Comparison:
    """A recording with gradients (`run --gradients`, or record(…, gradients=True)) against cddp on these gradients."""
    verify = find_verifier()
    if verify is None:
        raise RuntimeError("cddp-verify is not on the path; CDDP_VERIFY may name it")
    place = os.path.abspath(directory)
    first = os.path.join(place, "rank.0.gradients")
    if not os.path.exists(first):
        raise ValueError("'%s' has no gradients: record with --gradients" % directory)
    kept = gradients.File(first)
    if any(c in place for c in ",="):
        raise ValueError("a scenario cannot name the folder '%s': it has a , or =" % place)
    stores = [os.path.join(place, name) for name in ("torch.db", "cddp.db")]
    scenario = os.path.join(place, "recorded.toml")
    for name in stores:
        if os.path.exists(name):
            os.unlink(name)
    torch_verdict = _verdict(*_verify(verify, "check", place, "-t", stores[0]))
    code, said = _verify(verify, "lift", place, "-o", scenario)
    if code != 0:
        raise RuntimeError("no scenario of this recording: " + said.strip())
    with open(scenario, encoding="utf-8") as file:
        if 'name = "recorded"' not in file.read():
            raise RuntimeError("the gradients cannot be used: " + said.strip())
    code, said = _verify(verify, "run", scenario, "-t", stores[1])
    if code not in (0, 1, 4) or not os.path.exists(stores[1]):
        raise RuntimeError("cddp cannot train what was recorded: " + said.strip())
    steps = _rows(stores[0], "SELECT count(DISTINCT step) FROM ev_grad_final")
    layouts, operations, used_maps, finals = _side_by_side(stores[0], stores[1])
    return Comparison(kept.world_size, int(steps[0][0]), layouts, operations, used_maps, finals, torch_verdict,
                      _verdict(code, said), place, scenario)


def _run(model: Any, loss: Loss, ranks: int, o: _Options) -> Comparison:
    codes = processes.run(lambda rank: _train(model, loss, o, rank), ranks, o.place, LIMIT_S)
    if any(codes.values()):
        raise RuntimeError("PyTorch's run failed:\n" + processes.logs(o.place))
    if not os.path.exists(os.path.join(o.place, "rank.0.gradients")):
        raise RuntimeError("no gradients were kept:\n" + processes.logs(o.place))
    return of(o.place)


def _again(directory: str, micro_steps: int, loss: Loss) -> "Tuple[Loss, int, int, Optional[str]]":
    """A loss that gives the model what its forwards got in a recording; ranks, steps, and the parameters' file."""
    first = os.path.join(directory, "rank.0.inputs")
    if not os.path.exists(first):
        raise ValueError("compare: '%s' has no inputs: record with --inputs" % directory)
    ranks = kept_inputs.File(first).world_size
    files = []
    for rank in range(ranks):
        path = os.path.join(directory, "rank.%d.inputs" % rank)
        if not os.path.exists(path):
            raise ValueError("compare: '%s' has inputs of %d ranks, and none of rank %d" % (directory, ranks, rank))
        file = kept_inputs.File(path)
        if (file.rank, file.world_size) != (rank, ranks):
            raise ValueError("compare: '%s' is of rank %d of %d, not of rank %d of %d" % (
                path, file.rank, file.world_size, rank, ranks))
        files.append(file)
        if len(file) != len(files[0]):
            raise ValueError("compare: rank 0 has the inputs of %d forwards, rank %d of %d" % (len(files[0]), rank, len(file)))
    if len(files[0]) == 0 or len(files[0]) % micro_steps != 0:
        raise ValueError("compare: there are inputs of %d forwards, and micro_steps is %d" % (len(files[0]), micro_steps))

    def of_recorded(model: Any, rank: int, number: int) -> torch.Tensor:
        args, named = files[rank].forward(number)
        return loss(model(*args, **named), rank, number)

    begin = os.path.join(directory, "rank.0.gradients")
    return of_recorded, ranks, len(files[0]) // micro_steps, begin if os.path.exists(begin) else None


def compare(model: Any, loss: Loss, ranks: int = 2, steps: int = 3, micro_steps: int = 1, directory: Optional[str] = None,
            first_bucket_bytes: Optional[int] = None, hook: Any = None, seed: int = 0, lr: float = 0.01,
            inputs: Optional[str] = None, **options: Any) -> Comparison:
    """model: a module, or a call that makes one. loss(model, rank, step): a scalar to go backward from; `step` counts
    micro-steps. directory: where recording, scenario and both traces stay; they are removed without one.
    first_bucket_bytes: of the small first bucket. By default it is PyTorch's own; PyTorch 1 has one also where
    bucket_cap_mb is given, and PyTorch 2 and cddp do not, so then it is made as large as the others.
    inputs: a recording with inputs. The model is trained on them, and loss(output, rank, step) gets what it made of them;
    ranks and steps are those of the recording, and parameters begin as there, if it has gradients, too.
    options: those of DistributedDataParallel, such as bucket_cap_mb, find_unused_parameters, gradient_as_bucket_view."""
    for name, value, least in (("ranks", ranks, 1), ("steps", steps, 1), ("micro_steps", micro_steps, 1)):
        if not isinstance(value, int) or value < least:
            raise ValueError("compare: %s is a whole number of at least %d, not %r" % (name, least, value))
    if first_bucket_bytes is not None and first_bucket_bytes < 1:
        raise ValueError("compare: first_bucket_bytes is at least 1, not %r" % first_bucket_bytes)
    if not callable(model) or not callable(loss):
        raise ValueError("compare: model is a module or makes one, loss(model, rank, step) gives a scalar")
    begin = None
    if inputs is not None:
        if directory is not None and os.path.realpath(directory) == os.path.realpath(inputs):
            raise ValueError("compare: directory is the folder of the inputs; its recording would be overwritten")
        loss, ranks, steps, begin = _again(inputs, micro_steps, loss)
    place = os.path.abspath(directory) if directory is not None else tempfile.mkdtemp(prefix="cddp-compare-")
    os.makedirs(place, exist_ok=True)
    if any(c in place for c in ",="):
        raise ValueError("compare: a scenario cannot name the folder '%s': it has a , or =" % place)
    if first_bucket_bytes is None:
        cap = options.get("bucket_cap_mb")
        is_searched = bool(options.get("find_unused_parameters")) and not options.get("static_graph")
        first_bucket_bytes = FIRST_BUCKET if cap is None or cap == 25 or is_searched else int(cap * 1048576)
    try:
        o = _Options(place, steps, micro_steps, seed, lr, first_bucket_bytes, options, hook,
                     os.path.abspath(begin) if begin is not None else None)
        found = _run(model, loss, ranks, o)
        return found if directory is not None else found._replace(recording=None, scenario=None)
    finally:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)


__all__ = ["Comparison", "Difference", "Part", "compare", "of"]
