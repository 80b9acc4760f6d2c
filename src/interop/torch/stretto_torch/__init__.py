"""The backend "stretto" of torch.distributed: importing this registers it.

    import stretto_torch
    torch.distributed.init_process_group("stretto")

It serves tensors on the CPU. See docs/pytorch.md of Stretto, and hooks for what DDP can have beyond all-reduce.
"""

import atexit
import inspect
import sys

import torch.distributed as dist

from . import _C, hooks
from .symmetric import DistributedDataParallel, symmetric_memory

__all__ = ["DistributedDataParallel", "backend_of", "hooks", "monitored_barrier", "symmetric_memory"]


def backend_of(group=None):
    """The ProcessGroupStretto inside a process group (none: the default one)."""
    if group is None:
        group = dist.group.WORLD
    backend = group
    if hasattr(group, "_get_backend"):  # PyTorch 2: a process group has a backend for each kind of device
        import torch

        backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    if not isinstance(backend, _C.ProcessGroupStretto):
        raise ValueError(f"This process group is of {type(backend).__name__}; give one of the backend 'stretto'.")
    return backend


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """torch.distributed.monitored_barrier, which serves Gloo alone, for groups of this backend.

    Returns when all ranks have come. Where one has not within the timeout (a timedelta; none: the group's), raises on every
    rank, and names it; wait_all_ranks: names all of them, not only the first. The group stays usable.
    """
    arguments = {} if timeout is None else {"timeout": timeout}
    backend_of(group).monitored_barrier(wait_all_ranks=wait_all_ranks, **arguments)


def _create(store, rank, size, timeout):
    return _C.ProcessGroupStretto(store, rank, size, timeout)


def _register():
    if hasattr(dist.Backend, "STRETTO"):  # this package, under another path
        return
    register = dist.Backend.register_backend
    arguments = {"devices": ["cpu"]} if "devices" in inspect.signature(register).parameters else {}
    register("stretto", _create, **arguments)


def _leave():
    # Set by the interpreter when it has printed an exception that nobody caught. The other ranks are to hear of that at once.
    error = getattr(sys, "last_value", None)
    _C.leave_all("" if error is None else f"{type(error).__name__}: {error}")


_register()
atexit.register(_leave)
