# SPDX-License-Identifier: Apache-2.0
"""The package itself: its writers, its wheel, and the ways into a process."""
import ctypes
import os
import subprocess
import sys
import zipfile

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent")

import harness  # noqa: E402
import programs  # noqa: E402
from cddp_torch import events, hashing, recorder, writer  # noqa: E402

SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DDP(torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.ReLU(), torch.nn.Linear(40, 2)))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    g = torch.Generator().manual_seed(10 * dist.get_rank() + step)
    ddp(torch.randn(4, 8, generator=g)).pow(2).mean().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


def library():
    found = writer.find_library()
    if found is None:
        pytest.skip("libcddp_trace.so is not built")
    return ctypes.CDLL(found)


def test_a_folder_that_is_gone_ends_no_job(tmp_path, capfd):
    from cddp_torch import launch

    job = launch.Job(str(tmp_path / "gone"), "order", [])
    job.world_size = 2
    job.processes = {rank: subprocess.Popen(["true"]) for rank in range(2)}
    assert job.wait(30.0) == 0
    assert "how rank 1 ended (code 0) could not be written" in capfd.readouterr().err


def test_names_have_the_digests_of_the_library():
    c = library()
    c.cddp_shard_digest.restype = ctypes.c_uint64
    c.cddp_shard_digest.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]
    data = bytes((7 * i + 3) % 256 for i in range(240))
    for count in range(1, 241):
        assert c.cddp_shard_digest(data[:count], count, 1 << 62) == hashing.digest(data[:count])


def test_kinds_and_schema_are_those_of_the_library():
    c = library()
    c.cddp_shard_schema.restype = ctypes.c_uint64
    assert c.cddp_shard_schema() == events.TABLE.schema
    for name, number in events.KIND.items():
        assert c.cddp_shard_kind(name.encode()) == number


def test_a_library_with_other_events_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("CDDP_TRACE_LIBRARY", "")
    assert writer.find_library() is None
    monkeypatch.setenv("CDDP_TRACE_LIBRARY", str(tmp_path / "none.so"))
    assert writer.find_library() is None


def test_projection_of_python_is_that_of_the_library(tmp_path):
    library()
    w = writer.open_shard(writer.Options(str(tmp_path / "rank.0"), 0, 1, 0, 1, 0, "test"))
    tensor = torch.randn(1001)
    by_c = w.project(tensor.data_ptr(), tensor.numel(), 1)
    by_torch = recorder._project_by_torch(tensor)
    w.close()
    assert by_c == pytest.approx(by_torch, rel=1e-12)


def test_python_alone_records_what_the_library_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("CDDP_TRACE_LIBRARY", "")
    codes = harness.run(programs.several_buckets, str(tmp_path))
    assert codes == [0, 0], harness.logs(str(tmp_path))
    code, report = harness.check(str(tmp_path))
    assert code == 4 and harness.findings(report) == [], report
    assert "collectives posted by several ranks" in report
    assert "without digests" in harness.logs(str(tmp_path))


def test_python_alone_finds_a_crossed_order(tmp_path, monkeypatch):
    monkeypatch.setenv("CDDP_TRACE_LIBRARY", "")
    harness.run(programs.two_collectives_exchanged, str(tmp_path), limit=6.0)
    code, report = harness.check(str(tmp_path))
    assert code == 1 and harness.findings(report)[0] == "I-ORDER", report


def parameters(rank, place, inner):
    made = []
    original = torch.nn.parallel.DistributedDataParallel.__init__

    def keep(self, *args, **named):
        original(self, *args, **named)
        made.append(self)

    torch.nn.parallel.DistributedDataParallel.__init__ = keep
    inner(rank)
    flat = torch.cat([p.detach().reshape(-1) for ddp in made for p in ddp.parameters()])
    with open(os.path.join(place, "values.%d" % rank), "wb") as file:
        file.write(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))


@pytest.mark.parametrize("name", ["several_buckets", "accumulation_with_views", "unused_search", "averaging_hook"])
def test_the_job_has_the_same_bits(name, tmp_path):
    values = []
    for level in (None, "order", "digests"):
        place = tmp_path / str(level)
        place.mkdir()
        codes = harness.run(parameters, str(place), level=level, place=str(place), inner=programs.CLEAN[name])
        assert codes == [0, 0], harness.logs(str(place))
        values.append((place / "values.0").read_bytes())
    assert values[0] and values[0] == values[1] == values[2]


