# SPDX-License-Identifier: Apache-2.0
"""Starts ranks, watches them, and writes a note of how each of them ended.

Only a parent sees "killed by signal 9". The note of a rank lies beside its shard, as rank.3.exit.
"""
from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from typing import Dict, List, Optional, Set

GRACE_S = 30.0  # for the others, once a rank has failed


def free_port() -> int:
    """A port that no connection takes by itself before rank 0 listens: below those that the system gives out."""
    first, end = 15000, 32768
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
            end = max(first + 1000, min(end, int(f.read().split()[0])))
    except (OSError, ValueError, IndexError):
        pass
    draw = random.SystemRandom()
    for _ in range(100):
        port = draw.randrange(first, end)
        with socket.socket() as s:
            try:
                s.bind(("", port))
                return port
            except OSError:
                continue
    with socket.socket() as s:
        s.bind(("", 0))
        return int(s.getsockname()[1])


def store_that_every_build_has() -> None:
    """Ranks that start here meet at PyTorch's plain store: PyTorch 2 asks for the one of libuv, which some builds lack."""
    os.environ.setdefault("USE_LIBUV", "0")


def _environment(rank: int, ranks: int, port: int) -> Dict[str, str]:
    store_that_every_build_has()
    e = dict(os.environ)
    e.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
             GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    e.setdefault("OMP_NUM_THREADS", "1")
    return e


class Job:
    """The ranks of this machine."""

    def __init__(self, directory: str, level: str, command: List[str]) -> None:
        self.directory, self.level, self.command = directory, level, command
        self.processes: "Dict[int, subprocess.Popen[bytes]]" = {}
        self.generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.stopped: Optional[int] = None
        self.is_late: Set[int] = set()

    def start(self, rank: int, environment: Dict[str, str]) -> None:
        environment["CDDP_TORCH"] = self.directory
        environment["CDDP_TORCH_LEVEL"] = self.level
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment["PYTHONPATH"] = os.pathsep.join([here] + ([environment["PYTHONPATH"]]
                                                              if environment.get("PYTHONPATH") else []))
        self.processes[rank] = subprocess.Popen([sys.executable, "-m", "cddp_torch.child"] + self.command,
                                                env=environment)

    def note(self, rank: int, code: int) -> None:
        """One line per fact; read by cddp-verify check."""
        name = "rank.%d" % rank if self.generation == 0 else "rank.%d.%d" % (rank, self.generation)
        lines = ["cddp exit note 1", "rank %d" % rank, "world_size %s" % self.world_size,
                 "generation %d" % self.generation]
        if code < 0:
            lines.append("signal %d" % -code)
        else:
            lines.append("code %d" % code)
        if rank in self.is_late:
            lines.append("stopped 1" if self.stopped is None else "interrupted 1")
        path = os.path.join(self.directory, name + ".exit")
        try:
            with open(path + ".part", "w", encoding="ascii") as file:
                file.write("\n".join(lines) + "\n")
            os.replace(path + ".part", path)
        except OSError as failure:  # the disk is full, or the folder is gone: the job goes on
            sys.stderr.write("cddp_torch: how rank %d ended (%s) could not be written: %s\n"
                             % (rank, lines[4], failure))

    def stop(self, number: int) -> None:
        for rank, p in self.processes.items():
            if p.poll() is None:
                self.is_late.add(rank)
                p.send_signal(number)

    def wait(self, limit_s: Optional[float]) -> int:
        """Until all have ended. Once one has failed the others get some time, then a signal."""
        began, failed_at, worst = time.monotonic(), None, 0
        left = dict(self.processes)
        killed = False
        while left:
            for rank, p in list(left.items()):
                code = p.poll()
                if code is None:
                    continue
                del left[rank]
                self.note(rank, code)
                if code != 0 and failed_at is None:
                    failed_at = time.monotonic()
                    worst = code if code > 0 else 128 - code
            now = time.monotonic()
            is_over = limit_s is not None and now - began > limit_s
            has_failed = failed_at is not None and now - failed_at > grace()
            if left and (is_over or has_failed or self.stopped is not None) and not killed:
                killed = True
                if is_over and limit_s is not None:
                    sys.stderr.write("cddp_torch: the job is ended after its limit of %g s\n" % limit_s)
                if is_over and worst == 0:
                    worst = 124
                self.stop(signal.SIGTERM)
                kill_at = now + 5.0
            if killed and left and now > kill_at:
                self.stop(signal.SIGKILL)
            time.sleep(0.01)
        return worst if self.stopped is None else 128 + self.stopped


def grace() -> float:
    return float(os.environ.get("CDDP_TORCH_GRACE_S", GRACE_S))


def _remove_older(directory: str) -> None:
    """What an earlier job left in the folder; nothing that is not ours."""
    for name in os.listdir(directory):
        parts = name.split(".")
        if parts[0] == "rank" and len(parts) > 1 and parts[1].isdigit():
            os.unlink(os.path.join(directory, name))


def run(command: List[str], ranks: Optional[int], directory: str, level: str, limit_s: Optional[float]) -> int:
    os.makedirs(directory, exist_ok=True)
    directory = os.path.abspath(directory)
    job = Job(directory, level, command)

    def forward(number: int, frame: object) -> None:
        job.stopped = number

    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, forward)
    if ranks is not None:
        _remove_older(directory)
        job.world_size = ranks
        port, number = free_port(), "%s-%d-%d" % (socket.gethostname(), os.getpid(), time.time_ns())
        for rank in range(ranks):
            e = _environment(rank, ranks, port)
            e["CDDP_TORCH_JOB"] = number
            job.start(rank, e)
    else:
        job.start(int(os.environ.get("RANK", "0")), dict(os.environ))
    return job.wait(limit_s)
