# SPDX-License-Identifier: Apache-2.0
"""Makes the FullyShardedDataParallel of PyTorch 1.13.1 run on CPUs over Gloo, and records what it does.

What stands in the way, and what is done about it:

* Python 3.11 refuses a dataclass field whose default has no hash: such a default is copied by a factory.
* FSDP wants an accelerator. Streams, events and synchronisation become objects that do nothing, and parameters stay on the
  CPU. So the order of calls, sizes and values are PyTorch's; streams and overlap are not observed.
* Gloo has no all-gather into one tensor and no reduce-scatter. The first is a gather into a list. The second is a gather
  of all inputs, their sum in the order of ranks, and this rank's slice of it.
"""
import contextlib
import copy
import dataclasses

import torch
import torch.distributed as dist


def _accept_defaults_without_hash():
    get_field = dataclasses._get_field

    def patched(cls, name, kind, *rest):
        field = getattr(cls, name, None)
        if isinstance(field, dataclasses.Field) and field.default.__class__.__hash__ is None:
            default = field.default
            field.default, field.default_factory = dataclasses.MISSING, lambda: copy.copy(default)
        return get_field(cls, name, kind, *rest)

    dataclasses._get_field = patched


class _Nothing:
    """A stream or an event."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, _):
        return lambda *_, **__: None


_accept_defaults_without_hash()
from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: E402
from torch.distributed.fsdp import fully_sharded_data_parallel as fsdp  # noqa: E402
from torch.distributed.fsdp.flat_param import FlatParamHandle  # noqa: E402

log = []  # of this rank: "AG 0", "free 0", "RS 0", "AR 0" in the order of the calls
_reducing = [None]


def _gather_into(output, given, group=None, async_op=False):
    if given.dtype == torch.float32:  # others compare the order of units (FSH-13)
        log.append("AG " + _reducing[0])
    dist.all_gather(list(output.view(-1).chunk(dist.get_world_size(group))), given.contiguous().view(-1), group=group)


def _reduce_scatter(output, given, group=None, async_op=False):
    world = dist.get_world_size(group)
    log.append("RS " + _reducing[0])
    parts = [torch.empty_like(given) for _ in range(world)]
    dist.all_gather(parts, given.contiguous(), group=group)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    output.copy_(total.chunk(world)[dist.get_rank(group)])


def _install():
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.Stream = torch.cuda.Event = _Nothing
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    torch.cuda.current_stream = lambda *_: _Nothing()
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.record_stream = lambda *_: None
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    dist._all_gather_base = _gather_into
    dist._reduce_scatter_base = _reduce_scatter
    FullyShardedDataParallel._get_compute_device = lambda *_, **__: torch.device("cpu")
    gather, free, backward = (FlatParamHandle._all_gather_flat_param, FlatParamHandle._free_unsharded_flat_param,
                              FullyShardedDataParallel._post_backward_hook)
    all_reduce = dist.all_reduce

    def gather_named(handle, *rest):
        _reducing[0] = handle.unit
        return gather(handle, *rest)

    def free_named(handle):
        if handle._get_padded_unsharded_flat_param().storage().size() > 0:
            log.append("free " + handle.unit)
        return free(handle)

    def backward_named(wrapper, handle, *rest):
        _reducing[0] = handle.unit
        def reduce_named(tensor, *rest, **words):
            log.append("AR " + handle.unit)
            return all_reduce(tensor, *rest, **words)

        prefetch = wrapper._prefetch_handles

        def prefetch_named(*rest):
            prefetch(*rest)
            _reducing[0] = handle.unit

        wrapper._prefetch_handles = prefetch_named
        dist.all_reduce = reduce_named
        try:
            return backward(wrapper, handle, *rest)
        finally:
            dist.all_reduce = all_reduce
            wrapper._prefetch_handles = prefetch

    FlatParamHandle._all_gather_flat_param = gather_named
    FlatParamHandle._free_unsharded_flat_param = free_named
    FullyShardedDataParallel._post_backward_hook = backward_named


_install()


def name_units(root, names):
    """names: of the wrappers, in the order of modules. The log then has them."""
    wrappers = FullyShardedDataParallel.fsdp_modules(root)
    assert len(wrappers) == len(names)
    for wrapper, name in zip(wrappers, names):
        for handle in wrapper._handles:
            handle.unit = name
    return wrappers
