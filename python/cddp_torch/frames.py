# SPDX-License-Identifier: Apache-2.0
"""The line of the user's program that a call came from."""
from __future__ import annotations

import os
import sys
from typing import Optional, Tuple

import torch

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def _print(path: str, line: int, function: str) -> str:
    if os.path.isabs(path):
        relative = os.path.relpath(path)
        path = relative if not relative.startswith("..") else path
    return "%s:%d in %s" % (path, line, function)


def find(depth: int = 2) -> Optional[Tuple[str, int]]:
    """Where, and the line's number: the innermost frame outside torch, else the innermost of torch."""
    frame = sys._getframe(depth)
    inner: Optional[Tuple[str, int]] = None
    while frame is not None:
        code = frame.f_code
        path = code.co_filename
        if not path.startswith(_OWN) and not path.startswith("<") and not path.endswith(os.sep + "threading.py"):
            if not path.startswith(_TORCH):
                return _print(path, frame.f_lineno, code.co_name), frame.f_lineno
            if inner is None and not path.endswith(("distributed_c10d.py", "c10d_logger.py")):
                inner = _print(os.path.basename(path), frame.f_lineno, code.co_name), frame.f_lineno
        if frame.f_back is None:
            break
        frame = frame.f_back
    return inner
