# SPDX-License-Identifier: Apache-2.0
"""The commands of python -m cddp_torch: run, compare, hook-conformance, explore."""
from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from typing import List, Optional

from .launch import run

LEVELS = ("order", "buckets", "digests", "payload")


def parse(arguments: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cddp_torch", description="Records PyTorch DDP jobs for cddp-verify.")
    commands = parser.add_subparsers(dest="command", required=True)
    r = commands.add_parser("run", help="run a script and record it",
                            description="Runs a script and records it. With -n it starts that many ranks on this "
                            "machine. Without, it is one rank and takes its place from the environment, as "
                            "torchrun, srun or a script has set it.")
    r.add_argument("-n", "--ranks", type=int, help="how many ranks to start here")
    r.add_argument("-o", "--output", default="cddp-trace", metavar="DIR", help="where the recording goes (%(default)s)")
    r.add_argument("--level", choices=LEVELS, default="digests", help="how much of the content (%(default)s)")
    r.add_argument("--gradients", action="store_true", help="keep the gradients themselves, for the oracle of "
                   "`cddp-verify lift`: 4 bytes per parameter and backward")
    r.add_argument("--inputs", action="store_true", help="keep what each training forward gets, for "
                   "cddp_torch.compare(model, loss, inputs=DIR)")
    r.add_argument("--limit", type=float, metavar="SECONDS", help="end the job after this time")
    r.add_argument("script", nargs=argparse.REMAINDER, help="script.py and its arguments, or -m module")
    c = commands.add_parser("compare", help="hold a recording against cddp on the same gradients",
                            description="Trains cddp on the gradients that `run --gradients` has kept, and lays both "
                            "runs side by side: layouts of buckets, operations, used maps, bits of gradients. Exit "
                            "codes: 0 the same and both verified, 1 not, 2 usage, 3 cddp-verify is not there.")
    c.add_argument("directory", metavar="DIR", help="the recording")
    h = commands.add_parser("hook-conformance", help="check a comm hook against the laws of its interface")
    h.add_argument("hook", metavar="MODULE:HOOK")
    h.add_argument("-n", "--ranks", type=int, default=2, help="how many ranks (%(default)s)")
    h.add_argument("--state", metavar="MODULE:CALL", help="what makes the hook's state; it gets the process group")
    h.add_argument("--json", action="store_true", help="print the card as JSON")
    e = commands.add_parser("explore", help="run a script under many orders of completion",
                            description="Runs a script again and again. One scheduler decides when each operation is "
                            "posted and when it completes, until a run fails or does not end. Exit codes: 0 every run "
                            "ended well, 1 a finding, 2 usage, 3 not possible on this machine, 4 nothing was controlled.")
    e.add_argument("-n", "--ranks", type=int, default=2, help="how many ranks (%(default)s)")
    e.add_argument("--budget", type=int, default=20, metavar="N", help="how many runs at most (%(default)s)")
    e.add_argument("--limit", type=float, default=120.0, metavar="SECONDS",
                   help="a run that takes longer is a finding (%(default)g)")
    e.add_argument("--seed", type=int, default=1, help="of the orders (%(default)s)")
    e.add_argument("--replay", metavar="CHOICES", help="one run, by the choices that a finding printed")
    e.add_argument("script", nargs=argparse.REMAINDER, help="script.py and its arguments, or -m module")
    return parser.parse_args(arguments)


def explore(asked: argparse.Namespace) -> int:
    wrong = ("which script?" if not asked.script else "--budget is at least 1" if asked.budget < 1 else
             "--limit is a time in seconds above 0" if not asked.limit > 0 else None)
    if wrong is not None:
        sys.stderr.write("python -m cddp_torch explore: %s\n" % wrong)
        return 2
    from . import schedules
    return schedules.explore(asked.script, asked.ranks, asked.budget, asked.limit, asked.seed, asked.replay)


def compare(directory: str) -> int:
    from . import comparison
    from .conformance import find_verifier
    if find_verifier() is None:
        sys.stderr.write("python -m cddp_torch compare: cddp-verify is not on the path; CDDP_VERIFY may name it\n")
        return 3
    try:
        found = comparison.of(directory)
    except (ValueError, RuntimeError, OSError) as failure:
        sys.stderr.write("python -m cddp_torch compare: %s\n" % failure)
        return 2
    print(found)
    return 0 if found.ok else 1


def main() -> int:
    if sys.argv[1:] == ["serve"]:  # a rank of cddp-verify has started this process
        from . import serve
        return serve.main()
    asked = parse()
    if importlib.util.find_spec("torch") is None:
        sys.stderr.write("python -m cddp_torch %s: %s has no torch: call the Python that has it\n" % (
            asked.command, sys.executable))
        return 3
    if asked.command == "compare":
        return compare(asked.directory)
    if asked.command == "hook-conformance":
        from . import conformance
        return conformance.run(asked.hook, asked.state, asked.ranks, asked.json)
    if asked.command == "explore":
        return explore(asked)
    if not asked.script:
        sys.stderr.write("python -m cddp_torch run: which script?\n")
        return 2
    if asked.ranks is not None and asked.ranks < 1:
        sys.stderr.write("python -m cddp_torch run: -n is at least 1\n")
        return 2
    if asked.limit is not None and asked.limit <= 0:
        sys.stderr.write("python -m cddp_torch run: --limit is a time in seconds above 0\n")
        return 2
    try:
        os.makedirs(asked.output, exist_ok=True)
    except OSError as failure:
        sys.stderr.write("python -m cddp_torch run: cannot write to %s: %s\n" % (asked.output, failure.strerror))
        return 2
    if asked.gradients:
        os.environ["CDDP_TORCH_GRADIENTS"] = "1"
    if asked.inputs:
        os.environ["CDDP_TORCH_INPUTS"] = "1"
    return run(asked.script, asked.ranks, asked.output, asked.level, asked.limit)


if __name__ == "__main__":
    sys.exit(main())
