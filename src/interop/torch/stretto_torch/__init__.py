"""The backend "stretto" of torch.distributed: importing this registers it.

    import stretto_torch
    torch.distributed.init_process_group("stretto")

It serves tensors on the CPU. See docs/pytorch.md of Stretto, and `hooks` for DDP communication hooks that send fewer bits.
"""

import atexit
import importlib.machinery
import inspect
import os
import sys

import torch.distributed as dist


def _check_module():
    """Python itself would take a package without its module for a circular import."""
    here = os.path.dirname(os.path.abspath(__file__))
    modules = [name for name in os.listdir(here) if name.startswith("_C.")]
    if any("_C" + suffix in modules for suffix in importlib.machinery.EXTENSION_SUFFIXES):
        return
    found = f"was built for another Python ({', '.join(modules)})" if modules else "was built without PyTorch"
    raise ImportError(f"{here} {found}; build it for {sys.executable}: give CMake -DSTRETTO_TORCH_PYTHON={sys.executable}, or "
                      "install it with pip install src/interop/torch.")


_check_module()

from . import _C, hooks  # noqa: E402
from .moves import Divided, Move, MovedTensor, move  # noqa: E402
from .onebit_adam import OneBitAdam  # noqa: E402
from .symmetric import put_buckets_into_symmetric_memory, symmetric_memory  # noqa: E402

__all__ = ["Divided", "Move", "MovedTensor", "OneBitAdam", "backend_of", "hooks", "monitored_barrier", "move", "symmetric_memory"]


def backend_of(group=None):
    """Returns the ProcessGroupStretto inside a process group (None: the default group)."""
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

    Returns when all ranks have come. If a rank does not come within the timeout (a timedelta; None: the group's), raises an
    error on every rank that names the missing rank. wait_all_ranks: names all missing ranks, not only the first. The group
    stays usable. Does nothing on a rank outside the group.
    """
    if dist.get_rank(group) < 0:
        return
    arguments = {} if timeout is None else {"timeout": timeout}
    backend_of(group).monitored_barrier(wait_all_ranks=wait_all_ranks, **arguments)


def _is_ours(group):
    try:
        return backend_of(group) is not None
    except (ValueError, RuntimeError):  # RuntimeError: PyTorch 2, a group without a backend for the CPU
        return False


def _create(store, rank, size, timeout):
    return _C.ProcessGroupStretto(store, rank, size, timeout)


def _register():
    if hasattr(dist.Backend, "STRETTO"):  # this package was already imported under another path
        return
    register = dist.Backend.register_backend
    arguments = {"devices": ["cpu"]} if "devices" in inspect.signature(register).parameters else {}
    register("stretto", _create, **arguments)
    put_buckets_into_symmetric_memory(_is_ours)


def _leave():
    # The interpreter sets this after it has printed an uncaught exception. The other ranks must learn of it
    # at once.
    error = getattr(sys, "last_value", None)
    _C.leave_all("" if error is None else f"{type(error).__name__}: {error}")


if os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
    os.environ.setdefault("STRETTO_CHECK", "1")
_register()
atexit.register(_leave)