def fails_in_the_middle(rank):
    from torch.nn.parallel import DistributedDataParallel as DDP

    from cddp_torch import recorder as inside
    ddp = DDP(programs.mlp())
    optimizer = programs.sgd(ddp)
    programs.train(rank, ddp, optimizer, steps=2)

    def broken(*arguments):
        raise RuntimeError("planted")

    inside.current.writer.emit = broken
    programs.train(rank, ddp, optimizer, steps=2)
    assert not inside.current.on


def test_a_failure_of_the_recorder_leaves_the_job_alone(tmp_path):
    codes = harness.run(fails_in_the_middle, str(tmp_path))
    assert codes == [97, 97], harness.logs(str(tmp_path))  # the program came to its end, the recording did not
    assert "the recording of rank 0 ends here: RuntimeError: planted" in harness.logs(str(tmp_path))
    assert harness.check(str(tmp_path))[0] == 4


def test_a_disk_without_room_leaves_the_job_alone(tmp_path):
    (tmp_path / "rank.0").write_text("somebody's file")
    codes = harness.run(programs.plain, str(tmp_path))
    assert codes[0] == 97, harness.logs(str(tmp_path))
    assert (tmp_path / "rank.0").read_text() == "somebody's file"


def build(tmp_path, environment):
    done = subprocess.run([sys.executable, "-c", "import build_wheel; print(build_wheel.build_wheel(%r))" % str(tmp_path)],
                          cwd=os.path.join(harness.ROOT, "python"), env=dict(os.environ, **environment),
                          stdout=subprocess.PIPE, universal_newlines=True, check=True)
    return tmp_path / done.stdout.strip()


