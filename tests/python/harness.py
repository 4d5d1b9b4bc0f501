# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, recorded, and asks cddp-verify about it.

Ranks are forked from this process, which has imported torch: a program takes a fraction of a second.
"""
import os
import signal
import subprocess
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "python"))

VERIFY = os.environ.get("CDDP_VERIFY", os.path.join(ROOT, "build", "release", "bin", "cddp-verify"))


def free_port():
    from cddp_torch import launch

    return launch.free_port()


def _rank(program, rank, ranks, port, directory, level, arguments):
    import datetime

    import torch
    import torch.distributed as dist

    import cddp_torch
    from cddp_torch import launch

    log = os.open(os.path.join(directory, "log.%d" % rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    code = 0
    try:
        torch.set_num_threads(1)
        launch.store_that_every_build_has()
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
        if level is not None:
            cddp_torch.record(directory, level)
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
        torch.manual_seed(0)
        program(rank, **arguments)
        dist.barrier()
        dist.destroy_process_group()
        if level is not None and cddp_torch.failure() is not None:
            code = 97
    except SystemExit as end:
        code = end.code or 0
    except BaseException as failure:
        from cddp_torch import recorder
        traceback.print_exc()
        if recorder.current is not None:
            recorder.current.end(recorder.ABORTED, "%s: %s" % (type(failure).__name__, str(failure).split("\n")[0]))
        code = 1
    sys.stdout.flush()
    cddp_torch.stop()
    os._exit(code)


def _import_once():
    """PyTorch 2 imports most of itself when the first optimizer is made. Ranks need not do that, each for itself."""
    import torch

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def run(program, directory, ranks=2, level="digests", limit=40.0, grace=1.5, **arguments):
    """The codes of all ranks, negative for signals; None where one had to be stopped."""
    from cddp_torch import launch

    _import_once()
    port = free_port()
    pids = {}
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            _rank(program, rank, ranks, port, directory, level, arguments)
        pids[pid] = rank
    job = launch.Job(directory, level or "order", [])
    job.world_size = ranks
    codes, began, failed = {}, time.monotonic(), None
    while len(codes) < ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            rank = pids[pid]
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            if level is not None:
                job.note(rank, 0 if code == 97 else code)
            codes[rank] = None if rank in job.is_late else code
            if failed is None and len(codes) < ranks and (code != 0 or grace < 1.5):
                failed = time.monotonic()
            continue
        now = time.monotonic()
        if now - began > limit or (failed is not None and now - failed > grace):
            for pid, rank in pids.items():
                if rank not in codes:
                    job.is_late.add(rank)
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[r] for r in range(ranks)]


def check(directory):
    """Exit code and report of cddp-verify check. A hang here is one after seconds: tests do not wait for half a minute."""
    return verify("check", directory, "-v", "--stall", "5s")


def verify(*arguments):
    """Exit code and what cddp-verify says."""
    done = subprocess.run([VERIFY] + list(arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    return done.returncode, done.stdout


def lift_and_run(directory):
    """Exit code and report of the scenario that was lifted from a recording."""
    job = os.path.join(directory, "job.toml")
    subprocess.check_call([VERIFY, "lift", directory, "--stall", "1s", "-o", job], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = subprocess.run([VERIFY, "run", job], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    return done.returncode, done.stdout


def logs(directory):
    text = ""
    for name in sorted(os.listdir(directory)):
        if name.startswith("log."):
            with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as file:
                text += "--- %s\n%s" % (name, file.read())
    return text


def findings(report):
    return [line.split()[0] for line in report.splitlines() if line.startswith("  I-")]


__all__ = ["HERE", "ROOT", "VERIFY", "check", "findings", "lift_and_run", "logs", "run"]
