# SPDX-License-Identifier: Apache-2.0
"""One rank: `python -m cddp_torch.child script.py …` records and runs the script as the main program."""
from __future__ import annotations

import os
import sys

import cddp_torch


def main() -> None:
    command = sys.argv[1:]
    directory = os.environ.pop("CDDP_TORCH", "cddp-trace")
    cddp_torch.record(directory, os.environ.get("CDDP_TORCH_LEVEL", "digests"),
                      os.environ.get("CDDP_TORCH_GRADIENTS") == "1", os.environ.get("CDDP_TORCH_INPUTS") == "1")
    os.environ["CDDP_TORCH"] = directory  # for processes that this one spawns
    from cddp_torch import parts

    parts.run_as_main(command)


if __name__ == "__main__":
    main()
