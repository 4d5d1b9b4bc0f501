# SPDX-License-Identifier: Apache-2.0
"""The same gradients through PyTorch and through cddp, and what is refused."""
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent")

import harness  # noqa: E402
import programs  # noqa: E402
from cddp_torch import comparison, gradients, inputs  # noqa: E402

os.environ.setdefault("CDDP_VERIFY", harness.VERIFY)


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = torch.nn.Linear(8, 30), torch.nn.Linear(8, 30), torch.nn.Linear(30, 2)

    def forward(self, x, which):
        return self.c((self.a if which else self.b)(x))


def rows(rank, step):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * rank + step))


def plain(model, rank, step):
    return model(rows(rank, step)).pow(2).mean()


def branches(model, rank, step):
    return model(rows(rank, step), (rank + step) % 2).pow(2).mean()


def in_f64(model, rank, step):
    return model(rows(rank, step).double()).pow(2).mean()


def average():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    return default_hooks.allreduce_hook


CASES = {
    "plain": (programs.mlp, plain, {}),
    "three_ranks_and_buckets": (programs.mlp, plain, dict(ranks=3, bucket_cap_mb=0.004)),
    "four_ranks_in_f64": (lambda: programs.mlp().double(), in_f64, dict(ranks=4, bucket_cap_mb=0.004)),
    "accumulation": (programs.mlp, plain, dict(micro_steps=2, bucket_cap_mb=0.004)),
    "views": (programs.mlp, plain, dict(gradient_as_bucket_view=True, bucket_cap_mb=0.004)),
    "unused": (Branches, branches, dict(find_unused_parameters=True, first_bucket_bytes=256, bucket_cap_mb=0.001)),
    "static_graph": (programs.mlp, plain, dict(static_graph=True, bucket_cap_mb=0.004)),
    "hook": (programs.mlp, plain, dict(ranks=3, hook=average(), bucket_cap_mb=0.004)),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_both_have_the_same_layouts_operations_and_bits(name):
    model, loss, options = CASES[name]
    found = comparison.compare(model, loss, **options)
    assert found.ok, str(found)
    assert found.gradients.count >= 36 and found.used_maps.count == (0 if name not in ("unused", "static_graph") else
                                                                     found.used_maps.count), str(found)
    assert (found.used_maps.count > 0) == (name in ("unused", "static_graph"))


def test_another_gradient_is_named(tmp_path):
    place = str(tmp_path / "recording")
    assert comparison.compare(programs.mlp, plain, directory=place).ok
    path = os.path.join(place, "rank.1.gradients")
    data = bytearray(open(path, "rb").read())
    data[-8 - 4 * 2 + 2] ^= 1  # the last weight but one of the last backward
    open(path, "wb").write(data)
    found = comparison.of(place)
    assert not found.ok and [part.name for part in found.parts if part.differences] == ["gradients"]
    assert str(found).startswith("NOT the same") and found.gradients.differences[0].step == 2, str(found)
    assert "gradient of 4." in str(found.gradients), str(found)


def sum_in_place_of_mean(state, bucket):
    return programs.dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])


sum_in_place_of_mean.__module__ = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
sum_in_place_of_mean.__name__ = sum_in_place_of_mean.__qualname__ = "allreduce_hook"


def test_a_hook_that_claims_the_mean_is_held_to_it():
    found = comparison.compare(programs.mlp, plain, hook=sum_in_place_of_mean)
    assert not found.ok and len(found.gradients.differences) == found.gradients.count, str(found)
    assert found.torch_verdict.startswith("findings: I-"), str(found)


def test_a_fault_is_found_on_recorded_gradients(tmp_path):
    place = str(tmp_path)
    assert comparison.compare(programs.mlp, plain, directory=place).ok
    scenario = os.path.join(place, "recorded.toml")
    with open(scenario, "a", encoding="utf-8") as file:
        file.write('\n[[fault]]\nkind = "bit_flip"\nrank = 1\nwhen = "before"\nat = 2\n')
    code, report = harness.verify("run", scenario)
    assert code == 1 and harness.findings(report), report


