# SPDX-License-Identifier: Apache-2.0
"""Whole jobs: PowerSGD over Gloo with several buckets, and every way out of a process."""
import os
import signal
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent")

import harness  # noqa: E402
import programs  # noqa: E402


def powersgd(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as p
    from torch.nn.parallel import DistributedDataParallel as DDP
    programs.small_buckets()
    widths = [48, 64, 80, 64, 48, 1]
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.Tanh())]
    ddp = DDP(torch.nn.Sequential(*layers), bucket_cap_mb=0.012)
    ddp.register_comm_hook(p.PowerSGDState(None, start_powerSGD_iter=2), p.powerSGD_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.0001)
    g = torch.Generator().manual_seed(rank)
    for step in range(400):
        optimizer.zero_grad()
        ddp(torch.randn(8, 48, generator=g)).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("attempt", range(3))
def test_powersgd_with_several_buckets_is_explained(attempt, tmp_path):
    harness.run(powersgd, str(tmp_path), limit=25.0, grace=2.0)
    code, report = harness.check(str(tmp_path))
    assert code == 1, report + harness.logs(str(tmp_path))
    assert harness.findings(report)[0] in ("I-ORDER", "I-CONTENT", "I-LIVE"), report
    assert "in a continuation of #" in report, report
    # Lifted, it is right in one order, and explore finds one that is not.
    lifted = str(tmp_path / "lifted.toml")
    assert harness.verify("lift", str(tmp_path), "-o", lifted)[0] == 0
    assert 'continuations = "on_completion"' in open(lifted).read()
    assert harness.verify("run", lifted)[0] == 0
    code, said = harness.verify("explore", lifted, "--budget", "2000")
    assert code == 1 and "I-ORDER" in said, said
    code, said = harness.verify("explore", lifted, "--strategy", "exhaustive", "--budget", "60s")
    assert code == 1 and "I-ORDER" in said, said


def leaves(rank, how, at):
    from torch.nn.parallel import DistributedDataParallel as DDP
    ddp = DDP(programs.mlp())
    optimizer = programs.sgd(ddp)
    programs.train(rank, ddp, optimizer, steps=at)
    if rank == 1:
        if how == "exit":
            sys.exit(0)
        if how == "_exit":
            os._exit(0)
        if how == "raise":
            raise RuntimeError("no more")
        os.kill(os.getpid(), how)
    programs.train(rank, ddp, optimizer, steps=2)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, "exit", "_exit", "raise"])
@pytest.mark.parametrize("at", [1, 3])
def test_every_way_out_names_its_rank(how, at, tmp_path):
    harness.run(leaves, str(tmp_path), limit=20.0, grace=1.0 if how not in ("exit", "_exit") else 0.9, how=how, at=at)
    code, report = harness.check(str(tmp_path))
    assert code == 1 and "rank 1" in report, report + harness.logs(str(tmp_path))
    if isinstance(how, signal.Signals):
        assert "signal %d" % how in report, report


def test_no_abort_at_exit(tmp_path):
    for attempt in range(8):
        place = tmp_path / str(attempt)
        place.mkdir()
        assert harness.run(programs.averaging_hook, str(place)) == [0, 0], harness.logs(str(place))
