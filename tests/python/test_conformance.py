# SPDX-License-Identifier: Apache-2.0
"""hook-conformance of Python hooks: what holds, what is broken, and what nobody can judge."""
import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent")

import harness  # noqa: E402,F401  (the path of the package)
import torch.distributed as dist  # noqa: E402

from cddp_torch import conformance  # noqa: E402


def _gathered(bucket):
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, bucket.buffer())
    return torch.stack(parts)


def _done(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def mean(state, bucket):
    return _done(_gathered(bucket).sum(0) / dist.get_world_size())


def undivided(state, bucket):
    return _done(_gathered(bucket).sum(0))


def largest(state, bucket):
    return _done(_gathered(bucket).max(0).values)


def weighted(state, bucket):
    parts = _gathered(bucket)
    return _done(parts[0] * 0.75 + parts[1:].sum(0) * (0.25 / (len(parts) - 1)))


def misnamed(state, b):
    """PyTorch asks for a parameter `bucket`."""
    return mean(state, b)


def _claims(hook, law):
    def claiming(state, bucket):
        return hook(state, bucket)
    claiming.cddp_law = law
    return claiming


claims_mean_is_mean = _claims(mean, "mean")
claims_mean_is_largest = _claims(largest, "mean")
claims_mean_is_weighted = _claims(weighted, "mean")
lossy_largest = _claims(largest, "lossy")

LAW = '"the result is the mean of what the ranks gave"'


@pytest.mark.parametrize("name, code, words", [
    ("misnamed", 1, ["I-FAIL", "KeyError: 'bucket'"]),
    ("mean", 0, ["one bucket         conforms: bit for bit the mean", "2 of 2 cases conform"]),
    ("claims_mean_is_mean", 0, ["2 of 2 cases conform"]),
    ("undivided", 1, ["BROKEN: I-HOOK", "nobody divides by 2", "0 of 2 cases conform"]),
    ("largest", 4, ["one bucket         not judged: ", "does not make the mean, and does not say what it makes"]),
    ("weighted", 4, ["0 of 2 cases conform", "2 not judged", "cddp_law"]),
    ("lossy_largest", 4, ["2 not judged: the hook is lossy by its own word"]),
    ("claims_mean_is_largest", 1, ["BROKEN: I-HOOK", LAW]),
    ("claims_mean_is_weighted", 1, ["BROKEN: I-HOOK", LAW]),
])
def test_a_card_says_what_was_judged(name, code, words, monkeypatch, capsys):
    monkeypatch.setattr(conformance, "CASES", conformance.CASES[:2])
    assert conformance.run("test_conformance:" + name, None, 2, False) == code
    card = capsys.readouterr().out
    for text in words:
        assert text in card, card


def test_a_card_for_programs_has_the_states(monkeypatch, capsys):
    monkeypatch.setattr(conformance, "CASES", conformance.CASES[:1])
    assert conformance.run("test_conformance:largest", None, 2, True) == 4
    row, = json.loads(capsys.readouterr().out)["cases"]
    assert row["state"] == "not judged" and row["holds"] is False
