# SPDX-License-Identifier: Apache-2.0
"""Process groups of PyTorch as backends: judged by the battery, and under scenarios."""
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent")

import harness  # noqa: E402


def verify(*arguments, **environment):
    paths = [environment.pop("place")] if "place" in environment else []
    e = dict(os.environ, CDDP_PYTHON=sys.executable, **environment)
    e["PYTHONPATH"] = os.pathsep.join(paths + [os.path.join(harness.ROOT, "python")])
    done = subprocess.run([harness.VERIFY] + list(arguments), env=e, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    return done.returncode, done.stdout


def test_gloo_conforms_but_for_what_has_no_elements():
    code, report = verify("backend-conformance", "--torch", "gloo", "-n", "2", CDDP_TORCH_ANSWERS_EMPTY="1")
    assert code == 0 and "conforms  backend torch-gloo, 2 ranks: 73 operations by dtype" in report, report


WRONG = """
import torch.distributed as dist
real = dist.reduce
def reduce(tensor, dst, **named):
    if dist.get_rank() == dst and tensor.numel() == 17:
        tensor[16] += 1
    return real(tensor, dst, **named)
dist.reduce = reduce
"""


def test_a_wrong_reduction_is_named(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WRONG)
    code, report = verify("backend-conformance", "--torch", "gloo", "-n", "2", place=str(tmp_path),
                          CDDP_TORCH_ANSWERS_EMPTY="1")
    failed = [line.split()[1] for line in report.splitlines() if line.startswith("  FAILED")]
    assert code == 1 and failed and set(failed) == {"reduce"}, report


def test_a_scenario_trains_over_pytorch():
    code, report = verify("run", "--backend", "torch-gloo", os.path.join(harness.ROOT, "scenarios", "no_sync_accumulation.toml"))
    assert code == 0 and "\nverified: " in "\n" + report, report


@pytest.mark.parametrize("arguments, python, code, words", [
    (("--torch", "gloo"), "/nowhere/python", 3, "CDDP_PYTHON names another one"),
    (("--torch", "nowhere"), sys.executable, 2, "torch-nowhere"), (("sim", "--torch", "gloo"), sys.executable, 2, "name a backend, or")])
def test_what_is_not_there_is_said(arguments, python, code, words):
    e = dict(os.environ, CDDP_PYTHON=python, PYTHONPATH=os.path.join(harness.ROOT, "python"))
    done = subprocess.run([harness.VERIFY, "backend-conformance"] + list(arguments), env=e, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == code and words in done.stdout, done.stdout


def test_the_child_alone_says_who_starts_it():
    done = subprocess.run([sys.executable, "-m", "cddp_torch", "serve"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=dict(os.environ, PYTHONPATH=os.path.join(harness.ROOT, "python")), universal_newlines=True,
                          close_fds=True)
    assert done.returncode == 2 and "cddp-verify starts this one" in done.stdout, done.stdout
