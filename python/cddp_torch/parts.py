# SPDX-License-Identifier: Apache-2.0
"""What process groups in Python share: names of reductions, and what goes to the group behind them."""
from __future__ import annotations

import os
import runpy
import sys
from typing import Any, Callable, List, Optional

import torch.distributed as dist

# cddp_red_op
REDUCTIONS = {"SUM": 0, "AVG": 1, "MIN": 2, "MAX": 3, "PRODUCT": 4, "PREMUL_SUM": 5, "BAND": 6, "BOR": 7, "BXOR": 8}


def reduction_name(op: Any) -> Optional[str]:
    """Of a ReduceOp of any version, whose print says nothing in some; None: none of those that PyTorch has names for."""
    name = getattr(getattr(op, "op", op), "name", None)
    if name in REDUCTIONS:
        return str(name)
    for known in REDUCTIONS:
        try:
            if hasattr(dist.ReduceOp, known) and bool(op == getattr(dist.ReduceOp, known)):
                return known
        except (TypeError, RuntimeError):
            continue
    return None


def _forward(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **named: Any) -> Any:
        return getattr(self._real, name)(*args, **named)
    call.__name__ = name
    return call


def _get(name: str) -> Callable[[Any], Any]:
    return lambda self: getattr(self._real, name)


def forward_the_rest(group: Any) -> None:
    """Whatever else this torch has goes to the real group, since attributes of the C++ base hide __getattr__."""
    for name in dir(dist.ProcessGroup):
        if not name.startswith("__") and name not in group.__dict__ and callable(
                getattr(dist.ProcessGroup, name, None)) and name not in ("Options", "BackendType"):
            setattr(group, name, _forward(name))
    for name in ("bound_device_id", "group_name", "group_desc", "_device_types"):
        if hasattr(dist.ProcessGroup, name):
            setattr(group, name, property(_get(name)))


def run_as_main(command: List[str]) -> None:
    """script.py and its arguments, or -m module, as the main program of this process."""
    if command[0] == "-m":
        sys.argv = command[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        runpy.run_path(command[0], run_name="__main__")
