"""Tensors in memory that the ranks of a host share: collectives work there in place, without a copy into shared memory and
one out of it.

    with stretto_torch.symmetric_memory():
        gathered = torch.empty(elements)

    model = stretto_torch.DistributedDataParallel(net)  # gradients' buckets lie there

A child made by fork() sees such tensors as they change, and what it writes there its parent reads: no place for what the
workers of a DataLoader write to.
"""

import contextlib

import torch
import torch.nn.parallel

from . import _C


@contextlib.contextmanager
def symmetric_memory():
    """Tensors on the CPU that this thread makes inside lie in Stretto's symmetric heap, and stay there until they are freed.

    Other threads, those of autograd among them, go on as ever. Nothing has to be done by all ranks: a collective in which some
    rank has other memory works all the same, only slower.
    """
    _C.enter_symmetric_memory()
    try:
        yield
    finally:
        _C.leave_symmetric_memory()


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch.nn.parallel.DistributedDataParallel whose buckets of gradients lie in symmetric memory; all else is that one's.

    Within join() the buckets that DDP forms after its first step are ordinary ones. lazy_bucket_allocation is refused.
    """

    def __init__(self, *arguments, **options):
        if options.get("lazy_bucket_allocation"):
            raise ValueError("With lazy_bucket_allocation=True buckets are made on autograd's threads, not in symmetric memory; "
                             "leave it out, or use torch.nn.parallel.DistributedDataParallel.")
        super().__init__(*arguments, **options)

    # The buckets that are formed here are replaced after the first step, unless DDP looks for unused parameters in each. Those
    # that are dropped would be kept by the heap, for sizes that nobody asks for again.
    def _ddp_init_helper(self, parameters, expect_sparse_gradient, param_to_name_mapping, static_graph):
        stay = self.find_unused_parameters and not static_graph
        with symmetric_memory() if stay else contextlib.nullcontext():
            super()._ddp_init_helper(parameters, expect_sparse_gradient, param_to_name_mapping, static_graph)

    def forward(self, *inputs, **options):
        # DDP replaces them in the next forward(), which then finds it done. Not where ranks may run out of inputs, for these
        # take part in it in an order that is DDP's own.
        has_buckets = not (getattr(self, "_delay_all_reduce_all_params", False) or getattr(self, "_use_python_reducer", False))
        if has_buckets and torch.is_grad_enabled() and not self._join_config.enable:
            with symmetric_memory():
                self._has_rebuilt_buckets |= self.reducer._rebuild_buckets()
        return super().forward(*inputs, **options)
