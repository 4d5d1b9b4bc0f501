# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of what backend cddp offers, from the PyTorch that is installed, on init_process_group("cddp").

They are run as they are: torch.testing._internal.distributed.distributed_test, in three ranks, and each begins with a new group.
"""
import json
import os
import sys
import tempfile
import types
import unittest

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent")

import harness  # noqa: E402
import test_process_group as processes  # noqa: E402

# What is tested, and what of it cddp refuses by name or never gets.
PREFIXES = ("test_all_reduce_", "test_broadcast", "test_reduce_", "test_all_gather", "test_barrier", "test_get_rank_size",
            "test_DistributedDataParallelCPU", "test_ddp_zero_output_features", "test_ddp_create_graph",
            "test_ddp_buffer_hook_allreduce", "test_invalid_static_graph", "test_ddp_broadcast_buffer")
REFUSED = ("cuda", "multigpu", "coalesced", "timeout", "result_cuda", "scatter", "object", "sparse", "nccl", "gpu")
ORIGINAL = "torch.testing._internal.distributed.distributed_test"


def load():
    """Needs expecttest, which Debian does not have, for comparisons that none of these tests makes."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:
            stub = types.ModuleType("expecttest")
            stub.TestCase, stub.ACCEPT = unittest.TestCase, False
            sys.modules["expecttest"] = stub
    arguments, sys.argv = sys.argv, sys.argv[:1]  # which it reads
    try:
        from torch.testing._internal import common_distributed
        for feature in ("plugin", "ddp"):
            common_distributed.DistTestCases.backend_feature[feature].add("cddp")
        return __import__(ORIGINAL, fromlist=["DistributedTest"])
    finally:
        sys.argv = arguments


def names_of(module):
    base = module.DistributedTest._DistTestBase
    return [n for n in sorted(dir(base)) if n.startswith(PREFIXES) and not any(word in n for word in REFUSED)]


def run_all(rank):
    import torch.distributed as dist
    dist.barrier()  # rank 0 serves the store: the others may still wait in it for the group to be complete
    module = load()

    class Own(module.DistributedTest._DistTestBase, __import__("torch.testing._internal.common_utils", fromlist=["x"]).TestCase):
        world_size = 3

        def _barrier(self, *arguments, **named):
            dist.barrier()

        def runTest(self):
            pass

    outcome = {}
    from cddp_torch import process_group
    for position, name in enumerate(names_of(module)):
        own = Own()
        own.rank, own._testMethodName = rank, name
        dist.destroy_process_group()
        process_group._close_all()
        dist.init_process_group("cddp", init_method="file://%s/meet.%d" % (os.environ["PLACE"], position), rank=rank, world_size=3)
        dist.barrier()  # a test that skips leaves at once, while others may still connect: PyTorch 2 does not wait for them
        try:
            getattr(own, name)()
            dist.barrier()
            outcome[name] = "passed"
        except unittest.SkipTest as reason:
            outcome[name] = "skipped: %s" % reason
        except SystemExit as end:
            outcome[name] = "skipped: code %s" % end.code
        except BaseException as failure:
            outcome[name] = "FAILED: %s: %s" % (type(failure).__name__, str(failure)[:300])
        with open(os.path.join(os.environ["PLACE"], "outcome.%d" % rank), "w") as file:
            json.dump(outcome, file)


def test_pytorchs_own_tests_pass(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKEND", "cddp")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("TEMP_DIR", tempfile.mkdtemp(dir=str(tmp_path)))
    monkeypatch.setenv("PLACE", str(tmp_path))
    try:
        load()
    except ImportError as failure:
        pytest.skip("this PyTorch comes without its tests: %s" % failure)
    import jobs
    monkeypatch.setattr(jobs, "only_late", run_all)
    codes, said = processes.run("only_late", tmp_path, ranks=3, limit=240.0)
    outcomes = []
    assert all((tmp_path / ("outcome.%d" % rank)).exists() for rank in range(3)), "%s\n%s" % (codes, said[-3000:])
    for rank in range(3):
        with open(str(tmp_path / ("outcome.%d" % rank))) as file:
            outcomes.append(json.load(file))
    failed = {n: [o.get(n) for o in outcomes] for n in outcomes[0] if any("FAILED" in o.get(n, "FAILED") for o in outcomes)}
    passed = [n for n in outcomes[0] if all(o.get(n) == "passed" for o in outcomes)]
    print("\n".join("%s %s" % (n, outcomes[0][n]) for n in outcomes[0]))
    assert codes == [0, 0, 0] and not failed, "%s\n%s" % (json.dumps(failed, indent=1), said[-3000:])
    assert len(passed) >= (40 if torch.__version__.startswith("1.") else 30), outcomes[0]