def test_the_wheel_builds_offline_and_records_by_the_environment(tmp_path):
    wheel = build(tmp_path, {})
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        z.extractall(tmp_path / "site")
    assert "cddp_torch/events.def" in names and "cddp_torch.pth" in names
    (tmp_path / "train.py").write_text(SCRIPT)
    port, ranks = str(harness.free_port()), []
    for rank in range(2):
        e = dict(os.environ, CDDP_TORCH=str(tmp_path / "trace"), RANK=str(rank), WORLD_SIZE="2",
                 MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1", USE_LIBUV="0")
        command = "import site, runpy; site.addsitedir(%r); runpy.run_path(%r, run_name='__main__')" % (
            str(tmp_path / "site"), str(tmp_path / "train.py"))
        ranks.append(subprocess.Popen([sys.executable, "-c", command], env=e))
    assert [r.wait() for r in ranks] == [0, 0]
    code, report = harness.check(str(tmp_path / "trace"))
    assert code == 0, report


def test_without_the_library_the_wheel_is_for_any_machine(tmp_path):
    assert build(tmp_path, {"CDDP_TRACE_LIBRARY": ""}).name.endswith("py3-none-any.whl")


def command(*arguments, **options):
    e = dict(os.environ, PYTHONPATH=os.path.join(harness.ROOT, "python"))
    return subprocess.run([sys.executable, "-m", "cddp_torch"] + list(arguments), env=e, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, **options)


def test_run_starts_ranks_and_notes_how_they_end(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = command("run", "-n", "2", "train.py", cwd=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "code 0" in (tmp_path / "cddp-trace" / "rank.1.exit").read_text()
    assert harness.check(str(tmp_path / "cddp-trace"))[0] == 0


def test_run_says_what_became_of_a_rank_that_never_began(tmp_path):
    (tmp_path / "train.py").write_text("import os, sys\nif os.environ['RANK'] == '1': sys.exit(5)\n" + SCRIPT)
    e = {"CDDP_TORCH_GRACE_S": "1"}
    os.environ.update(e)
    done = command("run", "-n", "2", "train.py", cwd=str(tmp_path))
    assert done.returncode == 5, done.stdout


def test_what_a_job_of_torchrun_left_is_never_mixed_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    places = [tmp_path / name for name in ("earlier", "later")]
    for place in places:
        place.mkdir()
        assert harness.run(programs.plain, str(place)) == [0, 0], harness.logs(str(place))
        assert harness.check(str(place))[0] == 0
    os.replace(places[0] / "rank.1", places[1] / "rank.1")  # as if rank 1 had died before it recorded anything
    code, report = harness.check(str(places[1]))
    assert code not in (0, 1) and "are of different jobs" in " ".join(report.split()), report


def attached(rank, place, skips):
    """A program that wraps first and records afterwards."""
    import cddp_torch

    ddp = programs.DDP(programs.mlp())
    optimizer = programs.sgd(ddp)
    programs.train(rank, ddp, optimizer, steps=2)
    cddp_torch.record(place)
    cddp_torch.attach(ddp, optimizer)
    for step in range(2, 5):
        x, y = programs.batch(rank, step)
        optimizer.zero_grad()
        programs.F.cross_entropy(ddp(x), y).backward()
        if not (skips and rank == 1 and step == 3):
            optimizer.step()
    assert cddp_torch.is_recording() and cddp_torch.failure() is None


@pytest.mark.parametrize("skips", [False, True])
def test_a_module_that_was_wrapped_earlier_is_attached(skips, tmp_path):
    codes = harness.run(attached, str(tmp_path), level=None, place=str(tmp_path), skips=skips)
    assert codes == [0, 0], harness.logs(str(tmp_path))
    code, report = harness.check(str(tmp_path))
    if skips:
        assert code == 1 and harness.findings(report)[0] in ("I-PARAMEQ", "I-STEP"), report
    else:
        assert code == 4 and harness.findings(report) == [] and "wrapped before the recording" in " ".join(report.split()), report


def numbers_in(path):
    """Of a file of numpy's format, without numpy."""
    data = open(path, "rb").read()
    assert data[:8] == b"\x93NUMPY\x01\x00" and b"'<f4'" in data[:128], data[:128]
    begin = 10 + int.from_bytes(data[8:10], "little")
    assert begin % 64 == 0
    return torch.frombuffer(bytearray(data[begin:]), dtype=torch.float32)


def test_payload_of_the_last_steps_is_written_when_something_fails(tmp_path):
    harness.run(programs.raises, str(tmp_path), level="payload", limit=20.0)
    place = tmp_path / "payload"
    assert sorted(os.listdir(place / "rank.1")) == ["step.0", "step.1"]  # rank 1 ends after two steps
    given = [numbers_in(place / ("rank.%d" % rank) / "step.1" / "000-bucket0-in.npy") for rank in range(2)]
    result = numbers_in(place / "rank.1" / "step.1" / "001-bucket0-out.npy")
    assert torch.equal(result, given[0] + given[1]) and bool(result.any())
    clean = tmp_path / "clean"
    clean.mkdir()
    assert harness.run(programs.plain, str(clean), level="payload") == [0, 0] and not (clean / "payload").exists()


def test_type_hints_hold(tmp_path):
    pytest.importorskip("mypy", reason="mypy is absent")
    done = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "cddp_torch"],
                          cwd=os.path.join(harness.ROOT, "python"), stdout=subprocess.PIPE, universal_newlines=True)
    assert done.returncode == 0, done.stdout


def test_run_needs_a_script():
    assert command("run", "-n", "2").returncode == 2
    assert command("run", "-n", "0", "x.py").returncode == 2


def test_every_reduction_has_its_name():
    import torch.distributed as dist
    from cddp_torch import parts
    for name in parts.REDUCTIONS:
        if hasattr(dist.ReduceOp, name):
            assert parts.reduction_name(getattr(dist.ReduceOp, name)) == name
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    assert parts.reduction_name(options.reduceOp) == "MAX"
    assert parts.reduction_name(object()) is None


def unnamed(rank):
    programs.plain(rank)
    group = programs.dist.distributed_c10d._get_default_group()
    options = programs.dist.AllreduceOptions()
    from cddp_torch import parts
    real, parts.reduction_name = parts.reduction_name, lambda op: None
    group.allreduce([torch.ones(3)], options).wait()
    parts.reduction_name = real


def test_a_reduction_without_a_name_is_said_and_not_judged(tmp_path):
    assert harness.run(unnamed, str(tmp_path)) == [0, 0]
    code, report = harness.check(str(tmp_path))
    assert code == 0 and harness.findings(report) == [], report
    assert "no name here (ReduceOp): its result is not judged" in harness.logs(str(tmp_path))


def test_pip_installs_it_offline_and_the_environment_records(tmp_path):
    """`pip install ./python`, for real: Debian calls its torch 1.13.0a0, which is before 1.13."""
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(tmp_path / "venv")], check=True)
    e = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--no-index",
                           os.path.join(harness.ROOT, "python")], env=e,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if "No module named pip" in done.stdout:
        pytest.skip("no pip for %s" % sys.executable)
    assert done.returncode == 0 and "Successfully installed cddp-torch" in done.stdout, done.stdout
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run([python, "-m", "cddp_torch", "run", "-n", "2", "train.py"], cwd=str(tmp_path), env=e,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0 and "nothing is recorded" not in done.stdout, done.stdout
    code, report = harness.check(str(tmp_path / "cddp-trace"))
    assert code == 0, report
