# SPDX-License-Identifier: Apache-2.0
"""A comm hook against the laws of its interface: through real DDP, in real processes, over Gloo.

Each case is a small training job that is recorded and judged by `cddp-verify check`. Beside the verdicts
stand measurements: how far the hook's gradients are from the mean, and whether a second run has the same bits.
"""
from __future__ import annotations

import datetime
import importlib
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from . import laws
from . import ranks as processes

LIMIT_S = 30.0
STEPS = 5


class Case:
    def __init__(self, name: str, law: str, buckets: int = 1, **options: Any) -> None:
        self.name, self.law, self.buckets = name, law, buckets
        self.views = bool(options.get("views"))
        self.unused = bool(options.get("unused"))
        self.accumulates = bool(options.get("accumulates"))
        self.dtype = options.get("dtype", torch.float32)
        self.more_ranks = int(options.get("more_ranks", 0))


CASES = (
    Case("one bucket", "called once, its result is on all ranks"),
    Case("several buckets", "buckets in any state of completion", 4),
    Case("views", "gradients lie in the bucket", 4, views=True),
    Case("accumulation", "called only in the backward that synchronises", 4, accumulates=True),
    Case("unused parameters", "buckets with zeros of a rank", 4, unused=True),
    Case("f64", "another dtype", 4, dtype=torch.float64),
    Case("one rank more", "another number of ranks", 4, more_ranks=1),
)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in ((24, 40), (40, 48), (48, 32), (32, 4)))
        self.other = torch.nn.Linear(24, 4)

    def forward(self, x: torch.Tensor, other: bool) -> torch.Tensor:
        out = x
        for layer in self.layers:
            out = torch.tanh(layer(out))
        return out + self.other(x) if other else out


def load(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _train(rank: int, case: Case, hook: Any, make_state: Optional[Callable[[Any], Any]]) -> List[torch.Tensor]:
    torch.manual_seed(1)
    if case.buckets > 1:
        dist._DEFAULT_FIRST_BUCKET_BYTES = 4096
    ddp = DDP(Model().to(case.dtype), bucket_cap_mb=0.006 if case.buckets > 1 else 25,
              gradient_as_bucket_view=case.views, find_unused_parameters=case.unused)
    if hook is not None:
        ddp.register_comm_hook(make_state(dist.group.WORLD) if make_state is not None else None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(100 + rank)
    first: List[torch.Tensor] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(2 if case.accumulates else 1):
            x = torch.randn(6, 24, generator=g).to(case.dtype)
            uses = not case.unused or (rank + step) % 2 == 0
            if case.accumulates and micro == 0:
                with ddp.no_sync():
                    ddp(x, uses).pow(2).mean().backward()
            else:
                ddp(x, uses).pow(2).mean().backward()
        if step == 0:
            first = [p.grad.detach().clone() for p in ddp.parameters() if p.grad is not None]
        optimizer.step()
    return first + [p.detach() for p in ddp.parameters()]


def _rank(rank: int, place: str, case: Case, hook: Any, make_state: Any) -> None:
    import cddp_torch

    cddp_torch.record(place)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=LIMIT_S))
    values = _train(rank, case, hook, make_state)
    if rank == 0:
        with open(os.path.join(place, "values"), "wb") as file:
            for v in values:
                data = v.double().reshape(-1).tolist()
                file.write(struct.pack("%dd" % len(data), *data))
    dist.barrier()


def _run(case: Case, ranks: int, hook: Any, make_state: Any, place: str) -> bool:
    """Did every rank come to its end?"""
    codes = processes.run(lambda rank: _rank(rank, place, case, hook, make_state), ranks, place, LIMIT_S)
    return all(code == 0 for code in codes.values())


