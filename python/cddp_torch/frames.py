# SPDX-License-Identifier: Apache-2.0
"""The line of the user's program that a call came from."""
from __future__ import annotations

import functools
import os
import sys
from types import FrameType
from typing import Optional, Tuple

import torch

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


@functools.lru_cache(maxsize=4096)
def _print(path: str, line: int, function: str) -> str:
    """Asked for several times in each step, of a few lines; what a path is relative to needs system calls."""
    if os.path.isabs(path):
        relative = os.path.relpath(path)
        path = relative if not relative.startswith("..") else path
    return "%s:%d in %s" % (path, line, function)


_USER, _PYTORCH, _PLUMBING, _NOBODY = range(4)


@functools.lru_cache(maxsize=4096)
def _whose(path: str) -> int:
    if path.startswith(_OWN) or path.startswith("<") or path.endswith(os.sep + "threading.py"):
        return _NOBODY
    if not path.startswith(_TORCH):
        return _USER
    return _PLUMBING if path.endswith(("distributed_c10d.py", "c10d_logger.py")) else _PYTORCH


def find(depth: int = 2) -> Optional[Tuple[str, int]]:
    """Where, and the line's number: the innermost frame outside torch, else the innermost of torch."""
    frame: Optional[FrameType] = sys._getframe(depth)
    inner: Optional[Tuple[str, int, str]] = None
    while frame is not None:
        code = frame.f_code
        whose = _whose(code.co_filename)
        if whose == _USER:
            return _print(code.co_filename, frame.f_lineno, code.co_name), frame.f_lineno
        if whose == _PYTORCH and inner is None:
            inner = os.path.basename(code.co_filename), frame.f_lineno, code.co_name
        frame = frame.f_back
    return (_print(*inner), inner[1]) if inner is not None else None