def test_gradients_are_written_and_read(tmp_path):
    named = [("a", torch.randn(2, 3)), ("b", torch.randn(0)), ("c", torch.randn(3).double())]
    given = [[torch.randn(2, 3), None, torch.randn(3).double()], [None, torch.randn(0), None]]
    file = gradients.File(gradients.write(str(tmp_path), 1, 2, named, given))
    assert (file.rank, file.world_size, len(file)) == (1, 2, 2)
    assert all(torch.equal(file.initial()[name], value) for name, value in named)
    for row, wanted in enumerate(given):
        found = file.gradients(row)
        assert sorted(found) == [name for (name, _), g in zip(named, wanted) if g is not None]
        assert all(torch.equal(found[name], g) for (name, _), g in zip(named, wanted) if g is not None)
    with pytest.raises(IndexError):
        file.gradients(2)


@pytest.mark.parametrize("row, words", [([torch.zeros(3)], "2 gradients|1 gradients"), ([torch.zeros(2, 2), None], "parameter is"),
                                        ([torch.zeros(2, 3).double(), None], "parameter is")])
def test_gradients_that_do_not_fit_are_refused(row, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        gradients.write(str(tmp_path), 0, 1, [("a", torch.zeros(2, 3)), ("b", torch.zeros(1))], [row])
    assert os.listdir(tmp_path) == []


def test_a_damaged_file_is_refused(tmp_path):
    path = gradients.write(str(tmp_path), 0, 1, [("a", torch.zeros(2))], [[torch.zeros(2)]])
    whole = open(path, "rb").read()
    for damaged, words in ((b"", "no file of gradients"), (b"x" * 400, "no file of gradients"), (whole[:200], "cannot be|cut off"),
                           (whole[:8] + b"\x02" + whole[9:], "version 2")):
        open(path, "wb").write(damaged)
        with pytest.raises(ValueError, match=words):
            gradients.File(path)


def scenario(tmp_path, ranks, **keys):
    for rank in range(2):
        gradients.write(str(tmp_path), rank, 2, [("a", torch.zeros(2, requires_grad=True))], [[torch.ones(2)]])
    lines = ["schema = 1", 'title = "x"', "world.size = %d" % ranks, "train.steps = %d" % keys.get("steps", 1),
             'train.loss = "%s"' % keys.get("loss", "sum"), "data.samples = 1", "[model]", 'name = "recorded"',
             "exact = %s" % keys.get("exact", "false"), 'options = "from=%s"' % keys.get("place", tmp_path)]
    (tmp_path / "s.toml").write_text("\n".join(lines) + "\n")
    return harness.verify("run", str(tmp_path / "s.toml"))


@pytest.mark.parametrize("keys, words", [
    (dict(ranks=3), "the gradients are of 2 ranks, and the scenario has 3"),
    (dict(ranks=2, steps=2), "has the gradients of 1 backwards; number 2 is asked for"),
    (dict(ranks=2, loss="mean"), 'needs train.loss = "sum"'), (dict(ranks=2, exact="true"), "model.exact = false"),
    (dict(ranks=2, place="/nowhere"), "'/nowhere/rank.0.gradients' is not there")])
def test_a_scenario_that_does_not_fit_is_refused(keys, words, tmp_path):
    code, report = scenario(tmp_path, **keys)
    assert code == 2 and words in " ".join(report.split()), report
    assert scenario(tmp_path, 2)[0] == 0


@pytest.mark.parametrize("options, words", [(dict(ranks=0), "ranks is a whole number"), (dict(steps=0.5), "steps is a whole number"),
                                            (dict(first_bucket_bytes=0), "first_bucket_bytes"), (dict(directory="a,b"), "a , or =")])
def test_bad_arguments_are_refused(options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        comparison.compare(programs.mlp, plain, **options)


def raises(model, rank, step):
    raise KeyError("no such batch")


def test_a_loss_that_fails_is_shown():
    with pytest.raises(RuntimeError, match="no such batch"):
        comparison.compare(programs.mlp, raises)


def test_sparse_gradients_are_refused():
    def loss(model, rank, step):
        return model(torch.tensor([[1, 2], [3, rank]])).sum()

    with pytest.raises(RuntimeError, match="sparse gradients cannot be kept"):
        comparison.compare(lambda: torch.nn.Sequential(torch.nn.EmbeddingBag(9, 4, sparse=True)), loss)


def test_the_command(tmp_path):
    def compare(place):
        return subprocess.run([sys.executable, "-m", "cddp_torch", "compare", str(place)], stdout=subprocess.PIPE,
                              env=dict(os.environ, PYTHONPATH=os.path.join(harness.ROOT, "python")),
                              stderr=subprocess.STDOUT, universal_newlines=True)

    comparison.compare(programs.mlp, plain, directory=str(tmp_path / "kept"))
    done = compare(tmp_path / "kept")
    assert done.returncode == 0 and done.stdout.startswith("the same"), done.stdout
    done = compare(tmp_path)
    assert done.returncode == 2 and "record with --gradients" in done.stdout, done.stdout


JOB = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.manual_seed(11)

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 40), torch.nn.Linear(40, 2)

    def forward(self, batch, scale=1.0):
        return self.b(torch.relu(self.a(batch["x"]))) * scale

ddp = DDP(Scaled())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    g = torch.Generator().manual_seed(10 * dist.get_rank() + step)
    batch = {"x": torch.randn(4, 8, generator=g), "names": ["a", None], "odd": %s}
    ddp(batch, scale=0.1 + step).pow(2).mean().backward()
    batch["x"].zero_()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 40), torch.nn.Linear(40, 2)

    def forward(self, batch, scale=1.0):
        return self.b(torch.relu(self.a(batch["x"]))) * scale