def _read(place: str) -> List[float]:
    with open(os.path.join(place, "values"), "rb") as file:
        data = file.read()
    return list(struct.unpack("%dd" % (len(data) // 8), data))


CONFORMS, BROKEN, NOT_JUDGED = "conforms", "broken", "not judged"


def _judge(verify: str, place: str) -> Tuple[str, str]:
    done = subprocess.run([verify, "check", place], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    lines = done.stdout.splitlines()
    for line in lines:
        if line.startswith("  I-"):
            return BROKEN, line.strip()
    state = {0: CONFORMS, 4: NOT_JUDGED}.get(done.returncode, BROKEN)
    return state, lines[0] if lines else "no report"


def find_verifier() -> Optional[str]:
    here = os.path.dirname(os.path.abspath(__file__))
    named = os.environ.get("CDDP_VERIFY")
    built = os.path.join(here, "..", "..", "build", "release", "bin", "cddp-verify")
    return named or shutil.which("cddp-verify") or (built if os.path.exists(built) else None)


def _distance(values: List[float], others: List[float]) -> float:
    norm = math.sqrt(sum(v * v for v in others)) or 1.0
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(values, others))) / norm


def _examine(case: Case, ranks: int, hook: Any, make_state: Any, verify: str) -> Dict[str, Any]:
    row: Dict[str, Any] = {"case": case.name, "law": case.law}
    places = [tempfile.mkdtemp(prefix="cddp-hook-") for _ in range(3)]
    try:
        has_ended = _run(case, ranks + case.more_ranks, hook, make_state, places[0])
        row["state"], row["verdict"] = _judge(verify, places[0])
        if not has_ended:
            row["state"] = BROKEN
            said = processes.logs(places[0]).splitlines()
            row["verdict"] += "; " + said[0] if said else ""
        row["holds"] = row["state"] == CONFORMS
        if row["state"] != BROKEN and _run(case, ranks + case.more_ranks, hook, make_state, places[1]):
            row["repeats"] = _read(places[0]) == _read(places[1])
        if row["state"] != BROKEN and _run(case, ranks + case.more_ranks, None, None, places[2]):
            row["distance"] = _distance(_read(places[0]), _read(places[2]))
    finally:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
    return row


def _why_not_judged(hook: Any) -> str:
    word = laws.of(hook).word
    if word == "UNKNOWN":
        return ("the hook does not make the mean, and does not say what it makes: cddp_law of the function says it "
                "(mean, sum, fp16, bf16, lossy)")
    if word == "OWN":
        return "the hook is lossy by its own word: what ranks have in common was judged, its values were not"
    return "the recording does not show enough: cddp-verify check says what is missing"


def _exit_code(rows: List[Dict[str, Any]]) -> int:
    states = [row["state"] for row in rows]
    return 1 if BROKEN in states else 4 if NOT_JUDGED in states else 0


def _print(name: str, ranks: int, hook: Any, rows: List[Dict[str, Any]]) -> None:
    print("hook %s over gloo, %d ranks, torch %s" % (name, ranks, torch.__version__))
    for row in rows:
        if row["state"] == BROKEN:
            detail = "BROKEN: " + row["verdict"]
        else:
            distance = row.get("distance", math.nan)
            detail = row["state"] + ": " + ("bit for bit the mean" if distance == 0 else "%.1e from the mean" % distance)
            detail += "; a second run has the same bits" if row.get("repeats") else "; a second run differs"
        print("  %-18s %s" % (row["case"], detail))
    count = {state: sum(row["state"] == state for row in rows) for state in (CONFORMS, BROKEN, NOT_JUDGED)}
    broken = next((row for row in rows if row["state"] == BROKEN), None)
    print("%d of %d cases conform%s" % (count[CONFORMS], len(rows),
                                     "; first broken: %s: %s" % (broken["case"], broken["law"]) if broken else ""))
    if count[NOT_JUDGED]:
        print("%d not judged: %s" % (count[NOT_JUDGED], _why_not_judged(hook)))


def run(path: str, state: Optional[str], ranks: int, as_json: bool) -> int:
    verify = find_verifier()
    if verify is None:
        sys.stderr.write("hook-conformance: cddp-verify is not on the path; CDDP_VERIFY may name it\n")
        return 3
    sys.path.insert(0, os.getcwd())
    try:
        hook, make_state = load(path), load(state) if state is not None else None
    except (ImportError, AttributeError) as failure:
        sys.stderr.write("hook-conformance: %s: %s\n" % (path, failure))
        return 2
    rows = [_examine(case, ranks, hook, make_state, verify) for case in CASES]
    if as_json:
        print(json.dumps({"hook": path, "ranks": ranks, "torch": str(torch.__version__), "cases": rows}))
    else:
        _print(path, ranks, hook, rows)
    return _exit_code(rows)
