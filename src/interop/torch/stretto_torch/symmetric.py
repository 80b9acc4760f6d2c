"""Tensors in memory that the ranks of a host share. Collectives work there in place, and save a copy into shared memory and
a copy out of it.

    with stretto_torch.symmetric_memory():
        gathered = torch.empty(elements)

The gradient buckets of DistributedDataParallel lie there by themselves.

A child made by fork() shares such tensors with its parent: each sees what the other writes. So the workers of a DataLoader
must not write to them.
"""

import contextlib
import warnings

import torch.distributed as dist

from . import _C


@contextlib.contextmanager
def symmetric_memory():
    """CPU tensors that this thread makes in the `with` block lie in Stretto's symmetric heap until they are freed.

    Other threads, including those of autograd, are not affected. Ranks need not act together: a collective in which some
    rank has other memory is correct, only slower.
    """
    _C.enter_symmetric_memory()
    try:
        yield
    finally:
        _C.leave_symmetric_memory()


def put_buckets_into_symmetric_memory(is_ours):
    """From now on DistributedDataParallel's gradient buckets lie in symmetric memory where is_ours(process_group)."""

    def memory_of(group):
        if not is_ours(group):
            return contextlib.nullcontext
        try:
            with symmetric_memory():
                return symmetric_memory
        except RuntimeError as error:  # of another allocator
            warnings.warn(f"{error} Gradient buckets lie in ordinary memory, which costs two copies more.")
            return contextlib.nullcontext

    class Reducer(dist.Reducer):
        def __init__(self, parameters, indices, sizes, group, sparse, cap, find_unused_parameters=False, *more, **options):
            self._memory = memory_of(group)
            # DDP replaces the buckets that are formed here after the first step, unless it looks for unused parameters in
            # each step. Replaced buckets would stay in the heap, with sizes that are never requested again.
            with self._memory() if find_unused_parameters else contextlib.nullcontext():
                super().__init__(parameters, indices, sizes, group, sparse, cap, find_unused_parameters, *more, **options)

        def _rebuild_buckets(self):
            with self._memory():
                return super()._rebuild_buckets()

    dist.Reducer = Reducer
