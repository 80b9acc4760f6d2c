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

    (With gradient_as_bucket_view=True that is all the memory that gradients take, as there.)
    """

    def __init__(self, *arguments, **options):
        with symmetric_memory():
            super().__init__(*arguments, **options)

    def forward(self, *inputs, **options):
        # Once, after its first step, DDP forms its buckets anew: in the next forward(), which then finds it done. Not where
        # ranks may run out of inputs, for these take part in it in an order that is DDP's own.
        if torch.is_grad_enabled() and not self._join_config.enable:
            with symmetric_memory():
                self._has_rebuilt_buckets |= self.reducer._rebuild_buckets()
        return super().forward(*inputs, **options)
