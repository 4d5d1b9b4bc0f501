# SPDX-License-Identifier: Apache-2.0
"""Ranks that are forked from this process: each runs a function, and how it ends is noted."""
from __future__ import annotations

import os
import signal
import sys
import time
from typing import Callable, Dict, List

from . import launch

Program = Callable[[int], None]


def _rank(program: Program, rank: int, ranks: int, port: int, place: str) -> None:
    import torch

    log = os.open(os.path.join(place, "log.%d" % rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    code = 0
    try:
        torch.set_num_threads(1)
        launch.store_that_every_build_has()
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
        program(rank)
    except BaseException as failure:  # what a user's function raises is up to it
        from . import recorder
        sys.stderr.write("%s: %s\n" % (type(failure).__name__, failure))
        if recorder.current is not None:
            recorder.current.end(recorder.ABORTED, "%s: %s" % (type(failure).__name__, str(failure).split("\n")[0]))
        code = 1
    import cddp_torch
    cddp_torch.stop()
    sys.stdout.flush()
    os._exit(code)


def run(program: Program, ranks: int, place: str, limit_s: float, grace_s: float = 2.0) -> Dict[int, int]:
    """The exit code of each rank, negative for a signal. Once one has failed the others get some time."""
    port = launch.free_port()
    pids: Dict[int, int] = {}
    codes: Dict[int, int] = {}
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            _rank(program, rank, ranks, port, place)
        pids[pid] = rank
    job = launch.Job(place, "digests", [])
    job.world_size = ranks
    began, failed = time.monotonic(), None
    while len(codes) < ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        now = time.monotonic()
        if pid in pids:
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            codes[pids[pid]] = code
            job.note(pids[pid], code)
            failed = now if code != 0 and failed is None else failed
        elif now - began > limit_s or (failed is not None and now - failed > grace_s):
            for pid, rank in pids.items():
                if rank not in codes:
                    job.is_late.add(rank)
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return codes


def logs(place: str) -> str:
    """What the ranks said, those that said something."""
    said: List[str] = []
    for name in sorted(os.listdir(place)):
        if name.startswith("log."):
            with open(os.path.join(place, name), encoding="utf-8", errors="replace") as file:
                text = file.read().strip()
            if text:
                said.append("rank %s: %s" % (name[4:], text))
    return "\n".join(said)
