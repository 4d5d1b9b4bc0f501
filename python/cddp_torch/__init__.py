# SPDX-License-Identifier: Apache-2.0
"""Records a PyTorch DDP job so that `cddp-verify check cddp-trace/` can judge it.

    import cddp_torch
    cddp_torch.record("cddp-trace")     # before init_process_group

Or change nothing: `python -m cddp_torch run -n 2 train.py`, or CDDP_TORCH=cddp-trace in the environment of a
Python that has this package installed. docs/howto/pytorch.md tells the rest.
"""
from __future__ import annotations

from typing import Any, Optional

__version__ = "0.1.0"
__all__ = ["record", "attach", "stop", "is_recording", "compare"]

_is_patched = False


def record(directory: str = "cddp-trace", level: str = "digests", gradients: bool = False,
           inputs: bool = False) -> None:
    """Records this process from now on. Groups and wrappers that are made later are recorded in full.
    gradients: also the gradients of each backward themselves, for `cddp-verify lift`. inputs: also what each training
    forward gets, for `compare(model, loss, inputs=directory)`."""
    import os
    import sys

    try:
        from . import recorder
    except Exception as failure:  # a torch that is not there, or of a version nobody has seen
        sys.stderr.write("cddp_torch: nothing is recorded: %s: %s\n" % (type(failure).__name__, failure))
        return
    if recorder.current is not None and recorder.current.pid == os.getpid():
        return
    recorder.current = recorder.Recorder(directory, level)
    recorder.guarded(_begin)()
    if gradients:
        from . import gradients as kept
        kept.is_wanted = True
    if inputs:
        from . import inputs as kept_inputs
        kept_inputs.is_wanted = True


def _begin() -> None:
    global _is_patched
    from . import groups, payload, recorder, training, wrappers

    r = recorder.current
    assert r is not None
    if r.level == "payload":
        kept = payload.Payload(r)
        r.on_failure.append(kept.write)
        wrappers.keep_payload = kept.keep
    if not _is_patched:
        _is_patched = True
        groups.patch(lambda: recorder.current)
        wrappers.patch(lambda: recorder.current)
        training.patch()
    import torch.distributed as dist
    if dist.is_available() and dist.is_initialized():
        groups.wrap_default(r)


def attach(ddp: Any, *optimizers: Any) -> None:
    """A module that was wrapped before record(): its forwards, backwards, steps and values from now on.
    What its reducer posts is not seen any more, and the recording says so."""
    from . import recorder, training, wrappers

    r = recorder.get()
    if r is None or wrappers.of(ddp) is not None:
        return

    def begin(r: recorder.Recorder) -> None:
        w = wrappers.Wrapper(r, ddp, True)
        wrappers.add(w)
        w.say(r)
        for optimizer in optimizers:
            training.wrap_class(type(optimizer))

    recorder.guarded(begin)(r)


def stop() -> None:
    """Ends the recording of this process; the job goes on."""
    from . import recorder

    if recorder.current is not None:
        recorder.current.close()


def is_recording() -> bool:
    from . import recorder

    return recorder.get() is not None


def failure() -> Optional[str]:
    """Why the recording ended early; None: it did not."""
    from . import recorder

    return recorder.current.failure if recorder.current is not None else None


def compare(*arguments: Any, **options: Any) -> Any:
    """The same gradients through PyTorch's DDP and through cddp: see cddp_torch.comparison.compare."""
    from .comparison import compare as run

    return run(*arguments, **options)
