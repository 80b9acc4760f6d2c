"""Tensors in memory that the ranks of a host share. Collectives work there in place, and save a copy into shared memory and
a copy out of it.

    with stretto_torch.symmetric_memory():
        gathered = torch.empty(elements)

    model = stretto_torch.DistributedDataParallel(net)  # its gradient buckets lie there

A child made by fork() shares such tensors with its parent: each sees what the other writes. So the workers of a DataLoader
must not write to them.
"""

import contextlib

import torch
import torch.nn.parallel

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


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch.nn.parallel.DistributedDataParallel with gradient buckets in symmetric memory; otherwise the same.

    Within join() the buckets that DDP forms after its first step are in ordinary memory. lazy_bucket_allocation is refused.
    """

    def __init__(self, *arguments, **options):
        if options.get("lazy_bucket_allocation"):
            raise ValueError("With lazy_bucket_allocation=True buckets are made on autograd's threads, not in symmetric memory; "
                             "leave it out, or use torch.nn.parallel.DistributedDataParallel.")
        super().__init__(*arguments, **options)

    # DDP replaces the buckets that are formed here after the first step, unless it looks for unused
    # parameters in each step. Replaced buckets would stay in the heap, with sizes that are never requested
    # again.
    def _ddp_init_helper(self, parameters, expect_sparse_gradient, param_to_name_mapping, static_graph):
        stay = self.find_unused_parameters and not static_graph
        with symmetric_memory() if stay else contextlib.nullcontext():
            super()._ddp_init_helper(parameters, expect_sparse_gradient, param_to_name_mapping, static_graph)

    def forward(self, *inputs, **options):
        # DDP replaces its buckets in the next forward(). This call does it first, in symmetric memory, and
        # forward() then finds it done. Within join() DDP must do it itself, because ranks without inputs take
        # part in it in an order of DDP's own.
        has_buckets = not (getattr(self, "_delay_all_reduce_all_params", False) or getattr(self, "_use_python_reducer", False))
        if has_buckets and torch.is_grad_enabled() and not self._join_config.enable:
            with symmetric_memory():
                self._has_rebuilt_buckets |= self.reducer._rebuild_buckets()
        return super().forward(*inputs, **options)