def recorded_job(tmp_path, odd="1.5"):
    (tmp_path / "job.py").write_text(JOB % odd)
    done = subprocess.run([sys.executable, "-m", "cddp_torch", "run", "-n", "2", "--gradients", "--inputs", "-o",
                           str(tmp_path / "job"), str(tmp_path / "job.py")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=dict(os.environ, PYTHONPATH=os.path.join(harness.ROOT, "python")), universal_newlines=True)
    assert done.returncode == 0, done.stdout
    return str(tmp_path / "job"), done.stdout


def of_output(output, rank, step):
    return output.pow(2).mean()


def test_a_job_is_trained_again_from_its_parameters_and_inputs(tmp_path):
    job, _ = recorded_job(tmp_path)
    again = str(tmp_path / "again")
    found = comparison.compare(Scaled, of_output, inputs=job, directory=again, lr=0.1, seed=5)
    assert found.ok and (found.ranks, found.steps) == (2, 3), str(found)
    for rank in range(2):
        one, other = (gradients.File(os.path.join(place, "rank.%d.gradients" % rank)) for place in (job, again))
        assert len(one) == len(other) == 3
        assert all(torch.equal(value, other.initial()[name]) for name, value in one.initial().items())
        for backward in range(3):
            a, b = one.gradients(backward), other.gradients(backward)
            assert sorted(a) == sorted(b) and all(torch.equal(a[name], b[name]) for name in a)
    # One number of one input is another one: so are the gradients of that step, and those of the next.
    forwards = [inputs.File(os.path.join(job, "rank.1.inputs")).forward(k) for k in range(3)]
    forwards[1][0][0]["x"][0, 0] += 1
    inputs.write(job, 1, 2, forwards)
    assert comparison.compare(Scaled, of_output, inputs=job, directory=again, lr=0.1).ok
    a, b = (gradients.File(os.path.join(place, "rank.1.gradients")) for place in (job, again))
    assert [torch.equal(a.gradients(k)["a.weight"], b.gradients(k)["a.weight"]) for k in range(3)] == [True, False, False]
    for words, options in (("forwards, and micro_steps is 2", dict(micro_steps=2)), ("would be overwritten", dict(directory=job))):
        with pytest.raises(ValueError, match=words):
            comparison.compare(Scaled, of_output, inputs=job, **options)
    os.unlink(os.path.join(job, "rank.1.inputs"))
    with pytest.raises(ValueError, match="none of rank 1"):
        comparison.compare(Scaled, of_output, inputs=job)
    with pytest.raises(ValueError, match="record with --inputs"):
        comparison.compare(Scaled, of_output, inputs=again)


def test_inputs_that_cannot_be_kept_are_said_and_the_job_goes_on(tmp_path):
    job, said = recorded_job(tmp_path, "{1, 2}")
    assert "no inputs are kept: an argument of type set" in said and harness.check(job)[0] == 0
    assert sorted(name for name in os.listdir(job) if name.endswith(("inputs", "gradients"))) == ["rank.0.gradients", "rank.1.gradients"]


def test_a_module_takes_the_parameters_of_a_recording(tmp_path):
    file = gradients.File(gradients.write(str(tmp_path), 0, 1, list(Scaled().named_parameters()), []))
    module = Scaled()
    file.load(module)
    assert all(torch.equal(p, file.initial()[name]) for name, p in module.named_parameters())
    for other, words in ((torch.nn.Linear(2, 2), "has none of that name"), (Scaled().double(), "as torch.float64"),
                         (torch.nn.ModuleDict(dict(a=module.a, b=module.b, c=torch.nn.Linear(1, 1))), "'c.weight'")):
        with pytest.raises(ValueError, match=words):
            file.load(other)


def test_inputs_are_written_and_read(tmp_path):
    tensors = [torch.randn(2, 3, dtype=dtype) if dtype.is_floating_point else torch.ones(2, 3).to(dtype)
               for dtype in inputs.DTYPES.values()]
    given = [((tensors, (torch.empty(0, 4), 1, -2.5, None, True)), {"a": {"b": [float("inf"), "\u00e4"]}}),
             ((torch.arange(12).view(3, 4).t(),), {})]
    file = inputs.File(inputs.write(str(tmp_path), 1, 3, given))
    assert (file.rank, file.world_size, len(file)) == (1, 3, 2)
    (found, rest), named = file.forward(0)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, tensors)) and len(found) == len(tensors)
    assert rest[0].shape == (0, 4) and rest[1:] == (1, -2.5, None, True) and type(rest) is tuple
    assert named == {"a": {"b": [float("inf"), "\u00e4"]}}
    assert torch.equal(file.forward(1)[0][0], given[1][0][0])
    with pytest.raises(IndexError):
        file.forward(2)
    with pytest.raises(ValueError, match="forward 0 has an argument of type object"):
        inputs.write(str(tmp_path), 0, 1, [((object(),), {})])
    assert os.listdir(tmp_path) == ["rank.1.inputs"]


def test_a_damaged_file_of_inputs_is_refused(tmp_path):
    path = inputs.write(str(tmp_path), 0, 1, [((torch.ones(4),), {}), ((torch.ones(4),), {})])
    whole = open(path, "rb").read()

    def file(data):
        open(path, "wb").write(data)
        return inputs.File(path)

    assert len(file(whole)) == 2 and len(file(whole[:-1])) == 1  # killed while it wrote
    for damaged, words in ((b"", "no file of inputs"), (whole[:8] + b"\x02" + whole[9:], "version 2")):
        with pytest.raises(ValueError, match=words):
            file(damaged)
    for a, b in ((b'"shape":[4]', b'"shape":[9]'), (b'"shape":[4]', b'"shape":[2]'), (b'"f32"', b'"f33"'), (b'"list"', b'"lisp"')):
        assert a in whole
        with pytest.raises(ValueError, match="forward 0 of .* cannot be read"):
            file(whole.replace(a, b, 1)).forward(0)
