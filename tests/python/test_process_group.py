# SPDX-License-Identifier: Apache-2.0
"""init_process_group("cddp"): DDP over this project's backends and compositions."""
import os
import signal
import subprocess
import sys
import time
import traceback

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent")

import harness  # noqa: E402
import jobs  # noqa: E402

LIMIT_S = 60.0


def rank_of(job, rank, environment, log):
    os.environ.update(environment, RANK=str(rank))
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    code = 0
    try:
        sys.argv = ["jobs.py", job]
        jobs.main()
        from cddp_torch import process_group
        process_group._close_all()
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


def run(job, tmp_path, backend="cddp", spec="gloo", ranks=2, limit=LIMIT_S):
    """Ranks are forked from this process, which has imported torch."""
    e = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(harness.free_port()), WORLD_SIZE=str(ranks), OMP_NUM_THREADS="1", USE_LIBUV="0",
             SUM=str(tmp_path / "sum"), BACKEND=backend, CDDP_BACKEND=spec)
    pids = {}
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            rank_of(job, rank, e, str(tmp_path / ("log.%d" % rank)))
        pids[pid] = rank
    codes, began = {}, time.monotonic()
    while len(codes) < ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            codes[pids[pid]] = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        elif time.monotonic() - began > limit:
            for pid, rank in pids.items():
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[r] for r in range(ranks)], harness.logs(str(tmp_path))


def test_ddp_trains_with_the_bits_of_gloo(tmp_path):
    assert run("print_sum", tmp_path, "gloo")[0] == [0, 0]
    wanted = (tmp_path / "sum").read_text()
    codes, said = run("print_sum", tmp_path, "cpu:cddp,cuda:gloo")
    assert codes == [0, 0] and (tmp_path / "sum").read_text() == wanted, said
    for spec in ("gloo", "check:gloo", "rr:2:gloo", "hier:gloo", "fault:seed=7,delay=5ms:gloo"):
        codes, said = run("print_sum", tmp_path, spec=spec)
        assert codes == [0, 0], spec + said
        assert (tmp_path / "sum").read_text() == wanted, spec


def test_operations_and_refusals(tmp_path):
    codes, said = run("operations", tmp_path, spec="check:gloo", ranks=3)
    assert codes == [0, 0, 0], said
    for op in ("reduce_scatter", "gather", "scatter", "alltoall_base", "send"):
        assert "process group cddp (check:gloo) has no %s" % op in said, said


RECORDED = '''
import torch, torch.distributed as dist, cddp_torch.process_group
dist.init_process_group("cddp")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
dist.destroy_process_group()
'''


def test_a_recorded_job_over_cddp_is_verified(tmp_path):
    (tmp_path / "job.py").write_text(RECORDED)
    e = dict(os.environ, CDDP_BACKEND="check:gloo", PYTHONPATH=os.path.join(harness.ROOT, "python"))
    done = subprocess.run([sys.executable, "-m", "cddp_torch", "run", "-n", "2", "-o", str(tmp_path / "trace"), str(tmp_path / "job.py")],
                          env=e, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout
    code, report = harness.check(str(tmp_path / "trace"))
    assert code == 0 and "equal gradients and parameters on all ranks" in " ".join(report.split()), report


def test_check_names_two_ranks_that_disagree(tmp_path):
    codes, said = run("sizes_differ", tmp_path, spec="check:gloo")
    assert 0 not in codes and "cddp: " in said and "rank" in said, said


@pytest.mark.parametrize("spec, words", [("nowhere", "nowhere"), ("chekc:gloo", "chekc"), ("check:nowhere", "nowhere")])
def test_a_backend_that_is_not_there(spec, words, tmp_path):
    codes, said = run("print_sum", tmp_path, spec=spec)
    assert 0 not in codes and "RuntimeError: cddp: " in said and words in said, said


def test_each_device_has_its_backend(tmp_path):
    codes, said = run("dispatches", tmp_path, "cpu:cddp,cuda:gloo,meta:gloo")
    assert codes == [0, 0], said


@pytest.mark.parametrize("backend", ["cpu:gloo, cuda:cddp", "cpu:cddp,cuda", "cpu:cddp,cuda:cddp"])
def test_cddp_is_for_cpus_alone(backend):
    import cddp_torch.process_group  # noqa: F401
    import torch.distributed as dist
    with pytest.raises(RuntimeError, match="cddp has the tensors of CPUs"):
        dist.init_process_group(backend)
