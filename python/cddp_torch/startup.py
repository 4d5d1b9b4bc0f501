# SPDX-License-Identifier: Apache-2.0
"""CDDP_TORCH=dir: the recording begins as soon as the program has imported torch, and not before."""
from __future__ import annotations

import importlib.abc
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional, Sequence


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        made: Optional[ModuleType] = self._real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
                  ) -> Optional[ModuleSpec]:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        import importlib.util
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def begin() -> None:
    if "CDDP_TORCH" not in os.environ:  # `python -m cddp_torch run` has taken it, and records
        return
    try:
        import cddp_torch
        cddp_torch.record(os.environ["CDDP_TORCH"], os.environ.get("CDDP_TORCH_LEVEL", "digests"),
                          os.environ.get("CDDP_TORCH_GRADIENTS") == "1", os.environ.get("CDDP_TORCH_INPUTS") == "1")
    except Exception as failure:
        sys.stderr.write("cddp_torch: nothing is recorded: %s\n" % failure)


if "torch" in sys.modules:
    begin()
else:
    sys.meta_path.insert(0, _Finder())
